//! Bytes that the kernel moves while it alone has the stream: see [`direct`](crate::endpoint::direct).
//!
//! As in [`short`](super::short), there is nothing to flush: the stream [is at rest](netacc_proto::Stream::is_at_rest), and bytes
//! on its anchor change nothing but counts.

use super::cell::{Inner, StreamCell};
use super::states::Flow;

impl StreamCell {
    /// Calls `send`, which sends on the anchor without waiting, if the kernel alone has the stream, and counts the bytes that it
    /// has sent. `None`: it is not called, and [`tx_sink`](crate::LockedStream::tx_sink) decides.
    #[inline(always)]
    pub fn send_at_rest<E>(&self, send: impl FnOnce() -> Result<usize, E>) -> Option<Result<usize, E>> {
        let mut inner = self.inner.lock();
        if !inner.is_known_at_rest() {
            return None;
        }
        let sent = send();
        if let Ok(n) = sent {
            inner.count_anchor_sent(n as u64);
        }
        Some(sent)
    }

    /// As [`send_at_rest`](StreamCell::send_at_rest), of bytes that `receive` takes from the anchor.
    #[inline(always)]
    pub fn receive_at_rest<E>(&self, receive: impl FnOnce() -> Result<usize, E>) -> Option<Result<usize, E>> {
        let mut inner = self.inner.lock();
        if !inner.is_known_at_rest() {
            return None;
        }
        let received = receive();
        if let Ok(n) = received {
            inner.count_anchor_received(n as u64);
        }
        Some(received)
    }
}

impl Inner {
    /// Whether the kernel alone has the stream, as found after its last change.
    #[inline]
    fn is_known_at_rest(&self) -> bool {
        let known = self.reported.flow == Flow::Anchor;
        debug_assert!(!known || self.flow() == Flow::Anchor, "the stream was changed without a flush");
        known
    }

    /// The program has sent so many bytes on the anchor.
    #[inline]
    pub(super) fn count_anchor_sent(&mut self, n: u64) {
        self.proto.anchor_sent(n);
        self.tcp.carried.written += n;
        self.counters.tx_bytes_tcp += n;
    }

    /// The program has received so many bytes from the anchor.
    #[inline]
    pub(super) fn count_anchor_received(&mut self, n: u64) {
        self.proto.anchor_received(n);
        self.tcp.carried.read += n;
        self.counters.rx_bytes_tcp += n;
    }
}
