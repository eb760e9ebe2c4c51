//! One accelerated socket, shared by threads.
//!
//! * [`cell`]: a stream, and the state that is readable without its lock.
//! * [`addresses`]: the addresses of its connection.
//! * [`lazy`]: its anchor, before it is used.
//! * [`inner`]: state that a stream and its anchor show under its lock, without the endpoint.
//! * [`states`]: the parts and states that the lock covers.
//! * [`corked`]: the bytes that it holds back.
//! * [`guard`]: the stream while it is locked; every change of it is flushed before it is unlocked.
//! * [`transfer`]: bytes on the link.
//! * [`short`]: a short message that has no other effect.
//! * [`rest`]: bytes of a stream that the kernel alone has.
//! * [`cork`]: bytes that are held back.
//! * [`anchor`]: records and replay on the anchor, and its end.
//! * [`stall`]: leaving a link whose peer reads nothing.
//! * [`growth`]: the memory that messages take in the peer's ring.
//! * [`ending`]: leaving the link, shutting down, closing.
//! * [`flush`]: the effects of a change: messages, records, readiness.
//!
//! The first six do not depend on the endpoint. The endpoint is above them, and below the others.
//!
//! Invariant: only the thread that has a stream locked changes the bits of its readiness, except
//! [`Readiness::NOTICE`](crate::Readiness::NOTICE).

mod addresses;
mod anchor;
mod cell;
mod cork;
mod corked;
mod ending;
mod flush;
mod growth;
mod guard;
mod inner;
mod lazy;
mod rest;
mod short;
mod source;
mod stall;
mod states;
mod transfer;

pub use addresses::Addresses;
pub use anchor::{AnchorEvent, AnchorProgress};
pub(crate) use cell::{Attachment, Identity, Outgoing};
pub use cell::{LinkCell, StreamCell};
pub(crate) use corked::CORK_INTERVAL;
pub use ending::Shutdown;
pub use growth::IDLE_AFTER;
pub use guard::{LockedStream, StreamGuard, PLEDGE_PATIENCE};
pub use lazy::LazyAnchor;
pub use stall::STALL_PATIENCE;
pub(crate) use states::{Claim, LingerProgress, Listed, Referral};
pub use transfer::LinkIo;
