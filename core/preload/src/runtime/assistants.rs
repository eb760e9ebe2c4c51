//! The interface of other threads to the assistants: the helper threads after the first (`NACC_SOR_IO_THREADS` above 1).
//!
//! Each assistant has its share of the connections, by their numbers, with a poller and a wake-up descriptor of its own. It finds the
//! peers of connections that are to be promoted, watches anchors, and copies parts of large reads and writes. The first helper
//! thread alone has the links and their queue.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use netacc_driver::StreamCell;
use parking_lot::Mutex;

use super::poller::Poller;

/// The work that a helper thread has done, counted.
#[derive(Default)]
pub(crate) struct Done {
    /// Connections whose peers it has found, or tried to find, for a promotion. Those of crowds are the first thread's.
    pub(crate) promotions: AtomicU64,
    /// Events of anchors.
    pub(crate) anchor_events: AtomicU64,
    /// Bytes of large reads and writes that it has copied.
    pub(crate) copied_bytes: AtomicU64,
}

impl Done {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// By their names in `netacc_ss`.
    fn named(&self) -> [(&'static str, &AtomicU64); 3] {
        [("promotions", &self.promotions), ("anchor_events", &self.anchor_events), ("copied_bytes", &self.copied_bytes)]
    }

    /// For `netacc_ss`, of the helper thread with this number.
    pub(crate) fn counted(&self, number: usize) -> impl Iterator<Item = (String, u64)> + '_ {
        let named = self.named().into_iter();
        named.map(move |(name, count)| (format!("helper_{number}_{name}"), count.load(Ordering::Relaxed)))
    }
}

/// One of them. No two share a cache line.
#[repr(align(128))]
pub(crate) struct Assistant {
    pub(crate) poller: Poller,
    /// It sleeps, or is about to: the thread that swaps this to false must kick it.
    asleep: AtomicBool,
    /// It was kicked because there is something to copy.
    copies_wanted: AtomicBool,
    /// As [`Runtime::promotions`](super::Runtime::promotions), for its share.
    pub(crate) promotions: Mutex<Vec<Arc<StreamCell>>>,
    /// As [`Runtime::unrequested`](super::Runtime::unrequested).
    pub(crate) unrequested: Mutex<Vec<Arc<StreamCell>>>,
    pub(crate) done: Done,
    /// The thread is to end.
    pub(crate) ends: AtomicBool,
    pub(crate) thread: Mutex<Option<libc::pthread_t>>,
}

impl Assistant {
    fn new() -> Option<Assistant> {
        Some(Assistant {
            poller: Poller::complete()?,
            asleep: AtomicBool::new(false),
            copies_wanted: AtomicBool::new(false),
            promotions: Mutex::default(),
            unrequested: Mutex::default(),
            done: Done::default(),
            ends: AtomicBool::new(false),
            thread: Mutex::default(),
        })
    }

    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.poller.kick();
        }
    }

    /// By the assistant: from now on other threads kick it.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// By the assistant: it is awake.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// By the assistant: whether it was kicked for something to copy, since the last call.
    pub(crate) fn take_copies_wanted(&self) -> bool {
        self.copies_wanted.swap(false, Ordering::SeqCst)
    }

    /// Whether connections of its share wait for it.
    pub(crate) fn has_requests(&self) -> bool {
        !self.promotions.lock().is_empty() || !self.unrequested.lock().is_empty()
    }
}

/// All assistants.
#[derive(Default)]
pub(crate) struct Assistants {
    list: Vec<Assistant>,
    /// Those that run. None, before they are started and once they are to end: the first helper thread has all connections.
    running: AtomicUsize,
    pacing: Pacing,
}

impl Assistants {
    /// So many, or fewer, if there are no descriptors for more.
    pub(crate) fn new(count: usize) -> Assistants {
        Assistants { list: (0..count).map_while(|_| Assistant::new()).collect(), ..Assistants::default() }
    }

    pub(crate) fn list(&self) -> &[Assistant] {
        &self.list
    }

    /// The assistant that has this connection in its share; `None`: the first helper thread has it.
    pub(crate) fn of(&self, cell: &StreamCell) -> Option<&Assistant> {
        share(cell.number(), self.running()).map(|index| &self.list[index])
    }

    /// So many threads have been started, in the order of the list.
    pub(crate) fn begin(&self, running: usize) {
        self.running.store(running, Ordering::SeqCst);
    }

    /// Those that run.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Ends the threads, and waits for their ends. The descriptors stay.
    pub(crate) fn end(&self) {
        self.running.store(0, Ordering::SeqCst);
        for assistant in &self.list {
            assistant.ends.store(true, Ordering::SeqCst);
            assistant.poller.kick();
        }
        for assistant in &self.list {
            if let Some(thread) = assistant.thread.lock().take() {
                // SAFETY: started by the library, and waited for once.
                unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
            }
        }
    }

    /// Closes their descriptors, after the threads have ended.
    pub(crate) fn give_back(&self) {
        for assistant in &self.list {
            assistant.poller.give_back();
        }
    }

    /// A connection is to be promoted. `false`: not by an assistant.
    pub(crate) fn request_promotion(&self, cell: &Arc<StreamCell>) -> bool {
        let Some(assistant) = self.of(cell) else { return false };
        assistant.promotions.lock().push(cell.clone());
        assistant.wake();
        true
    }

    /// The reason why a connection is not promoted is to be found. `false`: not by an assistant.
    pub(crate) fn request_reason(&self, cell: &Arc<StreamCell>) -> bool {
        let Some(assistant) = self.of(cell) else { return false };
        assistant.unrequested.lock().push(cell.clone());
        assistant.wake();
        true
    }

    /// There is something to copy: wakes one of those that sleep, if that has not been in vain lately.
    pub(crate) fn wake_for_copies(&self) {
        let running = &self.list[..self.running()];
        let asleep = running.iter().find(|assistant| assistant.asleep.load(Ordering::SeqCst));
        if let Some(assistant) = asleep.filter(|_| self.pacing.permits()) {
            assistant.copies_wanted.store(true, Ordering::SeqCst);
            assistant.wake();
        }
    }

    /// An assistant that was woken for copies has found something to copy, or nothing.
    pub(crate) fn record_wake(&self, was_useful: bool) {
        self.pacing.record(was_useful);
    }
}

/// The assistant that has a connection in its share, of so many; `None`: the first helper thread.
fn share(number: u32, assistants: usize) -> Option<usize> {
    (number as usize % (assistants + 1)).checked_sub(1)
}

/// Decides how often an assistant is woken for something to copy. A wake-up costs the writer a system call, and on a busy
/// machine the assistant comes when all is copied.
#[derive(Default)]
struct Pacing {
    /// Copies for which nobody is woken, after a wake-up in vain.
    penalty: AtomicU32,
    /// How many of them are left.
    skip: AtomicU32,
}

/// The longest penalty. Arbitrary: a wake-up costs about as much as a copy of 64 KiB, so this bounds the loss to a thousandth.
const MAX_PENALTY: u32 = 1023;

impl Pacing {
    fn permits(&self) -> bool {
        let skip = |left: u32| left.checked_sub(1);
        self.skip.fetch_update(Ordering::Relaxed, Ordering::Relaxed, skip).is_err()
    }

    fn record(&self, was_useful: bool) {
        let longer = (self.penalty.load(Ordering::Relaxed) * 2 + 1).min(MAX_PENALTY);
        let penalty = if was_useful { 0 } else { longer };
        self.penalty.store(penalty, Ordering::Relaxed);
        self.skip.store(penalty, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_evenly_with_the_first_thread() {
        let shares: Vec<_> = (0..8).map(|number| share(number, 3)).collect();
        assert_eq!(shares, [None, Some(0), Some(1), Some(2), None, Some(0), Some(1), Some(2)]);
        assert_eq!((0..4).filter_map(|number| share(number, 0)).count(), 0);
    }

    /// Breaks if every large write woke an assistant that never comes in time.
    #[test]
    fn wake_ups_in_vain_become_rare_and_one_that_helps_makes_them_frequent() {
        let pacing = Pacing::default();
        let mut woken = 0;
        for _ in 0..100_000 {
            if pacing.permits() {
                woken += 1;
                pacing.record(false);
            }
        }
        assert!((50..150).contains(&woken), "{woken}");
        pacing.record(true);
        assert!(pacing.permits() && pacing.permits());
    }
}
