//! epoll: the real instance, plus a ready list for streams that are on a link.
//!
//! Every descriptor is registered with the real instance too, with its number in the event data, so that the
//! application's data can be given back whatever path an event comes by. While a stream is on the kernel path its
//! registration there is exactly the application's, and the kernel does everything. While it is on a link the kernel
//! only watches the anchor (for records, and for its end), and this module keeps level, edge and one-shot semantics:
//!
//! * a stream enters the ready list when it may have become ready; it leaves when a look finds it not ready (level),
//!   or once reported (edge, one-shot). So a wait costs O(ready).
//! * `pending` collects edges since the last report; an edge-triggered interest is reported only for those.
//!
//! Lock order: a stream's lock may be held when an instance's is taken, never the other way round; readiness is
//! read from the stream's atomic word.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use libc::epoll_event;
use netacc_device::{Armed, CompletionQueueId, Instant};
use netacc_driver::{AnchorEvent, Endpoint, Readiness, StreamCell};
use parking_lot::Mutex;

use crate::ops::{errno, set_errno};
use crate::runtime::{self, now, Runtime};
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::wait::{self, Waiter};
use crate::{queues, real};

mod closed;
mod waiting;

pub use closed::{come_back, end_outliving, forget_fd, leave_to_kernel, outlive, unwatch};
pub use waiting::{anchor_event, wait};

/// What the kernel watches on the anchor of a linked stream.
const ANCHOR_WATCH: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// Somebody who watches a socket.
pub enum Registration {
    /// An epoll instance, and the descriptor under which it knows the socket.
    Epoll(Weak<Shared>, c_int),
    /// A thread in `poll`.
    Waiter(Arc<Waiter>),
}

impl Registration {
    /// The stream's readiness may have gained something.
    #[inline]
    pub fn ready(&self, now: Readiness, arrived: bool) {
        match self {
            Registration::Epoll(shared, fd) => {
                if let Some(shared) = shared.upgrade() {
                    shared.changed(*fd, now, arrived);
                }
            }
            Registration::Waiter(waiter) => waiter.wake(),
        }
    }

    /// Whoever sleeps in `poll` looks anew at what it should sleep on. (An epoll instance keeps its queue for good.)
    pub fn wake(&self) {
        if let Registration::Waiter(waiter) = self {
            waiter.wake();
        }
    }

    /// The instance, if the watcher is one that still exists.
    pub fn instance(&self) -> Option<Arc<Shared>> {
        match self {
            Registration::Epoll(shared, _) => shared.upgrade(),
            Registration::Waiter(_) => None,
        }
    }
}

/// An epoll instance.
pub struct Epoll {
    shared: Arc<Shared>,
}

/// What watchers reach it by.
pub struct Shared {
    /// A descriptor of the instance: the one that was used last, since any of several may be closed.
    epfd: AtomicI32,
    /// Wakes a sleeper of this instance; registered with the real one when first needed.
    kick: AtomicU32,
    /// The instance's own completion queue, plus one.
    cq: AtomicU32,
    /// A thread sleeps in the real wait, or is about to.
    asleep: AtomicU32,
    state: Mutex<State>,
    /// Interests that are streams, whatever path they are on.
    streams: AtomicU32,
    ready_len: AtomicU32,
    outer: Mutex<Vec<Arc<Waiter>>>,
    /// This instance is watched by another one, which only the kernel's view of it can wake: the kick stays readable
    /// while anything is ready.
    nested: AtomicBool,
    /// Some interest has been for one shot.
    has_one_shots: AtomicBool,
    waits: AtomicU64,
    /// So many more waits ask the kernel first, because it had events lately.
    kernel_hot: AtomicU32,
}

#[derive(Default)]
struct State {
    interests: Interests,
    ready: VecDeque<c_int>,
}

/// Interests by descriptor.
#[derive(Default)]
struct Interests(Vec<Option<Interest>>);

impl Interests {
    #[inline]
    fn get(&self, fd: &c_int) -> Option<&Interest> {
        self.0.get(*fd as usize)?.as_ref()
    }

    #[inline]
    fn get_mut(&mut self, fd: &c_int) -> Option<&mut Interest> {
        self.0.get_mut(*fd as usize)?.as_mut()
    }

    fn insert(&mut self, fd: c_int, interest: Interest) -> Option<Interest> {
        let i = fd as usize;
        if self.0.len() <= i {
            self.0.resize_with(i + 1, || None);
        }
        self.0[i].replace(interest)
    }

    fn remove(&mut self, fd: &c_int) -> Option<Interest> {
        self.0.get_mut(*fd as usize)?.take()
    }

    fn iter(&self) -> impl Iterator<Item = (c_int, &Interest)> {
        self.0.iter().enumerate().filter_map(|(fd, i)| Some((fd as c_int, i.as_ref()?)))
    }
}

struct Interest {
    events: u32,
    data: u64,
    /// The stream, and a mark that tells a reused descriptor from this one.
    stream: Option<Arc<StreamCell>>,
    watch: Watch,
    /// It was on a link since the kernel's registration was made: the application may have seen EAGAIN for a reason that
    /// the kernel does not know, so coming back is an edge.
    away: bool,
    /// It has ever been. What the kernel reports may then be about a record that has been taken since.
    travelled: bool,
    queued: bool,
    /// In which wait it was reported last, and where in that wait's array.
    told: (u64, usize),
    /// Edges since the last report.
    pending: u32,
    /// What has ended, and been an edge once: it does not end again.
    ends: u32,
    /// One-shot and reported.
    disabled: bool,
    /// Deleted by the application, but the kernel's watch on the anchor is kept: programs that delete and add an
    /// interest for every message then cost no system call.
    parked: bool,
    /// It is of another instance. What its descriptor names later says nothing of what is watched.
    is_instance: bool,
}

/// What the kernel's instance reports a descriptor for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// As the application asked.
    Application,
    /// For these events of the anchor.
    Anchor(u32),
}

const FLAGS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Events of incoming and of outgoing bytes.
const INCOMING: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
const OUTGOING: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// In the upper half of the event data of all registrations that this module makes, with the descriptor in the lower. What
/// comes without is of a registration that was made where nothing is interposed (an io_uring, a bare system call), and is
/// the program's as it is. Arbitrary; no address begins so.
const OURS: u64 = 0x6e61_6363 << 32;
/// Event data of the kick eventfd and of the completion channel: no descriptor is negative.
const KICK: u64 = OURS | 0xffff_ffff;
const CHANNEL: u64 = OURS | 0xffff_fffe;
/// While streams keep the instance busy, the kernel is asked only in every so many waits.
const KERNEL_INTERVAL: u64 = 8;
/// After an event of the kernel, this many waits look there first. Arbitrary: a few turns of an event loop.
const KERNEL_HOT: u32 = 16;

const BOTH_KERNEL: Readiness = Readiness::KERNEL_RX.union(Readiness::KERNEL_TX);

/// `epoll_create1`.
pub fn create1(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { real::epoll_create1(flags) };
    if fd >= 0 && !runtime::is_inside() {
        table::insert(fd, Arc::new(Entry::Epoll(Epoll::new(fd))));
    }
    fd
}

fn events_of(r: Readiness) -> u32 {
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
    fn kernels(events: u32, data: u64) -> Interest {
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
    fn report(&mut self, fd: c_int) -> (u32, bool) {
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
    fn register(&mut self, epfd: c_int, fd: c_int, now: Readiness, rearm: bool) {
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

    fn add_edges(&mut self, now: Readiness, arrived: bool) {
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

impl Shared {
    fn epfd(&self) -> c_int {
        self.epfd.load(Ordering::Relaxed)
    }

    /// A stream of this instance changed. Called with the stream locked.
    #[inline]
    fn changed(&self, fd: c_int, now: Readiness, arrived: bool) {
        let mut state = self.state.lock();
        let State { interests, ready } = &mut *state;
        let Some(i) = interests.get_mut(&fd) else { return };
        if now.contains(BOTH_KERNEL) {
            if i.parked {
                kernel_ctl(self.epfd(), libc::EPOLL_CTL_DEL, fd, 0);
                interests.remove(&fd);
                self.streams.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let away = std::mem::take(&mut i.away);
            i.register(self.epfd(), fd, now, away);
            if !now.contains(Readiness::NOTICE) {
                return;
            }
        } else {
            i.away = true;
            i.travelled = true;
            if i.watch != Watch::Application {
                i.register(self.epfd(), fd, now, false);
            }
        }
        i.add_edges(now, arrived);
        let wanted =
            events_of(now) & (i.events | (libc::EPOLLERR | libc::EPOLLHUP) as u32) != 0 || now.intersects(BOTH_KERNEL);
        if i.queued || i.disabled || i.parked || !wanted {
            return;
        }
        i.queued = true;
        ready.push_back(fd);
        self.ready_len.store(ready.len() as u32, Ordering::SeqCst);
        drop(state);
        self.announce();
    }

    /// Wakes whoever sleeps on the instance.
    #[inline]
    fn announce(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 || self.nested.load(Ordering::Relaxed) {
            self.kick();
        }
        if self.nested.load(Ordering::Relaxed) || !self.outer.is_locked() && self.has_outer() {
            for waiter in self.outer.lock().iter() {
                waiter.wake();
            }
        }
    }

    fn has_outer(&self) -> bool {
        !self.outer.lock().is_empty()
    }

    #[cold]
    fn kick(&self) {
        let fd = self.kick.load(Ordering::Acquire);
        if fd != 0 {
            runtime::kick(fd as c_int);
        }
    }

    fn drain_kick(&self) {
        let fd = self.kick.load(Ordering::Acquire);
        if fd != 0 {
            runtime::drain(fd as c_int);
        }
    }

    /// The completion queue of the instance's links; made, with its kick, at first use.
    pub fn queue(&self, endpoint: &Endpoint) -> CompletionQueueId {
        if self.nested.load(Ordering::SeqCst) {
            return endpoint.control_cq();
        }
        if let Some(cq) = self.assigned() {
            return cq;
        }
        let _one = self.state.lock();
        if let Some(cq) = self.assigned() {
            return cq;
        }
        let cq = runtime::get().map_or(endpoint.default_cq(), |rt| queues::take(rt, endpoint));
        if let Some(channel) = endpoint.device().channel_fd(cq) {
            // Edge-triggered, so that it need not be drained.
            internal_ctl(self.epfd(), channel, libc::EPOLLIN | libc::EPOLLET, CHANNEL);
        }
        self.cq.store(cq.0 + 1, Ordering::Release);
        drop(_one);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.kick();
        }
        cq
    }

    #[inline]
    fn assigned(&self) -> Option<CompletionQueueId> {
        self.cq.load(Ordering::Acquire).checked_sub(1).map(CompletionQueueId)
    }

    fn ensure_kick(&self) {
        if self.kick.load(Ordering::Acquire) != 0 {
            return;
        }
        if let Some(fd) = runtime::new_eventfd() {
            if self.kick.compare_exchange(0, fd as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                internal_ctl(self.epfd(), fd, libc::EPOLLIN, KICK);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let kick = *self.kick.get_mut();
        if kick != 0 {
            runtime::discard_fd(kick as c_int);
        }
        // Completion queues are few: give it back to the pool of the runtime.
        if let (Some(cq), Some(rt)) = (self.assigned(), runtime::get()) {
            queues::give_back(rt, cq);
        }
    }
}

fn kernel_ctl(epfd: c_int, op: c_int, fd: c_int, events: u32) -> c_int {
    let mut event = epoll_event { events, u64: OURS | u64::from(fd as u32) };
    // SAFETY: the event is readable.
    unsafe { real::epoll_ctl(epfd, op, fd, &mut event) }
}

fn internal_ctl(epfd: c_int, fd: c_int, events: c_int, data: u64) {
    let mut event = epoll_event { events: events as u32, u64: data };
    // SAFETY: the event is readable.
    unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event) };
}

impl Epoll {
    fn new(epfd: c_int) -> Epoll {
        Epoll {
            shared: Arc::new(Shared {
                epfd: AtomicI32::new(epfd),
                kick: AtomicU32::new(0),
                cq: AtomicU32::new(0),
                asleep: AtomicU32::new(0),
                state: Mutex::default(),
                streams: AtomicU32::new(0),
                ready_len: AtomicU32::new(0),
                outer: Mutex::default(),
                nested: AtomicBool::new(false),
                has_one_shots: AtomicBool::new(false),
                waits: AtomicU64::new(0),
                kernel_hot: AtomicU32::new(0),
            }),
        }
    }

    /// The same instance in a forked child: the kernel's part is shared with the parent, the data must be kept to
    /// translate events; streams are kernel sockets here.
    pub fn after_fork(&self) -> Epoll {
        let fresh = Epoll::new(self.shared.epfd());
        if let Some(state) = self.shared.state.try_lock() {
            let mut copy = fresh.shared.state.lock();
            for (fd, i) in state.interests.iter().filter(|(_, i)| !i.parked) {
                copy.interests.insert(
                    fd,
                    Interest {
                        disabled: i.disabled,
                        is_instance: i.is_instance,
                        ..Interest::kernels(i.events, i.data)
                    },
                );
            }
        }
        fresh
    }

    /// Whether any interest is a stream.
    pub fn has_streams(&self) -> bool {
        self.shared.streams.load(Ordering::Relaxed) > 0
    }

    /// Whether a wait would find something on the ready list.
    pub fn has_ready(&self) -> bool {
        if self.shared.ready_len.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut state = self.shared.state.lock();
        let State { interests, ready } = &mut *state;
        ready.iter().any(|fd| {
            interests.get(fd).is_some_and(|i| {
                i.stream.as_ref().is_some_and(|s| {
                    let asked = i.events & !FLAGS | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
                    events_of(s.readiness()) & asked != 0
                })
            })
        })
    }

    /// Handles completions of the instance's queue.
    pub fn poll(&self, endpoint: &Endpoint) {
        if let Some(cq) = self.shared.assigned() {
            endpoint.poll(cq);
        }
    }

    /// The instance's completion queue, if it has one.
    pub fn assigned_queue(&self) -> Option<CompletionQueueId> {
        self.shared.assigned()
    }

    /// The instance is watched by another one. Nobody can be relied on to wait on it, so the helper looks for it.
    fn nest(&self) {
        self.shared.nested.store(true, Ordering::SeqCst);
        self.shared.ensure_kick();
        let streams: Vec<_> = self.shared.state.lock().interests.iter().filter_map(|(_, i)| i.stream.clone()).collect();
        streams.iter().for_each(queues::settle_stream);
        if self.has_ready() {
            self.shared.announce();
        }
    }

    /// The kernel says that the instance has something. It may be a kick for what has been taken since.
    pub fn confirm(&self, epfd: c_int) -> bool {
        if self.has_ready() {
            return true;
        }
        self.shared.drain_kick();
        let mut p = libc::pollfd { fd: epfd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { real::poll(&mut p, 1, 0) > 0 || self.has_ready() }
    }

    /// A thread in `poll` watches the instance itself.
    pub fn add_outer(&self, waiter: &Arc<Waiter>) {
        self.shared.outer.lock().push(waiter.clone());
    }

    /// Undoes `add_outer`.
    pub fn remove_outer(&self, waiter: &Arc<Waiter>) {
        self.shared.outer.lock().retain(|w| !Arc::ptr_eq(w, waiter));
    }

    /// `fd` has become a connection with a stream: interests made before follow it.
    pub fn attach(&self, fd: c_int, sock: &Socket) {
        attach(&self.shared, fd, sock);
    }

    /// `fd` is being closed: the kernel drops its own registration with the last descriptor.
    pub fn detach(&self, fd: c_int) {
        self.shared.state.lock().interests.remove(&fd);
    }
}

/// Carries registrations over from a socket that was not connected to the connection it has become.
pub fn carry_over(watchers: Vec<Registration>, fd: c_int, sock: &Socket) {
    for watcher in watchers {
        if let Registration::Epoll(shared, _) = &watcher {
            if let Some(shared) = shared.upgrade() {
                attach(&shared, fd, sock);
            }
        }
    }
}

/// A connection is dissolved, and its descriptors stay open: interests in it are the kernel's alone again. Returns the
/// registrations for what becomes of it.
pub fn release(watchers: Vec<Registration>) -> Vec<Registration> {
    for watcher in &watchers {
        let Registration::Epoll(shared, fd) = watcher else { continue };
        if let Some(shared) = shared.upgrade() {
            shared.leave_to_kernel(*fd);
        }
    }
    watchers
}

fn attach(shared: &Arc<Shared>, fd: c_int, sock: &Socket) {
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd) else { return };
    i.stream = sock.stream.clone();
    drop(state);
    if sock.stream.is_some() {
        shared.streams.fetch_add(1, Ordering::Relaxed);
        shared.ensure_kick();
    }
    let mut watchers = sock.watchers.lock();
    watchers.push(Registration::Epoll(Arc::downgrade(shared), fd));
}

/// `epoll_ctl`. `event` is null or valid, as the system call wants it.
///
/// # Safety
/// As the C function.
pub unsafe fn ctl(entry: &Arc<Entry>, epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Entry::Epoll(epoll) = &**entry else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let shared = &epoll.shared;
    shared.epfd.store(epfd, Ordering::Relaxed);
    if runtime::is_helper_fd(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    if op != libc::EPOLL_CTL_DEL && event.is_null() {
        set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: not null, and valid by the caller's promise; the kernel's struct is packed.
    let wanted = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
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

/// Takes up again an interest that was deleted while its stream stayed on the link.
fn unpark(shared: &Arc<Shared>, fd: c_int, e: epoll_event) -> bool {
    let guard = table::get(fd);
    let Some(Entry::Stream(sock)) = guard.as_ref().and_then(|g| g.as_deref()) else { return false };
    let Some(stream) = &sock.stream else { return false };
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd).filter(|i| i.parked) else { return false };
    let r = stream.readiness();
    if r.contains(BOTH_KERNEL) || !i.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, stream)) {
        kernel_ctl(shared.epfd(), libc::EPOLL_CTL_DEL, fd, 0);
        state.interests.remove(&fd);
        shared.streams.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    i.parked = false;
    i.events = e.events;
    i.data = e.u64;
    i.disabled = false;
    i.pending = 0;
    if r.intersects(BOTH_KERNEL) {
        i.register(shared.epfd(), fd, r, true);
    }
    drop(state);
    shared.changed(fd, r, true);
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
    let on_kernel = stream.as_ref().is_none_or(|s| s.readiness().contains(BOTH_KERNEL));
    let kernel_events = if on_kernel { e.events } else { ANCHOR_WATCH };
    {
        // Before the kernel can report an event for it.
        let mut state = shared.state.lock();
        let rc = kernel_ctl(epfd, libc::EPOLL_CTL_ADD, fd, kernel_events);
        if rc != 0 {
            return rc;
        }
        let interest = Interest {
            stream: stream.clone(),
            watch: if on_kernel { Watch::Application } else { Watch::Anchor(ANCHOR_WATCH) },
            away: !on_kernel,
            travelled: !on_kernel,
            ..Interest::kernels(e.events, e.u64)
        };
        if state.interests.insert(fd, interest).is_some_and(|i| i.stream.is_some()) {
            shared.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }
    match entry.as_deref() {
        Some(Entry::Stream(sock)) => {
            {
                let mut watchers = sock.watchers.lock();
                watchers.retain(|r| !matches!(r, Registration::Epoll(s, f) if *f == fd && std::ptr::eq(s.as_ptr(), Arc::as_ptr(shared))));
                watchers.push(Registration::Epoll(Arc::downgrade(shared), fd));
            }
            if let Some(stream) = stream {
                shared.streams.fetch_add(1, Ordering::Relaxed);
                shared.ensure_kick();
                queues::settle_stream(&stream);
                shared.changed(fd, stream.readiness(), true);
            }
        }
        Some(Entry::Idle(listener)) => {
            listener.watchers.lock().push(Registration::Epoll(Arc::downgrade(shared), fd));
        }
        Some(Entry::Epoll(inner)) => {
            if let Some(i) = shared.state.lock().interests.get_mut(&fd) {
                i.is_instance = true;
            }
            inner.nest();
        }
        None => {}
    }
    0
}

fn modify(shared: &Arc<Shared>, epfd: c_int, fd: c_int, e: epoll_event) -> c_int {
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd) else {
        // The kernel knows best which error this is, or else more than this module: a registration of an open file that
        // was made by another process, say.
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
    let Some(stream) = i.stream.clone() else { return 0 };
    // A modified interest is armed anew: if it is ready now, that is an edge.
    let r = stream.readiness();
    if i.watch != Watch::Application && r.intersects(BOTH_KERNEL) {
        i.register(epfd, fd, r, true);
    }
    drop(state);
    if !r.contains(BOTH_KERNEL) || r.contains(Readiness::NOTICE) {
        shared.changed(fd, r, true);
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
            return 0;
        }
    }
    let rc = kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0);
    let saved = errno();
    if rc != 0 && saved == libc::EBADF {
        // A closed descriptor. If its open file lives on, the kernel goes on reporting it.
        return rc;
    }
    if shared.state.lock().interests.remove(&fd).is_some_and(|i| i.stream.is_some()) {
        shared.streams.fetch_sub(1, Ordering::Relaxed);
    }
    match table::get_full(fd).as_deref() {
        Some(Entry::Stream(sock)) => unwatch(&sock.watchers, shared, fd),
        Some(Entry::Idle(listener)) => unwatch(&listener.watchers, shared, fd),
        _ => {}
    }
    set_errno(saved);
    rc
}
