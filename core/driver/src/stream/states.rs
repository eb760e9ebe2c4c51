//! The states of a stream that its protocol state machine does not have, and the parts that its lock covers.

use netacc_device::{AnchorPosition, Instant, PeerAddress, QueuePairId};
use netacc_proto::Reason;

use super::corked::Cork;
use crate::counted::Tallied;

/// The attempt at promotion, beside the protocol's own state of it.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) referral: Referral,
    /// The attempt that another link contests, as far as the endpoint has recorded it.
    pub(crate) contested: Option<Claim>,
    /// While the stream is being opened: its place among those for which the peer's answer is awaited.
    pub(crate) opening: Option<Tallied>,
}

/// Whether the peer has named another process that holds the connection's other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Referral {
    /// It has not.
    #[default]
    None,
    /// It has: the stream is opened there once it has left the link.
    To(PeerAddress),
    /// This attempt is at that process. A second referral is not followed.
    Followed,
}

impl Referral {
    /// The process that the peer has named, if it is still to be tried. From now on the stream is opened there.
    pub(crate) fn take(&mut self) -> Option<PeerAddress> {
        let Referral::To(peer) = *self else { return None };
        *self = Referral::None;
        Some(peer)
    }
}

/// A stream's slot on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) link: QueuePairId,
    pub(crate) slot: u16,
}

/// Whether the program still has the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    Open,
    /// It has closed its last descriptor; records may still travel on the anchor.
    Closed(Lingering),
}

/// How far a closed stream has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lingering {
    /// The state at the endpoint's last check.
    pub(crate) seen: LingerProgress,
    /// Bytes for the closed socket were discarded: it ends with a reset, as from the kernel.
    pub(crate) refused: bool,
}

/// The counts that move while a closed stream lingers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LingerProgress {
    /// Bytes written to the anchor.
    pub(crate) written: u64,
    /// Bytes that the peer has not consumed.
    pub(crate) unconsumed: u64,
}

impl Closing {
    /// Whether the program has closed the stream.
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Closing::Closed(_))
    }

    /// The program has closed the stream, now or before.
    pub(crate) fn close(&mut self) {
        if *self == Closing::Open {
            *self = Closing::Closed(Lingering::default());
        }
    }

    /// Bytes for a closed socket are discarded.
    pub(crate) fn refuse(&mut self) {
        if let Closing::Closed(lingering) = self {
            lingering.refused = true;
        }
    }

    /// Whether bytes were discarded.
    pub(crate) fn has_refused(self) -> bool {
        matches!(self, Closing::Closed(Lingering { refused: true, .. }))
    }

    /// The endpoint finds a closed stream at `now`. Whether it has moved since the last check.
    pub(crate) fn has_moved_to(&mut self, now: LingerProgress) -> bool {
        match self {
            Closing::Open => false,
            Closing::Closed(lingering) => std::mem::replace(&mut lingering.seen, now) != now,
        }
    }
}

bitflags::bitflags! {
    /// The lists of the endpoint that the stream is on: each contains it once.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Listed: u8 {
        /// The program waits to write until the pledge is answered.
        const PLEDGED = 1;
        /// An event was seen on the anchor that counts once the link has been polled.
        const CHECK = 2;
        /// Records or replay wait for room on the anchor.
        const BLOCKED = 4;
        /// The link has no room.
        const STALLED = 8;
        /// Neither side uses the stream's place on the link any more.
        const RELEASE = 16;
        /// The program has closed the stream, which has not come to its end.
        const LINGERING = 32;
        /// More than the beginning of the peer's ring was written.
        const GROWN = 64;
    }
}

impl Listed {
    /// Adds a list. Returns whether the stream was not on it.
    pub(crate) fn add(&mut self, list: Listed) -> bool {
        let new = !self.contains(list);
        self.insert(list);
        new
    }

    /// Takes the stream off a list. Returns whether it was on it.
    pub(crate) fn take(&mut self, list: Listed) -> bool {
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
    /// How bytes moved after its last change. Messages that move in one step, and bytes on the anchor, do not change that.
    pub(crate) flow: Flow,
}

/// How bytes move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The stream changes its path, is about to, or is ending; or this is not known.
    #[default]
    Changing,
    /// The stream is [steady](crate::LockedStream::is_steady).
    Link,
    /// The kernel alone has the stream, and bytes that move there [have no effect](netacc_proto::Stream::is_at_rest).
    Anchor,
}

/// A stream's anchor, in this process's view.
pub(crate) struct AnchorState {
    /// Bytes that this process has written to and read from the anchor, records included.
    pub(crate) carried: AnchorPosition,
    /// Others may have used the anchor too: query the kernel's counts.
    pub(crate) recount: bool,
    pub(crate) end: AnchorEnd,
    /// The beginning of a record, perhaps, that is next on the anchor.
    pub(crate) partial: Partial,
    /// Since when the replay on the anchor is waited for; see [`has_replay`](crate::LockedStream::has_replay).
    pub(crate) replay_since: Option<Instant>,
    /// SO_RCVLOWAT of the anchor.
    pub(crate) low_water: u32,
    pub(crate) takers: Takers,
}

impl AnchorState {
    /// The state of an anchor that has carried nothing yet.
    pub(crate) fn new() -> AnchorState {
        AnchorState {
            carried: AnchorPosition { written: 0, read: 0 },
            recount: false,
            end: AnchorEnd::default(),
            partial: Partial::default(),
            replay_since: None,
            low_water: 1,
            takers: Takers::Admitted(0),
        }
    }
}

/// The threads that sleep in the kernel and take bytes off the anchor there: see
/// [`StreamCell::take_asleep`](crate::StreamCell::take_asleep). They would also take a record, so no attempt at promotion begins
/// meanwhile. A thread that leaves its call by a jump out of a signal handler is counted for ever, and its stream stays on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takers {
    /// There are so many, and others may join them.
    Admitted(u32),
    /// A promotion has been attempted. There are so many left, and no thread joins them.
    Leaving(u32),
}

impl Takers {
    /// A thread is about to sleep. Whether it may take bytes there.
    #[inline]
    pub(crate) fn join(&mut self) -> bool {
        match self {
            Takers::Admitted(count) => {
                *count += 1;
                true
            }
            Takers::Leaving(_) => false,
        }
    }

    /// A thread that has joined is up.
    #[inline]
    pub(crate) fn leave(&mut self) {
        let (Takers::Admitted(count) | Takers::Leaving(count)) = self;
        *count = count.saturating_sub(1);
    }

    /// A promotion is attempted.
    ///
    /// # Errors
    /// There are some: it fails.
    pub(crate) fn dismiss(&mut self) -> Result<(), Reason> {
        let (Takers::Admitted(count) | Takers::Leaving(count)) = *self;
        *self = Takers::Leaving(count);
        if count > 0 {
            return Err(Reason::PeerBusy);
        }
        Ok(())
    }
}

/// Bytes that may be the beginning of a record. While there are any, the endpoint has a timer for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Partial {
    /// The number of bytes; 0: none.
    pub(crate) len: usize,
    /// The number of beginnings so far. The endpoint's timer for an earlier one is stale.
    pub(crate) number: u32,
}

impl Partial {
    /// So many bytes are there. Returns the number of this beginning, unless it was there before.
    pub(crate) fn begin(&mut self, len: usize) -> Option<u32> {
        if std::mem::replace(&mut self.len, len) > 0 {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        Some(self.number)
    }

    /// The bytes were a record, or were none.
    pub(crate) fn end(&mut self) {
        self.len = 0;
    }
}

/// This process's view of the anchor's end. Each field comes from another source, in any order.
#[derive(Default)]
pub(crate) struct AnchorEnd {
    /// The kernel has reported that the peer has ended its direction.
    pub(crate) reported: bool,
    /// The peer's FIN was read: the kernel will report no later reset to a reader.
    pub(crate) fin_seen: bool,
    /// The kernel reported to a call of ours that the anchor is broken. The kernel reports it once.
    pub(crate) broken: bool,
    /// The stream has handled the end.
    pub(crate) handled: bool,
    /// The anchor has ended in another way than the stream.
    pub(crate) differs: bool,
    /// The number of times that the anchor was seen to have ended, but not by the reset that is to come; see
    /// `provoke_reset`.
    pub(crate) checks: u32,
}

/// Outgoing messages and credit.
pub(crate) struct Sending {
    /// The largest DATA message.
    pub(crate) message_len: u32,
    /// Bytes in the peer's ring that no message has announced.
    pub(crate) cork: Cork,
    /// A write found byte credit but no room for a message.
    pub(crate) crowded: bool,
    /// Messages sent since the peer's last one. Short ones count only where the device reports completions.
    pub(crate) unanswered: u32,
    /// Consumed position last announced to the peer.
    pub(crate) announced: u64,
    /// The position after the last byte written, as the endpoint saw it when it last checked the memory of the peer's ring.
    pub(crate) written: u64,
}

impl Sending {
    /// The state of a stream that has sent nothing yet.
    pub(crate) fn new(message_len: u32) -> Sending {
        Sending { message_len, cork: Cork::default(), crowded: false, unanswered: 0, announced: 0, written: 0 }
    }
}

/// The progress of a peer whose stream has no room.
#[derive(Default)]
pub(crate) struct Stall {
    /// The time of the last check.
    pub(crate) taken: Taken,
    /// The time since which the peer has read nothing.
    pub(crate) since: Option<Instant>,
}

/// The bytes of the stream and the messages of the link that a peer has taken. The peer has moved if either has grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}
