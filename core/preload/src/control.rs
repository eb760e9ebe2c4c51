//! The control path: starting and ending the runtime, and the work of its helper thread.
//!
//! * `starting`: making the runtime. `sink`: its answer to changes of streams.
//! * `helper`: the first helper thread. `assistant`: the others. `threads`: starting them. `unwatched`: its part in links that no thread watches. [`shortage`]: giving descriptors back to the program. [`unseen`]: the policy for unseen I/O.
//! * [`flows`], [`links`]: flows of datagrams within this host, and between hosts. [`proofs`]: the addresses of the latter.
//! * [`fork`], [`exit`]: connections of a process that forks, ends, or is replaced.

mod assistant;
pub mod exit;
pub mod flows;
pub mod fork;
mod helper;
pub mod links;
mod proofs;
pub mod shortage;
mod sink;
mod starting;
mod threads;
pub mod unseen;
mod unwatched;

pub use starting::start;
