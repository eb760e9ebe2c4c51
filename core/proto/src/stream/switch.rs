//! Promotion and demotion: the effects of messages about a stream that arrive on the link, and of the link's death.

use crate::ring::{RxRing, TxRing};
use crate::stream::state::{Attempt, LinkState, PeerName, SlotUse};
use crate::stream::{Control, Demotion, Failure, PeerFin, Phase, Role, RxState, Stream, TxState};
use crate::wire::{
    Accept, ControlMessage, Markers, MessageKind, Nonce, Open, Record, RecordKind, Refuse, RingDescriptor, WireTuple,
};
use crate::Reason;

impl Stream {
    /// Whether promotion may begin: on the anchor in both directions, and nothing has ended.
    pub fn may_promote(&self) -> bool {
        //= spec §4.1.1
        //# A stream is promoted only while both its directions are on the anchor, neither has ended, no record is
        //# under way, and its slot on a living link is free.
        self.tx.state == TxState::Anchor
            && self.rx.state == RxState::Anchor
            && self.anchor.records.is_empty()
            && self.link.attempt == Attempt::Idle
            && !self.tx.shutdown.is_wanted()
            && !self.rx.shutdown.is_wanted()
            && !self.is_closed()
            && self.failed.is_none()
            && !(self.link.alive && self.uses_slot())
    }

    /// Opener: pledges the current position and sends OPEN. `slot` is ours on the link; `ring` our registered ring; `markers`
    /// whether the link allows them to be put off. Requires [`may_promote`](Stream::may_promote).
    pub fn open(
        &mut self,
        slot: u16,
        tuple: WireTuple,
        hint: u32,
        nonce: Nonce,
        ring: RingDescriptor,
        markers: Markers,
    ) {
        debug_assert!(self.may_promote() && self.role == Role::Opener, "open of a stream that may not");
        //= spec §4.2.1
        //# The opener pledges its current position in OPEN, and sends no application byte beyond it on the
        //# anchor before the answer, unless it voids the pledge.
        self.begin(slot, nonce, ring.ring_len, self.allowed(markers));
        self.tx.state = TxState::Pledged;
        self.push_control(Control::Message(ControlMessage::Open(Open {
            slot,
            tuple,
            hint,
            pledge: self.tx.position,
            nonce,
            ring,
        })));
    }

    /// Whether this side does without markers on a link that allows it.
    fn allowed(&self, markers: Markers) -> Markers {
        //= spec §4.3.7
        //# An acceptor that trusts hints, on a link that is certain to have brought everything (§4.7.4), MAY allow in ACCEPT that
        //# markers are put off.
        if self.config.trust_hints {
            markers
        } else {
            Markers::Written
        }
    }

    /// A thread of this side sleeps until the anchor brings something, so the attempt needs the peer's marker. Call it before
    /// this side sends ACCEPT, or switches on ACCEPT.
    pub fn require_marker(&mut self) {
        self.link.markers = Markers::Written;
    }

    /// Acceptor: answers OPEN; `markers` as for [`open`](Stream::open). An error is the reason for a refusal; the driver then
    /// sends REFUSE.
    pub fn accept(
        &mut self,
        open: &Open,
        slot: u16,
        nonce: Nonce,
        ring: RingDescriptor,
        markers: Markers,
    ) -> Result<(), Reason> {
        //= spec §1.5
        //# Only the opener sends OPEN.
        if self.role != Role::Acceptor {
            return Err(Reason::UnknownStream);
        }
        if !self.may_promote() {
            return Err(Reason::PeerBusy);
        }
        //= spec §4.2.3
        //# An OPEN whose pledge lies before the bytes already read from the anchor has been voided; it is refused.
        if open.pledge < self.rx.position {
            return Err(Reason::PledgeVoided);
        }
        self.begin(slot, nonce, ring.ring_len, self.allowed(markers));
        //= spec §4.2.7
        //# The acceptor answers OPEN when its application has read everything before the opener's pledge.
        if open.pledge > self.rx.position {
            self.link.attempt = Attempt::DeferredOpen { open: *open, nonce, ring };
        } else {
            self.grant(open, nonce, ring);
        }
        Ok(())
    }

    fn grant(&mut self, open: &Open, nonce: Nonce, ring: RingDescriptor) {
        //= spec §4.2.2
        //# The acceptor pledges its own current position in ACCEPT, under the same rule.
        self.link.peer.name = Some(PeerName { slot: open.slot, nonce: open.nonce });
        self.tx.state = TxState::Pledged;
        self.rx.state = RxState::Expect(open.pledge);
        self.rx.ring = Some(RxRing::new(ring.ring_len, open.pledge));
        self.tx.ring = Some(TxRing::new(open.ring.ring_len, self.tx.position));
        self.push_control(Control::Message(ControlMessage::Accept(Accept {
            peer_slot: open.slot,
            slot: self.link.ours.number,
            pledge: self.tx.position,
            nonce,
            ring,
            markers: self.link.markers,
        })));
    }

    /// Opener: the peer granted promotion.
    pub fn handle_accept(&mut self, accept: &Accept) {
        if self.role != Role::Opener || self.link.peer.name.is_some() || !self.awaits_answer() {
            return self.violate("ACCEPT without OPEN");
        }
        if accept.markers == Markers::Written {
            self.require_marker();
        }
        self.link.peer.name = Some(PeerName { slot: accept.slot, nonce: accept.nonce });
        //= spec §4.2.8
        //# The opener writes its marker when its application has read everything before the acceptor's pledge. Until then
        //# it may still void its own, and answers with CLOSE.
        if self.link.attempt != Attempt::Voided && accept.pledge > self.rx.position {
            self.link.attempt = Attempt::DeferredAccept(*accept);
        } else {
            self.switch_on(accept);
        }
    }

    /// Resumes an attempt that has waited for the application, now that it has read further.
    #[cold]
    pub(super) fn take_up(&mut self) {
        match self.link.attempt {
            Attempt::DeferredOpen { open, nonce, ring } if open.pledge == self.rx.position => {
                self.link.attempt = Attempt::Idle;
                self.grant(&open, nonce, ring);
            }
            Attempt::DeferredOpen { open, .. } if open.pledge < self.rx.position => self.give_up(Reason::PledgeVoided),
            Attempt::DeferredAccept(accept) if accept.pledge <= self.rx.position => {
                self.link.attempt = Attempt::Idle;
                self.switch_on(&accept);
            }
            _ => {}
        }
    }

    /// Ends an attempt that has waited for the application, if there is one.
    pub(super) fn give_up(&mut self, reason: Reason) {
        match self.link.attempt {
            Attempt::DeferredOpen { open, .. } => {
                self.link.attempt = Attempt::Idle;
                self.history.last_reason = reason;
                if self.link.alive {
                    let refuse = Refuse { peer_slot: open.slot, reason: reason as u16, redirect_port: 0 };
                    self.push_control(Control::Message(ControlMessage::Refuse(refuse)));
                }
                // The stream does not exist at the peer: the slot is free on both sides.
                self.link.ours.usage.close();
                self.link.peer.usage.close();
            }
            Attempt::DeferredAccept(_) => {
                self.link.attempt = Attempt::Idle;
                self.history.last_reason = reason;
                self.tx.state = TxState::Anchor;
                self.try_close();
            }
            Attempt::Idle | Attempt::Voided => {}
        }
    }

    /// Acceptor: ends an attempt on the link that another one contests, where none of its records can be on the anchor.
    /// True: this side has closed its slot and the peer has not, so the slot stays taken; but the stream does not use
    /// it any more.
    pub fn abandon(&mut self) -> bool {
        if matches!(self.link.attempt, Attempt::DeferredOpen { .. }) {
            self.give_up(Reason::PeerBusy);
            return false;
        }
        let over = self.role == Role::Acceptor && self.is_plain() && self.controls.is_empty();
        let left = over && self.link.ours.usage.is_closed() && self.uses_slot();
        self.link.alive &= !left;
        left
    }

    /// Whether OPEN is sent and the answer has not come.
    fn awaits_answer(&self) -> bool {
        self.link.attempt == Attempt::Voided || self.tx.state == TxState::Pledged
    }

    /// A dead link brings no answer to an OPEN whose pledge is void.
    fn forget_answer(&mut self) {
        if self.link.attempt == Attempt::Voided && !self.link.alive {
            self.link.attempt = Attempt::Idle;
        }
    }

    fn switch_on(&mut self, accept: &Accept) {
        //= spec §4.2.4
        //# An opener that has voided its pledge, or has read beyond the acceptor's, answers ACCEPT with CLOSE.
        if self.link.attempt == Attempt::Voided || accept.pledge < self.rx.position {
            self.link.attempt = Attempt::Idle;
            self.tx.state = TxState::Anchor;
            self.history.last_reason = Reason::PledgeVoided;
            return self.try_close();
        }
        //= spec §4.3.1
        //# On ACCEPT the opener writes its marker at its pledge, and nothing more until the acceptor has switched.
        self.rx.state = RxState::Expect(accept.pledge);
        let own_ring_len = self.link.ours.ring_len;
        self.rx.ring = Some(RxRing::new(own_ring_len, accept.pledge));
        self.tx.ring = Some(TxRing::new(accept.ring.ring_len, self.tx.position));
        self.tx.state = TxState::Paused;
        self.switch();
    }

    /// Announces that this side's direction switches at the current position.
    fn switch(&mut self) {
        if self.is_put_off() {
            //= spec §4.3.7
            //# An opener that also trusts them then sends UNMARKED in place of its marker and SWITCHED, and the acceptor
            //# answers with UNMARKED.
            self.push_control(Control::Signal(MessageKind::Unmarked));
        } else {
            self.push_marker();
        }
    }

    fn push_marker(&mut self) {
        let token = self.peer_nonce();
        self.push_record(Record { kind: RecordKind::Marker, position: self.tx.position, end: 0, token });
    }

    /// Opener: the peer declined.
    pub fn handle_refuse(&mut self, reason: Reason) {
        if self.role != Role::Opener || self.link.peer.name.is_some() || !self.awaits_answer() {
            return self.violate("REFUSE without OPEN");
        }
        self.link.attempt = Attempt::Idle;
        self.tx.state = TxState::Anchor;
        self.history.last_reason = reason;
        // The stream does not exist at the peer: the slot is free on both sides.
        self.link.ours.usage.close();
        self.link.peer.usage.close();
    }

    /// The application writes on although a pledge is out: the anchor keeps the direction.
    pub fn void_pledge(&mut self) {
        if self.tx.state != TxState::Pledged {
            return;
        }
        if self.awaits_reader() {
            return self.give_up(Reason::PledgeVoided);
        }
        //= spec §4.2.5
        //# A pledge is voided by application bytes (or the end of stream) at its position; nothing announces it.
        self.tx.state = TxState::Anchor;
        self.history.last_reason = Reason::PledgeVoided;
        if self.role == Role::Opener {
            if self.link.alive {
                self.link.attempt = Attempt::Voided;
            } else {
                self.rx.state = RxState::Anchor;
            }
        }
    }

    /// The peer's SWITCHED arrived: its marker is on the anchor.
    fn handle_switched(&mut self) {
        self.link.peer.switched = true;
        if self.role == Role::Acceptor {
            //= spec §4.3.7
            //# An opener that writes its marker is answered with a marker.
            self.require_marker();
        }
        if !self.config.trust_hints {
            return;
        }
        //= spec §4.3.6
        //# A side that trusts hints MAY act on SWITCHED as on the marker, and reads the marker when it comes to it.
        match (self.role, self.tx.state) {
            (Role::Acceptor, TxState::Pledged) => self.acceptor_switches(),
            (Role::Opener, TxState::Paused) => self.tx_to_link(),
            _ => {}
        }
    }

    /// The peer's UNMARKED arrived: it counts as its marker.
    fn handle_unmarked(&mut self) {
        // In another state it has crossed the end of the attempt, or the late marker.
        let RxState::Expect(at) = self.rx.state else { return };
        if !self.is_put_off() {
            return self.violate("UNMARKED where a marker is needed");
        }
        match (self.role, self.tx.state) {
            //= spec §4.3.8
            //# An acceptor that has voided its pledge does not act on UNMARKED: the opener finds the bytes at that position.
            (Role::Acceptor, TxState::Pledged) => {}
            (Role::Acceptor, TxState::Anchor) if self.keeps_pledge() && !self.peer_is_done() => {}
            (Role::Opener, TxState::Paused) => return self.marker_read(),
            _ => return,
        }
        self.link.peer.put_off = Some(at);
        self.marker_read();
    }

    /// A signal of the peer for this stream arrived.
    pub fn handle_signal(&mut self, kind: MessageKind) {
        match kind {
            MessageKind::Fin => {
                if self.fin_received() || !matches!(self.rx.state, RxState::Link | RxState::Expect(_)) {
                    //= spec §4.7.4
                    //# If both sides have closed, the FIN of a peer that has only closed may still be in flight then:
                    //# it is not a second one.
                    if self.fin_received() && self.rx.state == RxState::Drain {
                        return;
                    }
                    if self.fin_received() {
                        return self.violate("second FIN");
                    }
                    // Frozen: the end of stream will come again, on the anchor.
                    self.rx.fin = PeerFin::Repeated;
                    return;
                }
                self.rx.fin = PeerFin::Received;
            }
            MessageKind::Reset => self.handle_reset(),
            MessageKind::ReadShut => self.link.peer.read_shut = true,
            MessageKind::CreditWant => {
                //= spec §5.2.4
                //# A receiver that got CREDIT_WANT sends CREDIT_GIVE when at least half of the ring is free.
                if self.rx.ring.as_ref().is_some_and(|r| r.available() <= r.len() / 2) {
                    self.push_control(Control::Signal(MessageKind::CreditGive));
                } else {
                    self.link.peer.wants_credit = true;
                }
            }
            MessageKind::CreditGive => self.link.ours.wants_credit = false,
            MessageKind::Switched => self.handle_switched(),
            MessageKind::Unmarked => self.handle_unmarked(),
            MessageKind::Demote => {
                self.link.peer.usage.leave();
                self.demote(Demotion::Requested(Reason::PeerRequest));
            }
            MessageKind::Close => self.handle_close(),
            MessageKind::Data
            | MessageKind::Control
            | MessageKind::LinkWant
            | MessageKind::LinkGive
            | MessageKind::Datagram
            | MessageKind::Status => self.violate("not a stream signal"),
        }
    }

    /// The link is dead, or is to be left. Idempotent.
    pub fn demote(&mut self, why: Demotion) {
        if matches!(why, Demotion::LinkFailed) {
            if !self.link.alive {
                return;
            }
            self.link.alive = false;
            self.controls.clear();
            if self.tx.state == TxState::Paused && self.is_put_off() {
                //= spec §4.3.9
                //# An opener whose link dies before the acceptor's UNMARKED has come writes its marker then.
                self.push_marker();
            }
        }
        self.link.demotion.get_or_insert(why);
        self.give_up(match why {
            Demotion::LinkFailed => Reason::LinkFailed,
            Demotion::Requested(reason) => reason,
        });
        if matches!((self.tx.state, self.rx.state), (TxState::Pledged | TxState::Anchor, RxState::Expect(_))) {
            //= spec §4.5.5
            //# A side that is to leave while it expects a marker, and has written none, sends DEMOTE too: a peer that
            //# waits for its application before it writes one gives up, as in 4.2.8.
            self.announce_leaving();
        }
        self.try_demote();
    }

    fn announce_leaving(&mut self) {
        if self.link.alive && self.link.ours.usage == SlotUse::Used {
            self.link.ours.usage.leave();
            self.push_control(Control::Signal(MessageKind::Demote));
        }
    }

    /// Whether bytes that the application could read on the link are still to be replayed on the anchor.
    pub fn awaits_replay(&self) -> bool {
        match self.rx.state {
            RxState::AwaitResume => self.frozen() > 0,
            RxState::Replay(until) => self.rx.position < until,
            _ => false,
        }
    }

    pub(super) fn try_demote(&mut self) {
        let Some(why) = self.link.demotion else { return };
        if self.failed.is_some() && self.phase() != Phase::Plain {
            return;
        }
        let reason = match why {
            Demotion::LinkFailed => Reason::LinkFailed,
            Demotion::Requested(reason) => reason,
        };
        match (self.role, self.tx.state, self.rx.state) {
            (Role::Opener, TxState::Pledged, _) => {
                //= spec §4.5.2
                //# An opener without an answer voids its pledge.
                self.void_pledge();
                self.forget_answer();
                self.history.last_reason = reason;
                self.link.demotion = None;
            }
            // Decided by the bytes on the anchor at the known position.
            (_, TxState::Paused, _) | (Role::Acceptor, TxState::Pledged, _) => {}
            (_, TxState::Link, RxState::Link | RxState::Expect(_)) => {
                self.history.last_reason = reason;
                if self.resets() && !self.link.alive {
                    // It will end with a reset anyway.
                    self.record_failure(Failure::PeerReset);
                } else if self.peer_is_done() && !self.link.alive {
                    // Everything that it sent is here, and it is probably gone.
                    self.leave_to_drain();
                } else {
                    self.begin_resume();
                }
            }
            _ => {
                self.forget_answer();
                self.link.demotion = None;
            }
        }
        self.try_close();
    }

    fn begin_resume(&mut self) {
        //= spec §4.5.1
        //# To leave the link a side stops sending and consuming on it, and writes RESUME with its consumed
        //# position on the anchor; it then waits for the peer's.
        self.link.demotion = None;
        self.tx.state = TxState::Frozen;
        self.rx.state = match self.rx.state {
            RxState::Expect(at) => RxState::ExpectThenResume(at),
            _ => RxState::AwaitResume,
        };
        let position = self.rx.ring.as_ref().map_or(self.rx.position, RxRing::consumed);
        let (end, token) = (self.tx.position, self.peer_nonce());
        self.push_record(Record { kind: RecordKind::Resume, position, end, token });
        self.withdraw_end();
        self.announce_leaving();
    }

    /// FIN and CLOSE that are not sent yet may wait behind bytes that are held back. These bytes are replayed now, so the
    /// direction ends on the anchor.
    fn withdraw_end(&mut self) {
        //= spec §5.1.5
        //# FIN and CLOSE that wait behind them are not sent then: the direction ends on the anchor.
        let is = |control: &Control, kind| *control == Control::Signal(kind);
        let Some(fin) = self.controls.iter().position(|control| is(control, MessageKind::Fin)) else { return };
        self.controls.remove(fin);
        if let Some(close) = self.controls.iter().position(|control| is(control, MessageKind::Close)) {
            self.controls.remove(close);
            self.link.ours.usage = SlotUse::Used;
        }
    }

    /// The peer's RESUME was read.
    pub(super) fn handle_resume(&mut self, record: &Record) {
        if self.tx.state == TxState::Link {
            self.history.last_reason = Reason::PeerRequest;
            self.revive();
            self.begin_resume();
        }
        if self.tx.state != TxState::Frozen {
            return self.violate("RESUME out of turn");
        }
        let (Some(tx), Some(rx)) = (&mut self.tx.ring, &self.rx.ring) else {
            return self.violate("RESUME without a ring");
        };
        //= spec §4.5.3
        //# A RESUME position before the last announced consumed position, or beyond the sent position, is a violation;
        //# and so is an end before the received position, or further from the consumed position than the ring is long.
        let ends = rx.received()..=rx.consumed() + u64::from(rx.len());
        let goes_back = record.position < tx.consumed();
        if !ends.contains(&record.end) || goes_back || tx.handle_consumed(record.position).is_err() {
            return self.violate("RESUME position out of range");
        }
        //= spec §4.5.4
        //# Having read the peer's RESUME, a side replays every byte from that position on the anchor, then continues
        //# there.
        //= spec §4.8.8
        //# Nothing is replayed to a side that has closed: its kernel would answer with a reset too early. A side whose
        //# CLOSE comes after its DEMOTE has left the link, and not closed the socket.
        let peer_closed = self.link.peer.usage == SlotUse::Closed;
        self.tx.state = TxState::Replay(if self.link.revival.is_some() && peer_closed {
            self.tx.position
        } else {
            record.position
        });
        self.rx.state = match record.end > rx.consumed() {
            true => RxState::Replay(record.end),
            false => RxState::Anchor,
        };
        if self.fin_received() {
            self.rx.fin = PeerFin::Repeated;
        }
        self.link.peer.read_shut = false;
        self.rx.ring = None;
        self.finish_replay();
    }

    pub(super) fn finish_replay(&mut self) {
        if let TxState::Replay(next) = self.tx.state {
            if next == self.tx.position && self.anchor.records.is_empty() {
                self.tx.state = TxState::Anchor;
                self.tx.shutdown.repeat_on_anchor();
                self.tx.ring = None;
                self.try_close();
            }
        }
    }

    /// The acceptor has learned that the opener's marker is on the anchor, or put off.
    pub(super) fn acceptor_switches(&mut self) {
        //= spec §4.3.2
        //# An acceptor that has not voided its pledge answers the opener's marker with its own.
        self.switch();
        self.tx_to_link();
    }

    pub(super) fn tx_to_link(&mut self) {
        self.tx.state = TxState::Link;
        self.history.promotions += 1;
        self.try_fin();
        self.try_close();
        if !self.link.alive {
            self.link.demotion.get_or_insert(Demotion::LinkFailed);
        }
        self.try_demote();
    }

    fn begin(&mut self, slot: u16, nonce: Nonce, ring_len: u32, markers: Markers) {
        self.link = LinkState::new(slot, nonce, ring_len, markers);
        if self.rx.fin == PeerFin::Repeated {
            self.rx.fin = PeerFin::Awaited;
        }
        self.rx.refuses = false;
        self.controls.clear();
    }
}
