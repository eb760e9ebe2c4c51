//! The direct way of a short message between the program and its link: one thread moves it in one step, with the stream
//! locked once, and announces it to nobody in this process.
//!
//! Preconditions, each of which is checked here or promised by the caller:
//! * the stream is [steady](LockedStream::is_steady), before the message and after it;
//! * a message that is sent is one contiguous span, for which there is credit, and the stream stays writable;
//! * before a message is sent, everything that has come on the link is handled;
//! * a message that is received is of the stream's data, as are all that have come on the link, and they are few;
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

use super::incoming::EMPTY;
use super::Endpoint;
use crate::{LockedStream, StreamCell};

/// Messages that go the direct way at a time. Arbitrary: with more of them, it is no shorter than the other.
const FEW: usize = 4;

impl Endpoint {
    /// Sends a message of `len` bytes. `false`: nothing was sent, and the call is to be made as ever.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline]
    pub unsafe fn send_direct(&self, cell: &Arc<StreamCell>, src: *const u8, len: u32) -> bool {
        let mut guard = cell.lock(self);
        // SAFETY: passed on to the caller.
        guard.is_steady() && !guard.has_news() && guard.move_bytes(|stream| unsafe { stream.send_message(src, len) })
    }

    /// [`send_direct`](Endpoint::send_direct) from a slice.
    #[expect(unsafe_code, reason = "calls the raw form")]
    #[inline]
    pub fn send_slice_direct(&self, cell: &Arc<StreamCell>, src: &[u8]) -> bool {
        // SAFETY: the slice is readable.
        u32::try_from(src.len()).is_ok_and(|len| len > 0 && unsafe { self.send_direct(cell, src.as_ptr(), len) })
    }

    /// Runs `take` with the stream locked if it is steady and has bytes. If it has none and is not `watched`, takes
    /// messages from its link first. `None`: `take` has taken nothing, and the call is to be made as ever.
    #[inline]
    pub fn receive_direct<R>(
        &self,
        cell: &Arc<StreamCell>,
        watched: bool,
        take: impl FnOnce(&mut LockedStream<'_>) -> Option<R>,
    ) -> Option<R> {
        let mut guard = cell.lock(self);
        if !guard.is_steady() {
            return None;
        }
        if guard.proto().available() > 0 {
            return guard.move_bytes(take);
        }
        if watched {
            return None;
        }
        let (link, slot) = (guard.link()?.clone(), guard.proto().slot());
        drop(guard);
        if !link.caps.peer_memory {
            // Completions have no numbers there: see `qp_sequence`.
            return None;
        }
        let rx = link.rx.try_lock()?;
        let mut taken = [EMPTY; FEW];
        let count = self.device().poll_qp(link.qp(), &mut taken);
        if count == 0 {
            return None;
        }
        let is_here = rx.slots.get(usize::from(slot)).and_then(Option::as_ref).is_some_and(|at| Arc::ptr_eq(at, cell));
        let Some(messages) = (count < FEW && is_here).then(|| messages_for(slot, &taken[..count])).flatten() else {
            self.poll_locked(&link, rx, &taken[..count]);
            return None;
        };
        let mut guard = cell.lock(self);
        let receive = |stream: &mut LockedStream<'_>| {
            let was_steady = stream.is_steady();
            for Message { len, rewind } in &messages[..count] {
                stream.handle_data(*len, *rewind);
            }
            let result = if was_steady && stream.is_steady() { take(stream) } else { None };
            // Whoever reads next, or waits meanwhile, has not seen them come.
            stream.arrived |= stream.proto().available() > 0 || !stream.is_steady();
            result
        };
        let result = guard.move_bytes(receive);
        drop(guard);
        self.return_messages(&link, count as u32);
        link.count_seen(count as u32);
        result
    }
}

/// A DATA message.
#[derive(Clone, Copy, Default)]
struct Message {
    len: u32,
    rewind: bool,
}

/// The messages for the stream in the slot; `None` if there is any other completion.
#[inline]
fn messages_for(slot: u16, completions: &[WorkCompletion]) -> Option<[Message; FEW]> {
    let mut messages = [Message::default(); FEW];
    for (message, wc) in messages.iter_mut().zip(completions) {
        let Completion::Receive { imm, len } = wc.completion else { return None };
        let imm = Immediate::decode(imm).ok()?;
        if wc.status != CompletionStatus::Success || imm.kind != MessageKind::Data || imm.slot != slot {
            return None;
        }
        *message = Message { len, rewind: imm.rewind };
    }
    Some(messages)
}
