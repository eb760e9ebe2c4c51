//! Bytes that are held back: `TCP_CORK`, `MSG_MORE`, the pieces of one write, and small writes behind others.
//!
//! A write that finds no room for its message is held back, as the kernel would take it into a buffer. A small message
//! of a stream that has sent several without an answer from its peer is held back too, while a completion is due that
//! will release it: later writes go out with it as one message, as the kernel's `tcp_autocorking` does. If the device
//! reports no completion, the endpoint releases it when it checks the link; see `endpoint/room.rs`.
//!
//! The bytes lie in the ring and count as sent; only the message that announces them to the peer is held back.
//! Invariants: the bytes held back are one contiguous span that ends where the next byte will lie; every other message
//! of the stream goes after it, except credit for the peer; and no bytes are held back if they need no message because
//! they are replayed on the anchor. Where the peer's memory is mapped, it can find these bytes, should this process
//! die.

use std::sync::atomic::Ordering;

use netacc_device::{InPlaceError, Instant, PostError};
use netacc_proto::{Immediate, MessageKind, CORKED_REWIND, CORKED_WORD, CREDIT_BLOCK_LEN};

use super::cell::Attachment;
use super::corked::{Corked, CORK_INTERVAL, MAX_UNANSWERED};
use super::growth::record_growth;
use super::guard::LockedStream;
use super::transfer::LinkIo;
use crate::endpoint::Timed;
use crate::Mark;

/// The result of pushing the bytes held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushed {
    Sent,
    /// The bytes stay held back: there is no room for the message.
    Full,
    /// The link is dead, and these bytes of the present write were not sent.
    Dead {
        unsent: u32,
    },
}

impl LockedStream<'_> {
    /// Sends the pieces as one write: as [`send_link`](LockedStream::send_link), but only whole messages are announced
    /// to the peer, and the rest if no `more` is to come.
    ///
    /// # Safety
    /// Each piece is readable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    pub unsafe fn send_pieces(&mut self, pieces: impl Iterator<Item = (*const u8, usize)>, more: bool) -> LinkIo {
        self.inner.sending.cork.requested = more;
        // The bytes of this write that are held back, and so not sent if the link turns out to be dead.
        let (mut done, mut fresh) = (0, 0);
        for (src, len) in pieces {
            let mut at = 0;
            while at < len {
                // SAFETY: `at < len`.
                let pushed = match unsafe { self.cork_span(src.add(at), len - at) } {
                    Some(0) if !self.inner.sending.cork.is_pending() => return self.sent(done),
                    Some(0) => self.push(fresh),
                    Some(n) => {
                        (at, done, fresh) = (at + n, done + n, fresh + n as u32);
                        if self
                            .inner
                            .sending
                            .cork
                            .corked
                            .as_ref()
                            .is_none_or(|corked| corked.span.len < self.inner.sending.message_len)
                        {
                            continue;
                        }
                        self.push(fresh)
                    }
                    None if done == 0 => return LinkIo::Moved,
                    None => return self.sent(done),
                };
                match pushed {
                    Pushed::Sent => fresh = 0,
                    Pushed::Full => return self.sent(done),
                    Pushed::Dead { unsent } => return self.sent(done - unsent as usize),
                }
            }
        }
        self.refresh_consumed();
        if !(more || self.goes_with_others()) || !self.inner.proto.link_writable() {
            if let Pushed::Dead { unsent } = self.push(fresh) {
                done -= unsent as usize;
            }
        }
        self.sent(done)
    }

    /// Adds as many bytes as fit behind those held back; 0 if none do. `None`: the path has changed.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    unsafe fn cork_span(&mut self, src: *const u8, len: usize) -> Option<usize> {
        let inner = &mut *self.inner;
        let Attachment { region, outgoing, .. } = inner.attached.as_deref_mut()?;
        let out = outgoing.as_mut()?;
        inner.proto.peer_slot()?;
        inner.proto.handle_consumed(region.memory.word(0)?.load(Ordering::Acquire));
        let so_far = inner.sending.cork.corked.as_ref().map_or(0, |corked| corked.span.len);
        let most = (inner.sending.message_len - so_far) as usize;
        let span = inner.proto.claim(len.min(most) as u32);
        // The next span does not lie behind this one, but at the other end of the ring.
        let apart = inner
            .sending
            .cork
            .corked
            .as_ref()
            .is_some_and(|corked| corked.span.offset + corked.span.len != span.offset);
        if span.len == 0 || apart {
            return Some(0);
        }
        if out.grows_by(span) {
            record_growth(self.endpoint, self.cell, &mut inner.listed);
        }
        self.endpoint.mark(self.cell, &inner.proto, Mark::Claimed, 0);
        // SAFETY: the span is no longer than the source.
        if !unsafe { out.memory.write_from(CREDIT_BLOCK_LEN + span.offset as usize, src, span.len as usize) } {
            return Some(0);
        }
        let rewind = inner.proto.commit(span.len);
        self.endpoint.mark(self.cell, &inner.proto, Mark::Copied, 0);
        self.add_corked(Corked { span, rewind });
        Some(span.len as usize)
    }

    /// Holds back a span that has been filled and committed, behind the one that is held back already.
    pub(super) fn add_corked(&mut self, new: Corked) {
        let inner = &mut *self.inner;
        self.endpoint.mark(self.cell, &inner.proto, Mark::Held, 0);
        inner.counters.tx_bytes_link += u64::from(new.span.len);
        match &mut inner.sending.cork.corked {
            Some(corked) => corked.span.len += new.span.len,
            None => {
                inner.sending.cork.corked = Some(new);
                inner.sending.cork.spans += 1;
            }
        }
        let outgoing = inner.attached.as_ref().and_then(|at| at.outgoing.as_ref());
        let (Some(out), Some(corked)) = (outgoing, &inner.sending.cork.corked) else { return };
        if let (None, Some(word)) = (&out.staging, out.memory.word(CORKED_WORD)) {
            let rewind = if corked.rewind { CORKED_REWIND } else { 0 };
            word.store(inner.proto.positions().0 | rewind, Ordering::Release);
        }
    }

    /// Whether a small message had better wait for others: the peer has not answered for [`MAX_UNANSWERED`] messages, and a
    /// completion is due, which releases it.
    #[inline]
    pub(super) fn goes_with_others(&mut self) -> bool {
        self.inner.sending.unanswered >= MAX_UNANSWERED
            && self.link().is_some_and(|link| link.tx.lock().awaits_completion())
    }

    /// The bytes held back wait for a completion: should none come soon, the endpoint releases them.
    fn wait_for_others(&mut self) {
        self.inner.sending.cork.waited = true;
        self.wait_for_completion();
    }

    /// Whether some written bytes were not announced to the peer yet.
    pub fn has_corked(&self) -> bool {
        self.inner.sending.cork.is_pending()
    }

    /// Announces the bytes held back to the peer; false if there is no room for the message. It is tried again once
    /// there is.
    pub fn push_corked(&mut self) -> bool {
        self.push(0) != Pushed::Full
    }

    /// Announces the bytes held back to the peer, except those that the program has corked.
    pub(crate) fn push_unasked(&mut self) {
        if self.inner.sending.cork.awaits_room() {
            self.push_corked();
        }
    }

    /// As [`push_corked`](LockedStream::push_corked), in a write whose last `fresh` bytes are held back.
    fn push(&mut self, fresh: u32) -> Pushed {
        let inner = &mut *self.inner;
        let Some(corked) = inner.sending.cork.corked.take() else { return Pushed::Sent };
        let slot = inner.proto.peer_slot().filter(|_| inner.proto.sends_on_link());
        let (Some(slot), Some(Attachment { link, outgoing: Some(out), .. })) = (slot, inner.attached.as_deref()) else {
            return Pushed::Sent;
        };
        let imm = Immediate { kind: MessageKind::Data, rewind: corked.rewind, slot };
        let mut tx = link.tx.lock();
        // The program may write more before this message completes.
        tx.want_completion(std::mem::take(&mut inner.sending.cork.waited));
        if tx.watch.resting {
            self.endpoint.resume_watch(&mut tx);
        }
        match tx.data(self.endpoint.device(), (&out.ring, out.staging.as_ref()), corked.span, imm, None) {
            Ok(()) => {
                self.endpoint.mark(self.cell, &inner.proto, Mark::Posted, 0);
                inner.counters.tx_msgs_link += 1;
                inner.sending.unanswered = inner.sending.unanswered.saturating_add(1);
                Pushed::Sent
            }
            Err(InPlaceError::Post(PostError::QueueFull)) => {
                inner.sending.cork.corked = Some(corked);
                drop(tx);
                self.no_room();
                Pushed::Full
            }
            Err(_) => {
                drop(tx);
                // Bytes that earlier writes reported as sent are replayed on the anchor, if the peer lives.
                inner.proto.uncommit(fresh, corked.rewind && fresh == corked.span.len);
                inner.counters.tx_bytes_link -= u64::from(fresh);
                self.endpoint.enqueue_dead(link);
                inner.sending.crowded = true;
                Pushed::Dead { unsent: fresh }
            }
        }
    }

    /// Has the endpoint check the bytes held back in good time, or drops them once the stream has left the link: their
    /// place in the ring is meaningless on the next one.
    #[cold]
    pub(super) fn track_corked(&mut self) {
        if !self.inner.proto.sends_on_link() {
            self.inner.sending.cork.corked = None;
        } else if !self.inner.sending.cork.requested {
            self.wait_for_others();
        } else if !std::mem::replace(&mut self.inner.sending.cork.listed, true) {
            self.endpoint.add_timer(Timed::Corked(self.cell.clone()));
        }
    }

    /// The endpoint checks the bytes held back since `since`: it announces those older than [`CORK_INTERVAL`] to the
    /// peer. Returns since when to count from now on, unless nothing was held back for as long.
    pub(crate) fn check_cork(&mut self, now: Instant, since: Option<Instant>) -> Option<Instant> {
        let since = since.filter(|since| {
            now.saturating_since(*since) < CORK_INTERVAL
                || self.inner.sending.cork.spans == self.inner.sending.cork.seen
        });
        let Some(since) = since else {
            self.inner.sending.cork.seen = self.inner.sending.cork.spans;
            return Some(now);
        };
        if now.saturating_since(since) < CORK_INTERVAL {
            return Some(since);
        }
        self.push_corked();
        self.inner.sending.cork.listed = false;
        None
    }
}
