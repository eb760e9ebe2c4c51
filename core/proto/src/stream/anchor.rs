//! What the stream does on the anchor: records out, replay, records in.

use crate::ring::Span;
use crate::stream::{Control, Failure, Role, RxState, Stream, TxState};
use crate::wire::{MessageKind, Record, RecordKind, RECORD_LEN};

/// Something to write on the anchor. Take it, write what the anchor takes, report with `anchor_written`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorWrite {
    /// These bytes of a record: a whole record, from an offset.
    Record([u8; RECORD_LEN], usize),
    /// These retained bytes of the outgoing ring.
    Replay(Span),
    /// End the direction (FIN).
    Shutdown,
}

/// What peeked bytes turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordVerdict {
    /// A record: consume exactly `RECORD_LEN` bytes of the anchor.
    Consume,
    /// The beginning of one, perhaps: look again when there is more, or call with `complete`.
    NeedMore,
    /// Application bytes: leave them where they are.
    Plain,
}

impl Stream {
    /// What to write on the anchor next, before any application byte.
    #[inline]
    pub fn poll_anchor_write(&mut self) -> Option<AnchorWrite> {
        if self.records.is_empty() && matches!(self.tx, TxState::Link | TxState::Pledged | TxState::Paused | TxState::Frozen) {
            return None;
        }
        if let Some(record) = self.records.front() {
            return Some(AnchorWrite::Record(*record, self.record_sent));
        }
        match self.tx {
            TxState::Replay(next) => match self.tx_ring.as_ref().and_then(|r| r.retained(next)) {
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

    fn poll_shutdown(&self) -> Option<AnchorWrite> {
        (self.tx == TxState::Anchor && self.fin_wanted && !self.fin_done && self.failure.is_none())
            .then_some(AnchorWrite::Shutdown)
    }

    /// `n` bytes of the last [`AnchorWrite`] were written (for `Shutdown`: 0, done).
    pub fn anchor_written(&mut self, n: usize) {
        if !self.records.is_empty() {
            self.record_sent += n;
            if self.record_sent >= RECORD_LEN {
                self.record_sent = 0;
                self.records.pop_front();
                //= spec §4.3.3
                //# A side that has written its marker MAY say so with SWITCHED on the link.
                if matches!(self.tx, TxState::Paused | TxState::Link) && self.link_alive {
                    self.push_control(Control::Signal(MessageKind::Switched));
                }
                self.finish_replay();
            }
        } else if let TxState::Replay(next) = &mut self.tx {
            *next += n as u64;
            self.finish_replay();
        } else if self.poll_shutdown().is_some() {
            self.fin_done = true;
        }
    }

    /// Bytes peeked from the anchor where a record may stand ([`RxSource::Record`](crate::RxSource), or the anchor
    /// became readable while reading from the link). `complete`: no more will come soon, or ever; a mere beginning
    /// of a record then counts as application bytes.
    pub fn handle_record(&mut self, peeked: &[u8], complete: bool) -> RecordVerdict {
        let could = Record::could_begin(peeked, &self.our_nonce);
        match self.rx {
            RxState::Expect(at) | RxState::ExpectThenResume(at) => {
                //= spec §4.4.1
                //# At a pledged position the reader peeks: a marker with its own nonce and that position is consumed
                //# and switches the direction; anything else is application data and voids the pledge.
                match peeked.first_chunk::<RECORD_LEN>().map(Record::decode) {
                    Some(Ok(r)) if r.token == self.our_nonce && r.kind == RecordKind::Marker && r.position == at => {
                        self.marker_read();
                        RecordVerdict::Consume
                    }
                    None if could && !complete => RecordVerdict::NeedMore,
                    _ => {
                        self.no_marker();
                        RecordVerdict::Plain
                    }
                }
            }
            RxState::Link | RxState::AwaitResume => match peeked.first_chunk::<RECORD_LEN>().map(Record::decode) {
                Some(Ok(r)) if r.token == self.our_nonce && r.kind == RecordKind::Resume => {
                    self.handle_resume(r.position);
                    RecordVerdict::Consume
                }
                None if could && !complete => RecordVerdict::NeedMore,
                _ => {
                    //= spec §4.4.2
                    //# Anything but a RESUME record on a switched direction of the anchor is a violation.
                    self.violate("application bytes on a switched anchor");
                    RecordVerdict::Plain
                }
            },
            RxState::Anchor | RxState::Drain => RecordVerdict::Plain,
        }
    }

    /// The anchor's incoming direction has ended: by FIN (`reset` false) or by an error, and everything before that
    /// has been read.
    pub fn handle_anchor_end(&mut self, reset: bool) {
        match self.rx {
            RxState::Expect(at) | RxState::ExpectThenResume(at) if self.rx_position <= at => self.no_marker(),
            RxState::Link | RxState::AwaitResume => {
                //= spec §4.7.1
                //# If the anchor ends while the direction is on the link and no FIN came by the link, the peer has
                //# died: its reader gets what is in the ring, then a reset, never a clean end.
                self.rx = RxState::Drain;
                if !self.fin_received || reset {
                    self.failure.get_or_insert(Failure::PeerReset);
                    self.try_close();
                } else if self.tx == TxState::Frozen {
                    // The peer ended its direction and is gone before it could say what it consumed.
                    self.failure.get_or_insert(Failure::PeerReset);
                }
            }
            _ => {}
        }
    }

    fn marker_read(&mut self) {
        match self.rx {
            RxState::ExpectThenResume(_) => self.rx = RxState::AwaitResume,
            _ => match (self.role, self.tx) {
                (Role::Acceptor, TxState::Anchor) => {
                    //= spec §4.3.4
                    //# An acceptor that has voided its pledge reads on from the anchor after the opener's marker.
                    self.rx = RxState::Anchor;
                    self.rx_ring = None;
                    self.try_close();
                }
                (Role::Acceptor, TxState::Pledged) => {
                    self.rx = RxState::Link;
                    self.acceptor_switches();
                }
                (Role::Opener, TxState::Paused) => {
                    self.rx = RxState::Link;
                    self.tx_to_link();
                }
                _ => {
                    self.rx = RxState::Link;
                    self.after_marker();
                }
            },
        }
    }

    /// `tx` had switched on the peer's word already.
    fn after_marker(&mut self) {
        if self.fin_received && self.close_received && self.tx == TxState::Link {
            self.tx = TxState::Anchor;
        }
        self.try_demote();
    }

    fn no_marker(&mut self) {
        if matches!(self.rx, RxState::ExpectThenResume(_)) || self.tx == TxState::Link {
            // We switched on its word that the marker is there.
            return self.violate("no marker at the pledged position");
        }
        //= spec §4.4.3
        //# A void pledge of either side ends the attempt; both directions stay on the anchor.
        self.rx = RxState::Anchor;
        self.rx_ring = None;
        self.tx_ring = None;
        self.tx = TxState::Anchor;
        self.demote_pending = None;
        self.last_reason = crate::Reason::PledgeVoided;
        self.try_close();
    }
}
