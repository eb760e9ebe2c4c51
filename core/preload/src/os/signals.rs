//! Blocked signals, and the program's actions on them.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::Duration;

use libc::sigset_t;

use super::clock::timespec;
use super::deferral;

/// All signals are blocked in this thread, until it is dropped: then the handlers of those that came run.
pub struct BlockedSignals {
    before: sigset_t,
}

impl BlockedSignals {
    /// Blocks all signals; those that the C library uses itself, for cancellation, are never among them.
    pub fn all() -> BlockedSignals {
        let mut before = deferral::block_all();
        // The program lets those through that wait for the end of a call. SAFETY: a set begins with a word, for all signals.
        unsafe {
            let mask = (&raw mut before).cast::<u64>();
            mask.write_unaligned(mask.read_unaligned() & !deferral::take());
        }
        BlockedSignals { before }
    }

    /// The mask that the program has set.
    pub fn before(&self) -> &sigset_t {
        &self.before
    }

    /// Whether a signal is pending whose handler ends a blocking call. `restarts`: the call is one that SA_RESTART
    /// restarts.
    pub fn interrupts(&self, restarts: bool) -> bool {
        let mut pending = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: the set is writable.
        unsafe { libc::sigpending(pending.as_mut_ptr()) };
        (1..=libc::SIGRTMAX()).any(|n| {
            // SAFETY: both sets are initialised.
            let waits =
                unsafe { libc::sigismember(pending.as_ptr(), n) == 1 && libc::sigismember(&self.before, n) == 0 };
            waits && ends_calls(n, restarts)
        })
    }
}

impl BlockedSignals {
    /// Every signal that the program lets through, none of those that it has blocked.
    pub fn let_through(&self) -> sigset_t {
        let mut set = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: the sets are writable, and readable.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for n in (1..=libc::SIGRTMAX()).filter(|n| libc::sigismember(&self.before, *n) == 1) {
                libc::sigdelset(&mut set, n);
            }
            set
        }
    }

    /// Sleeps for so long, or until a signal comes that the program lets through: its handler then never runs.
    pub fn take(&self, limit: Duration) -> Option<c_int> {
        let (set, limit) = (self.let_through(), timespec(limit));
        // SAFETY: a readable set and a valid time.
        let signal = unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &limit) };
        (signal > 0).then_some(signal)
    }
}

/// Whether the signal is one that requests the end of a process, and the program does not ignore it.
pub fn requests_end(signal: c_int) -> bool {
    let ends = matches!(signal, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM);
    ends && action_of(signal).is_some_and(|action| action.sa_sigaction != libc::SIG_IGN)
}

fn action_of(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the struct is writable.
    let rc = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all-zero is valid, too.
    (rc == 0).then(|| unsafe { action.assume_init() })
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        deferral::restore(&self.before);
    }
}

/// Whether the signal has a handler, and one after which the call is not restarted.
fn ends_calls(signal: c_int, restarts: bool) -> bool {
    action_of(signal).is_some_and(|action| {
        let handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        handled && (!restarts || action.sa_flags & libc::SA_RESTART == 0)
    })
}
