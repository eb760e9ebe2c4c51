//! The sending of a short message that has an effect on nothing but its link: see [`direct`](crate::endpoint::direct).
//!
//! It uses the locked state itself, without [`LockedStream`](super::guard::LockedStream), because there is nothing to flush: the
//! stream [is steady](super::guard::LockedStream::is_steady) and writable, and stays so.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::Device;
use netacc_proto::{Immediate, MessageKind, Span, CREDIT_BLOCK_LEN};
use parking_lot::MutexGuard;

use super::cell::{Attachment, Inner, StreamCell};
use super::corked::MAX_UNANSWERED;
use super::guard::StreamGuard;
use crate::{Endpoint, Readiness};

impl StreamCell {
    /// Sends `len` bytes as one message, if the stream is steady, there is room for it, the stream stays writable, and no message
    /// of the link is to be handled first. `false`: nothing is sent, and [`send_link`](crate::LockedStream::send_link) decides.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline(always)]
    pub(crate) unsafe fn send_short(self: &Arc<Self>, endpoint: &Endpoint, src: *const u8, len: usize) -> bool {
        let mut inner = self.inner.lock();
        if !inner.is_known_steady() || !self.readiness().contains(Readiness::WRITABLE) {
            return false;
        }
        // SAFETY: the caller's promise.
        if unsafe { inner.send_short(endpoint, src, len) } {
            return true;
        }
        self.report_failure(endpoint, inner)
    }

    /// Nothing was sent. That has no effect, unless the peer has broken the protocol.
    #[cold]
    fn report_failure(self: &Arc<Self>, endpoint: &Endpoint, inner: MutexGuard<'_, Inner>) -> bool {
        if inner.proto.has_failed() {
            StreamGuard::new(self, endpoint, inner).change(|_| ());
        }
        false
    }
}

impl Inner {
    /// See [`StreamCell::send_short`].
    ///
    /// # Safety
    /// As there.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline(always)]
    unsafe fn send_short(&mut self, endpoint: &Endpoint, src: *const u8, len: usize) -> bool {
        let Some(Attachment { link, region, outgoing: Some(out), .. }) = self.attached.as_deref() else { return false };
        let (Some(word), Some(slot)) = (region.memory.word(0), self.proto.peer_slot()) else { return false };
        if len > self.sending.message_len as usize {
            return false;
        }
        let consumed = word.load(Ordering::Acquire);
        let Some((offset, rewind)) = self.proto.take_whole(consumed, len as u64, out.reach) else { return false };
        let imm = Immediate { kind: MessageKind::Data, rewind, slot }.encode();
        // SAFETY: the caller's promise.
        if !unsafe { out.memory.write_from(CREDIT_BLOCK_LEN + offset as usize, src, len) } {
            return self.take_back(len, imm);
        }
        let mut tx = link.tx.lock();
        if tx.watch.resting {
            // A message that would have to wake a link that rests takes the long way.
            drop(tx);
            return self.take_back(len, imm);
        }
        // Everything that has come on the link is handled first.
        match tx.data_in_place(len as u32, imm, Some(link.seen())) {
            Some(Ok(())) => {
                drop(tx);
                self.counters.tx_bytes_link += len as u64;
                self.counters.tx_msgs_link += 1;
                true
            }
            Some(Err(_)) => {
                drop(tx);
                self.take_back(len, imm)
            }
            None => {
                drop(tx);
                self.send_by_request(endpoint.device(), Span { offset, len: len as u32 }, imm)
            }
        }
    }

    /// A message is not sent after all, for which room was taken.
    #[cold]
    fn take_back(&mut self, len: usize, imm: u32) -> bool {
        self.proto.uncommit(len as u32, Immediate::decode(imm).is_ok_and(|imm| imm.rewind));
        false
    }

    /// [`send_short`](Inner::send_short) of a message that is copied and taken, where it takes a work request.
    #[inline(never)]
    fn send_by_request(&mut self, device: &dyn Device, span: Span, imm: u32) -> bool {
        let len = span.len as usize;
        let Some(Attachment { link, outgoing: Some(out), .. }) = self.attached.as_deref() else {
            return self.take_back(len, imm);
        };
        let Ok(decoded) = Immediate::decode(imm) else { return self.take_back(len, imm) };
        let mut tx = link.tx.lock();
        // A message that would have to wait for others takes the long way.
        let waits = self.sending.unanswered >= MAX_UNANSWERED && tx.awaits_completion();
        let (ring, seen) = ((&out.ring, out.staging.as_ref()), Some(link.seen()));
        if waits || tx.watch.resting || tx.data_by_request(device, ring, span, decoded, seen).is_err() {
            drop(tx);
            return self.take_back(len, imm);
        }
        drop(tx);
        self.sending.unanswered = self.sending.unanswered.saturating_add(1);
        self.counters.tx_bytes_link += u64::from(span.len);
        self.counters.tx_msgs_link += 1;
        true
    }
}
