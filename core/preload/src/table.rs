//! The table of our descriptors: one slot per descriptor number, empty for descriptors that the library does not
//! handle.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::os::actions;
use crate::os::limits::MAX_FDS;
use crate::os::place::{Place, Reading};
pub use crate::socket::Entry;
use crate::vfork;

/// Mark of a stream that has no descriptor.
pub const NO_FD: u32 = u32::MAX;

/// Slots of one chunk. Chunks are made when a descriptor in them becomes ours, because static memory for all of them
/// would be 8 MiB of `RLIMIT_DATA`.
const CHUNK: usize = 1024;

type Chunk = [Place<Entry>; CHUNK];

/// Not `OnceLock`: a thread that makes a chunk while another one forks would hold it for ever in the child.
static TABLE: [AtomicPtr<Chunk>; MAX_FDS / CHUNK] = [const { AtomicPtr::new(null_mut()) }; MAX_FDS / CHUNK];

/// One bit per descriptor that has an entry. It, or the [`place`], is checked first: a descriptor that is not ours must not cause
/// the first use of thread-local storage, which allocates, because allocators themselves read files while they start.
pub(crate) static OURS: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];

/// One bit per descriptor whose bytes the library moves or may move later: [`OURS`] without the connections that
/// [stay in the kernel for good](Entry::is_moved). Programs with changed code read and write those without the library. Calls on
/// higher descriptors all come to the library.
pub(crate) static MOVED: [AtomicU64; MOVED_FDS / 64] = [const { AtomicU64::new(0) }; MOVED_FDS / 64];

/// How many descriptors have a bit in [`MOVED`]. Arbitrary: static memory counts as data of the program (RLIMIT_DATA), touched or
/// not.
pub(crate) const MOVED_FDS: usize = 1 << 14;

/// Whether the descriptor has an entry. It may be gone at once.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    OURS.get(fd as usize / 64).is_some_and(|w| w.load(Ordering::Acquire) >> (fd % 64) & 1 != 0)
}

/// Whether [`get`] would find an entry. It may be gone at once.
#[inline]
pub fn has(fd: c_int) -> bool {
    is_ours(fd) && !vfork::has_changed(fd)
}

/// The slot of a descriptor, if its chunk has been made.
#[inline]
fn slot(fd: c_int) -> Option<&'static Place<Entry>> {
    let fd = fd as usize;
    // SAFETY: null, or a chunk that is never freed.
    let chunk = unsafe { TABLE.get(fd / CHUNK)?.load(Ordering::Acquire).as_ref()? };
    Some(&chunk[fd % CHUNK])
}

/// Above all numbers that have ever been in the table. RLIMIT_NOFILE is no bound: it may have been lowered since.
static END: AtomicUsize = AtomicUsize::new(0);

/// A number above those of all descriptors of ours.
pub fn end() -> c_int {
    END.load(Ordering::Acquire) as c_int
}

/// The slot of a descriptor. Makes its chunk if there is none yet; `None` beyond [`MAX_FDS`].
fn slot_or_new(fd: c_int) -> Option<&'static Place<Entry>> {
    let place = TABLE.get(fd as usize / CHUNK)?;
    if place.load(Ordering::Acquire).is_null() {
        let new = Box::into_raw(Box::new(std::array::from_fn(|_| Place::empty())));
        if place.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: just made, and not published.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    slot(fd)
}

/// The place of the entry of a descriptor, if it has one. It may be gone at once.
#[inline]
pub fn place(fd: c_int) -> Option<&'static Place<Entry>> {
    slot(fd).filter(|place| !place.is_empty())
}

/// The entry of `fd`, which is in this place. As [`get`].
#[inline]
pub fn read(fd: c_int, place: &'static Place<Entry>) -> Option<Reading<Entry>> {
    if vfork::has_changed(fd) {
        return None;
    }
    place.read()
}

/// The entry of `fd`, if it is ours. The reading keeps it alive; clone the Arc before blocking.
#[inline]
pub fn get(fd: c_int) -> Option<Reading<Entry>> {
    if is_ours(fd) {
        find(fd)
    } else {
        None
    }
}

/// As [`get`], of a descriptor for which [`is_ours`] was true.
#[inline]
pub fn find(fd: c_int) -> Option<Reading<Entry>> {
    if vfork::has_changed(fd) {
        return None;
    }
    slot(fd)?.read()
}

/// The entry of `fd` as an owned reference.
pub fn get_full(fd: c_int) -> Option<Arc<Entry>> {
    if !is_ours(fd) || vfork::has_changed(fd) {
        return None;
    }
    slot(fd)?.read().map(|entry| entry.clone())
}

/// Inserts an entry; returns the old one. A child that shares this table, but not the descriptors, only records that
/// its descriptor has changed.
pub fn insert(fd: c_int, entry: Arc<Entry>) -> Option<Arc<Entry>> {
    if vfork::is_child() {
        vfork::record_changed(fd);
        return None;
    }
    // Before the library reads any memory that a program passes with a descriptor of ours.
    actions::install();
    let is_moved = entry.is_moved();
    let slot = slot_or_new(fd)?;
    // Set before the entry is there and cleared after: a call that comes here needlessly is made in the kernel.
    if is_moved {
        set(&MOVED, fd);
    }
    let old = slot.swap(Some(entry));
    if END.load(Ordering::Acquire) <= fd as usize {
        END.fetch_max(fd as usize + 1, Ordering::AcqRel);
    }
    set(&OURS, fd);
    if !is_moved {
        clear(&MOVED, fd);
    }
    old
}

/// Removes the entry; see [`insert`] for a child that shares this table.
pub fn remove(fd: c_int) -> Option<Arc<Entry>> {
    if !is_ours(fd) {
        return None;
    }
    if vfork::is_child() {
        vfork::record_changed(fd);
        return None;
    }
    clear(&OURS, fd);
    clear(&MOVED, fd);
    slot(fd)?.swap(None)
}

/// Sets a bit, without an atomic change where it is set: an entry often replaces another one.
fn set(bits: &[AtomicU64], fd: c_int) {
    if let Some(word) = bits.get(fd as usize / 64).filter(|word| word.load(Ordering::Acquire) >> (fd % 64) & 1 == 0) {
        word.fetch_or(1 << (fd % 64), Ordering::AcqRel);
    }
}

/// As [`set`].
fn clear(bits: &[AtomicU64], fd: c_int) {
    if let Some(word) = bits.get(fd as usize / 64).filter(|word| word.load(Ordering::Acquire) >> (fd % 64) & 1 != 0) {
        word.fetch_and(!(1 << (fd % 64)), Ordering::AcqRel);
    }
}

/// All descriptors of ours, in order.
pub fn entries() -> impl Iterator<Item = (c_int, Arc<Entry>)> {
    let words = OURS.iter().take((end() as usize).div_ceil(64)).enumerate();
    let numbers = words.filter(|(_, w)| w.load(Ordering::Acquire) != 0).flat_map(|(i, _)| i * 64..i * 64 + 64);
    numbers.filter_map(|fd| Some((fd as c_int, get_full(fd as c_int)?)))
}

#[cfg(test)]
mod tests {
    use netacc_proto::Reason;

    use super::*;
    use crate::socket::{Beginning, Listener, Socket};

    fn is_moved(fd: c_int) -> bool {
        MOVED[fd as usize / 64].load(Ordering::Acquire) >> (fd % 64) & 1 != 0
    }

    // Breaks if programs with changed code would read or write a connection without the library that it may move later:
    // this process has no runtime, so nothing is certain.
    #[test]
    fn the_bytes_of_all_sockets_are_moved_until_it_is_certain_that_they_are_not() {
        const FD: c_int = 4_000;
        let plain = Socket::new(FD, Beginning::in_kernel(Reason::Disabled), false);
        for entry in [Entry::Idle(Listener::new(libc::AF_INET, false)), Entry::Stream(plain)] {
            insert(FD, Arc::new(entry));
            assert!(is_ours(FD) && is_moved(FD) && !is_moved(FD + 1));
        }
        remove(FD);
        assert!(!is_ours(FD) && !is_moved(FD));
    }
}
