//! Registered memory that a peer may write at any time.
//!
//! There is never a `&[u8]` over it: bytes are copied in and out, words are atomics. A region keeps its backing alive,
//! so a copy after the device has released it reads stale bytes and never faults.

#![expect(unsafe_code, reason = "raw access to memory shared with peers is this module's whole purpose")]

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use crate::RemoteKey;

/// A bounded range of memory, shared with peers or with hardware.
#[derive(Clone)]
pub struct Memory {
    ptr: NonNull<u8>,
    len: usize,
    _backing: Arc<dyn Any + Send + Sync>,
}

// SAFETY: all access is by volatile-equivalent copies and atomics; the backing is kept alive by the Arc.
unsafe impl Send for Memory {}
// SAFETY: as above; concurrent copies may tear, which the protocol rules out by credit.
unsafe impl Sync for Memory {}

/// Zeroed bytes. The allocator is asked for no more than its own alignment: for a greater one it would clear the bytes
/// itself, and so take memory for all of them.
struct Heap {
    allocated: NonNull<u8>,
    layout: Layout,
}

/// The alignment of regions, and that of the allocator.
const LINE: usize = 64;
const ALLOCATED: usize = 16;

impl Heap {
    fn zeroed(len: usize) -> Heap {
        let layout = Layout::from_size_align(len + LINE, ALLOCATED).expect("a length that can be allocated");
        // SAFETY: the layout has a length.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) });
        Heap { allocated: allocated.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// The first aligned byte.
    fn start(&self) -> NonNull<u8> {
        let skipped = self.allocated.align_offset(LINE);
        debug_assert!(skipped < LINE, "the allocation is longer by a line");
        // SAFETY: within the allocation.
        unsafe { self.allocated.add(skipped) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) };
    }
}

// SAFETY: the bytes are reached through `Memory` alone, which is Sync.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Memory {
    /// # Safety
    /// `ptr..ptr + len` stays mapped, readable and writable until the last clone of `backing` is dropped, and no
    /// Rust reference to it exists meanwhile. `ptr` is aligned to 64 bytes.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize, backing: Arc<dyn Any + Send + Sync>) -> Memory {
        debug_assert_eq!(ptr.as_ptr() as usize % 64, 0, "regions are cache-line aligned");
        Memory { ptr, len, _backing: backing }
    }

    /// Zeroed memory of this process, for in-memory devices and tests. A page of a long region takes no memory before it is
    /// written to.
    ///
    /// # Panics
    /// If there is no such memory.
    pub fn heap(len: usize) -> Memory {
        let heap = Heap::zeroed(len);
        let ptr = heap.start();
        // SAFETY: the allocation lives as long as the Arc, and is reached through raw pointers only.
        unsafe { Memory::from_raw(ptr, len, Arc::new(heap)) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it, or `None` if it does not fit.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Memory> {
        self.check(offset, len)?;
        // SAFETY: in bounds by the check.
        let ptr = unsafe { self.ptr.add(offset) };
        Some(Memory { ptr, len, _backing: self._backing.clone() })
    }

    /// Copies `src` in at `offset`. `false`, and nothing copied, if it does not fit.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: usize, src: &[u8]) -> bool {
        // SAFETY: `src` is a valid slice; bounds of the destination are checked inside.
        unsafe { self.write_from(offset, src.as_ptr(), src.len()) }
    }

    /// Copies bytes at `offset` out into `dst`. `false`, and nothing copied, if they are out of bounds.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> bool {
        // SAFETY: `dst` is a valid slice; bounds of the source are checked inside.
        unsafe { self.read_into(offset, dst.as_mut_ptr(), dst.len()) }
    }

    /// As [`write`](Memory::write), from a caller's buffer.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[inline]
    #[must_use]
    pub unsafe fn write_from(&self, offset: usize, src: *const u8, len: usize) -> bool {
        if self.check(offset, len).is_none() {
            return false;
        }
        // SAFETY: both ranges are valid and distinct memory (a caller's buffer is never a region).
        unsafe { std::ptr::copy_nonoverlapping(src, self.ptr.as_ptr().add(offset), len) };
        true
    }

    /// As [`read`](Memory::read), into a caller's buffer.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[inline]
    #[must_use]
    pub unsafe fn read_into(&self, offset: usize, dst: *mut u8, len: usize) -> bool {
        if self.check(offset, len).is_none() {
            return false;
        }
        // SAFETY: both ranges are valid and distinct memory.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr().add(offset), dst, len) };
        true
    }

    /// Fills `len` bytes at `offset` with zeros. `false`, and nothing done, if they are out of bounds.
    #[must_use]
    pub fn zero(&self, offset: usize, len: usize) -> bool {
        if self.check(offset, len).is_none() {
            return false;
        }
        // SAFETY: in bounds by the check.
        unsafe { std::ptr::write_bytes(self.ptr.as_ptr().add(offset), 0, len) };
        true
    }

    /// Copies between two regions. `false` if either is out of bounds.
    #[must_use]
    pub fn copy_to(&self, offset: usize, to: &Memory, to_offset: usize, len: usize) -> bool {
        if self.check(offset, len).is_none() || to.check(to_offset, len).is_none() {
            return false;
        }
        // SAFETY: both in bounds; `copy` permits overlap.
        unsafe { std::ptr::copy(self.ptr.as_ptr().add(offset), to.ptr.as_ptr().add(to_offset), len) };
        true
    }

    /// The 64-bit word at `offset` (a multiple of 8), or `None` out of bounds.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        self.check(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: in bounds, aligned (base is 64-byte aligned), and only ever accessed atomically as a word.
        Some(unsafe { AtomicU64::from_ptr(self.ptr.as_ptr().add(offset).cast()) })
    }

    /// Address of a byte, for prefetching and for system calls that fill or drain a region.
    pub fn as_ptr(&self, offset: usize) -> Option<*mut u8> {
        self.check(offset, 0)?;
        // SAFETY: in bounds or one past the end.
        Some(unsafe { self.ptr.as_ptr().add(offset) })
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) -> Option<()> {
        (offset <= self.len && len <= self.len - offset).then_some(())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}

/// The data that a peer needs to write into a region. Travels in protocol messages: check it before use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RemoteRegion {
    /// The key.
    pub rkey: RemoteKey,
    /// Address or offset that stands for the region's first byte, as the device defines it.
    pub base: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A registered region of this process, or a window onto a peer's.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its bytes.
    pub memory: Memory,
    /// The peer's name for it. Offsets of [`Operation::Write`](crate::Operation) count from `remote.base`: the
    /// operation's `offset` is `remote.base + position within the region`.
    pub remote: RemoteRegion,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this process that are in memory.
    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        1024 * line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
    }

    /// Breaks if a simulation of a thousand hosts had all bytes of their rings in memory.
    #[test]
    fn long_regions_take_memory_where_they_are_written() {
        const LEN: usize = 1 << 30;
        let before = resident_bytes();
        let memory = Memory::heap(LEN);
        assert!(memory.write(LEN - 4, b"last"));
        let taken = resident_bytes().saturating_sub(before);
        assert!(taken < LEN / 4, "{taken} bytes");
        let mut read = [1; 8];
        assert!(memory.read(LEN - 8, &mut read));
        assert_eq!(&read, b"\0\0\0\0last");
    }

    #[test]
    fn regions_of_any_length_are_aligned_and_clear() {
        for len in (0..300).chain([4096, 100_000]) {
            let memory = Memory::heap(len);
            assert_eq!((memory.ptr.as_ptr() as usize % LINE, memory.len()), (0, len));
            let mut bytes = vec![1; len];
            assert!(memory.read(0, &mut bytes));
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
