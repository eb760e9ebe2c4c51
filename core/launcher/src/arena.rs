//! Memory for a process that lives for less than a millisecond: taken from one array, and hardly ever given back.
//!
//! The C library's allocator makes six system calls, touches four pages, and executes a third of all instructions of a
//! start with `netacc_run`.

#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A start needs a tenth of it. The system serves allocations that do not fit.
const BYTES: usize = 64 << 10;

/// The alignment of all allocations in the array. Of more, the system takes care.
const ALIGNMENT: usize = 16;

#[repr(align(16))]
struct Memory(UnsafeCell<[u8; BYTES]>);

/// An allocator, see the [module](self).
///
/// The counter lies before the array, so that it shares the page of the first allocations.
#[repr(C)]
pub struct Arena {
    /// The bytes that are taken; those behind are free. More than [`BYTES`] once an allocation did not fit.
    used: AtomicUsize,
    memory: Memory,
}

// SAFETY: the array is touched only through allocations, and these do not overlap: each takes its bytes by an atomic
// change of `used`.
unsafe impl Sync for Arena {}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Arena {
    /// An empty one.
    pub const fn new() -> Self {
        Self { used: AtomicUsize::new(0), memory: Memory(UnsafeCell::new([0; BYTES])) }
    }

    fn start(&self) -> *mut u8 {
        self.memory.0.get().cast()
    }

    /// The place of an allocation in the array, if it is in it.
    fn place(&self, pointer: *mut u8) -> Option<usize> {
        Some((pointer as usize).wrapping_sub(self.start() as usize)).filter(|place| *place < BYTES)
    }

    /// Takes bytes for an allocation, if they fit.
    fn take(&self, size: usize) -> Option<*mut u8> {
        let len = taken(size).filter(|len| *len <= BYTES)?;
        // The first access is a write: to read first would cost a page fault more.
        let place = self.used.fetch_add(len, Ordering::Relaxed);
        // SAFETY: the place is in the array.
        (place <= BYTES - len).then(|| unsafe { self.start().add(place) })
    }

    /// Changes the size of the newest allocation. Returns whether it is the newest, and fits.
    fn resize(&self, place: usize, old: usize, new: usize) -> bool {
        let end = |size| taken(size)?.checked_add(place).filter(|end| *end <= BYTES);
        let (Some(old), Some(new)) = (end(old), end(new)) else { return false };
        self.used.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// What an allocation of this size takes.
fn taken(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(ALIGNMENT)
}

// SAFETY: allocations lie in the array, apart from each other and aligned, or are the system's.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let ours = if layout.align() <= ALIGNMENT { self.take(layout.size()) } else { None };
        // SAFETY: passed on.
        ours.unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.place(pointer) {
            Some(place) => {
                self.resize(place, layout.size(), 0);
            }
            // SAFETY: passed on; the system has allocated it.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(place) = self.place(pointer) else {
            // SAFETY: passed on; the system has allocated it.
            return unsafe { System.realloc(pointer, layout, new_size) };
        };
        if new_size <= layout.size() || self.resize(place, layout.size(), new_size) {
            return pointer;
        }
        // SAFETY: the caller's size is valid with this alignment.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !new.is_null() {
            // SAFETY: two allocations, of which the old one is the shorter.
            unsafe { copy_nonoverlapping(pointer, new, layout.size()) };
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a power of two")
    }

    #[test]
    fn allocations_are_aligned_and_apart() {
        let arena = Arena::new();
        // SAFETY: no size is zero.
        let [a, b, c] = [(1, 1), (8, 8), (3, 16)].map(|(size, align)| unsafe { arena.alloc(layout(size, align)) });
        assert_eq!([a, b, c].map(|pointer| arena.place(pointer)), [Some(0), Some(16), Some(32)]);
    }

    #[test]
    fn the_newest_allocation_grows_in_place_and_is_given_back() {
        let arena = Arena::new();
        // SAFETY: the layouts are those of the allocations, and no size is zero.
        unsafe {
            let old = arena.alloc(layout(8, 8));
            let new = arena.alloc(layout(8, 8));
            assert_eq!(arena.realloc(new, layout(8, 8), 100), new);
            old.write(7);
            let moved = arena.realloc(old, layout(8, 8), 9);
            assert_eq!((arena.place(moved), moved.read()), (Some(128), 7));
            arena.dealloc(moved, layout(9, 8));
            assert_eq!(arena.alloc(layout(1, 1)), moved);
        }
    }

    #[test]
    fn what_does_not_fit_is_the_systems() {
        let arena = Arena::new();
        // SAFETY: the layouts are those of the allocations, and no size is zero.
        unsafe {
            let first = arena.alloc(layout(BYTES - 16, 1));
            let large = arena.alloc(layout(17, 1));
            let page = arena.alloc(layout(1, 4096));
            assert_eq!((arena.place(first), arena.place(large), arena.place(page)), (Some(0), None, None));
            large.write(7);
            let larger = arena.realloc(large, layout(17, 1), BYTES);
            assert_eq!(larger.read(), 7);
            arena.dealloc(larger, layout(BYTES, 1));
            arena.dealloc(page, layout(1, 4096));
            let grown = arena.realloc(first, layout(BYTES - 16, 1), BYTES + 1);
            assert_eq!(arena.place(grown), None);
            arena.dealloc(grown, layout(BYTES + 1, 1));
        }
    }
}
