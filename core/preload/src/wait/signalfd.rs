//! Signals in a wait that is made of several calls: it must end as the one blocking call that it stands for would, with
//! EINTR or, after handlers with SA_RESTART, not at all. `ppoll` always ends with EINTR and does not report the signal.
//! So signals are blocked during such a wait, and checked before their handlers run.

use std::cell::Cell;
use std::ffi::c_int;

use libc::{pollfd, sigset_t};

use super::{Limit, Waited};
use crate::os::clock::timespec;
use crate::os::own;
use crate::os::poll;
use crate::os::signals::BlockedSignals;

thread_local! {
    /// The thread's signalfd, made at its first wait of this kind, and the process generation it belongs to.
    static SIGNALS: Cell<(c_int, u32)> = const { Cell::new((-1, 0)) };
    /// The signals that it is for.
    static WANTED: Cell<[u8; SIGSET_BYTES]> = const { Cell::new([0; SIGSET_BYTES]) };
}

/// The kernel's set of signals, the first bytes of the C library's.
const SIGSET_BYTES: usize = 8;

fn kernel_set(set: &sigset_t) -> [u8; SIGSET_BYTES] {
    // SAFETY: the set is longer, and any bytes are valid.
    unsafe { std::ptr::from_ref(set).cast::<[u8; SIGSET_BYTES]>().read_unaligned() }
}

/// Has the thread's signalfd report `wanted`. Only if it does not already: the kernel wakes all threads of the process that
/// wait on signalfds when one of those changes.
fn set_wanted(signals: c_int, wanted: &sigset_t) {
    if WANTED.replace(kernel_set(wanted)) != kernel_set(wanted) {
        // SAFETY: a descriptor of this kind, and a readable set.
        unsafe { libc::signalfd(signals, wanted, 0) };
    }
}

/// Closes the thread's signalfd, if it has one. Returns whether it had one. Not to be called while the thread waits.
pub fn give_back() -> bool {
    let (fd, generation) = SIGNALS.replace((-1, 0));
    let had = fd >= 0 && generation == own::FORK_GENERATION.load(std::sync::atomic::Ordering::Relaxed);
    if had {
        own::discard(fd);
    }
    had
}

/// Blocks until `fd` has one of `events`, as a blocking call does that restarts.
pub fn poll(fd: c_int, events: i16, limit: Limit) -> Waited {
    let blocked_signals = BlockedSignals::all();
    let wanted = blocked_signals.let_through();
    let signals = own::of_thread(&SIGNALS, || {
        WANTED.set(kernel_set(&wanted));
        // SAFETY: the set is readable.
        own::keep(|| unsafe { libc::signalfd(-1, &wanted, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) })
    });
    let mut fds =
        [pollfd { fd, events, revents: 0 }, pollfd { fd: signals.unwrap_or(-1), events: libc::POLLIN, revents: 0 }];
    // Without a descriptor for signals, they are checked from time to time.
    let step = timespec(std::time::Duration::from_millis(50));
    let time = match signals {
        Some(signals) => {
            set_wanted(signals, &wanted);
            std::ptr::null()
        }
        None => std::ptr::from_ref(&step),
    };
    poll::wait(&mut fds, time, std::ptr::null());
    if blocked_signals.interrupts(limit.restarts()) {
        Waited::Interrupted
    } else {
        Waited::Again
    }
}

#[cfg(test)]
mod tests {
    use crate::os::signals::requests_end;
    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    const IDLE: Limit = Limit { deadline: None, idle: true };

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
    fn only_handlers_that_do_not_restart_interrupt_at_the_beginning() {
        let (one, two, three) = (libc::SIGRTMIN() + 1, libc::SIGRTMIN() + 2, libc::SIGRTMIN() + 3);
        handle(one, 0);
        handle(two, libc::SA_RESTART);
        handle(three, 0);
        // SAFETY: signals to this thread, all of which are handled.
        unsafe {
            let mut blocked = MaybeUninit::<sigset_t>::zeroed();
            libc::sigaddset(blocked.as_mut_ptr(), three);
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), std::ptr::null_mut());
            let blocked_signals = BlockedSignals::all();
            assert!(!blocked_signals.interrupts(IDLE.restarts()));
            libc::pthread_kill(libc::pthread_self(), three);
            assert!(!blocked_signals.interrupts(IDLE.restarts()), "the program has blocked it");
            libc::pthread_kill(libc::pthread_self(), two);
            assert!(!blocked_signals.interrupts(IDLE.restarts()), "restarts");
            assert!(blocked_signals.interrupts(Limit { idle: false, ..IDLE }.restarts()), "in the middle");
            libc::pthread_kill(libc::pthread_self(), one);
            assert!(blocked_signals.interrupts(IDLE.restarts()));
            drop(blocked_signals);
            assert!(!BlockedSignals::all().interrupts(IDLE.restarts()), "handled");
        }
    }
    // Breaks if a handler ran for a signal that was taken, or one that the program has blocked or ignores counted.
    #[test]
    fn signals_that_are_taken_run_no_handler() {
        static RUN: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count(_signal: c_int) {
            RUN.fetch_add(1, Ordering::SeqCst);
        }
        let (taken, blocked) = (libc::SIGRTMIN() + 4, libc::SIGRTMIN() + 5);
        // SAFETY: signals to this thread alone, all of which are handled or blocked.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = count as extern "C" fn(c_int) as usize;
            for signal in [taken, blocked, libc::SIGHUP] {
                assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
            }
            let mut set = MaybeUninit::<sigset_t>::zeroed();
            libc::sigaddset(set.as_mut_ptr(), blocked);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            let blocked_signals = BlockedSignals::all();
            for signal in [blocked, taken, libc::SIGHUP] {
                libc::pthread_kill(libc::pthread_self(), signal);
            }
            let first = blocked_signals.take(Duration::ZERO);
            let second = blocked_signals.take(Duration::ZERO);
            assert_eq!((first, second), (Some(libc::SIGHUP), Some(taken)));
            assert_eq!(blocked_signals.take(Duration::from_micros(1)), None, "the program has blocked it");
            drop(blocked_signals);
            assert_eq!(RUN.load(Ordering::SeqCst), 0);
            assert!(requests_end(libc::SIGHUP) && !requests_end(taken));
            action.sa_sigaction = libc::SIG_IGN;
            assert_eq!(libc::sigaction(libc::SIGHUP, &action, std::ptr::null_mut()), 0);
            assert!(!requests_end(libc::SIGHUP));
        }
    }
}
