//! Owner bits, arming and events.

use crate::driver::{sqe, Cqe, Lab};

fn no_op(lab: &mut Lab, qp: &mut crate::driver::Qp) {
    lab.post_send(qp, &sqe::write(0, 0, [0; 4], (0, 0), &[]));
}

// Breaks if an owner bit is wrong in any round of a ring: the provider would poll old entries, or none. The send queue's
// indices pass 2^16 here, too.
#[test]
fn rings_wrap() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    for round in 0..70_000u32 {
        no_op(&mut lab, &mut qps[0]);
        let done = lab.poll(0, &mut cqs[0]);
        assert_eq!(done.map(|cqe| (cqe.status, cqe.index)), Some((0, round & 0xffff)), "round {round}");
        assert_eq!(lab.poll(0, &mut cqs[0]), None);
    }
}

// Breaks if receives are counted wrongly after 2^16 of them.
#[test]
fn receives_wrap() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    for round in 0..66_000u32 {
        lab.post_receive(&mut qps[1], 0, 0, 0);
        lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
        let done = lab.drain(1, &mut cqs[1]);
        assert_eq!(done.iter().map(|cqe| (cqe.status, cqe.index)).collect::<Vec<_>>(), [(0, round & 0xffff)]);
        lab.drain(0, &mut cqs[0]);
    }
}

// Breaks if a queue that is not armed interrupts, or an armed one does so twice.
#[test]
fn one_event_for_one_arming() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.interrupts(0);
    no_op(&mut lab, &mut qps[0]);
    assert!(lab.interrupts(0).is_empty(), "not armed");
    lab.drain(0, &mut cqs[0]);
    lab.arm(0, &cqs[0], false);
    assert!(lab.interrupts(0).is_empty(), "nothing new");
    no_op(&mut lab, &mut qps[0]);
    no_op(&mut lab, &mut qps[0]);
    assert_eq!(lab.interrupts(0), [1]);
    assert_eq!(lab.events(0), [cqs[0].cqn]);
}

// Breaks if a completion between the last poll and the arming waits for the next completion.
#[test]
fn arming_is_not_too_late() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    no_op(&mut lab, &mut qps[0]);
    lab.arm(0, &cqs[0], false);
    assert_eq!(lab.events(0), [cqs[0].cqn]);
    lab.drain(0, &mut cqs[0]);
    // Not armed any more.
    lab.interrupts(0);
    no_op(&mut lab, &mut qps[0]);
    assert!(lab.interrupts(0).is_empty());
}

// Breaks if arming for solicited completions fires for others, or not for these, or not for failures.
#[test]
fn solicited_completions() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.interrupts(1);
    for _ in 0..4 {
        lab.post_receive(&mut qps[1], 0, 0, 0);
    }
    lab.arm(1, &cqs[1], true);
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
    assert!(lab.interrupts(1).is_empty());
    lab.post_send(&mut qps[0], &sqe::send(2, sqe::SOLICITED, [0; 4], &[]));
    assert_eq!(lab.interrupts(1), [1]);
    // A solicited one that was not polled counts, one that was does not.
    lab.arm(1, &cqs[1], true);
    assert_eq!(lab.interrupts(1), [1]);
    lab.drain(1, &mut cqs[1]);
    lab.arm(1, &cqs[1], true);
    assert!(lab.interrupts(1).is_empty());
    lab.stop(&qps[1]);
    assert!(lab.interrupts(1).contains(&1), "a flush");
}

// Breaks if the driver, which takes some events for an interrupt, is not interrupted again for the rest.
#[test]
fn event_queues_interrupt_again() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    for _ in 0..2 {
        lab.arm(0, &cqs[0], false);
        no_op(&mut lab, &mut qps[0]);
        lab.drain(0, &mut cqs[0]);
    }
    lab.interrupts(0);
    lab.doorbell(0, 0x108, 1 << 31 | 1);
    assert_eq!(lab.interrupts(0), [1], "one was handled, one is left");
    assert_eq!(lab.events(0).len(), 2);
    lab.ring_events(0);
    assert!(lab.interrupts(0).is_empty(), "all were handled");
    lab.doorbell(0, 0x108, 1 << 31 | 100);
    assert!(lab.interrupts(0).is_empty(), "a number that was never produced");
}

// Breaks if a full event queue is overwritten, or its owner bits are wrong in a later round.
#[test]
fn event_queues_fill_and_wrap() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    for round in 0..5 {
        for _ in 0..11 {
            lab.arm(0, &cqs[0], false);
            no_op(&mut lab, &mut qps[0]);
            lab.drain(0, &mut cqs[0]);
        }
        assert_eq!(lab.events(0).len(), 8, "round {round}");
        lab.ring_events(0);
        assert_eq!(lab.fabric.counters(0).events_lost, 3 * (round + 1));
    }
}

// Breaks if a completion queue whose memory is not there fails silently.
#[test]
fn completion_queues_without_memory() {
    let mut lab = Lab::started(2);
    assert_eq!(lab.command(0, crate::driver::create_cq(50, 0, 6, 1)).0, 0);
    let other = lab.create_cq(1, 6);
    let mut qps = [lab.create_qp(0, 50, 0), lab.create_qp(1, other.cqn, 0)];
    lab.connect(&mut qps);
    no_op(&mut lab, &mut qps[0]);
    assert_eq!(lab.async_events(0), [(3, 50)]);
}

// Breaks if the commands' event queue does not report a command, or reports each one without being armed.
#[test]
fn commands_interrupt_when_armed() {
    let mut lab = Lab::started(1);
    lab.interrupts(0);
    lab.command(0, crate::driver::Request::new(1, 3));
    assert!(lab.interrupts(0).is_empty());
    lab.doorbell(0, 0x300, 1 << 31 | 2);
    lab.command(0, crate::driver::Request::new(1, 3));
    lab.command(0, crate::driver::Request::new(1, 3));
    assert_eq!(lab.interrupts(0), [0]);
    lab.doorbell(0, 0x300, 1 << 31 | 3);
    assert_eq!(lab.interrupts(0), [0], "one was not polled");
}

/// For other modules.
pub(crate) fn statuses(done: &[Cqe]) -> Vec<(u8, u8)> {
    done.iter().map(|cqe| (cqe.opcode, cqe.status)).collect()
}
