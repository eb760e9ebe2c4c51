//! Completion queues: announcing, arming, taking, and queue pairs that move between them.

use super::*;

#[test]
fn no_message_is_slept_through() {
    check(3, || {
        let world = World::<1>::new(2);
        let sender = world.clone();
        let thread = thread::spawn(move || assert!(sender.try_send(0, 1) && sender.try_send(0, 2)));
        assert_eq!(world.receive(0, 2), [1, 2]);
        thread.join().unwrap();
    });
}

/// Two queue pairs in different words of one bitmap, or in the same: only the sender that makes the summary non-zero
/// rings.
#[test]
fn only_one_of_two_senders_rings() {
    for pair in [[0, 1], [0, 2]] {
        check(2, move || {
            let world = World::<3>::new(1);
            let threads = pair.map(|i| {
                let sender = world.clone();
                thread::spawn(move || assert!(sender.try_send(i, i as u32)))
            });
            let mut got = world.receive(0, 2);
            got.sort_unstable();
            assert_eq!(got, pair.map(|i| i as u32));
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }
}

/// A thread that has room for one queue pair leaves the other one's bit; a thread that fell asleep meanwhile is woken
/// for it.
#[test]
fn remaining_completions_wake_a_sleeper() {
    check(2, || {
        let world = World::<2>::new(1);
        assert!(world.try_send(0, 0) && world.try_send(1, 1));
        let narrow = world.clone();
        let thread = thread::spawn(move || imms(&narrow.poll_pairs(0, 1)));
        // The other thread may take either, or neither; this one takes the rest.
        let first = imms(&world.poll_pairs(0, 1));
        let other = thread.join().unwrap();
        let mut got = [first, other].concat();
        got.extend(world.receive(0, 2 - got.len()));
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
    });
}

/// Of two threads on one queue, one takes a single queue pair's bit while the other goes to sleep.
#[test]
fn taking_a_part_does_not_hide_the_rest_from_a_sleeper() {
    check(2, || {
        let world = World::<2>::new(1);
        assert!(world.try_send(0, 0) && world.try_send(1, 1));
        let other = world.clone();
        let thread = thread::spawn(move || imms(&other.poll_pairs(0, 1)).len());
        // Sleeps while the summary is taken; then either there is a completion for it, or the other thread has them
        // all.
        let mut mine = 0;
        if !bitmap::arm(&world.armed[0].0, ASLEEP, [&world.bitmaps[0]].into_iter()) {
            world.channels[0].wait();
        }
        world.armed[0].0.store(0, SeqCst);
        mine += imms(&world.poll_pairs(0, 4)).len();
        let theirs = thread.join().unwrap();
        mine += imms(&world.poll_pairs(0, 4)).len();
        assert_eq!(mine + theirs, 2);
    });
}

/// A message that is sent while its queue pair moves is found by the mover, or by the thread that sleeps on the new
/// queue.
#[test]
fn a_message_follows_its_queue_pair() {
    check(3, || {
        let world = World::<1>::new(2);
        let sender = world.clone();
        let thread = thread::spawn(move || assert!(sender.try_send(0, 5)));
        world.receivers[0].rebind(1);
        // The mover polls once, and sleeps on the new queue from then on.
        let mut got = imms(&world.poll(0));
        while got.is_empty() {
            world.sleep(1);
            got.extend(imms(&world.poll_pairs(1, 4)));
        }
        assert_eq!(got, [5]);
        thread.join().unwrap();
    });
}

/// A bit that is set for the queue that a queue pair has just left must not suppress wake-ups for others on that queue:
/// no sender rings for a queue whose summary is not 0.
#[test]
fn a_late_bit_does_not_silence_the_old_queue() {
    check(3, || {
        let world = World::<2>::new(1);
        let (mover, sender) = (world.clone(), world.clone());
        let moving = thread::spawn(move || mover.receivers[0].rebind(1));
        // Both queue pairs report to queue 0 at first, and a thread waits there only for the second one's message.
        let sending = thread::spawn(move || assert!(sender.try_send(0, 0) && sender.try_send(1, 1)));
        let mut got = Vec::new();
        while !got.contains(&1) {
            let new = world.poll_pairs(0, 4);
            if new.is_empty() {
                world.sleep(0);
            }
            got.extend(imms(&new));
        }
        moving.join().unwrap();
        sending.join().unwrap();
        // The first message is on either queue, or was seen on the old one.
        got.extend(imms(&world.poll(0)));
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
    });
}
