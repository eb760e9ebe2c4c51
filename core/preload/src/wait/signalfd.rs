//! Signals in a wait that is made of several calls: it must end as the one blocking call that it stands for would, with
//! EINTR or, after handlers with SA_RESTART, not at all. `ppoll` always ends with EINTR and does not report the signal.
//! So signals are blocked during such a wait, and checked before their handlers run.
//!
//! The process has as many descriptors for signals as threads have ever waited in this way at once, like
//! [slots](super::slots). The kernel reports to the thread that polls one its own signals and those of the process, so
//! any thread may use any of them.

use std::ffi::c_int;

use libc::{pollfd, sigset_t};
use parking_lot::Mutex;

use super::{Limit, Waited};
use crate::os::clock::timespec;
use crate::os::own;
use crate::os::per_process::PerProcess;
use crate::os::poll;
use crate::os::signals::BlockedSignals;
use crate::os::uses;

/// The kernel's set of signals, the first bytes of the C library's.
const SIGSET_BYTES: usize = 8;

fn kernel_set(set: &sigset_t) -> [u8; SIGSET_BYTES] {
    // SAFETY: the set is longer, and any bytes are valid.
    unsafe { std::ptr::from_ref(set).cast::<[u8; SIGSET_BYTES]>().read_unaligned() }
}

/// A signalfd, and the signals that it reports.
struct SignalFd {
    fd: c_int,
    wanted: [u8; SIGSET_BYTES],
}

static UNUSED: PerProcess<Unused> = PerProcess::new();

/// The signalfds of a process with which no thread waits.
#[derive(Default)]
struct Unused(Mutex<Vec<SignalFd>>);

fn unused() -> &'static Unused {
    UNUSED.get_or_make(Unused::default)
}

/// In a forked child: the signalfds are its parent's.
pub(super) fn after_fork_child() {
    UNUSED.forget();
}

/// Closes the signalfds with which no thread waits. Returns whether there were any.
pub(super) fn give_back() -> bool {
    // A handler that waits would need the lock, too.
    let _blocked_signals = BlockedSignals::all();
    let closed = std::mem::take(&mut *unused().0.lock());
    closed.iter().for_each(|signals| own::discard(signals.fd));
    !closed.is_empty()
}

/// A signalfd that the calling thread waits with. Drop returns it, also if the thread is cancelled while it waits.
struct InUse(SignalFd);

impl InUse {
    /// One that reports `wanted`. `None` without a descriptor for it.
    ///
    /// Prefers one that does already: the kernel wakes all threads of the process that wait on signalfds when one of
    /// those changes.
    fn take(wanted: &sigset_t) -> Option<InUse> {
        let set = kernel_set(wanted);
        let found = {
            let mut unused = unused().0.lock();
            let at = unused.iter().position(|one| one.wanted == set).or_else(|| unused.len().checked_sub(1));
            at.map(|at| unused.swap_remove(at))
        };
        match found {
            Some(one) if one.wanted == set => Some(InUse(one)),
            Some(one) => {
                // SAFETY: a descriptor of this kind, and a readable set.
                unsafe { libc::signalfd(one.fd, wanted, 0) };
                Some(InUse(SignalFd { wanted: set, ..one }))
            }
            None if uses::is_over() => None,
            None => {
                // SAFETY: the set is readable.
                let fd = own::keep(|| unsafe { libc::signalfd(-1, wanted, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) })?;
                Some(InUse(SignalFd { fd, wanted: set }))
            }
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let InUse(SignalFd { fd, wanted }) = *self;
        unused().0.lock().push(SignalFd { fd, wanted });
    }
}

/// Blocks until `fd` has one of `events`, as a blocking call does that restarts.
pub(super) fn poll(fd: c_int, events: i16, limit: Limit) -> Waited {
    let blocked_signals = BlockedSignals::all();
    let signals = InUse::take(&blocked_signals.let_through());
    let number = signals.as_ref().map_or(-1, |InUse(signals)| signals.fd);
    let mut fds = [pollfd { fd, events, revents: 0 }, pollfd { fd: number, events: libc::POLLIN, revents: 0 }];
    // Without a descriptor for signals, they are checked from time to time.
    let step = timespec(std::time::Duration::from_millis(50));
    let time = if signals.is_some() { std::ptr::null() } else { std::ptr::from_ref(&step) };
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
