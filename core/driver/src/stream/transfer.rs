//! Bytes on the link: into the peer's ring, out of our own, and the credit for both.

use std::sync::atomic::Ordering;

use netacc_device::{InPlaceError, PostError};
use netacc_proto::{Credit, Immediate, MessageKind, Span, TxSink, CREDIT_BLOCK_LEN};

use super::cell::Attachment;
use super::corked::{Corked, MAX_UNANSWERED};
use super::growth::record_growth;
use super::guard::LockedStream;
use super::source::Source;
use crate::copying::LEAST_SHARED;
use crate::{Counters, Mark};

/// The result of an operation on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkIo {
    /// So many bytes.
    Done(usize),
    /// Nothing now: wait for readiness.
    WouldBlock,
    /// The path has changed: read `tx_sink` / `rx_source` again.
    Moved,
}

impl LockedStream<'_> {
    /// Sends from `src` on the link, as much as credit allows. `more`: the bytes need not be announced to the peer yet,
    /// because there is more to come, or until [`push_corked`](LockedStream::push_corked).
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline]
    pub unsafe fn send_link(&mut self, src: *const u8, len: usize, more: bool) -> LinkIo {
        if more || self.inner.sending.cork.is_pending() {
            // SAFETY: passed on to the caller.
            return unsafe { self.send_pieces(std::iter::once((src, len)), more) };
        }
        let inner = &mut *self.inner;
        let Some(Attachment { link, region, outgoing: Some(out), .. }) = inner.attached.as_deref_mut() else {
            return LinkIo::Moved;
        };
        let Some(word) = region.memory.word(0) else { return LinkIo::Moved };
        let Some(slot) = inner.proto.peer_slot() else { return LinkIo::Moved };
        let device = self.endpoint.device();
        // SAFETY: the caller's promise.
        let mut source = unsafe { Source::new(self.endpoint, src, len) };
        while source.done < len {
            let span = source.claim(&mut inner.proto, word, &out.memory, inner.sending.message_len);
            if span.len == 0 {
                break;
            }
            if out.grows_by(span) {
                record_growth(self.endpoint, self.cell, &mut inner.listed);
            }
            self.endpoint.mark(self.cell, &inner.proto, Mark::Claimed, 0);
            if !source.copy(&out.memory, span) {
                break;
            }
            self.endpoint.mark(self.cell, &inner.proto, Mark::Copied, span.len);
            let mut tx = link.tx.lock();
            let rewind = inner.proto.commit(span.len);
            // The last message of the write, which other writes may follow.
            if inner.sending.unanswered >= MAX_UNANSWERED
                && span.len < inner.sending.message_len / 2
                && tx.awaits_completion()
            {
                drop(tx);
                let done = source.end();
                // SAFETY: the rest of the caller's buffer.
                return unsafe { self.cork_and_continue(Corked { span, rewind }, src, len, done) };
            }
            let imm = Immediate { kind: MessageKind::Data, rewind, slot };
            if tx.watch.resting {
                self.endpoint.resume_watch(&mut tx);
            }
            match tx.data(device, (&out.ring, out.staging.as_ref()), span, imm, None) {
                Ok(()) => {
                    self.endpoint.mark(self.cell, &inner.proto, Mark::Posted, 0);
                    inner.counters.tx_bytes_link += u64::from(span.len);
                    inner.counters.tx_msgs_link += 1;
                    inner.sending.unanswered = inner.sending.unanswered.saturating_add(1);
                    source.done += span.len as usize;
                }
                Err(InPlaceError::Post(PostError::QueueFull)) => {
                    drop(tx);
                    let done = source.end();
                    // The kernel, too, takes bytes that it cannot send yet. SAFETY: the rest of the caller's buffer.
                    return unsafe { self.cork_and_continue(Corked { span, rewind }, src, len, done) };
                }
                Err(_) => {
                    inner.proto.uncommit(span.len, rewind);
                    drop(tx);
                    // Bytes that the peer had sent before are handled first: see `progress`.
                    self.endpoint.enqueue_dead(link);
                    inner.sending.crowded = true;
                    let done = source.end();
                    return if done > 0 { LinkIo::Done(done) } else { LinkIo::WouldBlock };
                }
            }
        }
        let done = source.end();
        if !inner.proto.link_writable() {
            // Request credit before the program runs out of it, so that `poll` for writing has an event to wait for.
            inner.proto.handle_consumed(word.load(Ordering::Acquire));
        }
        self.sent(done)
    }

    /// Holds back a committed span, and writes the rest of the caller's buffer, of which `done` bytes went before.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[cold]
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    unsafe fn cork_and_continue(&mut self, corked: Corked, src: *const u8, len: usize, done: usize) -> LinkIo {
        let done = done + corked.span.len as usize;
        self.add_corked(corked);
        // SAFETY: `done <= len`; nothing is left, or the rest.
        match unsafe { self.send_pieces(std::iter::once((src.add(done), len - done)), false) } {
            LinkIo::Done(n) => LinkIo::Done(done + n),
            _ => LinkIo::Done(done),
        }
    }

    /// A message found no room on the link: requests room from the peer, and has the stream checked again.
    pub(super) fn no_room(&mut self) {
        let inner = &mut *self.inner;
        let Some(Attachment { link, .. }) = inner.attached.as_deref() else { return };
        Counters::bump(&self.endpoint.counters().message_credit_stalls);
        let mut tx = link.tx.lock();
        // Otherwise the device's queue is full, which is soon over.
        inner.sending.crowded = !tx.has_room();
        tx.want(self.endpoint.device());
        drop(tx);
        self.wait_for_room();
        self.record_stall();
    }

    /// The result of a send of `done` bytes.
    #[inline]
    pub(super) fn sent(&mut self, done: usize) -> LinkIo {
        if !self.inner.proto.link_writable() {
            Counters::bump(&self.endpoint.counters().byte_credit_stalls);
            self.inner.proto.stalled();
            self.endpoint.mark(self.cell, &self.inner.proto, Mark::Stalled, 0);
            self.record_stall();
        }
        match (done, self.tx_sink()) {
            (0, TxSink::Link) => LinkIo::WouldBlock,
            (0, _) => LinkIo::Moved,
            (n, _) => LinkIo::Done(n),
        }
    }

    /// Copies up to `len` bytes from the ring to `dst`, starting `skip` bytes after the consumed position, without
    /// consuming. Returns the number of bytes.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    pub unsafe fn peek_link(&mut self, dst: *mut u8, len: usize, skip: usize) -> usize {
        if len >= LEAST_SHARED {
            // SAFETY: the caller's promise.
            return unsafe { self.peek_large(dst, len, skip) };
        }
        let mut done = 0;
        // At most two spans: the ring wraps once.
        while done < len {
            // SAFETY: `done < len`: the rest of the caller's buffer.
            let n = unsafe { self.peek_span(dst.add(done), len - done, skip + done) };
            if n == 0 {
                break;
            }
            done += n;
        }
        done
    }

    /// As [`peek_link`](LockedStream::peek_link), of so many bytes that helper threads may copy some of them.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[cold]
    unsafe fn peek_large(&self, dst: *mut u8, len: usize, skip: usize) -> usize {
        let mut done = 0;
        while done < len {
            let Some(Attachment { region, .. }) = self.inner.attached.as_deref() else { break };
            let span = self.inner.proto.readable((skip + done) as u32);
            let (start, n) = (CREDIT_BLOCK_LEN + span.offset as usize, (span.len as usize).min(len - done));
            let bounded = region.memory.as_ptr(start + n).is_some();
            let Some(from) = region.memory.as_ptr(start).filter(|_| bounded && n > 0) else { break };
            // SAFETY: `done + n <= len`, and the source is within the region, which the stream keeps while it is locked.
            unsafe {
                match self.endpoint.copies().begin(from, dst.add(done), n) {
                    Some(mut copy) => {
                        let n = copy.left();
                        copy.land(n);
                        done += n;
                    }
                    None if region.memory.read_into(start, dst.add(done), n) => done += n,
                    None => break,
                }
            }
        }
        done
    }

    /// As [`peek_link`](LockedStream::peek_link), up to the end of the ring.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline(always)]
    unsafe fn peek_span(&self, dst: *mut u8, len: usize, skip: usize) -> usize {
        let Some(Attachment { region, .. }) = self.inner.attached.as_deref() else { return 0 };
        let span = self.inner.proto.readable(skip as u32);
        let n = (span.len as usize).min(len);
        // SAFETY: `n <= len`, so the destination is within the caller's buffer.
        if unsafe { region.memory.read_into(CREDIT_BLOCK_LEN + span.offset as usize, dst, n) } {
            n
        } else {
            0
        }
    }

    /// The program has taken `n` bytes that it peeked: returns them to the sender as credit.
    #[inline(always)]
    pub fn consume_link(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let inner = &mut *self.inner;
        let credit = inner.proto.consume(n as u32);
        inner.counters.rx_bytes_link += n as u64;
        if !credit.announce {
            // The peer has released the memory that contains the word.
            return;
        }
        let Some(Attachment { outgoing: Some(out), .. }) = inner.attached.as_deref() else { return };
        if out.staging.is_none() {
            if let Some(word) = out.memory.word(0) {
                word.store(credit.consumed, Ordering::Release);
            }
        } else {
            self.announce_consumed(credit);
        }
        if credit.give {
            self.inner.proto.give_credit();
        }
    }

    /// Sends the peer the credit word where its memory is not mapped, if that is due.
    #[inline(never)]
    fn announce_consumed(&mut self, credit: Credit) {
        let inner = &mut *self.inner;
        let Some(Attachment { link, outgoing: Some(out), .. }) = inner.attached.as_deref() else { return };
        //= spec §5.2.5
        //# Where a write is not cheap, a receiver MAY announce consumption only after a quarter of its ring.
        let due = credit.consumed - inner.sending.announced >= u64::from(inner.proto.rx_ring_len() / 4);
        let device = self.endpoint.device();
        // Progress that finds no room in the queue is sent with the next read, or when the peer requests it.
        if due && !credit.give && link.tx.lock().credit_word(device, &out.ring, credit.consumed).is_ok() {
            inner.sending.announced = credit.consumed;
        }
    }

    /// A DATA message has come, with the link's messages before it handled.
    #[inline]
    pub(crate) fn handle_data(&mut self, len: u32, rewind: bool) {
        self.inner.proto.handle_data(len, rewind);
        self.inner.counters.rx_msgs_link += 1;
        self.inner.sending.unanswered = 0;
    }

    /// As [`handle_data`](LockedStream::handle_data), of a steady stream. Returns the place of the message; `None`: the peer has
    /// broken the protocol.
    #[inline(always)]
    pub(crate) fn handle_steady_data(&mut self, len: u32, rewind: bool) -> Option<Span> {
        let inner = &mut *self.inner;
        let span = inner.proto.handle_steady_data(len, rewind);
        inner.counters.rx_msgs_link += 1;
        inner.sending.unanswered = 0;
        span
    }

    /// DATA messages have been handled.
    #[inline]
    pub(crate) fn mark_arrived(&self) {
        self.endpoint.mark(self.cell, &self.inner.proto, Mark::Arrived, 0);
    }

    /// The program has the bytes that were consumed.
    #[inline]
    pub fn mark_read(&self) {
        self.endpoint.mark(self.cell, &self.inner.proto, Mark::Read, 0);
    }

    /// Receives up to `len` bytes from the ring. `is_writable` is asked once, for the bytes that are to be written. `None`:
    /// there are none, or they cannot be written.
    ///
    /// # Safety
    /// As much of `dst..dst + len` is writable as `is_writable` says.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline(always)]
    pub(crate) unsafe fn receive(
        &mut self,
        dst: *mut u8,
        len: usize,
        is_writable: impl FnOnce(usize) -> bool,
    ) -> Option<usize> {
        let wanted = len.min(self.inner.proto.available() as usize);
        if wanted == 0 || !is_writable(wanted) {
            return None;
        }
        // SAFETY: found to be writable.
        let mut done = if wanted < LEAST_SHARED { unsafe { self.peek_span(dst, wanted, 0) } } else { 0 };
        if done < wanted {
            // SAFETY: the rest of it.
            done += unsafe { self.peek_link(dst.add(done), wanted - done, done) };
        }
        self.consume_link(done);
        (done > 0).then_some(done)
    }

    /// As [`receive`](LockedStream::receive), of the only message in the ring.
    ///
    /// # Safety
    /// As for `receive`.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline(always)]
    pub(crate) unsafe fn receive_span(
        &mut self,
        span: Span,
        dst: *mut u8,
        len: usize,
        is_writable: impl FnOnce(usize) -> bool,
    ) -> Option<usize> {
        let Attachment { region, .. } = self.inner.attached.as_deref()?;
        let (n, at) = (len.min(span.len as usize), CREDIT_BLOCK_LEN + span.offset as usize);
        // SAFETY: found to be writable.
        let received = n > 0 && is_writable(n) && unsafe { region.memory.read_into(at, dst, n) };
        // Whoever reads next, or waits meanwhile, has not seen the rest come.
        self.arrived |= !received || n < span.len as usize;
        if received {
            self.consume_link(n);
        }
        received.then_some(n)
    }

    /// [`send_link`](LockedStream::send_link) from a slice.
    #[expect(unsafe_code, reason = "calls the raw form")]
    #[inline]
    pub fn send_slice(&mut self, src: &[u8], more: bool) -> LinkIo {
        // SAFETY: the slice is readable.
        unsafe { self.send_link(src.as_ptr(), src.len(), more) }
    }

    /// [`peek_link`](LockedStream::peek_link) into a slice.
    #[expect(unsafe_code, reason = "calls the raw form")]
    #[inline]
    pub fn peek_slice(&mut self, dst: &mut [u8], skip: usize) -> usize {
        // SAFETY: the slice is writable.
        unsafe { self.peek_link(dst.as_mut_ptr(), dst.len(), skip) }
    }

    /// The peer may have given credit to a stream that could not send: refreshes its byte credit, requests more, and
    /// informs the owner.
    pub(crate) fn unstall(&mut self) {
        self.refresh_consumed();
        self.push_corked();
        let inner = &mut *self.inner;
        if let Some(link) = inner.link().filter(|_| inner.sending.crowded) {
            link.tx.lock().want(self.endpoint.device());
            self.wait_for_room();
        }
        let proto = &mut self.inner.proto;
        if proto.tx_sink() == TxSink::Link && !proto.link_writable() {
            proto.stalled();
        }
        self.arrived = true;
    }

    /// Reads the peer's consumed position, and its count of messages if a write waits for that. A writer that spins
    /// does not have to wait for the announcement.
    #[inline]
    pub fn refresh_consumed(&mut self) {
        let inner = &mut *self.inner;
        if inner.sending.crowded {
            // A dead link will never have room: no wait would end.
            inner.sending.crowded = inner.link().is_some_and(|link| !link.is_dead() && !link.tx.lock().has_room());
        }
        if let Some(word) = inner.attached.as_ref().and_then(|at| at.region.memory.word(0)) {
            inner.proto.handle_consumed(word.load(Ordering::Acquire));
        }
    }
}
