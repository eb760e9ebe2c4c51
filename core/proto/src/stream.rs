//! One accelerated socket: which path its bytes take, in each direction, and how that changes.
//!
//! The idea (SPEC §4): both ends first *pledge* over the link a position at which they may switch; only then does
//! anybody write a *marker* there. So every uncertain step is settled by reading the anchor at a known position,
//! whatever becomes of the link:
//!
//! ```text
//!   opener                                  acceptor
//!   tx Pledged(p)   --OPEN(p)-->            rx Expect(p)
//!   rx Expect(q)    <--ACCEPT(q)--          tx Pledged(q)
//!   tx Paused(p)    ==marker at p==>        (reads it) tx Link, rx Link
//!   tx Link,rx Link <==marker at q==
//! ```
//! (`--` link, `==` anchor.) A pledge is voided by simply sending application bytes at its position; the reader sees
//! that they are no marker. Leaving the link, orderly or because it died, is one mechanism: each end freezes what it
//! has consumed and writes a RESUME record with that position on its now idle anchor direction; each replays from the
//! position it reads.
//!
//! Invariants:
//! * a marker is written only by a side that knows its peer to expect one at that position, and to have read everything
//!   before it;
//! * application bytes travel on the anchor only in `Anchor`, and after a RESUME exchange;
//! * the acceptor's `tx` leaves `Pledged` for `Link` only if it was not voided, and the opener's leaves `Paused` for
//!   `Link` only on the acceptor's marker (or, with `trust_hints`, its word on the link);
//! * bytes are retained until the peer's application has consumed them.

mod anchor;
mod data;
mod driver;
mod end;
mod state;
mod switch;
mod tcp;

use alloc::collections::VecDeque;

use crate::ring::{RxRing, TxRing};
use crate::wire::{ControlMessage, MessageKind, Nonce, Record};
use crate::Reason;

use state::{Attempt, Failed, PeerFin, Shutdown, SlotUse, Socket};

pub use anchor::{AnchorWrite, RecordVerdict, RECORD_GRACE};
pub use end::LINGER_LIMIT;
pub use tcp::{SocketError, TcpState};

/// Which end of the TCP connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that called `connect`. It opens.
    Opener,
    /// The side that called `accept`.
    Acceptor,
}

/// Settings of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamConfig {
    /// Act on the peer's SWITCHED message without having read its marker. Sound where the directory vouches for
    /// the peer (same user, same host); elsewhere the marker on the anchor is the proof.
    pub trust_hints: bool,
}

/// Where a stream stands as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// On the anchor, no link involved.
    Plain,
    /// Between the first pledge and the last marker.
    Promoting,
    /// Both directions have switched.
    Linked,
    /// Coming back to the anchor.
    Resuming,
}

/// Path of the outgoing direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TxState {
    /// Application bytes go to the anchor.
    Anchor,
    /// A pledge is out; nothing has been sent beyond it.
    Pledged,
    /// Opener: our marker is on the anchor, the acceptor's answer is not known.
    Paused,
    /// Application bytes go to the link.
    Link,
    /// RESUME written; the peer's consumed position is not known.
    Frozen,
    /// Replaying retained bytes on the anchor from this position on.
    Replay(u64),
}

/// Path of the incoming direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RxState {
    /// The anchor carries application bytes.
    Anchor,
    /// At this position, where the application has read to, a marker stands on the anchor, or the pledge is void.
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
    /// The peer is gone for good: what the ring holds is all there will be.
    Drain,
}

/// Why a stream ended otherwise than by FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The peer aborted or died: ECONNRESET.
    PeerReset,
    /// The peer broke the protocol: ECONNRESET, and it is told so.
    Violation(&'static str),
}

/// Why a stream leaves the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demotion {
    /// The link is dead.
    LinkFailed,
    /// The application, an operator, or a rule of sharing wants a plain socket.
    Requested(Reason),
}

/// A reset with which the anchor of a stream that left its link is to end (SPEC §4.8.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revival {
    /// The application learns of the reset from the anchor.
    Unreported,
    /// The application has had the error already.
    Reported,
}

/// Where application writes go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxSink {
    /// To the anchor.
    Anchor,
    /// To the ring: `claim`, fill, `commit`.
    Link,
    /// A pledge is out: wait a moment for the answer, or `void_pledge` and write to the anchor.
    Pledged,
    /// Not now; the peer or the anchor must act first.
    Wait,
    /// Nowhere: the peer reads no more. What is written is thrown away: [`refuse_write`](Stream::refuse_write).
    Refused,
    /// Never again: the direction is shut down, or the stream failed.
    Closed,
}

/// Where application reads come from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxSource {
    /// From the anchor, at most this many bytes.
    Anchor(u64),
    /// The next bytes of the anchor are a record, or settle that there is none: peek, `handle_record`.
    Record,
    /// From the ring. The anchor, if readable, has a record.
    Link,
    /// Nothing more will come: end of stream.
    Eof,
    /// Nothing more will come: the stream failed, and nobody has been told.
    Failed(Failure),
}

/// What the receiver owes the sender after consuming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Write this consumed position into the peer's credit word, if `tell`.
    pub consumed: u64,
    /// The peer's region may still be written to. Once false, it may already belong to somebody else.
    pub tell: bool,
    /// And wake it: it asked for credit.
    pub give: bool,
}

/// A message to send on the link for this stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Control {
    /// With a payload, in a control slot.
    Message(ControlMessage),
    /// All in the immediate, addressed to the peer's slot.
    Signal(MessageKind),
}

/// What is only for display. Streams that differ in nothing else are equal, so that a model checker takes them for
/// one state.
#[derive(Clone, Copy, Debug)]
struct History {
    promotions: u32,
    last_reason: Reason,
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

/// The state machine of one stream. See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    role: Role,
    config: StreamConfig,
    tx: TxState,
    rx: RxState,
    /// Application bytes accepted so far, on whichever path. While on the link: `tx_ring.sent()`.
    tx_position: u64,
    /// Application bytes handed out so far. While on the link: `rx_ring.consumed()`.
    rx_position: u64,
    tx_ring: Option<TxRing>,
    rx_ring: Option<RxRing>,
    /// Length of the ring that this side registered for the current attempt.
    rx_ring_len: u32,
    /// Our slot and the peer's on the current link.
    slot: u16,
    peer_slot: Option<u16>,
    our_nonce: Nonce,
    peer_nonce: Nonce,
    /// False once the link is dead or released.
    link_alive: bool,
    attempt: Attempt,
    demote_pending: Option<Demotion>,
    /// The opener's SWITCHED has come: its marker is on the anchor, so a CLOSE does not mean that none will come.
    announced: bool,
    /// Peer asked for credit that it did not have.
    peer_wants: bool,
    /// We asked, and have not seen credit since.
    we_want: bool,
    tx_shutdown: Shutdown,
    rx_shutdown: Shutdown,
    peer_fin: PeerFin,
    /// Both directions were shut down where a marker may come: what comes instead is for nobody.
    refuses: bool,
    /// The peer's application has shut down reading.
    peer_rx_shutdown: bool,
    /// Bytes of the write that the peer has answered with a reset, because it reads no more.
    refused: u32,
    our_use: SlotUse,
    peer_use: SlotUse,
    socket: Socket,
    /// See [`revived`](Stream::revived).
    revival: Option<Revival>,
    failed: Option<Failed>,
    records: VecDeque<Record>,
    record_sent: usize,
    controls: VecDeque<Control>,
    history: History,
}

impl Stream {
    /// A stream that is plain TCP so far.
    pub fn new(role: Role, config: StreamConfig) -> Stream {
        Stream {
            role,
            config,
            tx: TxState::Anchor,
            rx: RxState::Anchor,
            tx_position: 0,
            rx_position: 0,
            tx_ring: None,
            rx_ring: None,
            rx_ring_len: 0,
            slot: 0,
            peer_slot: None,
            our_nonce: [0; 16],
            peer_nonce: [0; 16],
            link_alive: false,
            attempt: Attempt::Settled,
            demote_pending: None,
            announced: false,
            peer_wants: false,
            we_want: false,
            tx_shutdown: Shutdown::Open,
            rx_shutdown: Shutdown::Open,
            peer_fin: PeerFin::Awaited,
            refuses: false,
            peer_rx_shutdown: false,
            refused: 0,
            our_use: SlotUse::Used,
            peer_use: SlotUse::Used,
            socket: Socket::Open,
            revival: None,
            failed: None,
            records: VecDeque::new(),
            record_sent: 0,
            controls: VecDeque::new(),
            history: History { promotions: 0, last_reason: Reason::NotYet },
        }
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Where the stream stands.
    pub fn phase(&self) -> Phase {
        use {RxState as R, TxState as T};
        match (self.tx, self.rx) {
            (T::Anchor, R::Anchor | R::Replay(_)) => Phase::Plain,
            // The peer is gone and what it sent is in the ring, perhaps after older bytes on the anchor.
            (T::Anchor, R::Drain) => Phase::Linked,
            (T::Anchor, R::Expect(_)) if self.peer_is_done() => Phase::Linked,
            (T::Pledged | T::Paused, _) | (T::Anchor, R::Expect(_)) => Phase::Promoting,
            (T::Link, R::Link | R::Expect(_) | R::Drain) => Phase::Linked,
            _ => Phase::Resuming,
        }
    }

    /// Both directions use the link only: nothing but a record can be on the anchor.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.tx == TxState::Link && self.rx == RxState::Link
    }

    /// Our marker is on the anchor, or on its way there, and the peer has not answered it.
    pub fn awaits_switch(&self) -> bool {
        self.tx == TxState::Paused
    }

    /// Opener: what the peer has to say of the attempt comes by the link alone.
    #[inline]
    pub fn is_opening(&self) -> bool {
        self.role == Role::Opener
            && self.link_alive
            && (self.tx == TxState::Pledged || self.attempt != Attempt::Settled)
    }

    /// The fd is an ordinary kernel socket: no record is under way, and none will come. The answer to an OPEN whose pledge
    /// was voided may still come by the link.
    pub fn is_plain(&self) -> bool {
        self.tx == TxState::Anchor
            && matches!(self.rx, RxState::Anchor | RxState::Replay(_))
            && self.records.is_empty()
            && !self.is_held()
    }

    /// Whether the slot on the link is still in use by either side.
    pub fn holds_slot(&self) -> bool {
        self.link_alive && !(self.our_use.is_closed() && self.peer_use.is_closed())
    }

    /// Why the stream is not on the link ([`Reason::None`] when it is).
    pub fn reason(&self) -> Reason {
        match self.phase() {
            Phase::Linked => Reason::None,
            Phase::Promoting => Reason::Opening,
            _ => self.history.last_reason,
        }
    }

    /// The stream has waited for a link, and cannot be opened on one.
    pub fn note_without_link(&mut self, reason: Reason) {
        self.history.last_reason = reason;
    }

    /// Our slot on the link.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The peer's slot on the link, once known.
    #[inline]
    pub fn peer_slot(&self) -> Option<u16> {
        self.peer_slot
    }

    /// How often it was promoted.
    pub fn promotions(&self) -> u32 {
        self.history.promotions
    }

    /// Numbers both directions anew, before a promotion: bytes sent and received on the anchor so far, records and
    /// replayed bytes included. Requires [`may_promote`](Stream::may_promote).
    pub fn set_positions(&mut self, tx: u64, rx: u64) {
        debug_assert!(self.may_promote(), "renumbering of a stream that is not plain");
        //= spec §4.2.6
        //# At a promotion positions are counted anew: they begin at the number of bytes that stand on the anchor before the
        //# pledge, records and replayed bytes included.
        (self.tx_position, self.rx_position) = (tx, rx);
    }

    /// The positions up to which the application has written and read.
    pub fn positions(&self) -> (u64, u64) {
        (self.tx_position, self.rx_position)
    }

    /// Whether the peer's end of stream has come by the link.
    #[inline]
    pub fn fin_received(&self) -> bool {
        self.peer_fin == PeerFin::Received
    }

    /// Where application writes go now.
    #[inline]
    pub fn tx_sink(&self) -> TxSink {
        if self.no_more_out() {
            // The kernel has errors of its own to tell.
            let kernels = self.tx_shutdown == Shutdown::OnAnchor && self.failed.is_none() && self.is_plain();
            return if kernels { TxSink::Anchor } else { TxSink::Closed };
        }
        if self.peer_is_deaf() {
            return TxSink::Refused;
        }
        match self.tx {
            TxState::Link if self.records.is_empty() => TxSink::Link,
            TxState::Anchor if self.records.is_empty() => TxSink::Anchor,
            TxState::Pledged => TxSink::Pledged,
            _ => TxSink::Wait,
        }
    }

    /// Where application reads come from now.
    #[inline]
    pub fn rx_source(&self) -> RxSource {
        if let RxState::Link | RxState::Drain = self.rx {
            return match &self.rx_ring {
                Some(ring) if !ring.is_empty() => RxSource::Link,
                _ => self.rx_end(),
            };
        }
        if self.failed.is_some() {
            return self.rx_end();
        }
        match self.rx {
            RxState::Expect(_) | RxState::ExpectThenResume(_) | RxState::AwaitResume => RxSource::Record,
            RxState::Replay(until) => RxSource::Anchor(until - self.rx_position),
            _ => RxSource::Anchor(u64::MAX),
        }
    }

    /// Bytes readable from the ring.
    #[inline]
    pub fn available(&self) -> u32 {
        match (&self.rx_ring, self.rx) {
            (Some(ring), RxState::Link | RxState::Drain) => ring.available(),
            _ => 0,
        }
    }

    /// Bytes that were readable when this side began to leave the link, and will be again.
    pub fn frozen(&self) -> u32 {
        match (&self.rx_ring, self.rx) {
            (Some(ring), RxState::AwaitResume) => ring.available(),
            _ => 0,
        }
    }

    /// Bytes that a write could place now on the link.
    #[inline]
    pub fn free(&self) -> u32 {
        self.tx_ring.as_ref().map_or(0, TxRing::free)
    }

    /// Length of the outgoing ring; 0 if there is none.
    pub fn tx_ring_len(&self) -> u32 {
        self.tx_ring.as_ref().map_or(0, TxRing::len)
    }

    /// Bytes sent on the link that the peer's application has not consumed, as far as known.
    pub fn unconsumed(&self) -> u64 {
        self.tx_ring.as_ref().map_or(0, |r| r.sent() - r.consumed())
    }

    /// Whether `poll` should call the link writable: a quarter of the ring is free.
    #[inline]
    pub fn link_writable(&self) -> bool {
        self.tx_ring.as_ref().is_some_and(|r| r.free() >= r.len() / 4)
    }

    /// The failure, if any.
    pub fn failure(&self) -> Option<Failure> {
        self.failed.map(|failed| failed.cause.into())
    }

    /// Takes the next message to send on the link.
    #[inline]
    pub fn poll_control(&mut self) -> Option<Control> {
        self.controls.pop_front()
    }

    /// Puts a message back that the link could not take; it stays first.
    pub fn return_control(&mut self, control: Control) {
        self.controls.push_front(control);
    }

    /// Whether an attempt at promotion waits for this side's application to read.
    pub fn is_held(&self) -> bool {
        matches!(self.attempt, Attempt::HeldOpen { .. } | Attempt::HeldAccept(_))
    }

    /// Whether a record is to be written on the anchor.
    #[inline]
    pub fn has_record(&self) -> bool {
        !self.records.is_empty()
    }

    /// Whether `poll_control` has something.
    #[inline]
    pub fn has_control(&self) -> bool {
        !self.controls.is_empty()
    }

    fn violate(&mut self, what: &'static str) {
        //= spec §1.4
        //# A violation costs the stream: the detecting side aborts it and counts the event.
        if self.failed.is_none() {
            self.note_failure(Failure::Violation(what));
            self.history.last_reason = Reason::Violation;
            if self.link_alive && self.peer_slot.is_some() {
                self.push_control(Control::Signal(MessageKind::Reset));
            }
            self.try_close();
        }
    }

    fn push_control(&mut self, control: Control) {
        // Bounded: each signal is sent at most once per promotion, and CREDIT_* once per stall.
        if !self.our_use.is_closed() {
            self.controls.push_back(control);
        }
    }

    fn push_record(&mut self, record: Record) {
        self.records.push_back(record);
    }
}
