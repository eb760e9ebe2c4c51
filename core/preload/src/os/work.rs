//! The work of the library's own threads, which a fork waits for. A lock that such a thread holds would stay held in
//! the child, and not every allocator of a program is prepared for a fork: those of AddressSanitizer before LLVM 17 are
//! not. The child of a program with one thread may allocate, because the program has no knowledge of the library's
//! threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netacc_device::Instant;

use super::clock::now;
use super::futex;

/// A thread is about to fork, or forks.
const FORKING: u32 = 1 << 31;

/// How long a fork waits for threads that work. The wait mostly takes microseconds. Arbitrary: beside four programs that compute
/// it took half a second, with an allocator that lets others run fifty times in each allocation.
const PATIENCE: Duration = Duration::from_secs(5);

/// Counts the library's threads that work; beside the count is [`FORKING`]. Waiting on it leaves no lock held in a child.
#[derive(Default)]
pub struct Work(AtomicU32);

impl Work {
    /// One more thread works, once no thread forks.
    pub fn begin(&self) {
        loop {
            let state = self.0.load(Ordering::SeqCst);
            if state & FORKING != 0 {
                futex::wait(&self.0, state, None);
            } else if self.replace(state, state + 1) {
                return;
            }
        }
    }

    /// One thread fewer works.
    pub fn end(&self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) & FORKING != 0 {
            futex::wake_all(&self.0);
        }
    }

    /// Pauses the calling thread's work for `sleep`.
    pub fn pause<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.end();
        let slept = sleep();
        self.begin();
        slept
    }

    /// Before a fork: waits until no thread works, and lets none begin. `false` if a thread works, or another thread
    /// forks, for too long: then no thread is paused.
    pub fn pause_work(&self) -> bool {
        let deadline = now() + PATIENCE;
        loop {
            let state = self.0.load(Ordering::SeqCst);
            if state & FORKING != 0 {
                if !self.wait_for_change(state, deadline) {
                    return false;
                }
            } else if self.replace(state, state | FORKING) {
                break;
            }
        }
        loop {
            let state = self.0.load(Ordering::SeqCst);
            if state == FORKING {
                return true;
            }
            if !self.wait_for_change(state, deadline) {
                self.go_on();
                return false;
            }
        }
    }

    /// After a fork, in the parent, by the thread that has paused the others.
    pub fn go_on(&self) {
        self.0.fetch_and(!FORKING, Ordering::SeqCst);
        futex::wake_all(&self.0);
    }

    fn replace(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Sleeps for a while if the state is `seen`; `false` if the deadline has come.
    fn wait_for_change(&self, seen: u32, deadline: Instant) -> bool {
        let left = deadline - now();
        if !left.is_zero() {
            futex::wait(&self.0, seen, Some(left));
        }
        !left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if the fork does not wait, or the thread that paused continues before the fork.
    #[test]
    fn a_fork_waits_for_work_and_work_for_the_fork() {
        let (work, working) = (Work::default(), AtomicU32::new(1));
        work.begin();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while work.0.load(Ordering::SeqCst) & FORKING == 0 {
                    std::thread::yield_now();
                }
                working.store(0, Ordering::SeqCst);
                work.pause(|| {});
                working.store(1, Ordering::SeqCst);
                work.end();
            });
            assert!(work.pause_work());
            for _ in 0..1000 {
                assert_eq!(working.load(Ordering::SeqCst), 0);
                std::thread::yield_now();
            }
            work.go_on();
        });
        assert_eq!((working.into_inner(), work.0.into_inner()), (1, 0));
    }

    #[test]
    fn threads_fork_one_after_another() {
        let (work, forks) = (Work::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        assert!(work.pause_work());
                        assert_eq!(forks.fetch_add(1, Ordering::SeqCst), 0);
                        forks.fetch_sub(1, Ordering::SeqCst);
                        work.go_on();
                        work.begin();
                        work.end();
                    }
                });
            }
        });
        assert_eq!(work.0.into_inner(), 0);
    }

    #[test]
    fn work_that_does_not_end_delays_a_fork_only_for_a_time() {
        let work = Work::default();
        work.begin();
        assert!(!work.pause_work());
        // No thread is paused.
        work.begin();
        assert_eq!(work.0.into_inner(), 2);
    }
}
