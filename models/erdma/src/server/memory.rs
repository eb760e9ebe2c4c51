#![expect(unsafe_code, reason = "guests' memory is mapped, and used at the same time as the guests use it")]
//! A guest's memory, mapped from the files that QEMU shares, and its interrupts.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use crate::host::{GuestMemory, Interrupts, OutsideMemory};
use crate::pci::VECTORS;

/// A piece of a guest's memory.
///
/// Invariant: `base..base + len` is mapped while this lives, and `address + len` is not beyond 2^64.
struct Mapping {
    address: u64,
    len: u64,
    base: *mut u8,
    writable: bool,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this base and length, and nothing refers to it: accesses copy.
        unsafe { libc::munmap(self.base.cast(), self.len as usize) };
    }
}

/// Memory and interrupts of a client's machine.
pub(super) struct GuestHost {
    mappings: Vec<Mapping>,
    vectors: Vec<Option<File>>,
}

impl Default for GuestHost {
    fn default() -> GuestHost {
        GuestHost { mappings: Vec::new(), vectors: (0..VECTORS).map(|_| None).collect() }
    }
}

impl GuestHost {
    /// Maps a part of a file as memory at `address`.
    pub(super) fn map(&mut self, file: &File, offset: u64, address: u64, len: u64, writable: bool) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        // A mapping beyond the end of the file would cause a signal at the first access.
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or_else(invalid)?;
        if end > file.metadata()?.len() || address.checked_add(len).is_none() {
            return Err(invalid());
        }
        let (bytes, at) = (usize::try_from(len).map_err(|_| invalid())?, i64::try_from(offset).map_err(|_| invalid())?);
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping, which overlaps nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), at) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.mappings.push(Mapping { address, len, base: base.cast(), writable });
        Ok(())
    }

    /// Removes mappings within the range.
    pub(super) fn unmap(&mut self, address: u64, len: u64) {
        let end = address.saturating_add(len);
        self.mappings.retain(|mapping| mapping.address < address || mapping.address + mapping.len > end);
    }

    pub(super) fn set_vectors(&mut self, range: Range<u32>, files: Vec<File>) {
        let mut files = files.into_iter();
        for vector in range {
            if let Some(slot) = self.vectors.get_mut(vector as usize) {
                *slot = files.next();
            }
        }
    }

    pub(super) fn clear_vectors(&mut self) {
        self.vectors.iter_mut().for_each(|vector| *vector = None);
    }

    /// The place of a byte, and the number of bytes that follow it there.
    fn locate(&self, address: u64, writing: bool) -> Option<(*mut u8, u64)> {
        let within = |m: &&Mapping| address >= m.address && address - m.address < m.len && (m.writable || !writing);
        let mapping = self.mappings.iter().find(within)?;
        let offset = address - mapping.address;
        // SAFETY: `offset` is below the mapping's length.
        Some((unsafe { mapping.base.add(offset as usize) }, mapping.len - offset))
    }

    /// Calls `copy` with each piece of a range: its place in memory, and its place in the range. A range may lie across
    /// mappings.
    fn each_piece(
        &self,
        (address, len): (u64, usize),
        writing: bool,
        mut copy: impl FnMut(*mut u8, Range<usize>),
    ) -> Result<(), OutsideMemory> {
        let outside = OutsideMemory { address, len: len as u64 };
        let mut pieces = [(ptr::null_mut(), 0..0), (ptr::null_mut(), 0..0), (ptr::null_mut(), 0..0)];
        let (mut count, mut done) = (0, 0);
        while done < len {
            let at = address.checked_add(done as u64).ok_or(outside)?;
            let (base, left) = self.locate(at, writing).ok_or(outside)?;
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(len - done);
            // More consecutive mappings than a machine has.
            *pieces.get_mut(count).ok_or(outside)? = (base, done..done + piece);
            (count, done) = (count + 1, done + piece);
        }
        pieces.into_iter().take(count).for_each(|(base, range)| copy(base, range));
        Ok(())
    }
}

impl GuestMemory for GuestHost {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), OutsideMemory> {
        let to = into.as_mut_ptr();
        self.each_piece((address, into.len()), false, |from, range| {
            // SAFETY: `from` has as many bytes mapped as the range, which is within `into`. The guest may write at the
            // same time: the bytes read are then any mixture, which is checked like all input of a guest.
            unsafe { ptr::copy_nonoverlapping(from, to.add(range.start), range.len()) };
        })?;
        // A later read must not see older data than the doorbell or entry that led to it.
        fence(Ordering::Acquire);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), OutsideMemory> {
        let from = bytes.as_ptr();
        self.each_piece((address, bytes.len()), true, |to, range| {
            // SAFETY: `to` has as many bytes mapped and writable as the range, which is within `bytes`.
            unsafe { ptr::copy_nonoverlapping(from.add(range.start), to, range.len()) };
        })
    }

    fn publish(&mut self, address: u64, entry: &[u8]) -> Result<(), OutsideMemory> {
        let outside = OutsideMemory { address, len: entry.len() as u64 };
        let Some((first, rest)) = entry.split_first_chunk::<4>() else { return self.write(address, entry) };
        let (word, left) = self.locate(address, true).ok_or(outside)?;
        if left < 4 || !word.cast::<AtomicU32>().is_aligned() {
            // No driver puts a queue there.
            return Err(outside);
        }
        self.write(address.checked_add(4).ok_or(outside)?, rest)?;
        // SAFETY: four bytes are mapped, writable and aligned; the guest's accesses to them are atomic, too.
        unsafe { &*word.cast::<AtomicU32>() }.store(u32::from_ne_bytes(*first), Ordering::Release);
        Ok(())
    }

    fn update(&mut self, address: u64, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, OutsideMemory> {
        let outside = OutsideMemory { address, len: 8 };
        let (word, left) = self.locate(address, true).ok_or(outside)?;
        if left < 8 || !word.cast::<AtomicU64>().is_aligned() {
            return Err(outside);
        }
        // SAFETY: eight bytes are mapped, writable and aligned; the guest's accesses to them are atomic, too.
        let word = unsafe { &*word.cast::<AtomicU64>() };
        let mut old = word.load(Ordering::Acquire);
        // The exchange fails if a processor has stored meanwhile. The attempts are bounded, because a guest could store for ever.
        for _ in 0..1000 {
            match word.compare_exchange(old, change(old), Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => return Ok(old),
                Err(newer) => old = newer,
            }
        }
        Err(outside)
    }
}

impl Interrupts for GuestHost {
    fn raise(&mut self, vector: u16) {
        if let Some(Some(file)) = self.vectors.get(usize::from(vector)) {
            // A full count has an interrupt pending anyway.
            let _ = (&*file).write(&1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> (File, GuestHost) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(0x3000).expect("its length");
        let mut host = GuestHost::default();
        host.map(&file, 0x1000, 0x10000, 0x1000, true).expect("mapped");
        host.map(&file, 0x2000, 0x11000, 0x1000, false).expect("mapped");
        (file, host)
    }

    // Breaks if an access reaches beyond a mapping, or is done in part, or a range across two mappings is refused.
    #[test]
    fn accesses_stay_within_mappings() {
        let (_file, mut host) = host();
        let mut bytes = [0; 16];
        assert!(host.write(0x10ff8, &[1; 16]).is_err(), "the second mapping is read-only");
        assert_eq!(host.read(0x10ff8, &mut bytes), Ok(()));
        assert_eq!(bytes, [0; 16], "a refused write wrote nothing");
        for address in [0xffff, 0x11ff1, 0x12000, u64::MAX, u64::MAX - 15] {
            assert!(host.read(address, &mut bytes).is_err(), "{address:#x}");
            assert!(host.publish(address, &[0; 16]).is_err(), "{address:#x}");
            assert!(host.update(address, &mut |old| old).is_err(), "{address:#x}");
        }
    }

    // Breaks if memory that QEMU took away can still be used.
    #[test]
    fn unmapped_memory_is_gone() {
        let (_file, mut host) = host();
        host.unmap(0x10000, 0x1000);
        assert!(host.read(0x10000, &mut [0]).is_err());
        assert!(host.read(0x11000, &mut [0]).is_ok());
        host.unmap(0, u64::MAX);
        assert!(host.read(0x11000, &mut [0]).is_err());
    }

    // Breaks if a mapping beyond the end of its file is made: the first access would end the process.
    #[test]
    fn files_bound_mappings() {
        let (file, mut host) = host();
        assert!(host.map(&file, 0x2000, 0x20000, 0x1001, true).is_err());
        assert!(host.map(&file, u64::MAX, 0x20000, 0x1000, true).is_err());
        assert!(host.map(&file, 0, u64::MAX, 0x1000, true).is_err());
        assert!(host.map(&file, 0, 0x20000, 0, true).is_err());
    }

    // Breaks if entries are torn or operations lost.
    #[test]
    fn entries_and_atomics() {
        let (_file, mut host) = host();
        host.publish(0x10010, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("published");
        let mut bytes = [0; 8];
        host.read(0x10010, &mut bytes).expect("read");
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(host.update(0x10010, &mut |old| old + 1), Ok(u64::from_le_bytes(bytes)));
        assert!(host.update(0x10014, &mut |old| old).is_err(), "not aligned");
    }
}
