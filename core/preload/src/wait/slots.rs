//! Places to sleep: the descriptors that wake a thread in `poll` or `select`.
//!
//! A slot has an eventfd, which wakes its thread for events that other threads in this process have found, and a
//! completion queue if the device has one to spare, so that peers wake the thread without the helper. A thread takes a
//! slot when it goes to sleep and gives it back when it is up; it takes the same one again if that is free. So there
//! are as many slots as threads have ever slept at once, however many threads start and end.
//!
//! Invariant: the links on a slot's queue are those of the thread that had the slot last, and a thread that takes over
//! the slot first moves the others away. A sleeper is then woken for its own connections alone.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;

use netacc_device::{CompletionQueueId, Instant};
use netacc_driver::Endpoint;
use parking_lot::Mutex;

use crate::os::own;
use crate::os::per_process::PerProcess;
use crate::os::uses::{self, Use};
use crate::queues::{self, Activity, Owner, User};

/// A place for one sleeping thread.
pub struct Slot {
    eventfd: c_int,
    /// The number of the thread that sleeps here; 0 for none.
    taken_by: AtomicUsize,
    /// The number of the thread that had it last. Changed only by the thread that has taken it.
    user: AtomicUsize,
    /// The completion queue, plus one; 0 for none.
    queue: AtomicU32,
    /// Another watcher has got the queue: the thread that sleeps here must sleep without it.
    surrendered: AtomicBool,
    activity: Activity,
}

static SLOTS: PerProcess<Slots> = PerProcess::new();

/// The slots of this process.
pub(super) fn of_process() -> &'static Slots {
    SLOTS.get_or_make(Slots::default)
}

/// In a forked child: the slots are its parent's.
pub(super) fn after_fork_child() {
    SLOTS.forget();
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
    /// A slot for the calling thread, until it [is up](Slot::get_up). `None` without a descriptor for it.
    pub fn take(&self, endpoint: &Endpoint) -> Option<Arc<Slot>> {
        let slot = self.choose()?;
        let before = slot.user.swap(thread_number(), Ordering::Relaxed);
        if before != thread_number() {
            if let Some(queue) = slot.queue() {
                queues::clear(endpoint, queue);
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
            None if uses::is_over() => return None,
            None => {
                slots.push(Arc::new(Slot {
                    eventfd: own::new_eventfd()?,
                    taken_by: AtomicUsize::new(number),
                    user: AtomicUsize::new(number),
                    queue: AtomicU32::new(0),
                    surrendered: AtomicBool::new(false),
                    activity: Activity::default(),
                }));
                slots.len() - 1
            }
        };
        THREAD.set((number, at));
        Some(slots[at].clone())
    }

    /// Closes the slots in which no thread sleeps, because the program needs descriptors. Returns whether there were
    /// any. They keep their completion queues until another watcher takes these over.
    pub fn give_back(&self) -> bool {
        /// No thread has this number.
        const NOBODY: usize = usize::MAX;
        let mut closed = Vec::new();
        self.0.lock().retain(|slot| {
            let free = slot.take(NOBODY);
            if free {
                closed.push(slot.clone());
            }
            !free
        });
        for slot in &closed {
            slot.taken_by.store(0, Ordering::SeqCst);
        }
        // Another thread may be about to wake the thread that slept there last.
        let unused = !closed.is_empty() && uses::await_uses();
        if unused {
            closed.iter().for_each(|slot| own::discard(slot.eventfd));
        }
        unused
    }
}

impl Slot {
    fn take(&self, number: usize) -> bool {
        self.taken_by.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The descriptor that wakes the thread that sleeps here.
    pub fn eventfd(&self) -> c_int {
        self.eventfd
    }

    /// Its completion queue, if it has one.
    pub fn queue(&self) -> Option<CompletionQueueId> {
        self.queue.load(Ordering::Relaxed).checked_sub(1).map(CompletionQueueId)
    }

    /// The thread that has taken the slot goes to sleep, and waits for links. Returns its queue, which it gets now if
    /// one is free or belongs to a watcher that has slept for longer.
    pub fn queue_for_sleep(self: &Arc<Self>, endpoint: &Endpoint) -> Option<CompletionQueueId> {
        let own = self.queue();
        let wanted = self.activity.sleeps(own.is_some());
        if own.is_some() {
            return own;
        }
        let queue = queues::take_free(endpoint).or_else(|| queues::take_over(endpoint, wanted?))?;
        self.queue.store(queue.0 + 1, Ordering::SeqCst);
        queues::belongs_to(queue, Owner::Slot(self.clone()));
        Some(queue)
    }

    /// The thread that slept here is up. `was_woken` ends its sleep for other threads, and returns whether one of them
    /// has woken it here.
    pub fn get_up(&self, was_woken: impl FnOnce() -> bool) {
        if self.surrendered.swap(false, Ordering::SeqCst) | was_woken() {
            own::drain(self.eventfd);
        }
        self.taken_by.store(0, Ordering::SeqCst);
    }
}

impl User for Slot {
    fn last_sleep(&self) -> Instant {
        self.activity.last_sleep()
    }

    fn surrender(&self, _endpoint: &Endpoint, queue: CompletionQueueId) -> bool {
        let had = self.queue.compare_exchange(queue.0 + 1, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let _use = Use::begin();
        if had && self.taken_by.load(Ordering::SeqCst) != 0 {
            self.surrendered.store(true, Ordering::SeqCst);
            own::kick(self.eventfd);
        }
        had
    }
}
