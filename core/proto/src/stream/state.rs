//! The states that a stream has besides the paths of its two directions. Each type has exactly the combinations that occur.

use crate::stream::{Failure, SocketError};
use crate::wire::{Accept, Nonce, Open, RingDescriptor};

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

/// How a stream has failed, and whether the program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Failed {
    pub(super) cause: Cause,
    /// For the first call that reports errors; `None` if there is nothing to report, or it is reported.
    pub(super) error: Option<SocketError>,
}

/// Why a stream has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// RESET on the link alone: the anchor does not know of it, so the stream can be revived (SPEC §4.8.8).
    ResetOnLink,
    /// The peer aborted or died, or this side aborted.
    Reset,
    /// The peer broke the protocol.
    Violation(&'static str),
}

impl From<Failure> for Cause {
    fn from(failure: Failure) -> Cause {
        match failure {
            Failure::PeerReset => Cause::Reset,
            Failure::Violation(what) => Cause::Violation(what),
        }
    }
}

impl From<Cause> for Failure {
    fn from(cause: Cause) -> Failure {
        match cause {
            Cause::ResetOnLink | Cause::Reset => Failure::PeerReset,
            Cause::Violation(what) => Failure::Violation(what),
        }
    }
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

/// What one side does with a slot on the link, as far as it has said so there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SlotUse {
    /// It has sent neither DEMOTE nor CLOSE.
    Used,
    /// DEMOTE is sent: the side leaves the link.
    Leaving,
    /// CLOSE is sent, without DEMOTE before it.
    Closed,
    /// CLOSE is sent after DEMOTE: it frees the slot, and says nothing of the socket (SPEC §4.8.8).
    Left,
}

impl SlotUse {
    /// Whether CLOSE is sent, so that the side uses the slot no more.
    #[inline]
    pub(super) fn is_closed(self) -> bool {
        matches!(self, SlotUse::Closed | SlotUse::Left)
    }

    /// DEMOTE is sent. After CLOSE it would say nothing.
    pub(super) fn leave(&mut self) {
        if *self == SlotUse::Used {
            *self = SlotUse::Leaving;
        }
    }

    /// CLOSE is sent.
    pub(super) fn close(&mut self) {
        *self = match self {
            SlotUse::Used | SlotUse::Closed => SlotUse::Closed,
            SlotUse::Leaving | SlotUse::Left => SlotUse::Left,
        };
    }
}

/// What an attempt at promotion waits for, where the paths of the directions do not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Attempt {
    /// Nothing.
    Settled,
    /// Opener: the link's answer to an OPEN whose pledge is void. ACCEPT is to be answered with CLOSE (SPEC §4.2.4).
    Voided,
    /// Acceptor: the application has not read everything before the opener's pledge, so OPEN is not answered (SPEC §4.2.7).
    /// With the nonce and the ring of this side.
    HeldOpen { open: Open, nonce: Nonce, ring: RingDescriptor },
    /// Opener: the application has not read everything before the acceptor's pledge, so the marker is not written
    /// (SPEC §4.2.8).
    HeldAccept(Accept),
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
