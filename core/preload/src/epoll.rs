//! epoll: the real instance, plus a ready list for streams that are on a link.
//!
//! Every descriptor is registered with the real instance too, with its number in the event data, so that the
//! application's data can be returned on whichever path an event comes. While a stream is on the kernel path its
//! registration there is exactly the application's, and the kernel does everything. While it is on a link the kernel
//! only watches the anchor (for records, and for its end), and this module keeps level, edge and one-shot semantics:
//!
//! * a stream enters the ready list when it may have become ready; it leaves when a check finds it not ready
//!   (level), or once reported (edge, one-shot). So a wait costs O(ready).
//! * `pending` collects edges since the last report; an edge-triggered interest is reported only for those.
//!
//! Its parts:
//!
//! * `interest`: one descriptor in an instance: the events to report, and the kernel's registration.
//! * `datagrams`: datagram sockets.
//! * `descriptor`: the interface of an instance to the table of descriptors ([`instance`](crate::instance)).
//! * `ctl`: `epoll_ctl`, which makes interests, changes and deletes them.
//! * `waiting`: `epoll_wait`, from the ready list to sleep.
//! * `subscriber`: the interface of an instance to the sockets that it watches ([`watchers`](crate::watchers)).
//! * `kick`: the means to wake threads that sleep in the kernel.
//! * `numbers`: the descriptors that name an instance, which come and go while threads wait on it.
//! * `observers`: the other users of an instance: `poll`, `select`, other instances, rings.
//! * `shared`: instances that other processes hold as well.
//! * `sleepers`: the threads that sleep on an instance, and how they are woken.
//!
//! Wake-ups are level-triggered state, never messages to one thread: the kick stays readable until a thread that holds
//! the lock finds no ready interest ([`Shared::lower`]). A thread that takes an edge of the completion channel polls
//! the queue afterwards, because the edge may have been meant for another thread.
//!
//! Lock order: a stream's lock may be held when an instance's is taken, never the other way round; readiness is
//! read from the stream's atomic word. No thread holds the locks of two instances.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use libc::epoll_event;
use netacc_device::{CompletionQueueId, Instant, KernelOperation};
use netacc_driver::{Endpoint, Readiness};
use parking_lot::{Mutex, MutexGuard};

use crate::os::{clock, real};
use crate::queues::{self, Activity, Owner, User};
use crate::runtime::{self, Runtime};

mod ctl;
mod datagrams;
mod descriptor;
mod interest;
mod kick;
mod numbers;
mod observers;
mod shared;
mod sleepers;
mod subscriber;
pub mod unknown;
mod waiting;

pub use ctl::{ctl, is_parked};
pub use waiting::wait;

use datagrams::Datagrams;
use interest::{events_of, Answer, Interest, Interests, Kernel, Watch, BOTH_KERNEL, OUTGOING};
use kick::Kick;
use numbers::Numbers;
use observers::Observers;
use shared::Holders;
use sleepers::Sleepers;

/// An epoll instance.
pub struct Epoll {
    shared: Arc<Shared>,
}

/// The part by which watchers reach it.
pub struct Shared {
    /// The descriptors that name the instance.
    numbers: Numbers,
    /// Wakes a sleeper of this instance; made when first needed.
    kick: Kick,
    /// The number of the completion queue of the instance's links, or [`NO_QUEUE`] or [`HELPERS_QUEUE`].
    cq: AtomicU32,
    sleepers: Sleepers,
    state: Mutex<State>,
    /// Interests that are streams, on either path.
    streams: AtomicU32,
    /// Those of them that are [away](Interest::away). Without any, the kernel does everything.
    away: AtomicU32,
    ready_len: AtomicU32,
    observers: Observers,
    datagrams: Datagrams,
    holders: Holders,
    /// Some interest has been for one shot.
    has_one_shots: AtomicBool,
    /// Calls of `epoll_wait` and its relatives.
    waits: AtomicU64,
    activity: Activity,
    /// When the kernel was last asked for all its events, in nanoseconds. Bytes that peers wrote to anchors before that
    /// time have been reported.
    kernel_seen: AtomicU64,
    /// The number of further waits that ask the kernel first, because it had events lately.
    kernel_hot: AtomicU32,
}

#[derive(Default)]
struct State {
    interests: Interests,
    ready: VecDeque<c_int>,
    /// The kick has been written, or is about to be, and has not been drained since.
    kicked: bool,
}

/// Why an interest is checked again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Bytes, an end or an error have arrived: an edge.
    Arrival,
    /// The readiness has changed.
    Readiness,
    /// The program has made or modified the interest. If it is ready, that is an edge.
    Interest,
}

/// No link of the instance has needed a completion queue yet.
const NO_QUEUE: u32 = u32::MAX;
/// The device had no completion queue for the instance, so its links report to the helper's.
const HELPERS_QUEUE: u32 = u32::MAX - 1;

/// In the upper half of the event data of all registrations that this module makes, with the descriptor in the lower
/// half. Event data without it belongs to a registration that was made without this library (by an io_uring, or a bare
/// system call), and goes to the program unchanged. Arbitrary; no address begins like this.
const OURS: u64 = 0x6e61_6363 << 32;
/// Event data of the kick and of the completion channel: no descriptor is negative.
const KICK: u64 = OURS | 0xffff_ffff;
const CHANNEL: u64 = OURS | 0xffff_fffe;

impl Shared {
    /// The kernel's instance, for calls that hold the lock: the lock keeps the number from being closed meanwhile.
    fn kernel(&self) -> Kernel {
        Kernel { epfd: self.numbers.any(), observed: self.observers.any() }
    }

    /// A stream of this instance changed. Called with the stream locked.
    #[inline]
    fn handle_change(&self, fd: c_int, now: Readiness, change: Change) {
        let mut state = self.state.lock();
        let State { interests, ready, .. } = &mut *state;
        let Some(i) = interests.get_mut(&fd) else { return };
        let gained = events_of(now) & !std::mem::replace(&mut i.known, events_of(now));
        if now.contains(BOTH_KERNEL) {
            if i.parked {
                kernel_ctl(self.kernel().epfd, libc::EPOLL_CTL_DEL, fd, 0);
                self.forget(interests.remove(&fd));
                return;
            }
            let away = self.returns(i);
            i.register(self.kernel(), fd, now, away);
            if !now.contains(Readiness::NOTICE) {
                return;
            }
        } else {
            if !std::mem::replace(&mut i.away, true) {
                self.away.fetch_add(1, Ordering::SeqCst);
            }
            i.travelled = true;
            // The kernel's next report changes it anyway. Observers see the kernel's instance before that, and must not
            // see a record on the anchor.
            let kernel = self.kernel();
            if i.watch != Watch::Application || kernel.observed {
                i.register(kernel, fd, now, false);
            }
        }
        i.add_edges(now, change != Change::Readiness);
        let wanted = events_of(now) & i.requested() != 0 || now.intersects(BOTH_KERNEL);
        if i.disabled || i.parked || !wanted {
            return;
        }
        if !std::mem::replace(&mut i.queued, true) {
            i.queued_after = kernel_news().begun;
            ready.push_back(fd);
            self.ready_len.store(ready.len() as u32, Ordering::SeqCst);
        } else {
            let is_edge = match change {
                // The kernel looks at an interest that is modified, and tells observers if it is ready.
                Change::Interest => true,
                Change::Arrival if i.has_arrived(now) => true,
                _ => gained & i.requested() & OUTGOING != 0,
            };
            if !is_edge || !self.observers.include_kernel() {
                return;
            }
        }
        // The kernel reports each edge to the watchers of an instance, also if the interest is on its list already.
        let kicks = self.sleepers.any() || self.observers.include_kernel();
        state.kicked |= kicks;
        if kicks {
            self.raise_kick(state);
        } else {
            drop(state);
        }
        self.observers.wake();
    }

    /// The stream of the interest is the kernel's again. Returns whether it was away.
    fn returns(&self, i: &mut Interest) -> bool {
        let away = std::mem::take(&mut i.away);
        if away {
            self.away.fetch_sub(1, Ordering::Relaxed);
        }
        away
    }

    /// An interest, if there was one, is not in the instance any more. Called with the instance locked.
    fn forget(&self, interest: Option<Interest>) {
        let Some(mut interest) = interest else { return };
        self.returns(&mut interest);
        if interest.stream.is_some() {
            self.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// All interests are the kernel's alone from now on.
    fn forget_streams(&self) {
        self.streams.store(0, Ordering::Relaxed);
        self.away.store(0, Ordering::Relaxed);
    }

    /// Raises the kick. Gives up the lock before, which the woken thread takes, if the kick has a descriptor of its own.
    #[cold]
    fn raise_kick(&self, locked: MutexGuard<'_, State>) {
        let epfd = self.kernel().epfd;
        let locked = self.kick.is_borrowed().then_some(locked);
        self.kick.raise(epfd);
        drop(locked);
    }

    /// Makes the kick agree with `state`, which has changed: readable only while a wait would find something. A kick
    /// that another thread is about to write causes one needless wake-up, and [`Shared::take_kick`] drains it.
    fn lower(&self, state: &mut State) {
        if !state.ready.is_empty() || self.sleepers.must_arm(self.own_queue()) {
            let kicks = self.sleepers.any() || self.observers.include_kernel();
            if kicks && !std::mem::replace(&mut state.kicked, true) {
                self.kick.raise(self.kernel().epfd);
            }
        } else if std::mem::take(&mut state.kicked) {
            self.kick.lower(self.kernel().epfd);
        }
    }

    /// The kernel may have found the kick readable. Another thread may have drained it since, so that is no proof that it is
    /// raised: as long as a wait would find something, `kicked` stays as it is.
    fn take_kick(&self) {
        let mut state = self.state.lock();
        let is_over = state.ready.is_empty() && !self.sleepers.must_arm(self.own_queue());
        state.kicked |= is_over;
        self.lower(&mut state);
    }

    /// Whether a wait would find something on the ready list. Removes interests that are not ready any more, as the
    /// kernel does when it is asked.
    fn is_ready(&self) -> bool {
        if self.ready_len.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut state = self.state.lock();
        let State { interests, ready, .. } = &mut *state;
        while let Some(fd) = ready.front() {
            let answer = interests.get_mut(fd).map_or(Answer::Nothing, |i| i.check(*fd));
            if answer != Answer::Nothing {
                break;
            }
            ready.pop_front();
        }
        self.ready_len.store(ready.len() as u32, Ordering::SeqCst);
        self.lower(&mut state);
        !state.ready.is_empty()
    }

    /// The completion queue of the instance's links: its own, or the helper's if the device has no more, or if no
    /// thread can be relied on to wait on the instance. Call it without holding a lock.
    fn queue_of_links(self: &Arc<Self>, endpoint: &Endpoint) -> CompletionQueueId {
        let helpers = endpoint.control_cq();
        if self.observers.include_kernel() {
            return helpers;
        }
        if let Some(own) = self.own_queue() {
            return own;
        }
        if runtime::get().is_none() {
            return helpers;
        }
        let before = self.cq.load(Ordering::Acquire);
        let taken = if before == NO_QUEUE { queues::take(endpoint) } else { queues::take_free(endpoint) };
        self.assign(endpoint, taken)
    }

    /// Gives the instance, which has no queue of its own, a queue. `None`: the helper polls its links.
    fn assign(self: &Arc<Self>, endpoint: &Endpoint, queue: Option<CompletionQueueId>) -> CompletionQueueId {
        let helpers = endpoint.control_cq();
        let channel = queue.and_then(|cq| endpoint.device().channel_fd(cq));
        // Without a descriptor for a channel it could not wake the threads that sleep on the instance.
        let (queue, unused) = if channel.is_some() { (queue, None) } else { (None, queue) };
        unused.into_iter().for_each(queues::put_back);
        let new = queue.map_or(HELPERS_QUEUE, |cq| cq.0);
        let unserved = |cq: u32| matches!(cq, NO_QUEUE | HELPERS_QUEUE).then_some(new);
        if self.cq.fetch_update(Ordering::SeqCst, Ordering::Acquire, unserved).is_err() {
            // Another thread was quicker.
            if let Some(cq) = queue {
                queues::put_back(cq);
            }
            return self.own_queue().unwrap_or(helpers);
        }
        let Some(own) = queue else { return helpers };
        queues::belongs_to(own, Owner::of_instance(self));
        let mut state = self.state.lock();
        if let Some(channel) = channel {
            // Edge-triggered, so that it need not be drained. If a peer has rung it before, adding it reports that.
            let events = libc::EPOLLIN | libc::EPOLLET;
            internal_ctl(self.kernel().epfd, libc::EPOLL_CTL_ADD, channel, events, CHANNEL);
        }
        self.make_kick(&state);
        // Threads that sleep already have not armed it.
        self.lower(&mut state);
        drop(state);
        self.observers.wake();
        own
    }

    /// Handles completions of the instance's links.
    #[inline]
    fn poll(&self, endpoint: &Endpoint) {
        if let Some(own) = self.own_queue() {
            endpoint.poll(own);
        }
        if self.observers.include_kernel() || self.cq.load(Ordering::Relaxed) == HELPERS_QUEUE {
            endpoint.poll(endpoint.control_cq());
        }
    }

    /// A thread is about to sleep on the instance. If the instance has no queue, and threads often sleep on it, it gets
    /// the queue of an instance that has been idle all the while.
    fn queue_for_sleep(self: &Arc<Self>, endpoint: &Endpoint) {
        let own = self.own_queue().is_some();
        let Some(since) = self.activity.sleeps(own) else { return };
        if self.observers.include_kernel() || self.kick.is_borrowed() {
            return;
        }
        if let Some(queue) = queues::take_over(endpoint, since) {
            self.assign(endpoint, Some(queue));
            self.reassign_streams();
        }
    }

    fn reassign_streams(&self) {
        let streams: Vec<_> = self.state.lock().interests.iter().filter_map(|(_, i)| i.stream.clone()).collect();
        streams.iter().for_each(queues::reassign_stream);
    }

    /// The queue whose channel wakes the instance's sleepers. The helper wakes the sleepers of an instance without a
    /// queue.
    #[inline]
    fn own_queue(&self) -> Option<CompletionQueueId> {
        match self.cq.load(Ordering::SeqCst) {
            NO_QUEUE | HELPERS_QUEUE => None,
            own => Some(CompletionQueueId(own)),
        }
    }

    fn ensure_kick(&self) {
        if !self.kick.is_made() {
            self.make_kick(&self.state.lock());
        }
    }

    /// Makes the kick, if there is none. It is raised if it was to be raised before it was there.
    fn make_kick(&self, state: &State) {
        let epfd = self.kernel().epfd;
        if self.kick.make(epfd) && state.kicked {
            self.kick.raise(epfd);
        }
    }
}

impl User for Shared {
    fn last_sleep(&self) -> Instant {
        self.activity.last_sleep()
    }

    /// From now on the helper polls the instance's links, which still exist.
    fn surrender(&self, endpoint: &Endpoint, queue: CompletionQueueId) -> bool {
        if self.cq.compare_exchange(queue.0, HELPERS_QUEUE, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        let mut state = self.state.lock();
        if let Some(channel) = endpoint.device().channel_fd(queue) {
            deregister(self.kernel().epfd, channel);
        }
        // Sleeping threads have armed the queue, and must wake and sleep again without it.
        if self.sleepers.any() && !std::mem::replace(&mut state.kicked, true) {
            self.kick.raise(self.kernel().epfd);
        }
        true
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(rt) = runtime::get() else { return };
        rt.ended_epoll_waits.fetch_add(*self.waits.get_mut(), Ordering::Relaxed);
        // Completion queues are few: give it back to the pool of the runtime.
        if *self.cq.get_mut() != NO_QUEUE {
            queues::give_back(self.own_queue());
        }
    }
}

/// The device's information on peers' operations in the kernel.
fn kernel_news() -> KernelOperation {
    let endpoint = runtime::get().and_then(Runtime::endpoint);
    endpoint.map_or_else(KernelOperation::default, |endpoint| endpoint.device().kernel_news())
}

fn kernel_ctl(epfd: c_int, op: c_int, fd: c_int, events: u32) -> c_int {
    let mut event = epoll_event { events, u64: OURS | u64::from(fd as u32) };
    // SAFETY: the event is readable.
    unsafe { real::epoll_ctl(epfd, op, fd, &mut event) }
}

/// Registers a descriptor of the library, or changes its registration. Whether that succeeded.
fn internal_ctl(epfd: c_int, op: c_int, fd: c_int, events: c_int, data: u64) -> bool {
    let mut event = epoll_event { events: events as u32, u64: data };
    // SAFETY: the event is readable.
    unsafe { real::epoll_ctl(epfd, op, fd, &mut event) == 0 }
}

fn deregister(epfd: c_int, fd: c_int) {
    // SAFETY: no event is needed.
    unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
}

impl Epoll {
    /// The instance that the kernel has just made, as `epfd`.
    pub fn new(epfd: c_int) -> Epoll {
        Epoll::with_holders(epfd, Holders::here())
    }

    fn with_holders(epfd: c_int, holders: Holders) -> Epoll {
        Epoll {
            shared: Arc::new(Shared {
                numbers: Numbers::new(epfd),
                kick: Kick::none(),
                cq: AtomicU32::new(NO_QUEUE),
                sleepers: Sleepers::default(),
                state: Mutex::default(),
                streams: AtomicU32::new(0),
                away: AtomicU32::new(0),
                ready_len: AtomicU32::new(0),
                observers: Observers::default(),
                datagrams: Datagrams::default(),
                holders,
                has_one_shots: AtomicBool::new(false),
                waits: AtomicU64::new(0),
                activity: Activity::default(),
                kernel_seen: AtomicU64::new(clock::now().as_nanos()),
                kernel_hot: AtomicU32::new(0),
            }),
        }
    }

    /// Whether any interest is a stream.
    pub fn has_streams(&self) -> bool {
        self.shared.streams.load(Ordering::Relaxed) > 0
    }

    /// Whether the kernel's events are all that a wait has to expect now. A thread that sleeps for them is woken by the kick
    /// when that changes.
    fn is_kernels(&self) -> bool {
        let shared = &self.shared;
        let none_away = || shared.away.load(Ordering::SeqCst) == 0 && shared.ready_len.load(Ordering::SeqCst) == 0;
        !self.has_streams() || none_away() && shared.kick.is_made()
    }
}

#[cfg(test)]
mod tests;
