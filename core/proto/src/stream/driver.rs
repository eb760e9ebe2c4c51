//! Queries of the driver alone: memory that may be freed, work that is pending.

use crate::ring::RxRing;
use crate::stream::{Attempt, Control, PeerFin, RxState, Shutdown, Stream, TxSink, TxState};
use crate::wire::MessageKind;

impl Stream {
    /// Nothing is to be sent and nothing is changing: the hot path need not check further.
    #[inline]
    pub fn is_steady(&self) -> bool {
        self.is_linked()
            && self.controls.is_empty()
            && self.anchor.records.is_empty()
            && !self.is_closed()
            && !self.link.peer.usage.is_closed()
    }

    /// Both directions are on the link, and nothing has ended or failed: the usual case.
    /// [`rx_source`](Stream::rx_source) and [`tx_sink`](Stream::tx_sink) are `Link` then.
    #[inline]
    pub fn is_flowing(&self) -> bool {
        self.is_linked()
            && self.failed.is_none()
            && self.tx.shutdown == Shutdown::Open
            && self.rx.shutdown == Shutdown::Open
            && self.rx.fin == PeerFin::Awaited
            && self.anchor.records.is_empty()
    }

    /// Both directions are on the anchor, nothing has ended or failed there, and nothing is to be sent: bytes that move on the
    /// anchor change nothing but the positions.
    pub fn is_at_rest(&self) -> bool {
        self.tx.state == TxState::Anchor
            && self.rx.state == RxState::Anchor
            && self.link.attempt == Attempt::Idle
            && self.failed.is_none()
            && self.controls.is_empty()
            && self.anchor.records.is_empty()
            && self.revived().is_none()
            && self.tx_sink() == TxSink::Anchor
    }

    /// Whether the peer still takes bytes of this side from the link, so that messages about them make sense.
    pub fn sends_on_link(&self) -> bool {
        self.tx.state == TxState::Link && self.link.alive
    }

    /// Whether rings are still needed although the slot on the link may be free: for unread or unreplayed bytes, our
    /// own or those that the peer replays from our memory.
    pub fn needs_memory(&self) -> bool {
        let ours = match self.tx.state {
            TxState::Frozen | TxState::Replay(_) | TxState::Paused | TxState::Link => true,
            TxState::Anchor | TxState::Pledged => false,
        };
        let theirs = match self.rx.state {
            RxState::Link | RxState::Expect(_) | RxState::ExpectThenResume(_) | RxState::AwaitResume => true,
            RxState::Drain => self.rx.ring.as_ref().is_some_and(|r| !r.is_empty()),
            //= spec §4.6.7
            //# Memory that the peer may be replaying from is not freed on the peer's CLOSE alone, but when the
            //# replayed bytes have come.
            RxState::Replay(_) => self.link.alive && self.link.peer.usage.is_closed(),
            RxState::Anchor => false,
        };
        (ours || theirs) && !self.is_closed() || self.must_linger()
    }

    /// Length of the incoming ring; 0 if there is none.
    pub fn rx_ring_len(&self) -> u32 {
        self.rx.ring.as_ref().map_or(0, RxRing::len)
    }

    /// Sends the CREDIT_GIVE that [`consume`](Stream::consume) requested. Separate, because the credit word must be
    /// written first.
    #[inline]
    pub fn give_credit(&mut self) {
        self.push_control(Control::Signal(MessageKind::CreditGive));
    }
}
