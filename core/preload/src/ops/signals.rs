//! The program's actions on signals, beneath which this library has a handler: see [`actions`].

use std::ffi::c_int;

use libc::{sigaction as Action, sighandler_t, sigset_t};

use crate::os::{actions, real};
use crate::vfork;

/// Makes a call that sets or reports the program's action on `signal`.
pub fn on_action<R>(signal: c_int, call: impl FnOnce() -> R) -> R {
    if vfork::is_child() {
        actions::in_child(signal, call)
    } else {
        actions::with_the_programs(signal, call)
    }
}

/// `sigaction`.
///
/// # Safety
/// As the C function.
pub unsafe fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // Read here, where a fault is the program's, and not while its action is put back. SAFETY:
    // null, or valid as the C function has it.
    let given = unsafe { new.as_ref() }.copied();
    let given = given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: all-zero is a valid action.
    let mut before: Action = unsafe { std::mem::zeroed() };
    // SAFETY: null or a valid action, and one that is writable.
    let rc = on_action(signal, || unsafe { real::sigaction(signal, given, &mut before) });
    if rc == 0 && !old.is_null() {
        // SAFETY: not null, and valid as the C function has it.
        unsafe { *old = before };
    }
    rc
}

/// Not in the `libc` crate.
const SIG_HOLD: sighandler_t = 2;

/// `sigset`, which changes the thread's mask besides.
///
/// # Safety
/// As the C function.
pub unsafe fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
    if !actions::is_guarded(signal) {
        // SAFETY: passed on.
        return unsafe { real::sigset(signal, disposition) };
    }
    // SAFETY: all-zero is a valid set, and a valid action; all are writable.
    unsafe {
        let (mut mask, mut only): (sigset_t, sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        libc::sigaddset(&mut only, signal);
        let mut before: Action = std::mem::zeroed();
        let result = on_action(signal, || {
            real::sigaction(signal, std::ptr::null(), &mut before);
            real::sigset(signal, disposition)
        });
        if result == libc::SIG_ERR {
            return result;
        }
        // The C library's change of the mask is undone by now.
        let how = if disposition == SIG_HOLD { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        libc::pthread_sigmask(how, &only, std::ptr::null_mut());
        if libc::sigismember(&mask, signal) == 1 {
            SIG_HOLD
        } else {
            before.sa_sigaction
        }
    }
}
