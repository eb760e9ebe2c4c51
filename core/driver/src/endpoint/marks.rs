//! Marks for a trace. While none runs, a mark is one branch that is not taken.

use std::sync::atomic::Ordering;

use netacc_proto::{Reason, Stream};

use super::Endpoint;
use crate::{Mark, Marked, StreamCell};

impl Endpoint {
    /// Switches marks on or off.
    pub fn set_traced(&self, on: bool) {
        self.traced.store(on, Ordering::Relaxed);
    }

    /// Whether a trace runs.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.traced.load(Ordering::Relaxed)
    }

    /// Makes a mark, if a trace runs. `ahead`: bytes behind the position of the stream that the mark is about.
    #[inline]
    pub(crate) fn mark(&self, cell: &StreamCell, stream: &Stream, mark: Mark, ahead: u32) {
        if self.is_traced() {
            self.record_mark(cell, stream, mark, ahead);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_mark(&self, cell: &StreamCell, stream: &Stream, mark: Mark, ahead: u32) {
        let (sent, received) = stream.positions();
        let position = match mark {
            Mark::Arrived => received + u64::from(stream.available()),
            Mark::Read => received,
            Mark::Claimed | Mark::Copied | Mark::Posted | Mark::Held | Mark::Stalled => sent,
            Mark::AnchorSent { position } | Mark::AnchorRead { position } => position,
        };
        let reason = match mark {
            Mark::AnchorSent { .. } | Mark::AnchorRead { .. } => stream.reason(),
            _ => Reason::None,
        };
        let position = position + u64::from(ahead);
        self.sink().mark(cell, &Marked { mark, position, reason, role: stream.role() });
    }
}
