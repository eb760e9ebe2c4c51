//! Lists of pages, and rings in them.
//!
//! The driver calls a list of pages an MTT (erdma_verbs.h: `struct erdma_mem`): addresses of equal blocks of guest
//! memory, inline in a command or in a table that the command points to. The device keeps a copy, because real ones
//! cache it.

use crate::bits::u64_at;
use crate::host::{GuestMemory, OutsideMemory};

/// Entries of a list: the limit of the widest count of a command (`ERDMA_CMD_REGMR_MTT_CNT_MASK`).
pub(crate) const MAX_PAGES: u32 = 1 << 20;

/// The smallest page (`ERDMA_HW_PAGE_SHIFT`).
pub(crate) const MIN_SHIFT: u32 = 12;

/// Bytes of an entry of a send, receive or completion queue (`SQEBB_SIZE`, `RQE_SIZE`, `CQE_SIZE`).
pub(crate) const ENTRY: u64 = 32;

/// Equal blocks of guest memory, one after the other in the view of their user.
///
/// Invariant: `shift` is below 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    addresses: Vec<u64>,
    shift: u32,
}

impl Pages {
    /// `None`: pages of that size do not exist.
    pub(crate) fn new(addresses: Vec<u64>, shift: u32) -> Option<Pages> {
        (MIN_SHIFT..64).contains(&shift).then_some(Pages { addresses, shift })
    }

    /// Reads a table of addresses. Precondition: `count` is at most [`MAX_PAGES`].
    pub(crate) fn read_table(
        memory: &impl GuestMemory,
        address: u64,
        count: u32,
        shift: u32,
    ) -> Result<Option<Pages>, OutsideMemory> {
        debug_assert!(count <= MAX_PAGES);
        let mut bytes = vec![0; count as usize * 8];
        memory.read(address, &mut bytes)?;
        Ok(Pages::new((0..count as usize).map(|index| u64_at(&bytes, index * 8)).collect(), shift))
    }

    /// Bytes of all pages.
    pub(crate) fn len(&self) -> u128 {
        (self.addresses.len() as u128) << self.shift
    }

    /// The number of pages.
    pub(crate) fn count(&self) -> usize {
        self.addresses.len()
    }

    /// Bytes of one page.
    pub(crate) fn page_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// The place of a byte, and the number of bytes that follow it in its page.
    fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        let within = offset & (self.page_bytes() - 1);
        let page = self.addresses.get(usize::try_from(offset >> self.shift).ok()?)?;
        Some((page.checked_add(within)?, self.page_bytes() - within))
    }

    /// The pieces of a range, each in one page, with their places in the range.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = Result<(u64, std::ops::Range<usize>), OutsideMemory>> + '_ {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let at = offset.saturating_add(done as u64);
            let Some((address, left)) = self.locate(at) else {
                let missing = OutsideMemory { address: at, len: (len - done) as u64 };
                done = len;
                return Some(Err(missing));
            };
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(len - done);
            done += piece;
            Some(Ok((address, done - piece..done)))
        })
    }

    pub(crate) fn read(&self, memory: &impl GuestMemory, offset: u64, into: &mut [u8]) -> Result<(), OutsideMemory> {
        for piece in self.pieces(offset, into.len()) {
            let (address, range) = piece?;
            memory.read(address, &mut into[range])?;
        }
        Ok(())
    }

    pub(crate) fn write(&self, memory: &mut impl GuestMemory, offset: u64, bytes: &[u8]) -> Result<(), OutsideMemory> {
        for piece in self.pieces(offset, bytes.len()) {
            let (address, range) = piece?;
            memory.write(address, &bytes[range])?;
        }
        Ok(())
    }

    /// The address of an aligned double word.
    pub(crate) fn double_word(&self, offset: u64) -> Option<u64> {
        self.locate(offset).filter(|(address, left)| address % 8 == 0 && *left >= 8).map(|(address, _)| address)
    }
}

/// A power of two of entries of 32 bytes.
///
/// Invariant: all entries are within the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pages: Pages,
    /// The place of the first entry, in the pages.
    offset: u64,
    log_depth: u32,
}

impl Ring {
    /// `None` if the pages are too few.
    pub(crate) fn new(pages: Pages, offset: u64, log_depth: u32) -> Option<Ring> {
        let end = u128::from(offset) + (u128::from(ENTRY) << log_depth.min(64));
        (log_depth < 32 && end <= pages.len()).then_some(Ring { pages, offset, log_depth })
    }

    /// Entries.
    pub(crate) fn depth(&self) -> u32 {
        1 << self.log_depth
    }

    /// Entries of its list of pages.
    pub(crate) fn pages(&self) -> usize {
        self.pages.count()
    }

    /// The owner bit of the entry with that number: set in the first round and in every other one from then on
    /// (erdma_cmdq.c: `get_next_valid_cmdq_cqe`).
    pub(crate) fn owner(&self, number: u32) -> bool {
        number & self.depth() == 0
    }

    fn entry_offset(&self, number: u32) -> u64 {
        self.offset + u64::from(number & (self.depth() - 1)) * ENTRY
    }

    pub(crate) fn read(&self, memory: &impl GuestMemory, number: u32, into: &mut [u8]) -> Result<(), OutsideMemory> {
        for (index, entry) in into.chunks_mut(ENTRY as usize).enumerate() {
            self.pages.read(memory, self.entry_offset(number.wrapping_add(index as u32)), entry)?;
        }
        Ok(())
    }

    /// Publishes an entry.
    pub(crate) fn publish(
        &self,
        memory: &mut impl GuestMemory,
        number: u32,
        entry: &[u8; 32],
    ) -> Result<(), OutsideMemory> {
        let offset = self.entry_offset(number);
        match self.pages.locate(offset) {
            Some((address, left)) if left >= ENTRY => memory.publish(address, entry),
            _ => Err(OutsideMemory { address: offset, len: ENTRY }),
        }
    }
}
