//! Deterministic in-memory devices, for simulation and for tests.
//!
//! A [`Fabric`] holds any number of [`LoopbackDevice`]s, one for each simulated process. Each is a
//! [`Device`](crate::Device), a [`ConnectionManager`](crate::ConnectionManager) and a
//! [`Directory`](crate::Directory). What a device can do comes from its [`LoopbackConfig`], so one fabric plays
//! shared memory, an eRDMA adapter or a SEND-only one. The kernel connection beside a link is played by
//! [`anchor::InMemoryAnchor`].
//!
//! # Driving it
//! With [`DeliveryMode::Immediate`] whatever is posted has arrived when the call returns. With
//! [`DeliveryMode::Explicit`] nothing moves until the owner of the fabric says so:
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
//! * The messages of one queue pair are placed and completed in the order they were posted, whatever the
//!   scheduler chooses; it chooses only *between* queue pairs, acknowledgements, disconnects and attempts to connect.
//! * A payload in a registered region is read when it is delivered, not when it is posted, as an adapter would. A
//!   region that is reused too early is therefore seen by tests. (Not where placement is delivery.)
//! * Every queue is bounded by the capabilities: a slot is in use until its completion has been polled.
//! * A peer's values never panic; they cost that peer's queue pair.
//!
//! What it deliberately does not do: time, bandwidth, loss. Those belong to `models/rnic`.

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
