//! `brk`: the program's own end of data. The process's is the C library's.

use std::sync::Mutex;

/// The most that a program gets this way; allocators then use `mmap`. Arbitrary. Only addresses are taken.
const ROOM: u64 = 1 << 30;
const PAGE: u64 = 4096;

/// Invariant: low <= end <= low + [`ROOM`].
struct Heap {
    low: u64,
    end: u64,
}

static HEAP: Mutex<Heap> = Mutex::new(Heap { low: 0, end: 0 });

/// The system call: sets the end if it can, and returns it.
pub(crate) fn set_end(to: u64) -> i64 {
    let mut heap = HEAP.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if heap.low == 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping.
        let low = unsafe { libc::mmap(std::ptr::null_mut(), ROOM as usize, libc::PROT_NONE, flags, -1, 0) };
        if low == libc::MAP_FAILED {
            return 0;
        }
        *heap = Heap { low: low as u64, end: low as u64 };
    }
    let Heap { low, end } = *heap;
    if (low..=low + ROOM).contains(&to) {
        let (old, new) = (end.next_multiple_of(PAGE), to.next_multiple_of(PAGE));
        let done = match old.cmp(&new) {
            std::cmp::Ordering::Less => {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: within the mapping, and not in use yet.
                unsafe { libc::mprotect(old as *mut _, (new - old) as usize, access) == 0 }
            }
            std::cmp::Ordering::Greater => {
                // Memory that the program takes again has to be zero. SAFETY: within the mapping; the program gives it up.
                unsafe { libc::madvise(new as *mut _, (old - new) as usize, libc::MADV_DONTNEED) == 0 }
            }
            std::cmp::Ordering::Equal => true,
        };
        if done {
            heap.end = to;
        }
    }
    heap.end as i64
}

/// Makes a fork while no thread changes the heap: the child has this thread only.
pub(crate) fn unchanged<T>(fork: impl FnOnce() -> T) -> T {
    let _heap = HEAP.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    fork()
}
