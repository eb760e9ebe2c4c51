//! Our own doorbell page: one flag for each completion queue, which peers read before they write a descriptor, and a
//! word that shows whether we still live.

#![expect(unsafe_code, reason = "a view of the shared page as atomics")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::layout::{Doorbell, KernelOperations, DOORBELL_BYTES};
use crate::map::FileMap;
use crate::sync::AtomicU32;
use crate::sys;

/// The writable side of the page.
pub(crate) struct OwnDoorbell(FileMap);

impl OwnDoorbell {
    /// A fresh page, and the descriptor from which peers can map it for reading only.
    pub(crate) fn new() -> io::Result<(OwnDoorbell, OwnedFd)> {
        let fd = sys::memfd(c"netacc-doorbell", DOORBELL_BYTES as u64)?;
        let map = FileMap::new(fd.as_raw_fd(), DOORBELL_BYTES)?;
        sys::seal(fd.as_raw_fd(), true)?;
        Ok((OwnDoorbell(map), fd))
    }

    /// Non-zero while a thread sleeps on the channel of `cq`.
    #[inline]
    pub(crate) fn armed(&self, cq: usize) -> &AtomicU32 {
        // SAFETY: `Doorbell` is atomics only and exactly one page.
        let page: &Doorbell = unsafe { self.0.view() };
        &page.armed[cq].0
    }

    /// The kernel operations of this process.
    #[inline]
    pub(crate) fn kernel_operations(&self) -> &KernelOperations {
        // SAFETY: as in `armed`.
        let page: &Doorbell = unsafe { self.0.view() };
        &page.kernel_operations
    }

    /// The word in which the kernel records our end.
    pub(crate) fn life(&self) -> &AtomicU32 {
        // SAFETY: as in `armed`.
        let page: &Doorbell = unsafe { self.0.view() };
        &page.life.0
    }
}
