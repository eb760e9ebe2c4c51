//! Positions and rings. A ring holds the bytes of one direction of a stream, addressed by position.
//!
//! Both ends map a position to the same offset: `(position - base) mod len`. `base` moves only by a *rewind*: when the
//! sender has learned that the ring is empty, it may start again at offset 0, and marks the message (SPEC §5.3). In
//! this way small messages reuse the same few cache lines instead of walking through the whole ring.

/// A peer broke the protocol. It costs the peer its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// A contiguous part of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte, from the start of the ring.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// The sender's view of a ring in the peer's memory.
///
/// Invariant: `consumed <= sent`, `sent - consumed <= len`, `base <= sent`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TxRing {
    len: u32,
    base: u64,
    sent: u64,
    consumed: u64,
    /// Set by a rewind and carried by the next message.
    rewound: bool,
}

impl TxRing {
    /// A ring of `len` bytes (a power of two), empty at `position`.
    pub fn new(len: u32, position: u64) -> TxRing {
        TxRing { len, base: position, sent: position, consumed: position, rewound: false }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether none of its bytes await consumption, as far as the peer has announced.
    pub fn is_empty(&self) -> bool {
        self.sent == self.consumed
    }

    /// Position after the last byte sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Position up to which the peer's application has consumed, as far as the peer has announced.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Byte credit: the number of bytes that may be sent now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.len - (self.sent - self.consumed) as u32
    }

    /// Reads the peer's consumed position. Cheap enough to call before every write.
    #[inline]
    pub fn handle_consumed(&mut self, consumed: u64) -> Result<bool, Violation> {
        //= spec §5.2.2
        //# A consumed position beyond the sent position is a violation. One that goes back has no meaning: a device may execute a
        //# write again after a later one (SoftRoCE does).
        if consumed <= self.consumed {
            return Ok(false);
        }
        if consumed > self.sent {
            return Err(Violation("consumed position out of range"));
        }
        self.consumed = consumed;
        Ok(true)
    }

    /// The next contiguous free span, at most `want` long; empty when there is no credit. Rewinds an empty ring.
    #[inline]
    pub fn claim(&mut self, want: u32) -> Span {
        let offset = self.next_offset();
        //= spec §5.1.2
        //# A DATA message covers one contiguous span. It is not empty, and not beyond the peer's credit.
        let len = want.min(self.free()).min(self.len - offset);
        Span { offset, len }
    }

    /// [Claims](TxRing::claim) exactly `len` bytes, so that a quarter of the ring stays free, and [commits](TxRing::commit) them.
    /// Returns the offset of the span, and whether its message carries REWIND; `None`: there is no such room in one piece that
    /// ends at `reach`, or before, which is in the ring.
    #[inline(always)]
    pub fn take_whole(&mut self, len: u64, reach: u32) -> Option<(u32, bool)> {
        if u64::from(self.free()) < len + u64::from(self.len / 4) {
            return None;
        }
        let offset = self.next_offset();
        debug_assert!(reach <= self.len, "beyond the ring");
        if u64::from(offset) + len > u64::from(reach) {
            return None;
        }
        self.sent += len;
        Some((offset, core::mem::take(&mut self.rewound)))
    }

    /// The offset of the next byte. Rewinds an empty ring.
    #[inline(always)]
    fn next_offset(&mut self) -> u32 {
        //= spec §5.3.1
        //# A sender that has learned that the ring is empty MAY place the next byte at offset 0 and set REWIND.
        if self.sent == self.consumed {
            if self.base != self.sent {
                self.base = self.sent;
                self.rewound = true;
            }
            return 0;
        }
        //= spec §5.1.1
        //# The byte at position x of a direction lies at offset (x − base) mod length of the receiver's ring.
        ((self.sent - self.base) & u64::from(self.len - 1)) as u32
    }

    /// `len` bytes of the claimed span are filled and go out as one message. Returns whether it carries REWIND.
    #[inline]
    pub fn commit(&mut self, len: u32) -> bool {
        debug_assert!(len <= self.free(), "commit beyond claim");
        self.sent += u64::from(len);
        core::mem::take(&mut self.rewound)
    }

    /// Takes back the last commit: the message could not be posted.
    pub fn uncommit(&mut self, len: u32, rewind: bool) {
        self.sent -= u64::from(len);
        self.rewound = rewind;
    }

    //= spec §5.1.4
    //# The sender keeps every byte until the peer's application has consumed it.
    /// The place of the retained bytes from `position` on; `None` if they are no longer, or not yet, in the ring.
    pub fn retained(&self, position: u64) -> Option<Span> {
        if position < self.consumed || position >= self.sent {
            return None;
        }
        // A rewind happens only on an empty ring, so every retained byte lies after `base`.
        let offset = ((position - self.base) & u64::from(self.len - 1)) as u32;
        let len = (self.sent - position).min(u64::from(self.len - offset)) as u32;
        Some(Span { offset, len })
    }
}

/// The receiver's view of its own ring.
///
/// Invariant: `consumed <= received`, `received - consumed <= len`, `base <= consumed`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RxRing {
    len: u32,
    base: u64,
    received: u64,
    consumed: u64,
}

impl RxRing {
    /// A ring of `len` bytes (a power of two), empty at `position`.
    pub fn new(len: u32, position: u64) -> RxRing {
        RxRing { len, base: position, received: position, consumed: position }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no bytes to read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.received == self.consumed
    }

    /// Bytes that can be read now.
    #[inline]
    pub fn available(&self) -> u32 {
        (self.received - self.consumed) as u32
    }

    /// Position after the last byte received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Position after the last byte consumed.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// A message of `len` bytes arrived. Returns its place.
    #[inline]
    pub fn handle_data(&mut self, len: u32, rewind: bool) -> Result<Span, Violation> {
        if rewind {
            //= spec §5.3.2
            //# REWIND on a ring that is not empty is a violation.
            if self.received != self.consumed {
                return Err(Violation("rewind of a ring that is not empty"));
            }
            self.base = self.received;
        }
        //= spec §5.1.3
        //# A message beyond the granted credit, or across the end of the ring, is a violation.
        let offset = (self.received - self.base) & u64::from(self.len - 1);
        if u64::from(len) > u64::from(self.len) - u64::from(self.available())
            || offset + u64::from(len) > u64::from(self.len)
        {
            return Err(Violation("data beyond credit"));
        }
        self.received += u64::from(len);
        Ok(Span { offset: offset as u32, len })
    }

    /// The contiguous readable span that begins `skip` bytes after the consumed position (for peeking across the wrap).
    #[inline]
    pub fn readable(&self, skip: u32) -> Span {
        let left = self.available().saturating_sub(skip);
        let offset = ((self.consumed + u64::from(skip) - self.base) & u64::from(self.len - 1)) as u32;
        Span { offset, len: left.min(self.len - offset) }
    }

    /// The application has taken `len` bytes.
    #[inline]
    pub fn consume(&mut self, len: u32) {
        debug_assert!(len <= self.available(), "consume beyond received");
        self.consumed += u64::from(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewind_reuses_the_first_bytes() {
        //= spec §5.3.1
        //= type=test
        let mut tx = TxRing::new(16, 100);
        let mut rx = RxRing::new(16, 100);
        for _ in 0..10 {
            let s = tx.claim(5);
            assert_eq!(s, Span { offset: 0, len: 5 });
            let rewind = tx.commit(5);
            rx.handle_data(5, rewind).unwrap();
            assert_eq!(rx.readable(0), Span { offset: 0, len: 5 });
            rx.consume(5);
            tx.handle_consumed(rx.consumed()).unwrap();
        }
    }

    #[test]
    fn wraps_in_two_spans() {
        //= spec §5.1.1, §5.1.2, §5.1.4
        //= type=test
        let mut tx = TxRing::new(16, 0);
        let mut rx = RxRing::new(16, 0);
        tx.claim(12);
        rx.handle_data(12, tx.commit(12)).unwrap();
        rx.consume(8);
        tx.handle_consumed(8).unwrap();
        assert_eq!(tx.claim(12), Span { offset: 12, len: 4 });
        rx.handle_data(4, tx.commit(4)).unwrap();
        assert_eq!(tx.claim(12), Span { offset: 0, len: 8 });
        rx.handle_data(8, tx.commit(8)).unwrap();
        assert_eq!(tx.free(), 0);
        assert_eq!(rx.readable(0), Span { offset: 8, len: 8 });
        assert_eq!(rx.readable(8), Span { offset: 0, len: 8 });
        assert_eq!(tx.retained(9), Some(Span { offset: 9, len: 7 }));
        assert_eq!(tx.retained(7), None);
    }

    #[test]
    fn false_counts_are_violations() {
        //= spec §5.1.3, §5.2.2, §5.3.2
        //= type=test
        let mut tx = TxRing::new(16, 10);
        tx.claim(4);
        tx.commit(4);
        assert!(tx.handle_consumed(15).is_err());
        assert_eq!((tx.handle_consumed(12), tx.handle_consumed(11)), (Ok(true), Ok(false)));
        assert_eq!((tx.consumed(), tx.free()), (12, 14), "an old position gives and takes nothing");
        let mut rx = RxRing::new(16, 10);
        assert!(rx.handle_data(17, false).is_err());
        rx.handle_data(10, false).unwrap();
        assert!(rx.handle_data(7, false).is_err());
        assert!(rx.handle_data(1, true).is_err());
    }
}
