//! One descriptor in an instance: what is reported of it while its stream is on a link, and what the kernel watches.

use std::ffi::c_int;
use std::sync::Arc;

use netacc_driver::{Readiness, StreamCell};

use super::kernel_ctl;
use crate::real;

/// What the kernel watches on the anchor of a linked stream.
pub(super) const ANCHOR_WATCH: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

pub(super) const FLAGS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Events of outgoing bytes.
pub(super) const OUTGOING: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

pub(super) const BOTH_KERNEL: Readiness = Readiness::KERNEL_RX.union(Readiness::KERNEL_TX);

/// Interests by descriptor.
#[derive(Default)]
pub(super) struct Interests(Vec<Option<Interest>>);

impl Interests {
    #[inline]
    pub(super) fn get(&self, fd: &c_int) -> Option<&Interest> {
        self.0.get(*fd as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, fd: &c_int) -> Option<&mut Interest> {
        self.0.get_mut(*fd as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, fd: c_int, interest: Interest) -> Option<Interest> {
        let i = fd as usize;
        if self.0.len() <= i {
            self.0.resize_with(i + 1, || None);
        }
        self.0[i].replace(interest)
    }

    pub(super) fn remove(&mut self, fd: &c_int) -> Option<Interest> {
        self.0.get_mut(*fd as usize)?.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (c_int, &Interest)> {
        self.0.iter().enumerate().filter_map(|(fd, i)| Some((fd as c_int, i.as_ref()?)))
    }
}

pub(super) struct Interest {
    pub(super) events: u32,
    pub(super) data: u64,
    /// The stream, and a mark that tells a reused descriptor from this one.
    pub(super) stream: Option<Arc<StreamCell>>,
    pub(super) watch: Watch,
    /// It was on a link since the kernel's registration was made: the application may have seen EAGAIN for a reason that
    /// the kernel does not know, so coming back is an edge.
    pub(super) away: bool,
    /// It has ever been. What the kernel reports may then be about a record that has been taken since.
    pub(super) travelled: bool,
    pub(super) queued: bool,
    /// In which wait it was reported last, and where in that wait's array.
    pub(super) told: (u64, usize),
    /// Edges since the last report.
    pub(super) pending: u32,
    /// What has ended, and been an edge once: it does not end again.
    pub(super) ends: u32,
    /// One-shot and reported.
    pub(super) disabled: bool,
    /// Deleted by the application, but the kernel's watch on the anchor is kept: programs that delete and add an
    /// interest for every message then cost no system call.
    pub(super) parked: bool,
    /// It is of another instance. What its descriptor names later says nothing of what is watched.
    pub(super) is_instance: bool,
}

/// What the kernel's instance reports a descriptor for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    /// As the application asked.
    Application,
    /// For these events of the anchor.
    Anchor(u32),
}

pub(super) fn events_of(r: Readiness) -> u32 {
    let mut e = 0;
    if r.contains(Readiness::READABLE) {
        e |= libc::EPOLLIN | libc::EPOLLRDNORM;
    }
    if r.contains(Readiness::WRITABLE) {
        e |= libc::EPOLLOUT | libc::EPOLLWRNORM;
    }
    if r.contains(Readiness::RDHUP) {
        e |= libc::EPOLLRDHUP;
    }
    if r.contains(Readiness::HUP) {
        e |= libc::EPOLLHUP;
    }
    if r.intersects(Readiness::ERR | Readiness::NOTICE) {
        e |= libc::EPOLLERR;
    }
    e as u32
}

impl Interest {
    /// One that is the kernel's alone.
    pub(super) fn kernels(events: u32, data: u64) -> Interest {
        Interest {
            events,
            data,
            stream: None,
            watch: Watch::Application,
            away: false,
            travelled: false,
            queued: false,
            told: (u64::MAX, 0),
            pending: 0,
            ends: 0,
            disabled: false,
            parked: false,
            is_instance: false,
        }
    }

    /// Events to report now; also says whether to stay on the ready list.
    pub(super) fn report(&mut self, fd: c_int) -> (u32, bool) {
        let Some(stream) = &self.stream else { return (0, false) };
        let r = stream.readiness();
        // All of that is the kernel's to report, but for what it does not know of.
        let kernels = r.contains(BOTH_KERNEL) && !r.contains(Readiness::NOTICE);
        if kernels || self.disabled || self.parked {
            return (0, false);
        }
        let mut events = events_of(r);
        if r.intersects(BOTH_KERNEL) {
            events |= kernel_half(fd, r);
            if stream.readiness() != r {
                // What the kernel said may be about a record: look again.
                return (0, true);
            }
        }
        let asked = self.events & !FLAGS | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        events &= asked;
        if self.events & libc::EPOLLET as u32 != 0 {
            if events & self.pending == 0 {
                self.pending = 0;
                return (0, false);
            }
            self.pending = 0;
            return (events, false);
        }
        (events, events != 0)
    }

    /// Registers the descriptor with the kernel for what matters while its stream's readiness is `now`. With `rearm`
    /// even if it is registered so: what is ready then is reported anew.
    pub(super) fn register(&mut self, epfd: c_int, fd: c_int, now: Readiness, rearm: bool) {
        let watch = if now.contains(BOTH_KERNEL) {
            Watch::Application
        } else {
            Watch::Anchor(ANCHOR_WATCH | if now.contains(Readiness::KERNEL_TX) { OUTGOING } else { 0 })
        };
        if watch == self.watch && !rearm {
            return;
        }
        let events = match watch {
            Watch::Anchor(events) => events,
            // Only the end is reported of what has no events; once.
            Watch::Application if self.disabled => libc::EPOLLET as u32,
            Watch::Application => self.events,
        };
        if self.events & EXCLUSIVE != 0 && (watch == Watch::Application || self.watch == Watch::Application) {
            // The kernel does not modify exclusive registrations.
            kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0);
            kernel_ctl(epfd, libc::EPOLL_CTL_ADD, fd, events);
        } else {
            kernel_ctl(epfd, libc::EPOLL_CTL_MOD, fd, events);
        }
        self.watch = watch;
    }

    pub(super) fn add_edges(&mut self, now: Readiness, arrived: bool) {
        let events = events_of(now);
        let ends = events & !(libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
        let over = ends & self.ends & libc::EPOLLHUP as u32 != 0;
        self.pending |= ends & !self.ends;
        self.ends = ends;
        if now.contains(Readiness::NOTICE) {
            // Each notification is one.
            self.pending |= libc::EPOLLERR as u32;
        }
        if arrived {
            self.pending |= events;
        }
        if !over {
            self.pending |= events & (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
        }
    }
}

/// The kernel's answer for the direction of a stream that is still, or again, on the anchor.
fn kernel_half(fd: c_int, r: Readiness) -> u32 {
    let mut p = libc::pollfd { fd, events: 0, revents: 0 };
    if r.contains(Readiness::KERNEL_RX) {
        p.events |= libc::POLLIN | libc::POLLRDHUP;
    }
    if r.contains(Readiness::KERNEL_TX) {
        p.events |= libc::POLLOUT;
    }
    // SAFETY: one valid pollfd.
    unsafe { real::poll(&mut p, 1, 0) };
    (p.revents & p.events) as u16 as u32
}
