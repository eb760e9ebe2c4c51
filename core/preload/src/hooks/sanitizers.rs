//! Functions by which the runtimes of sanitizers read default options from the process. The runtimes define them
//! weakly, so the definitions of a program, and of a runtime that was preloaded before this library or linked into the
//! program, take precedence.
//!
//! This library is not instrumented. `netacc_run` preloads the runtime before it, so that the runtime's interceptors
//! see the program's calls first. Otherwise, as in programs that another program starts, these options let them run.

use std::ffi::{c_char, CStr};

/// AddressSanitizer refuses to run behind another preloaded library.
#[cfg_attr(not(test), no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    const OPTIONS: &CStr = c"verify_asan_link_order=0";
    OPTIONS.as_ptr()
}

/// ThreadSanitizer does not see what synchronises the threads of code that is not instrumented, and would report races in
/// the memory that such code allocates. It also ends a child that starts a thread if its parent had several, and the helper
/// is one.
#[cfg_attr(not(test), no_mangle)]
pub extern "C" fn __tsan_default_options() -> *const c_char {
    const OPTIONS: &CStr = c"ignore_noninstrumented_modules=1:die_after_fork=0";
    OPTIONS.as_ptr()
}
