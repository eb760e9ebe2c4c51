//! Emulated eRDMA PCI functions: the unmodified kernel driver and the unmodified provider run on them.
//!
//! A [`Fabric`] has the functions of a lab and the wire between them. It is sans-IO: guests' memory and interrupts are
//! a [`Host`], time comes in with every call, and a processor's reads and writes in BAR 0 come in as offsets and bytes.
//! Its unit tests replace the driver: they write requests into memory of their own, ring doorbells and read
//! completions. The binary `netacc-erdma` serves the functions to QEMU over vfio-user; `README.md` has its control
//! protocol.
//!
//! # What is emulated
//! The interface that drivers see, as their source describes it: registers, command queue, event queues, completion
//! queues, work queues, regions and protection domains, in iWARP mode. The references are the drivers of Linux 6.1 and
//! 6.12 and Alibaba's 0.2.37, and the provider of rdma-core; each module names the files and structures. The
//! *behaviour* of a real function where its interface leaves that open is a setting ([`Settings`]), not a claim.
//!
//! # Invariants
//! * No input of a guest panics here, reaches beyond its memory, or loops without a bound.
//! * Requests of a queue pair complete in order, and their data is placed in order.
//! * A completion is in memory, its owner bit last, before the driver gets an event for it.

#![deny(unsafe_code)]

mod bits;
mod budget;
mod command_queue;
mod commands;
mod completions;
mod context;
pub mod control;
mod counters;
mod device;
mod events;
mod fabric;
mod function;
mod host;
mod pages;
mod pci;
mod queue_pair;
mod region;
mod registers;
mod requester;
mod responder;
pub mod server;
mod settings;
mod status;
pub mod wire;
mod work;

pub use counters::Counters;
pub use events::AsyncEvent;
pub use fabric::Fabric;
pub use host::{GuestMemory, Host, Interrupts, OutsideMemory};
pub use registers::BAR0_BYTES;
pub use settings::{Completes, Driver, EmptyReceiveQueue, Flushes, Limits, Settings};
pub use status::Status;
