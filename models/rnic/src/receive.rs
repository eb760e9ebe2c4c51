//! The receive engine: one packet at a time, in the order of arrival.

use std::time::Duration;

use netacc_device::{Completion, CompletionStatus, Instant, QueuePairId, RemoteKey, WorkCompletion};

use crate::cache::region_key;
use crate::engines::Stage;
use crate::nic::Nic;
use crate::packet::{Body, Control, NakReason, Packet, Segment, Verb};
use crate::responder::{Arrival, Refused};
use crate::{ControlEvent, Placement, Target};

impl Nic {
    /// A packet came from the network. Packets for other nodes are ignored, and so are datagrams, which are for programs.
    pub fn handle_packet(&mut self, now: Instant, packet: Packet) {
        self.now = now;
        if packet.dst != self.node || matches!(packet.body, Body::Datagram(_)) {
            return;
        }
        self.receive_due();
        if self.receiving.len() >= self.config.receive_buffer_packets.max(1) {
            self.counters.receive_overflows += 1;
            return;
        }
        let time = self.config.costs.receive_packet + self.lookup_cost(&packet);
        let done = self.busy.work(now, Stage::Receive, time);
        self.receiving.push_back((done, packet));
        self.receive_due();
        self.start_transmit();
    }

    fn lookup_cost(&mut self, packet: &Packet) -> Duration {
        if matches!(packet.body, Body::Control { .. } | Body::ControlAck { .. })
            || self.qps.get(packet.dst_qp).is_none()
        {
            return Duration::ZERO;
        }
        let mut cost = self.context_cost(packet.dst_qp);
        if let Body::Data { segment: Segment { verb: Verb::Write { rkey, .. }, .. }, .. } = packet.body {
            if let Some(region) = self.regions.get(&rkey.0) {
                if !self.region_cache.touch(region_key(region.slot)) {
                    self.counters.region_misses += 1;
                    cost += self.config.costs.region_miss;
                }
            }
        }
        cost
    }

    /// Looks at the packets that the engine is done with.
    pub(crate) fn receive_due(&mut self) {
        while self.receiving.front().is_some_and(|(done, _)| *done <= self.now) {
            if let Some((_, packet)) = self.receiving.pop_front() {
                self.receive(packet);
            }
        }
    }

    fn receive(&mut self, packet: Packet) {
        match packet.body {
            Body::Control { sequence, content } => return self.receive_control(&packet, sequence, content),
            Body::ControlAck { sequence } => return self.control.handle_ack(packet.src, sequence),
            _ => {}
        }
        // Late packets of a connection that is gone, and forged ones.
        let id = packet.dst_qp;
        if self.qps.get(id).and_then(|qp| qp.peer()) != Some((packet.src, packet.src_qp)) {
            return;
        }
        match packet.body {
            Body::Data { psn, ack_request, segment } => {
                if packet.congestion
                    && self.qps.get_mut(id).is_some_and(|qp| qp.responder.notify(self.now, &self.config))
                {
                    self.counters.notifications_sent += 1;
                    self.answer(id, Body::CongestionNotification);
                }
                self.receive_data(id, &packet, psn, ack_request, segment);
            }
            Body::Ack { expected } => {
                if let Some(qp) = self.qps.get_mut(id) {
                    qp.acknowledge(expected, self.now, self.config.retry_timeout, packet.telemetry);
                }
                self.after_acknowledgement(id);
            }
            Body::Nak { expected, reason } => self.receive_nak(id, expected, reason),
            Body::CongestionNotification => {
                if let Some(qp) = self.qps.get_mut(id) {
                    qp.rate.handle_congestion(self.now);
                }
            }
            Body::Control { .. } | Body::ControlAck { .. } | Body::Datagram(_) => {}
        }
    }

    fn receive_control(&mut self, packet: &Packet, sequence: u64, content: Control) {
        let from = packet.src;
        let nobody = QueuePairId(0);
        // Not through `answer`: there is no queue pair behind it.
        let ack = Packet::new((self.node, nobody), (from, nobody), Body::ControlAck { sequence }, false);
        if self.urgent.len() < crate::transmit::MAX_URGENT {
            self.urgent.push_back(ack);
        }
        if !self.control.is_new(from, sequence) {
            return;
        }
        match content {
            Control::User { token } => self.control_events.push_back(ControlEvent::Received { from, token }),
            Control::Disconnect { qp, from: gone } => {
                if self.qps.get(qp).and_then(|qp| qp.peer()) == Some((from, gone)) {
                    self.fail(qp, CompletionStatus::Flushed, false);
                }
            }
        }
    }

    fn receive_data(&mut self, id: QueuePairId, packet: &Packet, psn: u64, ack_request: bool, segment: Segment) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let arrival = qp.responder.arrive(psn, segment, &self.config);
        let expected = qp.responder.expected();
        match arrival {
            Arrival::Next => self.deliver_from(id, packet, segment, ack_request),
            Arrival::Duplicate => {
                self.counters.duplicates += 1;
                self.answer(id, Body::Ack { expected });
            }
            Arrival::Kept => {
                let reason = NakReason::Sequence { kept: Some(psn) };
                self.answer(id, Body::Nak { expected, reason });
            }
            Arrival::Gap => self.answer(id, Body::Nak { expected, reason: NakReason::Sequence { kept: None } }),
            Arrival::Ignored => {}
        }
    }

    /// Delivers the next packet, and those kept behind it.
    fn deliver_from(&mut self, id: QueuePairId, packet: &Packet, first: Segment, ack_request: bool) {
        let mut segment = first;
        let mut kept = false;
        loop {
            if let Err(refused) = self.deliver(id, packet, segment) {
                return self.refuse(id, refused);
            }
            match self.qps.get_mut(id).and_then(|qp| qp.responder.next_kept()) {
                Some(next) => (segment, kept) = (next, true),
                None => break,
            }
        }
        if ack_request || kept {
            let Some(qp) = self.qps.get(id) else { return };
            let expected = qp.responder.expected();
            self.answer_with(id, Body::Ack { expected }, packet.telemetry);
        }
    }

    fn deliver(&mut self, id: QueuePairId, packet: &Packet, segment: Segment) -> Result<(), Refused> {
        let Some(qp) = self.qps.get_mut(id) else { return Err(Refused::Invalid) };
        qp.responder.check(&segment, &self.config)?;
        let target = match segment.verb {
            Verb::Send { .. } => Target::Receive,
            Verb::Write { rkey, remote, .. } => {
                let at = remote.checked_add(u64::from(segment.offset)).ok_or(Refused::Invalid)?;
                if segment.len > 0 && !self.permits(id, rkey, at, segment.len) {
                    return Err(Refused::Invalid);
                }
                Target::Region { rkey, remote: at }
            }
        };
        let Some(qp) = self.qps.get_mut(id) else { return Err(Refused::Invalid) };
        let received = qp.responder.deliver(&segment);
        self.counters.data_delivered += 1;
        let Segment { message, offset, len, .. } = segment;
        if len > 0 {
            let from = (packet.src, packet.src_qp);
            self.placements.push_back(Placement { qp: id, from, message, offset, len, target });
        }
        if let Some(received) = received {
            let completion = Completion::Receive { imm: received.imm.unwrap_or(0), len: received.len };
            let wc = WorkCompletion { qp: id, status: CompletionStatus::Success, completion };
            let delay = self.config.costs.placement + self.config.costs.completion;
            self.complete(id, (wc, 0, 1), delay);
        }
        Ok(())
    }

    fn permits(&self, id: QueuePairId, rkey: RemoteKey, at: u64, len: u32) -> bool {
        let Some(region) = self.regions.get(&rkey.0).filter(|r| r.qp == id) else { return false };
        at.checked_sub(region.base).is_some_and(|o| o.checked_add(u64::from(len)).is_some_and(|end| end <= region.len))
    }

    fn refuse(&mut self, id: QueuePairId, refused: Refused) {
        let Some(expected) = self.qps.get(id).map(|qp| qp.responder.expected()) else { return };
        if refused == Refused::NotReady && !self.config.no_receive_is_fatal {
            let pause_ns = u64::try_from(self.config.rnr_pause.as_nanos()).unwrap_or(u64::MAX);
            self.counters.not_ready_sent += 1;
            return self.answer(id, Body::Nak { expected, reason: NakReason::NotReady { pause_ns } });
        }
        self.answer(id, Body::Nak { expected, reason: NakReason::Access });
        self.fail(id, CompletionStatus::Flushed, true);
    }

    fn receive_nak(&mut self, id: QueuePairId, expected: u64, reason: NakReason) {
        let now = self.now;
        let Some(qp) = self.qps.get_mut(id) else { return };
        let missing = qp.requester.first_missing();
        let (outcome, status) = match reason {
            NakReason::Sequence { kept } => {
                (qp.requester.handle_gap(expected, kept, now, &self.config), CompletionStatus::RetryExceeded)
            }
            NakReason::NotReady { pause_ns } => {
                // No pause of the specification is longer than 655 ms; a peer cannot stop us for ever.
                let pause = Duration::from_nanos(pause_ns).min(Duration::from_millis(656));
                (
                    qp.requester.handle_not_ready(expected, pause, now, &self.config),
                    CompletionStatus::Other(RNR_EXCEEDED),
                )
            }
            NakReason::Access => {
                qp.requester.acknowledge(expected, now, self.config.retry_timeout);
                (Err(crate::requester::Exhausted), CompletionStatus::RemoteError)
            }
        };
        qp.progress(qp.requester.first_missing() - missing, now, None);
        self.after_acknowledgement(id);
        if outcome.is_err() {
            self.fail(id, status, true);
        }
    }

    /// Completes what is acknowledged, and sends what may be sent now.
    fn after_acknowledgement(&mut self, id: QueuePairId) {
        let delay = self.config.costs.completion;
        while let Some(request) = self.qps.get_mut(id).and_then(|qp| qp.requester.pop_done()) {
            if request.signaled {
                let completion = Completion::Send { id: request.id };
                let wc = WorkCompletion { qp: id, status: CompletionStatus::Success, completion };
                self.complete(id, (wc, request.releases, 0), delay);
            }
        }
        self.watch_progress(id);
        self.activate(id);
    }
}

/// `IBV_WC_RNR_RETRY_EXC_ERR`.
const RNR_EXCEEDED: u32 = 13;
