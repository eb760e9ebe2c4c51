//! The control path: what makes the runtime and ends it, and what its helper thread does.
//!
//! * `starting`: making the runtime. `sink`: its answer to changes of streams.
//! * `helper`: the thread. [`shortage`]: giving descriptors back to the program. [`unseen`]: the policy for unseen I/O.
//! * [`fork`], [`exit`]: what becomes of connections when the process forks, ends, or is replaced.

pub mod exit;
pub mod fork;
mod helper;
pub mod shortage;
mod sink;
mod starting;
pub mod unseen;

pub use starting::start;
