//! Event queues: the device reports completion queues with new entries, and asynchronous events.
//!
//! Layouts: erdma_hw.h, `ERDMA_CEQE_HDR_*`, `struct erdma_aeqe`. An entry has 16 bytes; its owner bit is bit 31 of the first
//! word. The driver handles 16 entries for an interrupt and rings the doorbell then (erdma_eq.c:
//! `erdma_ceq_completion_handler`), so the device interrupts again if there are more.

use crate::host::Host;

/// Entries of the longest queue: the driver counts in 16 bits (erdma.h: `struct erdma_eq`, `ci`).
pub(crate) const MAX_LOG_DEPTH: u32 = 15;

const ENTRY: u64 = 16;
const OWNER: u32 = 1 << 31;

/// Kinds of asynchronous events (`ERDMA_AE_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AsyncEvent {
    /// A queue pair has failed.
    QpFatal,
    /// A message found no receive.
    EmptyReceiveQueue,
    /// A peer was refused access.
    AccessError,
    /// A completion queue has failed.
    CqError,
    /// Any other event.
    Other,
}

impl AsyncEvent {
    fn code(self) -> u32 {
        match self {
            AsyncEvent::QpFatal => 0,
            AsyncEvent::EmptyReceiveQueue => 1,
            AsyncEvent::AccessError => 2,
            AsyncEvent::CqError => 3,
            AsyncEvent::Other => 4,
        }
    }
}

/// Invariant: `produced - consumed` is at most `depth`.
#[derive(Clone, Debug)]
pub(crate) struct EventQueue {
    base: u64,
    depth: u32,
    vector: u16,
    produced: u16,
    consumed: u16,
}

/// An entry that was not written: the queue is full, or not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventLost;

impl EventQueue {
    /// `None`: too long.
    pub(crate) fn new(base: u64, log_depth: u32, vector: u16) -> Option<EventQueue> {
        let depth = (log_depth <= MAX_LOG_DEPTH).then(|| 1 << log_depth)?;
        Some(EventQueue { base, depth, vector, produced: 0, consumed: 0 })
    }

    /// `None`: no power of two, or too long.
    pub(crate) fn with_depth(base: u64, depth: u32, vector: u16) -> Option<EventQueue> {
        depth.is_power_of_two().then(|| depth.trailing_zeros()).and_then(|log| EventQueue::new(base, log, vector))
    }

    pub(crate) fn vector(&self) -> u16 {
        self.vector
    }

    /// Reports new entries of a completion queue.
    pub(crate) fn report_completion(&mut self, host: &mut impl Host, cqn: u32, produced: u32) -> Result<(), EventLost> {
        let high = 1 << 31 | produced & 0xff_ffff;
        self.push(host, [cqn & 0xf_ffff, high, 0, 0])
    }

    /// Reports an asynchronous event of a queue pair, or of a completion queue.
    pub(crate) fn report(&mut self, host: &mut impl Host, event: AsyncEvent, number: u32) -> Result<(), EventLost> {
        self.push(host, [event.code() << 16, number, 0, 0])
    }

    fn push(&mut self, host: &mut impl Host, mut words: [u32; 4]) -> Result<(), EventLost> {
        if u32::from(self.produced.wrapping_sub(self.consumed)) >= self.depth {
            return Err(EventLost);
        }
        let number = u32::from(self.produced);
        if number & self.depth == 0 {
            words[0] |= OWNER;
        }
        let mut entry = [0; ENTRY as usize];
        entry.chunks_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        let address = self.base.wrapping_add(u64::from(number & (self.depth - 1)) * ENTRY);
        host.publish(address, &entry).map_err(|_| EventLost)?;
        self.produced = self.produced.wrapping_add(1);
        Ok(())
    }

    /// The driver has handled the entries below `consumed`. Returns whether there are more, so that it needs another
    /// interrupt.
    pub(crate) fn handle_doorbell(&mut self, consumed: u16) -> bool {
        let left = self.produced.wrapping_sub(consumed);
        // A number that was never produced.
        if left > self.produced.wrapping_sub(self.consumed) {
            return false;
        }
        self.consumed = consumed;
        left > 0
    }
}
