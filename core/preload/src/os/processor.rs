//! The processor on which a thread runs.

/// The calling thread's processor. It may be moved at any time.
#[inline]
pub fn current() -> Option<u32> {
    // SAFETY: no pointers. The C library reads what the kernel keeps up to date in the thread's memory.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}
