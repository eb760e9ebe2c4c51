//! `libnetacc-preload.so`: the socket calls of an unmodified program, over a link where there is one.
//!
//! The modules are in layers, of which each uses only those below. `ci/structure.toml` lists them, and the lint job checks them:
//!
//! | layer | modules |
//! | --- | --- |
//! | the interposed C symbols: convert, call [`ops`], set errno. No logic | [`hooks`] |
//! | what each call does for a descriptor of ours. Other descriptors go straight to [`os::real`] | [`ops`] |
//! | epoll instances | [`epoll`] |
//! | the control path: making the runtime, the helper thread, fork, exit; programs that install system call filters; statistics | [`control`], [`sandbox`], [`stats`] |
//! | blocking, and the completion queue to which a link reports | [`wait`], [`queues`] |
//! | state, upper part: connections that leave their links; watched sockets whose descriptors come and go | [`leaving`], [`watched`] |
//! | state: which descriptors are ours, and what they name; the process's endpoint; the kernel's socket beneath a stream; waiting until a stream is on one path; unseen holders; children that share the memory | [`table`], [`socket`], [`ring`], [`runtime`], `anchor`, [`settling`], [`holders`], [`vfork`] |
//! | traits: an epoll instance as the table ([`instance`]) and the sockets that it watches ([`watchers`]) know it | [`instance`], [`watchers`] |
//! | parts that stand alone: answers and throughput, which decide between link and TCP; who else holds a socket; spinning | [`answers`], [`bulk`], `batch`, [`family`], [`spin`] |
//! | the C library, the kernel, and the library's own descriptors | [`os`] |
//!
//! So whoever changes [`epoll`] need not read how a process forks: fork, closing and the sandbox know the traits alone.
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
