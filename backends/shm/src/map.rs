//! Mappings. Address ranges are reserved once and only ever replaced, so that a thread that lost a race with the
//! end of a pair touches zeros, never a hole.
//!
//! Invariants:
//! * a [`Range`] stays mapped, readable and writable, until the last [`Mapping`] of it and its pool slot are gone;
//! * a segment is mapped over a range (`MAP_FIXED`) only while no [`Mapping`] of that range exists;
//! * the last clone of a [`Mapping`] (regions hold clones) puts anonymous zero memory back, which frees the pages.

#![expect(unsafe_code, reason = "raw mappings of memory shared with peers")]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::layout::{Doorbell, DOORBELL_BYTES};

/// A reserved address range: room for a segment and, behind it, for the peer's doorbell page.
#[derive(Debug)]
pub(crate) struct Range {
    base: NonNull<u8>,
    segment_bytes: u64,
    busy: AtomicBool,
}

// SAFETY: an address and a flag; the memory there is only accessed as atomics or by bounded copies.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl Range {
    /// Reserves room for `segment_bytes`, halving down to `least` until it fits the address space.
    pub(crate) fn reserve(mut segment_bytes: u64, least: u64) -> io::Result<Range> {
        loop {
            match map(std::ptr::null_mut(), total(segment_bytes), ANON, -1) {
                Ok(base) => return Ok(Range { base, segment_bytes, busy: AtomicBool::new(false) }),
                Err(e) if segment_bytes <= least => return Err(e),
                Err(_) => segment_bytes /= 2,
            }
        }
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// First byte of the segment.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Whether a segment is, or is about to be, mapped here.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// The page where the peer's doorbell is mapped.
    pub(crate) fn doorbell(&self) -> NonNull<Doorbell> {
        // SAFETY: the range has `total(segment_bytes)` bytes, so the page lies inside.
        unsafe { self.base.add(self.segment_bytes as usize) }.cast()
    }

    /// Maps a sealed segment of `bytes` and the peer's doorbell page here.
    ///
    /// # Errors
    /// If the range is busy, or the kernel refuses.
    pub(crate) fn attach(self: &Arc<Range>, segment: RawFd, bytes: u64, doorbell: RawFd) -> io::Result<Arc<Mapping>> {
        if bytes > self.segment_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        // From here on dropping `mapping` restores the range, also on errors.
        let mapping = Arc::new(Mapping { range: self.clone() });
        map(self.base.as_ptr(), bytes as usize, Kind { fixed: true, shared: true, write: true }, segment)?;
        let page = self.doorbell().as_ptr().cast();
        map(page, DOORBELL_BYTES, Kind { fixed: true, shared: true, write: false }, doorbell)?;
        Ok(mapping)
    }

    /// Replaces everything here with zeros, freeing the pages. For a forked child.
    pub(crate) fn forget(&self) {
        // The kernel can only refuse because it has no memory, and then the old mapping stays: a leak, not an error.
        let _ = map(self.base.as_ptr(), total(self.segment_bytes), Kind { fixed: true, ..ANON }, -1);
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: we reserved exactly this range; no mapping refers to it any more (they hold the Arc).
        unsafe { libc::munmap(self.base.as_ptr().cast(), total(self.segment_bytes)) };
    }
}

/// A live segment in a range. Regions keep a clone.
#[derive(Debug)]
pub(crate) struct Mapping {
    range: Arc<Range>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.range.forget();
        self.range.busy.store(false, Ordering::Release);
    }
}

/// A file mapped for the life of the process's device: the rendezvous table, our own doorbell page.
#[derive(Debug)]
pub(crate) struct FileMap {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `Range`.
unsafe impl Send for FileMap {}
// SAFETY: as for `Range`.
unsafe impl Sync for FileMap {}

impl FileMap {
    pub(crate) fn new(fd: RawFd, bytes: usize) -> io::Result<FileMap> {
        let base = map(std::ptr::null_mut(), bytes, Kind { fixed: false, shared: true, write: true }, fd)?;
        Ok(FileMap { base, bytes })
    }

    /// Zeroed memory, for tests.
    #[cfg(test)]
    pub(crate) fn anonymous(bytes: usize) -> FileMap {
        let base = map(std::ptr::null_mut(), bytes, ANON, -1).expect("memory for a test");
        FileMap { base, bytes }
    }

    /// The structure at the start.
    ///
    /// # Safety
    /// `T` consists of atomics only and fits.
    pub(crate) unsafe fn view<T>(&self) -> &T {
        debug_assert!(std::mem::size_of::<T>() <= self.bytes, "views fit their file");
        // SAFETY: mapped for our life, page-aligned, large enough; atomics tolerate concurrent writers.
        unsafe { self.base.cast::<T>().as_ref() }
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: we mapped exactly this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Returns memory of a mapped segment to the system: it reads as zero afterwards.
///
/// # Safety
/// `base + from .. + len` lies in a live mapping of a segment, and nobody needs the bytes there.
pub(crate) unsafe fn punch(base: NonNull<u8>, from: u64, len: u64) -> io::Result<()> {
    // SAFETY: by the caller.
    let rc = unsafe { libc::madvise(base.as_ptr().add(from as usize).cast(), len as usize, libc::MADV_REMOVE) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[derive(Clone, Copy)]
struct Kind {
    fixed: bool,
    shared: bool,
    write: bool,
}

/// Reserved memory: zeros that cost nothing until touched. Shared, because private writable memory counts against
/// `RLIMIT_DATA` even where it is not touched.
const ANON: Kind = Kind { fixed: false, shared: true, write: true };

fn total(segment_bytes: u64) -> usize {
    segment_bytes as usize + DOORBELL_BYTES
}

fn map(at: *mut u8, bytes: usize, kind: Kind, fd: RawFd) -> io::Result<NonNull<u8>> {
    let mut flags = libc::MAP_NORESERVE;
    flags |= if kind.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    flags |= if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    flags |= if kind.fixed { libc::MAP_FIXED } else { 0 };
    let prot = libc::PROT_READ | if kind.write { libc::PROT_WRITE } else { 0 };
    // SAFETY: `MAP_FIXED` is used on ranges that this module reserved itself, so nothing foreign is replaced.
    let p = unsafe { libc::mmap(at.cast(), bytes, prot, flags, fd, 0) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(p.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}
