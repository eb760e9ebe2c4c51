//! Requests and responses over the production core, on simulated hosts with modelled NICs, in virtual time.
//!
//! Each host has one process with an [`Endpoint`](netacc_driver::Endpoint). A [`Conversation`] is a TCP connection between two of
//! them that is promoted; the client sends requests by its plan, and the server answers each when it has all of it. Or it
//! is a client that makes short connections, each for some requests (`short`), one that sends datagrams (`datagrams`), or one that uses verbs without the core (`verbs`).
//! Every byte is checked. The owner of the network drives a [`Run`]: [`run_plain`] with the plain network, or a simulator.
//!
//! # Invariants
//! * This crate has no clock or entropy: the same configuration on the same network gives the same run.
//! * A process polls its device whenever something came for it. Where its host has processors, its work takes its
//!   turn and its time on them (`host_threads`), and so does the helper thread's making of links. The rest of the core's own
//!   housekeeping never does.
//!
//! The connections' TCP is a simulator's ([`Tcp::Simulated`]), or in memory: then its bytes take no time, and only the
//! link is measured.

#![forbid(unsafe_op_in_unsafe_fn)]

mod config;
mod connection;
mod datagrams;
mod exchanges;
mod flow;
mod host_threads;
mod measured;
mod outcome;
mod plain;
mod process;
mod promotion;
mod run;
mod short;
mod short_client;
mod stages;
mod turns;
mod verbs;
mod work;
mod workload;

pub use config::{RunConfig, Tcp};
pub use measured::{Carried, Measured, Sample, SetUp, ShortConnection};
pub use outcome::Outcome;
pub use plain::run_plain;
pub use process::{Broken, StackConfig};
pub use run::Run;
pub use stages::TracedMessage;
pub use workload::{
    Arrival, Calls, Conversation, Dependent, Pause, Received, Recorded, SizeBin, Sizes, Transport, Verb,
};
