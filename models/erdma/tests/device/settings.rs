//! Each setting, in both positions.

use std::time::Duration;

use netacc_erdma::{Completes, EmptyReceiveQueue, Flushes};

use crate::driver::{sqe, Lab, Qp, Request, ALL, DOMAIN};
use crate::events::statuses;

const FLUSHED: u8 = 15;
const RETRY_EXCEEDED: u8 = 16;

fn nothing() -> Vec<u8> {
    sqe::write(0, 0, [0; 4], (0, 0), &[])
}

#[test]
fn completes() {
    for (completes, early) in [(Completes::Acknowledged, 0), (Completes::Sent, 1)] {
        let (mut lab, mut qps, mut cqs) = Lab::connected();
        lab.set(0, |settings| settings.completes = completes);
        lab.set(1, |settings| settings.stall_receive = true);
        lab.post_send(&mut qps[0], &nothing());
        assert_eq!(lab.drain(0, &mut cqs[0]).len(), early);
        lab.set(1, |settings| settings.stall_receive = false);
        assert_eq!(lab.drain(0, &mut cqs[0]).len(), 1 - early);
    }
}

// Breaks if a driver whose requests complete early can make the device keep messages without a bound.
#[test]
fn early_completions_are_bounded() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.set(0, |settings| settings.completes = Completes::Sent);
    lab.set(1, |settings| settings.stall_receive = true);
    let mut done = 0;
    for _ in 0..130 {
        lab.post_send(&mut qps[0], &nothing());
        done += lab.drain(0, &mut cqs[0]).len();
    }
    assert_eq!(done, 128);
    lab.set(1, |settings| settings.stall_receive = false);
    assert_eq!(lab.drain(0, &mut cqs[0]).len(), 2);
    assert_eq!(lab.async_events(0), []);
    // A reported request is not flushed.
    lab.set(1, |settings| settings.stall_receive = true);
    lab.post_send(&mut qps[0], &nothing());
    assert_eq!(lab.drain(0, &mut cqs[0]).len(), 1);
    lab.stop(&qps[0]);
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
}

// Breaks if the refusal of a completed request is lost: the connection must end all the same.
#[test]
fn refused_after_completion() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    let near = lab.register(0, 64, ALL, DOMAIN);
    lab.set(0, |settings| settings.completes = Completes::Sent);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0x7700), &[sqe::of(&near, 8)]));
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 0)]);
    assert_eq!(lab.async_events(0), [(0, qps[0].qpn)]);
}

#[test]
fn an_empty_receive_queue_may_stall() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.set(1, |settings| settings.empty_receive_queue = EmptyReceiveQueue::Stall);
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
    lab.post_send(&mut qps[0], &nothing());
    assert_eq!(lab.drain(0, &mut cqs[0]), [], "the WRITE waits behind it");
    lab.post_receive(&mut qps[1], 0, 0, 0);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(2, 0), (0, 0)]);
    assert_eq!(lab.drain(1, &mut cqs[1]).len(), 1);
    assert_eq!(lab.async_events(1), []);
}

#[test]
fn flushes() {
    for (flushes, before, after) in [(Flushes::None, 0, 0), (Flushes::Before, 1, 0), (Flushes::All, 1, 2)] {
        let (mut lab, mut qps, mut cqs) = Lab::connected();
        lab.set(0, |settings| settings.flushes = flushes);
        lab.post_receive(&mut qps[0], 0, 0, 0);
        lab.stop(&qps[0]);
        assert_eq!(lab.drain(0, &mut cqs[0]).len(), before, "{flushes:?}");
        lab.post_send(&mut qps[0], &nothing());
        lab.post_receive(&mut qps[0], 0, 0, 0);
        let done = lab.drain(0, &mut cqs[0]);
        assert_eq!(done.len(), after, "{flushes:?}");
        assert!(done.iter().all(|cqe| cqe.status == FLUSHED));
    }
}

#[test]
fn stalls() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    for (function, stall) in [(0, true), (1, false)] {
        let set = |lab: &mut Lab, on| {
            lab.set(
                function,
                |settings| if stall { settings.stall_transmit = on } else { settings.stall_receive = on },
            );
        };
        set(&mut lab, true);
        lab.post_send(&mut qps[0], &nothing());
        assert_eq!(lab.drain(0, &mut cqs[0]), []);
        // The other direction continues.
        lab.post_send(&mut qps[1], &nothing());
        assert_eq!(lab.drain(1, &mut cqs[1]).len(), 1);
        set(&mut lab, false);
        assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 0)]);
    }
}

// Breaks if a queue pair that waits never gives up, gives up with another status, or although there is progress.
#[test]
fn retry_limit() {
    let limit = Duration::from_millis(100);
    for stall_transmit in [true, false] {
        let (mut lab, mut qps, mut cqs) = Lab::connected();
        lab.set(0, |settings| (settings.retry_limit, settings.stall_transmit) = (Some(limit), stall_transmit));
        lab.set(1, |settings| settings.stall_receive = !stall_transmit);
        lab.post_send(&mut qps[0], &nothing());
        lab.post_send(&mut qps[0], &nothing());
        lab.advance(limit - Duration::from_nanos(1));
        assert_eq!(lab.drain(0, &mut cqs[0]), []);
        lab.advance(Duration::from_nanos(1));
        assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, RETRY_EXCEEDED), (0, FLUSHED)]);
        assert_eq!(lab.async_events(0), [(0, qps[0].qpn)]);
    }
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.set(0, |settings| settings.retry_limit = Some(limit));
    lab.post_send(&mut qps[0], &nothing());
    lab.advance(2 * limit);
    lab.post_send(&mut qps[0], &nothing());
    lab.advance(2 * limit);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 0), (0, 0)]);
}

#[test]
fn commands_may_be_mute() {
    let mut lab = Lab::started(1);
    lab.set(0, |settings| settings.command_mute = true);
    lab.post_command(0, &Request::new(1, 3));
    lab.advance(Duration::from_secs(20));
    assert_eq!(lab.poll_command(0), None);
    lab.set(0, |settings| settings.command_mute = false);
    assert_eq!(lab.poll_command(0).map(|(status, _)| status), Some(0));
}

// Breaks if commands do not take their times, one after the other.
#[test]
fn commands_take_time() {
    let us = Duration::from_micros;
    let mut lab = Lab::started(1);
    lab.set(0, |settings| {
        settings.command_delay = us(10);
        settings.command_times.deregister_memory = us(100);
        settings.command_times.register_per_mib = us(1 << 20);
    });
    lab.post_command(0, &Request::new(1, 3));
    lab.post_command(0, &Request::new(0, 9));
    lab.post_command(0, &Request::new(0, 8).u32(24, 3));
    let mut took = Vec::new();
    for step in 1..300 {
        lab.advance(us(1));
        took.extend(lab.poll_command(0).map(|_| step));
    }
    assert_eq!(took, [10, 120, 133]);
}

#[test]
fn commands_may_fail() {
    let mut lab = Lab::started(1);
    lab.set(0, |settings| settings.failing_commands.extend([(1, 3)]));
    assert_ne!(lab.command(0, Request::new(1, 3)).0, 0);
    assert_eq!(lab.command(0, Request::new(1, 5)).0, 0);
    assert_eq!(lab.fabric.counters(0).commands_refused, 1);
}

#[test]
fn interrupts_may_be_lost_or_doubled() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    let round = |lab: &mut Lab, qp: &mut Qp, cq: &mut crate::driver::Cq| {
        lab.arm(0, cq, false);
        lab.post_send(qp, &nothing());
        lab.drain(0, cq);
        lab.interrupts(0).len()
    };
    lab.interrupts(0);
    lab.set(0, |settings| settings.lose_interrupts = 2);
    let seen = [(); 3].map(|()| round(&mut lab, &mut qps[0], &mut cqs[0]));
    assert_eq!(seen, [0, 0, 1]);
    lab.set(0, |settings| settings.lose_interrupts = 1);
    lab.command(0, Request::new(1, 3));
    assert_eq!(lab.fabric.settings(0).lose_interrupts, 1, "not one of the command queue");
    lab.set(0, |settings| settings.lose_interrupts = 0);
    lab.interrupts(0);
    assert_eq!(lab.events(0).len(), 3, "the events are there");
    lab.set(0, |settings| settings.duplicate_interrupts = true);
    assert_eq!(round(&mut lab, &mut qps[0], &mut cqs[0]), 2);
}

// Breaks if a device that reports one block of queue pairs takes more.
#[test]
fn limits() {
    let mut lab = Lab::started(1);
    let cq = lab.create_cq(0, 6);
    let base = lab.allocate(0, 4096);
    lab.set(0, |settings| (settings.limits.qp_blocks, settings.limits.log_max_recv_wr) = (1, 2));
    assert_eq!(lab.command(0, crate::driver::create_qp(1024, cq.cqn, DOMAIN, base, base).u32(12, 2 << 20)).0, 2);
    assert_eq!(lab.command(0, crate::driver::create_qp(1023, cq.cqn, DOMAIN, base, base)).0, 2, "8 receives");
    assert_eq!(lab.command(0, crate::driver::create_qp(1023, cq.cqn, DOMAIN, base, base).u32(12, 2 << 20)).0, 0);
}
