//! The stream's work on the anchor: records out, replay, records in.

use core::time::Duration;

use crate::ring::{Span, TxRing};
use crate::stream::state::Shutdown;
use crate::stream::{Control, Failure, Role, RxState, Stream, TxState};
use crate::wire::{Markers, MessageKind, Record, RecordKind, MAGIC_LEN, RECORD_LEN};

/// How long the rest of a record is waited for before it is [`Late`](Rest::Late).
pub const RECORD_GRACE: Duration = Duration::from_secs(3);

/// A write to do on the anchor. Take it, write as much as the anchor takes, report with `anchor_written`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorWrite {
    /// These bytes of a record: a whole record, from an offset.
    Record([u8; RECORD_LEN], usize),
    /// These retained bytes of the outgoing ring.
    Replay(Span),
    /// End the direction (FIN).
    Shutdown,
    /// `shutdown(SHUT_RD)`
    ShutdownRead,
}

/// What is known of the bytes that follow the peeked ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// More may come at any time.
    Coming,
    /// None have come for [`RECORD_GRACE`].
    Late,
    /// None will come: the peer has ended its direction of the anchor (FIN).
    Ended,
    /// None will come: the anchor was reset.
    Reset,
}

impl Rest {
    /// No more bytes will ever come.
    pub fn is_over(self) -> bool {
        matches!(self, Rest::Ended | Rest::Reset)
    }
}

/// The result of examining peeked bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordVerdict {
    /// A record: consume exactly `RECORD_LEN` bytes of the anchor.
    Consume,
    /// Perhaps the beginning of a record: check again when there is more, or when its rest is late. If no more will
    /// come, the peer has died: call [`handle_anchor_end`](Stream::handle_anchor_end).
    NeedMore,
    /// Application bytes: leave them where they are.
    Plain,
}

/// The bytes at a position where a record may be.
enum Found {
    Record(Record),
    Partial,
    Other,
}

impl Stream {
    /// The next write on the anchor, before any application byte.
    #[inline]
    pub fn poll_anchor_write(&mut self) -> Option<AnchorWrite> {
        if self.anchor.records.is_empty()
            && matches!(self.tx.state, TxState::Link | TxState::Pledged | TxState::Paused | TxState::Frozen)
        {
            return None;
        }
        if let Some(record) = self.anchor.records.front() {
            return Some(AnchorWrite::Record(record.encode(), self.anchor.record_sent));
        }
        match self.tx.state {
            TxState::Replay(next) => match self.tx.ring.as_ref().and_then(|r| r.retained(next)) {
                Some(span) => Some(AnchorWrite::Replay(span)),
                None => {
                    self.finish_replay();
                    self.poll_shutdown()
                }
            },
            TxState::Anchor => self.poll_shutdown(),
            _ => None,
        }
    }

    /// Whether the next write on the anchor is a marker, of which no byte is there yet.
    #[inline]
    pub fn is_about_to_switch(&self) -> bool {
        self.anchor.record_sent == 0
            && self.anchor.records.front().is_some_and(|record| record.kind == RecordKind::Marker)
    }

    pub(super) fn poll_shutdown(&self) -> Option<AnchorWrite> {
        if self.tx.state != TxState::Anchor || self.failed.is_some() {
            return None;
        }
        //= spec §4.8.5
        //# A direction that has been shut down on the link is shut down on the anchor once no record is to come there.
        if self.read_shutdown_is_due() && self.rx.state == RxState::Anchor && self.is_plain() {
            return Some(AnchorWrite::ShutdownRead);
        }
        //= spec §4.8.9
        //# Reading is shut down on the anchor before writing, if both are: a peer that sees the end can then rely on
        //# its writes being answered with a reset.
        if self.awaits_read_shutdown() {
            return None;
        }
        //= spec §4.8.9
        //# For the same reason a side that has closed, and has nothing left to do on the anchor, ends it by closing it.
        if self.is_closed() && !self.must_linger() {
            return None;
        }
        (self.tx.shutdown == Shutdown::Pending).then_some(AnchorWrite::Shutdown)
    }

    /// Reading is to be shut down on the anchor as soon as the anchor has brought the whole replay.
    pub fn awaits_read_shutdown(&self) -> bool {
        self.read_shutdown_is_due() && self.tx.state == TxState::Anchor && matches!(self.rx.state, RxState::Replay(_))
    }

    /// The replay comes too slowly: the kernel has no room for all of it.
    pub fn skip_read_shutdown(&mut self) {
        if self.awaits_read_shutdown() {
            self.rx.shutdown = Shutdown::OnAnchor;
        }
    }

    fn read_shutdown_is_due(&self) -> bool {
        matches!(self.rx.shutdown, Shutdown::Pending | Shutdown::OnLink)
    }

    /// `n` bytes of the last [`AnchorWrite`] were written (for the shutdowns: 0, done).
    pub fn anchor_written(&mut self, n: usize) {
        if let Some(record) = self.anchor.records.front() {
            self.anchor.record_sent += n;
            if self.anchor.record_sent >= RECORD_LEN {
                self.anchor.record_sent = 0;
                //= spec §4.3.3
                //# A side that has written the whole of its marker sends SWITCHED on the link, if that lives.
                if record.kind == RecordKind::Marker && self.link.alive {
                    self.push_control(Control::Signal(MessageKind::Switched));
                }
                self.anchor.records.pop_front();
                self.finish_replay();
                self.try_fin();
                self.try_close();
            }
        } else if let TxState::Replay(next) = &mut self.tx.state {
            *next += n as u64;
            self.finish_replay();
        } else {
            match self.poll_shutdown() {
                Some(AnchorWrite::ShutdownRead) => self.rx.shutdown = Shutdown::OnAnchor,
                Some(_) => self.tx.shutdown = Shutdown::OnAnchor,
                None => {}
            }
        }
    }

    /// Whether application bytes that are unread on the anchor have come after both directions were shut down. Then the
    /// stream fails, and its anchor is to be reset. Call it after an [`AnchorWrite::ShutdownRead`], which makes it
    /// false.
    pub fn refuse_unread(&mut self, unread: u64) -> bool {
        //= spec §4.8.2
        //# Application bytes that come on the anchor where it expects a marker it answers with a reset of the anchor, as its
        //# kernel would.
        let refused = core::mem::take(&mut self.rx.refuses) && unread > 0;
        if refused {
            self.fail(Failure::PeerReset);
        }
        refused
    }

    /// The anchor takes no more bytes: no process reads the rest of the replay.
    pub fn drop_replay(&mut self) {
        if matches!(self.tx.state, TxState::Replay(_)) && self.anchor.records.is_empty() {
            self.tx.state = TxState::Replay(self.tx.position);
            self.finish_replay();
        }
    }

    /// Bytes peeked from the anchor where a record may stand ([`RxSource::Record`](crate::RxSource), or the anchor
    /// became readable while reading from the link). The first few bytes of a record count as application bytes if the
    /// rest is late or the anchor has ended, unless the peer has promised a marker. They never do after a reset, nor
    /// does a longer part of a record.
    pub fn handle_record(&mut self, peeked: &[u8], rest: Rest) -> RecordVerdict {
        let found = self.find(peeked, rest);
        self.take_record(found)
    }

    fn find(&self, peeked: &[u8], rest: Rest) -> Found {
        match peeked.first_chunk().map(Record::decode) {
            Some(Ok(record)) if record.token == self.link.ours.nonce => Found::Record(record),
            None if !self.may_be_data(peeked, rest) && Record::could_begin(peeked, &self.link.ours.nonce) => {
                Found::Partial
            }
            _ => Found::Other,
        }
    }

    /// Whether the beginning of a record counts as application bytes.
    fn may_be_data(&self, peeked: &[u8], rest: Rest) -> bool {
        let pledged = matches!(self.rx.state, RxState::Expect(_) | RxState::ExpectThenResume(_));
        let short = match rest {
            Rest::Coming => false,
            //= spec §3.3.2
            //# Fewer than eight at a pledged position count as application bytes when the anchor has ended, or
            //# RECORD_GRACE (3 s) has passed without another byte.
            Rest::Late | Rest::Ended => peeked.len() < MAGIC_LEN,
            //= spec §3.3.2
            //# After a reset of the anchor no beginning does: the reset may have overtaken the rest of a marker.
            Rest::Reset => false,
        };
        //= spec §3.3.2
        //# Nor do fewer than eight where the peer has promised a marker, by SWITCHED or otherwise.
        rest != Rest::Coming && peeked.is_empty() || short && pledged && !self.is_marker_promised()
    }

    fn take_record(&mut self, found: Found) -> RecordVerdict {
        match (self.rx.state, found) {
            (RxState::Anchor | RxState::Replay(_), _) => RecordVerdict::Plain,
            (RxState::Drain, Found::Record(r)) if r.kind == RecordKind::Resume => {
                self.answer_lingering();
                RecordVerdict::Consume
            }
            (RxState::Drain, _) => RecordVerdict::Plain,
            (_, Found::Partial) => RecordVerdict::NeedMore,
            //= spec §4.4.1
            //# At a pledged position the reader peeks: a marker with its own nonce and that position is consumed and
            //# switches the direction; anything else is application data and voids the pledge.
            (RxState::Expect(at) | RxState::ExpectThenResume(at), Found::Record(r))
                if r.kind == RecordKind::Marker && r.position == at =>
            {
                self.link.markers = Markers::Written;
                self.marker_read();
                RecordVerdict::Consume
            }
            //= spec §4.3.9
            //# An opener that reads RESUME in place of the acceptor's marker takes it for both.
            (RxState::Expect(_), Found::Record(r))
                if r.kind == RecordKind::Resume && self.is_put_off() && self.tx.state == TxState::Paused =>
            {
                self.marker_read();
                self.handle_resume(&r);
                RecordVerdict::Consume
            }
            (RxState::Expect(_) | RxState::ExpectThenResume(_), _) => {
                self.no_marker();
                RecordVerdict::Plain
            }
            (RxState::Link | RxState::AwaitResume, Found::Record(r)) if r.kind == RecordKind::Resume => {
                self.handle_resume(&r);
                RecordVerdict::Consume
            }
            //= spec §4.3.9
            //# An acceptor that has switched already reads that marker once, before the opener's RESUME.
            (RxState::Link | RxState::AwaitResume, Found::Record(r))
                if r.kind == RecordKind::Marker && self.link.peer.put_off == Some(r.position) =>
            {
                self.link.peer.put_off = None;
                RecordVerdict::Consume
            }
            (RxState::Link | RxState::AwaitResume, _) => {
                if self.is_closed() {
                    // Data for a closed socket.
                    self.fail(Failure::PeerReset);
                } else {
                    //= spec §4.4.2
                    //# Anything but a RESUME record on a switched direction of the anchor is a violation.
                    self.violate("application bytes on a switched anchor");
                }
                RecordVerdict::Plain
            }
        }
    }

    /// See [`LinkState::markers`](super::state::LinkState).
    pub(super) fn is_put_off(&self) -> bool {
        self.link.markers == Markers::PutOff
    }

    /// The peer's direction has switched: its marker was read, or counts as read.
    pub(super) fn marker_read(&mut self) {
        match (self.rx.state, self.role, self.tx.state) {
            (RxState::ExpectThenResume(_), ..) => self.rx.state = RxState::AwaitResume,
            (_, _, TxState::Anchor) if self.peer_is_done() => {
                self.rx.state = RxState::Drain;
                self.try_close();
            }
            //= spec §4.2.5
            //# A write that fails does not void a pledge.
            (_, Role::Acceptor, TxState::Anchor) if self.keeps_pledge() => {
                self.rx.state = RxState::Link;
                self.acceptor_switches();
            }
            (_, _, TxState::Anchor) => {
                //= spec §4.3.4
                //# An acceptor that has voided its pledge reads on from the anchor after the opener's marker.
                self.rx.state = RxState::Anchor;
                self.rx.ring = None;
                self.tx.ring = None;
                self.try_close();
            }
            (_, Role::Acceptor, TxState::Pledged) => {
                self.rx.state = RxState::Link;
                self.acceptor_switches();
            }
            (_, Role::Opener, TxState::Paused) => {
                self.rx.state = RxState::Link;
                self.tx_to_link();
            }
            // Our direction had switched on the peer's SWITCHED already.
            _ => {
                self.rx.state = RxState::Link;
                self.try_demote();
            }
        }
        // FIN and CLOSE may have come before the marker was read.
        self.finish_reading();
    }

    /// For an acceptor that has received the opener's marker: whether no application bytes stand at its own pledge,
    /// which it was about to void.
    pub(super) fn keeps_pledge(&self) -> bool {
        let pledge = self.tx.ring.as_ref().map(TxRing::sent);
        pledge == Some(self.tx.position) && !self.tx.shutdown.is_wanted()
    }

    /// Whether a message of the peer has said that its marker is on the anchor.
    fn is_marker_promised(&self) -> bool {
        self.link.peer.switched || self.relies_on_marker()
    }

    /// Whether this side has acted on such a message, so that it cannot do without the marker.
    pub(super) fn relies_on_marker(&self) -> bool {
        matches!(self.rx.state, RxState::ExpectThenResume(_)) || self.tx.state == TxState::Link || self.peer_is_done()
    }

    pub(super) fn no_marker(&mut self) {
        if self.relies_on_marker() {
            return self.violate("no marker at the pledged position");
        }
        //= spec §4.4.3
        //# A void pledge of either side ends the attempt; both directions stay on the anchor.
        self.rx.state = RxState::Anchor;
        self.rx.ring = None;
        self.tx.ring = None;
        self.tx.state = TxState::Anchor;
        self.link.demotion = None;
        self.history.last_reason = crate::Reason::PledgeVoided;
        if self.anchor.record_sent == 0 {
            // Our own marker; no byte of it is on the anchor yet.
            self.anchor.records.clear();
        }
        self.try_close();
    }
}
