//! The operating system, as the library uses it: the lowest layer, which does not deal with connections.
//!
//! * [`real`]: the functions that the hooks replace. Everything else here and above calls these.
//! * [`errno`], [`clock`], [`limits`], [`sockopt`], [`signals`]: small parts of the C library and the kernel.
//! * [`immediate`]: sends and receives that do not wait.
//! * [`own`], [`lingering`]: descriptors that the library keeps for itself.
//! * [`access`]: memory of the program that may be unmapped. [`actions`]: the program's actions on signals, two of which report
//!   such memory; [`deferral`], [`asleep`]: signals that wait for the end of a call.
//! * [`place`]: values that threads read while others replace them.
//! * [`poll`]: polls descriptors, whatever the resource limits are. [`processor`]: where a thread runs.
//! * [`confinement`]: whether the process may make system calls of the library's. [`uses`]: uses of descriptors that
//!   may be given back.
//! * [`inside`]: recognises the library's own calls. [`kept`]: values that live until the process ends;
//!   [`per_process`]: values that a forked child has of its own.
//! * [`futex`]: sleeping on a word. [`work`]: the work of the library's threads, which a fork waits for.
//! * [`aio`], [`liburing`]: structures of other libraries. [`environment`]: the entries of `netacc_run`.
//! * [`thread_variable`]: variables of a thread in C.
//! * `unwind`: the unwinder, which is loaded late. `lookup`: functions by name, where `dlsym` may not be called;
//!   `versions`: their older versions.

pub mod access;
pub mod actions;
pub mod addresses;
pub mod aio;
pub mod asleep;
pub mod clock;
pub mod confinement;
pub mod deferral;
pub mod environment;
pub mod errno;
pub mod futex;
pub mod immediate;
pub mod inside;
pub(crate) mod kept;
pub mod liburing;
pub mod limits;
pub(crate) mod lingering;
pub(crate) mod log;
mod lookup;
pub mod own;
pub(crate) mod per_process;
pub mod place;
pub mod poll;
pub mod processor;
pub mod real;
pub mod signals;
pub mod sockopt;
pub(crate) mod sync;
pub(crate) mod thread_variable;
#[cfg(all(not(test), target_arch = "x86_64"))]
mod unwind;
pub mod uses;
mod versions;
pub mod work;
