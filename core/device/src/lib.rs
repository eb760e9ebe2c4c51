//! The boundary between the protocol core and the devices that move the bytes.
//!
//! A backend implements [`Device`] (queue pairs, completion queues, memory), [`CompletionEvents`] (sleeping until a completion
//! comes), [`KernelOrder`] (where peers share a kernel), [`ConnectionManager`] (connecting queue pairs) and [`Directory`]
//! (finding the process at the other end of a TCP connection). The kernel TCP connection beside every link is an [`Anchor`].
//!
//! Invariants every backend keeps, checked by [`conformance`]:
//! * work requests of one queue pair complete in order, and their data is placed in order;
//! * a message with an immediate consumes exactly one posted receive of the peer;
//! * a full queue is [`PostError::QueueFull`], never an allocation and never a lost request;
//! * no action of a peer causes a panic here: it costs that peer's queue pairs only.
//!
//! Nothing is inferred from a backend's name: check [`Capabilities`].
//!
//! With `default-features = false` only the plain types remain, and the crate needs no `std`.

#![cfg_attr(not(feature = "std"), no_std)]

mod backoff;
mod capabilities;
mod ids;
mod instant;

pub use backoff::Backoff;
pub use capabilities::{Capabilities, CREDIT_WORD_LEN};
pub use ids::{CompletionQueueId, ConnectionId, PeerAddress, QueuePairId, RemoteKey, WorkRequestId};
pub use instant::Instant;

#[cfg(feature = "std")]
mod anchor;
#[cfg(feature = "std")]
mod cm;
#[cfg(feature = "std")]
pub mod conformance;
#[cfg(feature = "std")]
mod device;
#[cfg(feature = "std")]
pub mod loopback;
#[cfg(feature = "std")]
mod memory;
#[cfg(feature = "std")]
pub mod middleware;
#[cfg(feature = "std")]
pub mod tables;
#[cfg(feature = "std")]
mod work;

#[cfg(feature = "std")]
pub use anchor::{Anchor, AnchorError, AnchorPosition, Shown};
#[cfg(feature = "std")]
pub use cm::{
    CmError, CmEvent, ConnectionManager, Directory, DirectoryError, FourTuple, Obstacle, Receives, MAX_PRIVATE_DATA,
    UNKNOWN_STREAM,
};
#[cfg(feature = "std")]
pub use device::{
    Armed, CompletionEvents, Device, DeviceError, InPlaceError, InPlaceQueue, KernelOperation, KernelOrder, PostError,
    Wait, MODERATION,
};
#[cfg(feature = "std")]
pub use memory::{Memory, Region, RemoteRegion};
#[cfg(feature = "std")]
pub use work::{Completion, CompletionStatus, Operation, Payload, WorkCompletion, WorkRequest};
