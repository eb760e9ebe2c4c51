//! Conversations by verbs, as `ib_write_lat`, `ib_send_lat` and `ib_write_bw` have them: a queue pair, and no core on it.
//!
//! The programs poll on cores of their own, so only the NICs and the network take time. Of a write the receiver learns when
//! its bytes are in memory; of a SEND when its completion is visible; without answers the sender when its own is.

use std::cmp::Reverse;
use std::collections::VecDeque;

use netacc_device::{Completion, CompletionStatus, Instant, WorkRequestId};
use netacc_modelled::{HostId, VerbsEvent};
use netacc_rnic::{SendRequest, Verb as Operation};

use crate::config::RunConfig;
use crate::exchanges::Exchange;
use crate::measured::{ns, Sample};
use crate::run::{Due, Run};
use crate::workload::{Conversation, Request, Source, Verb};

impl Run {
    /// Makes the queue pairs of a conversation. Whether it makes any request; `None` if a host has no room for them.
    pub(crate) fn join(
        &mut self,
        number: usize,
        plan: &Conversation,
        config: &RunConfig,
        (verb, answered): (Verb, bool),
    ) -> Option<bool> {
        let hosts = [plan.client, plan.server];
        let longest = [plan.response.longest(), plan.request.longest()];
        let ends = self.cluster.join(hosts.map(HostId), longest)?;
        let source = Source::new(plan.clone());
        let of = hosts.map(|host| &config.hosts[host as usize]);
        for side in 0..2 {
            let (host, qp) = (HostId(hosts[side]), ends[side].qp);
            if verb == Verb::Send {
                let count = of[side].capabilities.max_recv_wr;
                self.cluster.post_verbs_receives(host, qp, count, longest[side]).ok()?;
            }
            self.exchanges.by_queue_pair.insert((hosts[side] as usize, qp), (number, side));
        }
        let is_open = !source.is_over();
        let exchange = Exchange {
            hosts,
            ends,
            longest,
            placement: of.map(|host| host.nic.costs.placement),
            max_inline: of.map(|host| host.capabilities.max_inline as usize),
            verb,
            answered,
            source,
            pending: VecDeque::new(),
            posted: 0,
            served: 0,
            placed: [0; 2],
            written: [0; 2],
            wake_at: None,
            is_open,
        };
        self.exchanges.by_number.insert(number, exchange);
        Some(is_open)
    }

    /// Has a client's host woken when it posts its next request.
    pub(crate) fn plan_verbs(&mut self, number: usize) {
        let Some(exchange) = self.exchanges.by_number.get_mut(&number) else { return };
        let Some(due) = exchange.source.due().filter(|due| exchange.wake_at.is_none_or(|at| *due < at)) else { return };
        exchange.wake_at = Some(due);
        self.hosts[exchange.hosts[0] as usize].timers.push(Reverse((due, Due::Verbs(number))));
    }

    /// Makes the requests that are due.
    pub(crate) fn post_due_verbs(&mut self, number: usize, now: Instant) {
        let Some(exchange) = self.exchanges.by_number.get_mut(&number) else { return };
        exchange.wake_at = None;
        while let Some(request) = exchange.source.take(now) {
            exchange.pending.push_back(request);
        }
        self.post_pending(number);
        self.plan_verbs(number);
    }

    /// Posts requests that were made, as far as the send queue has room.
    fn post_pending(&mut self, number: usize) {
        while let Some(exchange) = self.exchanges.by_number.get(&number) {
            let Some(request) = exchange.pending.get(exchange.posted) else { return };
            if !self.post(number, 0, request.request_bytes) {
                return;
            }
            if let Some(exchange) = self.exchanges.by_number.get_mut(&number) {
                exchange.posted += 1;
            }
        }
    }

    /// A side posts a message; whether there was room.
    fn post(&self, number: usize, side: usize, len: u32) -> bool {
        let Some(exchange) = self.exchanges.by_number.get(&number) else { return false };
        let host = exchange.hosts[side];
        let verb = match exchange.verb {
            Verb::Write => Operation::Write { rkey: exchange.ends[1 - side].rkey, remote: 0, imm: None },
            Verb::Send => Operation::Send { imm: None },
        };
        let inline = len as usize <= exchange.max_inline[side];
        let request = SendRequest { id: WorkRequestId(number as u64), verb, len, inline, signaled: true };
        self.cluster.post_verbs(HostId(host), exchange.ends[side].qp, request).is_ok()
    }

    /// The programs of a host poll.
    pub(crate) fn poll_verbs(&mut self, host: usize, now: Instant) {
        if self.exchanges.by_number.is_empty() {
            return;
        }
        while let Some(event) = self.cluster.poll_verbs(HostId(host as u32)) {
            let qp = match &event {
                VerbsEvent::Placed(qp, _) => *qp,
                VerbsEvent::Completed(completion) => completion.qp,
            };
            let Some((number, side)) = self.exchanges.by_queue_pair.get(&(host, qp)).copied() else { continue };
            match event {
                VerbsEvent::Placed(_, bytes) => self.place_verbs(number, side, bytes, now),
                // What the queue pair has carried last, and will ever.
                VerbsEvent::Completed(completion) if completion.status != CompletionStatus::Success => {}
                VerbsEvent::Completed(completion) => match completion.completion {
                    Completion::Receive { .. } => self.receive_verbs(number, side, now),
                    Completion::Send { .. } => self.complete_verbs(number, side, now),
                    Completion::Disconnected => {}
                },
            }
        }
    }

    /// Bytes have reached a side. A message that is whole is in memory a placement later.
    fn place_verbs(&mut self, number: usize, side: usize, bytes: u32, now: Instant) {
        let Some(exchange) = self.exchanges.by_number.get_mut(&number).filter(|exchange| exchange.verb == Verb::Write)
        else {
            return;
        };
        exchange.placed[side] += u64::from(bytes);
        let host = exchange.hosts[side] as usize;
        let Some(request) = exchange.pending.get(exchange.written[side]) else { return };
        let whole = u64::from(if side == 1 { request.request_bytes } else { request.response_bytes });
        if exchange.placed[side] < whole {
            return;
        }
        exchange.placed[side] -= whole;
        exchange.written[side] += 1;
        let at = now + exchange.placement[side];
        self.hosts[host].timers.push(Reverse((at, Due::Written(number, side))));
    }

    /// A side has the next message.
    pub(crate) fn receive_verbs(&mut self, number: usize, side: usize, now: Instant) {
        let Some(exchange) = self.exchanges.by_number.get_mut(&number) else { return };
        let (host, qp) = (HostId(exchange.hosts[side]), exchange.ends[side].qp);
        if exchange.verb == Verb::Send {
            // In place of the one that it has used: there is room.
            let _ = self.cluster.post_verbs_receives(host, qp, 1, exchange.longest[side]);
        }
        if side == 0 {
            return self.answer_verbs(number, now);
        }
        let Some(exchange) = self.exchanges.by_number.get_mut(&number) else { return };
        let Some(request) = exchange.pending.get(exchange.served).copied() else { return };
        exchange.served += 1;
        self.results.read += u64::from(request.request_bytes);
        if self.exchanges.by_number.get(&number).is_some_and(|exchange| exchange.answered) {
            self.post(number, 1, request.response_bytes);
        }
    }

    /// A side polls the completion of a message of its own.
    fn complete_verbs(&mut self, number: usize, side: usize, now: Instant) {
        if side == 0 {
            let answered = self.exchanges.by_number.get(&number).is_some_and(|exchange| exchange.answered);
            if !answered {
                self.answer_verbs(number, now);
            }
            self.post_pending(number);
        }
    }

    /// The oldest request is answered, or without answers complete.
    fn answer_verbs(&mut self, number: usize, now: Instant) {
        let Some(exchange) = self.exchanges.by_number.get_mut(&number) else { return };
        let Some(Request { begun, request_bytes, response_bytes }) = exchange.pending.pop_front() else { return };
        exchange.posted -= 1;
        exchange.served = exchange.served.saturating_sub(1);
        exchange.written = exchange.written.map(|written| written.saturating_sub(1));
        let response_bytes = if exchange.answered { response_bytes } else { 0 };
        exchange.source.handle_answer(now);
        self.results.read += u64::from(response_bytes);
        self.results.answered += 1;
        self.results.carried[number].link_bytes += u64::from(request_bytes) + u64::from(response_bytes);
        self.results.measured[number].latencies_ns.push(ns(begun, now));
        if self.results.sampled {
            let conversation = number as u32;
            self.results.samples.push(Sample { conversation, begun, end: now, request_bytes, response_bytes });
        }
        if exchange.is_open && exchange.pending.is_empty() && exchange.source.is_over() {
            exchange.is_open = false;
            self.open -= 1;
        }
        self.post_due_verbs(number, now);
    }
}
