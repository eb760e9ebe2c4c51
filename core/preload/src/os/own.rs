//! Descriptors that the library keeps for itself: at high numbers, because programs expect the lowest free one.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use parking_lot::Mutex;

use super::{kept, real};

/// No descriptor of the library lies below this.
static FLOOR: AtomicI32 = AtomicI32::new(c_int::MAX);

/// The descriptors that [`keep`] has moved. A forked child gets a new list, because a thread of its parent may hold the
/// lock of the old one.
static OWN: AtomicPtr<Mutex<Vec<c_int>>> = AtomicPtr::new((&raw const FIRST_OWN).cast_mut());
static FIRST_OWN: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

fn own() -> &'static Mutex<Vec<c_int>> {
    // SAFETY: a static, or a box that is never freed.
    unsafe { &*OWN.load(Ordering::Acquire) }
}

/// Whether `fd` may be one of the library's, by its number alone.
#[inline]
pub fn may_be_own(fd: c_int) -> bool {
    fd >= FLOOR.load(Ordering::Relaxed)
}

/// The library has descriptors from this number on.
pub fn lower_floor(to: c_int) {
    FLOOR.fetch_min(to, Ordering::Relaxed);
}

/// The library needs none of its descriptors any more: the program may use their numbers freely.
pub fn protect_nothing() {
    FLOOR.store(c_int::MAX, Ordering::Relaxed);
}

/// Those that [`keep`] has moved, and that have not been discarded.
pub fn list() -> Vec<c_int> {
    own().lock().clone()
}

/// Whether `fd` is in the [`list`].
pub fn is_listed(fd: c_int) -> bool {
    own().lock().contains(&fd)
}

/// In a forked child: its parent's descriptors are not its own.
pub fn after_fork_child() {
    let new = Box::into_raw(Box::new(Mutex::new(Vec::new())));
    kept::keep(new);
    OWN.store(new, Ordering::Release);
}

/// Duplicates `fd` to a high number, close-on-exec.
pub fn duplicate_high(fd: c_int) -> Option<c_int> {
    let new = netacc_descriptors::raised_copy(fd)?.into_raw_fd();
    lower_floor(new);
    Some(new)
}

/// A new eventfd at a high number.
pub fn new_eventfd() -> Option<c_int> {
    // SAFETY: no pointers.
    keep(|| unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// Makes a descriptor, at a number where the library keeps its own. `None` if `make` returns none.
pub fn keep(make: impl FnOnce() -> c_int) -> Option<c_int> {
    let high = make_high(make)?;
    own().lock().push(high);
    Some(high)
}

/// As [`keep`], for a descriptor that its owner closes itself.
pub fn make_high(make: impl FnOnce() -> c_int) -> Option<c_int> {
    let _number = netacc_descriptors::borrow();
    let low = make();
    if low < 0 {
        return None;
    }
    let high = duplicate_high(low);
    // SAFETY: just created, and not published.
    unsafe { real::close(low) };
    high
}

/// Closes a descriptor of the library.
pub fn discard(fd: c_int) {
    own().lock().retain(|one| *one != fd);
    // SAFETY: the descriptor is the library's.
    unsafe { real::close(fd) };
}

/// Makes an eventfd readable.
pub fn kick(fd: c_int) {
    let one = 1u64;
    // SAFETY: eight readable bytes.
    unsafe { real::write(fd, (&raw const one).cast(), 8) };
}

/// Resets an eventfd, so that it is not readable any more.
pub fn drain(fd: c_int) {
    let mut count = 0u64;
    // SAFETY: eight writable bytes.
    unsafe { real::read(fd, (&raw mut count).cast(), 8) };
}
