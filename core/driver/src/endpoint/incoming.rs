//! Completions and messages that arrive on links, and the dispatch of each message to its stream.
//!
//! Invariant: the messages of a link are handled in the order in which they came, by the thread that holds its `rx`.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::{
    Completion, CompletionQueueId, CompletionStatus, PostError, QueuePairId, WorkCompletion, WorkRequestId,
};
use netacc_proto::{
    next_message, ControlMessage, Hello, Immediate, LinkError, MessageKind, Open, Reason, Refuse, CONTROL_SLOT_LEN,
    CREDIT_BLOCK_LEN, NO_SLOT,
};

use parking_lot::MutexGuard;

use super::{Endpoint, Sharing};
use crate::link::LinkRx;
use crate::stream::{Listed, Referral};
use crate::{Counters, LinkCell, StreamCell};

/// Queue pairs that are taken from a completion queue at a time.
const BATCH: usize = 32;
/// Completions that are taken from a link at a time. Arbitrary: each link keeps memory for so many.
const COMPLETIONS: usize = 8;

/// The result of polling a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Alive,
    /// The device has given it up.
    Failed,
    /// Its peer broke the protocol, or is refused: nothing more that it sends is handled.
    Refused,
}

/// The state of a link after some of its completions.
struct Drained {
    alive: bool,
    failed: bool,
    /// Requests that the device has completed.
    sent: u32,
}

impl Drained {
    fn goes_on(&self) -> bool {
        self.alive && !self.failed
    }
}

impl Endpoint {
    /// Polls `cq` and handles everything on it. Any thread.
    #[inline]
    pub fn poll(&self, cq: CompletionQueueId) -> usize {
        let mut qps = [QueuePairId(0); BATCH];
        let mut total = 0;
        // Bounded: a flood of messages must not keep the caller here for ever.
        for _ in 0..8 {
            let n = self.device.pending(cq, &mut qps);
            for &qp in &qps[..n] {
                let link = self.links.read().get(&qp).cloned();
                match link {
                    Some(link) => self.poll_link(&link),
                    None => self.poll_flow(qp),
                }
            }
            total += n;
            if n < qps.len() {
                break;
            }
        }
        total
    }

    /// Moves a link, and with it all its streams, to another completion queue.
    pub fn rebind(&self, link: &Arc<LinkCell>, cq: CompletionQueueId) {
        {
            // If two threads move a link, the later one wins, both in the device and in our own record.
            let _one = link.rx.lock();
            if link.cq() == cq || !link.caps.rebind || self.device.rebind(link.qp, cq).is_err() {
                return;
            }
            link.cq.store(cq.0, Ordering::Relaxed);
        }
        self.poll_link(link);
    }

    /// Handles the completions that have arrived on one link. Any thread; a second thread waits for the first.
    pub fn poll_link(&self, link: &Arc<LinkCell>) {
        self.poll_locked(link, link.rx.lock(), &[]);
    }

    /// As [`poll_link`](Endpoint::poll_link), where the caller has taken the first completions.
    pub(super) fn poll_locked(
        &self,
        link: &Arc<LinkCell>,
        mut rx: MutexGuard<'_, LinkRx<StreamCell>>,
        taken: &[WorkCompletion],
    ) {
        let sequence = self.device().qp_sequence(link.qp());
        if link.is_dead() {
            // Its streams have left it, or are about to. An OPEN would put another one on it, which nobody would take off.
            return link.mark_seen(sequence);
        }
        let mut state = self.drain_link(link, &mut rx, taken);
        if !rx.checks.is_empty() {
            state = self.take_in_checks(link, &mut rx, state);
        }
        link.mark_seen(sequence);
        drop(rx);
        match state {
            LinkState::Alive => {}
            LinkState::Failed => self.enqueue_dead(link),
            LinkState::Refused => self.link_died(link),
        }
    }

    /// Handles the completions that were taken, and takes and handles the others.
    fn drain_link(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>, taken: &[WorkCompletion]) -> LinkState {
        // Allocated once: to initialise it at each poll would be a tenth of the cost of a message.
        let mut wcs = std::mem::take(&mut rx.completions);
        wcs.resize(COMPLETIONS, EMPTY);
        let mut drained = Drained { alive: true, failed: false, sent: 0 };
        self.handle_completions(link, rx, taken, &mut drained);
        while drained.goes_on() {
            let n = self.device().poll_qp(link.qp(), &mut wcs);
            self.handle_completions(link, rx, &wcs[..n], &mut drained);
            if n < wcs.len() {
                break;
            }
        }
        rx.completions = wcs;
        if drained.sent > 0 && drained.goes_on() {
            self.after_completions(link, rx, drained.sent);
        }
        match (drained.alive, drained.failed) {
            (true, false) => LinkState::Alive,
            (true, true) => LinkState::Failed,
            (false, _) => LinkState::Refused,
        }
    }

    fn handle_completions(
        &self,
        link: &Arc<LinkCell>,
        rx: &mut LinkRx<StreamCell>,
        wcs: &[WorkCompletion],
        drained: &mut Drained,
    ) {
        let mut messages = 0;
        for wc in wcs {
            match wc.completion {
                Completion::Receive { imm, len } if wc.status == CompletionStatus::Success => {
                    messages += 1;
                    drained.alive = drained.alive && self.handle_message(link, rx, imm, len);
                }
                Completion::Send { .. } if wc.status == CompletionStatus::Success => drained.sent += 1,
                _ => drained.failed = true,
            }
        }
        if messages > 0 && drained.goes_on() {
            self.return_messages(link, messages + std::mem::take(&mut rx.kept));
        }
    }

    /// The device has completed some requests: streams that waited for that continue.
    fn after_completions(&self, link: &Arc<LinkCell>, rx: &LinkRx<StreamCell>, count: u32) {
        // A statement of its own, so that the lock is released before streams are locked below.
        let was_full = link.tx.lock().completed(count);
        self.send_delayed(link, rx);
        if was_full {
            self.serve(link, rx);
        }
    }

    /// While their messages were handled, the anchors of some streams showed events that count after everything that
    /// their peers had sent before.
    #[cold]
    fn take_in_checks(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>, state: LinkState) -> LinkState {
        let checks = std::mem::take(&mut rx.checks);
        let state = if state == LinkState::Alive { self.drain_link(link, rx, &[]) } else { state };
        for cell in checks {
            cell.lock(self).change(|stream| {
                stream.polled = true;
                stream.progress_anchor(false);
            });
        }
        state
    }

    /// A message was taken alone. Its receive is posted again together with those of other messages.
    #[inline]
    pub(super) fn return_later(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>, messages: u32) {
        rx.kept += messages;
        if rx.kept >= link.returned_at {
            self.return_messages(link, std::mem::take(&mut rx.kept));
        }
    }

    /// Posts receives again and sends the credit to the peer.
    pub(crate) fn return_messages(&self, link: &Arc<LinkCell>, messages: u32) {
        let device = self.device();
        let mut tx = link.tx.lock();
        let posted = tx.repost_receives(device, messages);
        if let Some(count) = tx.proto.handle_messages(posted) {
            tx.message_credit(device, count);
        }
        if tx.proto.poll_give() {
            tx.give(device);
        }
        let owes = tx.owes();
        if tx.watch.resting && messages > 0 {
            self.resume_watch(&mut tx);
        }
        drop(tx);
        if messages > 0 && owes {
            self.enqueue_owing(link);
        }
    }

    /// The device has executed a message twice, or lost one: links that share no streams yet will share none.
    #[cold]
    fn record_out_of_turn(&self) {
        Counters::bump(&self.counters().links_out_of_turn);
        if self.order.break_off() && matches!(self.config.sharing, Sharing::Automatic { .. }) {
            Counters::bump(&self.counters().sharing_stopped);
        }
    }

    /// Returns false if the link must end.
    #[inline]
    fn handle_message(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>, imm: u32, len: u32) -> bool {
        let Some(imm) = take_next(link, rx, imm) else {
            self.record_out_of_turn();
            return false;
        };
        let Ok(imm) = Immediate::decode(imm) else {
            link.tx.lock().proto.record_violation();
            return false;
        };
        match imm.kind {
            MessageKind::Data => {
                // A slot that is free here: the message crossed our CLOSE.
                if let Some(Some(cell)) = rx.slots.get(usize::from(imm.slot)) {
                    cell.lock(self).change(|stream| {
                        stream.handle_data(len, imm.rewind);
                        stream.mark_arrived();
                        stream.arrived = true;
                    });
                }
                true
            }
            MessageKind::Control => self.handle_control(link, rx),
            MessageKind::LinkWant => {
                link.tx.lock().proto.handle_want();
                true
            }
            MessageKind::LinkGive => {
                let mut tx = link.tx.lock();
                tx.proto.handle_give();
                let ok = tx.refresh_credit();
                drop(tx);
                self.serve(link, rx);
                ok
            }
            MessageKind::Datagram => self.handle_datagram(link, imm.slot, len),
            MessageKind::Status => {
                self.handle_flow_status(link, imm.slot);
                true
            }
            kind => {
                if let Some(Some(cell)) = rx.slots.get(usize::from(imm.slot)) {
                    let shown = cell.lock(self).change(|stream| {
                        stream.inner.proto.handle_signal(kind);
                        stream.arrived = true;
                        if kind == MessageKind::CreditGive {
                            // The credit that it announces may have been found, and used up, before: then request
                            // credit again.
                            stream.unstall();
                        }
                        // Nothing comes to the anchor in place of a marker that is put off.
                        if kind != MessageKind::Unmarked {
                            stream.progress_anchor(false);
                        }
                        stream.inner.listed.contains(Listed::CHECK)
                    });
                    if shown {
                        rx.checks.push(cell.clone());
                    }
                } else if kind == MessageKind::Close {
                    self.handle_flow_closed(link, imm.slot);
                }
                true
            }
        }
    }

    fn handle_control(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>) -> bool {
        let alive = self.handle_next_control(link, rx);
        let tx = link.tx.lock();
        let set_up = tx.proto.is_ready() && (link.connector || tx.proto.was_used());
        drop(tx);
        if set_up {
            self.todo.lock().timers.end_setup(link.qp);
        }
        alive
    }

    fn handle_next_control(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>) -> bool {
        let at = CREDIT_BLOCK_LEN + netacc_proto::Link::control_slot_of(rx.controls) * CONTROL_SLOT_LEN;
        rx.controls += 1;
        let mut bytes = [0; CONTROL_SLOT_LEN];
        let message = link.local.memory.read(at, &mut bytes).then(|| ControlMessage::decode(&bytes));
        let Some(Ok(message)) = message else {
            link.tx.lock().proto.record_violation();
            return false;
        };
        match message {
            ControlMessage::Hello(hello) => self.handle_hello(link, &hello),
            ControlMessage::Proof(proof) => {
                let proven = link.tx.lock().proto.handle_proof(&proof);
                proven.map_or_else(|error| self.end_setup(link, error), |()| true)
            }
            //= spec §2.5.4
            //# A side that reads that ends the link.
            ControlMessage::Refuse(Refuse { peer_slot: NO_SLOT, reason, .. }) => {
                let reason = match Reason::from_code(reason) {
                    key @ (Reason::KeyMissing | Reason::KeyMismatch) => key,
                    _ => Reason::NotAdmitted,
                };
                self.refuse_link(link, reason);
                false
            }
            ControlMessage::Open(open) => match self.handle_open(link, rx, &open) {
                Ok(()) => {
                    Counters::bump(&self.counters().opens_accepted);
                    true
                }
                Err(reason) => self.refuse_open(link, &open, reason),
            },
            ControlMessage::Flow(request) => {
                self.handle_flow(link, &request);
                true
            }
            ControlMessage::Grant(grant) => self.handle_grant(link, &grant),
            ControlMessage::Accept(accept) => {
                self.handle_accept(link, rx, &accept);
                true
            }
            ControlMessage::Refuse(refuse) => {
                if let Some(Some(cell)) = rx.slots.get(usize::from(refuse.peer_slot)) {
                    self.handle_refuse(link, cell, &refuse);
                } else {
                    self.handle_flow_refused(link, &refuse);
                }
                true
            }
        }
    }

    /// Returns false if the link must end.
    fn handle_hello(&self, link: &Arc<LinkCell>, hello: &Hello) -> bool {
        let mut tx = link.tx.lock();
        let answer = match tx.proto.handle_hello(hello) {
            Ok(answer) => answer,
            Err(error) => {
                drop(tx);
                return self.end_setup(link, error);
            }
        };
        let sent = answer.map_or(Ok(true), |answer| tx.send(self.device(), answer));
        drop(tx);
        if link.connector {
            self.promotions.lock().admits(link.peer, hello.max_streams);
            // Places the stream that waits for the link; if it has gone meanwhile, the link is kept for others.
            self.enqueue_idle(link);
        }
        self.keep_sending(link, sent)
    }

    /// Sends REFUSE to an opener. False if the link must end.
    fn refuse_open(&self, link: &Arc<LinkCell>, open: &Open, mut reason: Reason) -> bool {
        Counters::bump(&self.counters().opens_refused);
        //= spec §4.1.5
        //# An acceptor that does not hold the anchor, but finds the process of its host that does, names in REFUSE the
        //# port at which that process accepts links.
        let elsewhere = match reason {
            Reason::UnknownStream => self.holder(link, open),
            _ => None,
        };
        if elsewhere.is_some() {
            reason = Reason::HeldElsewhere;
        }
        self.counters().reason(reason);
        let refuse =
            Refuse { peer_slot: open.slot, reason: reason as u16, redirect_port: elsewhere.unwrap_or_default() };
        let sent = link.tx.lock().send(self.device(), ControlMessage::Refuse(refuse));
        // It may have no stream.
        self.enqueue_idle(link);
        self.keep_sending(link, sent)
    }

    /// The peer does not accept a stream of ours.
    fn handle_refuse(&self, link: &LinkCell, cell: &Arc<StreamCell>, refuse: &Refuse) {
        cell.lock(self).change(|stream| {
            //= spec §4.1.5
            //# The opener MAY connect there, once, and to no other address.
            if stream.inner.attempt.referral != Referral::Followed {
                let elsewhere = match refuse.redirect_port {
                    0 => None,
                    port => self.directory().neighbour(link.peer, port),
                };
                let elsewhere = elsewhere.filter(|peer| *peer != link.peer);
                stream.inner.attempt.referral = elsewhere.map_or(Referral::None, Referral::To);
            }
            stream.inner.proto.handle_refuse(Reason::from_code(refuse.reason));
            self.counters().reason(Reason::from_code(refuse.reason));
            stream.arrived = true;
        });
    }

    /// The peer cannot have the link. False if that ends it now.
    fn end_setup(&self, link: &Arc<LinkCell>, error: LinkError) -> bool {
        let LinkError::Refused(reason) = error else {
            link.tx.lock().proto.record_violation();
            return false;
        };
        self.refuse_link(link, reason);
        //= spec §2.5.4
        //# A side that refuses a link sends REFUSE, in which the opener's slot is 0xffff, and nothing more.
        let refuse = ControlMessage::Refuse(Refuse { peer_slot: NO_SLOT, reason: reason as u16, redirect_port: 0 });
        let sent = link.tx.lock().send(self.device(), refuse);
        self.keep_sending(link, sent)
    }

    /// One side refuses the link: the streams that wait for it stay on TCP, for that reason.
    pub(crate) fn refuse_link(&self, link: &LinkCell, reason: Reason) {
        if !link.tx.lock().proto.refuse() {
            return;
        }
        Counters::bump(&self.counters().links_refused);
        if !link.connector {
            return self.counters().reason(reason);
        }
        self.directory().mark_unreachable(link.peer);
        // `progress` informs the streams that waited for it.
        self.promotions.lock().ended(link.peer, link.qp, reason);
        self.need_helper();
    }

    /// A message of the link itself was sent, or waits for room. False if the link must end.
    pub(crate) fn keep_sending(&self, link: &Arc<LinkCell>, sent: Result<bool, PostError>) -> bool {
        if sent == Ok(false) {
            self.enqueue_owing(link);
        }
        sent.is_ok()
    }
}

/// The immediate of the next message of a link, without its number. `None`: this is another message.
#[inline]
fn take_next(link: &LinkCell, rx: &mut LinkRx<StreamCell>, imm: u32) -> Option<u32> {
    if link.caps.peer_memory {
        return Some(imm);
    }
    //= spec §3.1.4
    //# A message with another number than the next one is not handled, and ends the link: its device has executed a message
    //# twice, or lost one.
    let next = next_message(imm, rx.messages)?;
    rx.messages += 1;
    Some(next)
}

pub(super) const EMPTY: WorkCompletion = WorkCompletion {
    qp: QueuePairId(0),
    status: CompletionStatus::Success,
    completion: Completion::Send { id: WorkRequestId(0) },
};
