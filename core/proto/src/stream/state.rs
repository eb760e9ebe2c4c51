//! The states that a stream has besides the paths of its two directions. Each type has exactly the combinations that occur.

/// What this side's application has done with its socket as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Socket {
    /// At least one descriptor is open.
    Open,
    /// The last holder has closed it.
    Closed,
    /// The last holder has closed it, and the anchor is to end with a reset once the peer wants nothing more
    /// (SPEC §4.8.7).
    ClosedWithReset,
}

/// What is known of the end of the peer's direction from the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PeerFin {
    /// No FIN has come on the link.
    Awaited,
    /// FIN has come: the direction ends after what is in the ring.
    Received,
    /// FIN had come when this side left the link, or came afterwards. The anchor brings the end again (SPEC §4.5.4).
    Repeated,
}

/// How far the shutdown of one direction, by this side's application, has got.
///
/// A direction that is shut down never returns to the link once the stream is plain (SPEC §4.1.1), so nothing follows
/// `OnAnchor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shutdown {
    /// The application uses the direction.
    Open,
    /// The application has shut it down. Neither path has carried that.
    Pending,
    /// FIN or READ_SHUT is sent on the link.
    OnLink,
    /// The anchor's direction is shut down.
    OnAnchor,
}

impl Shutdown {
    /// Whether the application has shut the direction down.
    #[inline]
    pub(super) fn is_wanted(self) -> bool {
        self != Shutdown::Open
    }

    /// The link's message does not count any more: the anchor is to carry the end as well.
    pub(super) fn repeat_on_anchor(&mut self) {
        if *self == Shutdown::OnLink {
            *self = Shutdown::Pending;
        }
    }
}
