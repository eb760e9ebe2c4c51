//! Large copies that several threads share.
//!
//! The thread of a large read or write begins a copy and copies its parts from the front, in order, so that it can announce
//! each part to the peer at once. Helper threads copy parts from the back. A thread claims a part in one atomic step. The
//! thread of the call takes back all parts that nobody has claimed, so a helper that does not run does not delay the call. It waits
//! only for parts that a helper has begun.
//!
//! The buffer belongs to the program again when the call returns. So a copy ends before its call does, and a helper can
//! claim nothing afterwards: the state of a job has a generation, and a claim of an old generation fails.

#![expect(unsafe_code, reason = "copies between the buffers of programs and rings, by several threads")]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Fewer bytes are copied by the calling thread alone. A quarter of a ring of the default length: a writer of large blocks
/// finds so much room often, and the copy takes several times as long as the claim of a part.
pub const LEAST_SHARED: usize = 64 << 10;

/// Bytes of a part. Long enough that its claim costs little, short enough that the wait for its end is short, too.
const PART: usize = 16 << 10;

/// Parts of one copy at most.
const PARTS: usize = 32;

/// Copies that are shared at the same time; further ones are made by their own threads alone. Arbitrary.
const JOBS: usize = 4;

/// Checks of a part that a helper copies, before the waiting thread gives its processor away between two checks.
const SPINS: u32 = 2000;

/// The large copies of a process.
#[derive(Default)]
pub struct Copies {
    jobs: [Job; JOBS],
    /// Called when parts have come; `None` while no thread helps.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Copies that were offered to helpers.
    offered: AtomicU64,
}

/// A copy, or the last one that was made here. No two share a cache line.
#[derive(Default)]
#[repr(align(128))]
struct Job {
    /// A thread has its copy here.
    taken: AtomicBool,
    /// A [`State`].
    state: AtomicU64,
    from: AtomicPtr<u8>,
    to: AtomicPtr<u8>,
    len: AtomicUsize,
    /// For each part, the generation in which a helper has copied it last.
    landed: [AtomicU32; PARTS],
}

/// The parts of a job that nobody has claimed: from `front` to before `back`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    generation: u32,
    front: u16,
    back: u16,
}

impl State {
    fn decode(bits: u64) -> State {
        State { generation: (bits >> 32) as u32, front: (bits >> 16) as u16, back: bits as u16 }
    }

    fn encode(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.front) << 16 | u64::from(self.back)
    }
}

impl Job {
    fn state(&self) -> State {
        State::decode(self.state.load(Ordering::Acquire))
    }

    fn replace(&self, old: State, new: State) -> bool {
        self.state.compare_exchange(old.encode(), new.encode(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// By a helper: copies the last part that nobody has claimed. Returns its bytes; `None`: there is none.
    fn help(&self) -> Option<usize> {
        loop {
            let state = self.state();
            if state.front >= state.back {
                return None;
            }
            // Read before the claim. If it succeeds, these are the values of the same generation.
            let (from, to) = (self.from.load(Ordering::Relaxed), self.to.load(Ordering::Relaxed));
            let len = self.len.load(Ordering::Relaxed);
            if self.replace(state, State { back: state.back - 1, ..state }) {
                let part = usize::from(state.back - 1);
                // SAFETY: the caller of `begin` keeps both ranges valid until this part has landed.
                let copied = unsafe { copy_part(from, to, len, part) };
                self.landed[part].store(state.generation, Ordering::Release);
                return Some(copied);
            }
        }
    }
}

/// Copies a part. Returns its bytes.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes, and they do not overlap.
unsafe fn copy_part(from: *const u8, to: *mut u8, len: usize, part: usize) -> usize {
    let start = part * PART;
    let bytes = PART.min(len - start);
    // SAFETY: within the ranges.
    unsafe { std::ptr::copy_nonoverlapping(from.add(start), to.add(start), bytes) };
    bytes
}

impl Copies {
    /// From now on threads call [`help`](Copies::help). `wake` is called when there is something to copy, and must not block.
    pub fn set_helpers(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(wake);
    }

    /// By a helper thread: copies parts until there are none. Returns the bytes that it has copied.
    pub fn help(&self) -> usize {
        self.jobs.iter().map(|job| std::iter::from_fn(|| job.help()).sum::<usize>()).sum()
    }

    /// Whether there are parts that nobody has claimed.
    pub fn has_parts(&self) -> bool {
        self.jobs.iter().map(Job::state).any(|state| state.front < state.back)
    }

    /// How many copies were offered to helpers.
    pub fn offered(&self) -> u64 {
        self.offered.load(Ordering::Relaxed)
    }

    /// Begins a copy of `len` bytes, or of the first of them: see [`SharedCopy::left`]. `None`: the caller copies alone, because nobody helps, or there
    /// is too little to copy.
    ///
    /// # Safety
    /// `from` is readable and `to` is writable for `len` bytes until the returned copy is dropped, and they do not overlap.
    pub(crate) unsafe fn begin(&self, from: *const u8, to: *mut u8, len: usize) -> Option<SharedCopy<'_>> {
        let wake = self.wake.get().filter(|_| len >= LEAST_SHARED)?;
        let job = self.jobs.iter().find(|job| !job.taken.swap(true, Ordering::AcqRel))?;
        let len = len.min(PART * PARTS);
        job.from.store(from.cast_mut(), Ordering::Relaxed);
        job.to.store(to, Ordering::Relaxed);
        job.len.store(len, Ordering::Relaxed);
        let state =
            State { generation: job.state().generation.wrapping_add(1), front: 0, back: len.div_ceil(PART) as u16 };
        // Before the check by `wake` whether a helper sleeps.
        job.state.store(state.encode(), Ordering::SeqCst);
        self.offered.fetch_add(1, Ordering::Relaxed);
        wake();
        Some(SharedCopy { job, generation: state.generation, from, to, len, next: 0, reported: 0 })
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").field("offered", &self.offered()).finish_non_exhaustive()
    }
}

/// A copy of the calling thread, in which others may take part.
pub(crate) struct SharedCopy<'a> {
    job: &'a Job,
    generation: u32,
    from: *const u8,
    to: *mut u8,
    len: usize,
    /// The first part that is not known to have landed.
    next: usize,
    /// Bytes that the caller has asked for.
    reported: usize,
}

impl SharedCopy<'_> {
    /// Bytes that the caller has not asked for yet.
    pub(crate) fn left(&self) -> usize {
        self.len - self.reported
    }

    /// Copies until the next `bytes` have landed.
    pub(crate) fn land(&mut self, bytes: usize) {
        self.reported = (self.reported + bytes).min(self.len);
        while self.next * PART < self.reported {
            if self.claim_first() {
                // SAFETY: the caller of `begin` keeps both ranges valid.
                unsafe { copy_part(self.from, self.to, self.len, self.next) };
            } else {
                self.wait_for(self.next);
            }
            self.next += 1;
        }
    }

    /// Claims the first part that nobody has claimed. `false`: helpers have claimed all that are left.
    fn claim_first(&self) -> bool {
        loop {
            let state = self.job.state();
            if state.front >= state.back {
                return false;
            }
            if self.job.replace(state, State { front: state.front + 1, ..state }) {
                return true;
            }
        }
    }

    /// Waits until a helper, which has claimed a part, has copied it.
    fn wait_for(&self, part: usize) {
        let mut checks = 0;
        while self.job.landed[part].load(Ordering::Acquire) != self.generation {
            checks += 1;
            if checks < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for SharedCopy<'_> {
    /// Takes back the parts that nobody has claimed, and waits for the others: helpers must not touch the ranges any more.
    fn drop(&mut self) {
        while self.claim_first() {}
        let parts = self.len.div_ceil(PART);
        for part in usize::from(self.job.state().back)..parts {
            self.wait_for(part);
        }
        self.job.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn pattern(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
    }

    fn copies(wake: impl Fn() + Send + Sync + 'static) -> Copies {
        let copies = Copies::default();
        copies.set_helpers(Box::new(wake));
        copies
    }

    /// Copies a whole vector in pieces of `piece` bytes. Returns what has landed.
    fn copy(copies: &Copies, from: &[u8], piece: usize) -> Vec<u8> {
        let mut to = vec![0; from.len()];
        // SAFETY: both vectors live on.
        let mut shared = unsafe { copies.begin(from.as_ptr(), to.as_mut_ptr(), from.len()) }.expect("it is shared");
        let wanted = shared.left();
        while shared.left() > 0 {
            let at = wanted - shared.left();
            let bytes = piece.min(shared.left());
            shared.land(bytes);
            // SAFETY: as above; nothing writes to bytes that have landed.
            let landed = unsafe { std::slice::from_raw_parts(shared.to.add(at), bytes) };
            assert_eq!(landed, &from[at..at + bytes], "landed bytes are there");
        }
        drop(shared);
        to
    }

    #[test]
    fn nothing_is_shared_without_helpers_or_when_there_is_little() {
        let from = pattern(LEAST_SHARED, 0);
        let mut to = vec![0; from.len()];
        let begins = |copies: &Copies, to: &mut [u8], len| {
            // SAFETY: both vectors live on.
            unsafe { copies.begin(from.as_ptr(), to.as_mut_ptr(), len) }.is_some()
        };
        assert!(!begins(&Copies::default(), &mut to, LEAST_SHARED));
        let helped = copies(|| {});
        assert!(!begins(&helped, &mut to, LEAST_SHARED - 1));
        assert!(begins(&helped, &mut to, LEAST_SHARED));
    }

    /// Breaks if a call waited for helpers that do not run.
    #[test]
    fn a_copy_ends_although_no_helper_runs() {
        let copies = copies(|| {});
        let from = pattern(20 * PART + 77, 1);
        assert_eq!(copy(&copies, &from, 5000), from);
        assert_eq!((copies.has_parts(), copies.help()), (false, 0));
    }

    /// Breaks if the calling thread copied a part that a helper has, or did not wait for one.
    #[test]
    fn a_helper_copies_from_the_back() {
        let copies = copies(|| {});
        let from = pattern(6 * PART + 5, 2);
        let mut to = vec![0; from.len()];
        // SAFETY: both vectors live on.
        let mut shared = unsafe { copies.begin(from.as_ptr(), to.as_mut_ptr(), from.len()) }.expect("it is shared");
        assert!(copies.has_parts());
        assert_eq!(copies.jobs[0].help(), Some(5));
        assert_eq!(copies.jobs[0].help(), Some(PART));
        shared.land(from.len());
        assert_eq!(copies.help(), 0);
        drop(shared);
        assert_eq!(to, from);
    }

    /// Breaks if a helper could claim a part of a copy whose call has returned.
    #[test]
    fn an_abandoned_copy_leaves_nothing_to_claim() {
        let copies = copies(|| {});
        let from = pattern(8 * PART, 3);
        let mut to = vec![0; from.len()];
        // SAFETY: both vectors live on.
        let mut shared = unsafe { copies.begin(from.as_ptr(), to.as_mut_ptr(), from.len()) }.expect("it is shared");
        shared.land(PART);
        drop(shared);
        assert_eq!((copies.has_parts(), copies.help()), (false, 0));
        assert_eq!((&to[..PART], &to[PART..]), (&from[..PART], &vec![0; 7 * PART][..]));
    }

    /// Breaks if a buffer were the program's again while a helper still copies a part of it.
    #[test]
    fn a_copy_does_not_end_before_the_parts_that_helpers_have_begun() {
        let copies = copies(|| {});
        let from = pattern(LEAST_SHARED, 4);
        let (job, has_copied) = (&copies.jobs[0], AtomicBool::new(false));
        let mut to = vec![0; from.len()];
        // SAFETY: both vectors live on.
        let shared = unsafe { copies.begin(from.as_ptr(), to.as_mut_ptr(), from.len()) }.expect("it is shared");
        let (begun, generation) = (job.state(), shared.generation);
        assert!(job.replace(begun, State { back: begun.back - 1, ..begun }));
        let part = usize::from(begun.back - 1);
        std::thread::scope(|scope| {
            let (copies, has_copied) = (&copies, &has_copied);
            scope.spawn(move || {
                while copies.has_parts() {
                    std::thread::yield_now();
                }
                // The other thread has taken back the rest, and would end now.
                for _ in 0..1000 {
                    std::thread::yield_now();
                }
                has_copied.store(true, Ordering::SeqCst);
                copies.jobs[0].landed[part].store(generation, Ordering::Release);
            });
            drop(shared);
            assert!(has_copied.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn threads_copy_at_the_same_time_with_helpers() {
        let copies = copies(|| {});
        let (done, helped) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        helped.fetch_add(copies.help(), Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                });
            }
            let callers: Vec<_> = (0..3)
                .map(|thread| {
                    let copies = &copies;
                    scope.spawn(move || {
                        let turns = if cfg!(miri) { 2 } else { 300 };
                        for turn in 0..turns {
                            let from = pattern(LEAST_SHARED + turn * 1237 % (20 * PART), turn + thread);
                            assert_eq!(copy(copies, &from, 1 + turn * 709 % (3 * PART)), from);
                        }
                    })
                })
                .collect();
            let ends: Vec<_> = callers.into_iter().map(|caller| caller.join().is_ok()).collect();
            done.store(true, Ordering::Relaxed);
            assert_eq!(ends, [true; 3], "every byte has landed when it is said to");
        });
        assert!(!copies.has_parts());
    }
}
