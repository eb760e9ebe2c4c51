//! Points on the way of a stream's bytes, for a trace of where their time goes.
//!
//! The driver has no clock: a [`ReadySink`](crate::ReadySink) that traces gives each mark its time.
//!
//! Invariant: a mark is made where both ends agree on the position. On a link it counts as the protocol does, on the
//! anchor as the kernel does; the two begin anew at each change of path.

use netacc_proto::{Reason, Role};

/// A mark, and where in the stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// What has happened.
    pub mark: Mark,
    /// Bytes of the direction up to there, on the path of the mark.
    pub position: u64,
    /// Why the stream is on its anchor, for marks of anchors.
    pub reason: Reason,
    /// The end of the connection that makes it.
    pub role: Role,
}

/// A point on the way of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Sender, link: room is claimed, and the copy begins. The position is that of the first byte.
    Claimed,
    /// Sender, link: the bytes are copied.
    Copied,
    /// Sender, link: the message is posted.
    Posted,
    /// Sender, link: the bytes are held back, because the program corked them or because the queue has no room.
    Held,
    /// Sender, link: there is no credit for more.
    Stalled,
    /// Receiver, link: the message's completion is handled.
    Arrived,
    /// Receiver, link: the program has the bytes.
    Read,
    /// Sender, anchor: the kernel has taken the bytes.
    AnchorSent {
        /// As the kernel counts.
        position: u64,
    },
    /// Receiver, anchor: the program has the bytes.
    AnchorRead {
        /// As the kernel counts.
        position: u64,
    },
}
