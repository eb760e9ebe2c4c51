//! Refusals: keys, bounds, rights, domains, states, depths and malformed requests; and how the connection ends then.

use crate::driver::{sqe, Cq, Lab, Qp, ALL, ATOMIC, DOMAIN, LOCAL_READ, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE};
use crate::events::statuses;

const FLUSHED: u8 = 15;
const QP_FATAL: u32 = 0;
const EMPTY_RECEIVE_QUEUE: u32 = 1;
const ACCESS_ERROR: u32 = 2;

/// Status at the requester of one request on a fresh pair.
struct Outcome {
    status: u8,
    near: Vec<(u32, u32)>,
    far: Vec<(u32, u32)>,
    qps: [Qp; 2],
}

fn attempt(prepare: impl FnOnce(&mut Lab, &mut [Qp; 2]) -> Vec<u8>) -> Outcome {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    for function in [0, 1] {
        lab.set(function, |settings| settings.limits.atomics = true);
    }
    let request = prepare(&mut lab, &mut qps);
    lab.post_send(&mut qps[0], &request);
    let done = lab.drain(0, &mut cqs[0]);
    assert_eq!(done.len(), 1, "{done:?}");
    Outcome { status: done[0].status, near: lab.async_events(0), far: lab.async_events(1), qps }
}

/// It is the requester's own fault: its queue pair fails, the peer's does not.
fn refused_here(why: &str, status: u8, prepare: impl FnOnce(&mut Lab, &mut [Qp; 2]) -> Vec<u8>) {
    let outcome = attempt(prepare);
    assert_eq!(outcome.status, status, "{why}");
    assert_eq!(outcome.near, [(QP_FATAL, outcome.qps[0].qpn)], "{why}");
    assert_eq!(outcome.far, [], "{why}");
}

/// The responder refuses: both queue pairs fail.
fn refused_there(why: &str, status: u8, prepare: impl FnOnce(&mut Lab, &mut [Qp; 2]) -> Vec<u8>) {
    let outcome = attempt(prepare);
    assert_eq!(outcome.status, status, "{why}");
    assert_eq!(outcome.near, [(QP_FATAL, outcome.qps[0].qpn)], "{why}");
    assert_eq!(outcome.far, [(ACCESS_ERROR, outcome.qps[1].qpn)], "{why}");
}

fn write_from(piece: sqe::Piece) -> Vec<u8> {
    sqe::write(0, 0, [0; 4], (0, 0), &[piece])
}

#[test]
fn local_memory_to_send() {
    let with = |rights, domain, piece: fn(u64, u32) -> sqe::Piece| {
        move |lab: &mut Lab, _: &mut [Qp; 2]| {
            let mr = lab.register(0, 5000, rights, domain);
            write_from(piece(mr.va, mr.key))
        }
    };
    refused_here("no such key", 10, with(ALL, DOMAIN, |va, key| (va, 8, key + 0x100)));
    refused_here("another low byte of the key", 10, with(ALL, DOMAIN, |va, key| (va, 8, key + 1)));
    refused_here("before it", 11, with(ALL, DOMAIN, |va, key| (va - 1, 8, key)));
    refused_here("behind it", 11, with(ALL, DOMAIN, |va, key| (va + 4993, 8, key)));
    refused_here("longer than it", 11, with(ALL, DOMAIN, |va, key| (va, 5001, key)));
    refused_here("as long as can be", 11, with(ALL, DOMAIN, |va, key| (va, u32::MAX, key)));
    refused_here("not to be read", 12, with(ALL & !LOCAL_READ, DOMAIN, |va, key| (va, 8, key)));
    refused_here("of another domain", 13, with(ALL, DOMAIN + 1, |va, key| (va, 8, key)));
    refused_here("beyond all addresses", 14, with(ALL, DOMAIN, |_, key| (u64::MAX - 6, 8, key)));
}

#[test]
fn local_memory_to_read_into() {
    let with = |rights, domain, sink: fn(u64, u32) -> sqe::Piece| {
        move |lab: &mut Lab, _: &mut [Qp; 2]| {
            let (near, far) = (lab.register(0, 5000, rights, domain), lab.register(1, 8000, ALL, DOMAIN));
            sqe::read(0, (far.va, far.key), sink(near.va, near.key))
        }
    };
    refused_here("no such key", 10, with(ALL, DOMAIN, |va, key| (va, 8, key + 0x100)));
    refused_here("longer than it", 11, with(ALL, DOMAIN, |va, key| (va, 5001, key)));
    refused_here("not to be written", 12, with(ALL & !LOCAL_WRITE, DOMAIN, |va, key| (va, 8, key)));
    refused_here("of another domain", 13, with(ALL, DOMAIN + 1, |va, key| (va, 8, key)));
    refused_here("beyond all addresses", 14, with(ALL, DOMAIN, |_, key| (u64::MAX - 6, 8, key)));
}

#[test]
fn remote_memory() {
    #[derive(Clone, Copy)]
    enum By {
        Write,
        Read,
        Atomic,
    }
    let with = |by, rights, domain, at: fn(u64, u32) -> (u64, u32)| {
        move |lab: &mut Lab, _: &mut [Qp; 2]| {
            let (near, far) = (lab.register(0, 64, ALL, DOMAIN), lab.register(1, 5000, rights, domain));
            let (at, sink) = (at(far.va, far.key), sqe::of(&near, 8));
            match by {
                By::Write => sqe::write(0, 0, [0; 4], at, &[sink]),
                By::Read => sqe::read(0, at, sink),
                By::Atomic => sqe::atomic(18, 1, 0, at, sink),
            }
        }
    };
    for (by, right) in [(By::Write, REMOTE_WRITE), (By::Read, REMOTE_READ), (By::Atomic, ATOMIC)] {
        refused_there("no such key", 3, with(by, ALL, DOMAIN, |va, key| (va, key + 0x100)));
        refused_there("another low byte of the key", 3, with(by, ALL, DOMAIN, |va, key| (va, key + 1)));
        refused_there("before it", 4, with(by, ALL, DOMAIN, |va, key| (va - 1, key)));
        refused_there("behind it", 4, with(by, ALL, DOMAIN, |va, key| (va + 4993, key)));
        refused_there("not permitted", 5, with(by, ALL & !right, DOMAIN, |va, key| (va, key)));
        refused_there("of another domain", 6, with(by, ALL, DOMAIN + 1, |va, key| (va, key)));
        refused_there("beyond all addresses", 7, with(by, ALL, DOMAIN, |_, key| (u64::MAX - 6, key)));
    }
    refused_there("not aligned", 4, with(By::Atomic, ALL, DOMAIN, |va, key| (va + 4, key)));
}

// Breaks if a refused operation was executed in part.
#[test]
fn a_refused_operation_writes_nothing() {
    let (mut lab, mut qps, _) = Lab::connected();
    let (near, far) = (lab.register(0, 8192, ALL, DOMAIN), lab.register(1, 5000, ALL, DOMAIN));
    lab.poke(0, near.physical, &[1; 8192]);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (far.va, far.key), &[sqe::of(&near, 5001)]));
    assert_eq!(lab.peek(1, far.physical, 5001), [0; 5001]);
}

#[test]
fn malformed_requests() {
    let raw = |change: fn(&mut u64)| {
        move |_: &mut Lab, _: &mut [Qp; 2]| {
            let mut request = sqe::write(0, 0, [0; 4], (0, 0), &[]);
            let mut header = u64::from_le_bytes(request[..8].try_into().expect("eight bytes"));
            change(&mut header);
            request[..8].copy_from_slice(&header.to_le_bytes());
            request
        }
    };
    for code in [4, 5, 6, 7, 8, 10, 11, 12, 19, 31] {
        let (mut lab, mut qps, mut cqs) = Lab::connected();
        let mut request = sqe::write(0, 0, [0; 4], (0, 0), &[]);
        request[..8].copy_from_slice(&(code << 27 | sqe::SIGNALED).to_le_bytes());
        lab.post_send(&mut qps[0], &request);
        assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(code as u8, 8)]);
    }
    refused_here("seven pieces", 8, raw(|header| *header |= 7 << 56));
    refused_here("pieces beyond the request", 8, raw(|header| *header |= 1 << 56));
    refused_here("inline beyond the request", 8, raw(|header| *header |= sqe::INLINE | 1 << 56));
    refused_here("more inline than permitted", 8, |_, _| {
        let mut request = sqe::send_inline(0, &[0; 112]);
        request[7] = 97;
        request
    });
    refused_here("of another queue pair", 8, raw(|header| *header |= 1 << 51));
    refused_here("a READ without its source", 8, raw(|header| *header |= 1 << 27));
    refused_here("an atomic of four bytes", 8, |lab, _| {
        let (near, far) = (lab.register(0, 64, ALL, DOMAIN), lab.register(1, 64, ALL, DOMAIN));
        sqe::atomic(17, 0, 0, (far.va, far.key), (near.va, 4, near.key))
    });
    refused_here("more than six pieces", 8, |lab, _| {
        let mr = lab.register(0, 64, ALL, DOMAIN);
        sqe::send(2, 0, [0; 4], &[(mr.va, 1, mr.key); 7])
    });
}

// Breaks if operations that the device does not offer are executed.
#[test]
fn atomics_are_off_at_first() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    let (near, far) = (lab.register(0, 64, ALL, DOMAIN), lab.register(1, 64, ALL, DOMAIN));
    lab.post_send(&mut qps[0], &sqe::atomic(18, 1, 0, (far.va, far.key), sqe::of(&near, 8)));
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(18, 8)]);
}

// Breaks if a request of five blocks, or one that was posted in part, is accepted.
#[test]
fn blocks_that_were_not_posted() {
    for (blocks, posted) in [(5u64, 5), (8, 8), (2, 1)] {
        let (mut lab, mut qps, mut cqs) = Lab::connected();
        let header = (blocks - 1) << 52 | u64::from(qps[0].qpn) << 32 | sqe::SIGNALED;
        let mut bytes = vec![0; posted * 32];
        bytes[..8].copy_from_slice(&header.to_le_bytes());
        lab.write_raw(&mut qps[0], &bytes);
        lab.ring_send(&qps[0]);
        assert_eq!(lab.drain(0, &mut cqs[0])[0].status, 8, "{blocks} of {posted}");
    }
}

// Breaks if a doorbell beyond the end of a queue is accepted, or one that takes work back.
#[test]
fn depths() {
    let fatal = |lab: &mut Lab, qp: &Qp| assert_eq!(lab.async_events(0), [(QP_FATAL, qp.qpn)]);
    let (mut lab, qps, mut cqs) = Lab::connected();
    lab.doorbell(0, 0x1000, u64::from(qps[0].qpn) << 32 | 17);
    fatal(&mut lab, &qps[0]);
    assert_eq!(lab.drain(0, &mut cqs[0]), []);

    let (mut lab, qps, _) = Lab::connected();
    lab.doorbell(0, 0x61000, u64::from(qps[0].qpn) << 32 | 9);
    fatal(&mut lab, &qps[0]);

    let (mut lab, mut qps, _) = Lab::connected();
    lab.set(0, |settings| settings.stall_transmit = true);
    for _ in 0..3 {
        lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    }
    lab.doorbell(0, 0x1000, u64::from(qps[0].qpn) << 32 | 2);
    fatal(&mut lab, &qps[0]);

    // Requests in flight count against the depth, too.
    let (mut lab, mut qps, _) = Lab::connected();
    lab.set(1, |settings| settings.stall_receive = true);
    for _ in 0..16 {
        lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    }
    assert_eq!(lab.async_events(0), []);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    fatal(&mut lab, &qps[0]);
}

#[test]
fn doorbells_for_nothing() {
    let mut lab = Lab::started(1);
    let before = lab.fabric.counters(0).doorbells_refused;
    for (at, value) in
        [(0x1000, 99 << 32 | 1), (0x61000, 99 << 32 | 1), (0x79000, 99 << 32 | 1 << 31), (0x110, 1 << 31)]
    {
        lab.doorbell(0, at, value);
    }
    assert_eq!(lab.fabric.counters(0).doorbells_refused, before + 4);
}

// Breaks if a message without a receive is lost silently: eRDMA has no RNR.
#[test]
fn an_empty_receive_queue_is_fatal() {
    for request in [sqe::send(2, 0, [0; 4], &[]), sqe::write(9, 0, [0; 4], (0, 0), &[])] {
        let outcome = attempt(|_, _| request);
        assert_eq!(outcome.status, 0, "its bytes had arrived");
        assert_eq!(outcome.near, [(QP_FATAL, outcome.qps[0].qpn)]);
        assert_eq!(outcome.far, [(EMPTY_RECEIVE_QUEUE, outcome.qps[1].qpn)]);
    }
}

// Breaks if a receive that cannot take its message does not end the connection, or does not give the reason.
#[test]
fn receives() {
    type Post = fn(&mut Lab, &mut Qp);
    let cases: [(&str, u8, Post); 6] = [
        ("too short", 4, |lab, qp| {
            let mr = lab.register(1, 64, ALL, DOMAIN);
            lab.post_receive(qp, mr.va, 7, mr.key);
        }),
        ("no such key", 3, |lab, qp| lab.post_receive(qp, 0, 64, 0x7700)),
        ("beyond its region", 4, |lab, qp| {
            let mr = lab.register(1, 64, ALL, DOMAIN);
            lab.post_receive(qp, mr.va + 60, 64, mr.key);
        }),
        ("not to be written", 5, |lab, qp| {
            let mr = lab.register(1, 64, ALL & !LOCAL_WRITE, DOMAIN);
            lab.post_receive(qp, mr.va, 64, mr.key);
        }),
        ("of another domain", 6, |lab, qp| {
            let mr = lab.register(1, 64, ALL, DOMAIN + 1);
            lab.post_receive(qp, mr.va, 64, mr.key);
        }),
        ("beyond all addresses", 7, |lab, qp| {
            let mr = lab.register(1, 64, ALL, DOMAIN);
            lab.post_receive(qp, u64::MAX - 3, 64, mr.key);
        }),
    ];
    for (why, status, post) in cases {
        let (mut lab, mut qps, mut cqs) = Lab::connected();
        post(&mut lab, &mut qps[1]);
        lab.post_receive(&mut qps[1], 0, 0, 0);
        lab.post_send(&mut qps[0], &sqe::send_inline(0, &[1; 8]));
        assert_eq!(statuses(&lab.drain(1, &mut cqs[1])), [(4, status), (4, FLUSHED)], "{why}");
        assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(2, 0)], "{why}");
        assert_eq!(lab.async_events(0), [(QP_FATAL, qps[0].qpn)], "{why}");
    }
}

// Breaks if a receive of another queue pair is used.
#[test]
fn a_foreign_receive_is_malformed() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    let mut forged = qps[1];
    forged.qpn += 100;
    lab.post_receive(&mut forged, 0, 0, 0);
    lab.doorbell(1, 0x61000, u64::from(qps[1].qpn) << 32 | 1);
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
    assert_eq!(statuses(&lab.drain(1, &mut cqs[1])), [(4, 2)]);
}

// Breaks if a peer can take back memory that a process registered, or that is of another domain.
#[test]
fn invalidation() {
    let kernel_region = |lab: &mut Lab, function, domain: u32| {
        let request = crate::driver::reg_mr(90, ALL, domain).u32(8, 90).u32(12, domain << 12 | 1 << 6);
        assert_eq!(lab.command(function, request).0, 0);
        90u32 << 8
    };
    let send = |key: u32| sqe::send(13, 0, key.to_le_bytes(), &[]);
    refused_there("a process's region", 5, |lab, qps| {
        lab.post_receive(&mut qps[1], 0, 0, 0);
        send(lab.register(1, 64, ALL, DOMAIN).key)
    });
    refused_there("of another domain", 6, |lab, qps| {
        lab.post_receive(&mut qps[1], 0, 0, 0);
        send(kernel_region(lab, 1, DOMAIN + 1))
    });
    refused_there("no such key", 3, |lab, qps| {
        lab.post_receive(&mut qps[1], 0, 0, 0);
        send(0x7700)
    });
}

/// Posts three requests; the second one is refused.
fn three(lab: &mut Lab, qp: &mut Qp) {
    let good = sqe::write(0, 0, [0; 4], (0, 0), &[]);
    lab.write_request(qp, &good);
    lab.write_request(qp, &write_from((0, 8, 0x7700)));
    lab.write_request(qp, &good);
    lab.ring_send(qp);
}

// Breaks if requests that were posted behind a failure are executed, or not reported.
#[test]
fn flushes() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.post_receive(&mut qps[0], 0, 0, 0);
    three(&mut lab, &mut qps[0]);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 0), (0, 10), (4, FLUSHED), (0, FLUSHED)]);
    // Later work is not: user space gets no completion for it.
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    lab.post_receive(&mut qps[0], 0, 0, 0);
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    // The kernel requests it.
    let (sends, receives) = (u32::from(qps[0].send_posted), u32::from(qps[0].receive_posted));
    let request =
        |sends, receives| crate::driver::Request::new(0, 6).u32(8, qps[0].qpn).u32(12, sends).u32(16, receives);
    assert_eq!(lab.command(0, request(sends + 17, receives)).0, 2, "beyond the queue");
    assert_eq!(lab.command(0, request(sends, receives)).0, 0);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(4, FLUSHED), (0, FLUSHED)]);
}

// Breaks if requests that were posted behind a failure are sent while the failure waits for older requests.
#[test]
fn nothing_is_sent_behind_a_failure() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.set(1, |settings| settings.stall_receive = true);
    three(&mut lab, &mut qps[0]);
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    lab.set(1, |settings| settings.stall_receive = false);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 0), (0, 10), (0, FLUSHED)]);
    assert_eq!(lab.fabric.counters(0).tx_requests, 1);
}

// Breaks if a queue pair that runs can be flushed.
#[test]
fn reflush_needs_a_stopped_queue_pair() {
    let (mut lab, qps, _) = Lab::connected();
    assert_eq!(lab.command(0, crate::driver::Request::new(0, 6).u32(8, qps[0].qpn)).0, 2);
    assert_eq!(lab.command(0, crate::driver::Request::new(0, 6).u32(8, qps[0].qpn + 100)).0, 3);
}

// Breaks if a queue pair whose peer has stopped gets an answer of the peer's successor.
#[test]
fn a_stopped_peer_answers_nothing() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.stop(&qps[1]);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    assert_eq!(lab.drain(0, &mut cqs[0]), [], "it waits until the driver stops the queue pair");
    lab.stop(&qps[0]);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, FLUSHED)]);
}

// Breaks if the refusal of a queue pair hits its successor, while its peer has not got the refusal yet.
#[test]
fn a_refusal_is_not_its_successor_s() {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    let delay = std::time::Duration::from_micros(100);
    lab.fabric.set_wire(netacc_erdma::wire::modelled::WireSettings { delay, ..Default::default() });
    let mr = lab.register(0, 64, ALL, DOMAIN);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0x7700), &[sqe::of(&mr, 8)]));
    // It was refused, and the refusal is in flight.
    lab.advance(delay + delay / 2);
    assert_eq!(lab.async_events(1), [(ACCESS_ERROR, qps[1].qpn)]);
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    assert_eq!(lab.command(1, crate::driver::Request::new(0, 2).u32(8, qps[1].qpn)).0, 0);
    let ring = lab.allocate(1, 4096);
    let (status, results) = lab.command(1, crate::driver::create_qp(qps[1].qpn, cqs[1].cqn, DOMAIN, ring, ring));
    assert_eq!(status, 0);
    let third = lab.create_qp(0, cqs[0].cqn, DOMAIN);
    let mut successor = qps[1];
    successor.cookie = results[0];
    let mut pair = [third, successor];
    lab.connect(&mut pair);
    // The first one's end does not part the new pair.
    lab.stop(&qps[0]);
    lab.drain(0, &mut cqs[0]);
    lab.post_send(&mut pair[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    lab.advance(4 * delay);
    assert_eq!(statuses(&lab.drain(0, &mut cqs[0])), [(0, 0)]);
}

// Breaks if a queue pair that is gone is completed or reported, or its number cannot be used again.
#[test]
fn destroyed_with_work() {
    let (mut lab, mut qps, mut cqs): (Lab, [Qp; 2], [Cq; 2]) = Lab::connected();
    lab.set(1, |settings| settings.stall_receive = true);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    assert_eq!(lab.command(0, crate::driver::Request::new(0, 2).u32(8, qps[0].qpn)).0, 0);
    lab.set(1, |settings| settings.stall_receive = false);
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    let again = lab.allocate(0, 4096);
    assert_eq!(lab.command(0, crate::driver::create_qp(qps[0].qpn, cqs[0].cqn, DOMAIN, again, again)).0, 0);
}
