//! Marks for a trace. While none runs, a mark is one branch that is not taken.

use std::sync::atomic::Ordering;

use super::Endpoint;
use crate::{Mark, StreamCell};

impl Endpoint {
    /// Switches marks on or off.
    pub fn set_traced(&self, on: bool) {
        self.traced.store(on, Ordering::Relaxed);
    }

    /// Makes a mark, if a trace runs.
    #[inline]
    pub(crate) fn mark(&self, cell: &StreamCell, mark: Mark, position: impl FnOnce() -> u64) {
        if self.traced.load(Ordering::Relaxed) {
            self.record_mark(cell, mark, position());
        }
    }

    #[cold]
    #[inline(never)]
    fn record_mark(&self, cell: &StreamCell, mark: Mark, position: u64) {
        self.sink().mark(cell, mark, position);
    }
}
