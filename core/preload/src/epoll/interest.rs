//! One descriptor in an instance: the events to report while its stream is on a link, and the kernel's registration.

use std::ffi::c_int;
use std::sync::{Arc, Weak};

use netacc_device::Instant;
use netacc_driver::{Readiness, StreamCell};

use super::{kernel_ctl, Shared};
use crate::os::poll;
use crate::os::real;

/// The events that the kernel watches on the anchor of a linked stream, in an instance without observers.
const ANCHOR_WATCH: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

pub(super) const FLAGS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Events of incoming bytes.
pub(super) const INCOMING: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
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

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (c_int, &mut Interest)> {
        self.0.iter_mut().enumerate().filter_map(|(fd, i)| Some((fd as c_int, i.as_mut()?)))
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
    /// The stream, and a mark that distinguishes a reused descriptor from this one.
    pub(super) stream: Option<Arc<StreamCell>>,
    pub(super) watch: Watch,
    /// It was on a link since the kernel's registration was made: the application may have seen an EAGAIN that the
    /// kernel did not return, so the return to the anchor is an edge.
    pub(super) away: bool,
    /// It has ever been on a link. The kernel's report may then be about a record that has been taken since.
    pub(super) travelled: bool,
    pub(super) queued: bool,
    /// The start of the latest operation of a peer in the kernel that the library had seen when the interest was
    /// queued: see `Shared::kernel_seen`.
    pub(super) queued_after: Instant,
    /// In which wait it was reported last, and where in that wait's array.
    pub(super) reported: (u64, usize),
    /// The events of its stream when that changed last.
    pub(super) known: u32,
    /// Edges since the last report.
    pub(super) pending: u32,
    /// The ends that have been an edge once: they are no edge again.
    pub(super) ends: u32,
    /// One-shot and reported.
    pub(super) disabled: bool,
    /// Deleted by the application, but the kernel's watch on the anchor is kept: programs that delete and add an
    /// interest for every message then cost no system call.
    pub(super) parked: bool,
    /// The watched descriptor is another instance.
    pub(super) instance: Option<Weak<Shared>>,
}

/// The kernel's part of an instance.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) epfd: c_int,
    /// It has observers: it must not be readable for anything but the program's own events.
    pub(super) observed: bool,
}

/// The result of checking an interest on the ready list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// These events are to be reported.
    Events(u32),
    /// It is not ready, and is queued no more.
    Nothing,
    /// Its stream changed meanwhile: check again.
    Unsettled,
}

/// The events for which the kernel's instance reports a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    /// For the application's own events.
    Application,
    /// For these events of the anchor.
    Anchor(u32),
    /// Not at all, because nothing is reported to the program: any registration would report an error or a hang-up.
    Absent,
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
            queued_after: Instant::default(),
            reported: (u64::MAX, 0),
            known: 0,
            pending: 0,
            ends: 0,
            disabled: false,
            parked: false,
            instance: None,
        }
    }

    /// Whether it is of this stream.
    pub(super) fn is_of(&self, stream: Option<&Arc<StreamCell>>) -> bool {
        self.stream.as_ref().zip(stream).is_some_and(|(mine, other)| Arc::ptr_eq(mine, other))
    }

    /// All events that the interest is in.
    pub(super) fn requested(&self) -> u32 {
        self.events & !FLAGS | (libc::EPOLLERR | libc::EPOLLHUP) as u32
    }

    /// Whether an arrival on a stream whose readiness is `now` is an event of the interest.
    pub(super) fn has_arrived(&self, now: Readiness) -> bool {
        events_of(now) & self.requested() & !OUTGOING != 0
    }

    /// Events to report now, and whether to stay on the ready list.
    pub(super) fn report(&mut self, fd: c_int) -> (u32, bool) {
        match self.check(fd) {
            Answer::Events(events) if self.events & libc::EPOLLET as u32 != 0 => {
                self.pending = 0;
                (events, false)
            }
            Answer::Events(events) => (events, true),
            Answer::Nothing => (0, false),
            Answer::Unsettled => (0, true),
        }
    }

    /// Whether there are events to report, for an interest on the ready list.
    pub(super) fn check(&mut self, fd: c_int) -> Answer {
        let answer = self.answer(fd);
        if answer == Answer::Nothing {
            self.queued = false;
        }
        answer
    }

    fn answer(&mut self, fd: c_int) -> Answer {
        let Some(stream) = &self.stream else { return Answer::Nothing };
        let r = stream.readiness();
        // The kernel reports all of that, except for changes that it does not see.
        let kernels = r.contains(BOTH_KERNEL) && !r.contains(Readiness::NOTICE);
        if kernels || self.disabled || self.parked {
            return Answer::Nothing;
        }
        let mut events = events_of(r);
        let half = kernel_half(r) & self.requested();
        if half != 0 {
            events |= poll::ready_events(fd, half as i16) as u16 as u32 & half;
            if stream.readiness() != r {
                // The kernel's report may be about a record.
                return Answer::Unsettled;
            }
        }
        events &= self.requested();
        if self.events & libc::EPOLLET as u32 != 0 && events & self.pending == 0 {
            self.pending = 0;
            return Answer::Nothing;
        }
        if events == 0 {
            Answer::Nothing
        } else {
            Answer::Events(events)
        }
    }

    /// The events that the kernel is to report for the descriptor while its stream's readiness is `now`.
    pub(super) fn watch_for(&self, now: Readiness, observed: bool) -> Watch {
        if observed && (self.disabled || self.parked) {
            return Watch::Absent;
        }
        if now.contains(BOTH_KERNEL) {
            return Watch::Application;
        }
        let outgoing = if now.contains(Readiness::KERNEL_TX) { OUTGOING } else { 0 };
        if !observed {
            return Watch::Anchor(ANCHOR_WATCH | outgoing);
        }
        // The helper watches for records.
        let incoming = if now.contains(Readiness::KERNEL_RX) { INCOMING } else { 0 };
        Watch::Anchor(self.events & (incoming | outgoing) | libc::EPOLLET as u32)
    }

    /// Registers the descriptor with the kernel for the events that matter while its stream's readiness is `now`.
    /// With `rearm` even if it is registered for these already: events that are ready are then reported again.
    pub(super) fn register(&mut self, kernel: Kernel, fd: c_int, now: Readiness, rearm: bool) {
        let watch = self.watch_for(now, kernel.observed);
        if watch == self.watch && !rearm {
            return;
        }
        let applications = watch == Watch::Application || self.watch == Watch::Application;
        let before = std::mem::replace(&mut self.watch, watch);
        let Some(events) = self.kernel_events() else {
            kernel_ctl(kernel.epfd, libc::EPOLL_CTL_DEL, fd, 0);
            return;
        };
        if before == Watch::Absent {
            kernel_ctl(kernel.epfd, libc::EPOLL_CTL_ADD, fd, events);
        } else if self.events & EXCLUSIVE != 0 && applications {
            // The kernel does not modify exclusive registrations.
            kernel_ctl(kernel.epfd, libc::EPOLL_CTL_DEL, fd, 0);
            kernel_ctl(kernel.epfd, libc::EPOLL_CTL_ADD, fd, events);
        } else {
            kernel_ctl(kernel.epfd, libc::EPOLL_CTL_MOD, fd, events);
        }
    }

    /// The events of the kernel's registration, if there is one.
    pub(super) fn kernel_events(&self) -> Option<u32> {
        match self.watch {
            Watch::Anchor(events) => Some(events),
            // An interest without events is reported only for the end, once.
            Watch::Application if self.disabled => Some(libc::EPOLLET as u32),
            Watch::Application => Some(self.events),
            Watch::Absent => None,
        }
    }

    /// Registers the descriptor with the program's own events and data.
    pub(super) fn return_to_kernel(&self, epfd: c_int, fd: c_int) {
        if self.parked {
            kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0);
            return;
        }
        if self.disabled && self.watch == Watch::Application && !self.away {
            // The kernel has disabled it, and a change would arm it.
            return;
        }
        // See `register`.
        let events = if self.disabled { libc::EPOLLET as u32 } else { self.events };
        let mut event = libc::epoll_event { events, u64: self.data };
        let change = |op, event| {
            // SAFETY: the event is readable.
            unsafe { real::epoll_ctl(epfd, op, fd, event) }
        };
        if self.events & EXCLUSIVE != 0 {
            change(libc::EPOLL_CTL_DEL, &mut event);
            change(libc::EPOLL_CTL_ADD, &mut event);
        } else {
            change(libc::EPOLL_CTL_MOD, &mut event);
        }
    }

    pub(super) fn add_edges(&mut self, now: Readiness, arrived: bool) {
        let events = events_of(now);
        let ends = events & !(libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
        let over = ends & self.ends & libc::EPOLLHUP as u32 != 0;
        self.pending |= ends & !self.ends;
        self.ends = ends;
        if now.contains(Readiness::NOTICE) {
            // Each notification is an edge.
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

/// The events that the kernel reports, of a stream of which one direction is still, or again, on the anchor.
fn kernel_half(r: Readiness) -> u32 {
    let mut events = 0;
    if r.contains(Readiness::KERNEL_RX) {
        events |= libc::EPOLLIN | libc::EPOLLRDHUP;
    }
    if r.contains(Readiness::KERNEL_TX) {
        events |= libc::EPOLLOUT;
    }
    events as u32
}
