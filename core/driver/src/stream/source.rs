//! The bytes of a write on their way into the peer's ring. Helper threads may copy parts of many.

#![expect(unsafe_code, reason = "application buffers arrive as raw pointers")]

use std::sync::atomic::{AtomicU64, Ordering};

use netacc_device::Memory;
use netacc_proto::{Span, Stream, CREDIT_BLOCK_LEN};

use crate::copying::{SharedCopy, LEAST_SHARED};
use crate::Endpoint;

/// A program's buffer, of which `done` bytes have been sent.
pub(super) struct Source<'a> {
    endpoint: &'a Endpoint,
    src: *const u8,
    len: usize,
    pub(super) done: usize,
    /// The copy of the next bytes, if helper threads may share it.
    shared: Option<SharedCopy<'a>>,
}

impl<'a> Source<'a> {
    /// # Safety
    /// `src..src + len` is readable as long as this exists.
    #[inline]
    pub(super) unsafe fn new(endpoint: &'a Endpoint, src: *const u8, len: usize) -> Source<'a> {
        Source { endpoint, src, len, done: 0, shared: None }
    }

    /// Reads the credit word, and claims the next span, of at most `most` bytes. If there is room for many bytes, a copy of them
    /// begins.
    #[inline]
    pub(super) fn claim(&mut self, proto: &mut Stream, word: &AtomicU64, ring: &Memory, most: u32) -> Span {
        let mut wanted = self.len - self.done;
        if let Some(copy) = &self.shared {
            // The next part of the same room, because the consumed position is not read meanwhile.
            wanted = copy.left();
        } else {
            proto.handle_consumed(word.load(Ordering::Acquire));
            if wanted >= LEAST_SHARED {
                self.share(proto, ring, wanted);
            }
        }
        proto.claim(wanted.min(most as usize) as u32)
    }

    /// Begins a copy into all the room that there is in one piece.
    #[cold]
    fn share(&mut self, proto: &mut Stream, ring: &Memory, wanted: usize) {
        let room = proto.claim(u32::try_from(wanted).unwrap_or(u32::MAX));
        let (start, len) = (CREDIT_BLOCK_LEN + room.offset as usize, room.len as usize);
        // Both ends are within the memory.
        let Some(to) = ring.as_ptr(start).filter(|_| ring.as_ptr(start + len).is_some()) else { return };
        // SAFETY: readable by the promise of `new`, and free until it is committed. A program's buffer is never a region.
        self.shared = unsafe { self.endpoint.copies().begin(self.src.add(self.done), to, len) };
    }

    /// Copies the bytes of a claimed span into the ring. `false`: it is not within the ring.
    #[inline]
    pub(super) fn copy(&mut self, ring: &Memory, span: Span) -> bool {
        let bytes = span.len as usize;
        let Some(copy) = &mut self.shared else {
            // SAFETY: readable by the promise of `new`: no span is longer than what is left.
            return unsafe { ring.write_from(CREDIT_BLOCK_LEN + span.offset as usize, self.src.add(self.done), bytes) };
        };
        copy.land(bytes);
        if copy.left() == 0 {
            self.shared = None;
        }
        true
    }

    /// No more is copied. Returns what was sent.
    #[inline]
    pub(super) fn end(self) -> usize {
        self.done
    }
}
