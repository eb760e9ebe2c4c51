//! One accelerated socket: the path that its bytes take, in each direction, and how that changes.
//!
//! The idea (SPEC §4): both ends first *pledge* over the link a position at which they may switch; only then does a
//! side write a *marker* there. So every uncertain step is decided by reading the anchor at a known position, even if
//! the link dies:
//!
//! ```text
//!   opener                                  acceptor
//!   tx Pledged(p)   --OPEN(p)-->            rx Expect(p)
//!   rx Expect(q)    <--ACCEPT(q)--          tx Pledged(q)
//!   tx Paused(p)    ==marker at p==>        (reads it) tx Link, rx Link
//!   tx Link,rx Link <==marker at q==
//! ```
//! (`--` link, `==` anchor.) A side voids its pledge by sending application bytes at its position; the reader sees that
//! they are not a marker. On a link that is certain to bring everything, a message on the link, UNMARKED, takes the
//! place of each marker (SPEC §4.3.7); only if the link dies before the acceptor's has come does the opener write its
//! marker. Leaving the link, in an orderly way or because it died, is one mechanism: each end freezes its consumed
//! position and writes a RESUME record with that position on its now idle anchor direction; each replays
//! from the position it reads.
//!
//! Invariants:
//! * a side writes a marker only if its peer expects one at that position, and has read everything before it;
//! * application bytes travel on the anchor only in `Anchor`, and after a RESUME exchange;
//! * the acceptor's `tx` leaves `Pledged` for `Link` only if the pledge was not voided, and the opener's leaves
//!   `Paused` for `Link` only on the acceptor's marker (or, with `trust_hints`, on its message on the link);
//! * where markers are put off, both directions of a side go to `Link` in one step;
//! * bytes are retained until the peer's application has consumed them.

mod anchor;
mod data;
mod driver;
mod end;
mod state;
mod switch;
mod tcp;

use alloc::collections::VecDeque;

use crate::ring::TxRing;
use crate::wire::{ControlMessage, MessageKind, Nonce, Record};
use crate::Reason;

use state::{AnchorState, Attempt, Failed, History, Incoming, LinkState, Outgoing, RxState, Shutdown, Socket, TxState};

pub use anchor::{AnchorWrite, RecordVerdict, Rest, RECORD_GRACE};
pub use end::LINGER_LIMIT;
pub use tcp::TcpState;

/// An end of the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that called `connect`. It sends OPEN.
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

/// The state of a stream as a whole.
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

/// The reason why a stream ended otherwise than by FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The peer aborted or died: ECONNRESET.
    PeerReset,
    /// The peer broke the protocol: ECONNRESET, and a RESET for the peer.
    Violation(&'static str),
}

/// An error that one call receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketError {
    /// ECONNRESET
    Reset,
    /// EPIPE
    Pipe,
}

/// The reason why a stream leaves the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demotion {
    /// The link is dead.
    LinkFailed,
    /// The application, an operator, or a rule of sharing wants a plain socket.
    Requested(Reason),
}

/// The state of the end of the peer's direction, as far as the link has carried it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerFin {
    /// No FIN has come on the link.
    #[default]
    Awaited,
    /// FIN has come: the direction ends after the bytes in the ring.
    Received,
    /// FIN had come when this side left the link, or came afterwards. The end comes again on the anchor (SPEC §4.5.4).
    Repeated,
}

/// A reset with which the anchor of a stream that left its link is to end (SPEC §4.8.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revival {
    /// The application receives the reset from the anchor.
    Unreported,
    /// The application has had the error already.
    Reported,
}

/// The destination of application writes now.
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
    /// Nowhere: the peer reads no more. Written bytes are discarded: [`refuse_write`](Stream::refuse_write).
    Refused,
    /// Never again: the direction is shut down, or the stream failed.
    Closed,
}

/// The source of application reads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxSource {
    /// From the anchor, at most this many bytes.
    Anchor(u64),
    /// The next bytes of the anchor are a record, or show that there is none: peek, `handle_record`.
    Record,
    /// From the ring. The anchor, if readable, has a record.
    Link,
    /// Nothing more will come: end of stream.
    Eof,
    /// Nothing more will come: the stream failed, and no call has received the error yet.
    Failed(Failure),
}

/// The credit that the receiver owes the sender after consuming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Write this consumed position into the peer's credit word, if `announce`.
    pub consumed: u64,
    /// The peer's region may still be written to. Once false, it may already belong to another stream.
    pub announce: bool,
    /// And wake it: it has requested credit.
    pub give: bool,
}

/// A message to send on the link for this stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Control {
    /// With a payload, in a control slot.
    Message(ControlMessage),
    /// Consists of its immediate only, addressed to the peer's slot.
    Signal(MessageKind),
}

/// The state machine of one stream. See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    role: Role,
    config: StreamConfig,
    tx: Outgoing,
    rx: Incoming,
    anchor: AnchorState,
    link: LinkState,
    /// Messages to send on the link.
    controls: VecDeque<Control>,
    socket: Socket,
    failed: Option<Failed>,
    history: History,
}

impl Stream {
    /// A stream that is plain TCP so far.
    #[inline]
    pub fn new(role: Role, config: StreamConfig) -> Stream {
        Stream {
            role,
            config,
            tx: Outgoing::default(),
            rx: Incoming::default(),
            anchor: AnchorState::default(),
            link: LinkState::default(),
            controls: VecDeque::new(),
            socket: Socket::Open,
            failed: None,
            history: History { promotions: 0, last_reason: Reason::NotYet },
        }
    }

    /// The role of this end.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The state of the stream.
    pub fn phase(&self) -> Phase {
        use {RxState as R, TxState as T};
        match (self.tx.state, self.rx.state) {
            (T::Anchor, R::Anchor | R::Replay(_)) => Phase::Plain,
            // The peer is gone and its bytes are in the ring, perhaps after older bytes on the anchor.
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
        self.tx.state == TxState::Link && self.rx.state == RxState::Link
    }

    /// Our marker is on the anchor, in flight there, or put off, and the peer has not answered.
    pub fn awaits_switch(&self) -> bool {
        self.tx.state == TxState::Paused
    }

    /// Opener: the peer answers the attempt by the link alone.
    #[inline]
    pub fn is_opening(&self) -> bool {
        self.role == Role::Opener
            && self.link.alive
            && (self.tx.state == TxState::Pledged || self.link.attempt != Attempt::Idle)
    }

    /// For a direction that is on the link: whether nothing is to be written on the anchor, or sent on the link, before its bytes.
    #[inline]
    fn has_announced_switch(&self) -> bool {
        self.anchor.records.is_empty()
            && !(self.is_put_off() && self.controls.contains(&Control::Signal(MessageKind::Unmarked)))
    }

    /// The fd is an ordinary kernel socket: no record is in flight, and none will come. The answer to an OPEN whose
    /// pledge was voided may still come by the link.
    pub fn is_plain(&self) -> bool {
        self.tx.state == TxState::Anchor
            && matches!(self.rx.state, RxState::Anchor | RxState::Replay(_))
            && self.anchor.records.is_empty()
            && !self.awaits_reader()
    }

    /// Whether the slot on the link is still in use by either side.
    pub fn uses_slot(&self) -> bool {
        self.link.alive && !(self.link.ours.usage.is_closed() && self.link.peer.usage.is_closed())
    }

    /// The reason why the stream is not on the link ([`Reason::None`] when it is).
    pub fn reason(&self) -> Reason {
        match self.phase() {
            Phase::Linked => Reason::None,
            Phase::Promoting => Reason::Opening,
            _ => self.history.last_reason,
        }
    }

    /// The stream has waited for a link, and cannot be opened on one.
    pub fn handle_no_link(&mut self, reason: Reason) {
        self.history.last_reason = reason;
    }

    /// Our slot on the link.
    #[inline]
    pub fn slot(&self) -> u16 {
        self.link.ours.number
    }

    /// The peer's slot on the link, once it has been received.
    #[inline]
    pub fn peer_slot(&self) -> Option<u16> {
        self.link.peer.name.map(|name| name.slot)
    }

    /// The token of records that the peer reads.
    fn peer_nonce(&self) -> Nonce {
        self.link.peer.name.map_or(Nonce::default(), |name| name.nonce)
    }

    /// The number of its promotions.
    pub fn promotions(&self) -> u32 {
        self.history.promotions
    }

    /// Sets the positions of both directions, before a promotion: bytes sent and received on the anchor so far, records
    /// and replayed bytes included. Requires [`may_promote`](Stream::may_promote).
    pub fn set_positions(&mut self, tx: u64, rx: u64) {
        debug_assert!(self.may_promote(), "renumbering of a stream that is not plain");
        //= spec §4.2.6
        //# At a promotion positions are counted anew: they begin at the number of bytes that stand on the anchor before the
        //# pledge, records and replayed bytes included.
        (self.tx.position, self.rx.position) = (tx, rx);
    }

    /// The positions up to which the application has written and read.
    pub fn positions(&self) -> (u64, u64) {
        (self.tx.position, self.rx.position)
    }

    /// Whether the end of the peer's direction has come by the link, and its meaning now.
    pub fn peer_fin(&self) -> PeerFin {
        self.rx.fin
    }

    #[inline]
    fn fin_received(&self) -> bool {
        self.rx.fin == PeerFin::Received
    }

    /// The destination of application writes now.
    #[inline]
    pub fn tx_sink(&self) -> TxSink {
        if self.no_more_out() {
            // The kernel has errors of its own to report.
            let kernels = self.tx.shutdown == Shutdown::OnAnchor && self.failed.is_none() && self.is_plain();
            return if kernels { TxSink::Anchor } else { TxSink::Closed };
        }
        if self.peer_is_deaf() {
            return TxSink::Refused;
        }
        match self.tx.state {
            TxState::Link if self.has_announced_switch() => TxSink::Link,
            TxState::Anchor if self.anchor.records.is_empty() => TxSink::Anchor,
            TxState::Pledged => TxSink::Pledged,
            _ => TxSink::Wait,
        }
    }

    /// The source of application reads now.
    #[inline]
    pub fn rx_source(&self) -> RxSource {
        if let RxState::Link | RxState::Drain = self.rx.state {
            return match &self.rx.ring {
                Some(ring) if !ring.is_empty() => RxSource::Link,
                _ if self.is_flowing() => RxSource::Link,
                _ => self.rx_end(),
            };
        }
        if self.failed.is_some() {
            return self.rx_end();
        }
        match self.rx.state {
            RxState::Expect(_) | RxState::ExpectThenResume(_) | RxState::AwaitResume => RxSource::Record,
            RxState::Replay(until) => RxSource::Anchor(until - self.rx.position),
            _ => RxSource::Anchor(u64::MAX),
        }
    }

    /// Bytes readable from the ring.
    #[inline]
    pub fn available(&self) -> u32 {
        match (&self.rx.ring, self.rx.state) {
            (Some(ring), RxState::Link | RxState::Drain) => ring.available(),
            _ => 0,
        }
    }

    /// Bytes that were readable when this side began to leave the link, and will be again.
    pub fn frozen(&self) -> u32 {
        match (&self.rx.ring, self.rx.state) {
            (Some(ring), RxState::AwaitResume) => ring.available(),
            _ => 0,
        }
    }

    /// Bytes that a write could place now on the link.
    #[inline]
    pub fn free(&self) -> u32 {
        self.tx.ring.as_ref().map_or(0, TxRing::free)
    }

    /// Length of the outgoing ring; 0 if there is none.
    #[inline]
    pub fn tx_ring_len(&self) -> u32 {
        self.tx.ring.as_ref().map_or(0, TxRing::len)
    }

    /// Bytes sent on the link that the peer's application has not consumed, as far as the peer has announced.
    pub fn unconsumed(&self) -> u64 {
        self.tx.ring.as_ref().map_or(0, |r| r.sent() - r.consumed())
    }

    /// Whether `poll` should call the link writable: a quarter of the ring is free.
    #[inline]
    pub fn link_writable(&self) -> bool {
        self.tx.ring.as_ref().is_some_and(|r| r.free() >= r.len() / 4)
    }

    /// The failure, if any.
    #[inline]
    pub fn failure(&self) -> Option<Failure> {
        self.failed.map(|failed| failed.cause.into())
    }

    /// Whether it has failed.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
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
    pub fn awaits_reader(&self) -> bool {
        matches!(self.link.attempt, Attempt::DeferredOpen { .. } | Attempt::DeferredAccept(_))
    }

    /// Whether a record is to be written on the anchor.
    #[inline]
    pub fn has_record(&self) -> bool {
        !self.anchor.records.is_empty()
    }

    /// Whether `poll_control` has a message.
    #[inline]
    pub fn has_control(&self) -> bool {
        !self.controls.is_empty()
    }

    #[cold]
    fn violate(&mut self, what: &'static str) {
        //= spec §1.4
        //# A violation costs the stream: the detecting side aborts it and counts the event.
        if self.failed.is_none() {
            self.record_failure(Failure::Violation(what));
            self.history.last_reason = Reason::Violation;
            if self.link.alive && self.link.peer.name.is_some() {
                self.push_control(Control::Signal(MessageKind::Reset));
            }
            self.try_close();
        }
    }

    fn push_control(&mut self, control: Control) {
        // Bounded: each signal is sent at most once per promotion, and CREDIT_* once per stall. A link that has died
        // carries no message, and one that waited for it would keep the stream.
        if self.link.alive && !self.link.ours.usage.is_closed() {
            // There is seldom more than one, and each stream keeps the memory.
            if self.controls.is_empty() {
                self.controls.reserve_exact(1);
            }
            self.controls.push_back(control);
        }
    }

    fn push_record(&mut self, record: Record) {
        if self.anchor.records.is_empty() {
            self.anchor.records.reserve_exact(1);
        }
        self.anchor.records.push_back(record);
    }
}
