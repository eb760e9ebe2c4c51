//! Each operation, executed.

use crate::driver::{sqe, Cqe, Lab, Mr, Qp, Request, ALL, DOMAIN};

/// A connected pair with a region of three pages at each end, whose bytes differ.
fn with_regions() -> (Lab, [Qp; 2], [crate::driver::Cq; 2], [Mr; 2]) {
    let (mut lab, qps, cqs) = Lab::connected();
    lab.set(0, |settings| settings.limits.atomics = true);
    lab.set(1, |settings| settings.limits.atomics = true);
    let mrs = [0, 1].map(|function| lab.register(function, 3 * 4096, ALL, DOMAIN));
    for (function, mr) in mrs.iter().enumerate() {
        let bytes: Vec<u8> = (0..3 * 4096).map(|at: usize| (at * 7 + function) as u8).collect();
        lab.poke(function, mr.physical, &bytes);
    }
    (lab, qps, cqs, mrs)
}

fn only(done: &[Cqe]) -> Cqe {
    assert_eq!(done.len(), 1, "{done:?}");
    done[0]
}

// Breaks if bytes are placed elsewhere, or pages are not crossed.
#[test]
fn write() {
    let (mut lab, mut qps, mut cqs, [near, far]) = with_regions();
    let list = [(near.va + 4000, 5000, near.key), (near.va, 10, near.key)];
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (far.va + 100, far.key), &list));
    let cqe = only(&lab.drain(0, &mut cqs[0]));
    assert_eq!((cqe.receive, cqe.opcode, cqe.status, cqe.len, cqe.qpn), (false, 0, 0, 5010, qps[0].qpn));
    let expected = [lab.peek(0, near.physical + 4000, 5000), lab.peek(0, near.physical, 10)].concat();
    assert_eq!(lab.peek(1, far.physical + 100, 5010), expected);
    assert_eq!(lab.peek(1, far.physical + 99, 1), [(99 * 7 + 1) as u8]);
    assert_eq!(lab.drain(1, &mut cqs[1]), [], "the peer gets no completion");
}

// Breaks if an immediate is not the provider's: big-endian in the request, little-endian in the completion.
#[test]
fn write_with_immediate() {
    let (mut lab, mut qps, mut cqs, [near, far]) = with_regions();
    lab.post_receive(&mut qps[1], 0, 0, 0);
    let request = sqe::write(9, 0, 0x0102_0304u32.to_be_bytes(), (far.va, far.key), &[sqe::of(&near, 77)]);
    lab.post_send(&mut qps[0], &request);
    assert_eq!(only(&lab.drain(0, &mut cqs[0])).status, 0);
    let cqe = only(&lab.drain(1, &mut cqs[1]));
    assert_eq!((cqe.receive, cqe.opcode, cqe.status, cqe.index, cqe.len, cqe.qpn), (true, 5, 0, 0, 77, qps[1].qpn));
    assert_eq!(u32::from_le_bytes(cqe.extra), 0x0102_0304);
    let written = lab.peek(0, near.physical, 77);
    assert_eq!(lab.peek(1, far.physical, 77), written);
}

#[test]
fn send() {
    let (mut lab, mut qps, mut cqs, [near, far]) = with_regions();
    lab.post_receive(&mut qps[1], far.va + 4090, 100, far.key);
    // As many pieces as fit.
    let list: Vec<_> = (0..6).map(|piece| (near.va + 4096 * (piece % 3) + 1, 7, near.key)).collect();
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &list));
    assert_eq!(only(&lab.drain(0, &mut cqs[0])).len, 42);
    let cqe = only(&lab.drain(1, &mut cqs[1]));
    assert_eq!((cqe.receive, cqe.opcode, cqe.status, cqe.len, cqe.extra), (true, 4, 0, 42, [0; 4]));
    let expected: Vec<u8> = (0..6).flat_map(|piece| lab.peek(0, near.physical + 4096 * (piece % 3) + 1, 7)).collect();
    assert_eq!(lab.peek(1, far.physical + 4090, 42), expected);
}

#[test]
fn send_with_immediate() {
    let (mut lab, mut qps, mut cqs, _) = with_regions();
    lab.post_receive(&mut qps[1], 0, 0, 0);
    lab.post_send(&mut qps[0], &sqe::send(3, 0, 5u32.to_be_bytes(), &[]));
    let cqe = only(&lab.drain(1, &mut cqs[1]));
    assert_eq!((cqe.opcode, u32::from_le_bytes(cqe.extra)), (12, 5));
    assert_eq!(only(&lab.drain(0, &mut cqs[0])).opcode, 3);
}

// Breaks if inline data is taken from elsewhere, or cut at a block.
#[test]
fn inline() {
    let (mut lab, mut qps, mut cqs, [_, far]) = with_regions();
    for len in [0, 1, 16, 17, 48, 96] {
        lab.post_receive(&mut qps[1], far.va, 96, far.key);
        let data: Vec<u8> = (1..=len).collect();
        lab.post_send(&mut qps[0], &sqe::send_inline(0, &data));
        assert_eq!(only(&lab.drain(0, &mut cqs[0])).status, 0);
        assert_eq!(only(&lab.drain(1, &mut cqs[1])).len, u32::from(len));
        assert_eq!(lab.peek(1, far.physical, usize::from(len)), data);
    }
}

#[test]
fn read() {
    let (mut lab, mut qps, mut cqs, [near, far]) = with_regions();
    lab.post_send(&mut qps[0], &sqe::read(0, (far.va + 4000, far.key), (near.va + 50, 4200, near.key)));
    let cqe = only(&lab.drain(0, &mut cqs[0]));
    assert_eq!((cqe.opcode, cqe.status, cqe.len), (1, 0, 4200));
    let expected = lab.peek(1, far.physical + 4000, 4200);
    assert_eq!(lab.peek(0, near.physical + 50, 4200), expected);
}

#[test]
fn atomics() {
    let (mut lab, mut qps, mut cqs, [near, far]) = with_regions();
    let at = (far.va + 8, far.key);
    let sink = (near.va + 16, 8, near.key);
    lab.poke(1, far.physical + 8, &100u64.to_le_bytes());
    for (opcode, operand, compare, before, after) in
        [(18, 5, 0, 100u64, 105u64), (17, 7, 105, 105, 7), (17, 9, 105, 7, 7), (18, u64::MAX, 0, 7, 6)]
    {
        lab.post_send(&mut qps[0], &sqe::atomic(opcode, operand, compare, at, sink));
        let cqe = only(&lab.drain(0, &mut cqs[0]));
        assert_eq!((u64::from(cqe.opcode), cqe.status, cqe.len), (opcode, 0, 8));
        assert_eq!(lab.peek(0, near.physical + 16, 8), before.to_le_bytes());
        assert_eq!(lab.peek(1, far.physical + 8, 8), after.to_le_bytes());
    }
}

// Breaks if a success completes although no completion was requested, or its place in the queue is not free again.
#[test]
fn unsignaled() {
    let (mut lab, mut qps, mut cqs, _) = with_regions();
    for _ in 0..20 {
        let mut request = sqe::write(0, 0, [0; 4], (0, 0), &[]);
        request[2] &= !0x40;
        lab.post_send(&mut qps[0], &request);
    }
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    assert_eq!(only(&lab.drain(0, &mut cqs[0])).index, 20);
}

// Breaks if requests overtake one another, or a fence does not hold.
#[test]
fn a_batch_is_in_order() {
    let (mut lab, mut qps, mut cqs, [near, far]) = with_regions();
    lab.write_request(&mut qps[0], &sqe::read(0, (far.va, far.key), (near.va, 8, near.key)));
    let write = sqe::write(0, sqe::FENCE, [0; 4], (far.va + 100, far.key), &[(near.va, 8, near.key)]);
    lab.write_request(&mut qps[0], &write);
    lab.write_request(&mut qps[0], &sqe::read(0, (far.va + 100, far.key), (near.va + 8, 8, near.key)));
    lab.ring_send(&qps[0]);
    let done: Vec<u8> = lab.drain(0, &mut cqs[0]).iter().map(|cqe| cqe.opcode).collect();
    assert_eq!(done, [1, 0, 1]);
    let first = lab.peek(1, far.physical, 8);
    assert_eq!(lab.peek(0, near.physical + 8, 8), first, "each saw the result of the one before");
}

// Breaks if requests are lost that were posted before the peer is there: the passive end is ready before it answers.
#[test]
fn requests_before_the_peer_wait() {
    let mut lab = Lab::started(2);
    let mut cqs = [0, 1].map(|function| lab.create_cq(function, 6));
    let mut qps = [0, 1].map(|function| lab.create_qp(function, cqs[function].cqn, DOMAIN));
    lab.post_receive(&mut qps[1], 0, 0, 0);
    let rts = |lab: &mut Lab, own: usize, cookie: u32| {
        let ends = [(1, 11), (2, 22)];
        let request = crate::driver::modify_to_rts(qps[own].qpn, cookie, ends[own], ends[1 - own]);
        assert_eq!(lab.command(own, request).0, 0);
    };
    rts(&mut lab, 0, qps[1].cookie);
    let mut sender = qps[0];
    lab.post_send(&mut sender, &sqe::send(2, 0, [0; 4], &[]));
    assert_eq!(lab.drain(0, &mut cqs[0]), []);
    rts(&mut lab, 1, qps[0].cookie);
    assert_eq!(only(&lab.drain(0, &mut cqs[0])).status, 0);
    assert_eq!(only(&lab.drain(1, &mut cqs[1])).status, 0);
}

// Breaks if queue pairs are joined whose connections or cookies do not match.
#[test]
fn others_are_no_peers() {
    let ends = ((1, 11), (2, 22));
    for (local, remote, first_cookie, second_cookie) in [
        ((1, 11), (2, 23), 0, 0),
        ((1, 11), (3, 22), 0, 0),
        ((1, 12), (2, 22), 0, 0),
        ((1, 11), (2, 22), 1, 0),
        ((1, 11), (2, 22), 0, 1),
    ] {
        let mut lab = Lab::started(2);
        let mut cqs = [0, 1].map(|function| lab.create_cq(function, 6));
        let mut qps = [0, 1].map(|function| lab.create_qp(function, cqs[function].cqn, DOMAIN));
        let cookie = qps[1].cookie + first_cookie;
        assert_eq!(lab.command(0, crate::driver::modify_to_rts(qps[0].qpn, cookie, local, remote)).0, 0);
        let cookie = qps[0].cookie + second_cookie;
        assert_eq!(lab.command(1, crate::driver::modify_to_rts(qps[1].qpn, cookie, ends.1, ends.0)).0, 0);
        lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
        assert_eq!(lab.drain(0, &mut cqs[0]), [], "{local:?} {remote:?} {first_cookie} {second_cookie}");
    }
}

// Breaks if two queue pairs of one function cannot be peers: the conformance suite does that.
#[test]
fn loopback() {
    let mut lab = Lab::started(1);
    let mut cq = lab.create_cq(0, 6);
    let mut qps = [(); 2].map(|()| lab.create_qp(0, cq.cqn, DOMAIN));
    lab.connect(&mut qps);
    lab.post_receive(&mut qps[1], 0, 0, 0);
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
    assert_eq!(lab.drain(0, &mut cq).len(), 2);
}

// Breaks if a ring in pages that are not in order, with an offset in the first, is read elsewhere.
#[test]
fn rings_in_a_table_of_pages() {
    let mut lab = Lab::started(2);
    let mut cq = lab.create_cq(0, 6);
    let other = lab.create_cq(1, 6);
    let pages = [(); 2].map(|()| lab.allocate(0, 4096));
    let table = lab.allocate(0, 16);
    lab.poke(0, table, &[pages[1].to_le_bytes(), pages[0].to_le_bytes()].concat());
    // 128 blocks of 32 bytes in pages of 8 KiB, from the second 4 KiB on; the table has two pages of that size.
    let wide = [lab.allocate(0, 8192), lab.allocate(0, 8192)];
    lab.poke(0, table + 16, &[wide[0].to_le_bytes(), wide[1].to_le_bytes()].concat());
    let receive = lab.allocate(0, 4096);
    let request = crate::driver::create_qp(40, cq.cqn, DOMAIN, table + 16, receive);
    let request = request.u32(8, 7 << 20 | 40).u32(16, 1 << 28 | cq.cqn).u32(40, 4096 | 2 << 1 | 1);
    let (status, results) = lab.command(0, request);
    assert_eq!(status, 0);
    let peer = lab.create_qp(1, other.cqn, DOMAIN);
    let [local, remote] = [(1, 1), (2, 2)];
    assert_eq!(lab.command(0, crate::driver::modify_to_rts(40, peer.cookie, local, remote)).0, 0);
    assert_eq!(lab.command(1, crate::driver::modify_to_rts(peer.qpn, results[0], remote, local)).0, 0);
    let header = 40u64 << 32 | sqe::SIGNALED;
    lab.poke(0, wide[0] + 4096, &header.to_le_bytes());
    lab.doorbell(0, 0x1000, 40 << 32 | 1);
    assert_eq!(only(&lab.drain(0, &mut cq)).status, 0);
}

// Breaks if only the first page of a list without a table is used, in later drivers' longer commands.
#[test]
fn rings_in_a_list_of_pages() {
    let mut lab = Lab::started(1);
    let cq = lab.create_cq(0, 6);
    let [first, second, receive] = [(); 3].map(|()| lab.allocate(0, 4096));
    let request = crate::driver::create_qp(40, cq.cqn, DOMAIN, first, receive).long();
    let request = request.u32(8, 8 << 20 | 40).u32(40, 2 << 1).u64(64, second);
    assert_eq!(lab.command(0, request).0, 0);
}

// Breaks if the kernel cannot map a region with requests: inline, from its table, and never twice.
#[test]
fn fast_regions() {
    let (mut lab, mut qps, mut cqs, [_, far]) = with_regions();
    let (page, table) = (lab.allocate(0, 8192), lab.allocate(0, 4096));
    let (index, va) = (90, 0x5000_0000u64);
    let request = crate::driver::reg_mr(index, ALL, DOMAIN).u32(8, index).u32(12, DOMAIN << 12 | 1 << 6);
    assert_eq!(lab.command(0, request.u32(28, 12 << 27 | 1 << 20 | 2).u64(32, table)).0, 0);
    lab.poke(0, page, &[9; 8192]);
    lab.poke(0, table, &[page.to_le_bytes(), (page + 4096).to_le_bytes()].concat());
    let map = |key: u32, count: u32, inline: Option<u64>| {
        let mut bytes = (14u64 << 27 | sqe::SIGNALED).to_le_bytes().to_vec();
        bytes.extend(va.to_le_bytes());
        bytes.extend((count * 4096).to_le_bytes());
        bytes.extend(key.to_le_bytes());
        let kind = if inline.is_some() { 0 } else { 1 << 6 };
        bytes.extend((ALL << 1 | kind | count << 12).to_le_bytes());
        bytes.extend([0; 4]);
        inline.into_iter().for_each(|page| bytes.extend(page.to_le_bytes()));
        sqe::pad(bytes)
    };
    let invalidate = |key: u32| {
        let mut bytes = (15u64 << 27 | sqe::SIGNALED).to_le_bytes().to_vec();
        bytes.extend([0; 12]);
        bytes.extend(key.to_le_bytes());
        sqe::pad(bytes)
    };
    let write = |key: u32, len| sqe::write(0, 0, [0; 4], (far.va, far.key), &[(va, len, key)]);
    for (key, count, inline) in [(index << 8 | 1, 1, Some(page)), (index << 8 | 2, 2, None)] {
        lab.post_send(&mut qps[0], &map(key, count, inline));
        lab.post_send(&mut qps[0], &write(key, count * 4096));
        lab.post_send(&mut qps[0], &invalidate(key));
        let done = crate::events::statuses(&lab.drain(0, &mut cqs[0]));
        assert_eq!(done, [(14, 0), (0, 0), (15, 0)]);
        assert_eq!(lab.peek(1, far.physical, 10), [9; 10]);
    }
    // The key that was taken back is invalid.
    lab.post_send(&mut qps[0], &write(index << 8 | 2, 1));
    assert_eq!(crate::events::statuses(&lab.drain(0, &mut cqs[0])), [(0, 10)]);
}

// Breaks if a peer cannot take back a region of the kernel's, or its user does not learn which.
#[test]
fn send_with_invalidate() {
    let (mut lab, mut qps, mut cqs, _) = with_regions();
    let request = crate::driver::reg_mr(91, ALL, DOMAIN).u32(8, 91).u32(12, DOMAIN << 12 | 1 << 6);
    assert_eq!(lab.command(1, request).0, 0);
    lab.post_receive(&mut qps[1], 0, 0, 0);
    lab.post_send(&mut qps[0], &sqe::send(13, 0, (91u32 << 8).to_le_bytes(), &[]));
    let cqe = only(&lab.drain(1, &mut cqs[1]));
    assert_eq!((cqe.opcode, cqe.status, u32::from_be_bytes(cqe.extra)), (6, 0, 91 << 8));
    assert_eq!(only(&lab.drain(0, &mut cqs[0])).status, 0);
}

// Breaks if the device counts nothing: a test sees by these counters that data went over it.
#[test]
fn statistics() {
    let (mut lab, mut qps, _, [near, far]) = with_regions();
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (far.va, far.key), &[sqe::of(&near, 1000)]));
    let at = lab.allocate(0, 4096);
    for (function, first, second) in [(0, (0, 1), (2, 1000)), (1, (6, 1), (7, 1000))] {
        let at = if function == 0 { at } else { lab.allocate(1, 4096) };
        assert_eq!(lab.command(function, Request::new(1, 4).u64(16, at).u32(24, 256)).0, 0);
        for (index, value) in [first, second] {
            assert_eq!(lab.peek(function, at + 16 + 8 * index, 8), u64::to_le_bytes(value));
        }
    }
}
