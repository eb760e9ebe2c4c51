//! Threads that are counted while they wait.

use std::sync::atomic::{AtomicU32, Ordering};

/// One of those that a count counts; not any more once dropped, also if the thread is cancelled while it waits.
pub struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    /// Counted already.
    pub(crate) fn new(count: &'a AtomicU32) -> Counted<'a> {
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
