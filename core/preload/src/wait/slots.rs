//! Places to sleep: what a thread in `poll` or `select` is woken by.
//!
//! A slot has an eventfd, which wakes its thread for what others in this process have found, and a completion queue if the
//! device has one to spare, so that peers wake the thread without the helper. A thread takes a slot when it goes to sleep
//! and gives it back when it is up; it takes the same one again if that is free. So there are as many slots as threads
//! have ever slept at once, whatever number of threads comes and goes.
//!
//! Invariant: the links on a slot's queue are those of the thread that had the slot last, and whoever takes over the slot
//! moves the others away first. A sleeper is then woken for its own connections alone.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;

use netacc_device::CompletionQueueId;
use netacc_driver::Endpoint;
use parking_lot::Mutex;

use crate::queues;
use crate::runtime::{self, Runtime};

/// A place for one sleeping thread.
pub struct Slot {
    eventfd: c_int,
    /// The number of the thread that sleeps here; 0 for none.
    taken_by: AtomicUsize,
    /// The number of the thread that had it last. Changed only by who has taken it.
    user: AtomicUsize,
    /// The completion queue, plus one; 0 for none. Changed only by who has taken it.
    queue: AtomicU32,
}

/// The slots of a process.
#[derive(Default)]
pub struct Slots(Mutex<Vec<Arc<Slot>>>);

thread_local! {
    /// The thread's number, and the index of the slot that it had last.
    static THREAD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Numbers of threads: never used again, unlike the system's.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let (number, slot) = THREAD.get();
    if number != 0 {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    THREAD.set((number, slot));
    number
}

impl Slots {
    /// A slot for the calling thread, until it [gives it back](Slot::give_back). `None` without a descriptor for it.
    pub fn take(&self, rt: &Runtime, endpoint: &Endpoint) -> Option<Arc<Slot>> {
        let slot = self.choose()?;
        let before = slot.user.swap(thread_number(), Ordering::Relaxed);
        if before != thread_number() {
            if let Some(queue) = slot.queue() {
                queues::clear(rt, endpoint, queue);
            }
        }
        Some(slot)
    }

    fn choose(&self) -> Option<Arc<Slot>> {
        let mut slots = self.0.lock();
        let (number, last) = (thread_number(), THREAD.get().1);
        let at = match slots.get(last) {
            Some(slot) if slot.user.load(Ordering::Relaxed) == number && slot.take(number) => Some(last),
            _ => slots.iter().position(|slot| slot.take(number)),
        };
        let at = match at {
            Some(at) => at,
            None => {
                slots.push(Arc::new(Slot {
                    eventfd: runtime::new_eventfd()?,
                    taken_by: AtomicUsize::new(number),
                    user: AtomicUsize::new(number),
                    queue: AtomicU32::new(0),
                }));
                slots.len() - 1
            }
        };
        THREAD.set((number, at));
        Some(slots[at].clone())
    }

    /// The queue of a slot in which nobody sleeps, for somebody else.
    pub fn spare_queue(&self, rt: &Runtime, endpoint: &Endpoint) -> Option<CompletionQueueId> {
        let number = thread_number();
        let slot = self.0.lock().iter().find(|slot| slot.queue().is_some() && slot.take(number)).cloned()?;
        let queue = slot.queue.swap(0, Ordering::Relaxed).checked_sub(1).map(CompletionQueueId);
        slot.give_back();
        queues::clear(rt, endpoint, queue?);
        queue
    }
}

impl Slot {
    fn take(&self, number: usize) -> bool {
        self.taken_by.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Nobody sleeps here any more.
    pub fn give_back(&self) {
        self.taken_by.store(0, Ordering::SeqCst);
    }

    /// What wakes the thread that sleeps here.
    pub fn eventfd(&self) -> c_int {
        self.eventfd
    }

    /// Its completion queue, if it has one.
    pub fn queue(&self) -> Option<CompletionQueueId> {
        self.queue.load(Ordering::Relaxed).checked_sub(1).map(CompletionQueueId)
    }

    /// The same, with one that is free if it has none yet.
    pub fn ensure_queue(&self, rt: &Runtime, endpoint: &Endpoint) -> Option<CompletionQueueId> {
        let queue = self.queue().or_else(|| queues::take_free(rt, endpoint))?;
        self.queue.store(queue.0 + 1, Ordering::Relaxed);
        Some(queue)
    }
}
