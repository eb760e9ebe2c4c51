use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use netacc_device::Memory;
use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 1024;
const MARKS: Marks = Marks { ttl: 64, tos: 8 };

fn flow(capacity: usize) -> (Sender, Receiver, [Memory; 2]) {
    let (inbox, outbox) = (Memory::heap(inbox_len(capacity)), Memory::heap(OUTBOX_LEN));
    let mut sender = Sender::new(inbox.clone(), outbox.clone()).unwrap();
    sender.start(0);
    let receiver = Receiver::new(inbox.clone(), outbox.clone(), false).unwrap();
    (sender, receiver, [inbox, outbox])
}

fn send(sender: &mut Sender, bytes: &[u8]) -> Result<(), Refusal> {
    // SAFETY: one valid slice.
    unsafe { sender.send(std::iter::once((bytes.as_ptr(), bytes.len())), bytes.len(), MARKS, || 77) }
}

fn take(receiver: &mut Receiver) -> Option<Vec<u8>> {
    loop {
        let record = receiver.front()?;
        if receiver.claim(&record) {
            let mut bytes = vec![0; record.len()];
            // SAFETY: a buffer of that length.
            unsafe { receiver.copy(&record, 0, bytes.as_mut_ptr(), bytes.len()) };
            receiver.release(&record);
            return Some(bytes);
        }
    }
}

fn awake(receiver: &mut Receiver) {
    receiver.kernel_was_empty(receiver.sent_by_kernel());
    receiver.stay_awake();
}

fn by_kernel(sender: &mut Sender) {
    sender.begin_by_kernel(1);
    sender.end_by_kernel(1, true);
}

//= spec §10.2.4
//= type=test
//# A record lies in one piece; what is too short for it at the end of the ring is padding.
#[test]
fn datagrams_keep_their_boundaries_and_order() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    awake(&mut receiver);
    for round in 0..100u8 {
        for len in [0, 1, 7, 8, 9, 200] {
            assert_eq!(send(&mut sender, &vec![round; len]), Ok(()));
        }
        for len in [0, 1, 7, 8, 9, 200] {
            assert_eq!(take(&mut receiver), Some(vec![round; len]));
        }
        assert_eq!(take(&mut receiver), None);
    }
}

//= spec §10.3.2
//= type=test
//# A receiver that is about to sleep says so, with the next number, and looks at the ring again; if there is a record,
//# it does not sleep.
#[test]
fn a_full_ring_and_a_sleeper_refuse() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    assert_eq!(send(&mut sender, b"x"), Err(Refusal::Asleep), "nobody looks at the ring yet");
    awake(&mut receiver);
    assert_eq!(send(&mut sender, &[0; CAPACITY / 4 + 1]), Err(Refusal::TooLong));
    let sent = std::iter::from_fn(|| send(&mut sender, &[1; 56]).ok()).count();
    assert_eq!(sent, CAPACITY / 64);
    assert_eq!(send(&mut sender, &[1; 56]), Err(Refusal::Full));
    assert!(!receiver.fall_asleep(true), "a ring with datagrams keeps its receiver awake");
    while take(&mut receiver).is_some() {}
    assert!(receiver.fall_asleep(true));
    assert_eq!(send(&mut sender, b"x"), Err(Refusal::Asleep));
    receiver.close();
    assert_eq!(send(&mut sender, b"x"), Err(Refusal::Closed));
}

//= spec §10.4.2
//= type=test
//# A receiver takes a record only if as many datagrams of the flow have come by the kernel as the record says were
//# sent, or were dropped there.
#[test]
fn a_record_is_due_once_those_before_it_have_come() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    by_kernel(&mut sender);
    receiver.kernel_was_empty(receiver.sent_by_kernel());
    receiver.stay_awake();
    by_kernel(&mut sender);
    by_kernel(&mut sender);
    assert_eq!(send(&mut sender, b"x"), Ok(()));
    let record = receiver.front().unwrap();
    receiver.came_by_kernel(1);
    assert!(!receiver.is_due(&record));
    receiver.came_by_kernel(1);
    assert!(receiver.is_due(&record));
}

#[test]
fn a_record_does_not_wait_for_what_the_kernel_has_dropped() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    awake(&mut receiver);
    by_kernel(&mut sender);
    by_kernel(&mut sender);
    assert_eq!(send(&mut sender, b"x"), Ok(()));
    let record = receiver.front().unwrap();
    receiver.kernel_dropped(1);
    assert!(!receiver.is_due(&record));
    receiver.kernel_dropped(7);
    assert!(receiver.is_due(&record));
    // Those were of other flows: what goes by the kernel from now on is counted.
    by_kernel(&mut sender);
    assert!(receiver.claim(&record));
    receiver.release(&record);
    assert_eq!(send(&mut sender, b"y"), Ok(()));
    let record = receiver.front().unwrap();
    assert!(!receiver.is_due(&record));
}

//= spec §10.4.3
//= type=test
//# A receiver that has never found the kernel like that while no send went on is *new*, and takes no record.
#[test]
fn a_new_receiver_takes_no_record_until_the_kernel_is_empty() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    by_kernel(&mut sender);
    receiver.stay_awake();
    let sent = std::iter::from_fn(|| send(&mut sender, &[1; 56]).ok()).count();
    assert_eq!(sent, CAPACITY / 64);
    assert_eq!(send(&mut sender, &[1; 56]), Err(Refusal::Dropped), "by the kernel it could come before the others");
    let record = receiver.front().unwrap();
    assert!(!receiver.is_due(&record));
    receiver.kernel_was_empty(receiver.sent_by_kernel());
    assert!(receiver.is_due(&record));
    assert_eq!(send(&mut sender, &[1; 56]), Err(Refusal::Full));
}

//= spec §10.4.1
//= type=test
//# A sender counts its sends by the kernel, before they begin and after they have ended.
#[test]
fn a_send_that_goes_on_when_there_is_a_ring_is_counted() {
    let (inbox, outbox) = (Memory::heap(inbox_len(CAPACITY)), Memory::heap(OUTBOX_LEN));
    let mut sender = Sender::new(inbox.clone(), outbox.clone()).unwrap();
    let mut receiver = Receiver::new(inbox, outbox, false).unwrap();
    awake(&mut receiver);
    assert!(receiver.is_new(), "the sender does not count yet");
    sender.start(1);
    awake(&mut receiver);
    assert!(receiver.is_new());
    sender.end_by_kernel(1, true);
    assert_eq!(send(&mut sender, b"x"), Ok(()));
    let record = receiver.front().unwrap();
    assert!(!receiver.is_due(&record), "that datagram may come next");
    receiver.came_by_kernel(1);
    awake(&mut receiver);
    assert!(receiver.is_due(&record));
}

// Breaks if a new receiver counts a datagram that has come as one that will come, because its send goes on: then the next one by the
// kernel overtakes what the ring gets meanwhile.
#[test]
fn a_receiver_is_new_while_a_send_goes_on() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    receiver.stay_awake();
    sender.begin_by_kernel(1);
    receiver.came_by_kernel(1);
    awake(&mut receiver);
    sender.end_by_kernel(1, true);
    while send(&mut sender, &[1; 56]).is_ok() {}
    assert_eq!(send(&mut sender, b"x"), Err(Refusal::Dropped), "by the kernel it would come before the others");
    awake(&mut receiver);
    let record = receiver.front().unwrap();
    assert!(receiver.is_due(&record), "all before it have come");
}

#[test]
fn a_record_is_due_if_the_kernel_has_dropped_those_before_it() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    awake(&mut receiver);
    by_kernel(&mut sender);
    assert_eq!(send(&mut sender, b"x"), Ok(()));
    let record = receiver.front().unwrap();
    let before = receiver.sent_by_kernel();
    assert!(!receiver.is_due(&record));
    by_kernel(&mut sender);
    receiver.kernel_was_empty(before);
    assert!(receiver.is_due(&record));
    assert_eq!(take(&mut receiver), Some(b"x".into()));
    assert_eq!(send(&mut sender, b"y"), Ok(()));
    let record = receiver.front().unwrap();
    assert!(!receiver.is_due(&record), "another one went by the kernel meanwhile");
    receiver.kernel_was_empty(receiver.sent_by_kernel());
    assert!(receiver.is_due(&record));
}

//= spec §10.4.3
//= type=test
//# It counts at least as many then, and exactly as many if no other send has begun.
// Breaks if a receiver cannot take a record, and so cannot sleep, while a sender waits for a processor in a send by the kernel.
#[test]
fn a_send_that_goes_on_holds_no_record_back() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    awake(&mut receiver);
    by_kernel(&mut sender);
    assert_eq!(send(&mut sender, b"x"), Ok(()));
    sender.begin_by_kernel(1);
    awake(&mut receiver);
    assert_eq!(take(&mut receiver), Some(b"x".into()), "the kernel has dropped the one before");
    assert!(receiver.fall_asleep(true), "what is under way wakes it");
    receiver.stay_awake();
    sender.end_by_kernel(1, true);
    assert_eq!(send(&mut sender, b"y"), Ok(()));
    let record = receiver.front().unwrap();
    assert!(!receiver.is_due(&record), "that datagram may come next");
    receiver.came_by_kernel(1);
    assert!(receiver.is_due(&record));
    // One that has come although its send goes on still counts.
    assert_eq!(take(&mut receiver), Some(b"y".into()));
    sender.begin_by_kernel(1);
    receiver.came_by_kernel(1);
    awake(&mut receiver);
    sender.end_by_kernel(1, true);
    assert_eq!(send(&mut sender, b"z"), Ok(()));
    assert_eq!(take(&mut receiver), Some(b"z".into()));
}

//= spec §10.3.3
//= type=test
//# A sender places a record only if the receiver is awake, or dozes in the sleep during which the sender has sent a
//# datagram by the kernel.
#[test]
fn the_rest_of_a_burst_to_a_sleeper_takes_the_ring() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    awake(&mut receiver);
    assert!(receiver.fall_asleep(true));
    assert_eq!(send(&mut sender, b"first"), Err(Refusal::Asleep));
    by_kernel(&mut sender);
    assert_eq!(send(&mut sender, b"second"), Ok(()));
    receiver.came_by_kernel(1);
    receiver.stay_awake();
    assert_eq!(take(&mut receiver), Some(b"second".into()));
    assert!(receiver.fall_asleep(true));
    assert_eq!(send(&mut sender, b"third"), Err(Refusal::Asleep), "another sleep");
    by_kernel(&mut sender);
    assert!(receiver.fall_asleep(false));
    assert_eq!(
        send(&mut sender, b"fourth"),
        Err(Refusal::Asleep),
        "which thread wakes, and whether it looks, is unknown"
    );
}

// Breaks if a receiver writes to memory in which its sender has another flow by now.
#[test]
fn a_receiver_of_an_ended_flow_writes_nothing() {
    let (mut sender, mut receiver, [_, outbox]) = flow(CAPACITY);
    awake(&mut receiver);
    assert_eq!(send(&mut sender, &[1; 200]), Ok(()));
    assert_eq!(send(&mut sender, &[2; 200]), Ok(()));
    receiver.end();
    let words = || [HEAD, STATUS].map(|offset| outbox.word(offset).unwrap().load(SEQ));
    let before = words();
    assert!(!receiver.fall_asleep(true));
    assert_eq!(take(&mut receiver), Some(vec![1; 200]));
    receiver.stay_awake();
    assert_eq!(take(&mut receiver), Some(vec![2; 200]));
    assert!(receiver.fall_asleep(true));
    receiver.close();
    assert_eq!(words(), before);
}

/// The receiver cannot claim a record that it has looked at and the sender has taken back since.
#[test]
fn a_record_is_taken_by_one_end() {
    let (mut sender, mut receiver, [inbox, outbox]) = flow(CAPACITY);
    awake(&mut receiver);
    assert_eq!(send(&mut sender, b"first"), Ok(()));
    let record = receiver.front().unwrap();
    // The sender finds the receiver asleep after it has placed the record.
    outbox.word(STATUS).unwrap().store(State::Asleep as u64, SEQ);
    let word = inbox.word(RECORDS).unwrap();
    let taken_back = Header(record.header).with_kind(REVOKED).0;
    assert!(word.compare_exchange(record.header, taken_back, SEQ, SEQ).is_ok());
    assert!(!receiver.claim(&record));
    assert_eq!(receiver.front(), None);
}

const SEQ: std::sync::atomic::Ordering = std::sync::atomic::Ordering::SeqCst;

/// The kernel's socket: a queue on which one thread may sleep.
#[derive(Default)]
struct Kernel {
    queue: Mutex<VecDeque<u64>>,
    arrived: Condvar,
}

impl Kernel {
    fn carry(&self, sender: &mut Sender, number: u64) {
        sender.begin_by_kernel(1);
        self.queue.lock().unwrap().push_back(number);
        self.arrived.notify_one();
        sender.end_by_kernel(1, true);
    }
}

/// Sends the numbers below `count`, each on the ring or by the kernel. Breaks the test that calls it if one is lost, comes
/// twice or early, or if the receiver sleeps for ever.
fn run_threads(
    count: u64,
    capacity: usize,
    sleeps: impl Fn(u64) -> bool + Sync,
    must_take_kernel: impl Fn(u64) -> bool + Sync,
    looks_while_new: u32,
) -> (u64, u64) {
    let (mut sender, mut receiver, _) = flow(capacity);
    let kernel = Kernel::default();
    let (mut on_ring, mut by_kernel) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                let mut sent = match must_take_kernel(number) {
                    true => Err(Refusal::TooLong),
                    false => send(&mut sender, &number.to_le_bytes()),
                };
                while sent == Err(Refusal::Dropped) {
                    std::thread::yield_now();
                    sent = send(&mut sender, &number.to_le_bytes());
                }
                if sent.is_err() {
                    for reclaimed in sender.reclaim() {
                        kernel.carry(&mut sender, u64::from_le_bytes(reclaimed.bytes.try_into().unwrap()));
                    }
                    kernel.carry(&mut sender, number);
                }
            }
        });
        // As if others' datagrams kept the kernel's socket from being empty for a while.
        let mut looks = 0;
        for expected in 0..count {
            let number = loop {
                receiver.stay_awake();
                let front = receiver.front();
                if let Some(record) = front.filter(|record| receiver.is_due(record)) {
                    if receiver.claim(&record) {
                        break read(&mut receiver, &record);
                    }
                    continue;
                }
                let sent = receiver.sent_by_kernel();
                let mut queue = kernel.queue.lock().unwrap();
                if let Some(number) = queue.front().copied() {
                    if receiver.front().is_some_and(|record| receiver.is_due(&record)) {
                        continue;
                    }
                    queue.pop_front();
                    receiver.came_by_kernel(1);
                    by_kernel += 1;
                    break number;
                }
                looks += u32::from(front.is_some());
                if looks >= looks_while_new {
                    receiver.kernel_was_empty(sent);
                }
                if front.is_some() {
                    continue;
                }
                if sleeps(expected) && receiver.fall_asleep(true) {
                    while queue.is_empty() {
                        queue = kernel.arrived.wait(queue).unwrap();
                    }
                    let number = queue.pop_front().unwrap();
                    receiver.came_by_kernel(1);
                    by_kernel += 1;
                    break number;
                }
            };
            assert_eq!(number, expected);
        }
    });
    on_ring += count - by_kernel;
    (on_ring, by_kernel)
}

fn read(receiver: &mut Receiver, record: &Record) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(record.len(), 8);
    // SAFETY: a buffer of that length.
    unsafe { receiver.copy(record, 0, bytes.as_mut_ptr(), 8) };
    receiver.release(record);
    u64::from_le_bytes(bytes)
}

//= spec §10.2.4
//= type=test
//# If bit 39 is set, 8 bytes follow: the time at which the datagram was sent, in nanoseconds since 1970.
#[test]
fn records_have_marks_and_the_time_for_those_who_want_it() {
    for wants_time in [false, true] {
        let (inbox, outbox) = (Memory::heap(inbox_len(CAPACITY)), Memory::heap(OUTBOX_LEN));
        let mut sender = Sender::new(inbox.clone(), outbox.clone()).unwrap();
        sender.start(0);
        let mut receiver = Receiver::new(inbox, outbox, wants_time).unwrap();
        awake(&mut receiver);
        for round in 0..100u8 {
            assert_eq!(send(&mut sender, &[round; 21]), Ok(()));
            let record = receiver.front().unwrap();
            assert_eq!((record.len(), record.marks()), (21, MARKS));
            assert_eq!(receiver.time(&record), wants_time.then_some(77));
            assert_eq!(take(&mut receiver), Some(vec![round; 21]));
        }
    }
}

//= spec §10.4.5
//= type=test
//# A sender writes the processor on which it runs before a send by the kernel.
#[test]
fn a_sender_says_on_which_processor_it_runs() {
    let (mut sender, receiver, [inbox, _]) = flow(CAPACITY);
    assert_eq!(receiver.sender_processor(), None);
    for processor in [0, 5, u32::MAX] {
        sender.runs_on(processor);
        assert_eq!(receiver.sender_processor(), Some(processor));
    }
    inbox.word(PROCESSOR).unwrap().store(u64::MAX, SEQ);
    assert_eq!(receiver.sender_processor(), None, "no processor has this number");
}

#[test]
fn what_a_sender_drops_is_counted() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    by_kernel(&mut sender);
    receiver.stay_awake();
    assert!(sender.has_room_for(8, 8 * 56, 56) && !sender.has_room_for(16, 16 * 56, 56));
    while send(&mut sender, &[1; 56]).is_ok() {}
    assert_eq!(send(&mut sender, &[1; 56]), Err(Refusal::Dropped));
    assert_eq!(receiver.dropped(), 2);
}

//= spec §10.3.1
//= type=test
//# A receiver that is awake looks at the ring before it sleeps.
#[test]
fn between_threads_each_datagram_comes_once_and_in_order() {
    for capacity in [64, 1024, 1 << 16] {
        let (on_ring, by_kernel) = run_threads(100_000, capacity, |number| number % 3 == 0, |_| false, 0);
        assert_eq!(on_ring + by_kernel, 100_000);
    }
}

//= spec §10.3.5
//= type=test
//# A receiver that gives its ring back after that takes the records itself.
//= spec §10.3.5
//= type=test
//# A sender that ends a flow says so in the inbox, and then looks whether the ring was given back.
#[test]
fn the_ring_of_a_flow_that_ends_at_both_ends_is_read_by_one() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    awake(&mut receiver);
    assert_eq!(send(&mut sender, b"first"), Ok(()));
    assert_eq!(sender.end(), []);
    assert!(!receiver.give_back());
    assert_eq!(take(&mut receiver), Some(b"first".into()));

    let (mut sender, mut receiver, _) = flow(CAPACITY);
    awake(&mut receiver);
    assert_eq!(send(&mut sender, b"second"), Ok(()));
    assert!(receiver.give_back());
    assert_eq!(take(&mut receiver), None);
    assert_eq!(sender.end(), [Reclaimed { bytes: b"second".into(), marks: MARKS }]);
}

// Breaks if a datagram that must take the kernel overtakes those in the ring of a receiver that is new.
//= spec §10.4.4
//= type=test
//# Before a datagram by the kernel to a receiver that is new, the sender takes back the records that are not taken, as
//# in 10.3.4.
#[test]
fn between_threads_a_datagram_that_must_take_the_kernel_overtakes_none() {
    for round in 0..800 {
        let (on_ring, by_kernel) = run_threads(60, 1024, |_| false, |number| number % 5 == 3, round % 40);
        assert_eq!(on_ring + by_kernel, 60);
    }
}

#[test]
fn what_a_new_receiver_has_goes_by_the_kernel_before_what_must() {
    let (mut sender, mut receiver, _) = flow(CAPACITY);
    receiver.stay_awake();
    assert_eq!(send(&mut sender, b"first"), Ok(()));
    assert_eq!(send(&mut sender, b"second"), Ok(()));
    let expected = [b"first".to_vec(), b"second".to_vec()].map(|bytes| Reclaimed { bytes, marks: MARKS });
    assert_eq!(sender.reclaim(), expected);
    assert_eq!(sender.reclaim(), []);
    awake(&mut receiver);
    assert_eq!(take(&mut receiver), None);
    assert_eq!(send(&mut sender, b"third"), Ok(()));
    assert_eq!(sender.reclaim(), [], "the receiver counts what comes by the kernel");
    assert_eq!(take(&mut receiver), Some(b"third".into()));
}

//= spec §10.3.4
//= type=test
//# A receiver gives its ring back if another process may receive from its socket: it writes its head, and then that it
//# is closed and has given back, and takes no record after that.
//= spec §10.3.4
//= type=test
//# The sender takes back, the newest first, the records that are not taken, and sends their datagrams by the kernel in
//# their order, before any other of the flow.
#[test]
fn a_ring_that_is_given_back_is_the_senders() {
    let (mut sender, mut receiver, [_, outbox]) = flow(CAPACITY);
    awake(&mut receiver);
    // Around the end of the ring, with padding.
    for number in 0..20u8 {
        assert_eq!(send(&mut sender, &[number; 200]), Ok(()));
        assert_eq!(send(&mut sender, &[number; 9]), Ok(()));
        assert_eq!(take(&mut receiver), Some(vec![number; 200]));
        assert_eq!(take(&mut receiver), Some(vec![number; 9]));
    }
    for number in 0..3u8 {
        assert_eq!(send(&mut sender, &[number; 200]), Ok(()));
    }
    assert_eq!(take(&mut receiver), Some(vec![0; 200]));
    assert!(receiver.give_back());
    let words = [HEAD, STATUS].map(|offset| outbox.word(offset).unwrap().load(SEQ));
    assert_eq!(take(&mut receiver), None);
    assert_eq!(send(&mut sender, b"x"), Err(Refusal::Closed));
    let bytes: Vec<_> = sender.reclaim().into_iter().map(|reclaimed| reclaimed.bytes).collect();
    assert_eq!(bytes, [vec![1; 200], vec![2; 200]]);
    receiver.close();
    receiver.kernel_was_empty(receiver.sent_by_kernel());
    assert_eq!(words, [HEAD, STATUS].map(|offset| outbox.word(offset).unwrap().load(SEQ)), "it writes no more");
}

proptest! {
    //= spec §10.5
    //= type=test
    //# A false tail, head, length or kind ends the flow, and nothing else.
    /// Whatever a peer writes, the receiver reads within the inbox and comes to an end.
    #[test]
    fn a_hostile_sender_costs_its_flow_only(seed in any::<u64>(), tail in any::<u64>(), near in 0u64..4096) {
        let (_, mut receiver, [inbox, _]) = flow(CAPACITY);
        let mut x = seed | 1;
        for i in 0..CAPACITY / 8 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let word = if x.is_multiple_of(3) { READY | (x % 300) } else { x };
            inbox.word(RECORDS + 8 * i).unwrap().store(word, SEQ);
        }
        inbox.word(TAIL).unwrap().store(if seed.is_multiple_of(2) { tail } else { near }, SEQ);
        awake(&mut receiver);
        let taken = std::iter::from_fn(|| take(&mut receiver)).take(CAPACITY).count();
        prop_assert!(taken <= CAPACITY / 8);
    }

    /// Whatever a receiver writes into a ring that it gives back, the sender reads within it and comes to an end.
    #[test]
    fn a_hostile_receiver_gives_back_what_it_likes(words in prop::collection::vec(any::<u64>(), CAPACITY / 8), head in 0u64..400) {
        let (mut sender, mut receiver, [inbox, outbox]) = flow(CAPACITY);
        awake(&mut receiver);
        while send(&mut sender, &[7; 40]).is_ok() {}
        for (i, word) in words.iter().enumerate() {
            let word = if word % 3 == 0 { READY | ((word >> 40) % 300) } else { *word };
            inbox.word(RECORDS + 8 * i).unwrap().store(word, SEQ);
        }
        outbox.word(HEAD).unwrap().store(head, SEQ);
        outbox.word(STATUS).unwrap().store(Status::new(State::Closed, false, false, 0).given_back().0, SEQ);
        let bytes: usize = sender.reclaim().iter().map(|reclaimed| reclaimed.bytes.len()).sum();
        prop_assert!(bytes <= CAPACITY);
    }

    #[test]
    fn a_hostile_receiver_costs_its_flow_only(head in any::<u64>(), state in any::<u64>(), sends in 1usize..100) {
        let (mut sender, mut receiver, [_, outbox]) = flow(CAPACITY);
        awake(&mut receiver);
        for i in 0..sends {
            if i == sends / 2 {
                outbox.word(HEAD).unwrap().store(head, SEQ);
                outbox.word(STATUS).unwrap().store(state, SEQ);
            }
            let _ = send(&mut sender, &[7; 40]);
            if i % 3 == 0 {
                prop_assert!(sender.reclaim().len() <= CAPACITY / 8);
            }
        }
        if send(&mut sender, &[7; 40]) == Err(Refusal::Closed) {
            prop_assert_eq!(send(&mut sender, &[7; 40]), Err(Refusal::Closed), "for good");
        }
    }
}
