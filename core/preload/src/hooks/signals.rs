//! Actions on signals, beneath which the library has a handler: see [`actions`](crate::os::actions).

use std::ffi::c_int;

use libc::{sigaction as Action, sighandler_t};

use super::hooks;
use crate::ops::signals::{self, on_action};
use crate::os::actions::go_through;
use crate::os::real;

/// For `netacc-loader`, which runs a static program in this process: see [`go_through`].
#[cfg_attr(not(test), no_mangle)]
pub extern "C" fn netacc_guard_through(handler: usize) -> usize {
    go_through(handler)
}

hooks! {
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        signals::sigaction(signal, new, old)
    }

    fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        signals::sigaction(signal, new, old)
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        on_action(signal, || real::signal(signal, handler))
    }

    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        on_action(signal, || real::bsd_signal(signal, handler))
    }

    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        on_action(signal, || real::ssignal(signal, handler))
    }

    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        on_action(signal, || real::sysv_signal(signal, handler))
    }

    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        on_action(signal, || real::__sysv_signal(signal, handler))
    }

    fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
        signals::sigset(signal, disposition)
    }

    fn sigignore(signal: c_int) -> c_int {
        on_action(signal, || real::sigignore(signal))
    }

    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
        on_action(signal, || real::siginterrupt(signal, interrupts))
    }
}
