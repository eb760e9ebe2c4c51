//! `epoll_ctl`.
//!
//! An interest that is deleted while its stream is on a link stays parked: see `Interest::parked`.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::epoll_event;
use netacc_driver::{Readiness, StreamCell};

use super::interest::{Interest, Watch, BOTH_KERNEL};
use super::shared::keep_on_kernel;
use super::{kernel_ctl, Change, Epoll, Shared};
use crate::os::errno::{errno, set_errno};
use crate::os::{access, real};
use crate::protected::is_protected;
use crate::queues;
use crate::table::{self, Entry};
use crate::watchers::{unwatch, Registration};

/// `epoll_ctl`. `event` is null or valid, as the system call wants it.
///
/// # Safety
/// As the C function.
pub unsafe fn ctl(entry: &Arc<Entry>, epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(epoll) = Epoll::of(entry) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let shared = &epoll.shared;
    shared.begin_change();
    // SAFETY: any bytes are an event. The event is read only if it is needed.
    let wanted = if op == libc::EPOLL_CTL_DEL { None } else { unsafe { access::read(event) } };
    if op != libc::EPOLL_CTL_DEL && wanted.is_none() {
        set_errno(libc::EFAULT);
        return -1;
    }
    if is_protected(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    if shared.is_given() {
        if op == libc::EPOLL_CTL_ADD {
            keep_on_kernel(fd);
        }
        // SAFETY: as passed.
        return unsafe { real::epoll_ctl(epfd, op, fd, event) };
    }
    if wanted.is_some_and(|e| e.events & libc::EPOLLONESHOT as u32 != 0) {
        shared.has_one_shots.store(true, Ordering::Relaxed);
    }
    match (op, wanted) {
        (libc::EPOLL_CTL_ADD, Some(e)) => add(shared, epfd, fd, e),
        (libc::EPOLL_CTL_MOD, Some(e)) => modify(shared, epfd, fd, e),
        (libc::EPOLL_CTL_DEL, _) => delete(shared, epfd, fd),
        // SAFETY: as passed.
        _ => unsafe { real::epoll_ctl(epfd, op, fd, event) },
    }
}

/// Whether a descriptor is in `entry`'s instance for the kernel only: the program has deleted it.
pub fn is_parked(entry: &Entry, fd: c_int) -> bool {
    let Some(epoll) = Epoll::of(entry) else { return false };
    epoll.shared.state.lock().interests.get(&fd).is_some_and(|i| i.parked)
}

/// Reactivates an interest that was deleted while its stream stayed on the link.
fn unpark(shared: &Arc<Shared>, fd: c_int, e: epoll_event) -> bool {
    let guard = table::get(fd);
    let Some(Entry::Stream(sock)) = guard.as_deref().map(|entry| &**entry) else { return false };
    let Some(stream) = &sock.stream else { return false };
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd).filter(|i| i.parked) else { return false };
    let r = stream.readiness();
    if r.contains(BOTH_KERNEL) || !i.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, stream)) {
        kernel_ctl(shared.kernel().epfd, libc::EPOLL_CTL_DEL, fd, 0);
        shared.forget(state.interests.remove(&fd));
        return false;
    }
    i.parked = false;
    i.events = e.events;
    i.data = e.u64;
    i.disabled = false;
    i.pending = 0;
    if r.intersects(BOTH_KERNEL) || i.watch == Watch::Absent {
        i.register(shared.kernel(), fd, r, true);
    }
    drop(state);
    shared.handle_change(fd, r, Change::Interest);
    true
}

fn add(shared: &Arc<Shared>, epfd: c_int, fd: c_int, e: epoll_event) -> c_int {
    if unpark(shared, fd, e) {
        return 0;
    }
    let entry = table::get_full(fd);
    let stream = match entry.as_deref() {
        Some(Entry::Stream(sock)) => sock.reclaimed_stream(),
        _ => None,
    };
    let now = stream.as_ref().map_or(BOTH_KERNEL, |s| s.readiness());
    let instance = entry.as_deref().and_then(Epoll::of).map(|inner| Arc::downgrade(&inner.shared));
    let mut interest = Interest { stream: stream.clone(), instance, ..Interest::kernels(e.events, e.u64) };
    {
        // Before the kernel can report an event for it.
        let mut state = shared.state.lock();
        if state.interests.get(&fd).is_some_and(|i| i.watch == Watch::Absent && i.is_of(stream.as_ref())) {
            set_errno(libc::EEXIST);
            return -1;
        }
        interest.watch = interest.watch_for(now, shared.kernel().observed);
        interest.away = interest.watch != Watch::Application;
        interest.travelled = interest.away;
        let rc = kernel_ctl(epfd, libc::EPOLL_CTL_ADD, fd, interest.kernel_events().unwrap_or(e.events));
        if rc != 0 {
            return rc;
        }
        if interest.away {
            shared.away.fetch_add(1, Ordering::Relaxed);
        }
        shared.forget(state.interests.insert(fd, interest));
    }
    shared.follow_datagram(fd, e);
    follow(shared, fd, entry.as_deref(), stream);
    0
}

/// The new interest's socket reports its changes to the instance from now on.
fn follow(shared: &Arc<Shared>, fd: c_int, entry: Option<&Entry>, stream: Option<Arc<StreamCell>>) {
    match entry {
        Some(Entry::Stream(sock)) => {
            unwatch(&sock.watchers, shared, fd);
            sock.watchers.lock().push(Registration::of(shared, fd));
            if let Some(stream) = stream {
                shared.streams.fetch_add(1, Ordering::Relaxed);
                shared.ensure_kick();
                queues::reassign_stream(&stream);
                shared.handle_change(fd, stream.readiness(), Change::Interest);
            }
        }
        Some(Entry::Idle(listener)) => {
            listener.watchers.lock().push(Registration::of(shared, fd));
        }
        Some(entry @ Entry::Epoll(_)) => {
            if let Some(inner) = Epoll::of(entry) {
                inner.watch(shared, fd);
            }
        }
        Some(Entry::Datagram(_) | Entry::Ring(_)) | None => {}
    }
}

fn modify(shared: &Arc<Shared>, epfd: c_int, fd: c_int, e: epoll_event) -> c_int {
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd) else {
        // The kernel decides which error this is. It may also have a registration of the open file that this module
        // does not have, made by another process for example.
        let rc = kernel_ctl(epfd, libc::EPOLL_CTL_MOD, fd, e.events);
        if rc == 0 {
            state.interests.insert(fd, Interest::kernels(e.events, e.u64));
        }
        return rc;
    };
    if i.parked {
        set_errno(libc::ENOENT);
        return -1;
    }
    if (i.events | e.events) & libc::EPOLLEXCLUSIVE as u32 != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    if i.watch == Watch::Application {
        let rc = kernel_ctl(epfd, libc::EPOLL_CTL_MOD, fd, e.events);
        if rc != 0 {
            return rc;
        }
    }
    i.events = e.events;
    i.data = e.u64;
    i.disabled = false;
    i.pending = 0;
    let r = i.stream.as_ref().map_or(BOTH_KERNEL, |stream| stream.readiness());
    if i.watch == Watch::Absent || i.watch != Watch::Application && r.intersects(BOTH_KERNEL) {
        i.register(shared.kernel(), fd, r, true);
    }
    if i.stream.is_none() {
        drop(state);
        shared.follow_datagram(fd, e);
        return 0;
    }
    // A modified interest is armed again: if it is ready now, that is an edge.
    drop(state);
    if !r.contains(BOTH_KERNEL) || r.contains(Readiness::NOTICE) {
        shared.handle_change(fd, r, Change::Interest);
    }
    0
}

fn delete(shared: &Arc<Shared>, epfd: c_int, fd: c_int) -> c_int {
    if let Some(i) = shared.state.lock().interests.get_mut(&fd) {
        if i.parked {
            set_errno(libc::ENOENT);
            return -1;
        }
        if i.watch != Watch::Application && i.stream.as_ref().is_some_and(|s| !s.readiness().contains(BOTH_KERNEL)) {
            i.parked = true;
            i.events = 0;
            let now = i.stream.as_ref().map_or(BOTH_KERNEL, |s| s.readiness());
            i.register(shared.kernel(), fd, now, false);
            return 0;
        }
    }
    let rc = match shared.state.lock().interests.get(&fd) {
        // The kernel has no such registration.
        Some(i) if i.watch == Watch::Absent => 0,
        _ => kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0),
    };
    let saved = errno();
    if rc != 0 && saved == libc::EBADF {
        // A closed descriptor. If its open file lives on, the kernel continues to report it.
        return rc;
    }
    {
        let mut state = shared.state.lock();
        shared.forget(state.interests.remove(&fd));
    }
    shared.drop_datagram(fd);
    match table::get_full(fd).as_deref() {
        Some(Entry::Stream(sock)) => unwatch(&sock.watchers, shared, fd),
        Some(Entry::Idle(listener)) => unwatch(&listener.watchers, shared, fd),
        Some(entry) => {
            if let Some(inner) = Epoll::of(entry) {
                inner.unwatch(shared, fd);
            }
        }
        None => {}
    }
    set_errno(saved);
    rc
}
