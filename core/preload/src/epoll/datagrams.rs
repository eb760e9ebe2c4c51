//! Datagram sockets in an instance. The kernel's instance watches them as the program has said, and reports what comes by the
//! kernel. This module adds what is in their rings, before the kernel is asked, and lets a thread that is about to sleep
//! say so.
//!
//! A socket for which that is not enough (one shot, exclusive, or an instance that others observe) is the kernel's alone.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use libc::epoll_event;
use netacc_device::Instant;
use parking_lot::Mutex;

use super::waiting::Out;
use super::Shared;
use crate::control::flows;
use crate::datagram::{Asleep, Datagram, KernelOnly, KERNEL_LOOKS};
use crate::os::clock::now;
use crate::os::poll;
use crate::runtime::Runtime;
use crate::spin::Waiting;
use crate::table::{self, Entry};

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const KERNELS: u32 = (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// The datagram sockets of an instance.
#[derive(Default)]
pub(super) struct Datagrams {
    count: AtomicU32,
    watched: Mutex<Vec<Watched>>,
}

struct Watched {
    fd: c_int,
    socket: Weak<Datagram>,
    /// [`Datagram::arrivals`] that an edge-triggered interest has been told of; `None`: it was made or modified since.
    reported: Option<u64>,
}

impl Datagrams {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The sockets with rings, and their places. Forgets sockets that are closed.
    fn linked(&self) -> Vec<Arc<Datagram>> {
        let mut watched = self.watched.lock();
        watched.retain(|w| w.socket.strong_count() > 0);
        self.count.store(watched.len() as u32, Ordering::Release);
        watched.iter().filter_map(|w| w.socket.upgrade()).filter(|socket| socket.is_linked()).collect()
    }
}

impl Shared {
    /// The program has made or modified the interest in `fd`.
    pub(super) fn follow_datagram(&self, fd: c_int, event: epoll_event) {
        let entry = table::get_full(fd);
        let Some(Entry::Datagram(socket)) = entry.as_deref() else { return };
        if event.events & KERNELS != 0 || self.observers.any() {
            flows::withdraw(socket, fd, KernelOnly::Watched);
        }
        let mut watched = self.datagrams.watched.lock();
        watched.retain(|w| w.fd != fd);
        // Whoever waits for room alone does not look at rings, and is not asleep to their senders.
        if event.events & (libc::EPOLLIN | libc::EPOLLRDNORM) as u32 != 0 {
            watched.push(Watched { fd, socket: Arc::downgrade(socket), reported: None });
        }
        self.datagrams.count.store(watched.len() as u32, Ordering::Release);
    }

    /// The interest in `fd` is gone.
    pub(super) fn drop_datagram(&self, fd: c_int) {
        if self.datagrams.any() {
            let mut watched = self.datagrams.watched.lock();
            watched.retain(|w| w.fd != fd);
            self.datagrams.count.store(watched.len() as u32, Ordering::Release);
        }
    }

    /// Others see the kernel's view of the instance from now on.
    pub(super) fn leave_datagrams_to_kernel(&self) {
        let watched: Vec<_> = {
            let watched = self.datagrams.watched.lock();
            watched.iter().filter_map(|w| Some((w.fd, w.socket.upgrade()?))).collect()
        };
        for (fd, socket) in watched {
            flows::withdraw(&socket, fd, KernelOnly::Watched);
        }
    }

    /// Reports the sockets that have a datagram in a ring.
    pub(super) fn collect_datagrams(&self, out: &mut Out) {
        let mut watched = self.datagrams.watched.lock();
        for w in watched.iter_mut() {
            if out.is_full() {
                // Others come first next time.
                break;
            }
            let Some(socket) = w.socket.upgrade().filter(|socket| socket.is_linked()) else { continue };
            let mut state = self.state.lock();
            let Some(interest) = state.interests.get_mut(&w.fd).filter(|i| i.events & READABLE != 0) else { continue };
            if interest.events & EDGE != 0 {
                let arrivals = socket.arrivals();
                if w.reported == Some(arrivals) {
                    continue;
                }
                w.reported = Some(arrivals);
            }
            if socket.is_ready() {
                out.push(READABLE & interest.events, interest);
            }
        }
        if watched.len() > 1 {
            watched.rotate_left(1);
        }
    }

    /// Spins until a ring or the kernel may have something, as long as the process' waits are worth it. Not where there is no
    /// ring. The wait goes on, and the caller ends it.
    pub(super) fn spin_for_datagrams<'a>(&self, rt: &'a Runtime, deadline: Option<Instant>) -> Option<Waiting<'a>> {
        let sockets = self.datagrams.linked();
        if sockets.is_empty() {
            return None;
        }
        let epfd = self.kernel().epfd;
        let mut looks = 0;
        let mut waiting = rt.spin.begin(now());
        if sockets.iter().any(|socket| socket.stands_in_senders_way()) {
            waiting.sleep();
            return Some(waiting);
        }
        waiting.spin(deadline, || {
            looks += 1;
            let in_ring = sockets.iter().any(|socket| socket.may_be_ready());
            in_ring || looks % KERNEL_LOOKS == 0 && poll::ready_events(epfd, libc::POLLIN) != 0
        });
        Some(waiting)
    }

    /// Calls `wait`, which sleeps in the kernel, unless there is a datagram in a ring: then `None`.
    pub(super) fn asleep<T>(&self, wait: impl FnOnce() -> T) -> Option<T> {
        let sockets: Vec<_> = {
            let watched = self.datagrams.watched.lock();
            watched.iter().filter_map(|w| Some((w.fd, w.socket.upgrade()?))).collect()
        };
        let asleep: Option<Vec<Asleep<'_>>> = sockets.iter().map(|(fd, socket)| socket.sleep(*fd)).collect();
        asleep.map(|_asleep| wait())
    }
}
