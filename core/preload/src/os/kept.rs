//! Values that stay in memory until the process ends, because unknown threads may still use them. A list keeps them
//! reachable: otherwise a leak checker in the program would report them.

use std::sync::atomic::{AtomicPtr, Ordering};

/// The value that was kept last.
static LAST: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// One value, with a pointer to the one before it.
struct Kept<T> {
    before: *mut (),
    #[expect(dead_code, reason = "kept for its existence")]
    value: T,
}

/// Keeps `value` for ever. Takes no lock, so also a forked child may call it.
pub(crate) fn keep<T>(value: T) {
    let mut before = LAST.load(Ordering::Acquire);
    let node = Box::into_raw(Box::new(Kept { before, value }));
    while let Err(now) = LAST.compare_exchange(before, node.cast(), Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: this thread's own until it is in the list.
        unsafe { (*node).before = now };
        before = now;
    }
}
