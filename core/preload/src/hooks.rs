//! The interposed C symbols. Each converts its arguments and calls [`ops`](crate::ops), or the next library's function
//! at once if the descriptor is not ours; there is no logic here. Every exported name stands in `tests/symbols`.
//!
//! Rules:
//! * For a descriptor that is not ours: one table lookup, then the real call. Nothing else, so that calls that are
//!   safe in a signal handler or between fork and exec stay safe.
//! * Calls that this library makes itself are not hooked: see `hooks!` below.
//! * No panic crosses into C: [`Edge`] aborts. The ABI is `C-unwind` all the same, because the C library cancels a
//!   thread by unwinding its stack, hooks included; `extern "C"` would turn that into an abort.
//! * While a call has a descriptor that is ours, handlers of signals wait: see [`deferral`](crate::os::deferral).
//! * errno is the callee's. Work that is not the call itself keeps it.
//!
//! Left alone on purpose, because an accelerated descriptor is a kernel socket and the kernel's answer is right:
//! `bind`, `getsockname`, `fstat`, `isfdtype`, `sockatmark`, `preadv`/`pwritev` and `pread`/`pwrite` (ESPIPE),
//! `copy_file_range` (EINVAL). Because they do not create or receive connections: `tee`, `vmsplice` (pipes only),
//! `setrlimit`, `chroot`, `setuid`. Because `pthread_atfork` handlers run in them: `fork`, `__fork`, `forkpty`.
//! Because the library's own destructor runs in it: `exit`. `vfork` is
//! in [`vfork`](crate::vfork). System calls made without the C library are not seen, but those of
//! static programs, which `netacc-loader` runs, come by `syscall`, and those of Go code by `patched`.

pub mod aside;
pub mod bytes;
pub mod caller;
pub mod confinement;
pub mod descriptors;
pub mod liburing;
pub mod opening;
#[cfg(target_arch = "x86_64")]
#[cfg_attr(test, expect(dead_code, reason = "a test binary does not change itself"))]
mod patched;
pub mod process;
pub mod readiness;
pub mod sanitizers;
pub mod signals;
pub mod sockets;
pub mod syscall;
pub mod variadic;

/// Aborts if a Rust panic leaves the hook. Other unwinding (cancellation of a thread) passes.
struct Edge;

impl Edge {
    /// The hook returns, so nothing unwinds through it.
    #[inline]
    fn pass(self) {
        std::mem::forget(self);
    }
}

impl Drop for Edge {
    #[cold]
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Defines interposed functions, each in three parts: `of_program` with the body, for calls of the program;
/// `of_library`, the real function, for calls that this library makes itself (its own code, the standard library and
/// the backends in it); and the exported name, which chooses between the two by its return address. So library code may
/// use the C library as any code does. The bodies are unsafe. They call each other as `of_program`, never the exported
/// names.
macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {
        /// The hook for calls of the program.
        pub mod of_program {
            #[allow(unused_imports, reason = "whatever the bodies need")]
            use super::*;

            $(
                #[doc = concat!("`", stringify!($name), "` for the program.\n\n# Safety\nAs the C function.")]
                #[allow(non_snake_case, reason = "C's names")]
                pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                    let edge = $crate::hooks::Edge;
                    #[allow(unused_unsafe, reason = "some bodies call safe functions only")]
                    // SAFETY: the arguments are the caller's, which keeps the C function's contract.
                    let result = unsafe { $body };
                    edge.pass();
                    result
                }
            )*
        }

        /// The hook for calls of this library.
        mod of_library {
            #[allow(unused_imports, reason = "whatever the signatures need")]
            use super::*;

            $(
                #[allow(non_snake_case, reason = "C's names")]
                pub(super) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                    // SAFETY: passed on.
                    unsafe { $crate::os::real::$name($($arg),*) }
                }
            )*
        }

        $(
            #[doc = concat!("Interposes `", stringify!($name), "`.\n\n# Safety\nAs the C function.")]
            // A test binary must not interpose its own C library.
            #[cfg_attr(not(test), no_mangle)]
            #[allow(non_snake_case, reason = "C's name")]
            #[unsafe(naked)]
            pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                $crate::hooks::caller::dispatch!(of_program::$name, of_library::$name)
            }
        )*
    };
}

/// The cancellation point of the C library's blocking calls: a thread whose cancellation is pending ends here, even if
/// the hook then makes no blocking call.
#[inline]
fn cancellation_point() {
    extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: no arguments; it returns or unwinds.
    unsafe { pthread_testcancel() };
}

/// The connection behind a descriptor, as `ops::message::Target`; or the UDP socket, as `ops::datagram::Target`; or else
/// the real call. Handlers of signals wait from before the descriptor is looked up, because they may close it.
macro_rules! stream_or {
    ($fd:expr, $kernel:expr, |$target:ident| $ours:expr) => {
        'call: {
            if let Some(place) = $crate::table::place($fd) {
                let _busy = $crate::os::deferral::Busy::enter();
                if let Some(guard) = $crate::table::read($fd, place) {
                    let entry: &::std::sync::Arc<$crate::table::Entry> = &guard;
                    if let $crate::table::Entry::Stream(sock) = &**entry {
                        $crate::hooks::cancellation_point();
                        let $target = $crate::ops::message::Target { entry, sock, fd: $fd };
                        let result = $ours;
                        break 'call result;
                    }
                }
            }
            $kernel
        }
    };
    ($fd:expr, $kernel:expr, |$target:ident| $ours:expr, |$socket:ident| $datagram:expr) => {
        'call: {
            if let Some(place) = $crate::table::place($fd) {
                let _busy = $crate::os::deferral::Busy::enter();
                if let Some(guard) = $crate::table::read($fd, place) {
                    let entry: &::std::sync::Arc<$crate::table::Entry> = &guard;
                    match &**entry {
                        $crate::table::Entry::Stream(sock) => {
                            $crate::hooks::cancellation_point();
                            let $target = $crate::ops::message::Target { entry, sock, fd: $fd };
                            let result = $ours;
                            break 'call result;
                        }
                        $crate::table::Entry::Datagram(socket) => {
                            $crate::hooks::cancellation_point();
                            let $socket = $crate::ops::datagram::Target { socket, fd: $fd };
                            let result = $datagram;
                            break 'call result;
                        }
                        _ => {}
                    }
                }
            }
            $kernel
        }
    };
}

/// The library's object behind a descriptor; or else the real call. As [`stream_or`].
macro_rules! entry_or {
    ($fd:expr, $kernel:expr, |$entry:ident| $ours:expr) => {
        'call: {
            if let Some(place) = $crate::table::place($fd) {
                let _busy = $crate::os::deferral::Busy::enter();
                let guard = $crate::table::read($fd, place);
                if let Some($entry) = guard.as_deref() {
                    let result = $ours;
                    break 'call result;
                }
            }
            $kernel
        }
    };
}

pub(crate) use {entry_or, hooks, stream_or};

/// When the library is loaded, before the program's own constructors; and at exit, after its destructors.
#[cfg(not(test))]
mod load {
    use std::ffi::{c_int, c_void};

    #[used]
    #[link_section = ".init_array"]
    static LOAD: extern "C" fn() = load;

    /// Most programs open no socket. So this allocates nothing, and touches as little code and data as it can, because
    /// each page costs a fault.
    extern "C" fn load() {
        let own_path = super::caller::find_library();
        crate::os::environment::leave_runtime_out();
        crate::ops::process::register();
        if let Some(own_path) = own_path {
            crate::ops::environment::remember(own_path);
        }
        crate::ops::connection::receive_from_starter();
        #[cfg(target_arch = "x86_64")]
        super::patched::start();
        // Handlers run in the opposite order of their registration: after the program's own.
        // SAFETY: the handler takes an argument that it does not use; the library is never unloaded.
        unsafe { __cxa_at_quick_exit(exit_quickly, std::ptr::null_mut()) };
    }

    #[used]
    #[link_section = ".fini_array"]
    static EXIT: extern "C" fn() = exit;

    extern "C" fn exit() {
        crate::control::exit::end();
        crate::stats::report_at_exit();
    }

    extern "C" {
        /// The function behind `at_quick_exit`, which itself is in no shared library.
        fn __cxa_at_quick_exit(handler: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
    }

    extern "C" fn exit_quickly(_: *mut c_void) {
        exit();
    }
}
