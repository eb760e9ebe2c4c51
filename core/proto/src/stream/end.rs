//! The end of a stream: FIN, close, abort, CLOSE of its slot, and the death of the peer.

use core::time::Duration;

use crate::ring::RxRing;
use crate::stream::state::{Attempt, Cause, Failed, Shutdown, SlotUse, Socket};
use crate::stream::{Control, Failure, PeerFin, Phase, Revival, Role, RxState, Stream, TxState};
use crate::wire::{MessageKind, Record, RecordKind, CORKED_REWIND};
use crate::Reason;

/// How long a closed stream may linger without progress. As long as the kernel repeats an orphan's bytes: 8 times
/// (tcp_orphan_retries), the first after 200 ms, each after twice the time (tcp_model_timeout).
pub const LINGER_LIMIT: Duration = Duration::from_millis(200 * ((2 << 8) - 1));

impl Stream {
    /// Ends the outgoing direction (`shutdown(SHUT_WR)`), after all bytes written before.
    pub fn shutdown_write(&mut self) {
        if self.tx.shutdown.is_wanted() || self.failed.is_some() {
            return;
        }
        self.tx.shutdown = Shutdown::Pending;
        self.give_up(Reason::PledgeVoided);
        if self.tx.state == TxState::Pledged {
            self.void_pledge();
        }
        self.record_refusal();
        self.try_fin();
    }

    /// From now on incoming bytes have no reader, if both directions have ended and a marker may come.
    fn record_refusal(&mut self) {
        self.rx.refuses = matches!(self.rx.state, RxState::Expect(_)) && self.takes_no_data();
    }

    /// `shutdown(SHUT_RD)`: reads end once the bytes that are here have been read. Later bytes can be read too, unless
    /// both directions have ended.
    pub fn shutdown_read(&mut self) {
        if self.rx.shutdown.is_wanted() || self.failed.is_some() {
            return;
        }
        self.rx.shutdown = Shutdown::Pending;
        self.withdraw();
        self.record_refusal();
        self.try_fin();
    }

    /// Whether both directions have ended once these are shut down as well.
    pub fn ends_both(&self, read: bool, write: bool) -> bool {
        (read || self.rx.shutdown.is_wanted()) && (write || self.tx.shutdown.is_wanted())
    }

    /// Gives up an attempt at promotion if neither side has acted on it: the kernel then answers calls on the
    /// connection.
    pub fn withdraw(&mut self) {
        self.give_up(Reason::PledgeVoided);
        if self.tx.state == TxState::Pledged && self.role == Role::Opener {
            self.void_pledge();
        }
    }

    /// The last holder closes the socket. Unread bytes in the ring make it a reset, as the kernel does; and so does
    /// `reset` (SO_LINGER 0). Keep feeding the stream until [`uses_slot`](Stream::uses_slot) and
    /// [`must_linger`](Stream::must_linger) are false, and meanwhile discard bytes that come as
    /// [`RxSource::Anchor`](crate::RxSource).
    pub fn close(&mut self, reset: bool) {
        if self.is_closed() {
            return;
        }
        if self.is_revivable() && self.unconsumed() > 0 {
            //= spec §4.8.8
            //# So may one whose RESET comes while it leaves, and so one that its side closes before its peer
            //# has read everything: that side keeps its anchor as in 4.8.7.
            self.failed = None;
            self.socket = Socket::ClosedWithReset;
            return self.try_close();
        }
        let unread = matches!(self.rx.state, RxState::Link | RxState::Expect(_))
            && self.rx.ring.as_ref().is_some_and(|r| !r.is_empty());
        let replays =
            self.link.alive && self.tx.state == TxState::Link && self.failed.is_none() && !self.peer_is_done();
        if (reset || unread) && replays {
            self.reset_at_end();
        } else if reset {
            self.abort();
        } else {
            self.socket = Socket::Closed;
            if unread && self.link.alive {
                self.push_control(Control::Signal(MessageKind::Reset));
                self.record_failure(Failure::PeerReset);
            } else {
                self.shutdown_write();
            }
        }
        self.try_close();
    }

    /// The connection is to end with a reset. The peer may still need the bytes that it has not read.
    fn reset_at_end(&mut self) {
        //= spec §4.8.7
        //# A side that has closed, and ends the stream with RESET, keeps its anchor open like one that ends it with FIN
        //# (§4.6.4), and resets it then.
        self.push_control(Control::Signal(MessageKind::Reset));
        self.socket = Socket::ClosedWithReset;
    }

    /// Closed, and the anchor is to end with a reset.
    pub fn resets(&self) -> bool {
        self.socket == Socket::ClosedWithReset
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.socket != Socket::Open
    }

    /// RESET of the peer.
    pub(super) fn handle_reset(&mut self) {
        match self.rx.state {
            // The anchor brings it too, behind bytes that the application has not read there.
            RxState::Anchor | RxState::Replay(_) => self.withdraw(),
            RxState::AwaitResume | RxState::ExpectThenResume(_) if !self.is_closed() && self.link.alive => {
                self.link.revival.get_or_insert(Revival::Unreported);
            }
            _ if self.is_closed() && self.failed.is_none() && self.tx.state == TxState::Link => {
                self.socket = Socket::ClosedWithReset;
            }
            _ => self.fail_on_link(),
        }
    }

    /// A message on the link alone has ended the stream: its anchor has not ended.
    fn fail_on_link(&mut self) {
        self.fail(Failure::PeerReset);
        if let Some(Failed { cause: cause @ (Cause::Reset | Cause::ResetOnLink), .. }) = &mut self.failed {
            *cause = if self.link.alive { Cause::ResetOnLink } else { Cause::Reset };
        }
    }

    /// Whether a stream that has failed can leave its link as if it had not.
    pub fn is_revivable(&self) -> bool {
        let failed = self.failed.is_some_and(|failed| failed.cause == Cause::ResetOnLink);
        failed
            && self.link.alive
            && self.is_linked()
            && self.anchor.records.is_empty()
            && !self.link.ours.usage.is_closed()
            && !self.is_closed()
    }

    /// A stream that failed on its link is to leave it, because one of its sides is given away. It leaves as if it had
    /// not failed, if that is possible. Until [`end_revival`](Stream::end_revival) it is [`revived`](Stream::revived).
    pub fn revive(&mut self) -> bool {
        if !self.is_revivable() {
            return false;
        }
        //= spec §4.8.8
        //# A stream that has failed by RESET alone may leave the link as if it had not: unread bytes are replayed on
        //# the anchor, and the reset follows them.
        let failed = self.failed.take();
        self.link.revival = failed.map(|failed| match failed.error {
            Some(_) => Revival::Unreported,
            None => Revival::Reported,
        });
        true
    }

    /// Whether the anchor is to end with a reset because the stream left its link as if it had not failed.
    pub fn revived(&self) -> Option<Revival> {
        self.link.revival
    }

    /// The anchor has ended with a reset, or will not.
    pub fn end_revival(&mut self) {
        self.link.revival = None;
    }

    /// Closed by the application, but the anchor must stay open: bytes or records are still to go there, or may have
    /// to. Bounded by the driver, as the kernel bounds orphans.
    pub fn must_linger(&self) -> bool {
        //= spec §4.6.4
        //# A side that has closed while on the link keeps its anchor open until the peer's CLOSE has come, so that it
        //# can replay if the link dies first.
        let on_link = self.is_closed() && self.tx.state == TxState::Link && !self.link.peer.usage.is_closed();
        //= spec §4.6.8
        //# A side that has closed in the middle of promotion keeps its anchor open until it has consumed the peer's
        //# marker or learned that there is none: the kernel would answer the marker with a reset.
        let marker_may_come = self.is_closed() && matches!(self.rx.state, RxState::Expect(_)) && !self.peer_is_done();
        self.failed.is_none()
            && (!self.anchor.records.is_empty()
                || on_link
                || marker_may_come
                || matches!(self.tx.state, TxState::Frozen | TxState::Replay(_) | TxState::Paused))
    }

    /// Aborts: SO_LINGER 0, or a local error.
    pub fn abort(&mut self) {
        self.give_up(Reason::PledgeVoided);
        if self.tx.state == TxState::Pledged {
            // Void, so that a late ACCEPT is answered.
            self.void_pledge();
        }
        if self.link.alive && self.link.peer.name.is_some() && self.phase() != Phase::Plain {
            self.push_control(Control::Signal(MessageKind::Reset));
        }
        self.record_failure(Failure::PeerReset);
        if self.socket == Socket::Open {
            self.socket = Socket::Closed;
        }
        self.try_close();
    }

    /// The anchor's incoming direction has ended: by FIN (`reset` false) or by an error, and everything before that has
    /// been read or is recognised. With FIN: call only after the link has been polled since, so that every message that
    /// the peer sent before it ended is handled.
    pub fn handle_anchor_end(&mut self, reset: bool) {
        if reset {
            if self.rx.state != RxState::Drain {
                self.announce_reset();
                //= spec §4.7.3
                //# Bytes in the ring when the anchor is reset can still be read, like bytes in the kernel.
                if matches!(self.rx.state, RxState::Link | RxState::AwaitResume) {
                    self.rx.state = RxState::Drain;
                }
                self.fail(Failure::PeerReset);
            }
            return;
        }
        match self.rx.state {
            RxState::Anchor | RxState::Drain => {}
            //= spec §4.7.2
            //# If the anchor ends before it has brought every byte that RESUME announced, the peer has died, and its
            //# reader gets a reset.
            RxState::Replay(_) => self.fail(Failure::PeerReset),
            RxState::Expect(_) | RxState::ExpectThenResume(_) => self.no_marker(),
            RxState::Link | RxState::AwaitResume => {
                //= spec §4.7.1
                //# If the anchor ends while the direction is on the link and no FIN came by the link, the peer has
                //# died: its reader gets the bytes in the ring, then a reset, never a clean end.
                self.rx.state = RxState::Drain;
                // If bytes are unconsumed after the stream has left the link, the peer was gone before it could send
                // its consumed position.
                let died = !self.fin_received() || self.tx.state != TxState::Link && self.unconsumed() > 0;
                if died && !self.peer_has_answered() {
                    self.record_failure(Failure::PeerReset);
                } else {
                    self.tx.state = TxState::Anchor;
                }
                self.link.demotion = None;
                self.try_close();
            }
        }
    }

    /// As [`handle_anchor_end`](Stream::handle_anchor_end) by a reset, whose error the kernel still has for the program's
    /// next call. A stream that has not switched returns to its anchor.
    pub fn handle_kept_reset(&mut self) {
        match self.rx.state {
            RxState::Expect(_) if !self.relies_on_marker() => {
                self.announce_reset();
                self.no_marker();
            }
            RxState::Expect(_) | RxState::ExpectThenResume(_) => self.handle_anchor_end(true),
            _ => self.handle_anchor_end(false),
        }
    }

    /// The peer may have switched, and not have seen the reset of the anchor: it would take our CLOSE for that of an
    /// open stream.
    fn announce_reset(&mut self) {
        if self.failed.is_none() && self.link.peer.name.is_some() && self.phase() != Phase::Plain {
            self.push_control(Control::Signal(MessageKind::Reset));
        }
    }

    /// As [`handle_anchor_end`](Stream::handle_anchor_end) by FIN, where every message that the peer has ever sent is
    /// handled, however it ended. `corked` is the word at `CORKED_WORD`: the position after the bytes that the peer had
    /// written and not announced.
    pub fn handle_last_end(&mut self, corked: u64) {
        self.take_corked(corked);
        let judges = !self.peer_is_done() && !self.peer_has_answered();
        if self.rx.state == RxState::Link && self.tx.state == TxState::Link && judges {
            //= spec §4.7.4
            //# If a link is certain to have brought everything that the peer has ever sent, and the peer had read
            //# everything that this side has sent, its death is an end in good order, after the bytes that are unread
            //# here; and otherwise a reset.
            if self.unconsumed() == 0 {
                self.rx.fin = PeerFin::Received;
            } else {
                self.record_failure(Failure::PeerReset);
            }
        }
        self.handle_anchor_end(false);
    }

    //= spec §5.1.5
    //# a peer that finds that the sender has died (§4.7.4) takes it as that message.
    fn take_corked(&mut self, corked: u64) {
        if self.rx.state != RxState::Link || self.fin_received() || self.takes_no_data() {
            return;
        }
        let Some(ring) = &self.rx.ring else { return };
        match u32::try_from((corked & !CORKED_REWIND).saturating_sub(ring.received())) {
            Ok(0) => {}
            Ok(len) => self.handle_data(len, corked & CORKED_REWIND != 0),
            Err(_) => self.violate("more is held back than a ring has"),
        }
    }

    /// CLOSE of the peer.
    pub(super) fn handle_close(&mut self) {
        if self.link.peer.usage.is_closed() {
            return self.violate("second CLOSE");
        }
        self.link.peer.usage.close();
        self.give_up(Reason::PledgeVoided);
        match (self.tx.state, self.rx.state) {
            //= spec §4.3.5
            //# A CLOSE without a SWITCHED before it means that the opener has written no marker and will write none:
            //# the acceptor expects none any more. After SWITCHED it still reads the marker.
            (TxState::Pledged | TxState::Anchor, RxState::Expect(_)) if !self.peer_is_done() => {
                self.tx.state = TxState::Anchor;
                if !self.link.peer.switched {
                    self.rx.state = RxState::Anchor;
                    self.rx.ring = None;
                    self.tx.ring = None;
                }
                self.history.last_reason = Reason::PledgeVoided;
                self.try_demote();
            }
            (TxState::Link, RxState::Link | RxState::Expect(_))
                if self.failed.is_none() && !self.fin_received() && !self.link.ours.usage.is_closed() =>
            {
                //= spec §4.6.2
                //# CLOSE on a switched stream comes after FIN or RESET, or answers CLOSE.
                return self.violate("CLOSE of an open stream");
            }
            _ => self.finish_reading(),
        }
        self.try_close();
    }

    /// Whether the peer has sent everything it ever will, and everything is here.
    pub(super) fn peer_is_done(&self) -> bool {
        self.fin_received() && self.link.peer.usage.is_closed()
    }

    /// This side has closed, and the peer has read everything and sent CLOSE (SPEC §4.6.6), so it cannot send FIN any
    /// more.
    fn peer_has_answered(&self) -> bool {
        //= spec §4.7.1
        //# A side that has closed and has got the peer's
        //# CLOSE without DEMOTE waits for nothing more, and the end is one in good order.
        self.is_closed() && self.link.peer.usage == SlotUse::Closed
    }

    /// The peer has closed its socket. Once the application has read everything, nothing is left to do on the link;
    /// until then the peer lingers, and can replay.
    #[cold]
    pub(super) fn finish_reading(&mut self) {
        //= spec §4.6.6
        //# A side whose peer has sent FIN and CLOSE sends CLOSE when its application has read everything, not before:
        //# until then a demotion can still have the peer replay.
        let read = self.rx.ring.as_ref().is_none_or(RxRing::is_empty);
        let done = self.peer_is_done() || self.link.peer.usage.is_closed() && self.failed.is_some();
        if done && self.tx.state == TxState::Link && self.rx.state == RxState::Link && read {
            self.leave_to_drain();
            self.try_close();
        }
    }

    /// The peer is gone: only the bytes in the ring are left of the stream.
    pub(super) fn leave_to_drain(&mut self) {
        self.tx.state = TxState::Anchor;
        self.link.demotion = None;
        if self.rx.state == RxState::Link {
            self.rx.state = RxState::Drain;
        }
    }

    /// The peer, closed and lingering, has lost the link before our CLOSE came, and must learn which bytes are still
    /// wanted.
    pub(super) fn answer_lingering(&mut self) {
        let (Some(tx), Some(rx)) = (self.tx.ring.take(), &self.rx.ring) else { return };
        //= spec §4.6.5
        //# A side that has all of a closed peer's bytes answers its RESUME with one of its own that requests none,
        //# unless it has used the anchor since.
        if self.tx.state == TxState::Anchor && tx.sent() == self.tx.position && self.tx.shutdown != Shutdown::OnAnchor {
            let (position, end) = (rx.received(), self.tx.position);
            self.push_record(Record { kind: RecordKind::Resume, position, end, token: self.peer_nonce() });
        }
    }

    /// Sends FIN or READ_SHUT on the link for directions that the application has shut down, once the outgoing
    /// direction is there.
    pub(super) fn try_fin(&mut self) {
        if self.tx.state != TxState::Link || !self.anchor.records.is_empty() {
            return;
        }
        if self.rx.shutdown == Shutdown::Pending {
            //= spec §4.8.1
            //# A side whose application shuts down reading sends READ_SHUT, once, and before a FIN that comes later.
            self.rx.shutdown = Shutdown::OnLink;
            self.push_control(Control::Signal(MessageKind::ReadShut));
        }
        if self.tx.shutdown == Shutdown::Pending {
            self.tx.shutdown = Shutdown::OnLink;
            self.push_control(Control::Signal(MessageKind::Fin));
        }
    }

    /// Sends CLOSE when this side does not need the slot any more.
    pub(super) fn try_close(&mut self) {
        let done = match self.phase() {
            Phase::Plain => self.link.attempt != Attempt::Voided,
            Phase::Linked => self.is_closed() || self.rx.state == RxState::Drain,
            // The anchor is gone, so the bytes on it do not matter any more.
            Phase::Promoting => self.is_closed() && (self.failed.is_some() || self.tx.state == TxState::Anchor),
            Phase::Resuming => self.failed.is_some(),
        };
        // A marker that is not completely written is announced before CLOSE; after a failure it has no reader.
        let done = done && (self.anchor.records.is_empty() || self.failed.is_some());
        if done && self.link.peer.name.is_some() && self.link.alive && !self.link.ours.usage.is_closed() {
            //= spec §4.6.1
            //# CLOSE is the last message of its sender for a stream slot.
            self.push_control(Control::Signal(MessageKind::Close));
            self.link.ours.usage.close();
        }
    }

    /// Data for a socket that reads no more, its own or the peer's.
    pub(super) fn reset_peer(&mut self) {
        if self.failed.is_some() || self.resets() {
            return;
        }
        if self.is_closed() && self.link.alive && self.tx.state == TxState::Link {
            return self.reset_at_end();
        }
        if self.link.alive {
            self.push_control(Control::Signal(MessageKind::Reset));
        }
        self.fail_on_link();
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.give_up(Reason::PledgeVoided);
        self.record_failure(failure);
        self.try_close();
    }
}
