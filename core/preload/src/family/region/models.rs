//! Models of the records, run by loom in every interleaving (`ci/run.sh loom`), and by Miri in some (`ci/run.sh miri`).
//! Processes are threads here; the shared memory is the same.

#[cfg(miri)]
use std::sync::Arc;
#[cfg(miri)]
use std::thread;

#[cfg(loom)]
use loom::sync::Arc;
#[cfg(loom)]
use loom::thread;

use super::*;
use crate::os::sync::check;

/// A reservation of long ago, and one of now.
const OLD: u64 = 1;
const NEW: u64 = 2;

/// Processes with even numbers are dead, and so is a child that was reserved long ago.
fn alive(number: u32, start: u64) -> bool {
    if number == RESERVED {
        start == NEW
    } else {
        number % 2 == 1
    }
}

fn region() -> Region {
    Region {
        processes: std::array::from_fn(|_| Process {
            state: AtomicU64::new(0),
            start: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
        }),
        sockets: std::array::from_fn(|_| Socket {
            state: AtomicU32::new(0),
            joins: AtomicU32::new(0),
            lent: AtomicU32::new(0),
            kept: AtomicU32::new(0),
            holders: std::array::from_fn(|_| AtomicU64::new(0)),
        }),
        next: AtomicU32::new(0),
    }
}

fn enter(region: &Region, number: u32) -> Member {
    region.enter(number, NEW, &alive).expect("there is room")
}

/// A holder forks and closes while another process reads the list: it never misses the child, wherever the
/// child is in the list.
#[test]
fn a_grandchild_is_not_missed() {
    check(|| {
        let region = Arc::new(region());
        let (gone, me, parent) = (enter(&region, 1), enter(&region, 3), enter(&region, 5));
        let id = region.share(0, gone, me, &alive).expect("there is room");
        assert_eq!(region.share(id, me, parent, &alive), Some(id));
        // So the first place is free, and the child comes to stand before its parent.
        region.leave(id, gone, &alive);
        let forking = {
            let region = region.clone();
            thread::spawn(move || {
                let child = enter(&region, RESERVED);
                assert_eq!(region.share(id, parent, child, &alive), Some(id));
                assert!(region.born(child, 7, NEW));
                region.leave(id, parent, &alive);
            })
        };
        assert_eq!(region.others(id, me, &alive), Others::Entered, "the parent or its child holds it");
        forking.join().unwrap();
    });
}

/// Two holders close at once while another process shares a socket of its own: that is not given back for theirs.
#[test]
fn a_record_is_given_back_once() {
    check(|| {
        let region = Arc::new(region());
        let (a, b) = (enter(&region, 1), enter(&region, 3));
        let id = region.share(0, a, b, &alive).expect("there is room");
        let leaving = [a, b].map(|member| {
            let region = region.clone();
            thread::spawn(move || region.leave(id, member, &alive))
        });
        let (c, d) = (enter(&region, 5), enter(&region, 7));
        let other = region.share(0, c, d, &alive);
        leaving.into_iter().for_each(|t| t.join().unwrap());
        match other {
            Some(other) => {
                assert_eq!(region.others(other, c, &alive), Others::Entered);
                region.leave(other, d, &alive);
                assert_eq!(region.others(other, c, &alive), Others::Absent);
            }
            None => assert!(region.share(0, c, d, &alive).is_some(), "the record is free now"),
        }
    });
}

/// A child counts as alive from its reservation on, also for a process that reads the record while the child starts.
#[test]
fn a_child_lives_while_it_is_born() {
    check(|| {
        let region = Arc::new(region());
        let me = enter(&region, 1);
        let child = enter(&region, RESERVED);
        let id = region.share(0, me, child, &alive).expect("there is room");
        let birth = {
            let region = region.clone();
            // Its start is no time that a reservation could have.
            thread::spawn(move || assert!(region.born(child, 3, OLD)))
        };
        assert_eq!(region.others(id, me, &alive), Others::Entered);
        birth.join().unwrap();
    });
}

/// Two processes that fork at once never reserve the same record for their children, and one that comes too late to its
/// own does not take another's.
#[test]
fn a_record_is_given_to_one_process() {
    check(|| {
        let region = Arc::new(region());
        let late = region.enter(RESERVED, OLD, &alive).expect("there is room");
        let other = region.clone();
        let first = thread::spawn(move || enter(&other, RESERVED));
        let second = enter(&region, RESERVED);
        let first = first.join().unwrap();
        assert_ne!(first, second);
        assert!(!region.born(late, 3, NEW));
        assert!(region.born(first, 5, NEW) && region.born(second, 7, NEW));
    });
}

/// A dead process's place in the list goes to one of the processes that want it; a process that reuses the dead
/// one's record is a different one.
#[test]
fn a_dead_holder_is_replaced_once() {
    check(|| {
        let region = Arc::new(region());
        let me = enter(&region, 1);
        let dead = region.enter(2, NEW, &alive).expect("there is room");
        let id = region.share(0, me, dead, &alive).expect("there is room");
        let share = move |region: &Region| {
            let child = enter(region, RESERVED);
            assert_eq!(region.share(id, me, child, &alive), Some(id));
            child
        };
        let other = region.clone();
        let first = thread::spawn(move || share(&other));
        let second = share(&region);
        let first = first.join().unwrap();
        region.leave(id, second, &alive);
        assert_eq!(region.others(id, me, &alive), Others::Entered);
        region.leave(id, first, &alive);
        assert_eq!(region.others(id, me, &alive), Others::Absent);
    });
}
