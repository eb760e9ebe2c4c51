//! Threads that this crate starts in the user's program.

/// Calls `f` with all signals blocked. A thread that it starts then has them blocked permanently: the signals are the
/// program's.
pub(crate) fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the first set is filled, and the second written, by the calls; the mask is restored.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        result
    }
}
