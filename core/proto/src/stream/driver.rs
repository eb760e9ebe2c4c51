//! What only the driver asks: memory that may be freed, work that is pending.

use crate::ring::RxRing;
use crate::stream::{Control, RxState, Stream, TxState};
use crate::wire::MessageKind;

impl Stream {
    /// Nothing is to be sent and nothing is changing: the hot path need not look further.
    #[inline]
    pub fn is_steady(&self) -> bool {
        self.is_linked() && self.controls.is_empty() && !self.closed && !self.close_received
    }

    /// Whether rings are still needed although the slot on the link may be free: unread or unreplayed bytes.
    pub fn needs_memory(&self) -> bool {
        let unread = matches!(self.rx, RxState::Drain) && self.rx_ring.as_ref().is_some_and(|r| !r.is_empty());
        let unreplayed = matches!(self.tx, TxState::Frozen | TxState::Replay(_) | TxState::Paused | TxState::Link)
            || matches!(self.rx, RxState::Link | RxState::Expect(_) | RxState::ExpectThenResume(_) | RxState::AwaitResume);
        (unread || unreplayed) && !self.closed || self.must_linger()
    }

    /// Length of the incoming ring; 0 if there is none.
    pub fn rx_ring_len(&self) -> u32 {
        self.rx_ring.as_ref().map_or(0, RxRing::len)
    }

    /// Sends the CREDIT_GIVE that [`consume`](Stream::consume) asked for. Separate, because the credit word must be
    /// written first.
    #[inline]
    pub fn give_credit(&mut self) {
        self.push_control(Control::Signal(MessageKind::CreditGive));
    }
}
