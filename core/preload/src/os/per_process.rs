//! Values of one process, made when they are first needed: a forked child makes its own, because threads of its parent may hold
//! locks of the parent's.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::kept;

/// A value of this process. Once made it lives until the process ends.
pub(crate) struct PerProcess<T>(AtomicPtr<T>);

impl<T: Sync + 'static> PerProcess<T> {
    /// Not made yet.
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(null_mut()))
    }

    /// The value. Makes it if there is none yet; if several threads make one, one of them wins.
    #[inline]
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        // SAFETY: null, or a box that is never freed.
        match unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            Some(value) => value,
            None => self.make(make),
        }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> T) -> &'static T {
        let new = Box::into_raw(Box::new(make()));
        let value = match self.0.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: just made, and not published.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: never freed.
        unsafe { &*value }
    }

    /// In a forked child: the value is the parent's. It stays in memory.
    pub(crate) fn forget(&self) {
        let parents = self.0.swap(null_mut(), Ordering::AcqRel);
        if !parents.is_null() {
            kept::keep(parents);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_for_each_process() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        assert_eq!((VALUE.get_or_make(|| 1), VALUE.get_or_make(|| 2)), (&1, &1));
        VALUE.forget();
        VALUE.forget();
        assert_eq!(VALUE.get_or_make(|| 3), &3);
    }
}
