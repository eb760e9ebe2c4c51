//! The transmit engine: one packet at a time, acknowledgements first, then queue pairs in turn.
//!
//! The engine works on a packet while the port sends the one before, so the slower of the two bounds the rate.

use std::time::Duration;

use netacc_device::{Instant, QueuePairId};

use crate::cache::source_key;
use crate::engines::Stage;
use crate::nic::{Nic, Timer};
use crate::packet::{Body, Control, Packet, Segment};
use crate::qp::slot_of;
use crate::telemetry::Telemetry;
use crate::ControlEvent;

/// Acknowledgements that may wait for the port. Arbitrary; beyond it they are lost like any packet.
pub(crate) const MAX_URGENT: usize = 4096;

impl Nic {
    /// The next packet for the port, if one is ready. To be asked when the port is free, and after every other call while it
    /// is.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        self.now = now;
        self.start_transmit();
        // The packet is long: it is moved only if it leaves.
        let (_, packet) = self.staged.take_if(|(done, _)| *done <= now)?;
        self.start_transmit();
        Some(packet)
    }

    /// Gives the engine work if it has none.
    pub(crate) fn start_transmit(&mut self) {
        if self.staged.is_some() {
            return;
        }
        if let Some(packet) = self.urgent.pop_front() {
            return self.stage(packet, Duration::ZERO);
        }
        while let Some(outcome) = self.control.poll(self.now, self.node) {
            match outcome {
                Ok(packet) => return self.stage(packet, Duration::ZERO),
                Err(given_up) => {
                    if let Control::User { token } = given_up.content {
                        self.control_events.push_back(ControlEvent::GivenUp { to: given_up.to, token });
                    }
                }
            }
        }
        while let Some(id) = self.round.pop_front() {
            if let Some(qp) = self.qps.get_mut(id) {
                qp.queued = false;
                if self.transmit_for(id) {
                    return;
                }
            }
        }
    }

    /// The engine begins with a packet, and waits for `stall` besides.
    fn stage(&mut self, packet: Packet, stall: Duration) {
        let done = self.busy.work(self.now, Stage::Transmit, self.config.costs.transmit_packet + stall);
        self.staged = Some((done, packet));
    }

    /// Stages the next packet of a queue pair whose turn it is. `false` if it has none now.
    fn transmit_for(&mut self, id: QueuePairId) -> bool {
        let Some(qp) = self.qps.get_mut(id) else { return false };
        let Some(peer) = qp.peer() else { return false };
        let window = qp.window(&self.config);
        let Some((psn, ready_at)) = qp.requester.next_packet(window) else { return false };
        if ready_at.max(qp.paced_until) > self.now {
            self.activate(id);
            return false;
        }
        let Some((segment, ack_request)) = qp.requester.segment(psn, &self.config, window) else { return false };
        let again = qp.requester.sent(psn, self.now, self.config.retry_timeout);
        let placeable = self.config.recovery == crate::Recovery::SelectiveRepeat;
        let body = Body::Data { psn, ack_request, segment };
        let telemetry = self.config.rate_control.collects().then(Telemetry::default);
        let packet = Packet::new((self.node, id), peer, body, placeable).with_telemetry(telemetry);
        if ack_request && self.config.rate_control.measures() {
            qp.round_trips.handle_sent(psn, self.now, again);
        }
        qp.rate.handle_sent(self.now, packet.wire_bytes);
        if let Some(bps) = qp.rate.rate_bps(self.now) {
            let gap = u64::from(packet.wire_bytes) * 8 * 1_000_000_000 / bps.max(1);
            qp.paced_until = qp.paced_until.max(self.now) + Duration::from_nanos(gap);
        }
        self.counters.data_sent += 1;
        self.counters.data_repeated += u64::from(again);
        let stall = self.context_cost(id) + self.source_cost(&segment, id);
        self.stage(packet, stall);
        self.watch_progress(id);
        self.activate(id);
        true
    }

    /// Puts a queue pair into the round if it can send now, or sets a timer for when it can.
    pub(crate) fn activate(&mut self, id: QueuePairId) {
        let Some(qp) = self.qps.get_mut(id).filter(|qp| !qp.queued && qp.peer().is_some()) else { return };
        let Some((_, ready_at)) = qp.requester.next_packet(qp.window(&self.config)) else { return };
        let at = ready_at.max(qp.paced_until);
        if at <= self.now {
            qp.queued = true;
            self.round.push_back(id);
        } else if qp.wake_at.is_none_or(|wake| at < wake) {
            qp.wake_at = Some(at);
            self.add_timer(at, Timer::Wake(id));
        }
    }

    /// Queues an acknowledgement or notification.
    pub(crate) fn answer(&mut self, id: QueuePairId, body: Body) {
        self.answer_with(id, body, None);
    }

    /// As [`answer`](Nic::answer), with the telemetry of the packet that is acknowledged.
    pub(crate) fn answer_with(&mut self, id: QueuePairId, body: Body, telemetry: Option<Telemetry>) {
        let Some(peer) = self.qps.get(id).and_then(|qp| qp.peer()) else { return };
        if self.urgent.len() >= MAX_URGENT {
            self.counters.urgent_overflows += 1;
            return;
        }
        self.urgent.push_back(Packet::new((self.node, id), peer, body, false).with_telemetry(telemetry));
    }

    /// Uses a queue pair's context; how long an engine waits for it.
    pub(crate) fn context_cost(&mut self, id: QueuePairId) -> Duration {
        if self.context_cache.touch(slot_of(id)) {
            return Duration::ZERO;
        }
        self.counters.context_misses += 1;
        self.config.costs.context_miss
    }

    /// A payload is read from one region of its queue pair's, which has an entry in the cache of regions.
    fn source_cost(&mut self, segment: &Segment, id: QueuePairId) -> Duration {
        if segment.len == 0 || self.region_cache.touch(source_key(slot_of(id))) {
            return Duration::ZERO;
        }
        self.counters.region_misses += 1;
        self.config.costs.region_miss
    }
}
