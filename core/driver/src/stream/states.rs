//! The states of a stream that its protocol state machine does not know, and the parts of what its lock covers.

use netacc_device::{AnchorPosition, Instant, PeerAddress, QueuePairId};

use super::held::Cork;

/// The attempt at promotion, beside what the protocol knows of it.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) referral: Referral,
    /// The attempt that the endpoint knows another link to contest.
    pub(crate) contested: Option<Claim>,
}

/// Whether the peer has named another process that holds the connection's other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Referral {
    /// It has not.
    #[default]
    None,
    /// It has: the stream is opened there once it has left the link.
    To(PeerAddress),
    /// This attempt is at that process. Another referral is not followed.
    Followed,
}

impl Referral {
    /// The process that the peer has named, if it is still to be asked. The stream turns to it now.
    pub(crate) fn take(&mut self) -> Option<PeerAddress> {
        let Referral::To(peer) = *self else { return None };
        *self = Referral::None;
        Some(peer)
    }
}

/// A slot of a link that a stream has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) link: QueuePairId,
    pub(crate) slot: u16,
}

/// Whether the application still has the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    Open,
    /// It has closed its last descriptor; records may still travel on the anchor.
    Closed(Lingering),
}

/// How far a closed stream has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lingering {
    /// At the endpoint's last look.
    pub(crate) seen: LingerProgress,
    /// Bytes for the closed socket were thrown away: it ends with a reset, as from the kernel.
    pub(crate) refused: bool,
}

/// What moves while a closed stream lingers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LingerProgress {
    /// Bytes written to the anchor.
    pub(crate) written: u64,
    /// Bytes that the peer has not consumed.
    pub(crate) unconsumed: u64,
}

impl Closing {
    /// Whether the application has closed the stream.
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Closing::Closed(_))
    }

    /// The application has closed the stream, now or before.
    pub(crate) fn close(&mut self) {
        if *self == Closing::Open {
            *self = Closing::Closed(Lingering::default());
        }
    }

    /// Bytes for a closed socket are thrown away.
    pub(crate) fn refuse(&mut self) {
        if let Closing::Closed(lingering) = self {
            lingering.refused = true;
        }
    }

    /// Whether bytes were thrown away.
    pub(crate) fn has_refused(self) -> bool {
        matches!(self, Closing::Closed(Lingering { refused: true, .. }))
    }

    /// The endpoint finds a closed stream at `now`. Whether it has moved since the last look.
    pub(crate) fn has_moved_to(&mut self, now: LingerProgress) -> bool {
        match self {
            Closing::Open => false,
            Closing::Closed(lingering) => std::mem::replace(&mut lingering.seen, now) != now,
        }
    }
}

bitflags::bitflags! {
    /// The lists of the endpoint that the stream is on: each notes it once.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Noted: u8 {
        /// The application waits to write until the pledge is answered.
        const PLEDGED = 1;
        /// Something was seen on the anchor that counts once the link has been polled.
        const LOOK = 2;
        /// Records or replay wait for room on the anchor.
        const BLOCKED = 4;
        /// The link has no room.
        const STALLED = 8;
        /// Neither side uses the stream's place on the link any more.
        const RELEASE = 16;
    }
}

impl Noted {
    /// Adds a list. Whether the stream was not on it.
    pub(crate) fn add(&mut self, list: Noted) -> bool {
        let new = !self.contains(list);
        self.insert(list);
        new
    }

    /// Takes the stream off a list. Whether it was on it.
    pub(crate) fn take(&mut self, list: Noted) -> bool {
        let was = self.contains(list);
        self.remove(list);
        was
    }
}

/// The changes of the stream that the process has counted.
#[derive(Default)]
pub(crate) struct Reported {
    pub(crate) promotions: u32,
    /// The last promotion was counted, and no demotion since.
    pub(crate) linked: bool,
    /// Its peer has broken the protocol.
    pub(crate) violation: bool,
}

/// A stream's anchor, as far as this process knows it.
pub(crate) struct AnchorState {
    /// Bytes that this process has written to and read from the anchor, records included.
    pub(crate) carried: AnchorPosition,
    /// Others may have used the anchor too: ask it.
    pub(crate) recount: bool,
    pub(crate) end: AnchorEnd,
    /// So many bytes that may be the beginning of a record are next on the anchor, and the endpoint knows.
    pub(crate) partial: usize,
    /// Since when somebody waits for what comes again on the anchor; see [`has_replay`](crate::LockedStream::has_replay).
    pub(crate) replay_since: Option<Instant>,
    /// SO_RCVLOWAT of the anchor.
    pub(crate) low_water: u32,
}

impl AnchorState {
    /// Of an anchor that has carried nothing yet.
    pub(crate) fn new() -> AnchorState {
        AnchorState {
            carried: AnchorPosition { written: 0, read: 0 },
            recount: false,
            end: AnchorEnd::default(),
            partial: 0,
            replay_since: None,
            low_water: 1,
        }
    }
}

/// What this process knows of the anchor's end. Each comes from another source, in any order.
#[derive(Default)]
pub(crate) struct AnchorEnd {
    /// The kernel has said that the peer has ended its direction.
    pub(crate) reported: bool,
    /// The peer's FIN was read: the kernel will tell a reader of no reset that comes after it.
    pub(crate) fin_seen: bool,
    /// A call of ours was told that the anchor is broken. The kernel tells of it once.
    pub(crate) broken: bool,
    /// The stream has taken the end in.
    pub(crate) handled: bool,
    /// The anchor has ended in another way than the stream.
    pub(crate) differs: bool,
    /// How often the anchor was seen to have ended, but not by the reset that is to come; see `provoke_reset`.
    pub(crate) looks: u32,
}

/// Outgoing messages and credit.
pub(crate) struct Sending {
    /// The largest DATA message.
    pub(crate) message_len: u32,
    /// Bytes in the peer's ring that no message has announced.
    pub(crate) cork: Cork,
    /// A write found byte credit but no room for a message.
    pub(crate) crowded: bool,
    /// Messages sent since the peer's last one.
    pub(crate) unheard: u32,
    /// Consumed position last told to the peer.
    pub(crate) told: u64,
}

impl Sending {
    /// Of a stream that has sent nothing yet.
    pub(crate) fn new(message_len: u32) -> Sending {
        Sending { message_len, cork: Cork::default(), crowded: false, unheard: 0, told: 0 }
    }
}

/// The progress of a peer whose stream has no room.
#[derive(Default)]
pub(crate) struct Stall {
    /// When that was looked at last.
    pub(crate) taken: Taken,
    /// Since when the peer has taken nothing more.
    pub(crate) since: Option<Instant>,
}

/// Bytes of the stream and messages of the link that a peer has taken. The peer has moved if either has grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}
