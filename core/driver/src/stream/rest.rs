//! Bytes that the kernel moves while it alone has the stream: see [`direct`](crate::endpoint::direct).
//!
//! As in [`short`](super::short), there is nothing to flush: the stream [is at rest](netacc_proto::Stream::is_at_rest), and bytes
//! on its anchor change nothing but counts.

use std::sync::Arc;

use super::cell::{Inner, StreamCell};
use super::states::Flow;
use crate::Endpoint;

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

    /// As [`receive_at_rest`](StreamCell::receive_at_rest), where `receive` may sleep until there are bytes to take. An attempt at
    /// promotion fails meanwhile, because a record would be taken for the program's bytes; and after the first attempt this
    /// returns `None`.
    pub fn take_asleep<E>(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        receive: impl FnOnce() -> Result<usize, E>,
    ) -> Option<Result<usize, E>> {
        let mut taker = Taker::begin(self, endpoint)?;
        let received = receive();
        taker.taken = *received.as_ref().unwrap_or(&0);
        Some(received)
    }
}

/// A thread that takes bytes off the anchor while it sleeps. Drop ends that, also if the thread is cancelled there.
struct Taker<'a> {
    cell: &'a Arc<StreamCell>,
    endpoint: &'a Endpoint,
    /// Bytes.
    taken: usize,
}

impl<'a> Taker<'a> {
    #[inline]
    fn begin(cell: &'a Arc<StreamCell>, endpoint: &'a Endpoint) -> Option<Taker<'a>> {
        let mut inner = cell.inner.lock();
        if !(inner.is_known_at_rest() && inner.tcp.takers.join()) {
            return None;
        }
        Some(Taker { cell, endpoint, taken: 0 })
    }
}

impl Drop for Taker<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cell.lock(self.endpoint).move_on_anchor(|stream| {
            stream.inner.tcp.takers.leave();
            stream.anchor_received(self.taken);
        });
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
