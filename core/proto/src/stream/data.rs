//! The data path: claiming and committing outgoing bytes, receiving and consuming incoming ones. No allocation here.

use crate::ring::{Span, Violation};
use crate::stream::state::Attempt;
use crate::stream::{Control, Credit, RxState, Stream, TxState};
use crate::wire::MessageKind;

impl Stream {
    /// `n` application bytes went to the anchor.
    #[inline]
    pub fn anchor_sent(&mut self, n: u64) {
        debug_assert!(self.tx.state == TxState::Anchor, "application bytes on a switched anchor");
        self.tx.position += n;
    }

    /// `n` application bytes were read from the anchor.
    #[inline]
    pub fn anchor_received(&mut self, n: u64) {
        self.rx.position += n;
        match self.rx.state {
            RxState::Replay(until) if self.rx.position >= until => self.rx.state = RxState::Anchor,
            _ => {}
        }
        if self.link.attempt != Attempt::Idle {
            self.take_up();
        }
    }

    /// The number of bytes that are still to be replayed on the anchor, which has begun to bring them.
    pub fn replay_left(&self) -> u64 {
        match self.rx.state {
            RxState::Replay(until) => until - self.rx.position,
            _ => 0,
        }
    }

    /// All of them are there, unread: from now on the anchor alone carries the direction.
    pub fn handle_replay(&mut self) {
        if matches!(self.rx.state, RxState::Replay(_)) {
            self.rx.state = RxState::Anchor;
        }
    }

    /// The next span to fill, at most `want` long. Empty: no byte credit; call [`stalled`](Stream::stalled).
    #[inline]
    pub fn claim(&mut self, want: u32) -> Span {
        //= spec §4.3.2
        //# Once that is wholly on the anchor, its application's bytes go to the link.
        //= spec §4.3.7
        //# UNMARKED comes before data, FIN and CLOSE.
        let may = self.tx.state == TxState::Link && self.has_announced_switch();
        match &mut self.tx.ring {
            Some(ring) if may => ring.claim(want),
            _ => Span { offset: 0, len: 0 },
        }
    }

    /// Reads the credit word, where zero is no progress, and takes exactly `len` bytes for one DATA message, for a stream that
    /// [is steady](Stream::is_steady) and stays [writable](Stream::link_writable), of the beginning of the ring up to `reach`.
    /// Returns the offset of the span, and whether the message carries REWIND; `None`: claim as ever. A message that is not sent
    /// after all is [taken back](Stream::uncommit).
    #[inline(always)]
    pub fn take_whole(&mut self, consumed: u64, len: u64, reach: u32) -> Option<(u32, bool)> {
        debug_assert!(self.is_steady(), "a claim on a stream that is not steady");
        let ring = self.tx.ring.as_mut()?;
        if let Err(Violation(what)) = ring.handle_consumed(consumed) {
            self.violate(what);
            return None;
        }
        let taken = ring.take_whole(len, reach)?;
        self.tx.position += len;
        Some(taken)
    }

    /// `len` bytes of the claimed span go out as one DATA message; returns whether it carries REWIND.
    #[inline]
    pub fn commit(&mut self, len: u32) -> bool {
        let Some(ring) = &mut self.tx.ring else { return false };
        self.tx.position += u64::from(len);
        ring.commit(len)
    }

    /// The message of the last commit could not be posted (queue full).
    pub fn uncommit(&mut self, len: u32, rewind: bool) {
        if let Some(ring) = &mut self.tx.ring {
            ring.uncommit(len, rewind);
            self.tx.position -= u64::from(len);
        }
    }

    /// The application wants to write and there is no byte credit: requests it, once.
    pub fn stalled(&mut self) {
        //= spec §5.2.3
        //# A sender that runs out of byte credit sends CREDIT_WANT once, and waits for CREDIT_GIVE.
        if !self.link.ours.wants_credit && self.tx.state == TxState::Link {
            self.link.ours.wants_credit = true;
            self.push_control(Control::Signal(MessageKind::CreditWant));
        }
    }

    /// Reads the credit word. Returns whether there is new credit.
    #[inline]
    pub fn handle_consumed(&mut self, consumed: u64) -> bool {
        let Some(ring) = &mut self.tx.ring else { return false };
        //= spec §5.2.1
        //# The credit word is zero until the receiver first writes it; zero has no meaning.
        if self.tx.state != TxState::Link || consumed == 0 {
            return false;
        }
        match ring.handle_consumed(consumed) {
            Ok(new) => new,
            Err(Violation(what)) => {
                self.violate(what);
                false
            }
        }
    }

    /// A DATA message arrived.
    #[inline]
    pub fn handle_data(&mut self, len: u32, rewind: bool) {
        if self.takes_no_data() {
            return self.reset_peer();
        }
        let fin_received = self.fin_received();
        match (self.rx.state, &mut self.rx.ring) {
            (RxState::Link | RxState::Expect(_), Some(ring)) if !fin_received => {
                if let Err(Violation(what)) = ring.handle_data(len, rewind) {
                    self.violate(what);
                }
            }
            // Frozen: DATA in flight will be replayed on the anchor.
            (RxState::AwaitResume | RxState::ExpectThenResume(_) | RxState::Anchor | RxState::Replay(_), _) => {}
            _ => self.violate("data without a ring or after its end"),
        }
    }

    /// As [`handle_data`](Stream::handle_data), of a stream that [is steady](Stream::is_steady) and
    /// [flowing](Stream::is_flowing). Returns the place of the message; `None`: the peer has broken the protocol.
    #[inline]
    pub fn handle_steady_data(&mut self, len: u32, rewind: bool) -> Option<Span> {
        debug_assert!(self.is_steady() && self.is_flowing(), "data for a stream that is not steady");
        match self.rx.ring.as_mut().map(|ring| ring.handle_data(len, rewind)) {
            Some(Ok(span)) => return Some(span),
            Some(Err(Violation(what))) => self.violate(what),
            None => self.violate("data without a ring"),
        }
        None
    }

    /// The readable span that begins `skip` bytes after the consumed position.
    #[inline]
    pub fn readable(&self, skip: u32) -> Span {
        match (&self.rx.ring, self.rx.state) {
            (Some(ring), RxState::Link | RxState::Drain) => ring.readable(skip),
            _ => Span { offset: 0, len: 0 },
        }
    }

    /// The application has taken `len` bytes from the ring.
    #[inline]
    pub fn consume(&mut self, len: u32) -> Credit {
        let Some(ring) = &mut self.rx.ring else { return Credit { consumed: 0, announce: false, give: false } };
        ring.consume(len);
        self.rx.position += u64::from(len);
        let (consumed, available, half) = (ring.consumed(), ring.available(), ring.len() / 2);
        if self.link.peer.usage.is_closed() {
            self.finish_reading();
        }
        //= spec §4.6.3
        //# After its CLOSE, and after the death of the link, a side writes no more to the peer's memory.
        let announce = self.link.alive && !self.link.ours.usage.is_closed();
        //= spec §5.2.4
        //# A receiver that got CREDIT_WANT sends CREDIT_GIVE when at least half of the ring is free.
        let give = self.link.peer.wants_credit && announce && available <= half;
        self.link.peer.wants_credit &= !give;
        Credit { consumed, announce, give }
    }
}
