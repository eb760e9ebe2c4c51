//! The command queue: its rings, and the time at which the command in front is done.
//!
//! Layout: erdma_hw.h, `ERDMA_CMD_HDR_*`; a command has 64 bytes (6.1) or 128 (later); its header has the length.

use netacc_device::Instant;

use crate::bits::{bits, u32_at, u64_at};
use crate::completions::CompletionQueue;
use crate::pages::Ring;

/// Bytes of the longest command that a header can announce.
pub(crate) const MAX_BYTES: usize = 256;

/// Invariant: `posted - fetched` is at most the depth, modulo 2^16.
pub(crate) struct CommandQueue {
    pub(crate) ring: Ring,
    pub(crate) completions: CompletionQueue,
    pub(crate) posted: u16,
    pub(crate) fetched: u16,
    /// The time at which the command in front is done, once it was begun.
    pub(crate) done_at: Option<Instant>,
}

impl CommandQueue {
    pub(crate) fn new(ring: Ring, completions: CompletionQueue) -> CommandQueue {
        CommandQueue { ring, completions, posted: 0, fetched: 0, done_at: None }
    }

    /// The doorbell. `false`: beyond the end of the queue.
    pub(crate) fn post(&mut self, posted: u16) -> bool {
        let (new, old) = (posted.wrapping_sub(self.fetched), self.posted.wrapping_sub(self.fetched));
        let fits = u32::from(new) <= self.ring.depth() && new >= old;
        if fits {
            self.posted = posted;
        }
        fits
    }
}

/// A command in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) bytes: Vec<u8>,
    /// Its first block.
    pub(crate) index: u16,
    pub(crate) blocks: u16,
}

impl Command {
    /// Submodule and number.
    pub(crate) fn kind(&self) -> (u8, u8) {
        let header = self.u64(0);
        (bits(header, 25, 24) as u8, bits(header, 23, 16) as u8)
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32_at(&self.bytes, at)
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64_at(&self.bytes, at)
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// A field of the word at `at`.
    pub(crate) fn field(&self, at: usize, high: u32, low: u32) -> u32 {
        bits(u64::from(self.u32(at)), high, low) as u32
    }
}

/// The blocks of a command, from its header.
pub(crate) fn blocks(header: u64) -> u16 {
    bits(header, 54, 52) as u16 + 1
}
