//! What a helper thread sleeps on: an epoll instance with a descriptor that wakes it, and the anchors that it watches.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use netacc_driver::StreamCell;
use parking_lot::Mutex;

use crate::os::own::{self, kick, new_eventfd};
use crate::os::{real, uses};

/// Each descriptor is -1 where there is none, or it was given back.
pub(crate) struct Poller {
    pub(crate) epoll: AtomicI32,
    pub(crate) kick: AtomicI32,
    anchors: Mutex<HashMap<u64, Weak<StreamCell>>>,
    next: AtomicU64,
}

impl Poller {
    /// With as many of its descriptors as can be had.
    pub(crate) fn new() -> Poller {
        // SAFETY: no pointers.
        let epoll = own::keep(|| unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) }).unwrap_or(-1);
        Poller { epoll: AtomicI32::new(epoll), kick: AtomicI32::new(new_eventfd().unwrap_or(-1)), ..Poller::none() }
    }

    /// Without descriptors.
    pub(crate) fn none() -> Poller {
        Poller {
            epoll: AtomicI32::new(-1),
            kick: AtomicI32::new(-1),
            anchors: Mutex::default(),
            next: AtomicU64::new(FIRST_ANCHOR),
        }
    }

    /// With both of its descriptors, and woken by the one; `None` if they cannot be had.
    pub(crate) fn complete() -> Option<Poller> {
        let poller = Poller::new();
        let is_complete = poller.epoll.load(Ordering::SeqCst) >= 0 && poller.kick_fd() >= 0;
        if is_complete && poller.add(poller.kick_fd(), libc::EPOLLIN, KICK) {
            return Some(poller);
        }
        poller.give_back();
        None
    }

    /// The descriptor that wakes the thread; -1 if there is none.
    pub(crate) fn kick_fd(&self) -> c_int {
        self.kick.load(Ordering::SeqCst)
    }

    /// Wakes the thread, if there is a descriptor for that. Safe in a signal handler.
    pub(crate) fn kick(&self) {
        let _use = uses::Use::begin();
        let fd = self.kick_fd();
        if fd >= 0 {
            kick(fd);
        }
    }

    /// Closes both descriptors. No thread sleeps on them any more.
    pub(crate) fn give_back(&self) {
        let all = [&self.epoll, &self.kick].map(|fd| fd.swap(-1, Ordering::SeqCst));
        if uses::await_uses() {
            all.into_iter().filter(|fd| *fd >= 0).for_each(own::discard);
        }
    }

    /// Watches a descriptor of the library's; `data` comes with its events.
    pub(crate) fn add(&self, fd: c_int, events: c_int, data: u64) -> bool {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: the event is readable.
        unsafe { real::epoll_ctl(self.epoll.load(Ordering::Relaxed), libc::EPOLL_CTL_ADD, fd, &mut event) == 0 }
    }

    /// Waits for other events of a descriptor from now on.
    pub(crate) fn change(&self, fd: c_int, events: c_int, data: u64) {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: the event is readable.
        unsafe { real::epoll_ctl(self.epoll.load(Ordering::Relaxed), libc::EPOLL_CTL_MOD, fd, &mut event) };
    }

    /// Watches an anchor for records and for its end. The registration goes with the descriptor.
    pub(crate) fn watch(&self, fd: c_int, cell: &Arc<StreamCell>) {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let mut anchors = self.anchors.lock();
        if anchors.len() > 64 && anchors.len().is_power_of_two() {
            anchors.retain(|_, cell| cell.strong_count() > 0);
        }
        anchors.insert(key, Arc::downgrade(cell));
        drop(anchors);
        let events = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
        let _use = uses::Use::begin();
        if !self.add(fd, events, key) {
            self.change(fd, events, key);
        }
    }

    /// The stream whose anchor has an event with this key. Forgets one that has ended.
    pub(crate) fn stream(&self, key: u64) -> Option<Arc<StreamCell>> {
        let mut anchors = self.anchors.lock();
        let cell = anchors.get(&key).and_then(Weak::upgrade);
        if cell.is_none() {
            anchors.remove(&key);
        }
        cell
    }
}

/// The data of events of the kick; anchors have higher numbers.
pub(crate) const KICK: u64 = 0;
const FIRST_ANCHOR: u64 = 16;
