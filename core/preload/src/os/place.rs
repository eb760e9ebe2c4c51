//! A place for a shared value that threads read while others replace it. Neither waits for the other.
//!
//! A reader names the value in a *hazard* of its thread, and then checks that the place still has it. A writer that has
//! taken a value out of its place looks through the hazards of all threads. Where one names the value, the writer adds a
//! reference to the value and clears the hazard. A reader that finds its hazard cleared owns that reference.
//!
//! It is the algorithm of the crate `arc-swap`, with hazards that a thread finds without a function of the dynamic linker: see
//! [`thread_variable`](super::thread_variable). Every call on a connection reads a place.
//!
//! Invariants:
//! * a hazard that is not null is its reader's to clear, or a writer's that adds a reference first;
//! * hazards are never freed, so a writer may look at those of a thread that has ended.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

use super::sync::{order_seq_cst, AtomicBool, AtomicPtr};
use super::thread_variable::{self, HAZARD};

/// The hazard of one thread at a time. A call that is interrupted by a handler may be using its thread's: calls of the handler
/// use that of no thread for a moment.
#[repr(align(128))]
struct Hazard {
    value: AtomicPtr<()>,
    /// A thread has it.
    taken: AtomicBool,
    /// Made before it. Set before it is published.
    next: *const Hazard,
}

// SAFETY: `next` is not changed once the hazard is shared, and what it names is never freed.
unsafe impl Sync for Hazard {}

#[cfg(not(loom))]
mod shared {
    use super::*;

    /// All hazards, the latest first.
    pub(super) static ALL: AtomicPtr<Hazard> = AtomicPtr::new(null_mut());
    /// The hazard of a reading that owns a reference: it names nothing.
    pub(super) static NONE: AtomicPtr<()> = AtomicPtr::new(null_mut());
}

/// The same, made anew for each run of a model.
#[cfg(loom)]
mod shared {
    use super::*;

    loom::lazy_static! {
        pub(super) static ref ALL: AtomicPtr<Hazard> = AtomicPtr::new(null_mut());
        pub(super) static ref NONE: AtomicPtr<()> = AtomicPtr::new(null_mut());
    }
}

use shared::{ALL, NONE};

thread_local! {
    /// Gives the hazard of the thread back when it ends.
    static LEASE: Lease = const { Lease(Cell::new(null())) };
}

struct Lease(Cell<*const Hazard>);

impl Drop for Lease {
    fn drop(&mut self) {
        of_thread().set(null());
        // SAFETY: null, or a hazard, which is never freed.
        if let Some(hazard) = unsafe { self.0.get().as_ref() } {
            hazard.give_back();
        }
    }
}

/// The variable of `calls.c`: the thread's hazard, or null.
#[inline]
fn of_thread() -> &'static Cell<*const Hazard> {
    let place: *const Cell<*const Hazard> = thread_variable::part(HAZARD);
    // SAFETY: of this thread; every function here uses it before it returns.
    unsafe { &*place }
}

impl Hazard {
    /// One that no thread has; the caller has it now.
    fn take() -> &'static Hazard {
        for hazard in all() {
            if hazard.taken.compare_exchange(false, true, AcqRel, Relaxed).is_ok() {
                return hazard;
            }
        }
        let value = AtomicPtr::new(null_mut());
        let new = Box::leak(Box::new(Hazard { value, taken: AtomicBool::new(true), next: null() }));
        loop {
            let first = ALL.load(Acquire);
            new.next = first;
            if ALL.compare_exchange(first, new, SeqCst, Relaxed).is_ok() {
                return new;
            }
        }
    }

    /// The caller has it no longer, and it names nothing.
    fn give_back(&self) {
        self.taken.store(false, Release);
    }
}

fn all() -> impl Iterator<Item = &'static Hazard> {
    // SAFETY: null, or a hazard, which is never freed.
    let following = |at: *const Hazard| unsafe { at.as_ref() };
    std::iter::successors(following(ALL.load(SeqCst)), move |hazard| following(hazard.next))
}

/// A place.
pub struct Place<T> {
    /// Of an `Arc`, which the place owns; or null.
    value: AtomicPtr<T>,
    _owned: std::marker::PhantomData<Arc<T>>,
}

/// The value of a place, as it was when it was read. Stays valid after another thread has replaced it.
pub struct Reading<T> {
    value: ManuallyDrop<Arc<T>>,
    hazard: &'static AtomicPtr<()>,
}

impl<T> Place<T> {
    /// An empty place.
    pub fn empty() -> Place<T> {
        Place { value: AtomicPtr::new(null_mut()), _owned: std::marker::PhantomData }
    }

    /// Whether it has no value.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.value.load(Acquire).is_null()
    }

    /// Its value, if there is one.
    #[inline]
    pub fn read(&self) -> Option<Reading<T>> {
        // SAFETY: null, or a hazard, which is never freed.
        match unsafe { of_thread().get().as_ref() } {
            Some(hazard) if hazard.value.load(Relaxed).is_null() => self.read_by(&hazard.value),
            _ => self.read_aside(),
        }
    }

    /// Reads with a hazard that names nothing.
    #[inline(always)]
    fn read_by(&self, hazard: &'static AtomicPtr<()>) -> Option<Reading<T>> {
        let value = self.value.load(Acquire);
        if value.is_null() {
            return None;
        }
        hazard.store(value.cast(), SeqCst);
        order_seq_cst();
        if self.value.load(SeqCst) == value {
            return Some(Reading::of(value, hazard));
        }
        self.read_changed(value, hazard)
    }

    /// A value was named in the hazard, and is not in the place any more.
    #[cold]
    fn read_changed(&self, mut value: *mut T, hazard: &'static AtomicPtr<()>) -> Option<Reading<T>> {
        loop {
            if hazard.compare_exchange(value.cast(), null_mut(), SeqCst, SeqCst).is_err() {
                // A writer has given us a reference to it.
                return Some(Reading::of(value, &NONE));
            }
            value = self.value.load(SeqCst);
            if value.is_null() {
                return None;
            }
            hazard.store(value.cast(), SeqCst);
            order_seq_cst();
            if self.value.load(SeqCst) == value {
                return Some(Reading::of(value, hazard));
            }
        }
    }

    /// Reads without the hazard of the thread: it has none yet, none any more, or is in a call that was interrupted.
    #[cold]
    fn read_aside(&self) -> Option<Reading<T>> {
        if of_thread().get().is_null() {
            // A thread that is about to end has given its own back.
            let lends = LEASE.try_with(|lease| {
                let hazard = Hazard::take();
                lease.0.set(hazard);
                of_thread().set(hazard);
            });
            if lends.is_ok() {
                return self.read();
            }
        }
        let hazard = Hazard::take();
        let reading = self.read_by(&hazard.value).map(Reading::into_owned);
        hazard.give_back();
        reading
    }

    /// Replaces its value; returns the old one.
    pub fn swap(&self, new: Option<Arc<T>>) -> Option<Arc<T>> {
        let new = new.map_or(null_mut(), |value| Arc::into_raw(value).cast_mut());
        let old = self.value.swap(new, SeqCst);
        order_seq_cst();
        if old.is_null() {
            return None;
        }
        // SAFETY: the place owned it.
        let old = unsafe { Arc::from_raw(old) };
        let named = Arc::as_ptr(&old).cast_mut().cast::<()>();
        for hazard in all() {
            if hazard.value.load(SeqCst) == named {
                let reference = old.clone();
                if hazard.value.compare_exchange(named, null_mut(), SeqCst, SeqCst).is_ok() {
                    // The reader's now.
                    std::mem::forget(reference);
                }
            }
        }
        Some(old)
    }
}

impl<T> Reading<T> {
    /// The value is named in the hazard; or a reference to it is the reading's, and the hazard is [`NONE`].
    #[inline]
    fn of(value: *const T, hazard: &'static AtomicPtr<()>) -> Reading<T> {
        // SAFETY: it is from an `Arc` that lives as long as the hazard names it, or that is ours.
        Reading { value: ManuallyDrop::new(unsafe { Arc::from_raw(value) }), hazard }
    }

    /// The same without a hazard of a thread.
    fn into_owned(self) -> Reading<T> {
        let reference = Arc::into_raw(Arc::clone(&self));
        Reading::of(reference, &NONE)
    }
}

impl<T> Deref for Reading<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Drop for Reading<T> {
    #[inline]
    fn drop(&mut self) {
        let named = Arc::as_ptr(&self.value).cast_mut().cast::<()>();
        if self.hazard.compare_exchange(named, null_mut(), Release, Acquire).is_err() {
            release(&mut self.value);
        }
    }
}

#[cold]
#[inline(never)]
fn release<T>(owned: &mut ManuallyDrop<Arc<T>>) {
    // SAFETY: the reading owns the reference, and does not use it any more.
    unsafe { ManuallyDrop::drop(owned) };
}

#[cfg(all(test, any(loom, miri)))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts those that live, and is not what it was once it is dropped.
    struct Counted<'a>(&'a AtomicUsize, u64);

    impl<'a> Counted<'a> {
        fn new(alive: &'a AtomicUsize) -> Arc<Counted<'a>> {
            alive.fetch_add(1, SeqCst);
            Arc::new(Counted(alive, 7))
        }
    }

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.1 = 0;
            self.0.fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn a_value_that_is_read_outlives_its_replacement_and_no_longer() {
        let alive = AtomicUsize::new(0);
        let place = Place::empty();
        assert!(place.read().is_none());
        assert!(place.swap(Some(Counted::new(&alive))).is_none());
        let readings: Vec<_> = (0..4).map(|_| place.read().expect("a value")).collect();
        drop(place.swap(None));
        assert!(place.read().is_none());
        assert_eq!(alive.load(SeqCst), 1);
        assert!(readings.iter().all(|reading| reading.1 == 7));
        drop(readings);
        assert_eq!(alive.load(SeqCst), 0);
        drop(place.swap(Some(Counted::new(&alive))));
        drop(place.read());
        drop(place.swap(None));
        assert_eq!(alive.load(SeqCst), 0);
    }

    // Breaks if a writer did not keep the value for a reader that has only named it.
    #[test]
    fn one_reader_keeps_the_value() {
        let alive = AtomicUsize::new(0);
        let place = Place::empty();
        for new in [None, Some(())] {
            drop(place.swap(Some(Counted::new(&alive))));
            let reading = place.read().expect("a value");
            drop(place.swap(new.map(|()| Counted::new(&alive))));
            assert_eq!((alive.load(SeqCst), reading.1), (1 + usize::from(new.is_some()), 7));
            drop(reading);
            drop(place.swap(None));
            assert_eq!(alive.load(SeqCst), 0);
        }
    }

    #[test]
    fn a_thread_that_ends_gives_its_hazards_back() {
        let place = Place::empty();
        place.swap(Some(Arc::new(1)));
        let count = || all().count();
        for _ in 0..3 {
            std::thread::scope(|scope| scope.spawn(|| assert_eq!(**place.read().expect("a value"), 1)).join())
                .expect("ends");
        }
        // Other tests' threads take some as well.
        let before = count();
        for _ in 0..100 {
            std::thread::scope(|scope| scope.spawn(|| assert_eq!(**place.read().expect("a value"), 1)).join())
                .expect("ends");
        }
        assert!(count() < before + 50, "{before} before, {} now", count());
        drop(place.swap(None));
    }

    // Breaks if a reader used a value that a writer had freed, or one were never freed.
    #[test]
    fn readers_and_writers_do_not_meet() {
        let alive = AtomicUsize::new(0);
        let places = [Place::empty(), Place::empty()];
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (places, alive) = (&places, &alive);
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        let new = (turn % 3 > 0).then(|| Counted::new(alive));
                        // The same value in both places, as two descriptors of one socket.
                        drop(places[writer].swap(new.clone()));
                        drop(places[1 - writer].swap(new));
                    }
                });
                scope.spawn(move || {
                    for turn in 0..40_000 {
                        let first = places[turn % 2].read();
                        let second = places[(turn + 1) % 2].read();
                        assert!(first.iter().chain(&second).all(|reading| reading.1 == 7));
                    }
                });
            }
        });
        places.iter().for_each(|place| drop(place.swap(None)));
        assert_eq!(alive.load(SeqCst), 0);
    }
}
