//! A software RNIC over shared memory between processes of one host.
//!
//! [`ShmDevice`] implements [`Device`](netacc_device::Device), [`ConnectionManager`](netacc_device::ConnectionManager)
//! and [`Directory`](netacc_device::Directory). Two processes that connect share one sealed memory segment (`layout`),
//! in which each owns the half it receives in; a socket between them carries set-up and shows the death of either
//! (`cm`). They find each other through a table in `/dev/shm`, or in a folder that containers share, that only the same
//! user, or an explicit group, can open (`rendezvous`, `table`). Posting a message is a copy, two stores, a fence and a bit; system calls are made only to
//! wake a sleeping thread (`qp` and `bitmap`, where the orderings are written down).
//!
//! Deliberately not here: moving data between users, trusting values that a peer wrote, or keeping a thread. Connection
//! manager calls make progress only when a thread calls [`poll_event`]. So a peer's death is detected there too, and so
//! is the first wake-up that a peer sends to a completion queue: only then does the peer get the queue's wake
//! descriptor. A process that sleeps on a channel therefore has a thread that watches [`event_fds`], or watches them as
//! well. But nothing is posted to a process once it has ended, if a thread of it has asked the kernel to record its end
//! ([`ShmDevice::end_with_this_thread`], `doorbell`).
//!
//! A process of the same user that is hostile can destroy its own connections, spin a poller of its own pair or
//! ring our channels; it cannot make us touch memory outside the segment, fault or panic.
//!
//! [`poll_event`]: netacc_device::ConnectionManager::poll_event
//! [`event_fds`]: netacc_device::ConnectionManager::event_fds

mod alloc;
mod bitmap;
mod cm;
mod config;
mod cq;
mod defer;
mod descriptors;
mod device;
mod directory;
mod doorbell;
mod folder;
mod layout;
mod limits;
mod manager;
mod map;
#[cfg(all(test, any(loom, miri)))]
mod models;
mod names;
mod obstacle;
mod operations;
mod order;
mod pair;
mod pairs;
mod pending;
mod proving;
mod qp;
mod region;
mod rendezvous;
mod routes;
mod sync;
mod sys;
mod table;
mod tuple;
mod wire;

pub use config::{ShmConfig, MAX_FOLDER_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};
pub use descriptors::GiveBack;
pub use device::ShmDevice;
pub use limits::without_file_size_signal;
