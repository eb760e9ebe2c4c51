//! Recognises calls of interposed functions that are the library's own.

use std::cell::Cell;

thread_local! {
    /// The thread is inside the library's own control path: its calls are the library's, not the program's. Needs no
    /// initialisation and no destructor, so reading it is safe anywhere.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether a call that has come to a hook was made by the library itself (through the standard library, or a backend).
#[inline]
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// The thread is the library's own: it is inside until it ends.
pub fn mark_thread() {
    INSIDE.set(true);
}

/// While it lives the thread is inside.
pub struct Inside(bool);

impl Inside {
    /// Until the result is dropped.
    pub fn enter() -> Inside {
        Inside(INSIDE.replace(true))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}
