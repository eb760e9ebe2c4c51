//! The parts of a stream's state: its two directions, the anchor, the link, and the ends. Each enum has exactly the
//! states that occur.

use alloc::collections::VecDeque;

use crate::ring::{RxRing, TxRing};
use crate::stream::{Demotion, Failure, PeerFin, Revival, SocketError};
use crate::wire::{Accept, Markers, Nonce, Open, Record, RingDescriptor};
use crate::Reason;

/// Path of the outgoing direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum TxState {
    /// Application bytes go to the anchor.
    #[default]
    Anchor,
    /// A pledge is out; nothing has been sent beyond it.
    Pledged,
    /// Opener: our marker is on the anchor, or put off, and the acceptor's answer has not come.
    Paused,
    /// Application bytes go to the link.
    Link,
    /// RESUME written; the peer's consumed position has not come.
    Frozen,
    /// Replaying retained bytes on the anchor from this position on.
    Replay(u64),
}

/// Path of the incoming direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum RxState {
    /// The anchor carries application bytes.
    #[default]
    Anchor,
    /// At this position, which the application has reached, a marker stands on the anchor, or the pledge is void.
    Expect(u64),
    /// The ring carries application bytes; the anchor may carry a RESUME record.
    Link,
    /// As `Expect`, but RESUME has been written: after the marker comes the peer's RESUME.
    ExpectThenResume(u64),
    /// Waiting for the peer's RESUME record.
    AwaitResume,
    /// The anchor carries application bytes again; those up to this position were sent on the link before, so the
    /// anchor may not end without them.
    Replay(u64),
    /// The peer is gone permanently: no bytes will come but those in the ring.
    Drain,
}

/// The direction from this side's application to the peer's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Outgoing {
    pub(super) state: TxState,
    /// Application bytes accepted so far, on whichever path. While on the link: the ring's `sent()`.
    pub(super) position: u64,
    /// The ring at the peer, from ACCEPT until nothing is left to replay.
    pub(super) ring: Option<TxRing>,
    pub(super) shutdown: Shutdown,
    /// Bytes of the write that the peer has answered with a reset, because it reads no more.
    pub(super) refused: u32,
}

/// The direction from the peer's application to this side's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Incoming {
    pub(super) state: RxState,
    /// Application bytes handed out so far. While on the link: the ring's `consumed()`.
    pub(super) position: u64,
    /// The ring of this side, from ACCEPT on. There is none in `Anchor` and `Replay`.
    pub(super) ring: Option<RxRing>,
    pub(super) shutdown: Shutdown,
    pub(super) fin: PeerFin,
    /// Both directions were shut down where a marker may come: a reset answers application bytes there (SPEC §4.8.2).
    pub(super) refuses: bool,
}

/// Records and shutdowns to write on the anchor before any application byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct AnchorState {
    pub(super) records: VecDeque<Record>,
    /// Bytes of the first record that are written.
    pub(super) record_sent: usize,
}

/// The state of the stream's place on a link. Each attempt at promotion begins with a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LinkState {
    /// False once the link is dead or released, and before the first attempt.
    pub(super) alive: bool,
    pub(super) ours: OurSlot,
    pub(super) peer: PeerSlot,
    pub(super) attempt: Attempt,
    /// Acceptor: whether it has allowed the opener to put its marker off, which it has not written. Opener: whether it puts its
    /// marker off; before ACCEPT has come, whether it may.
    pub(super) markers: Markers,
    /// The stream is to leave the link, and has not begun to.
    pub(super) demotion: Option<Demotion>,
    /// See [`revived`](crate::Stream::revived).
    pub(super) revival: Option<Revival>,
}

impl LinkState {
    /// An attempt begins, with this side's slot, nonce and ring.
    pub(super) fn new(slot: u16, nonce: Nonce, ring_len: u32, markers: Markers) -> LinkState {
        let ours = OurSlot { number: slot, nonce, ring_len, ..OurSlot::default() };
        LinkState { alive: true, ours, markers, ..LinkState::default() }
    }
}

/// This side's slot on the link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OurSlot {
    pub(super) number: u16,
    pub(super) nonce: Nonce,
    /// Length of the ring that this side has registered.
    pub(super) ring_len: u32,
    pub(super) usage: SlotUse,
    /// CREDIT_WANT is sent, and CREDIT_GIVE has not come.
    pub(super) wants_credit: bool,
}

/// The peer's slot on the link, and the peer's messages about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PeerSlot {
    /// Set from OPEN or ACCEPT on.
    pub(super) name: Option<PeerName>,
    pub(super) usage: SlotUse,
    /// SWITCHED has come: the marker is on the anchor, so CLOSE does not mean that none will come.
    pub(super) switched: bool,
    /// Acceptor: this side has switched by UNMARKED, and the opener's marker, of this position, may come until its RESUME.
    pub(super) put_off: Option<u64>,
    /// READ_SHUT has come.
    pub(super) read_shut: bool,
    /// CREDIT_WANT has come, and CREDIT_GIVE is not sent.
    pub(super) wants_credit: bool,
}

/// The name of the peer's end of the stream in messages and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerName {
    pub(super) slot: u16,
    pub(super) nonce: Nonce,
}

/// The state of this side's socket as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Socket {
    /// At least one descriptor is open.
    Open,
    /// The last holder has closed it.
    Closed,
    /// The last holder has closed it, and the anchor is to end with a reset once the peer needs nothing more (SPEC
    /// §4.8.7).
    ClosedWithReset,
}

/// How a stream has failed, and whether the program has received the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Failed {
    pub(super) cause: Cause,
    /// For the first call that reports errors; `None` if there is nothing to report, or it is reported.
    pub(super) error: Option<SocketError>,
}

/// The cause of a stream's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// RESET on the link alone: the anchor has not carried it, so the stream can be revived (SPEC §4.8.8).
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

/// One side's use of a slot on the link, as far as it has announced it there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum SlotUse {
    /// It has sent neither DEMOTE nor CLOSE.
    #[default]
    Used,
    /// DEMOTE is sent: the side leaves the link.
    Leaving,
    /// CLOSE is sent, without DEMOTE before it.
    Closed,
    /// CLOSE is sent after DEMOTE: it frees the slot, and does not mean that the socket is closed (SPEC §4.8.8).
    Left,
}

impl SlotUse {
    /// Whether CLOSE is sent, so that the side does not use the slot any more.
    #[inline]
    pub(super) fn is_closed(self) -> bool {
        matches!(self, SlotUse::Closed | SlotUse::Left)
    }

    /// DEMOTE is sent. After CLOSE it would have no meaning.
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

/// The event that an attempt at promotion waits for, where the paths of the directions do not show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Attempt {
    /// Nothing.
    #[default]
    Idle,
    /// Opener: the link's answer to an OPEN whose pledge is void. ACCEPT is to be answered with CLOSE (SPEC §4.2.4).
    Voided,
    /// Acceptor: the application has not read everything before the opener's pledge, so OPEN is not answered (SPEC §4.2.7).
    /// With the nonce and the ring of this side.
    DeferredOpen { open: Open, nonce: Nonce, ring: RingDescriptor },
    /// Opener: the application has not read everything before the acceptor's pledge, so the marker is not written
    /// (SPEC §4.2.8).
    DeferredAccept(Accept),
}

/// The progress of the shutdown of one direction by this side's application.
///
/// A direction that is shut down never returns to the link once the stream is plain (SPEC §4.1.1), so nothing follows
/// `OnAnchor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Shutdown {
    /// The application uses the direction.
    #[default]
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

/// Data for display only. Streams that differ only in this are equal, so that a model checker takes them for one state.
#[derive(Clone, Copy, Debug)]
pub(super) struct History {
    pub(super) promotions: u32,
    pub(super) last_reason: Reason,
}

impl PartialEq for History {
    fn eq(&self, _: &History) -> bool {
        true
    }
}

impl Eq for History {}

impl core::hash::Hash for History {
    fn hash<H: core::hash::Hasher>(&self, _: &mut H) {}
}
