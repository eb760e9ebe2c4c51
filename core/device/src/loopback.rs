//! Deterministic in-memory devices, for simulation and for tests.
//!
//! A [`Fabric`] holds any number of [`LoopbackDevice`]s, one for each simulated process. Each is a
//! [`Device`](crate::Device), a [`ConnectionManager`](crate::ConnectionManager) and a [`Directory`](crate::Directory).
//! The properties of a device come from its [`LoopbackConfig`], so one fabric models shared memory, an eRDMA adapter or
//! a SEND-only one. [`anchor::InMemoryAnchor`] models the kernel connection beside a link.
//!
//! # Driving it
//! With [`DeliveryMode::Immediate`] every request has arrived when the posting call returns. With
//! [`DeliveryMode::Explicit`] nothing moves until the owner of the fabric delivers it:
//!
//! ```
//! use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
//! let fabric = Fabric::new(DeliveryMode::Explicit);
//! let (a, b) = (fabric.open(LoopbackConfig::erdma()), fabric.open(LoopbackConfig::erdma()));
//! # let _ = (a, b);
//! let mut seed = 7u64; // any generator will do
//! while fabric.step(seed).is_some() {
//!     seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
//! }
//! ```
//!
//! # Invariants
//! * No clock, thread, entropy or file descriptor: the same calls give the same results.
//! * The messages of one queue pair are placed and completed in the order they were posted, whatever the scheduler
//!   chooses. It chooses only *between* queue pairs, acknowledgements, disconnects and attempts to connect.
//! * A payload in a registered region is read when it is delivered, not when it is posted, as an adapter would. A
//!   region that is reused too early is therefore seen by tests. (Not where placement is delivery.)
//! * Every queue is bounded by the capabilities: a slot is in use until its completion has been polled.
//! * A peer's values never panic; they cost that peer's queue pair.
//!
//! Deliberately not modelled: time, bandwidth, loss. Those belong to `models/rnic`.

pub mod anchor;
mod cm;
mod config;
mod connecting;
mod deliveries;
mod device;
mod fabric;
mod id;
mod link;
mod notices;
mod state;
#[cfg(test)]
mod tests;

pub use config::{DeliveryMode, LoopbackConfig, NoReceive, SlotRelease};
pub use deliveries::Delivery;
pub use device::LoopbackDevice;
pub use fabric::{Fabric, Kill, Notice};
pub use id::{DeviceId, QueuePairEnd};
