//! Counts of waiting threads and of existing objects.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// One waiting thread; it is counted until this is dropped, also if the thread is cancelled while it waits.
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

/// A count of objects that exist.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<AtomicU32>);

/// One counted object, until it is dropped.
pub(crate) struct Tallied(Tally);

impl Tally {
    #[inline]
    pub(crate) fn now(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Counts one more.
    pub(crate) fn add(&self) -> Tallied {
        self.0.fetch_add(1, Ordering::SeqCst);
        Tallied(self.clone())
    }
}

impl Drop for Tallied {
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_things_are_not_counted() {
        let tally = Tally::default();
        let (first, second) = (tally.add(), tally.add());
        assert_eq!(tally.now(), 2);
        drop((first, second));
        assert_eq!(tally.now(), 0);
    }
}
