//! RDMA devices through libibverbs and librdmacm: eRDMA, SoftRoCE, soft-iWARP, ConnectX.
//!
//! [`VerbsDevice`] implements [`Device`](netacc_device::Device) and
//! [`ConnectionManager`](netacc_device::ConnectionManager). Both libraries are opened at the first use (`ffi`), so a
//! program that never needs them never loads them, and there is no build dependency on them.
//!
//! The differences between devices stay in this crate: [`Profile`] has the facts, and narrows a device to another's.
//! * No immediates (soft-iWARP): a message is a WRITE and a small SEND after it, which carries immediate and length.
//! * No completions after an error (iWARP): for a queue pair that died, this crate reports `Disconnected` itself, or an
//!   asynchronous event makes it do so, where the device reports nothing else.
//! * The side that accepted must not send first (iWARP): a queue pair on which it does is ended.
//! * `DISCONNECTED` at one end or both, in any order with completions: reported once, after all placed messages.
//! * Errors returned with either sign; depths rounded up; inline payloads refused: tested by an attempt, and counted by
//!   this crate.
//! * No payloads inline: bytes as short as a credit word are copied here, to a place where the device can fetch them.
//! * A connection manager that does not survive a message without a route (SoftRoCE): while a port is without its
//!   network, peers are not informed; they are once the network is back. Messages that the kernel then sends on its
//!   own, as for a process that is killed meanwhile, are out of our control: a host whose device receives no requests
//!   since then needs the device made again.
//! * No zero-length receives: each receive has a few bytes of its own, or, if that was chosen when connecting, the
//!   first region.
//!
//! Each queue pair has a protection domain of its own: a key given to one peer is of no use to another. Its memory is
//! registered in slabs, which are divided into regions (`memory`): a peer's stray write may reach another region of the
//! same queue pair, which belongs to that peer as well.

mod cm;
mod commands;
mod connect_data;
mod connect_threads;
mod device;
mod device_cq;
mod discovery;
mod ffi;
mod link;
mod manager;
mod memory;
mod peer_address;
mod profile;
mod queue;

pub use commands::CommandTimes;
pub use connect_threads::CONNECTING;
pub use device::{VerbsConfig, VerbsDevice};
pub use discovery::{discover, Attributes, Found};
pub use ffi::{after_fork, before_fork, EventFd, EventSet, TimerFd};
pub use profile::{Limits, Profile};
