//! Signals in a wait that is made of several calls: it must end as the one blocking call that it stands for would, with
//! EINTR or, after handlers with SA_RESTART, not at all. `ppoll` always ends with EINTR and does not say for which
//! signal. So signals are held back while such a wait does anything, and looked at before their handlers run.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{pollfd, sigset_t};

use super::{timespec, Waited};
use crate::{real, runtime};

/// All signals are blocked in this thread, until it is dropped: then the handlers of those that came run.
pub struct Held {
    before: sigset_t,
}

impl Held {
    /// Blocks all signals; those that the C library uses itself, for cancellation, are never among them.
    pub fn all() -> Held {
        let mut all = MaybeUninit::<sigset_t>::zeroed();
        let mut before = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: both sets are writable, and all-zero is the empty set.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Held { before: before.assume_init() }
        }
    }

    /// The mask that the program has set.
    pub fn before(&self) -> &sigset_t {
        &self.before
    }

    /// Whether a signal waits whose handler ends a blocking call.
    pub fn interrupts(&self) -> bool {
        let mut pending = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: the set is writable.
        unsafe { libc::sigpending(pending.as_mut_ptr()) };
        (1..=libc::SIGRTMAX()).any(|n| {
            // SAFETY: both sets are initialised.
            let waits =
                unsafe { libc::sigismember(pending.as_ptr(), n) == 1 && libc::sigismember(&self.before, n) == 0 };
            waits && ends_calls(n)
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set is readable.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// Whether the signal has a handler, and one after which calls are not restarted.
fn ends_calls(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the struct is writable, and all-zero is valid.
    let (rc, action) =
        unsafe { (libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()), action.assume_init()) };
    let handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    rc == 0 && handled && action.sa_flags & libc::SA_RESTART == 0
}

thread_local! {
    /// The thread's signalfd, made at its first wait of this kind, and the process generation it belongs to.
    static SIGNALS: Cell<(c_int, u32)> = const { Cell::new((-1, 0)) };
}

/// Blocks until `fd` has one of `events`, as a blocking call without a time limit does.
pub fn poll(fd: c_int, events: i16) -> Waited {
    let held = Held::all();
    // SAFETY: every signal that the program lets through, none of those that it has blocked.
    let wanted = unsafe {
        let mut set = MaybeUninit::<sigset_t>::zeroed();
        libc::sigfillset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for n in (1..=libc::SIGRTMAX()).filter(|n| libc::sigismember(&held.before, *n) == 1) {
            libc::sigdelset(&mut set, n);
        }
        set
    };
    let signals = runtime::of_thread(&SIGNALS, || {
        // SAFETY: the set is readable.
        runtime::keep(unsafe { libc::signalfd(-1, &wanted, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) })
    });
    let mut fds =
        [pollfd { fd, events, revents: 0 }, pollfd { fd: signals.unwrap_or(-1), events: libc::POLLIN, revents: 0 }];
    // Without a descriptor for signals they are looked for now and then.
    let step = timespec(std::time::Duration::from_millis(50));
    let limit = match signals {
        Some(signals) => {
            // SAFETY: a descriptor of this kind, and a readable set.
            unsafe { libc::signalfd(signals, &wanted, 0) };
            std::ptr::null()
        }
        None => std::ptr::from_ref(&step),
    };
    // SAFETY: two valid pollfds.
    unsafe { real::ppoll(fds.as_mut_ptr(), 2, limit, std::ptr::null()) };
    if held.interrupts() {
        Waited::Interrupted
    } else {
        Waited::Again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn ignore(_signal: c_int) {}

    fn handle(signal: c_int, flags: c_int) {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a valid action: no flags but these, an empty mask, a handler that does nothing.
        unsafe {
            (*action.as_mut_ptr()).sa_sigaction = ignore as extern "C" fn(c_int) as usize;
            (*action.as_mut_ptr()).sa_flags = flags;
            assert_eq!(libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut()), 0);
        }
    }

    #[test]
    fn only_handlers_that_do_not_restart_interrupt() {
        let (one, two, three) = (libc::SIGRTMIN() + 1, libc::SIGRTMIN() + 2, libc::SIGRTMIN() + 3);
        handle(one, 0);
        handle(two, libc::SA_RESTART);
        handle(three, 0);
        // SAFETY: signals to this thread, all of which are handled.
        unsafe {
            let mut blocked = MaybeUninit::<sigset_t>::zeroed();
            libc::sigaddset(blocked.as_mut_ptr(), three);
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), std::ptr::null_mut());
            let held = Held::all();
            assert!(!held.interrupts());
            libc::pthread_kill(libc::pthread_self(), three);
            assert!(!held.interrupts(), "the program has blocked it");
            libc::pthread_kill(libc::pthread_self(), two);
            assert!(!held.interrupts(), "restarts");
            libc::pthread_kill(libc::pthread_self(), one);
            assert!(held.interrupts());
            drop(held);
            assert!(!Held::all().interrupts(), "handled");
        }
    }
}
