//! Checks of how links die: which ends get the event, when, and what is left.

use super::bench::{ensure, Bench, Pair, Stop};
use super::Side;
use crate::{CompletionStatus, Payload, PostError};

/// Three messages of A are placed at B and acknowledged, and B has polled nothing.
fn placed_unseen(bench: &mut Bench<'_>) -> Result<Pair, Stop> {
    let mut pair = bench.connect()?;
    bench.post_recv(&pair, Side::B, 4)?;
    for number in 1..=3 {
        bench.send_message(&pair, Side::A, number)?;
    }
    for _ in 0..bench.fixture.patience() {
        bench.collect_side(&mut pair, Side::A);
        if pair.sends(Side::A).len() == 3 {
            break;
        }
        bench.fixture.progress();
    }
    ensure!(pair.sends(Side::A).len() == 3, "send completions: {:?}", pair.sends(Side::A));
    Ok(pair)
}

/// Both ends get the event once, the peer after everything that was placed.
pub(super) fn fail_qp_disconnects_both(bench: &mut Bench<'_>) -> Result<(), Stop> {
    for side in Side::BOTH {
        let mut pair = placed_unseen(bench)?;
        bench.device(side).fail_qp(pair.qp(side));
        bench.until(&mut pair, "Disconnected at both ends", |p| Side::BOTH.iter().all(|s| p.disconnected(*s)))?;
        bench.quiet(&mut pair);
        bench.expect_messages(&pair, Side::B, &[1, 2, 3])?;
        bench.device(side).fail_qp(pair.qp(side));
        bench.device(side.peer()).fail_qp(pair.qp(side.peer()));
        bench.quiet(&mut pair);
    }
    Ok(())
}

/// The peer gets the event after everything that was placed; the destroyed queue pair does not exist any more.
pub(super) fn destroy_qp_disconnects_peer(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = placed_unseen(bench)?;
    bench.device(Side::A).destroy_qp(pair.qp(Side::A));
    bench.until(&mut pair, "Disconnected at the peer of a destroyed queue pair", |p| p.disconnected(Side::B))?;
    bench.quiet(&mut pair);
    bench.expect_messages(&pair, Side::B, &[1, 2, 3])?;
    ensure!(!pair.disconnected(Side::A), "a destroyed queue pair reports completions");
    let posted = bench.device(Side::A).post_recv(pair.qp(Side::A), 1);
    ensure!(posted.is_err(), "post_recv on a destroyed queue pair");
    ensure!(
        bench.device(Side::A).alloc_region(pair.qp(Side::A), 64).is_err(),
        "alloc_region on a destroyed queue pair"
    );
    bench.device(Side::A).destroy_qp(pair.qp(Side::A));
    Ok(())
}

/// The requests that were posted just before the end: the peer gets the first so many of them, complete and in order,
/// or all of them where placement is delivery.
pub(super) fn failure_keeps_a_prefix(bench: &mut Bench<'_>) -> Result<(), Stop> {
    for destroy in [false, true] {
        let mut pair = bench.connect()?;
        bench.post_recv(&pair, Side::B, 6)?;
        for number in 1..=6 {
            bench.send_message(&pair, Side::A, number)?;
        }
        let (device, qp) = (bench.device(Side::A), pair.qp(Side::A));
        if destroy {
            device.destroy_qp(qp)
        } else {
            device.fail_qp(qp)
        }
        bench.until(&mut pair, "Disconnected at the peer", |p| p.disconnected(Side::B))?;
        bench.quiet(&mut pair);
        let count = pair.receives(Side::B).len() as u32;
        ensure!(count <= 6, "six messages were sent, {count} received");
        bench.expect_messages(&pair, Side::B, &(1..=count).collect::<Vec<_>>())?;
        let whole = !bench.caps(Side::A).placement_is_delivery || count == 6;
        ensure!(whole, "placement is delivery, and of six posted messages {count} were received");
        let done = pair.sends(Side::A).iter().filter(|(_, status)| *status == CompletionStatus::Success).count();
        ensure!(done as u32 <= count, "{done} sends succeeded, {count} messages were received");
    }
    Ok(())
}

/// A queue pair that has reported its death refuses posts.
pub(super) fn dead_qp_refuses_posts(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    bench.exchange(&mut pair, Side::A, 1)?;
    bench.device(Side::A).fail_qp(pair.qp(Side::A));
    bench.until(&mut pair, "Disconnected at both ends", |p| Side::BOTH.iter().all(|s| p.disconnected(*s)))?;
    for side in Side::BOTH {
        let posted = bench.device(side).post_send(pair.qp(side), &[pair.write(side, 9, 0, pair.staged(side, 0, 8))]);
        ensure!(posted == Err(PostError::Dead), "post_send on {side:?} after Disconnected: {posted:?}");
        let empty = bench.device(side).post_send(pair.qp(side), &[pair.write(side, 9, 0, Payload::Inline(&[]))]);
        ensure!(empty == Err(PostError::Dead), "an empty post_send on {side:?} after Disconnected: {empty:?}");
        let posted = bench.device(side).post_recv(pair.qp(side), 1);
        ensure!(posted == Err(PostError::Dead), "post_recv on {side:?} after Disconnected: {posted:?}");
    }
    Ok(())
}

/// The end of one link does not affect another.
pub(super) fn queue_pairs_are_independent(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pairs = [bench.connect()?, bench.connect()?, bench.connect()?];
    for pair in &mut pairs {
        bench.exchange(pair, Side::A, 1)?;
    }
    bench.device(Side::B).fail_qp(pairs[0].qp(Side::B));
    bench.device(Side::A).destroy_qp(pairs[1].qp(Side::A));
    bench.exchange(&mut pairs[2], Side::A, 2)?;
    bench.exchange(&mut pairs[2], Side::B, 3)?;
    bench.until(&mut pairs[0], "Disconnected of the failed link", |p| p.disconnected(Side::A))?;
    bench.until(&mut pairs[1], "Disconnected of the destroyed link", |p| p.disconnected(Side::B))?;
    bench.exchange(&mut pairs[2], Side::A, 4)?;
    ensure!(Side::BOTH.iter().all(|side| !pairs[2].disconnected(*side)), "the third link died with the others");
    let mut fresh = bench.connect()?;
    bench.exchange(&mut fresh, Side::A, 5)
}
