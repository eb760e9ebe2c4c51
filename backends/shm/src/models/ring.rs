//! The completion ring of a queue pair, its end, and threads that sleep on it.

use super::*;
use crate::sync::futex_wait;

/// A sender that finds the sequence at which everything was handled does not miss a message that was there, also while another
/// thread has polled it and has not handled it.
#[test]
fn a_message_that_is_polled_is_news_until_it_is_handled() {
    check(3, || {
        let world = World::<1>::new(2);
        let (seen, handled) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        seen.store(world.receivers[0].sequence(), Relaxed);
        assert!(world.receivers[0].has_still(world.receivers[0].rx(), seen.load(Relaxed)));
        assert!(world.try_send(0, 7));
        let poller = {
            let (world, seen, handled) = (world.clone(), seen.clone(), handled.clone());
            thread::spawn(move || {
                let sequence = world.receivers[0].sequence();
                assert_eq!(imms(&world.poll(0)), [7]);
                handled.store(1, Relaxed);
                seen.store(sequence, Release);
            })
        };
        if world.receivers[0].has_still(world.receivers[0].rx(), seen.load(Acquire)) {
            assert_eq!(handled.load(Relaxed), 1);
        }
        poller.join().unwrap();
        assert!(world.receivers[0].has_still(world.receivers[0].rx(), seen.load(Acquire)));
    });
}

/// Entries are used again only once they are consumed: three messages through a ring of two.
#[test]
fn messages_arrive_once_and_in_order() {
    check(3, || {
        let world = World::<1>::new(2);
        let sender = world.clone();
        let thread = thread::spawn(move || {
            for imm in 10..13 {
                while !sender.try_send(0, imm) {
                    thread::yield_now();
                }
            }
        });
        let mut got = Vec::new();
        while got.len() < 3 {
            let new = imms(&world.poll(0));
            if new.is_empty() {
                thread::yield_now();
            } else {
                // Entries past the ring's end would be posted twice.
                let again = (new.len() as u32).min(3 - 2);
                let _ = world.receivers[0].post_recv(again);
            }
            got.extend(new);
        }
        assert_eq!(got, [10, 11, 12]);
        thread.join().unwrap();
    });
}

/// A thread asleep on a queue pair is woken by a message.
#[test]
fn a_sleeper_is_woken_by_a_message() {
    check(3, || {
        let world = World::<1>::new(2);
        let sender = world.clone();
        let thread = thread::spawn(move || assert!(sender.try_send(0, 7) && sender.try_send(0, 8)));
        let mut got = Vec::new();
        while got.len() < 2 {
            let seen = world.receivers[0].sequence();
            got.extend(imms(&world.poll(0)));
            if got.len() < 2 {
                if let Some(value) = world.receivers[0].prepare_sleep(seen) {
                    let _ = futex_wait(world.receivers[0].futex(), value, None);
                }
            }
        }
        assert_eq!(got, [7, 8]);
        thread.join().unwrap();
    });
}

/// Two threads asleep on one queue pair are both woken, although one of them takes the message.
#[test]
fn all_sleepers_are_woken() {
    check(2, || {
        let world = World::<1>::new(2);
        let taken = Arc::new(AtomicU32::new(0));
        let receive = |world: Arc<World<1>>, taken: Arc<AtomicU32>| {
            move || loop {
                let seen = world.receivers[0].sequence();
                // Polling is serialised by the link's lock; here only one of the two polls.
                if taken.load(SeqCst) != 0 {
                    return;
                }
                if let Some(value) = world.receivers[0].prepare_sleep(seen) {
                    let _ = futex_wait(world.receivers[0].futex(), value, None);
                }
            }
        };
        let sleeper = thread::spawn(receive(world.clone(), taken.clone()));
        let sender = world.clone();
        let thread = thread::spawn(move || assert!(sender.try_send(0, 7)));
        loop {
            let seen = world.receivers[0].sequence();
            if !world.poll(0).is_empty() {
                taken.store(1, SeqCst);
                // As the driver does for the other sleepers of a stream.
                world.receivers[0].kick();
                break;
            }
            if let Some(value) = world.receivers[0].prepare_sleep(seen) {
                let _ = futex_wait(world.receivers[0].futex(), value, None);
            }
        }
        sleeper.join().unwrap();
        thread.join().unwrap();
    });
}

/// The end comes after the last message, and once.
#[test]
fn the_end_follows_the_messages() {
    check(3, || {
        let world = World::<1>::new(2);
        let sender = world.clone();
        let thread = thread::spawn(move || {
            assert!(sender.try_send(0, 1) && sender.try_send(0, 2));
            // As `fail_qp` and the connection manager close.
            sender.senders[0].tx().close.closed.store(1, SeqCst);
            sender.announce(0);
        });
        let mut got = Vec::new();
        while got.last() != Some(&Completion::Disconnected) {
            let new = world.poll_pairs(0, 4);
            if new.is_empty() {
                world.sleep(0);
            }
            got.extend(new);
        }
        let message = |imm| Completion::Receive { imm, len: 0 };
        assert_eq!(got, [message(1), message(2), Completion::Disconnected]);
        thread.join().unwrap();
        assert_eq!(world.poll(0), []);
    });
}
