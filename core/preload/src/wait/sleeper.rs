//! The handle of a sleeping thread for other threads, and the sleep of a thread that waits for one stream.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use netacc_device::{CompletionQueueId, Wait};
use netacc_driver::{Endpoint, LinkCell, LinkSleep, StreamCell};

use super::slots::{self, Slot};
use super::{left, Limit, Waited};
use crate::os::asleep::Asleep;
use crate::os::errno::{errno, set_errno};
use crate::os::own;
use crate::os::uses::Use;
use crate::queues;
use crate::runtime::Runtime;
use crate::socket::Socket;
use crate::switching::wake_sleepers;
use crate::trace;
use crate::wait::block_in_poll;
use crate::watchers::{self, Registration, Sleeper};

/// A thread asleep, registered with the sockets that it waits for.
pub struct Waiter {
    asleep: AtomicBool,
    place: Place,
}

/// The place where a thread sleeps.
enum Place {
    /// On a slot's eventfd, and on the channel of its completion queue if it has one.
    Slot(Arc<Slot>),
    /// On a slot's eventfd alone.
    Eventfd(c_int),
    /// On the queue pair of a stream.
    QueuePair(Arc<StreamCell>),
}

impl Waiter {
    /// The thread that sleeps at `slot`.
    pub fn at_slot(slot: &Arc<Slot>) -> Arc<Waiter> {
        Waiter::new(Place::Slot(slot.clone()))
    }

    /// The thread that sleeps on the queue pair of `cell`.
    pub fn on_queue_pair(cell: &Arc<StreamCell>) -> Arc<Waiter> {
        Waiter::new(Place::QueuePair(cell.clone()))
    }

    fn new(place: Place) -> Arc<Waiter> {
        Arc::new(Waiter { asleep: AtomicBool::new(true), place })
    }

    /// The thread is up. Returns whether another thread has woken it by its eventfd.
    pub fn get_up(&self) -> bool {
        !self.asleep.swap(false, Ordering::SeqCst) && !matches!(self.place, Place::QueuePair(_))
    }
}

impl Sleeper for Waiter {
    fn wake(&self) {
        if !self.asleep.load(Ordering::SeqCst) {
            return;
        }
        let _use = Use::begin();
        if self.asleep.swap(false, Ordering::SeqCst) {
            match &self.place {
                Place::Slot(slot) => own::kick(slot.eventfd()),
                Place::Eventfd(eventfd) => own::kick(*eventfd),
                Place::QueuePair(cell) => wake_sleepers(cell),
            }
        }
    }

    /// On a queue pair it is woken wherever the link is.
    fn queue(&self) -> Option<Option<CompletionQueueId>> {
        match &self.place {
            Place::Slot(slot) => Some(slot.queue()),
            Place::Eventfd(_) => Some(None),
            Place::QueuePair(_) => None,
        }
    }
}

/// A waiter registered with one socket. Drop removes the registration, also if the thread is cancelled while it sleeps.
pub(super) struct Registered<'a> {
    sock: &'a Socket,
    waiter: Arc<Waiter>,
}

impl<'a> Registered<'a> {
    /// Registers `waiter` with `sock`.
    pub(super) fn new(sock: &'a Socket, waiter: Arc<Waiter>) -> Registered<'a> {
        sock.watchers.lock().push(Registration::Sleeper(waiter.clone()));
        Registered { sock, waiter }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        watchers::remove_sleeper(&self.sock.watchers, &self.waiter);
    }
}

/// A thread's wait for one stream that is on a link.
pub(super) struct StreamWait<'a> {
    pub(super) sock: &'a Socket,
    pub(super) cell: &'a Arc<StreamCell>,
    pub(super) link: &'a Arc<LinkCell>,
    pub(super) limit: Limit,
}

impl StreamWait<'_> {
    /// Sleeps until the stream may have changed, which `ready` checks. The caller has just polled it.
    pub(super) fn sleep(&self, rt: &Runtime, endpoint: &Endpoint, ready: impl Fn() -> bool) -> Waited {
        let asleep = self.cell.sleeps();
        let LinkSleep { counted: on_link, others } = self.link.sleeps();
        let alone = self.link.streams() <= 1;
        let waited = if !alone && is_for_several(endpoint, self.link, others) {
            drop(on_link);
            self.sleep_dispatched(rt, endpoint, &ready)
        } else {
            if alone && self.link.cq() == endpoint.control_cq() {
                // The helper need not wake up for this thread's stream.
                queues::reassign(endpoint, self.link, self.cell);
            }
            let waited = self.sleep_on_queue_pair(endpoint, &ready);
            drop(on_link);
            waited
        };
        drop(asleep);
        endpoint.poll_link(self.link);
        if waited == Waited::Again && self.link.streams() > 1 && !self.link.is_dispatched() && !ready() {
            // Woken for another stream, whose thread perhaps never sleeps.
            queues::dispatch(endpoint, self.link);
        }
        match waited {
            Waited::TimedOut if ready() => Waited::Again,
            waited => waited,
        }
    }

    fn sleep_on_queue_pair(&self, endpoint: &Endpoint, ready: &impl Fn() -> bool) -> Waited {
        let (device, qp) = (endpoint.device(), self.link.qp());
        self.cell.set_sleep_qp(qp);
        let seen = device.qp_sequence(qp);
        endpoint.poll_link(self.link);
        if ready() || self.link.is_dead() {
            return Waited::Again;
        }
        let _sleeps = trace::sleeps();
        let asleep = Asleep::begin();
        if asleep.is_interrupted(self.limit.restarts()) {
            return Waited::Interrupted;
        }
        match device.wait_qp(qp, seen, left(self.limit)) {
            Wait::Interrupted => Waited::Interrupted,
            Wait::TimedOut => Waited::TimedOut,
            Wait::Woken => Waited::Again,
        }
    }

    /// Sleeps until the helper, which polls the link, wakes the thread for its stream.
    fn sleep_dispatched(&self, _rt: &Runtime, endpoint: &Endpoint, ready: &impl Fn() -> bool) -> Waited {
        let Some(slot) = slots::of_process().take(endpoint) else {
            // Without a descriptor it is woken for others' messages as well.
            return self.sleep_on_queue_pair(endpoint, ready);
        };
        let waiter = Waiter::new(Place::Eventfd(slot.eventfd()));
        let seated = Seated { slot, on: Registered::new(self.sock, waiter) };
        queues::dispatch(endpoint, self.link);
        endpoint.poll_link(self.link);
        if ready() || self.link.is_dead() {
            return Waited::Again;
        }
        block_in_poll(seated.slot.eventfd(), libc::POLLIN, self.limit)
    }
}

/// Whether a thread that sleeps on the queue pair would be woken for other threads' streams.
fn is_for_several(endpoint: &Endpoint, link: &LinkCell, others: bool) -> bool {
    others || link.is_dispatched() || link.cq() != endpoint.default_cq() && link.cq() != endpoint.control_cq()
}

/// A thread that sleeps at a slot for one socket. Drop ends that, also if the thread is cancelled while it sleeps.
struct Seated<'a> {
    slot: Arc<Slot>,
    on: Registered<'a>,
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        let saved = errno();
        self.slot.get_up(|| self.on.waiter.get_up());
        set_errno(saved);
    }
}
