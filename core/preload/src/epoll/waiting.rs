//! Waiting on an instance: the ready list, a spin, the kernel, sleep.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use libc::epoll_event;
use netacc_device::{Instant, MODERATION};
use netacc_driver::{Endpoint, Readiness, StreamCell};

use super::interest::{Interest, Watch, BOTH_KERNEL, FLAGS, INCOMING, OUTGOING};
use super::numbers::Wait;
use super::sleepers::Announced;
use super::{Change, Epoll, Shared, State, CHANNEL, KICK, OURS};
use crate::anchor::anchor_event;
use crate::os::access::{self, is_beyond};
use crate::os::asleep::Asleep;
use crate::os::clock::{self, now};
use crate::os::errno::{errno, set_errno};
use crate::os::poll::has_epoll_pwait2;
use crate::os::{poll, real};
use crate::runtime::{self, Runtime};
use crate::spin::Waiting;
use crate::table::Entry;
use crate::wait::WITHOUT_EVENTFD;
use crate::{batch, queues, switching, trace, wait};

/// `EP_MAX_EVENTS` of fs/eventpoll.c.
const MOST_EVENTS: c_int = (c_int::MAX as usize / size_of::<epoll_event>()) as c_int;
/// While streams keep the instance busy, the kernel is asked only in every so many waits.
const KERNEL_INTERVAL: u64 = 8;
/// After an event of the kernel, this many waits ask the kernel first. Arbitrary: a few turns of an event loop.
const KERNEL_HOT: u32 = 16;

/// With room for fewer events, links are polled before the kernel is asked for more events than there may be room for.
/// Arbitrary: programs have room for one, or for many.
const SMALL: usize = 8;

/// `epoll_wait` and its relatives.
///
/// # Safety
/// `events` has room for `max` events; `mask` is null or valid.
pub unsafe fn wait(
    entry: &Arc<Entry>,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    let Some(epoll) = Epoll::of(entry) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let is_beyond = |max: usize| is_beyond(events.cast(), max.saturating_mul(size_of::<epoll_event>()));
    if max <= 0 || max > MOST_EVENTS || is_beyond(max as usize) {
        // SAFETY: the kernel checks the arguments.
        return unsafe { real::epoll_wait(epfd, events, max, 0) };
    }
    let shared = &epoll.shared;
    if shared.is_given() {
        return raw_wait(epfd, (events, max), timeout, mask);
    }
    shared.reclaim();
    let turn = shared.waits.fetch_add(1, Ordering::Relaxed);
    let mut out = Out {
        epfd,
        events,
        max: max as usize,
        len: 0,
        usable: 0,
        turn,
        kernels: None,
        early: 0..0,
        polled_for_news: false,
    };
    if out.is_full() {
        return wait_for_nothing(epfd, timeout, mask);
    }
    if !shared.datagrams.any() {
        return wait_for_streams(epoll, &mut out, timeout, mask);
    }
    let deadline = timeout.map(|t| now() + t);
    let mut spun = false;
    let mut waiting: Option<Waiting<'_>> = None;
    loop {
        shared.collect_datagrams(&mut out);
        let left = deadline.map(|deadline| deadline.saturating_since(now()));
        if out.len > 0 || left == Some(Duration::ZERO) {
            // With what the kernel and links have, too.
            let found = out.len as c_int;
            let rc = if out.is_full() { found } else { wait_for_streams(epoll, &mut out, Some(Duration::ZERO), mask) };
            if let Some(waiting) = waiting {
                waiting.end(out.len);
            }
            return if rc < 0 && found > 0 { found } else { rc };
        }
        if let Some(rt) = runtime::get().filter(|_| !std::mem::replace(&mut spun, true)) {
            waiting = shared.spin_for_datagrams(rt, deadline);
            continue;
        }
        if let Some(rc) = shared.asleep(|| wait_for_streams(epoll, &mut out, left, mask)) {
            if let Some(waiting) = waiting {
                waiting.end(out.len);
            }
            return rc;
        }
    }
}

/// Waits for all but datagrams in rings, and adds the events to those that are there.
fn wait_for_streams(epoll: &Epoll, out: &mut Out, timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let mut left = timeout;
    loop {
        let runtime = runtime::get().and_then(|rt| rt.endpoint().map(|e| (rt, e)));
        if let Some((_, endpoint)) = runtime {
            batch::end(endpoint);
        }
        let Some((rt, endpoint)) = runtime.filter(|_| !epoll.is_kernels()) else {
            match plain_wait(epoll, out, left, mask) {
                Plain::Over(rc) => return rc,
                Plain::Links(rest) => left = rest,
            }
            continue;
        };
        let rc = wait_on_links(epoll, (rt, endpoint), out, left, mask);
        batch::begin(out.len);
        return rc;
    }
}

fn wait_on_links(
    epoll: &Epoll,
    (rt, endpoint): (&Runtime, &Endpoint),
    out: &mut Out,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    let shared = &epoll.shared;
    let _waits = trace::waits();
    epoll.shared.poll(endpoint);
    if !collect_in_order(epoll, endpoint, out) {
        return -1;
    }
    // A wait that is going to spin does not ask the kernel at first, because the spin finds the kernel's events soon.
    // It asks if the kernel had events lately: otherwise programs with connections on both paths would wait needlessly.
    let hot = shared.kernel_hot.load(Ordering::Relaxed);
    if hot > 0 {
        shared.kernel_hot.store(hot - 1, Ordering::Relaxed);
    }
    let idle = out.len == 0 && (hot > 0 || timeout == Some(Duration::ZERO));
    let polls = idle || out.turn.is_multiple_of(KERNEL_INTERVAL);
    if polls && !poll_kernel(epoll, endpoint, out) {
        return -1;
    }
    if out.len > 0 || timeout == Some(Duration::ZERO) {
        rt.spin.found(out.len);
        return out.finish();
    }
    let _wait = Wait::begin(shared);
    let begun = now();
    let deadline = timeout.map(|t| begun + t);
    let mut waiting = rt.spin.begin(begun);
    let rc = loop {
        let spun = waiting.spin(deadline, || {
            epoll.shared.poll(endpoint);
            shared.ready_len.load(Ordering::Relaxed) > 0
        });
        if !spun {
            match sleep(shared, (rt, endpoint), out, deadline, mask) {
                Slept::Failed => break -1,
                Slept::Expired => {
                    epoll.shared.poll(endpoint);
                    if !collect_in_order(epoll, endpoint, out) {
                        break -1;
                    }
                    break out.finish();
                }
                Slept::Woken => {}
            }
        }
        epoll.shared.poll(endpoint);
        if !collect_in_order(epoll, endpoint, out) {
            break -1;
        }
        if out.len > 0 {
            break out.finish();
        }
        if deadline.is_some_and(|d| now() >= d) {
            break 0;
        }
    };
    waiting.end(out.len);
    rc
}

/// Takes the kernel's events, and those that links had before. False: the kernel's error.
fn poll_kernel(epoll: &Epoll, endpoint: &Endpoint, out: &mut Out) -> bool {
    let shared = &epoll.shared;
    if out.max - out.len < SMALL {
        if !has_kernel_events(shared) {
            return true;
        }
        // There may be no room for both.
        epoll.shared.poll(endpoint);
        if !collect_in_order(epoll, endpoint, out) {
            return false;
        }
    }
    let kernel = kernel_events(shared, out, Some(Duration::ZERO), std::ptr::null());
    if kernel.count < 0 {
        return false;
    }
    if out.len > 0 || kernel.took_wake_up {
        // Bytes that a peer wrote on a link before the kernel's bytes are reported no later than these. And peers
        // signal no more until a thread has polled the queue; the thread that was to be woken will not poll it.
        epoll.shared.poll(endpoint);
    }
    collect_in_order(epoll, endpoint, out)
}

/// A wait whose array is not writable: it fails once there is an event, and the event is left for the next wait.
#[cold]
fn wait_for_nothing(epfd: c_int, timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let mut fds = [libc::pollfd { fd: epfd, events: libc::POLLIN, revents: 0 }];
    match wait::poll(wait::Call::Another, &mut fds, timeout, mask) {
        n if n > 0 => {
            set_errno(libc::EFAULT);
            -1
        }
        n => n,
    }
}

/// The first events of the kernel in a wait.
#[derive(Clone, Copy)]
struct Kernels {
    /// Their place in the array.
    begin: usize,
    /// When the kernel was asked before that: none of these events had come by then.
    seen: Instant,
}

/// The kernel's struct is packed.
const EVENT_BYTES: usize = size_of::<epoll_event>();

/// The program's array. Invariant: `len <= usable <= max`, but for what the kernel itself has written.
pub(super) struct Out {
    /// The instance's number in the program's call.
    epfd: c_int,
    events: *mut epoll_event,
    max: usize,
    len: usize,
    /// The number of elements that were found to be writable.
    usable: usize,
    /// The number of this wait.
    turn: u64,
    /// The kernel's events, if there are any.
    kernels: Option<Kernels>,
    /// The place of the events that came before those of the kernel, even if they were found later.
    early: Range<usize>,
    /// The kernel was asked for all that peers had written there: events that are found from then on came later.
    polled_for_news: bool,
}

impl Out {
    /// Reports events of an interest. An interest on both paths may come twice, and is reported once, as the kernel
    /// does: otherwise a program that reads once for each report would find nothing to read.
    pub(super) fn push(&mut self, events: u32, i: &mut Interest) {
        let (turn, at) = i.reported;
        if turn == self.turn && at < self.len {
            // SAFETY: below `len`, so within the caller's array, and written by this call.
            unsafe {
                let place = self.events.add(at);
                let reported = place.read_unaligned();
                place.write_unaligned(epoll_event { events: reported.events | events, u64: i.data });
            }
            return;
        }
        debug_assert!(self.len < self.max, "callers check for room");
        // SAFETY: `len < max`, and the caller of `wait` promised room for `max`.
        unsafe { self.events.add(self.len).write_unaligned(epoll_event { events, u64: i.data }) };
        i.reported = (self.turn, self.len);
        self.len += 1;
    }

    /// Reports what the library has no part in.
    fn pass(&mut self, events: u32, data: u64) {
        // SAFETY: as above.
        unsafe { self.events.add(self.len).write_unaligned(epoll_event { events, u64: data }) };
        self.len += 1;
    }

    /// Whether there is no place for another event.
    pub(super) fn is_full(&mut self) -> bool {
        self.len >= self.usable && !self.extend()
    }

    /// Checks whether the next place can be written, and with it the rest of its page. Not more: the kernel does not
    /// touch places that it does not use either.
    fn extend(&mut self) -> bool {
        const PAGE: usize = 4096;
        let place = self.events.wrapping_add(self.len);
        // SAFETY: the array is the caller's to write, if it is there.
        if self.len >= self.max || !unsafe { access::is_writable(place) } {
            return false;
        }
        let last = place as usize + size_of::<epoll_event>() - 1;
        let end = last - last % PAGE + PAGE;
        self.usable = self.max.min(self.len + (end - place as usize) / size_of::<epoll_event>());
        true
    }

    /// Ends the report: moves events that came early to the front. Returns how many events there are.
    fn finish(&mut self) -> c_int {
        let kernels = self.kernels.map(|kernels| kernels.begin);
        if let Some(kernels) = kernels.filter(|begin| *begin < self.early.start) {
            // SAFETY: below `len`, so within the caller's array, and written by this call.
            let found = unsafe {
                let events = self.events.add(kernels).cast::<[u8; EVENT_BYTES]>();
                std::slice::from_raw_parts_mut(events, self.early.end - kernels)
            };
            found.rotate_left(self.early.start - kernels);
        }
        self.len as c_int
    }

    /// Calls `collect`, whose events came before those of the kernel, unless the kernel was asked for new events
    /// of peers.
    fn collect_early(&mut self, collect: impl FnOnce(&mut Out)) {
        let begin = self.len;
        collect(self);
        if !self.polled_for_news && self.len > begin {
            self.early = begin..self.len;
        }
    }
}

/// A one-shot interest must be reported with everything that has arrived, because the rest is not reported later. That
/// includes completions that another thread is about to take from the link, or has not learned of yet.
fn complete_one_shots(shared: &Shared, endpoint: &Endpoint, out: &Out) {
    if !shared.has_one_shots.load(Ordering::Relaxed) || shared.ready_len.load(Ordering::SeqCst) == 0 {
        return;
    }
    let one_shots: Vec<_> = {
        let state = shared.state.lock();
        let interests = state.ready.iter().filter_map(|fd| state.interests.get(fd));
        let one_shots = interests.filter(|i| i.events & libc::EPOLLONESHOT as u32 != 0 && !i.disabled);
        // No more than that will be reported.
        one_shots.filter_map(|i| i.stream.clone()).take(out.max - out.len).collect()
    };
    for cell in one_shots {
        let link = cell.lock(endpoint).link().cloned();
        if let Some(link) = link {
            endpoint.poll_link(&link);
        }
        // There may be bytes of the application where a record could be.
        cell.lock(endpoint).change(|stream| stream.progress_anchor(false));
    }
}

/// Takes the events of the ready list, and the kernel's events for peers that had written there before. False: the
/// kernel's error.
///
/// Of the events that came on links since the kernel was last asked, those that a peer posted before it did anything
/// else in the kernel come first. Then come the events that the kernel has now, and then the rest. So the bytes that a
/// peer wrote first are reported no later than those that it wrote afterwards. Without new operations of peers in the
/// kernel, no system call is made.
fn collect_in_order(epoll: &Epoll, endpoint: &Endpoint, out: &mut Out) -> bool {
    /// Bounds how often the kernel is asked, because a peer may write faster than this loop runs.
    const MAX_POLLS: usize = 4;
    let shared = &epoll.shared;
    for _ in 0..MAX_POLLS {
        complete_one_shots(shared, endpoint, out);
        let news = endpoint.device().kernel_news();
        let seen = Instant::from_nanos(shared.kernel_seen.load(Ordering::Relaxed));
        if news.ended <= seen || shared.ready_len.load(Ordering::SeqCst) == 0 {
            break;
        }
        out.collect_early(|out| collect(shared, out, Some(seen)));
        out.polled_for_news = true;
        let before = out.len;
        let kernel = kernel_events(shared, out, Some(Duration::ZERO), std::ptr::null());
        if kernel.count < 0 && out.len == 0 {
            return false;
        }
        if out.len > before || kernel.took_wake_up {
            epoll.shared.poll(endpoint);
        }
        if out.is_full() {
            // There may be more.
            return true;
        }
    }
    if let Some(kernels) = out.kernels {
        out.collect_early(|out| collect(shared, out, Some(kernels.seen)));
    }
    collect(shared, out, None);
    true
}

/// Takes the events of the ready list. With `seen`, only those that a peer posted when it had done nothing in the
/// kernel since then.
fn collect(shared: &Shared, out: &mut Out, seen: Option<Instant>) {
    if shared.ready_len.load(Ordering::SeqCst) == 0 {
        return;
    }
    let mut state = shared.state.lock();
    let State { interests, ready, .. } = &mut *state;
    for _ in 0..ready.len() {
        if out.is_full() {
            break;
        }
        let Some(fd) = ready.pop_front() else { break };
        let Some(i) = interests.get_mut(&fd) else { continue };
        if seen.is_some_and(|seen| i.queued_after > seen) {
            ready.push_front(fd);
            break;
        }
        let (events, keep) = i.report(fd);
        if events != 0 {
            out.push(events, i);
            if i.events & libc::EPOLLONESHOT as u32 != 0 {
                i.disabled = true;
                i.queued = false;
                let applications = i.watch == Watch::Application;
                if applications || shared.observers.any() {
                    // The kernel's registration, which would report it too, has not been changed.
                    i.register(shared.kernel(), fd, BOTH_KERNEL, applications);
                }
                continue;
            }
        }
        i.queued = keep;
        if keep {
            ready.push_back(fd);
        }
    }
    shared.ready_len.store(ready.len() as u32, Ordering::SeqCst);
    // As the kernel does: events that one thread had no room for, or leaves readable, are left to another thread.
    shared.lower(&mut state);
}

/// The result of asking the kernel's instance.
struct Polled {
    /// The kernel's count, or -1.
    count: c_int,
    /// A wake-up was among the events, of the completion channel or for it.
    took_wake_up: bool,
}

/// How often the kernel's instance is asked again if the library's own events have taken all the room. Arbitrary.
const MAX_POLLS: u32 = 8;

/// Waits in the kernel and translates its events, in the program's own array: as many as the array has room for, in one
/// call, because a second call would report the same events again. A wake-up is for bytes on a link, which came before
/// the events that the kernel reports behind the wake-up. So the links are polled before the kernel is asked for more.
fn kernel_events(
    shared: &Arc<Shared>,
    out: &mut Out,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Polled {
    let timeout = if report_instances_without_kick(shared, out) { Some(Duration::ZERO) } else { timeout };
    let begin = out.len;
    // The kernel reports later what has no place behind the first event.
    let room = (out.max - begin) as c_int;
    let mut polled = Polled { count: 0, took_wake_up: false };
    if out.is_full() {
        return polled;
    }
    let mut timeout = timeout;
    let seen = Instant::from_nanos(shared.kernel_seen.load(Ordering::Relaxed));
    for _ in 0..MAX_POLLS {
        let epfd = shared.numbers.of_call(out.epfd);
        let polled_at = now();
        let n = raw_wait(epfd, (out.events.wrapping_add(begin), room), timeout, mask);
        if (0..room).contains(&n) {
            shared.kernel_seen.fetch_max(polled_at.as_nanos(), Ordering::Relaxed);
        }
        for i in 0..n.max(0) as usize {
            // SAFETY: the kernel has written `n` events. Not yet overwritten: each one read makes at most one pushed.
            let (events, data) = unsafe {
                let e = out.events.add(begin + i).read_unaligned();
                (e.events, e.u64)
            };
            match data {
                KICK if !shared.kick.is_made() => shared.leave_kick_to_parent(),
                CHANNEL if shared.own_queue().is_none() => shared.pass_channel_back(),
                KICK => {
                    shared.take_kick();
                    polled.took_wake_up = true;
                }
                CHANNEL => polled.took_wake_up = true,
                ours if ours & !u64::from(u32::MAX) == OURS => kernel_event(shared, out, ours as u32 as c_int, events),
                // Given away meanwhile.
                _ if shared.is_given() => out.pass(events, data),
                _ => {
                    crate::control::unseen::unseen_registration();
                    out.pass(events, data);
                }
            }
        }
        polled.count = if n < 0 { n } else { polled.count + n };
        if n == room && out.len == begin && polled.took_wake_up {
            if let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) {
                shared.poll(endpoint);
            }
        }
        if n < room || out.len > begin || shared.ready_len.load(Ordering::SeqCst) > 0 {
            break;
        }
        timeout = Some(Duration::ZERO);
    }
    if out.len > begin {
        out.kernels.get_or_insert(Kernels { begin, seen });
    }
    polled
}

fn raw_wait(
    epfd: c_int,
    (events, room): (*mut epoll_event, c_int),
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    let sleeps = timeout != Some(Duration::ZERO);
    let _sleeps = sleeps.then(trace::sleeps);
    let asleep = sleeps.then(Asleep::begin);
    if asleep.as_ref().is_some_and(|asleep| asleep.is_interrupted(false)) {
        set_errno(libc::EINTR);
        return -1;
    }
    if let Some(t) = timeout.filter(|t| t.subsec_nanos() % 1_000_000 != 0 && has_epoll_pwait2()) {
        let ts = clock::timespec(t);
        // SAFETY: the array has that much room; the mask is the caller's.
        let n = unsafe { real::epoll_pwait2(epfd, events, room, &ts, mask) };
        // glibc has the function since 2.35. A filter may refuse the call.
        if n >= 0 || !matches!(errno(), libc::ENOSYS | libc::EPERM | libc::EACCES) {
            return n;
        }
    }
    let ms = milliseconds(timeout);
    // SAFETY: the array has that much room; the mask is the caller's.
    unsafe {
        if mask.is_null() {
            real::epoll_wait(epfd, events, room, ms)
        } else {
            real::epoll_pwait(epfd, events, room, ms, mask)
        }
    }
}

/// A time-out in the unit of `epoll_wait`, not shorter than it; -1 is none.
pub(super) fn milliseconds(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(c_int::MAX))
}

/// The kernel's events for a descriptor, except for an error that the application has already seen.
fn without_reported_error(shared: &Shared, fd: c_int, events: u32) -> u32 {
    let stream = shared.state.lock().interests.get(&fd).and_then(|i| i.stream.clone());
    let endpoint = runtime::get().and_then(Runtime::endpoint);
    match stream.zip(endpoint) {
        Some((stream, endpoint)) if switching::handle_kernel_error(endpoint, &stream) => events & still(fd, events),
        _ => events,
    }
}

fn kernel_event(shared: &Arc<Shared>, out: &mut Out, fd: c_int, events: u32) {
    let events = if events & libc::EPOLLERR as u32 != 0 { without_reported_error(shared, fd, events) } else { events };
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd) else { return };
    if let Some(inner) = &i.instance {
        let inner = inner.upgrade();
        drop(state);
        return instance_event(shared, out, fd, (inner, events));
    }
    if i.parked && i.watch == Watch::Application {
        return;
    }
    // The kernel's events of a stream that is on a link both ways are not reported. If it returns to the kernel now, the
    // thread that brings it back registers it again, and the kernel reports them again.
    let is_away = i.stream.as_ref().is_some_and(|stream| !stream.readiness().intersects(BOTH_KERNEL));
    let is_kernels = |stream: &Arc<StreamCell>| stream.readiness().contains(BOTH_KERNEL);
    // The readiness is read after the kernel was asked: so the kernel's answer cannot be about a record.
    let asks = i.travelled && i.watch == Watch::Application && !is_away;
    let events = if asks { events & still(fd, i.events) } else { events };
    let Some(stream) = i.stream.as_ref().filter(|stream| is_away || !is_kernels(stream)).cloned() else {
        if i.watch == Watch::Application {
            report_kernels(shared, out, i, events);
        }
        return;
    };
    // From now on the kernel only watches the anchor. An event of a direction that is still on the anchor is an edge.
    let r = stream.readiness();
    if r.contains(Readiness::KERNEL_RX) {
        i.pending |= events & INCOMING;
    }
    if r.contains(Readiness::KERNEL_TX) {
        i.pending |= events & OUTGOING;
    }
    i.register(shared.kernel(), fd, r, false);
    drop(state);
    let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) else { return };
    stream.anchor_event(endpoint, anchor_event(events));
    shared.handle_change(fd, stream.readiness(), Change::Arrival);
}

/// Reports the kernel's events for an interest that is its own.
fn report_kernels(shared: &Shared, out: &mut Out, i: &mut Interest, events: u32) {
    if i.disabled || events == 0 {
        return;
    }
    shared.kernel_hot.store(KERNEL_HOT, Ordering::Relaxed);
    out.push(events, i);
    i.disabled = i.events & libc::EPOLLONESHOT as u32 != 0;
}

/// The kernel has reported the instance `inner`, which is watched under `fd`. The event may have been taken meanwhile.
fn instance_event(shared: &Arc<Shared>, out: &mut Out, fd: c_int, (inner, events): (Option<Arc<Shared>>, u32)) {
    let readable = inner.is_none_or(|inner| inner.confirm());
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd).filter(|i| i.instance.is_some()) else { return };
    if readable {
        return report_kernels(shared, out, i, events);
    }
    if i.events & libc::EPOLLONESHOT as u32 != 0 && !i.disabled {
        // The kernel has counted it as the one shot.
        i.register(shared.kernel(), fd, BOTH_KERNEL, true);
    }
}

/// Reports the watched instances without a kick that have something on their ready list. Returns whether there are any.
/// No stream gets on such a list any more, so a thread that sleeps misses nothing.
fn report_instances_without_kick(shared: &Shared, out: &mut Out) -> bool {
    let before = out.len;
    for (fd, inner) in shared.instances_without_kick() {
        if out.is_full() || !inner.has_ready() {
            continue;
        }
        if let Some(i) = shared.state.lock().interests.get_mut(&fd).filter(|i| i.instance.is_some()) {
            let readable = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
            report_kernels(shared, out, i, readable & i.events);
        }
    }
    out.len > before
}

/// Whether the kernel has events, which it keeps.
fn has_kernel_events(shared: &Shared) -> bool {
    let polled_at = now();
    let has = poll::ready_events(shared.kernel().epfd, libc::POLLIN) != 0;
    if !has {
        shared.kernel_seen.fetch_max(polled_at.as_nanos(), Ordering::Relaxed);
    }
    has
}

/// The kernel's events for a descriptor now.
fn still(fd: c_int, events: u32) -> u32 {
    poll::ready_events(fd, (events & !FLAGS) as i16) as u16 as u32
}

/// The end of a wait in which only the kernel was asked.
enum Plain {
    /// With this result.
    Over(c_int),
    /// There are links now, and this thread may have taken a wake-up that was meant for a thread that waits for them;
    /// so much time is left.
    Links(Option<Duration>),
}

/// Nothing here is on a link: the kernel does everything, and only the data is translated. Without spinning, because only
/// links can be watched without a system call.
fn plain_wait(epoll: &Epoll, out: &mut Out, timeout: Option<Duration>, mask: *const libc::sigset_t) -> Plain {
    let shared = &epoll.shared;
    let _waits = trace::waits();
    let deadline = timeout.map(|t| now() + t);
    let mut left = timeout;
    let _wait = (left != Some(Duration::ZERO)).then(|| Wait::begin(shared));
    loop {
        // Links may come while this thread sleeps, and with the first stream an endpoint.
        let endpoint = runtime::get().and_then(Runtime::endpoint);
        let announced = (left != Some(Duration::ZERO)).then(|| Announced::new(shared, endpoint, false));
        if announced.is_some() && endpoint.is_some() && !epoll.is_kernels() {
            // The thread that changed a stream before the announcement has not raised the kick.
            return Plain::Links(deadline.map(|d| d.saturating_since(now())));
        }
        let pending = announced.as_ref().is_some_and(|announced| announced.pending);
        let Polled { count, took_wake_up } =
            kernel_events(shared, out, if pending { Some(Duration::ZERO) } else { left }, mask);
        drop(announced);
        if count < 0 {
            return Plain::Over(-1);
        }
        match endpoint.filter(|_| took_wake_up || pending || !epoll.is_kernels()) {
            // As in `wait_on_links`: the first link may just have come.
            Some(endpoint) => {
                shared.poll(endpoint);
                if !collect_in_order(epoll, endpoint, out) {
                    return Plain::Over(-1);
                }
            }
            None => collect(shared, out, None),
        }
        if out.len > 0 || count == 0 && !pending {
            return Plain::Over(out.len as c_int);
        }
        if left == Some(Duration::ZERO) {
            return Plain::Over(0);
        }
        // Only internal events: wait for the rest of the time.
        left = deadline.map(|d| d.saturating_since(now()));
        if !epoll.is_kernels() {
            return Plain::Links(left);
        }
    }
}

enum Slept {
    Woken,
    Expired,
    Failed,
}

/// Sleeps with moderation as long as that is allowed, if the sleep is likely to be short and other threads can run
/// meanwhile, and then until woken. If a processor is idle, waking at the first answer is better than waking at the
/// last.
fn sleep(
    shared: &Arc<Shared>,
    (rt, endpoint): (&Runtime, &Endpoint),
    out: &mut Out,
    deadline: Option<Instant>,
    mask: *const libc::sigset_t,
) -> Slept {
    shared.ensure_kick();
    shared.queue_for_sleep(endpoint);
    let left = |until: Option<Instant>| until.map(|d| d.saturating_since(now()));
    if !shared.kick.is_made() {
        // Other threads cannot wake this one, so it checks for itself.
        let most = left(deadline).map_or(WITHOUT_EVENTFD, |left| left.min(WITHOUT_EVENTFD));
        return match sleep_once(shared, endpoint, out, (Some(most), false), mask) {
            Slept::Expired if left(deadline) != Some(Duration::ZERO) => Slept::Woken,
            slept => slept,
        };
    }
    if !rt.spin.is_busy() || !queues::of_process().outnumber_processors() {
        return sleep_once(shared, endpoint, out, (left(deadline), false), mask);
    }
    let most = left(deadline).map_or(MODERATION, |left| left.min(MODERATION));
    match sleep_once(shared, endpoint, out, (Some(most), true), mask) {
        Slept::Expired if left(deadline) != Some(Duration::ZERO) => {
            sleep_once(shared, endpoint, out, (left(deadline), false), mask)
        }
        slept => slept,
    }
}

fn sleep_once(
    shared: &Arc<Shared>,
    endpoint: &Endpoint,
    out: &mut Out,
    (left, moderated): (Option<Duration>, bool),
    mask: *const libc::sigset_t,
) -> Slept {
    let announced = Announced::new(shared, Some(endpoint), moderated);
    if announced.pending || shared.ready_len.load(Ordering::SeqCst) > 0 {
        // Bytes on links were perhaps written before those in the kernel, so the links are polled first.
        return Slept::Woken;
    }
    let count = kernel_events(shared, out, left, mask).count;
    drop(announced);
    match count {
        n if n < 0 => Slept::Failed,
        0 => Slept::Expired,
        _ => Slept::Woken,
    }
}
