//! Models of places and hazards, run by loom in every interleaving (`ci/run.sh loom`), and by Miri in some (`ci/run.sh miri`).

#[cfg(miri)]
use std::thread;

#[cfg(loom)]
use loom::thread;

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::os::sync::check;

/// A value that knows whether it was dropped. Loom does not see that the count of an `Arc` orders its uses, so this is no cell of
/// loom's.
struct Value {
    dropped: AtomicBool,
    /// How often.
    drops: Arc<AtomicUsize>,
}

impl Value {
    fn new(drops: &Arc<AtomicUsize>) -> Arc<Value> {
        Arc::new(Value { dropped: AtomicBool::new(false), drops: drops.clone() })
    }

    fn assert_lives(&self) {
        assert!(!self.dropped.load(SeqCst), "read after it was dropped");
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.dropped.store(true, SeqCst);
        self.drops.fetch_add(1, Relaxed);
    }
}

/// Places that threads of a model share.
fn shared<const N: usize>() -> &'static [Place<Value>; N] {
    Box::leak(Box::new(std::array::from_fn(|_| Place::empty())))
}

/// Reads places, one after the other, with the hazard of a thread, as [`Place::read`] does.
fn read_in_turn(places: &[Place<Value>]) {
    let hazard = Hazard::take();
    for place in places {
        if let Some(reading) = place.read_by(&hazard.value) {
            reading.assert_lives();
        }
        assert!(hazard.value.load(SeqCst).is_null(), "the next call needs it");
    }
    hazard.give_back();
}

/// A reader uses a value that another thread takes out of its place: it is dropped once, after both.
#[test]
fn a_value_lives_while_it_is_read() {
    check(|| {
        let (drops, places) = (Arc::new(AtomicUsize::new(0)), shared::<1>());
        places[0].swap(Some(Value::new(&drops)));
        let reader = thread::spawn(|| read_in_turn(places));
        drop(places[0].swap(None));
        reader.join().unwrap();
        assert_eq!(drops.load(Relaxed), 1);
    });
}

/// A value is replaced by another one while it is read: the reader uses either.
#[test]
fn a_value_is_replaced_while_it_is_read() {
    check(|| {
        let (drops, places) = (Arc::new(AtomicUsize::new(0)), shared::<1>());
        places[0].swap(Some(Value::new(&drops)));
        let new = Value::new(&drops);
        let reader = thread::spawn(|| read_in_turn(places));
        drop(places[0].swap(Some(new)));
        drop(places[0].swap(None));
        reader.join().unwrap();
        assert_eq!(drops.load(Relaxed), 2);
    });
}

/// The same value is in two places, as of two descriptors of one socket, and both are emptied while a thread reads them one
/// after the other: a reference that a writer meant for the first reading is not lost, and is not given twice.
#[test]
fn a_value_in_two_places_is_dropped_once() {
    check(|| {
        let (drops, places) = (Arc::new(AtomicUsize::new(0)), shared::<2>());
        let value = Value::new(&drops);
        places[0].swap(Some(value.clone()));
        places[1].swap(Some(value));
        let reader = thread::spawn(|| read_in_turn(places));
        for place in places {
            drop(place.swap(None));
        }
        reader.join().unwrap();
        assert_eq!(drops.load(Relaxed), 1);
    });
}

/// Two readers at once do not take the same hazard, and a writer finds both.
#[test]
fn two_readers_keep_a_value() {
    check(|| {
        let (drops, places) = (Arc::new(AtomicUsize::new(0)), shared::<1>());
        places[0].swap(Some(Value::new(&drops)));
        let readers = [0, 1].map(|_| thread::spawn(|| read_in_turn(places)));
        drop(places[0].swap(None));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(drops.load(Relaxed), 1);
    });
}

/// A reading that becomes an owned one, as of a thread without a hazard of its own, keeps its value.
#[test]
fn an_owned_reading_keeps_its_value() {
    check(|| {
        let (drops, places) = (Arc::new(AtomicUsize::new(0)), shared::<1>());
        places[0].swap(Some(Value::new(&drops)));
        let reader = thread::spawn(|| {
            let hazard = Hazard::take();
            let reading = places[0].read_by(&hazard.value).map(Reading::into_owned);
            hazard.give_back();
            reading.iter().for_each(|reading| reading.assert_lives());
        });
        drop(places[0].swap(None));
        reader.join().unwrap();
        assert_eq!(drops.load(Relaxed), 1);
    });
}
