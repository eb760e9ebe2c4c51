//! Threads that wait in calls on a connection.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// The number of threads at once that are known to wait on one connection: one for each direction, and some to spare.
/// If more wait, closing the connection ends it under the further ones.
const MOST: usize = 4;

/// The threads that wait in calls on one connection. Without a lock: signal handlers may wait too.
#[derive(Default)]
pub struct Callers {
    /// The value of `pthread_self` in each; 0 for none.
    threads: [AtomicUsize; MOST],
    /// The duplicate that they use once the program has closed its last descriptor, plus one; 0 before.
    kept: AtomicI32,
}

/// The place of one thread among the [`Callers`] of a connection.
pub struct Place<'a>(&'a AtomicUsize);

impl Callers {
    /// The calling thread is about to wait. `None`: too many wait already, so this one is not recorded.
    pub fn enter(&self) -> Option<Place<'_>> {
        let this = this_thread();
        let take = |slot: &&AtomicUsize| slot.compare_exchange(0, this, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        self.threads.iter().find(take).map(Place)
    }

    /// The calling thread, whose place was `place`, waits no more. As [`go_on`](Callers::go_on).
    pub fn leave(&self, place: &Place<'_>) -> Option<c_int> {
        let _ = place.0.compare_exchange(this_thread(), 0, Ordering::SeqCst, Ordering::Relaxed);
        self.take_kept()
    }

    fn wait(&self) -> bool {
        self.threads.iter().any(|thread| thread.load(Ordering::SeqCst) != 0)
    }

    /// The program has closed its last descriptor. Whether another thread waits in a call. Calls of this thread are
    /// over: it has left them by a jump out of a signal handler, or closes in a handler the descriptor that it waits
    /// for.
    pub fn wait_elsewhere(&self) -> bool {
        if !self.wait() {
            return false;
        }
        let this = this_thread();
        for thread in &self.threads {
            let _ = thread.compare_exchange(this, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
        self.wait()
    }

    /// The connection continues as `kept`, which is open. Returns it if no thread waits any more: the caller closes it.
    pub fn go_on(&self, kept: c_int) -> Option<c_int> {
        self.kept.store(kept + 1, Ordering::SeqCst);
        self.take_kept()
    }

    /// The duplicate, for the caller to close.
    fn take_kept(&self) -> Option<c_int> {
        if self.kept.load(Ordering::SeqCst) == 0 || self.wait() {
            return None;
        }
        let kept = self.kept.swap(0, Ordering::SeqCst);
        (kept > 0).then(|| kept - 1)
    }
}

fn this_thread() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}
