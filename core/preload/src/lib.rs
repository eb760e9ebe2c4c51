//! `libnetacc-preload.so`: the socket calls of an unmodified program, over a link where there is one.
//!
//! * [`hooks`]: the interposed C symbols. Thin and unsafe: convert, call [`ops`], set errno. No logic.
//! * [`ops`]: what each call does for a descriptor of ours. Descriptors that are not ours go straight to [`os::real`].
//! * [`os`]: the C library, the kernel and the library's own descriptors. The lowest layer.
//! * [`table`]: which descriptors are ours. One atomic load for those that are not.
//! * [`runtime`]: the process's endpoint, created at the first socket that could use it; the helper thread.
//! * `anchor`: the kernel's socket beneath a stream.
//! * [`answers`], [`bulk`]: how long peers take to answer, and how fast bytes go, which decides between link and TCP.
//! * [`ring`]: io_urings whose submissions can be looked at.
//! * [`family`]: which sockets other processes hold too; [`holders`]: whether programs without the library do.
//! * `vfork`: children that share this process's memory, but have descriptors of their own.
//! * [`sandbox`]: programs that install system call filters.
//! * [`epoll`], [`wait`]: readiness and blocking; [`queues`]: which completion queue a link reports to.
//!
//! Every accelerated descriptor *is* a kernel TCP socket (the anchor), so a call that is not interposed still acts on
//! the right connection. What the library cannot do for a descriptor it leaves to the kernel, with a reason.

#![expect(unsafe_code, reason = "this crate is the C edge: every interposed symbol takes raw pointers")]

mod anchor;
pub mod answers;
mod batch;
pub mod bulk;
pub mod control;
pub mod epoll;
pub mod family;
pub mod holders;
pub mod hooks;
pub mod instance;
pub mod leaving;
pub mod ops;
pub mod os;
pub mod queues;
pub mod ring;
pub mod runtime;
pub mod sandbox;
pub mod settling;
pub mod socket;
pub mod spin;
pub mod stats;
pub mod table;
pub mod vfork;
pub mod wait;
pub mod watched;
pub mod watchers;
