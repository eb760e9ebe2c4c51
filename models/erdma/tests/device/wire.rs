//! The modelled wire below the real rings: loss, delay, rate, and giving up.

use std::time::Duration;

use netacc_erdma::wire::modelled::{WireSettings, MILLION};

use crate::driver::{sqe, Cq, Lab, Mr, Qp, ALL, DOMAIN};
use crate::events::statuses;

const RETRY_EXCEEDED: u8 = 16;

fn on(settings: WireSettings) -> (Lab, [Qp; 2], [Cq; 2], [Mr; 2]) {
    let (mut lab, qps, cqs) = Lab::connected();
    lab.fabric.set_wire(settings);
    let mrs = [0, 1].map(|function| lab.register(function, 256 << 10, ALL, DOMAIN));
    (lab, qps, cqs, mrs)
}

fn lossy() -> WireSettings {
    let us = Duration::from_micros;
    WireSettings {
        loss_ppm: MILLION / 10,
        duplicate_ppm: MILLION / 20,
        delay: us(10),
        mtu_bytes: 1024,
        retry_timeout: us(500),
        retry_count: 50,
        ..WireSettings::default()
    }
}

// Breaks if a lost or doubled packet has a visible effect: in bytes, order, or an extra completion.
#[test]
fn everything_arrives_once_and_in_order() {
    let (mut lab, mut qps, mut cqs, [near, far]) = on(lossy());
    lab.post_receive(&mut qps[1], far.va + 8192, 4096, far.key);
    let bytes: Vec<u8> = (0..65536u32).map(|at| ((at * 31) >> 3) as u8).collect();
    lab.poke(0, near.physical, &bytes);
    let to = |at| (far.va + at, far.key);
    lab.write_request(&mut qps[0], &sqe::write(0, 0, [0; 4], to(0), &[(near.va, 65536, near.key)]));
    lab.write_request(&mut qps[0], &sqe::send(2, 0, [0; 4], &[(near.va + 7, 4096, near.key)]));
    lab.write_request(&mut qps[0], &sqe::read(0, to(4096), (near.va + 100_000, 30_000, near.key)));
    lab.ring_send(&qps[0]);
    lab.advance(Duration::from_secs(1));
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 0), (2, 0), (1, 0)]);
    assert_eq!(statuses(&lab.drain(1, &mut cqs[1])), [(4, 0)]);
    let mut expected = bytes.clone();
    expected[8192..8192 + 4096].copy_from_slice(&bytes[7..7 + 4096]);
    assert!(lab.peek(1, far.physical, 65536) == expected);
    assert!(lab.peek(0, near.physical + 100_000, 30_000) == expected[4096..4096 + 30_000]);
}

// Breaks if the time on the wire differs from the setting.
#[test]
fn delay_and_rate() {
    let delay = Duration::from_micros(100);
    let (mut lab, mut qps, mut cqs, _) = on(WireSettings { delay, ..WireSettings::default() });
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    lab.advance(2 * delay - Duration::from_nanos(1));
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    lab.advance(Duration::from_micros(1));
    assert_eq!(lab.drain(0, &mut cqs[0]).len(), 1, "there and back");

    // 100,000 bytes at 1 Gb/s are 800 us, and a little for headers.
    let settings = WireSettings { rate_bps: 1_000_000_000, ..WireSettings::default() };
    let (mut lab, mut qps, mut cqs, [near, far]) = on(settings);
    let request = sqe::write(0, 0, [0; 4], (far.va, far.key), &[(near.va, 100_000, near.key)]);
    lab.post_send(&mut qps[0], &request);
    lab.advance(Duration::from_micros(800));
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    lab.advance(Duration::from_micros(40));
    assert_eq!(lab.drain(0, &mut cqs[0]).len(), 1);
}

// Breaks if a fenced request does not wait for the READ whose data it sends.
#[test]
fn fences_hold() {
    let delay = Duration::from_micros(100);
    let (mut lab, mut qps, mut cqs, [near, far]) = on(WireSettings { delay, ..WireSettings::default() });
    lab.poke(1, far.physical, &[7; 8]);
    lab.write_request(&mut qps[0], &sqe::read(0, (far.va, far.key), sqe::of(&near, 8)));
    let write = sqe::write(0, sqe::FENCE, [0; 4], (far.va + 64, far.key), &[sqe::of(&near, 8)]);
    lab.write_request(&mut qps[0], &write);
    lab.ring_send(&qps[0]);
    lab.advance(5 * delay);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(1, 0), (0, 0)]);
    assert_eq!(lab.peek(1, far.physical + 64, 8), [7; 8]);
}

// Breaks if a dead wire is never given up, or the driver gets no event.
#[test]
fn retries_are_exhausted() {
    let settings = WireSettings { loss_ppm: MILLION, retry_count: 2, ..lossy() };
    let (mut lab, mut qps, mut cqs, _) = on(settings);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    lab.advance(Duration::from_micros(1400));
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    lab.advance(Duration::from_secs(1));
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, RETRY_EXCEEDED)]);
    assert_eq!(lab.async_events(0), [(0, qps[0].qpn)]);
}

// Breaks if messages overtake one another where the wire changes, or stop.
#[test]
fn settings_change_under_traffic() {
    let (mut lab, mut qps, mut cqs, _) = on(WireSettings::default());
    let slow = WireSettings { delay: Duration::from_millis(1), ..WireSettings::default() };
    for round in 0..6u32 {
        lab.fabric.set_wire(if round % 2 == 1 { slow.clone() } else { WireSettings::default() });
        lab.post_receive(&mut qps[1], 0, 0, 0);
        lab.post_send(&mut qps[0], &sqe::send(3, 0, round.to_be_bytes(), &[]));
    }
    lab.advance(Duration::from_millis(10));
    let seen: Vec<u32> = lab.drain(1, &mut cqs[1]).iter().map(|cqe| u32::from_le_bytes(cqe.extra)).collect();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    assert_eq!(lab.drain(0, &mut cqs[0]).len(), 6);
    // Everything is answered: the next message is copied again.
    lab.fabric.set_wire(WireSettings::default());
    lab.post_receive(&mut qps[1], 0, 0, 0);
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
    assert_eq!(lab.drain(1, &mut cqs[1]).len(), 1);
}

// Breaks if a refusal ends differently for the wire that carried it.
#[test]
fn refusals_come_back() {
    let (mut lab, mut qps, mut cqs, [near, _]) = on(lossy());
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0x7700), &[sqe::of(&near, 8)]));
    lab.advance(Duration::from_secs(1));
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 3)]);
    assert_eq!(lab.async_events(0), [(0, qps[0].qpn)]);
    assert_eq!(lab.async_events(1), [(2, qps[1].qpn)]);
}

// Breaks if messages in flight reach a successor of the queue pair, or the wire is never quiet again.
#[test]
fn destroyed_under_way() {
    let (mut lab, mut qps, mut cqs, _) = on(lossy());
    lab.post_receive(&mut qps[1], 0, 0, 0);
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
    for qp in qps {
        assert_eq!(lab.command(qp.function, crate::driver::Request::new(0, 2).u32(8, qp.qpn)).0, 0);
    }
    lab.advance(Duration::from_secs(1));
    for function in [0, 1] {
        assert_eq!(lab.drain(function, &mut cqs[function]), []);
    }
    lab.advance(Duration::from_secs(3600));
    assert_eq!(lab.fabric.next_deadline(), None);
}
