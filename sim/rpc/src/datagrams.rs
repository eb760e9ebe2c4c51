//! Conversations by UDP datagrams.
//!
//! A client sends datagrams by its plan. The server takes each, and answers it where the plan has answers. A datagram takes the times of
//! the NICs and, like TCP's bytes, comes by an interrupt; the stack's own thread, if there is one, does its work when it comes and when
//! it goes. Calls that send wait while too many leave the host, as on a socket whose buffer is full.
//!
//! # Invariants
//! * A thread handles one datagram at a time: it takes one, and answers it, or sends one.
//! * A datagram that is sent is answered (or, without answers, taken), or counted as lost [`PATIENCE`] later; never both.

use std::cmp::Reverse;

use netacc_device::{Instant, QueuePairId};
use netacc_host::{Found, Work};
use netacc_rnic::{Body, Datagram, NodeId, Packet};

use crate::flow::{Action, Pending, PATIENCE};
use crate::host_threads::Task;
use crate::measured::{ns, Sample};
use crate::run::{Due, Run};
use crate::workload::Request;

impl Run {
    /// A host's thread begins with the work that there is for a flow: its cost.
    pub(crate) fn begin_datagram(&mut self, number: usize, host: usize, now: Instant) -> Work {
        let is_full = self.hosts[host].port.is_full();
        let Some(flow) = &mut self.flows[number] else { return Work::default() };
        let side = flow.side(host);
        flow.actions[side] = flow.next_action(side, !is_full, now);
        if is_full && flow.actions[side].is_none() && flow.has_work(side, now) {
            let blocked = &mut self.hosts[host].port.blocked;
            if !blocked.contains(&number) {
                blocked.push(number);
            }
        }
        flow.actions[side].as_ref().map_or(Work::default(), |action| flow.price(side, action))
    }

    /// The time of that work is over. Returns what its cost lacked: that of waking the other end.
    pub(crate) fn finish_datagram(&mut self, number: usize, host: usize, now: Instant) -> Work {
        let Some(flow) = &mut self.flows[number] else { return Work::default() };
        let side = flow.side(host);
        let Some(action) = flow.actions[side].take() else { return Work::default() };
        let other = flow.plan.client + flow.plan.server - host as u32;
        let sends = match &action {
            Action::Send(_) => true,
            Action::Take(datagram) => side == 1 && datagram.wanted > 0,
        };
        let wakes = if sends { self.claim_wake_up(other, number, now) } else { 0 };
        match action {
            Action::Send(request) => self.send_request(number, request, now),
            Action::Take(datagram) if side == 1 => self.take_request(number, datagram, now),
            Action::Take(datagram) => self.answer_datagram(number, datagram.number, now),
        }
        let more = self.flows[number].as_ref().is_some_and(|flow| flow.has_work(side, now));
        if more {
            self.serve_flow(number, host, now);
        } else if side == 0 {
            self.plan_datagram(number);
        }
        self.close_flow_if_over(number);
        Work { wakes, ..Work::default() }
    }

    fn send_request(&mut self, number: usize, request: Request, now: Instant) {
        let Some(flow) = &mut self.flows[number] else { return };
        let Request { begun, request_bytes, response_bytes } = request;
        let response_bytes = if flow.answered { response_bytes } else { 0 };
        flow.sent += 1;
        flow.pending.insert(flow.sent, Pending { begun, request_bytes, response_bytes });
        if !flow.answered {
            // The next one may be sent when the call is over.
            flow.source.handle_answer(now);
        }
        let (client, server) = (flow.plan.client, flow.plan.server);
        let datagram = Datagram { number: flow.sent, bytes: request_bytes, wanted: response_bytes };
        if !std::mem::replace(&mut flow.expiry_runs, true) {
            self.hosts[client as usize].timers.push(Reverse((now + PATIENCE, Due::DatagramExpiry(number))));
        }
        self.emit(number, (client, server), datagram, now);
    }

    fn take_request(&mut self, number: usize, datagram: Datagram, now: Instant) {
        let Some(flow) = &self.flows[number] else { return };
        self.results.read += u64::from(datagram.bytes);
        if datagram.wanted == 0 {
            return self.answer_datagram(number, datagram.number, now);
        }
        let (client, server) = (flow.plan.client, flow.plan.server);
        let answer = Datagram { number: datagram.number, bytes: datagram.wanted, wanted: 0 };
        self.emit(number, (server, client), answer, now);
    }

    /// A datagram was answered, or taken where there are no answers.
    fn answer_datagram(&mut self, number: usize, datagram: u64, now: Instant) {
        let Some(flow) = &mut self.flows[number] else { return };
        // Its client has given it up otherwise.
        let Some(Pending { begun, request_bytes, response_bytes }) = flow.pending.remove(&datagram) else { return };
        if flow.answered {
            flow.source.handle_answer(now);
        }
        self.results.read += u64::from(response_bytes);
        self.results.answered += 1;
        self.results.measured[number].latencies_ns.push(ns(begun, now));
        if self.results.sampled {
            let conversation = number as u32;
            self.results.samples.push(Sample { conversation, begun, end: now, request_bytes, response_bytes });
        }
    }

    /// Those that were sent too long ago are lost.
    pub(crate) fn expire_datagrams(&mut self, number: usize, now: Instant) {
        let Some(flow) = &mut self.flows[number] else { return };
        while let Some(oldest) = flow.pending.first_entry().filter(|oldest| oldest.get().begun + PATIENCE <= now) {
            oldest.remove();
            flow.lost += 1;
            if flow.answered {
                flow.source.handle_answer(now);
            }
        }
        let next = flow.pending.first_key_value().map(|(_, pending)| pending.begun + PATIENCE);
        flow.expiry_runs = next.is_some();
        let client = flow.plan.client as usize;
        if let Some(at) = next {
            self.hosts[client].timers.push(Reverse((at, Due::DatagramExpiry(number))));
        }
        self.plan_datagram(number);
        self.close_flow_if_over(number);
    }

    /// A datagram leaves a host: through the stack's own thread, if it has one.
    fn emit(&mut self, number: usize, (from, to): (u32, u32), datagram: Datagram, now: Instant) {
        let packet = Packet::datagram(NodeId(from), NodeId(to), QueuePairId(number as u32), datagram);
        let state = &mut self.hosts[from as usize];
        match state.threads.as_mut().and_then(|threads| threads.stack.as_mut()) {
            Some(stack) => {
                let at = stack.pass(now, 1);
                state.port.passing.push_back(packet);
                state.timers.push(Reverse((at, Due::DatagramOut)));
            }
            None => state.port.leaving.push_back(packet),
        }
        self.rewoken.push(from);
    }

    /// The stack's own thread has done its work for the next datagram that leaves.
    pub(crate) fn pass_datagram(&mut self, host: usize) {
        let port = &mut self.hosts[host].port;
        port.leaving.extend(port.passing.pop_front());
        self.rewoken.push(host as u32);
    }

    /// The next datagram for the NIC of a host whose port is free; packets of queue pairs have their turns, too.
    pub(crate) fn poll_datagram(&mut self, host: usize, only_in_turn: bool, now: Instant) -> Option<Packet> {
        let state = &mut self.hosts[host];
        if only_in_turn && !state.port.is_turn {
            return None;
        }
        let packet = state.port.leaving.pop_front()?;
        state.port.is_turn = false;
        if !state.port.is_full() && !state.port.blocked.is_empty() {
            for flow in std::mem::take(&mut state.port.blocked) {
                state.timers.push(Reverse((now, Due::Datagrams(flow))));
            }
            self.rewoken.push(host as u32);
        }
        Some(packet)
    }

    /// Queue pairs send a packet.
    pub(crate) fn record_turn(&mut self, host: usize) {
        self.hosts[host].port.is_turn = true;
    }

    /// A datagram reaches a host's NIC.
    pub(crate) fn receive_datagram(&mut self, host: usize, packet: Packet, now: Instant) {
        match self.report_at(host, now) {
            Some(at) => {
                self.hosts[host].port.arriving.push_back(packet);
                self.hosts[host].timers.push(Reverse((at, Due::DatagramIn)));
            }
            None => self.deliver(host, packet, now),
        }
    }

    /// The next datagram that has arrived reaches its socket.
    pub(crate) fn deliver_next(&mut self, host: usize, now: Instant) {
        if let Some(packet) = self.hosts[host].port.arriving.pop_front() {
            self.deliver(host, packet, now);
        }
    }

    fn deliver(&mut self, host: usize, packet: Packet, now: Instant) {
        let Body::Datagram(datagram) = packet.body else { return };
        let number = packet.src_qp.0 as usize;
        let Some(flow) = self.flows.get_mut(number).and_then(Option::as_mut) else { return };
        let side = flow.side(host);
        if flow.inboxes[side].push(datagram) {
            self.serve_flow(number, host, now);
        }
    }

    /// A host has something to do for a flow.
    pub(crate) fn serve_flow(&mut self, number: usize, host: usize, now: Instant) {
        match &mut self.hosts[host].threads {
            Some(threads) => threads.put(now, Task::Datagrams(number), Found::InOrder),
            None => {
                self.begin_datagram(number, host, now);
                self.finish_datagram(number, host, now);
            }
        }
    }

    /// The client of a flow is woken when it is to send the next datagram.
    pub(crate) fn plan_datagram(&mut self, number: usize) {
        let Some(flow) = &mut self.flows[number] else { return };
        let Some(due) = flow.source.due().filter(|due| flow.wake_at.is_none_or(|at| *due < at)) else { return };
        flow.wake_at = Some(due);
        self.hosts[flow.plan.client as usize].timers.push(Reverse((due, Due::Datagrams(number))));
    }

    /// The client of a flow has something to send.
    pub(crate) fn datagrams_due(&mut self, number: usize, now: Instant) {
        let Some(flow) = &mut self.flows[number] else { return };
        flow.wake_at = None;
        let client = flow.plan.client as usize;
        if flow.has_work(0, now) {
            self.serve_flow(number, client, now);
        }
    }

    fn close_flow_if_over(&mut self, number: usize) {
        let Some(flow) = &mut self.flows[number] else { return };
        if flow.is_open && flow.pending.is_empty() && flow.source.due().is_none() {
            flow.is_open = false;
            self.open -= 1;
        }
    }
}
