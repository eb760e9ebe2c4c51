//! Checks of transfers: immediates, payloads of each kind, limits.

use super::bench::{ensure, fail, has_arrived, message_bytes, read, skip, Bench, Pair, Stop, REGION_LEN, SLOT};
use super::Side;
use crate::{CompletionStatus, Operation, Payload, PostError, WorkRequest, WorkRequestId};

/// Messages in an order check: fewer than slots in a region.
const COUNT: u32 = 12;

fn with_imm<'a>(mut wr: WorkRequest<'a>, number: u32) -> WorkRequest<'a> {
    if let Operation::Write { imm, .. } = &mut wr.operation {
        *imm = Some(number);
    }
    wr
}

fn in_order(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    bench.post_recv(&pair, Side::B, COUNT)?;
    let numbers: Vec<u32> = (1..=COUNT).collect();
    for number in &numbers {
        bench.send_message(&pair, Side::A, *number)?;
    }
    bench.until(&mut pair, "all messages", |p| p.receives(Side::B).len() >= numbers.len())?;
    bench.until(&mut pair, "all send completions", |p| p.sends(Side::A).len() >= numbers.len())?;
    bench.quiet(&mut pair);
    bench.expect_messages(&pair, Side::B, &numbers)?;
    let expected: Vec<_> = numbers.iter().map(|n| (u64::from(*n), CompletionStatus::Success)).collect();
    ensure!(pair.sends(Side::A) == expected, "send completions came as {:?}", pair.sends(Side::A));
    Ok(())
}

/// Immediates arrive in order, each when its bytes are there, one completion at a time.
pub(super) fn write_with_imm_in_order(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !bench.caps(Side::A).write_with_imm {
        skip!("write_with_imm is off");
    }
    in_order(bench)?;
    // The bytes of each message are there when its completion comes, not only in the end: all messages use one place.
    let mut pair = bench.connect()?;
    bench.post_recv(&pair, Side::B, COUNT)?;
    for number in 1..=COUNT {
        ensure!(pair.staging(Side::A).memory.write(0, &number.to_le_bytes()), "staging region too short");
        let wr = with_imm(pair.write(Side::A, u64::from(number), 0, pair.staged(Side::A, 0, 4)), number);
        let posted = bench.post(&pair, Side::A, &[wr]);
        ensure!(posted == Ok(1), "posting message {number}: {posted:?}");
        bench.until(&mut pair, "arrival of a message", |p| p.receives(Side::B).len() as u32 >= number)?;
        let bytes = read(pair.local(Side::B), 0, 4);
        ensure!(bytes == number.to_le_bytes(), "message {number} completed before its bytes arrived: {bytes:?}");
        bench.until(&mut pair, "its send completion", |p| p.sends(Side::A).len() as u32 >= number)?;
    }
    Ok(())
}

/// Without the capability the request is refused when posted.
pub(super) fn write_with_imm_needs_capability(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if bench.caps(Side::A).write_with_imm {
        skip!("write_with_imm is on");
    }
    let pair = bench.connect()?;
    let wr = with_imm(pair.write(Side::A, 1, 0, pair.staged(Side::A, 0, 8)), 1);
    let posted = bench.post(&pair, Side::A, &[wr]);
    ensure!(posted == Err(PostError::Invalid), "WRITE with immediate without the capability: {posted:?}");
    Ok(())
}

/// SEND after WRITE, on devices whose messages go in that way: in order, after the bytes.
pub(super) fn send_in_order(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if bench.caps(Side::A).write_with_imm {
        skip!("messages go as WRITE with immediate");
    }
    in_order(bench)
}

/// Both ends send, crosswise.
pub(super) fn messages_both_ways(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    for side in Side::BOTH {
        bench.post_recv(&pair, side, 4)?;
    }
    for number in 1..=4 {
        bench.send_message(&pair, Side::A, number)?;
        bench.send_message(&pair, Side::B, number + 16)?;
    }
    bench.until(&mut pair, "all messages", |p| Side::BOTH.iter().all(|s| p.receives(*s).len() >= 4))?;
    bench.quiet(&mut pair);
    bench.expect_messages(&pair, Side::B, &[1, 2, 3, 4])?;
    bench.expect_messages(&pair, Side::A, &[17, 18, 19, 20])
}

/// `max_inline` bytes go, copied when posted; one more is refused.
pub(super) fn inline_limit(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let max = bench.caps(Side::A).max_inline as usize;
    let mut pair = bench.connect()?;
    if max >= REGION_LEN {
        skip!("max_inline is {max}, more than this check's region");
    }
    let mut bytes: Vec<u8> = (0..=max).map(|i| (i % 251) as u8 + 1).collect();
    let posted = bench.post(&pair, Side::A, &[pair.write(Side::A, 1, 0, Payload::Inline(&bytes))]);
    ensure!(posted == Err(PostError::Invalid), "{} bytes inline, max_inline being {max}: {posted:?}", max + 1);
    ensure!(read(pair.local(Side::B), 0, max + 1).iter().all(|b| *b == 0), "a refused request wrote something");
    let wr = pair.write(Side::A, 2, 0, Payload::Inline(&bytes[..max]));
    let posted = bench.post(&pair, Side::A, &[wr]);
    ensure!(posted == Ok(1), "{max} bytes inline, max_inline being {max}: {posted:?}");
    let sent = bytes[..max].to_vec();
    bytes.fill(0);
    bench
        .until(&mut pair, "the inline WRITE", |p| !p.sends(Side::A).is_empty() && has_arrived(p.local(Side::B), max))?;
    ensure!(pair.sends(Side::A) == [(2, CompletionStatus::Success)], "inline WRITE: {:?}", pair.sends(Side::A));
    let arrived = read(pair.local(Side::B), 0, max + 1);
    ensure!(arrived[..max] == sent && arrived[max] == 0, "inline bytes arrived changed (or read after the post)");
    Ok(())
}

/// A window is the peer's memory, and `InPlace` announces bytes that were stored there.
pub(super) fn in_place_through_window(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !bench.caps(Side::A).peer_memory {
        skip!("peer_memory is off");
    }
    let mut pair = bench.connect()?;
    let remote = pair.ends[Side::A as usize].remote;
    let window = match bench.device(Side::A).window(pair.qp(Side::A), remote) {
        Ok(window) => window,
        Err(error) => fail!("window onto the peer's first region: {error}"),
    };
    ensure!(window.memory.len() == REGION_LEN && window.remote == remote, "the window is not the requested one");
    ensure!(window.memory.write(3 * SLOT, &message_bytes(3)), "a store into the window was refused");
    ensure!(read(pair.local(Side::B), 3 * SLOT, SLOT) == message_bytes(3), "a store into the window did not arrive");
    ensure!(pair.local(Side::B).memory.write(0, b"reply"), "first region too short");
    ensure!(read(&window, 0, 5) == b"reply", "the window does not show the peer's store");
    bench.post_recv(&pair, Side::B, 1)?;
    let wr = pair.write(Side::A, 3, 3 * SLOT, Payload::InPlace { len: SLOT as u32 });
    let wr = if bench.caps(Side::A).write_with_imm { with_imm(wr, 3) } else { return Ok(()) };
    let posted = bench.post(&pair, Side::A, &[wr]);
    ensure!(posted == Ok(1), "posting InPlace: {posted:?}");
    bench.until(&mut pair, "the message in place", |p| !p.receives(Side::B).is_empty())?;
    bench.expect_messages(&pair, Side::B, &[3])?;
    let wr = with_imm(pair.write(Side::A, 4, REGION_LEN - 4, Payload::InPlace { len: 8 }), 4);
    expect_refused(bench, &mut pair, wr, "InPlace beyond the peer's region")
}

/// Without the capability the device refuses both the window and `InPlace`.
pub(super) fn in_place_needs_capability(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if bench.caps(Side::A).peer_memory {
        skip!("peer_memory is on");
    }
    let pair = bench.connect()?;
    let window = bench.device(Side::A).window(pair.qp(Side::A), pair.ends[0].remote);
    ensure!(window.is_err(), "a window without the capability");
    let posted = bench.post(&pair, Side::A, &[pair.write(Side::A, 1, 0, Payload::InPlace { len: 8 })]);
    ensure!(posted == Err(PostError::Invalid), "InPlace without the capability: {posted:?}");
    Ok(())
}

/// A word written without immediate arrives, consumes no receive and causes no completion at the peer.
pub(super) fn small_write_without_imm(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    for value in 1..=20u64 {
        let position = 8 * value as usize;
        ensure!(pair.staging(Side::A).memory.write(position, &(value << 33 | 1).to_ne_bytes()), "staging too short");
        let wr = pair.write(Side::A, value, position, pair.staged(Side::A, position, 8));
        let posted = bench.post(&pair, Side::A, &[wr]);
        ensure!(posted == Ok(1), "posting a WRITE of 8 bytes: {posted:?}");
        bench.until(&mut pair, "a WRITE of 8 bytes", |p| {
            let word = p.local(Side::B).memory.word(position);
            word.is_some_and(|w| w.load(std::sync::atomic::Ordering::Acquire) == value << 33 | 1)
        })?;
        bench.until(&mut pair, "its completion", |p| p.sends(Side::A).len() as u64 >= value)?;
    }
    bench.quiet(&mut pair);
    ensure!(pair.receives(Side::B).is_empty(), "a WRITE without immediate caused a completion at the peer");
    ensure!(!pair.disconnected(Side::A) && !pair.disconnected(Side::B), "a WRITE without immediate killed the link");
    Ok(())
}

/// A payload must lie in its region; any offset and length inside it will do, and an empty one.
pub(super) fn region_payload_is_bounded(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    for (offset, len) in [(REGION_LEN - 4, 8), (REGION_LEN, 1), (usize::MAX, 2), (0, u32::MAX as usize)] {
        let wr = pair.write(Side::A, 9, 0, pair.staged(Side::A, offset, len));
        let posted = bench.post(&pair, Side::A, &[wr]);
        ensure!(posted == Err(PostError::Invalid), "payload at {offset} of {len} bytes: {posted:?}");
    }
    ensure!(bench.post(&pair, Side::A, &[]) == Ok(0), "posting nothing is not Ok(0)");
    ensure!(pair.staging(Side::A).memory.write(REGION_LEN - 13, b"thirteenbytes"), "staging too short");
    let wrs = [
        pair.write(Side::A, 1, 7, pair.staged(Side::A, REGION_LEN - 13, 13)),
        pair.write(Side::A, 2, REGION_LEN, pair.staged(Side::A, 0, 0)),
        pair.write(Side::A, 3, REGION_LEN - 1, pair.staged(Side::A, REGION_LEN - 1, 1)),
    ];
    let posted = bench.post(&pair, Side::A, &wrs);
    ensure!(posted == Ok(3), "payloads at the edges of their regions: {posted:?}");
    bench.until(&mut pair, "WRITEs at the edges", |p| {
        p.sends(Side::A).len() == 3 && has_arrived(p.local(Side::B), REGION_LEN)
    })?;
    let all_done = pair.sends(Side::A).iter().all(|(_, status)| *status == CompletionStatus::Success);
    ensure!(all_done, "WRITEs at the edges: {:?}", pair.sends(Side::A));
    ensure!(read(pair.local(Side::B), 7, 13) == b"thirteenbytes", "an unaligned WRITE arrived changed");
    ensure!(read(pair.local(Side::B), REGION_LEN - 1, 1) == b"s", "a WRITE of the last byte arrived changed");
    Ok(())
}

/// `max_message` bytes go; one more is refused.
pub(super) fn message_limit(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let max = bench.caps(Side::A).max_message as usize;
    if max > MESSAGE_LIMIT_TRIED {
        skip!("max_message is {max}, more than this check tries");
    }
    let mut pair = bench.connect()?;
    let alloc = |side: Side| bench.device(side).alloc_region(pair.qp(side), max + 1);
    let (Ok(from), Ok(to)) = (alloc(Side::A), alloc(Side::B)) else { skip!("cannot register {} bytes", max + 1) };
    ensure!(from.memory.write(max - 4, &[9; 5]), "a region is shorter than requested");
    let wr = |len: usize| WorkRequest {
        id: WorkRequestId(1),
        operation: Operation::Write { rkey: to.remote.rkey, offset: to.remote.base, imm: None },
        payload: Payload::Region { region: &from, offset: 0, len: len as u32 },
        signaled: true,
    };
    let posted = bench.post(&pair, Side::A, &[wr(max + 1)]);
    ensure!(posted == Err(PostError::Invalid), "a message of max_message + 1 bytes: {posted:?}");
    let posted = bench.post(&pair, Side::A, &[wr(max)]);
    ensure!(posted == Ok(1), "a message of max_message bytes: {posted:?}");
    bench.until(&mut pair, "the longest WRITE", |p| !p.sends(Side::A).is_empty() && has_arrived(&to, max))?;
    ensure!(read(&to, max - 4, 5) == [9, 9, 9, 9, 0], "the longest message arrived changed");
    Ok(())
}

/// Longest message that the suite registers memory for. Arbitrary.
const MESSAGE_LIMIT_TRIED: usize = 16 << 20;

/// Unsignaled requests that succeed are silent; signaled ones complete in order.
pub(super) fn only_signaled_sends_complete(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    let mut wrs = Vec::new();
    for id in 1..=6 {
        let mut wr = pair.write(Side::A, id, 0, pair.staged(Side::A, 0, 8));
        wr.signaled = id % 3 == 0;
        wrs.push(wr);
    }
    let posted = bench.post(&pair, Side::A, &wrs);
    ensure!(posted == Ok(6), "posting six WRITEs at once: {posted:?}");
    bench.until(&mut pair, "two send completions", |p| p.sends(Side::A).len() >= 2)?;
    bench.quiet(&mut pair);
    let expected = [(3, CompletionStatus::Success), (6, CompletionStatus::Success)];
    ensure!(pair.sends(Side::A) == expected, "signaled were 3 and 6, completed {:?}", pair.sends(Side::A));
    Ok(())
}

/// Posts a request that the peer's memory does not allow: it is refused when posted, or the link dies.
pub(super) fn expect_refused(
    bench: &mut Bench<'_>,
    pair: &mut Pair,
    wr: WorkRequest<'_>,
    what: &str,
) -> Result<(), Stop> {
    let sends = pair.sends(Side::A).len();
    match bench.device(Side::A).post_send(pair.qp(Side::A), &[wr]) {
        Err(PostError::Invalid) => Ok(()),
        Ok(1) => bench.until(pair, what, |p| {
            let failed = p.sends(Side::A).iter().skip(sends).any(|(_, status)| *status != CompletionStatus::Success);
            failed || p.disconnected(Side::A)
        }),
        other => fail!("{what}: {other:?}"),
    }
}
