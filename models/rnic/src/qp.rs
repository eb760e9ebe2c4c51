//! A queue pair: its halves, its completions, and the table it is kept in.

use std::collections::VecDeque;
use std::time::Duration;

use netacc_device::{Instant, QueuePairId, WorkCompletion};

use crate::packet::NodeId;
use crate::rate::{Progress, RateControl};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::round_trip::RoundTrips;
use crate::telemetry::Telemetry;

/// A completion, when the host can see it, and what polling it frees.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) wc: WorkCompletion,
    pub(crate) visible_at: Instant,
    pub(crate) send_slots: u32,
    pub(crate) receive_slots: u32,
}

/// How far a queue pair has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Not connected yet.
    Idle,
    Connected {
        node: NodeId,
        qp: QueuePairId,
    },
    /// Posts fail, and nothing is sent or taken.
    Dead,
}

/// Invariants: `queued` exactly while it is in the NIC's round; `wake_at` and `timer_at` are the earliest times for which the
/// NIC's timers have an entry of that kind; slots in use are those of requests and receives whose completion was not
/// polled.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) life: Life,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) rate: Box<dyn RateControl>,
    pub(crate) round_trips: RoundTrips,
    /// Rate control: no packet before this time.
    pub(crate) paced_until: Instant,
    /// Posts are not seen before this time.
    pub(crate) deferred_until: Instant,
    pub(crate) queued: bool,
    pub(crate) wake_at: Option<Instant>,
    pub(crate) timer_at: Option<Instant>,
    pub(crate) send_slots: u32,
    pub(crate) receive_slots: u32,
    /// Unsignaled requests since the last signaled one.
    pub(crate) unsignaled: u32,
    pub(crate) completions: VecDeque<Entry>,
}

impl QueuePair {
    pub(crate) fn new(rate: Box<dyn RateControl>) -> QueuePair {
        QueuePair {
            life: Life::Idle,
            requester: Requester::default(),
            responder: Responder::default(),
            rate,
            round_trips: RoundTrips::default(),
            paced_until: Instant::ZERO,
            deferred_until: Instant::ZERO,
            queued: false,
            wake_at: None,
            timer_at: None,
            send_slots: 0,
            receive_slots: 0,
            unsignaled: 0,
            completions: VecDeque::new(),
        }
    }

    /// The peer of a connected queue pair.
    pub(crate) fn peer(&self) -> Option<(NodeId, QueuePairId)> {
        match self.life {
            Life::Connected { node, qp } => Some((node, qp)),
            Life::Idle | Life::Dead => None,
        }
    }

    /// Everything below `expected` has arrived.
    pub(crate) fn acknowledge(&mut self, expected: u64, now: Instant, timeout: Duration, telemetry: Option<Telemetry>) {
        let packets = self.requester.acknowledge(expected, now, timeout);
        self.progress(packets, now, telemetry);
    }

    /// So many packets were acknowledged for the first time.
    pub(crate) fn progress(&mut self, packets: u64, now: Instant, telemetry: Option<Telemetry>) {
        if packets > 0 {
            let round_trip = self.round_trips.handle_acknowledged(self.requester.first_missing(), now);
            let (acknowledged, next) = (self.requester.first_missing(), self.requester.next_new());
            self.rate.handle_progress(now, Progress { packets, round_trip, telemetry, acknowledged, next });
        }
    }

    /// Packets that may be in flight.
    pub(crate) fn window(&self, config: &crate::NicConfig) -> u64 {
        let packets = self.rate.window_bytes() / u64::from(config.mtu_bytes);
        packets.clamp(1, u64::from(config.max_in_flight.max(1)))
    }
}

/// Bits of an id that name the slot; those above, but the highest, count its uses, so that late packets of a queue pair
/// that is gone miss its successor (until 2048 others have been there).
const SLOT_BITS: u32 = 20;
const USES: u32 = 1 << 11;

/// The queue pairs of a NIC.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<(u32, Option<QueuePair>)>,
    free: VecDeque<u32>,
    live: u32,
}

impl Table {
    pub(crate) fn insert(&mut self, qp: QueuePair, most: u32) -> Option<QueuePairId> {
        if self.live >= most.min(1 << SLOT_BITS) {
            return None;
        }
        let slot = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        self.live += 1;
        let entry = &mut self.slots[slot as usize];
        entry.1 = Some(qp);
        Some(QueuePairId(entry.0 << SLOT_BITS | slot))
    }

    pub(crate) fn remove(&mut self, id: QueuePairId) -> Option<QueuePair> {
        let slot = slot_of(id);
        let (uses, entry) = self.slots.get_mut(slot as usize)?;
        if *uses != id.0 >> SLOT_BITS {
            return None;
        }
        let qp = entry.take()?;
        *uses = (*uses + 1) % USES;
        self.free.push_back(slot);
        self.live -= 1;
        Some(qp)
    }

    pub(crate) fn get(&self, id: QueuePairId) -> Option<&QueuePair> {
        let (uses, entry) = self.slots.get(slot_of(id) as usize)?;
        entry.as_ref().filter(|_| *uses == id.0 >> SLOT_BITS)
    }

    pub(crate) fn get_mut(&mut self, id: QueuePairId) -> Option<&mut QueuePair> {
        let (uses, entry) = self.slots.get_mut(slot_of(id) as usize)?;
        entry.as_mut().filter(|_| *uses == id.0 >> SLOT_BITS)
    }
}

/// The slot of an id: a small dense number.
pub(crate) fn slot_of(id: QueuePairId) -> u32 {
    id.0 & ((1 << SLOT_BITS) - 1)
}
