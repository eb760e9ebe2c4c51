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
//! Its parts:
//!
//! * `interest`: one descriptor in an instance: what is reported of it, and what the kernel watches.
//! * `ctl`: `epoll_ctl`, which makes interests, changes and deletes them.
//! * `waiting`: `epoll_wait`, from the ready list to sleep.
//! * `watchers`: what a socket knows of those that watch it.
//! * `closed`: descriptors that are closed while they are watched.
//!
//! Lock order: a stream's lock may be held when an instance's is taken, never the other way round; readiness is
//! read from the stream's atomic word.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use libc::epoll_event;
use netacc_device::CompletionQueueId;
use netacc_driver::{Endpoint, Readiness};
use parking_lot::Mutex;

use crate::runtime;
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::wait::Waiter;
use crate::{queues, real};

mod closed;
mod ctl;
mod interest;
mod waiting;
mod watchers;

pub use closed::{come_back, end_outliving, forget_fd, leave_to_kernel, outlive, unwatch};
pub use ctl::{ctl, is_parked};
pub use waiting::{anchor_event, wait};
pub use watchers::{carry_over, release, Registration};

use interest::{events_of, Interest, Interests, Watch, BOTH_KERNEL, FLAGS};
use watchers::attach;

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

/// In the upper half of the event data of all registrations that this module makes, with the descriptor in the lower. What
/// comes without is of a registration that was made where nothing is interposed (an io_uring, a bare system call), and is
/// the program's as it is. Arbitrary; no address begins so.
const OURS: u64 = 0x6e61_6363 << 32;
/// Event data of the kick eventfd and of the completion channel: no descriptor is negative.
const KICK: u64 = OURS | 0xffff_ffff;
const CHANNEL: u64 = OURS | 0xffff_fffe;

/// `epoll_create1`.
pub fn create1(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { real::epoll_create1(flags) };
    if fd >= 0 && !runtime::is_inside() {
        table::insert(fd, Arc::new(Entry::Epoll(Epoll::new(fd))));
    }
    fd
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
    pub fn nest(&self) {
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
