//! A model of an RDMA NIC with reliable connections, as a pure function of its inputs.
//!
//! A [`Nic`] takes requests from its host and packets from the network, and gives packets, placements and completions. It has
//! no clock, thread or entropy: time comes in with every call. The same model serves the network of [`network`], which is
//! plain Rust, and ns-3.
//!
//! # Driving it
//! * Inputs: [`Nic::post_send`], [`Nic::post_recv`], [`Nic::handle_packet`], [`Nic::handle_timer`].
//! * After any of them: drain [`Nic::poll_placement`], [`Nic::poll_ready`] and [`Nic::poll_control`]; whenever the port is
//!   free, ask [`Nic::poll_transmit`].
//! * Call [`Nic::handle_timer`] at [`Nic::next_deadline`], which every call may change.
//!
//! # The model
//! Segmentation, acknowledgement, loss recovery, timeouts, RNR, retry limits, errors and flushes ([`NicConfig`]); the time that
//! doorbells, fetches, engines, placement and completions take ([`Costs`]); caches of queue-pair contexts and region entries
//! that miss; rate control ([`RateControl`]). Payload is virtual: a [`Placement`] names the bytes of a message and their place, and
//! the owner of the memory copies them.
//!
//! # Invariants
//! * A message is delivered at most once and in order, whatever the network loses, doubles or reorders; a request that
//!   completes with success was delivered.
//! * Every posted request completes, or its queue pair ends in [`Completion::Disconnected`](netacc_device::Completion), within a
//!   time bounded by `retry_timeout` and `retry_count` (except where `rnr_retry` is `None`).
//! * Every queue is bounded by the configuration. No value in a packet panics.

#![forbid(unsafe_code)]

mod cache;
mod command_queue;
mod commands;
mod config;
mod control;
mod engines;
mod events;
pub mod flows;
pub mod network;
mod nic;
mod packet;
mod qp;
mod rate;
mod receive;
mod requester;
mod responder;
mod round_trip;
mod telemetry;
mod transmit;

pub use commands::{Command, CommandTimes};
pub use config::{local_ack_timeout, Costs, Engines, NicConfig, Recovery};
pub use events::Events;
pub use nic::{ControlEvent, Counters, Nic, Placement, SendRequest, Target};
pub use packet::{Body, Control, Datagram, NakReason, NodeId, Packet, Segment, Verb, Words};
pub use rate::{DcqcnChanges, DcqcnConfig, HpccConfig, Progress, RateConfig, RateControl, SwiftConfig, TimelyConfig};
pub use telemetry::{Hop, Telemetry, MAX_HOPS};
