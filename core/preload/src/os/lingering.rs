//! Duplicates of anchors that outlive the program's descriptors: their sockets were closed, but the protocol has not
//! finished on them.
//!
//! A forked child gets them too, and would keep connections open that its program has closed, so it closes them at
//! once. None may be made or closed during a fork: the list stays locked meanwhile.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::os::own;
use crate::os::real;

/// The standard library's lock, which is only a number. In a child, `parking_lot` could pass its lock to a thread that
/// waits for it in the parent.
static LINGERING: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

thread_local! {
    /// The list, locked by the thread that is about to fork. No destructor: a program may fork in one of its own.
    static FORK_GUARD: Cell<Option<ManuallyDrop<MutexGuard<'static, Vec<c_int>>>>> = const { Cell::new(None) };
}

fn locked() -> MutexGuard<'static, Vec<c_int>> {
    LINGERING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Duplicates a descriptor of a connection.
pub(crate) fn duplicate(fd: c_int) -> Option<c_int> {
    let mut lingering = locked();
    let new = own::duplicate_high(fd)?;
    lingering.push(new);
    Some(new)
}

/// Closes a duplicate of [`duplicate`].
pub(crate) fn close(fd: c_int) {
    let mut lingering = locked();
    lingering.retain(|one| *one != fd);
    // SAFETY: the descriptor is the library's.
    unsafe { real::close(fd) };
}

/// Before a fork.
pub(crate) fn before_fork() {
    FORK_GUARD.set(Some(ManuallyDrop::new(locked())));
}

/// After a fork, or one that has failed, in the parent.
pub(crate) fn after_fork_parent() {
    drop(FORK_GUARD.take().map(ManuallyDrop::into_inner));
}

/// After a fork, in the child.
pub(crate) fn after_fork_child() {
    let Some(mut lingering) = FORK_GUARD.take().map(ManuallyDrop::into_inner) else { return };
    for fd in lingering.drain(..) {
        // SAFETY: a descriptor of the library, inherited and of no use here.
        unsafe { real::close(fd) };
    }
}
