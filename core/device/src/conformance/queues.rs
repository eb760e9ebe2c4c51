//! Checks of back-pressure: full queues, and the receives that messages consume.

use super::bench::{ensure, fail, Bench, Pair, Stop, SLOT};
use super::Side;
use crate::{CompletionStatus, PostError, WorkRequest};

/// A full send queue takes a prefix, then nothing, and after polling takes requests again; none is lost.
pub(super) fn send_queue_full_and_recovery(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    let depth = bench.caps(Side::A).max_send_wr as usize;
    let accepted = {
        let wrs: Vec<WorkRequest<'_>> =
            (0..2 * depth + 1).map(|id| pair.write(Side::A, id as u64, 0, pair.staged(Side::A, 0, 8))).collect();
        let accepted = match bench.post(&pair, Side::A, &wrs) {
            Ok(count) => count,
            Err(error) => fail!("posting more than fits, on an empty queue: {error}"),
        };
        // Up to twice the depth: a device may round up to a power of two.
        ensure!(accepted >= depth && accepted <= 2 * depth, "{accepted} unpolled requests, max_send_wr being {depth}");
        let again = bench.post(&pair, Side::A, &wrs[..1]);
        ensure!(again == Err(PostError::QueueFull), "one more on a full queue: {again:?}");
        accepted
    };
    bench.until(&mut pair, "completion of all accepted requests", |p| p.sends(Side::A).len() >= accepted)?;
    bench.quiet(&mut pair);
    let expected: Vec<_> = (0..accepted).map(|id| (id as u64, CompletionStatus::Success)).collect();
    ensure!(pair.sends(Side::A) == expected, "accepted {accepted} requests, completed {:?}", pair.sends(Side::A).len());
    let wr = pair.write(Side::A, 77, 0, pair.staged(Side::A, 0, 8));
    let posted = bench.post(&pair, Side::A, &[wr]);
    ensure!(posted == Ok(1), "posting after a full queue was polled: {posted:?}");
    bench.until(&mut pair, "its completion", |p| p.sends(Side::A).len() > accepted)
}

/// Posts receives one by one until the queue is full; returns their number.
fn fill_receives(bench: &Bench<'_>, pair: &Pair, side: Side) -> Result<u32, Stop> {
    let bound = 2 * bench.caps(side).max_recv_wr;
    for count in 0..=bound {
        match bench.device(side).post_recv(pair.qp(side), 1) {
            Ok(()) => {}
            Err(PostError::QueueFull) => return Ok(count),
            Err(error) => fail!("post_recv: {error}"),
        }
    }
    fail!("more than {bound} receives were accepted, max_recv_wr being {}", bench.caps(side).max_recv_wr)
}

/// `max_recv_wr` receives fit, not many more; each message makes room for one.
pub(super) fn receive_queue_full(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    let depth = bench.caps(Side::B).max_recv_wr;
    bench.post_recv(&pair, Side::B, depth)?;
    fill_receives(bench, &pair, Side::B)?;
    let posted = bench.device(Side::B).post_recv(pair.qp(Side::B), 1);
    ensure!(posted == Err(PostError::QueueFull), "a receive beyond a full queue: {posted:?}");
    bench.send_message(&pair, Side::A, 1)?;
    bench.until(&mut pair, "arrival of a message", |p| !p.receives(Side::B).is_empty())?;
    let room = fill_receives(bench, &pair, Side::B)?;
    ensure!(room == 1, "one message made room for {room} receives");
    Ok(())
}

/// Each message consumes exactly one receive; a WRITE without immediate none.
pub(super) fn one_receive_per_message(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    bench.post_recv(&pair, Side::B, 5)?;
    let mut filled = 5 + fill_receives(bench, &pair, Side::B)?;
    // 5 messages with no receive to spare, so that the fifth fails if one too many was consumed.
    while filled > 0 {
        let count = filled.min(5);
        for number in 1..=count {
            bench.send_message(&pair, Side::A, number)?;
            let wr = pair.write(Side::A, 1000 + u64::from(number), 0, pair.staged(Side::A, 0, 8));
            let posted = bench.post(&pair, Side::A, &[wr]);
            ensure!(posted == Ok(1), "posting a WRITE: {posted:?}");
        }
        let due = pair.receives(Side::B).len() + count as usize;
        bench.until(&mut pair, "arrival of messages, a receive for each", |p| p.receives(Side::B).len() >= due)?;
        let sends = pair.sends(Side::A).len();
        bench.until(&mut pair, "send completions", |p| p.sends(Side::A).len() >= sends.min(2 * due))?;
        filled -= count;
    }
    bench.quiet(&mut pair);
    let received = pair.receives(Side::B).len() as u32;
    let room = fill_receives(bench, &pair, Side::B)?;
    ensure!(room == received, "{received} messages consumed {room} receives");
    Ok(())
}

/// A message without a receive is refused, or waits, or kills the link; it is never delivered and never lost.
pub(super) fn receives_exhausted(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    bench.exchange(&mut pair, Side::A, 1)?;
    let posted = bench.post_message(&pair, Side::A, 2);
    if let Err(error) = posted {
        ensure!(error == PostError::QueueFull, "a message without a receive: {error}");
    }
    bench.quiet(&mut pair);
    ensure!(pair.receives(Side::B).len() == 1, "a message was received without a receive");
    if bench.device(Side::B).post_recv(pair.qp(Side::B), 1).is_err() || pair.disconnected(Side::B) {
        bench.until(&mut pair, "Disconnected at both ends, a message having found no receive", |p| {
            Side::BOTH.iter().all(|side| p.disconnected(*side))
        })?;
        ensure!(pair.receives(Side::B).len() == 1, "a message was received without a receive");
        return Ok(());
    }
    // A device that sends a WRITE and a SEND may have taken the first of the two.
    let complete = if bench.caps(Side::A).write_with_imm { 1 } else { 2 };
    if posted != Ok(complete) {
        bench.until_unpolled("room for the message after a receive was posted", |b| {
            b.post_message(&pair, Side::A, 2) == Ok(complete)
        })?;
    }
    bench.until(&mut pair, "the message that waited for its receive (or the end of the link)", |p| {
        p.receives(Side::B).len() == 2 || p.disconnected(Side::B)
    })?;
    if !pair.disconnected(Side::B) {
        let local = super::bench::read(pair.local(Side::B), super::bench::message_position(2), SLOT);
        ensure!(local == super::bench::message_bytes(2), "the message that waited arrived without its bytes");
    }
    Ok(())
}

/// Full queues in both directions whose completions are never polled: none is lost, so no completion queue overflows.
pub(super) fn unpolled_completions_are_kept(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    // Messages that fit everywhere; where there is no immediate each is two requests. Bounded, because memory has no
    // practical bound.
    let room = Side::BOTH.map(|side| {
        let caps = bench.caps(side);
        caps.max_recv_wr.min(if caps.write_with_imm { caps.max_send_wr } else { caps.max_send_wr / 2 })
    });
    let count = room[0].min(room[1]).min(4096);
    for side in Side::BOTH {
        bench.post_recv(&pair, side, count)?;
    }
    for number in 1..=count {
        for side in Side::BOTH {
            bench.send_message(&pair, side, number)?;
        }
    }
    bench.quiet_unpolled();
    let is_whole = |p: &Pair, side| p.receives(side).len() == count as usize && p.sends(side).len() >= count as usize;
    bench.until(&mut pair, "every completion of full queues that were never polled", |p| {
        Side::BOTH.iter().all(|side| is_whole(p, *side))
    })?;
    for side in Side::BOTH {
        // Slots were used again, so the bytes are not checked.
        let numbers: Vec<u32> = pair.receives(side).iter().map(|(imm, _)| *imm).collect();
        let in_order = numbers.iter().zip(1..).all(|(imm, number)| *imm == number || *imm == 0);
        ensure!(in_order, "{side:?} received {numbers:?}");
    }
    Ok(())
}
