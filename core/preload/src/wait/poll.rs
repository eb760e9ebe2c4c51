//! `poll` on several descriptors, ours and others.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use libc::pollfd;
use netacc_device::{Armed, CompletionQueueId, Instant};
use netacc_driver::{Endpoint, Readiness, StreamCell};

use super::{arm, disarm, timespec, SWITCH_PATIENCE};
use crate::batch;
use crate::epoll::{anchor_event, Registration};
use crate::ops::{errno, io, set_errno};
use crate::real;
use crate::runtime::{self, now};
use crate::socket::Socket;
use crate::table::{self, Entry};

/// A thread asleep in `poll` on several descriptors.
pub struct Waiter {
    eventfd: c_int,
    asleep: AtomicBool,
}

impl Waiter {
    /// Something that the thread waits for may have happened.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            runtime::kick(self.eventfd);
        }
    }
}

thread_local! {
    /// The thread's eventfd for `poll`, made at its first sleep, and the process generation it belongs to.
    static POLL_EVENTFD: Cell<(c_int, u32)> = const { Cell::new((-1, 0)) };
}

fn poll_eventfd() -> Option<c_int> {
    runtime::of_thread(&POLL_EVENTFD, runtime::new_eventfd)
}

/// What `poll` says of an epoll instance that has events.
const INSTANCE_READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Whether any of the descriptors is a stream of ours on a link, or an epoll instance that may watch one. What a child has
/// inherited is a plain socket afterwards: of a link that its parent has, the kernel knows nothing.
pub fn any_ours(fds: &[pollfd]) -> bool {
    fds.iter().fold(false, |ours, p| match table::get(p.fd).as_deref().and_then(Option::as_deref) {
        Some(Entry::Stream(sock)) => {
            sock.reclaim();
            ours | sock.stream.is_some()
        }
        // Also one that watches none: another thread may add one meanwhile.
        Some(Entry::Epoll(epoll)) => epoll.observe_by_poll() | ours,
        _ => ours,
    })
}

/// `poll` and `ppoll` on a mix of our descriptors and others.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let Some(rt) = runtime::get() else {
        return kernel_poll(fds, timeout, mask);
    };
    let Some(endpoint) = rt.endpoint() else {
        return kernel_poll(fds, timeout, mask);
    };
    batch::end(endpoint);
    let begun = now();
    let deadline = timeout.and_then(|t| {
        begun.as_nanos().checked_add(t.as_nanos().min(u128::from(u64::MAX)) as u64).map(Instant::from_nanos)
    });
    let entries: Vec<Option<Arc<Entry>>> = fds.iter().map(|p| table::get_full(p.fd)).collect();
    if timeout == Some(Duration::ZERO) {
        settle_writers(endpoint, fds, &entries);
    }
    let mut spun = false;
    loop {
        poll_links(endpoint, &entries);
        // One call for everything that the kernel decides: it also gives invalid descriptors their POLLNVAL.
        let (mut view, before) = kernel_view(fds, &entries);
        // SAFETY: a valid array.
        let n = unsafe {
            real::ppoll(view.as_mut_ptr(), view.len() as libc::nfds_t, &timespec(Duration::ZERO), std::ptr::null())
        };
        if n < 0 {
            return -1;
        }
        let ready = merge(endpoint, fds, &view, &before, &entries);
        if ready > 0 {
            rt.spin.record(now().saturating_since(begun).as_nanos() as u64);
            return ready;
        }
        if deadline.is_some_and(|d| now() >= d) {
            return 0;
        }
        if !std::mem::replace(&mut spun, true)
            && rt.spin.spin(begun, deadline, || {
                poll_links(endpoint, &entries);
                fds.iter().zip(&entries).any(|(p, e)| link_events(p.events, e) != 0)
            })
        {
            continue;
        }
        if sleep(endpoint, fds, &entries, deadline, mask) < 0 {
            return -1;
        }
    }
}

/// Who only looks once, and finds that it cannot write, may take a change of path for a full buffer.
fn settle_writers(endpoint: &Endpoint, fds: &[pollfd], entries: &[Option<Arc<Entry>>]) {
    let until = now() + SWITCH_PATIENCE;
    for (p, entry) in fds.iter().zip(entries) {
        let Some((_, cell)) = stream_of(entry) else { continue };
        let asked = p.events & (libc::POLLOUT | libc::POLLWRNORM) != 0;
        if asked && !cell.readiness().intersects(Readiness::WRITABLE | Readiness::KERNEL_TX) {
            io::await_switch(endpoint, cell, until);
        }
    }
}

fn kernel_poll(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let ts = timeout.map(timespec);
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a valid array; the mask is the caller's.
    unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ts, mask) }
}

fn stream_of(entry: &Option<Arc<Entry>>) -> Option<(&Socket, &Arc<StreamCell>)> {
    match entry.as_deref() {
        Some(Entry::Stream(sock)) => sock.stream.as_ref().map(|s| (sock, s)),
        _ => None,
    }
}

fn poll_links(endpoint: &Endpoint, entries: &[Option<Arc<Entry>>]) {
    let mut seen: Option<CompletionQueueId> = None;
    for (_, cell) in entries.iter().filter_map(stream_of) {
        if cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            continue;
        }
        let Some(guard) = cell.try_lock(endpoint) else { continue };
        let Some(cq) = guard.link().map(|l| l.cq()) else { continue };
        drop(guard);
        if seen != Some(cq) {
            seen = Some(cq);
            endpoint.poll(cq);
        }
    }
    for entry in entries {
        if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
            epoll.poll(endpoint);
        }
    }
}

/// What the kernel is asked: everything for foreign descriptors; for ours what the anchor decides, and always the anchor's
/// readability, which announces a record or its end. Also the readiness that this was decided by.
fn kernel_view(fds: &[pollfd], entries: &[Option<Arc<Entry>>]) -> (Vec<pollfd>, Vec<Readiness>) {
    fds.iter()
        .zip(entries)
        .map(|(p, e)| {
            let Some((_, cell)) = stream_of(e) else { return (pollfd { revents: 0, ..*p }, Readiness::empty()) };
            let r = cell.readiness();
            let mut events = p.events;
            if !r.contains(Readiness::KERNEL_TX) {
                events &= !(libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND);
            }
            if !r.contains(Readiness::KERNEL_RX) {
                events = events & (libc::POLLOUT | libc::POLLWRNORM) | libc::POLLIN | libc::POLLRDHUP;
            }
            (pollfd { fd: p.fd, events, revents: 0 }, r)
        })
        .unzip()
}

fn merge(
    endpoint: &Endpoint,
    fds: &mut [pollfd],
    view: &[pollfd],
    before: &[Readiness],
    entries: &[Option<Arc<Entry>>],
) -> c_int {
    let mut ready = 0;
    for (((p, k), before), entry) in fds.iter_mut().zip(view).zip(before).zip(entries) {
        p.revents = match stream_of(entry) {
            None => match entry.as_deref() {
                Some(Entry::Epoll(epoll)) if epoll.has_ready() => k.revents | (p.events & INSTANCE_READABLE),
                Some(Entry::Epoll(epoll)) if k.revents & INSTANCE_READABLE != 0 && !epoll.confirm() => 0,
                _ => k.revents,
            },
            Some((_, cell)) => {
                let mut revents = k.revents;
                if revents & libc::POLLERR != 0 && io::settle_error(endpoint, cell) {
                    let mut again = [pollfd { revents: 0, ..*k }];
                    kernel_poll(&mut again, Some(Duration::ZERO), std::ptr::null());
                    revents = again[0].revents;
                }
                // Of a stream that was on its link when it was asked the kernel may mean a record, which has perhaps been
                // taken since.
                if !before.contains(Readiness::KERNEL_RX) || !cell.readiness().contains(Readiness::KERNEL_RX) {
                    if k.revents & (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
                        cell.anchor_event(endpoint, anchor_event(k.revents as u16 as u32));
                    }
                    revents &= libc::POLLOUT | libc::POLLWRNORM | libc::POLLNVAL;
                }
                revents & p.events
                    | revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL)
                    | link_events(p.events, entry)
            }
        };
        ready += c_int::from(p.revents != 0);
    }
    ready
}

/// Events that the link side of a stream has, of those asked for.
fn link_events(wanted: i16, entry: &Option<Arc<Entry>>) -> i16 {
    if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
        return if epoll.has_ready() { wanted & INSTANCE_READABLE } else { 0 };
    }
    let Some((_, cell)) = stream_of(entry) else { return 0 };
    let r = cell.readiness();
    let mut events = 0;
    if r.contains(Readiness::READABLE) {
        events |= libc::POLLIN | libc::POLLRDNORM;
    }
    if r.contains(Readiness::WRITABLE) {
        events |= libc::POLLOUT | libc::POLLWRNORM;
    }
    if r.contains(Readiness::RDHUP) {
        events |= libc::POLLRDHUP;
    }
    events &= wanted;
    if r.intersects(Readiness::ERR | Readiness::NOTICE) {
        events |= libc::POLLERR;
    }
    if r.contains(Readiness::HUP) {
        events |= libc::POLLHUP;
    }
    events
}

/// A thread in `poll` that is announced everywhere. Not any more once dropped, also if the thread is cancelled in its sleep.
struct Announced<'a> {
    endpoint: &'a Endpoint,
    entries: &'a [Option<Arc<Entry>>],
    waiter: Arc<Waiter>,
    queues: Vec<CompletionQueueId>,
    /// Some queue has something already.
    pending: bool,
}

impl<'a> Announced<'a> {
    fn new(endpoint: &'a Endpoint, entries: &'a [Option<Arc<Entry>>], eventfd: c_int) -> Announced<'a> {
        let waiter = Arc::new(Waiter { eventfd, asleep: AtomicBool::new(true) });
        let mut queues: Vec<CompletionQueueId> = Vec::new();
        for entry in entries {
            if let Some((sock, cell)) = stream_of(entry) {
                sock.watchers.lock().push(Registration::Waiter(waiter.clone()));
                let cq = cell.lock(endpoint).link().map(|l| l.cq());
                queues.extend(cq.filter(|q| *q != endpoint.control_cq()));
            } else if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
                epoll.add_outer(&waiter);
                queues.extend(epoll.assigned_queue());
            }
        }
        queues.sort_unstable();
        queues.dedup();
        let mut pending = false;
        for &cq in &queues {
            pending |= arm(endpoint, cq, false) == Armed::Pending;
        }
        Announced { endpoint, entries, waiter, queues, pending }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let saved = errno();
        for &cq in &self.queues {
            self.endpoint.device().drain(cq);
            disarm(self.endpoint, cq);
        }
        let same = |r: &Registration| matches!(r, Registration::Waiter(w) if Arc::ptr_eq(w, &self.waiter));
        for entry in self.entries {
            if let Some((sock, _)) = stream_of(entry) {
                sock.watchers.lock().retain(|r| !same(r));
            } else if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
                epoll.remove_outer(&self.waiter);
            }
        }
        if !self.waiter.asleep.swap(false, Ordering::SeqCst) {
            runtime::drain(self.waiter.eventfd);
        }
        set_errno(saved);
    }
}

/// Announces, looks once more, sleeps.
fn sleep(
    endpoint: &Endpoint,
    fds: &[pollfd],
    entries: &[Option<Arc<Entry>>],
    deadline: Option<Instant>,
    mask: *const libc::sigset_t,
) -> c_int {
    let Some(eventfd) = poll_eventfd() else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    let announced = Announced::new(endpoint, entries, eventfd);
    let (mut view, _) = kernel_view(fds, entries);
    view.push(pollfd { fd: eventfd, events: libc::POLLIN, revents: 0 });
    let channels = announced.queues.iter().filter_map(|&cq| endpoint.device().channel_fd(cq));
    view.extend(channels.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 }));
    if announced.pending || fds.iter().zip(entries).any(|(p, e)| link_events(p.events, e) != 0) {
        return 0;
    }
    let ts = deadline.map(|d| timespec(d.saturating_since(now())));
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a valid array; the mask is the caller's.
    unsafe { real::ppoll(view.as_mut_ptr(), view.len() as libc::nfds_t, ts, mask) }.min(0)
}
