//! The kick of an instance: what wakes the threads that sleep in the kernel's part of it, and stands for the ready list there.
//!
//! It is an eventfd that is registered with the kernel's instance. If the program has left no descriptor for that, the kick is
//! borrowed: the descriptor by which the helper is woken, which can always be written to, is registered in place of it, and
//! the registration wants that event only while the kick is raised.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{deregister, internal_ctl, KICK};
use crate::os::own;
use crate::os::uses::{self, Use};
use crate::runtime;

/// The number of an eventfd, or [`NONE`] or [`BORROWED`].
pub(super) struct Kick(AtomicU32);

const NONE: u32 = 0;
const BORROWED: u32 = u32::MAX;

impl Kick {
    pub(super) const fn none() -> Kick {
        Kick(AtomicU32::new(NONE))
    }

    #[inline]
    pub(super) fn is_made(&self) -> bool {
        self.0.load(Ordering::Acquire) != NONE
    }

    /// Whether it has no eventfd. Then the instance must not be closed while the kick is raised.
    pub(super) fn is_borrowed(&self) -> bool {
        self.0.load(Ordering::Acquire) == BORROWED
    }

    /// The number of its eventfd.
    pub(super) fn eventfd(&self) -> Option<c_int> {
        Some(self.0.load(Ordering::Acquire)).filter(|kick| !matches!(*kick, NONE | BORROWED)).map(|kick| kick as c_int)
    }

    /// Makes it, not raised, if there is none. Called with the instance locked. Whether it was made.
    pub(super) fn make(&self, epfd: c_int) -> bool {
        if self.is_made() || uses::is_over() {
            return false;
        }
        let _use = Use::begin();
        if let Some(fd) = own::new_eventfd() {
            self.0.store(fd as u32, Ordering::Release);
            internal_ctl(epfd, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, KICK);
        } else if helpers().is_some_and(|fd| internal_ctl(epfd, libc::EPOLL_CTL_ADD, fd, 0, KICK)) {
            self.0.store(BORROWED, Ordering::Release);
        }
        self.is_made()
    }

    /// Makes it readable, which is an edge for those that watch the instance.
    #[cold]
    pub(super) fn raise(&self, epfd: c_int) {
        self.change(epfd, libc::EPOLLOUT, own::kick);
    }

    /// Resets it.
    pub(super) fn lower(&self, epfd: c_int) {
        self.change(epfd, 0, own::drain);
    }

    fn change(&self, epfd: c_int, events: c_int, eventfd: impl FnOnce(c_int)) {
        let _use = Use::begin();
        match self.0.load(Ordering::SeqCst) {
            NONE => {}
            BORROWED => {
                helpers().map(|fd| internal_ctl(epfd, libc::EPOLL_CTL_MOD, fd, events, KICK));
            }
            fd => eventfd(fd as c_int),
        }
    }

    /// Removes it from the kernel's instance.
    pub(super) fn deregister(&self, epfd: c_int) {
        let _use = Use::begin();
        if let Some(fd) = self.eventfd().or_else(|| helpers().filter(|_| self.is_borrowed())) {
            deregister(epfd, fd);
        }
    }

    /// The library gives back its descriptors. Returns the eventfd, if no thread uses it any more.
    pub(super) fn give_up(&self) -> Option<c_int> {
        let kick = self.0.swap(NONE, Ordering::SeqCst);
        (!matches!(kick, NONE | BORROWED) && uses::await_uses()).then_some(kick as c_int)
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        if let Some(fd) = self.eventfd() {
            own::discard(fd);
        }
    }
}

/// The descriptor that wakes the helper.
fn helpers() -> Option<c_int> {
    runtime::get().map(|rt| rt.helper.kick_fd()).filter(|fd| *fd >= 0)
}
