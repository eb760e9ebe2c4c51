//! `libnetacc-preload.so`: the socket calls of an unmodified program, over a link where there is one.
//!
//! The modules are in layers. Each layer uses only those below it. `ci/structure.toml` lists them, and the lint job
//! checks them:
//!
//! | layer | modules |
//! | --- | --- |
//! | the interposed C symbols: convert, call [`ops`], set errno. No logic | [`hooks`] |
//! | the work of each call on a descriptor of ours. Other descriptors go straight to [`os::real`] | [`ops`]
//! |
//! | epoll instances | [`epoll`] |
//! | the control path: making the runtime, the helper thread, fork, exit; programs that install system call filters; statistics | [`control`], [`sandbox`], [`stats`] |
//! | blocking, and the completion queue to which a link reports | [`wait`], [`queues`] |
//! | state, upper part: connections that leave their links; watched sockets whose descriptors come and go | [`leaving`], [`watched`] |
//! | state: our descriptors, and the objects that they name; the process's endpoint; the kernel's socket beneath a
//! stream; waiting until a stream is on one path; unseen holders; children that share the memory | [`table`],
//! [`socket`], [`ring`], [`runtime`], `anchor`, [`switching`], [`holders`], [`vfork`] |
//! | traits: the interfaces of an epoll instance to the table ([`instance`]) and to the sockets that it watches
//! ([`watchers`]) | [`instance`], [`watchers`] |
//! | independent parts: answers, throughput, lifetimes and crowds, which decide between link and TCP; other holders of a socket; spinning;
//! events of a trace
//! | [`answers`], [`bulk`], `batch`, [`datagram`] sockets, [`family`], [`spin`], `trace` |
//! | the C library, the kernel, and the library's own descriptors | [`os`] |
//!
//! So a change of [`epoll`] does not require reading how a process forks: fork, closing and the sandbox use only the
//! traits.
//!
//! Every accelerated descriptor *is* a kernel TCP socket (the anchor), so a call that is not interposed still acts on
//! the right connection. The library leaves to the kernel what it cannot do for a descriptor, and records a reason.

// The streams are the program's.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![expect(unsafe_code, reason = "this crate is the C edge: every interposed symbol takes raw pointers")]

mod anchor;
pub mod answers;
pub mod asking;
mod batch;
pub mod bulk;
pub mod control;
pub mod crowds;
pub mod datagram;
pub mod epoll;
pub mod family;
pub mod holders;
pub mod hooks;
pub mod instance;
pub mod leaving;
pub mod lifetimes;
pub mod ops;
pub mod os;
pub mod probes;
pub mod protected;
pub mod queues;
pub mod ring;
pub mod runtime;
pub mod sandbox;
pub mod socket;
pub mod spin;
pub mod stats;
pub mod switching;
pub mod table;
mod trace;
pub mod vfork;
pub mod wait;
pub mod watched;
pub mod watchers;
