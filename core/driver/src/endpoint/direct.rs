//! The direct way of a short message between the program and its link: one thread moves it in one step, with the stream
//! locked once, and announces it to nobody in this process.
//!
//! Preconditions, each of which is checked here or promised by the caller:
//! * the stream is [steady](LockedStream::is_steady), before the message and after it;
//! * a message that is sent is one contiguous span, for which there is credit, and the stream stays writable;
//! * before a message is sent, everything that has come on the link is handled;
//! * a message that is received is of the stream's data, as are those that came before it, and they are few;
//! * a message that arrives is announced to the watchers of the stream, if the caller knows of any. A thread that begins to
//!   watch it later may find the message gone, as if it had been read before;
//! * no other thread polls the link: its `rx` is not waited for.
//!
//! No marks for a trace are made: while one runs, calls go the other way.
//!
//! In all other cases nothing is moved, and the link is polled as ever, so that messages are handled in their order.

use std::sync::Arc;

use netacc_device::{Completion, CompletionStatus, WorkCompletion};
use netacc_proto::{Immediate, MessageKind};
use parking_lot::MutexGuard;

use super::Endpoint;
use crate::link::LinkRx;
use crate::{LinkCell, LockedStream, StreamCell};

/// Messages that go the direct way at a time. Arbitrary: with more of them, it is no shorter than the other.
const FEW: u32 = 4;

/// Where the messages end that were taken from a link.
enum Taken {
    /// So many are the stream's. No other is needed now, or none is there.
    Messages(u32),
    /// So many are, and then this completion came. The link is to be polled.
    Other(u32, WorkCompletion),
    /// So many are, and there may be many others. The link is to be polled.
    Many(u32),
}

impl Taken {
    /// Whether the stream has what it needs, or all that is there.
    #[inline]
    fn is_over(&self) -> bool {
        matches!(self, Taken::Messages(_))
    }
}

impl Endpoint {
    /// Sends a message of `len` bytes. `false`: nothing was sent, and the call is to be made as ever.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    // In a function of its own, because it needs all registers.
    #[inline(never)]
    pub unsafe fn send_direct(&self, cell: &Arc<StreamCell>, src: *const u8, len: usize) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { cell.send_short(self, src, len) }
    }

    /// [`send_direct`](Endpoint::send_direct) from a slice.
    #[expect(unsafe_code, reason = "calls the raw form")]
    pub fn send_slice_direct(&self, cell: &Arc<StreamCell>, src: &[u8]) -> bool {
        // SAFETY: the slice is readable.
        !src.is_empty() && unsafe { self.send_direct(cell, src.as_ptr(), src.len()) }
    }

    /// Receives up to `len` bytes of a steady stream. If none are there and it is not `watched`, takes messages from its link
    /// first, until there are `len` bytes. `is_writable` is asked once, for the bytes that are to be written. `None`: nothing
    /// is received, and the call is to be made as ever.
    ///
    /// # Safety
    /// As much of `dst..dst + len` is writable as `is_writable` says.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline(never)]
    pub unsafe fn receive_direct(
        &self,
        cell: &Arc<StreamCell>,
        watched: bool,
        (dst, len): (*mut u8, usize),
        is_writable: impl FnOnce(usize) -> bool,
    ) -> Option<usize> {
        let mut guard = cell.lock(self);
        if !guard.is_known_steady() {
            return None;
        }
        if guard.proto().available() > 0 {
            // SAFETY: passed on to the caller.
            let result = unsafe { guard.begin_move().receive(dst, len, is_writable) };
            guard.end_move();
            return result;
        }
        if watched {
            return None;
        }
        let link = guard.link()?.clone();
        if !link.caps.peer_memory {
            // Completions have no numbers there: see `qp_sequence`.
            return None;
        }
        // A thread that has this locked may wait for the stream.
        let mut rx = link.rx.try_lock()?;
        let slot = guard.proto().slot();
        if !rx.slots.get(usize::from(slot)).and_then(Option::as_ref).is_some_and(|at| Arc::ptr_eq(at, cell)) {
            return None;
        }
        // Not moved out of its place: that would copy it.
        let polled = self.device().poll_one(link.qp());
        let completion = polled.as_ref()?;
        let Some((data_len, rewind)) = data_for(slot, completion) else {
            drop(guard);
            self.poll_locked(&link, rx, std::slice::from_ref(completion));
            return None;
        };
        // In steps, not in a closure, which would take its arguments from memory.
        let stream = guard.begin_move();
        let span = stream.handle_steady_data(data_len, rewind);
        if (data_len as usize) < len {
            // SAFETY: passed on to the caller.
            let (result, taken) = unsafe { self.receive_more(&link, stream, slot, (dst, len), is_writable) };
            guard.end_move();
            drop(guard);
            self.after_messages(&link, rx, taken);
            return result;
        }
        // SAFETY: passed on to the caller.
        let result = unsafe { span.and_then(|span| stream.receive_span(span, dst, len, is_writable)) };
        guard.end_move();
        drop(guard);
        self.return_later(&link, &mut rx, 1);
        link.count_seen(1);
        result
    }

    /// Receives after the first message that was taken from the link: up to `len` bytes of it and of those that follow it.
    ///
    /// # Safety
    /// As for [`receive_direct`](Endpoint::receive_direct).
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline(never)]
    unsafe fn receive_more(
        &self,
        link: &LinkCell,
        stream: &mut LockedStream<'_>,
        slot: u16,
        (dst, len): (*mut u8, usize),
        is_writable: impl FnOnce(usize) -> bool,
    ) -> (Option<usize>, Taken) {
        let taken = self.take_more(link, stream, slot, len);
        // SAFETY: passed on to the caller.
        let result = if taken.is_over() { unsafe { stream.receive(dst, len, is_writable) } } else { None };
        // Whoever reads next, or waits meanwhile, has not seen them come.
        stream.arrived |= stream.proto().available() > 0;
        (result, taken)
    }

    /// [`receive_direct`](Endpoint::receive_direct) into a slice.
    #[expect(unsafe_code, reason = "calls the raw form")]
    pub fn receive_slice_direct(&self, cell: &Arc<StreamCell>, watched: bool, dst: &mut [u8]) -> Option<usize> {
        // SAFETY: the slice is writable.
        unsafe { self.receive_direct(cell, watched, (dst.as_mut_ptr(), dst.len()), |_| true) }
    }

    /// The messages that were taken from a link are handled, all but the last one, if it was another.
    #[inline(always)]
    fn after_messages(&self, link: &Arc<LinkCell>, mut rx: MutexGuard<'_, LinkRx<StreamCell>>, taken: Taken) {
        let (Taken::Messages(count) | Taken::Many(count) | Taken::Other(count, _)) = taken;
        self.return_later(link, &mut rx, count);
        link.count_seen(count);
        match taken {
            Taken::Messages(_) => {}
            Taken::Many(_) => self.poll_locked(link, rx, &[]),
            Taken::Other(_, completion) => self.poll_locked(link, rx, &[completion]),
        }
    }

    /// Hands a stream the messages of its link that come after the first one, until it has `room` bytes.
    fn take_more(&self, link: &LinkCell, stream: &mut LockedStream<'_>, slot: u16, room: usize) -> Taken {
        for count in 1..FEW {
            let Some(completion) = self.device().poll_one(link.qp()) else { return Taken::Messages(count) };
            let Some((len, rewind)) = data_for(slot, &completion) else { return Taken::Other(count, completion) };
            stream.handle_data(len, rewind);
            if stream.proto().available() as usize >= room {
                return Taken::Messages(count + 1);
            }
        }
        Taken::Many(FEW)
    }
}

/// The length of a DATA message for the stream in the slot, and whether it rewinds; `None` for any other completion.
#[inline(always)]
fn data_for(slot: u16, completion: &WorkCompletion) -> Option<(u32, bool)> {
    let Completion::Receive { imm, len } = completion.completion else { return None };
    let imm = Immediate::decode(imm).ok()?;
    let is_its = completion.status == CompletionStatus::Success && imm.kind == MessageKind::Data && imm.slot == slot;
    is_its.then_some((len, imm.rewind))
}
