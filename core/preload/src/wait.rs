//! Waiting: how long to spin, how to sleep, `poll`, and bringing streams back to the anchor.
//!
//! A thread waits for one stream by sleeping on its queue pair, and for several (`poll`, `select`) by sleeping in the
//! real `ppoll` with the completion channels and an eventfd of its own added. In both cases the order is: announce,
//! look once more, sleep; whoever changes a stream does: change, look for announcements, wake.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use libc::pollfd;
use netacc_config::PollBudget;
use netacc_device::{Armed, CompletionQueueId, Instant, Wait, MODERATION};
use netacc_driver::{AnchorProgress, Endpoint, Readiness, StreamCell, StreamGuard};
use netacc_proto::{Phase, Reason};

use crate::batch;
use crate::epoll::{anchor_event, Registration};
use crate::ops::{errno, io, set_errno};
use crate::real;
use crate::runtime::{self, now, Runtime};
use crate::socket::Socket;
use crate::table::{self, Entry};

pub mod signals;

/// How long to spin before sleeping.
///
/// Adaptive: an average of how long recent waits took, spinning and sleeping alike. Short waits are worth a spin
/// somewhat longer than they take; long ones are not worth any. A spinner that notices it was preempted (more
/// runnable threads than processors) stops spinning for a while.
pub struct SpinPolicy {
    fixed_ns: Option<u64>,
    average_ns: AtomicU64,
    crowded_until_ns: AtomicU64,
}

/// Longest adaptive spin. Arbitrary: about what a sleep and a wake-up cost on a slow machine.
const MAX_SPIN_NS: u64 = 50_000;
/// Waits longer than this do not pay for spinning.
const WORTH_NS: u64 = 40_000;
/// A gap this long between two looks at the clock means that the thread was preempted.
const PREEMPTED_NS: u64 = 30_000;
/// Longest time spent yielding before a sleep. Arbitrary: several time slices of threads that do little at a time.
const YIELD_NS: u64 = 200_000;
/// How long not to spin after a preemption.
const CROWDED_NS: u64 = 5_000_000;

impl SpinPolicy {
    /// From the configuration.
    pub fn new(budget: PollBudget) -> SpinPolicy {
        SpinPolicy {
            fixed_ns: match budget {
                PollBudget::Adaptive => None,
                PollBudget::Fixed(d) => Some(d.as_nanos() as u64),
            },
            average_ns: AtomicU64::new(10_000),
            crowded_until_ns: AtomicU64::new(0),
        }
    }

    /// Nanoseconds to spin in a wait that begins now.
    pub fn budget(&self, now: Instant) -> u64 {
        if let Some(ns) = self.fixed_ns {
            return ns;
        }
        if now.as_nanos() < self.crowded_until_ns.load(Ordering::Relaxed) {
            return 0;
        }
        let average = self.average_ns.load(Ordering::Relaxed);
        if average > WORTH_NS {
            0
        } else {
            (2 * average + 10_000).min(MAX_SPIN_NS)
        }
    }

    fn is_crowded(&self, now: Instant) -> bool {
        self.fixed_ns.is_none()
            && now.as_nanos() < self.crowded_until_ns.load(Ordering::Relaxed)
            && self.average_ns.load(Ordering::Relaxed) < YIELD_NS
    }

    /// More threads want to run than there are processors: let them, and look again afterwards. Cheaper than being
    /// put to sleep and woken, and what they send meanwhile arrives in one batch.
    fn yield_until(&self, begun: Instant, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        loop {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
            if done() {
                return true;
            }
            let t = now();
            if t.saturating_since(begun).as_nanos() as u64 > YIELD_NS || deadline.is_some_and(|d| t >= d) {
                return false;
            }
        }
    }

    /// Whether waits are short lately: one that begins now is worth a second system call if it turns out to be long.
    pub fn is_busy(&self) -> bool {
        self.average_ns.load(Ordering::Relaxed) < MODERATION.as_nanos() as u64 / 4
    }

    /// A wait took this long.
    pub fn record(&self, waited_ns: u64) {
        let average = self.average_ns.load(Ordering::Relaxed);
        let sample = waited_ns.min(1_000_000);
        self.average_ns.store(average - average / 8 + sample / 8, Ordering::Relaxed);
    }

    /// The spinner was preempted.
    fn crowded(&self, now: Instant) {
        self.crowded_until_ns.store(now.as_nanos() + CROWDED_NS, Ordering::Relaxed);
    }

    /// Spins until `done` says so (true), or the budget or `deadline` is over (false).
    pub fn spin(&self, begun: Instant, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        let budget = self.budget(begun);
        if budget == 0 {
            return done() || self.is_crowded(begun) && self.yield_until(begun, deadline, done);
        }
        let mut last = begun;
        loop {
            for _ in 0..8 {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let t = now();
            let gap = t.saturating_since(last).as_nanos() as u64;
            if gap > PREEMPTED_NS && self.fixed_ns.is_none() {
                self.crowded(t);
                return done();
            }
            if t.saturating_since(begun).as_nanos() as u64 > budget || deadline.is_some_and(|d| t >= d) {
                return false;
            }
            last = t;
        }
    }
}

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

/// A stream changed while threads sleep on its queue pair.
#[cold]
pub fn wake_sleepers(cell: &Arc<StreamCell>) {
    let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) else { return };
    let qp = cell.sleep_qp();
    if let Some(qp) = qp {
        endpoint.device().wake_qp(qp);
    }
}

/// How a wait for a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Look again.
    Again,
    /// The time is over: EAGAIN.
    TimedOut,
    /// A signal: EINTR.
    Interrupted,
}

/// How long a call may wait, and what signals do to it.
#[derive(Clone, Copy)]
pub struct Limit {
    /// When it ends with EAGAIN.
    pub deadline: Option<Instant>,
    /// It has moved nothing yet. Without a deadline it is then restarted after handlers with SA_RESTART; otherwise every
    /// handler ends it.
    pub idle: bool,
}

impl Limit {
    /// Whether the call goes on after handlers with SA_RESTART.
    pub fn restarts(self) -> bool {
        self.idle && self.deadline.is_none()
    }

    /// The rest of the time, or as good as none at all: a wait of the kernel that has an end is not restarted.
    fn left(self) -> Option<Duration> {
        const LONG: Duration = Duration::from_secs(1 << 30);
        match self.deadline {
            Some(deadline) => Some(deadline.saturating_since(now())),
            None => (!self.idle).then_some(LONG),
        }
    }
}

/// Waits until `cell` may be ready for one of `want`. The caller has just looked and found it not ready.
pub fn for_stream(rt: &Runtime, cell: &Arc<StreamCell>, fd: c_int, want: Readiness, limit: Limit) -> Waited {
    let Some(endpoint) = rt.endpoint() else { return Waited::Again };
    batch::end(endpoint);
    let want = want | Readiness::ERR | Readiness::HUP;
    let begun = now();
    let (link, settled) = {
        let guard = cell.lock(endpoint);
        (guard.link().cloned(), guard.proto().is_linked())
    };
    let (Some(link), true) = (link, settled) else {
        return in_transition(endpoint, cell, fd, want, limit);
    };
    let ready = || {
        cell.readiness().intersects(want) || cell.readiness().intersects(Readiness::KERNEL_RX | Readiness::KERNEL_TX)
    };
    let mut seen = endpoint.device().qp_sequence(link.qp());
    endpoint.poll_link(&link);
    let spun = rt.spin.spin(begun, limit.deadline, || {
        let sequence = endpoint.device().qp_sequence(link.qp());
        if sequence != seen {
            seen = sequence;
            endpoint.poll_link(&link);
        }
        if want.contains(Readiness::WRITABLE) {
            cell.lock(endpoint).refresh_consumed();
        }
        ready()
    });
    if !spun {
        let timeout = match limit.left() {
            Some(Duration::ZERO) => return Waited::TimedOut,
            t => t,
        };
        let asleep = cell.sleeps();
        cell.set_sleep_qp(link.qp());
        let seen = endpoint.device().qp_sequence(link.qp());
        endpoint.poll_link(&link);
        let outcome =
            if ready() || link.is_dead() { Wait::Woken } else { endpoint.device().wait_qp(link.qp(), seen, timeout) };
        drop(asleep);
        endpoint.poll_link(&link);
        match outcome {
            Wait::Interrupted => return Waited::Interrupted,
            Wait::TimedOut if !ready() => return Waited::TimedOut,
            _ => {}
        }
    }
    rt.spin.record(now().saturating_since(begun).as_nanos() as u64);
    Waited::Again
}

/// Between the paths: the anchor moves things on, or the peer's answer on the link.
pub fn in_transition(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int, want: Readiness, limit: Limit) -> Waited {
    let progress = cell.lock(endpoint).progress_anchor(false);
    if cell.readiness().intersects(want) {
        return Waited::Again;
    }
    let mut events = libc::POLLRDHUP;
    if progress != AnchorProgress::Partial {
        events |= libc::POLLIN;
    }
    if want.contains(Readiness::WRITABLE) || progress == AnchorProgress::WantWrite {
        events |= libc::POLLOUT;
    }
    let step = Duration::from_millis(1);
    let left = limit.deadline.map_or(step, |d| d.saturating_since(now()).min(step));
    let ts = timespec(left);
    let mut pfd = pollfd { fd, events, revents: 0 };
    let held = signals::Held::all();
    let mask = if limit.restarts() { std::ptr::null() } else { std::ptr::from_ref(held.before()) };
    // SAFETY: one valid pollfd, and a valid mask or none.
    let n = unsafe { real::ppoll(&mut pfd, 1, &ts, mask) };
    if n < 0 && errno() == libc::EINTR || held.interrupts(limit) {
        return Waited::Interrupted;
    }
    drop(held);
    cell.anchor_event(endpoint, anchor_event(pfd.revents as u16 as u32));
    if n == 1 {
        // Something is there, but not for the application: give the rest time to come.
        std::thread::yield_now();
    }
    match limit.deadline {
        Some(d) if now() >= d => Waited::TimedOut,
        _ => Waited::Again,
    }
}

/// Looks at a stream again and again, with its link and the helper's queue taken care of in between, until `look` has an
/// answer, or until `deadline`: then the answer is `None`. For what is microseconds away, if the peer lives.
pub fn until<T>(
    endpoint: &Endpoint,
    cell: &Arc<StreamCell>,
    deadline: Instant,
    mut look: impl FnMut(&mut StreamGuard<'_>) -> Option<T>,
) -> Option<T> {
    loop {
        cell.take_in(endpoint);
        let answer = look(&mut cell.lock(endpoint));
        if answer.is_some() || now() >= deadline {
            return answer;
        }
        endpoint.poll(endpoint.control_cq());
        // The helpers of both sides need a processor for this.
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Waits, for a bounded time, until a stream is neither being promoted nor demoted.
pub fn until_settled(endpoint: &Endpoint, cell: &Arc<StreamCell>) {
    until(endpoint, cell, now() + SETTLE_DEADLINE, |guard| {
        matches!(guard.proto().phase(), Phase::Plain | Phase::Linked).then_some(())
    });
}

/// How long a call that would not wait on TCP waits for its stream to be on one path, where the peer has to act first.
/// Arbitrary: microseconds on an idle machine, several wake-ups on a busy one.
pub const SWITCH_PATIENCE: Duration = Duration::from_millis(10);

/// The same for a promotion that only the peer's answer is missing of, and for a link that has died. Arbitrary; far longer
/// than a peer that runs takes on a busy machine. Who was told that it could write and then cannot may take that for the end,
/// as hiredis 1.0 does.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(1);

/// How long a fork or a close waits for a promotion under way. Arbitrary; peers answer in microseconds, or never.
pub const SETTLE_DEADLINE: Duration = Duration::from_millis(200);

/// How long the kernel's socket of a stream that has ended may take to end as well. Arbitrary; it takes microseconds,
/// unless the peer has not closed.
const ENDED_PATIENCE: Duration = Duration::from_millis(50);

/// Brings a stream back to the anchor; true once it is a plain socket.
pub fn demote(endpoint: &Endpoint, cell: &Arc<StreamCell>, reason: Reason, patience: Duration) -> bool {
    let begun = now();
    let plain = until(endpoint, cell, begun + patience, |guard| {
        if !guard.proto().is_plain() {
            guard.demote(reason);
            guard.progress_anchor(false);
        }
        if guard.proto().is_plain() && guard.has_replay(now()) {
            return Some(true);
        }
        let ended = guard.proto().has_ended();
        let lost = guard.is_kept() || !ended && guard.proto().failure().is_some();
        let late = ended && now().saturating_since(begun) > ENDED_PATIENCE;
        (lost || late).then_some(false)
    });
    plain == Some(true)
}

/// Whether any of the descriptors is a stream of ours on a link, or an epoll instance that watches one. What a child has
/// inherited is a plain socket afterwards: of a link that its parent has, the kernel knows nothing.
pub fn any_ours(fds: &[pollfd]) -> bool {
    fds.iter().fold(false, |ours, p| match table::get(p.fd).as_deref().and_then(Option::as_deref) {
        Some(Entry::Stream(sock)) => {
            sock.reclaim();
            ours | sock.stream.is_some()
        }
        Some(Entry::Epoll(epoll)) => ours | epoll.has_streams(),
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
                Some(Entry::Epoll(epoll)) if epoll.has_ready() => k.revents | (p.events & libc::POLLIN),
                Some(Entry::Epoll(epoll)) if k.revents & libc::POLLIN != 0 && !epoll.confirm(p.fd) => 0,
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
        return if epoll.has_ready() { wanted & libc::POLLIN } else { 0 };
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

/// Sleepers per completion queue: the device is disarmed when the last one leaves.
static ARMED: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// Arms `cq` for one more sleeper; `moderated`: for a sleep of at most [`MODERATION`](netacc_device::MODERATION).
pub fn arm(endpoint: &Endpoint, cq: CompletionQueueId, moderated: bool) -> Armed {
    if let Some(count) = ARMED.get(cq.0 as usize) {
        count.fetch_add(1, Ordering::SeqCst);
    }
    if moderated {
        endpoint.device().arm_moderated(cq)
    } else {
        endpoint.device().arm(cq)
    }
}

/// One sleeper of `cq` is up. Handles what has arrived, and arms again if others still sleep.
pub fn disarm(endpoint: &Endpoint, cq: CompletionQueueId) {
    endpoint.device().disarm(cq);
    endpoint.poll(cq);
    let others = ARMED.get(cq.0 as usize).is_some_and(|count| count.fetch_sub(1, Ordering::SeqCst) > 1);
    if others {
        while endpoint.device().arm(cq) == Armed::Pending {
            if endpoint.poll(cq) == 0 {
                break;
            }
        }
    }
}

/// As the system calls want it.
pub fn timespec(d: Duration) -> libc::timespec {
    libc::timespec { tv_sec: d.as_secs().min(i64::MAX as u64) as libc::time_t, tv_nsec: d.subsec_nanos().into() }
}
