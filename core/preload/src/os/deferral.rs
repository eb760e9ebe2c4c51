//! Signals that come while their thread is in a call of this library wait until the call is over, or until it sleeps. The
//! call may hold locks that the handler's own calls need, and its steps may not be repeated in the middle of each other.
//!
//! In the kernel it is the same: a handler runs when the system call returns, or when it would sleep. Invariants:
//! * A thread is in a call while a [`Busy`] lives, and not while an [`Asleep`](super::asleep::Asleep) lives within it. A handler may jump out of a
//!   call that sleeps, or that is over: then the thread is in no call.
//! * A thread that is in a call holds up no handler for longer than the call takes steps. So what may block is made under
//!   an `Asleep`, without locks.
//! * A signal that waits is pending in the kernel, for this thread, with what came with it; and it is blocked in the
//!   thread. No thread has one pending when it is in no call.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_long};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{compiler_fence, AtomicU32, AtomicU64, Ordering};

use libc::{siginfo_t, sigset_t, ucontext_t};

use super::errno::{errno, set_errno};
use super::thread_variable::{self, CALLS};
use super::{confinement, real};

/// A thread's state, which only the thread and its signal handlers use.
#[repr(C)]
struct Calls {
    /// How many calls it is in: more than one where a call makes another one.
    depth: AtomicU32,
    /// The signals that wait, a bit for each.
    deferred: AtomicU64,
    /// A real-time signal that waits; its number is 0 if there is none.
    kept: UnsafeCell<siginfo_t>,
}

/// The variable of `calls.c`.
#[inline]
fn of_thread() -> *const Calls {
    thread_variable::part(CALLS)
}

/// The thread is in a call, until this is dropped.
#[must_use]
pub struct Busy {
    /// Keeps the value in its thread.
    calls: *const Calls,
}

impl Busy {
    /// The thread enters a call.
    #[inline]
    pub fn enter() -> Busy {
        let busy = Busy { calls: of_thread() };
        let depth = &busy.calls().depth;
        depth.store(depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        busy
    }

    #[inline]
    fn calls(&self) -> &Calls {
        // SAFETY: of this thread, in which the value stays.
        unsafe { &*self.calls }
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let calls = self.calls();
        let depth = calls.depth.load(Ordering::Relaxed).wrapping_sub(1);
        calls.depth.store(depth, Ordering::Relaxed);
        // A handler that runs in between finds that the thread is in no call.
        compiler_fence(Ordering::SeqCst);
        if calls.deferred.load(Ordering::Relaxed) != 0 {
            leave(calls);
        }
    }
}

#[cold]
#[inline(never)]
fn leave(calls: &Calls) {
    if calls.depth.load(Ordering::Relaxed) == 0 {
        let_come(calls);
    }
}

/// The handlers of signals that wait run.
fn let_come(calls: &Calls) {
    let saved = errno();
    let set = set_of(calls.deferred.swap(0, Ordering::Relaxed));
    // SAFETY: the set is readable.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, null_mut()) };
    set_errno(saved);
}

/// Whether signals wait for the end of this thread's call: a call that spins should sleep.
#[inline]
pub fn waits() -> bool {
    // SAFETY: of this thread.
    unsafe { (*of_thread()).deferred.load(Ordering::Relaxed) != 0 }
}

/// The signals that wait. They are the caller's from now on: blocked, though not by the program.
pub(super) fn take() -> u64 {
    // SAFETY: of this thread.
    unsafe { (*of_thread()).deferred.swap(0, Ordering::Relaxed) }
}

/// The thread is in no call from now on; returns its depth before.
pub(super) fn pause() -> u32 {
    // SAFETY: of this thread.
    let depth = unsafe { (*of_thread()).depth.swap(0, Ordering::Relaxed) };
    compiler_fence(Ordering::SeqCst);
    depth
}

/// Ends the effect of [`pause`].
pub(super) fn go_on(depth: u32) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: of this thread.
    unsafe { (*of_thread()).depth.store(depth, Ordering::Relaxed) };
}

/// Blocks all signals in this thread, and returns the mask before.
pub(super) fn block_all() -> sigset_t {
    let mut all = MaybeUninit::<sigset_t>::zeroed();
    let mut before = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: both sets are writable, and all-zero is the empty set.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Ends the effect of [`block_all`].
pub(super) fn restore(before: &sigset_t) {
    // SAFETY: a readable set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut()) };
}

/// The handler of a signal that `context` was interrupted by is to run. `true`: not now, but when the thread's call is over, or
/// sleeps.
pub(super) fn defer(signal: c_int, info: &mut siginfo_t, context: &mut ucontext_t) -> bool {
    // SAFETY: of this thread.
    let calls = unsafe { &*of_thread() };
    if calls.depth.load(Ordering::Relaxed) == 0 || confinement::is_confined() {
        calls.bring_in_order(signal, info);
        return false;
    }
    // A handler with SA_NODEFER would be called again at once.
    let before = block_all();
    let saved = errno();
    let queued = calls.keep_waiting(signal, info);
    if queued {
        // Blocked when this handler returns. SAFETY: the set of the context is writable, and begins with a word.
        unsafe {
            let mask = (&raw mut context.uc_sigmask).cast::<u64>();
            mask.write_unaligned(mask.read_unaligned() | 1 << (signal - 1));
        }
        calls.deferred.store(calls.deferred.load(Ordering::Relaxed) | 1 << (signal - 1), Ordering::Relaxed);
    } else {
        restore(&before);
    }
    set_errno(saved);
    queued
}

/// In a forked child, in which no signal is pending.
pub fn after_fork_child() {
    // SAFETY: of this thread.
    unsafe { (*(*of_thread()).kept.get()).si_signo = 0 };
}

impl Calls {
    /// Makes a signal pending again. `false`: too many are, or the call is not permitted.
    ///
    /// Real-time signals come in order. Others of this number may be pending, or be queued at any time, and all go to the end
    /// of the queue. So the information of this one is kept here, and a mark goes to the end.
    fn keep_waiting(&self, signal: c_int, info: &siginfo_t) -> bool {
        // SAFETY: only this thread uses it, with all signals blocked.
        let kept = unsafe { &mut *self.kept.get() };
        if signal < libc::SIGRTMIN() || kept.si_signo != 0 {
            return queue(signal, info);
        }
        let queued = queue(signal, &mark(signal));
        if queued {
            *kept = *info;
        }
        queued
    }

    /// A signal has come. If an earlier one of this number is kept, that one is handled first, and this one is kept in its
    /// place, unless it is the mark.
    #[inline]
    fn bring_in_order(&self, signal: c_int, info: &mut siginfo_t) {
        // SAFETY: only this thread uses it, and its handlers only change it for their own signal.
        if unsafe { (*self.kept.get()).si_signo } == signal {
            self.exchange_kept(info);
        }
    }

    #[cold]
    fn exchange_kept(&self, info: &mut siginfo_t) {
        let before = block_all();
        // SAFETY: only this thread uses it, with all signals blocked.
        let kept = unsafe { &mut *self.kept.get() };
        std::mem::swap(kept, info);
        let mark = mark(kept.si_signo);
        if (kept.si_code, kept.si_errno) == (mark.si_code, mark.si_errno) {
            kept.si_signo = 0;
        }
        restore(&before);
    }
}

/// Information that no program sends.
fn mark(signal: c_int) -> siginfo_t {
    // SAFETY: all-zero is valid information.
    let mut mark: siginfo_t = unsafe { std::mem::zeroed() };
    mark.si_signo = signal;
    mark.si_code = libc::SI_QUEUE;
    // For signals that a program queues this is 0.
    mark.si_errno = c_int::MIN;
    mark
}

/// Sends this thread a signal with its information.
fn queue(signal: c_int, info: &siginfo_t) -> bool {
    let info = std::ptr::from_ref(info) as c_long;
    // SAFETY: readable information.
    unsafe {
        let (pid, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let number = libc::SYS_rt_tgsigqueueinfo;
        real::syscall(number, pid.into(), thread, signal.into(), info, 0, 0) == 0
    }
}

/// All signals fit in the first word of a set.
fn set_of(signals: u64) -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: a set begins with a word, and the rest may be zero.
    unsafe {
        set.as_mut_ptr().cast::<u64>().write_unaligned(signals);
        set.assume_init()
    }
}
