//! The backend of simulation: the core's device traits on modelled NICs, in virtual time.
//!
//! A [`Cluster`] has a network with a NIC for each host, and one process on each with a [`HostDevice`]: a
//! [`Device`](netacc_device::Device), a [`ConnectionManager`](netacc_device::ConnectionManager) and a
//! [`Directory`](netacc_device::Directory). For the core it differs from a real device in time only: nothing happens
//! until the owner of the cluster calls [`Cluster::step`]. With [`Cluster::driven`] it is the other way round: a
//! simulator owns the network and the time, and calls in.
//!
//! # Invariants
//! * No clock, thread, entropy or file descriptor: the same calls and seed give the same run, to the nanosecond
//!   ([`Cluster::trace`]).
//! * The model moves positions, this crate moves bytes: a payload is read from its region when a packet of it is
//!   placed, so tests see the effect of a region that is reused before its completion, as on an adapter.
//! * Bytes of a message are in memory before its completion can be polled, and the bytes of earlier messages before those.
//! * A process that dies ends its connections as a kernel would: the network carries the end to its peers.
//! * The commands of a device for queue pairs and regions take time, for the process that gave them and for no other
//!   ([`CommandTimes`](netacc_rnic::CommandTimes)).
//!
//! Processors are a model of their own ([`netacc_host`]): calls on a device take none of their time unless the runner of
//! the processes assigns some.

#![forbid(unsafe_code)]

mod cluster;
mod cm;
mod config;
mod connecting;
mod device;
mod id;
mod net;
mod news;
mod simulator;
mod state;
mod tcp;
mod verbs;
mod verbs_events;

pub use cluster::Cluster;
pub use config::{HostConfig, Interrupts};
pub use device::HostDevice;
pub use id::HostId;
pub use news::News;
pub use simulator::{PlainSimulator, Simulator};
pub use tcp::{Corrupt, TcpWires};
pub use verbs_events::{VerbsEnd, VerbsEvent};
