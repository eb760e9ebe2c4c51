//! One accelerated socket, shared by threads.
//!
//! * [`cell`]: a stream, and what can be asked without its lock.
//! * [`inner`]: what it and its anchor show under its lock, without the endpoint.
//! * [`states`]: the parts and states of what the lock covers.
//! * [`held`]: what it holds back.
//! * [`guard`]: the stream while it is locked; every change of it is flushed before it is unlocked.
//! * [`transfer`]: bytes on the link.
//! * [`cork`]: bytes that are held back.
//! * [`anchor`]: records and replay on the anchor, and its end.
//! * [`stall`]: leaving a link whose peer takes nothing.
//! * [`ending`]: leaving the link, shutting down, closing.
//! * [`flush`]: what follows from a change: messages, records, readiness.
//!
//! The first four know no endpoint. The endpoint is above them, and below the others.
//!
//! Invariant: all bits of a stream's readiness but [`Readiness::NOTICE`](crate::Readiness::NOTICE) are changed only by who
//! has it locked.

mod anchor;
mod cell;
mod cork;
mod ending;
mod flush;
mod guard;
mod held;
mod inner;
mod stall;
mod states;
mod transfer;

pub use anchor::{AnchorEvent, AnchorProgress};
pub(crate) use cell::{Attachment, Outgoing};
pub use cell::{LinkCell, StreamCell};
pub use ending::Shutdown;
pub use guard::{LockedStream, StreamGuard, PLEDGE_PATIENCE};
pub(crate) use held::CORK_INTERVAL;
pub use stall::STALL_PATIENCE;
pub(crate) use states::{Claim, LingerProgress, Noted, Referral};
pub use transfer::LinkIo;
