//! RDMA devices through libibverbs and librdmacm: eRDMA, SoftRoCE, soft-iWARP, ConnectX.
//!
//! [`VerbsDevice`] implements [`Device`](netacc_device::Device) and
//! [`ConnectionManager`](netacc_device::ConnectionManager). Both libraries are opened at the first use (`ffi`), so a
//! program that never needs them never loads them, and there is no build dependency on them.
//!
//! What differs between devices stays in this crate: [`Profile`] has the facts, and narrows a device to another's.
//! * No immediates (soft-iWARP): a message is a WRITE and a small SEND after it, which brings immediate and length.
//! * No completions after an error (iWARP): a queue pair that died reports `Disconnected` by our own account,
//!   or by an asynchronous event, where nothing else tells of it.
//! * The side that accepted must not send first (iWARP): a queue pair on which it does is ended.
//! * `DISCONNECTED` at one end or both, in any order with completions: reported once, after all that was placed.
//! * Errors returned with either sign; depths rounded up; inline payloads refused: tried, and counted by ourselves.
//! * No payloads inline: what is as short as a credit word is copied here, to where the device can fetch it.
//! * A connection manager that does not survive a message for which there is no way (SoftRoCE): while a port is without
//!   its network nothing is told to peers, and all of it after that. What the kernel sends on its own then, as for a
//!   process that is killed meanwhile, is not in our hands: a host that is deaf since needs its device made again.
//! * No zero-length receives: each receive has a few bytes of its own, or, where that was chosen when connecting, the
//!   first region.
//!
//! Each queue pair has a protection domain of its own: a key given to one peer is of no use to another. Its memory is
//! registered in slabs, of which regions are parts (`memory`): a peer's stray write may reach another region of the same
//! queue pair, which is that peer's as well.

mod cm;
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

pub use connect_threads::CONNECTING;
pub use device::{VerbsConfig, VerbsDevice};
pub use discovery::{discover, Attributes, Found};
pub use ffi::{after_fork, before_fork, EventFd, EventSet, TimerFd};
pub use profile::{Limits, Profile};
