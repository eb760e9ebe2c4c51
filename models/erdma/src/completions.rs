//! Completion queues: their entries, and the events for the driver.
//!
//! Layout: erdma_hw.h, `struct erdma_cqe`: big-endian but for the immediate. Its doorbell only arms (`ERDMA_CQDB_*`),
//! and carries the number of entries that the driver has polled. The driver polls without ringing it, so the device
//! cannot detect an overflow.

use crate::bits::bits;
use crate::host::Host;
use crate::pages::Ring;
use crate::status::Status;

/// The queue that an entry belongs to (`ERDMA_CQE_QTYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Receive,
}

/// The same for the command queue.
const COMMAND: u32 = 2;

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) kind: Kind,
    pub(crate) opcode: u8,
    pub(crate) status: u8,
    /// Number of the queue entry that it completes.
    pub(crate) index: u32,
    pub(crate) qpn: u32,
    /// Immediate or invalidated key, with the four bytes as they are in memory.
    pub(crate) extra: [u8; 4],
    pub(crate) len: u32,
    /// It wakes users that wait for solicited completions only.
    pub(crate) solicited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arming {
    Unarmed,
    Solicited,
    Any,
}

#[derive(Clone, Debug)]
pub(crate) struct CompletionQueue {
    ring: Ring,
    produced: u32,
    arming: Arming,
    /// Number of the last entry that was solicited.
    last_solicited: Option<u32>,
    pub(crate) event_queue: u16,
}

/// The queue's memory is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLost;

impl CompletionQueue {
    pub(crate) fn new(ring: Ring, event_queue: u16) -> CompletionQueue {
        CompletionQueue { ring, produced: 0, arming: Arming::Unarmed, last_solicited: None, event_queue }
    }

    /// Entries of its list of pages.
    pub(crate) fn pages(&self) -> usize {
        self.ring.pages()
    }

    /// The number of written entries, modulo 2^32.
    pub(crate) fn produced(&self) -> u32 {
        self.produced
    }

    /// Writes an entry. Returns whether the driver is to get an event now.
    pub(crate) fn push(&mut self, host: &mut impl Host, completion: &Completion) -> Result<bool, QueueLost> {
        let Completion { kind, opcode, status, index, qpn, extra, len, solicited } = *completion;
        let kind = match kind {
            Kind::Send => 0,
            Kind::Receive => 1,
        };
        let owner = u32::from(self.ring.owner(self.produced)) << 31;
        let header = owner | u32::from(opcode) << 16 | kind << 8 | u32::from(status);
        let mut entry = [0; 32];
        entry[0..4].copy_from_slice(&header.to_be_bytes());
        entry[4..8].copy_from_slice(&index.to_be_bytes());
        entry[8..12].copy_from_slice(&qpn.to_be_bytes());
        entry[12..16].copy_from_slice(&extra);
        entry[16..20].copy_from_slice(&len.to_be_bytes());
        self.publish(host, &entry, solicited || status != Status::Success.code())
    }

    /// Writes the entry that completes a command: two double words instead of queue pair, immediate and length
    /// (erdma_cmdq.c: `erdma_poll_single_cmd_completion`).
    pub(crate) fn push_command(
        &mut self,
        host: &mut impl Host,
        (opcode, status): (u8, u8),
        index: u32,
        results: [u64; 2],
    ) -> Result<bool, QueueLost> {
        let owner = u32::from(self.ring.owner(self.produced)) << 31;
        let header = owner | u32::from(opcode) << 16 | COMMAND << 8 | u32::from(status);
        let [first, second] = results;
        let words = [header, index, first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32];
        let mut entry = [0; 32];
        entry.chunks_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_be_bytes()));
        self.publish(host, &entry, true)
    }

    fn publish(&mut self, host: &mut impl Host, entry: &[u8; 32], solicited: bool) -> Result<bool, QueueLost> {
        self.ring.publish(host, self.produced, entry).map_err(|_| QueueLost)?;
        if solicited {
            self.last_solicited = Some(self.produced);
        }
        self.produced = self.produced.wrapping_add(1);
        Ok(match self.arming {
            Arming::Unarmed => false,
            Arming::Solicited => solicited,
            Arming::Any => true,
        })
    }

    /// The driver has got its event.
    pub(crate) fn disarm(&mut self) {
        self.arming = Arming::Unarmed;
    }

    /// The driver has polled as far as the doorbell shows, and requests an event for more. Returns whether there is
    /// more already.
    pub(crate) fn handle_doorbell(&mut self, value: u64) -> bool {
        const ARM: u64 = 1 << 31;
        const SOLICITED: u64 = 1 << 30;
        if value & ARM == 0 {
            return false;
        }
        let unpolled = self.produced.wrapping_sub(bits(value, 23, 0) as u32) & 0xff_ffff;
        if value & SOLICITED == 0 {
            self.arming = Arming::Any;
            return unpolled > 0;
        }
        self.arming = Arming::Solicited;
        self.last_solicited.is_some_and(|last| self.produced.wrapping_sub(last) <= unpolled)
    }
}
