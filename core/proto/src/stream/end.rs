//! How a stream ends: FIN, close, abort, CLOSE of its slot, and the death of the peer.

use core::time::Duration;

use crate::ring::RxRing;
use crate::stream::{Control, Failure, Phase, Role, RxState, Stream, TxState};
use crate::wire::{MessageKind, Record, RecordKind};
use crate::Reason;

/// How long a closed stream may linger. As long as the kernel keeps orphans (tcp_fin_timeout).
pub const LINGER_LIMIT: Duration = Duration::from_secs(60);

impl Stream {
    /// Ends the outgoing direction (`shutdown(SHUT_WR)`), after what was written.
    pub fn shutdown_write(&mut self) {
        if self.fin_wanted || self.failure.is_some() {
            return;
        }
        self.fin_wanted = true;
        self.give_up(Reason::PledgeVoided);
        if self.tx == TxState::Pledged {
            self.void_pledge();
        }
        self.try_fin();
    }

    /// `shutdown(SHUT_RD)`: reads end once what is here has been read. What comes later can be read too, unless both
    /// directions have ended.
    pub fn shutdown_read(&mut self) {
        if self.rx_shutdown || self.failure.is_some() {
            return;
        }
        self.rx_shutdown = true;
        self.withdraw();
        self.try_fin();
    }

    /// Gives up an attempt at promotion if nobody has acted on it: what is asked of the connection is then the kernel's
    /// to answer.
    pub fn withdraw(&mut self) {
        self.give_up(Reason::PledgeVoided);
        if self.tx == TxState::Pledged && self.role == Role::Opener {
            self.void_pledge();
        }
    }

    /// The last holder closes the socket. Unread bytes in the ring make it a reset, as the kernel does.
    /// Keep feeding the stream until [`holds_slot`](Stream::holds_slot) and [`must_linger`](Stream::must_linger) are
    /// false, and meanwhile throw away what comes as [`RxSource::Anchor`](crate::RxSource).
    pub fn close(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        let unread = matches!(self.rx, RxState::Link | RxState::Expect(_))
            && self.rx_ring.as_ref().is_some_and(|r| !r.is_empty());
        if unread && self.link_alive {
            self.push_control(Control::Signal(MessageKind::Reset));
            self.note_failure(Failure::PeerReset);
        } else {
            self.shutdown_write();
        }
        self.try_close();
    }

    /// Closed by the application, but the anchor must stay open: bytes or records are still to go there, or may have
    /// to. Bounded by the driver, as the kernel bounds orphans.
    pub fn must_linger(&self) -> bool {
        //= spec §4.6.4
        //# A side that has closed while on the link keeps its anchor open until the peer's CLOSE has come, so that it
        //# can replay if the link dies first.
        let on_link = self.closed && self.tx == TxState::Link && !self.close_received;
        //= spec §4.6.8
        //# A side that has closed in the middle of promotion keeps its anchor open until it has consumed the peer's
        //# marker or knows that there is none: the kernel would answer the marker with a reset.
        let marker_may_come = self.closed && matches!(self.rx, RxState::Expect(_)) && !self.peer_is_done();
        self.failure.is_none()
            && (!self.records.is_empty()
                || on_link
                || marker_may_come
                || matches!(self.tx, TxState::Frozen | TxState::Replay(_) | TxState::Paused))
    }

    /// Aborts: SO_LINGER 0, or a local error.
    pub fn abort(&mut self) {
        self.give_up(Reason::PledgeVoided);
        if self.tx == TxState::Pledged {
            // So that a late ACCEPT is answered.
            self.void_pledge();
        }
        if self.link_alive && self.peer_slot.is_some() && self.phase() != Phase::Plain {
            self.push_control(Control::Signal(MessageKind::Reset));
        }
        self.note_failure(Failure::PeerReset);
        self.closed = true;
        self.try_close();
    }

    /// The anchor's incoming direction has ended: by FIN (`reset` false) or by an error, and everything before that
    /// has been read or is recognised. With FIN: call only after the link has been polled since, so that every message
    /// that the peer sent before it ended is in.
    pub fn handle_anchor_end(&mut self, reset: bool) {
        if reset {
            if self.rx != RxState::Drain {
                // The peer may not have heard yet, and would take our CLOSE for one of an open stream.
                if self.failure.is_none() && self.link_alive && self.peer_slot.is_some() && self.phase() != Phase::Plain
                {
                    self.push_control(Control::Signal(MessageKind::Reset));
                }
                //= spec §4.7.3
                //# What the ring holds when the anchor is reset can still be read, as what the kernel holds can.
                if matches!(self.rx, RxState::Link | RxState::AwaitResume) {
                    self.rx = RxState::Drain;
                }
                self.fail(Failure::PeerReset);
            }
            return;
        }
        match self.rx {
            RxState::Anchor | RxState::Drain => {}
            //= spec §4.7.2
            //# If the anchor ends before it has brought every byte that RESUME announced, the peer has died, and its
            //# reader gets a reset.
            RxState::Replay(_) => self.fail(Failure::PeerReset),
            RxState::Expect(_) | RxState::ExpectThenResume(_) => self.no_marker(),
            RxState::Link | RxState::AwaitResume => {
                //= spec §4.7.1
                //# If the anchor ends while the direction is on the link and no FIN came by the link, the peer has
                //# died: its reader gets what is in the ring, then a reset, never a clean end.
                self.rx = RxState::Drain;
                // With bytes unconsumed off the link it was gone before it could say what it consumed.
                if !self.fin_received || self.tx != TxState::Link && self.unconsumed() > 0 {
                    self.note_failure(Failure::PeerReset);
                } else {
                    self.tx = TxState::Anchor;
                }
                self.demote_pending = None;
                self.try_close();
            }
        }
    }

    /// CLOSE of the peer.
    pub(super) fn handle_close(&mut self) {
        if self.close_received {
            return self.violate("second CLOSE");
        }
        self.close_received = true;
        self.give_up(Reason::PledgeVoided);
        match (self.tx, self.rx) {
            //= spec §4.3.5
            //# A CLOSE without a SWITCHED before it says that the opener has written no marker and will write none:
            //# the acceptor expects none any more. After SWITCHED it still reads the marker.
            (TxState::Pledged | TxState::Anchor, RxState::Expect(_)) if !self.peer_is_done() => {
                self.tx = TxState::Anchor;
                if !self.announced {
                    self.rx = RxState::Anchor;
                    self.rx_ring = None;
                    self.tx_ring = None;
                }
                self.history.last_reason = Reason::PledgeVoided;
                self.try_demote();
            }
            (TxState::Link, RxState::Link | RxState::Expect(_))
                if self.failure.is_none() && !self.fin_received && !self.close_sent =>
            {
                //= spec §4.6.2
                //# CLOSE on a switched stream comes after FIN or RESET, or answers CLOSE.
                return self.violate("CLOSE of an open stream");
            }
            _ => self.finish_reading(),
        }
        self.try_close();
    }

    /// Whether the peer has sent all it ever will, and everything is here.
    pub(super) fn peer_is_done(&self) -> bool {
        self.fin_received && self.close_received
    }

    /// The peer has closed its socket. Once the application has read everything, nothing is left to do on the link;
    /// until then the peer lingers, and can replay.
    #[cold]
    pub(super) fn finish_reading(&mut self) {
        //= spec §4.6.6
        //# A side whose peer has sent FIN and CLOSE sends CLOSE when its application has read everything, not before:
        //# until then a demotion can still have the peer replay.
        let read = self.rx_ring.as_ref().is_none_or(RxRing::is_empty);
        if self.peer_is_done() && self.tx == TxState::Link && self.rx == RxState::Link && read {
            self.leave_to_drain();
            self.try_close();
        }
    }

    /// The peer is gone: what the ring holds is all that is left of the stream.
    pub(super) fn leave_to_drain(&mut self) {
        self.tx = TxState::Anchor;
        self.demote_pending = None;
        if self.rx == RxState::Link {
            self.rx = RxState::Drain;
        }
    }

    /// The peer, closed and lingering, has lost the link before our CLOSE came, and asks what is still wanted.
    pub(super) fn answer_lingering(&mut self) {
        let (Some(tx), Some(rx)) = (self.tx_ring.take(), &self.rx_ring) else { return };
        //= spec §4.6.5
        //# A side that has all of a closed peer's bytes answers its RESUME with one of its own that asks for none,
        //# unless it has used the anchor since.
        if self.tx == TxState::Anchor && tx.sent() == self.tx_position && !self.anchor_shut {
            let (position, end) = (rx.received(), self.tx_position);
            self.push_record(Record { kind: RecordKind::Resume, position, end, token: self.peer_nonce });
        }
    }

    /// Says on the link what the application has shut down, once the outgoing direction is there.
    pub(super) fn try_fin(&mut self) {
        if self.tx != TxState::Link || !self.records.is_empty() {
            return;
        }
        if self.rx_shutdown && !self.rx_shutdown_told {
            //= spec §4.8.1
            //# A side whose application shuts down reading says so with READ_SHUT, once, and before a FIN that comes
            //# later.
            self.rx_shutdown_told = true;
            self.push_control(Control::Signal(MessageKind::ReadShut));
        }
        if self.fin_wanted && !self.fin_done {
            self.fin_done = true;
            self.push_control(Control::Signal(MessageKind::Fin));
        }
    }

    /// Sends CLOSE when this side needs the slot no more.
    pub(super) fn try_close(&mut self) {
        let done = match self.phase() {
            Phase::Plain => !self.voided,
            Phase::Linked => self.closed || self.rx == RxState::Drain,
            // The anchor is gone, so what stands on it does not matter any more.
            Phase::Promoting => self.closed && (self.failure.is_some() || self.tx == TxState::Anchor),
            Phase::Resuming => self.failure.is_some(),
        };
        // A marker that is not wholly written is announced before CLOSE; after a failure nobody reads it.
        let done = done && (self.records.is_empty() || self.failure.is_some());
        if done && self.peer_slot.is_some() && self.link_alive && !self.close_sent {
            //= spec §4.6.1
            //# CLOSE is the last message of its sender for a stream slot.
            self.push_control(Control::Signal(MessageKind::Close));
            self.close_sent = true;
        }
    }

    /// Data for a socket that reads no more, its own or the peer's.
    pub(super) fn reset_peer(&mut self) {
        if self.failure.is_none() {
            if self.link_alive {
                self.push_control(Control::Signal(MessageKind::Reset));
            }
            self.fail(Failure::PeerReset);
        }
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.give_up(Reason::PledgeVoided);
        self.note_failure(failure);
        self.try_close();
    }
}
