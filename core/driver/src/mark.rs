//! Points on the way of a stream's bytes, for a trace of where their time goes.
//!
//! The driver has no clock: a [`ReadySink`](crate::ReadySink) that traces gives each mark its time.
//!
//! Invariant: a mark is made where both ends agree on the position. On a link it counts as the protocol does, on the
//! anchor as the kernel does; the two begin anew at each change of path.

/// A point on the way of bytes. Its position is the number of bytes of the direction up to it, on the path named.
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
