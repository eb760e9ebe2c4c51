//! Checks of how completions are reported: pending, poll_qp, arming, channels, rebinding, waiting.

use std::time::Duration;

use super::bench::{ensure, fail, skip, Bench, Pair, Stop, EMPTY};
use super::Side;
use crate::{Armed, Completion, CompletionQueueId, InPlaceError, InPlaceQueue, QueuePairId, Wait};

/// Takes everything that B's queue `cq` reports, so that later reports are new.
fn forget_reports(bench: &Bench<'_>, cq: CompletionQueueId) -> Result<(), Stop> {
    let mut out = [QueuePairId(0); 8];
    for _ in 0..MAX_REPORTS {
        if bench.device(Side::B).pending(cq, &mut out) == 0 {
            return Ok(());
        }
    }
    fail!("pending never runs dry")
}

/// Rounds after which a queue that still reports counts as faulty. Arbitrary.
const MAX_REPORTS: usize = 1000;

/// Lets time pass until B's queue `cq` reports a queue pair; returns it.
fn next_report(bench: &mut Bench<'_>, cq: CompletionQueueId) -> Result<Vec<QueuePairId>, Stop> {
    let mut reported = Vec::new();
    bench.until_unpolled("a report by pending", |b| {
        let mut out = [QueuePairId(0); 8];
        let count = b.device(Side::B).pending(cq, &mut out);
        reported = out[..count].to_vec();
        count > 0
    })?;
    Ok(reported)
}

fn expect_no_report(bench: &mut Bench<'_>, cq: CompletionQueueId, when: &str) -> Result<(), Stop> {
    for _ in 0..bench.fixture.quiet_rounds() {
        let mut out = [QueuePairId(0); 8];
        let count = bench.device(Side::B).pending(cq, &mut out);
        ensure!(count == 0, "pending reported {:?} {when}", &out[..count]);
        bench.fixture.progress();
    }
    Ok(())
}

/// Polls B for one more message than it has had.
fn drain_until(bench: &mut Bench<'_>, pair: &mut Pair, total: usize) -> Result<(), Stop> {
    for _ in 0..bench.fixture.patience() {
        bench.collect_side(pair, Side::B);
        if pair.receives(Side::B).len() >= total {
            return Ok(());
        }
        bench.fixture.progress();
    }
    fail!("a reported queue pair had {} messages, not {total}", pair.receives(Side::B).len())
}

/// A queue pair is reported once, and again at its next completion.
pub(super) fn pending_reports_once(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let cq = bench.cqs[Side::B as usize];
    let mut pair = bench.connect()?;
    let qp = pair.qp(Side::B);
    bench.post_recv(&pair, Side::B, 8)?;
    forget_reports(bench, cq)?;
    for number in 1..=3 {
        bench.send_message(&pair, Side::A, number)?;
        let reported = next_report(bench, cq)?;
        ensure!(reported == [qp], "message {number} on {qp:?} was reported as {reported:?}");
        expect_no_report(bench, cq, "twice, before it was drained")?;
        drain_until(bench, &mut pair, number as usize)?;
        expect_no_report(bench, cq, "again, with no new completion")?;
    }
    // Not drained: the next completion reports it all the same.
    bench.send_message(&pair, Side::A, 4)?;
    ensure!(next_report(bench, cq)? == [qp], "message 4 was reported wrongly");
    bench.send_message(&pair, Side::A, 5)?;
    ensure!(next_report(bench, cq)? == [qp], "message 5, with 4 not drained, was reported wrongly");
    drain_until(bench, &mut pair, 5)?;
    // Polled without having been reported.
    bench.send_message(&pair, Side::A, 6)?;
    drain_until(bench, &mut pair, 6)?;
    bench.expect_messages(&pair, Side::B, &[1, 2, 3, 4, 5, 6])
}

/// Reports that do not fit wait for the next call.
pub(super) fn pending_with_little_room(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let cq = bench.cqs[Side::B as usize];
    let mut pairs = [bench.connect()?, bench.connect()?, bench.connect()?];
    forget_reports(bench, cq)?;
    for pair in &pairs {
        bench.post_recv(pair, Side::B, 1)?;
        bench.send_message(pair, Side::A, 1)?;
    }
    for _ in 0..bench.fixture.quiet_rounds() {
        bench.fixture.progress();
        ensure!(bench.device(Side::B).pending(cq, &mut []) == 0, "pending counts what it cannot report");
    }
    let mut reported = Vec::new();
    bench.until_unpolled("reports of three queue pairs, one at a time", |b| {
        let mut out = [QueuePairId(0); 1];
        if b.device(Side::B).pending(cq, &mut out) == 1 {
            reported.push(out[0]);
        }
        reported.len() == 3
    })?;
    let mut expected: Vec<QueuePairId> = pairs.iter().map(|p| p.qp(Side::B)).collect();
    reported.sort();
    expected.sort();
    ensure!(reported == expected, "reported were {reported:?}, ready {expected:?}");
    expect_no_report(bench, cq, "a fourth time")?;
    pairs.iter_mut().try_for_each(|pair| drain_until(bench, pair, 1))
}

/// Completions that do not fit wait for the next call, in order.
pub(super) fn poll_qp_with_little_room(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    let qp = pair.qp(Side::B);
    bench.post_recv(&pair, Side::B, 5)?;
    for number in 1..=5 {
        bench.send_message(&pair, Side::A, number)?;
    }
    for number in 1..=5usize {
        ensure!(bench.device(Side::B).poll_qp(qp, &mut []) == 0, "poll_qp counts what it cannot give");
        let mut out = [EMPTY; 1];
        bench.until_unpolled("a completion, polled singly", |b| b.device(Side::B).poll_qp(qp, &mut out) == 1)?;
        ensure!(matches!(out[0].completion, Completion::Receive { .. }), "polled {:?}", out[0]);
        bench.record(&mut pair, Side::B, out[0]);
        ensure!(pair.receives(Side::B).len() == number, "polled {:?}", out[0]);
    }
    bench.quiet(&mut pair);
    bench.expect_messages(&pair, Side::B, &[1, 2, 3, 4, 5])
}

/// Each queue reports its own queue pairs only.
pub(super) fn queues_do_not_mix(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let (first, second) = (bench.cqs, bench.second_cqs()?);
    let mut pairs = [bench.connect_on(first)?, bench.connect_on(second)?];
    let queues = [first[Side::B as usize], second[Side::B as usize]];
    queues.iter().try_for_each(|cq| forget_reports(bench, *cq))?;
    for (pair, own, other) in [(0, queues[0], queues[1]), (1, queues[1], queues[0])] {
        let pair = &mut pairs[pair];
        bench.post_recv(pair, Side::B, 1)?;
        bench.send_message(pair, Side::A, 1)?;
        let reported = next_report(bench, own)?;
        ensure!(reported == [pair.qp(Side::B)], "reported {reported:?} for {:?}", pair.qp(Side::B));
        expect_no_report(bench, other, "on another queue than its own")?;
        drain_until(bench, pair, 1)?;
    }
    Ok(())
}

/// Arms B's queue when it is empty.
fn arm_to_sleep(bench: &mut Bench<'_>, cq: CompletionQueueId, when: &str) -> Result<(), Stop> {
    for _ in 0..bench.fixture.patience() {
        forget_reports(bench, cq)?;
        bench.device(Side::B).drain(cq);
        if bench.device(Side::B).arm(cq) == Armed::Sleep {
            return Ok(());
        }
        bench.device(Side::B).disarm(cq);
        bench.fixture.progress();
    }
    fail!("arm never returns Sleep {when}")
}

/// Arming an empty queue lets the caller sleep; one with completions does not, whether they came before or after.
pub(super) fn arm_and_disarm(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let cq = bench.cqs[Side::B as usize];
    let mut pair = bench.connect()?;
    bench.post_recv(&pair, Side::B, 4)?;
    for (number, armed) in [(1, true), (2, false), (3, true)] {
        arm_to_sleep(bench, cq, "on an empty queue")?;
        if !armed {
            bench.device(Side::B).disarm(cq);
        }
        bench.send_message(&pair, Side::A, number)?;
        bench.until_unpolled("arm returning Pending once a completion is there", |b| {
            b.device(Side::B).arm(cq) == Armed::Pending
        })?;
        bench.device(Side::B).disarm(cq);
        ensure!(next_report(bench, cq)? == [pair.qp(Side::B)], "the completion that arm saw is not reported");
        drain_until(bench, &mut pair, number as usize)?;
    }
    arm_to_sleep(bench, cq, "on a drained queue")?;
    bench.device(Side::B).disarm(cq);
    Ok(())
}

/// The channel is readable exactly while an armed queue has completions.
pub(super) fn channel_fd_readiness(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let cq = bench.cqs[Side::B as usize];
    let Some(fd) = bench.device(Side::B).channel_fd(cq) else { skip!("channel_fd is None") };
    if bench.fixture.channel_readable(fd).is_none() {
        skip!("the fixture cannot poll descriptors");
    }
    let mut pair = bench.connect()?;
    bench.post_recv(&pair, Side::B, 4)?;
    for number in 1..=3 {
        arm_to_sleep(bench, cq, "on an empty queue")?;
        ensure!(bench.fixture.channel_readable(fd) == Some(false), "the channel of an empty queue is readable");
        bench.send_message(&pair, Side::A, number)?;
        bench.until_unpolled("the channel becoming readable", |b| b.fixture.channel_readable(fd) == Some(true))?;
        bench.device(Side::B).disarm(cq);
        bench.device(Side::B).drain(cq);
        ensure!(next_report(bench, cq)? == [pair.qp(Side::B)], "the completion that woke us is not reported");
        drain_until(bench, &mut pair, number as usize)?;
        ensure!(bench.fixture.channel_readable(fd) == Some(false), "the channel is still readable after drain");
    }
    Ok(())
}

/// A moved queue pair loses nothing and reports to its new queue.
pub(super) fn rebind_moves_completions(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !bench.caps(Side::B).rebind {
        skip!("rebind is off");
    }
    let (old, new) = (bench.cqs[Side::B as usize], bench.second_cqs()?[Side::B as usize]);
    let mut pair = bench.connect()?;
    let (device, qp) = (bench.device(Side::B), pair.qp(Side::B));
    bench.post_recv(&pair, Side::B, 4)?;
    // One completion is already there when it moves.
    forget_reports(bench, old)?;
    bench.send_message(&pair, Side::A, 1)?;
    ensure!(next_report(bench, old)? == [qp], "not reported by the queue it was connected on");
    if let Err(error) = device.rebind(qp, new) {
        fail!("rebind: {error}");
    }
    drain_until(bench, &mut pair, 1)?;
    forget_reports(bench, new)?;
    forget_reports(bench, old)?;
    for (number, own, other) in [(2, new, old), (3, old, new)] {
        bench.send_message(&pair, Side::A, number)?;
        let reported = next_report(bench, own)?;
        ensure!(reported == [qp], "reported as {reported:?} after rebind");
        expect_no_report(bench, other, "on the queue it was moved from")?;
        drain_until(bench, &mut pair, number as usize)?;
        if let Err(error) = device.rebind(qp, other) {
            fail!("rebind: {error}");
        }
        bench.collect_side(&mut pair, Side::B);
    }
    ensure!(device.rebind(qp, CompletionQueueId(u32::MAX)).is_err(), "rebind to a queue that does not exist");
    bench.expect_messages(&pair, Side::B, &[1, 2, 3])
}

/// A message that the peer knocks for is reported where the queue pair was connected, and wakes a thread that sleeps
/// there.
pub(super) fn knock_calls_the_first_queue(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !(bench.caps(Side::A).knock && bench.caps(Side::B).rebind) {
        skip!("knock is off");
    }
    let (old, new) = (bench.cqs[Side::B as usize], bench.second_cqs()?[Side::B as usize]);
    let mut pair = bench.connect()?;
    let (device, qp) = (bench.device(Side::B), pair.qp(Side::B));
    bench.post_recv(&pair, Side::B, 4)?;
    if let Err(error) = device.rebind(qp, new) {
        fail!("rebind: {error}");
    }
    for number in 1..=3 {
        forget_reports(bench, new)?;
        arm_to_sleep(bench, old, "on the queue it was connected on")?;
        bench.send_message(&pair, Side::A, number)?;
        expect_no_report(bench, old, "before the peer has knocked")?;
        bench.device(Side::A).knock(pair.qp(Side::A));
        if let Some(fd) = bench.device(Side::B).channel_fd(old) {
            let readable = bench.fixture.channel_readable(fd);
            ensure!(readable != Some(false), "no wake-up came");
        }
        ensure!(bench.device(Side::B).arm(old) == Armed::Pending, "arm does not see the knock");
        bench.device(Side::B).disarm(old);
        bench.device(Side::B).drain(old);
        ensure!(next_report(bench, old)? == [qp], "the queue pair is not reported where it was connected");
        ensure!(next_report(bench, new)? == [qp], "nor where it is now");
        drain_until(bench, &mut pair, number as usize)?;
    }
    bench.expect_messages(&pair, Side::B, &[1, 2, 3])
}

/// On devices where threads sleep on queue pairs: the sequence moves with completions, and a stale one does not sleep.
pub(super) fn qp_wait(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    let (device, qp) = (bench.device(Side::B), pair.qp(Side::B));
    if !bench.caps(Side::B).qp_wait {
        ensure!(device.qp_sequence(qp) == 0, "qp_sequence without the capability is not 0");
        skip!("qp_wait is off");
    }
    bench.post_recv(&pair, Side::B, 2)?;
    let before = device.qp_sequence(qp);
    bench.send_message(&pair, Side::A, 1)?;
    bench.until_unpolled("a new sequence with a completion", |b| b.device(Side::B).qp_sequence(qp) != before)?;
    // Long enough that the check would notice a sleep until the timeout.
    let outcome = device.wait_qp(qp, before, Some(Duration::from_secs(2)));
    ensure!(outcome != Wait::TimedOut, "waited with a stale sequence: {outcome:?}");
    drain_until(bench, &mut pair, 1)?;
    let now = device.qp_sequence(qp);
    // Any outcome is accepted, in finite time: spurious wake-ups are allowed.
    device.wait_qp(qp, now, Some(Duration::from_millis(1)));
    device.wake_qp(qp);
    bench.send_message(&pair, Side::A, 2)?;
    drain_until(bench, &mut pair, 2)?;
    match bench.device(Side::B).in_place(qp) {
        Some(queue) => in_place_at_a_sequence(bench, &mut pair, &*queue),
        None => Ok(()),
    }
}

/// A message in place goes only at the sequence that its sender has handled, not where another message has come, also if
/// that is polled: the thread that polled it may not have handled it.
fn in_place_at_a_sequence(bench: &mut Bench<'_>, pair: &mut Pair, queue: &dyn InPlaceQueue) -> Result<(), Stop> {
    let (device, qp) = (bench.device(Side::B), pair.qp(Side::B));
    let post = |seen| queue.post(seen, 0, 9);
    bench.post_recv(pair, Side::A, 2)?;
    bench.post_recv(pair, Side::B, 1)?;
    let before = device.qp_sequence(qp);
    bench.send_message(pair, Side::A, 3)?;
    bench.until_unpolled("a new sequence with a completion", |b| b.device(Side::B).qp_sequence(qp) != before)?;
    ensure!(post(Some(before)) == Err(InPlaceError::News), "a message was posted although another has come");
    drain_until(bench, pair, 3)?;
    ensure!(post(Some(before)) == Err(InPlaceError::News), "a message was posted although another was polled");
    let now = device.qp_sequence(qp);
    ensure!(post(Some(now)) == Ok(()), "no message was posted at the sequence");
    device.wake_qp(qp);
    ensure!(post(None) == Ok(()), "no message was posted, whatever the sequence");
    bench.until(pair, "both messages", |p| p.receives(Side::A).len() == 2)?;
    ensure!(pair.receives(Side::A) == [(9, 0); 2], "messages in place: {:?}", pair.receives(Side::A));
    Ok(())
}

/// `max_cq` queues can be created, and no more. Uses them all up.
pub(super) fn cq_limit(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let max = bench.caps(Side::B).max_cq;
    ensure!(max >= 1, "max_cq is 0");
    if max > CQ_LIMIT_TRIED {
        skip!("max_cq is {max}, more than this check creates");
    }
    let mut count = if bench.second_cqs().is_ok() { 2 } else { 1 };
    while count <= max && bench.device(Side::B).create_cq().is_ok() {
        count += 1;
    }
    ensure!(count == max, "{count} queues or more could be created, max_cq being {max}");
    Ok(())
}

/// Completion queues that the suite is ready to create. Arbitrary.
const CQ_LIMIT_TRIED: u32 = 256;
