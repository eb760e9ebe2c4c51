//! Checks of regions, windows and handles: which memory a peer can reach.

use std::collections::HashSet;

use super::bench::{ensure, fail, has_arrived, read, skip, Bench, Pair, Stop, REGION_LEN};
use super::transfers::expect_refused;
use super::Side;
use crate::{
    CompletionQueueId, CompletionStatus, DeviceError, Operation, PostError, QueuePairId, RemoteKey, RemoteRegion,
    CREDIT_WORD_LEN,
};

/// Regions allocated at once. Arbitrary; more than one link's streams have in the tests.
const REGIONS: usize = 48;

/// Capabilities that follow from each other.
pub(super) fn capabilities_are_consistent(bench: &mut Bench<'_>) -> Result<(), Stop> {
    for side in Side::BOTH {
        let caps = bench.caps(side);
        ensure!(caps.max_send_sge >= 1, "max_send_sge is 0");
        ensure!(caps.max_send_wr >= 8 && caps.max_recv_wr >= 8, "queues of less than 8 entries cannot carry a link");
        ensure!(caps.max_message >= REGION_LEN as u32, "max_message is {}", caps.max_message);
        ensure!(caps.max_inline <= caps.max_message, "max_inline is above max_message");
        // The requirements of a link.
        let carries_credit = !caps.write_with_imm || caps.max_inline >= CREDIT_WORD_LEN;
        ensure!(carries_credit, "max_inline is {}, less than a credit word", caps.max_inline);
    }
    Ok(())
}

/// Many regions: zeroed, aligned, disjoint, each reached by its own key only, and zeroed again when reused.
pub(super) fn regions_are_zeroed_and_separate(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    let device = bench.device(Side::B);
    for round in 0..2u8 {
        let mut regions = Vec::new();
        for index in 0..REGIONS {
            let len = [1, 8, 64, 100, 4096, 10_000][index % 6];
            match device.alloc_region(pair.qp(Side::B), len) {
                Ok(region) => regions.push((region, len)),
                Err(error) => fail!("alloc_region {index} of {len} bytes: {error}"),
            }
        }
        let mut keys = HashSet::new();
        for (region, len) in &regions {
            ensure!(
                region.memory.len() == *len && region.remote.len as usize == *len,
                "a region of {len} is {region:?}"
            );
            ensure!(read(region, 0, *len).iter().all(|b| *b == 0), "a new region of {len} bytes is not zeroed");
            let aligned = region.memory.as_ptr(0).is_some_and(|p| (p as usize).is_multiple_of(64));
            ensure!(aligned, "a region is not aligned to 64 bytes");
            ensure!(keys.insert((region.remote.rkey, region.remote.base)), "two regions are addressed alike");
        }
        for (index, (region, len)) in regions.iter().enumerate() {
            let mark = index as u8 + 1 + round;
            let bytes = vec![mark; (*len).min(REGION_LEN)];
            ensure!(pair.staging(Side::A).memory.write(0, &bytes), "staging too short");
            let mut wr = pair.write(Side::A, index as u64, 0, pair.staged(Side::A, 0, bytes.len()));
            wr.operation = Operation::Write { rkey: region.remote.rkey, offset: region.remote.base, imm: None };
            let posted = bench.post(&pair, Side::A, &[wr]);
            ensure!(posted == Ok(1), "writing into region {index}: {posted:?}");
            let due = pair.sends(Side::A).len() + 1;
            bench.until(&mut pair, "a WRITE into an allocated region", |p| {
                p.sends(Side::A).len() >= due && has_arrived(region, bytes.len())
            })?;
        }
        ensure!(pair.sends(Side::A).iter().all(|s| s.1 == CompletionStatus::Success), "{:?}", pair.sends(Side::A));
        for (index, (region, len)) in regions.into_iter().enumerate() {
            let written = len.min(REGION_LEN);
            let bytes = read(&region, 0, len);
            let intact = bytes[..written].iter().all(|b| *b == index as u8 + 1 + round);
            ensure!(intact && bytes[written..].iter().all(|b| *b == 0), "region {index} holds another one's bytes");
            device.free_region(pair.qp(Side::B), region);
        }
    }
    Ok(())
}

/// A window is given only onto memory that the peer registered for this queue pair.
pub(super) fn window_descriptor_is_checked(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !bench.caps(Side::A).peer_memory {
        skip!("peer_memory is off");
    }
    let pair = bench.connect()?;
    let other = bench.connect()?;
    let good = pair.ends[Side::A as usize].remote;
    let part = RemoteRegion { base: good.base + 64, len: 128, ..good };
    let lies = [
        ("a longer region", RemoteRegion { len: good.len + 1, ..good }),
        ("a shifted region", RemoteRegion { base: good.base.wrapping_add(1), ..good }),
        ("an endless region", RemoteRegion { len: u32::MAX, ..good }),
        ("a region at the end of addresses", RemoteRegion { base: u64::MAX - 7, ..good }),
        ("an unknown key", RemoteRegion { rkey: RemoteKey(good.rkey.0 ^ 0x5a5a_5a5a), ..good }),
        ("another queue pair's region", other.ends[Side::A as usize].remote),
    ];
    let window = |remote| bench.device(Side::A).window(pair.qp(Side::A), remote);
    for (what, remote) in lies {
        match window(remote) {
            Err(DeviceError::NotRegistered) => {}
            Err(error) => fail!("a window onto {what} is refused for another reason: {error}"),
            Ok(_) => fail!("a window onto {what} was given"),
        }
    }
    ensure!(window(good).is_ok_and(|w| w.memory.len() == REGION_LEN), "no window onto the first region");
    match window(part) {
        Ok(w) => ensure!(w.memory.len() == 128, "a window onto 128 bytes has {}", w.memory.len()),
        Err(error) => fail!("no window onto a part of a region: {error}"),
    }
    Ok(())
}

/// A peer that has ended its queue pair has not named false regions: its regions ended with it.
pub(super) fn window_after_the_peer_has_ended(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !bench.caps(Side::A).peer_memory {
        skip!("peer_memory is off");
    }
    let mut pair = bench.connect()?;
    let remote = pair.ends[Side::A as usize].remote;
    bench.device(Side::B).destroy_qp(pair.qp(Side::B));
    let window = |bench: &Bench<'_>, pair: &Pair| bench.device(Side::A).window(pair.qp(Side::A), remote);
    for when in ["before", "after"] {
        if let Err(DeviceError::NotRegistered) = window(bench, &pair) {
            fail!("{when} it gets the end, the peer is reported to have named a region that it never had");
        }
        bench.until(&mut pair, "Disconnected", |p| p.disconnected(Side::A))?;
    }
    Ok(())
}

/// Memory that is given back is that of a region's tail: its beginning and other regions keep their bytes, and it can be
/// written again.
pub(super) fn discarded_memory_is_a_tail(bench: &mut Bench<'_>) -> Result<(), Stop> {
    const FROM: usize = 4096;
    const LEN: usize = (64 << 10) + CREDIT_WORD_LEN as usize;
    if !bench.caps(Side::A).peer_memory {
        skip!("peer_memory is off");
    }
    let pair = bench.connect()?;
    let mut regions = Vec::new();
    for len in [FROM, LEN, FROM, REGION_LEN] {
        match bench.device(Side::B).alloc_region(pair.qp(Side::B), len) {
            Ok(region) => regions.push(region),
            Err(error) => fail!("alloc_region of {len} bytes: {error}"),
        }
    }
    for region in &regions {
        ensure!(region.memory.write(0, &vec![CANARY; region.memory.len()]), "a region is too short");
    }
    let remote = regions[1].remote;
    let window = match bench.device(Side::A).window(pair.qp(Side::A), remote) {
        Ok(window) => window,
        Err(error) => fail!("no window: {error}"),
    };
    bench.device(Side::A).discard(pair.qp(Side::A), remote, FROM as u32);
    // Beyond the region: nothing is given back.
    bench.device(Side::A).discard(pair.qp(Side::A), remote, u32::MAX);
    for (index, region) in regions.iter().enumerate() {
        let kept = if index == 1 { FROM } else { region.memory.len() };
        ensure!(read(region, 0, kept).iter().all(|b| *b == CANARY), "bytes of region {index} are lost");
    }
    ensure!(window.memory.write(FROM, &[1; LEN - FROM]), "the window is too short");
    ensure!(read(&regions[1], FROM, LEN - FROM).iter().all(|b| *b == 1), "bytes that were written again are lost");
    Ok(())
}

/// WRITEs outside the peer's regions change nothing there: they are refused at once, or the link dies. Where bounds are
/// not exact, WRITEs that miss their region by a little may reach other memory of their queue pair; they never reach
/// another's.
pub(super) fn writes_outside_are_refused(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let bystander = bench.connect()?;
    let foreign = bystander.local(Side::B).remote;
    let exact = bench.caps(Side::B).exact_bounds;
    for attempt in 0..8 {
        let mut pair = bench.connect()?;
        let canary = match bench.device(Side::B).alloc_region(pair.qp(Side::B), REGION_LEN) {
            Ok(region) => region,
            Err(error) => fail!("alloc_region: {error}"),
        };
        for region in [pair.local(Side::B), &canary, bystander.local(Side::B)] {
            ensure!(region.memory.write(0, &[CANARY; REGION_LEN]), "a region is too short");
        }
        let Outside { what, rkey, offset, near } = outside(&pair, foreign, attempt);
        let may_arrive = near && !exact;
        bench.post_recv(&pair, Side::B, 1)?;
        let staging = pair.staging(Side::A).clone();
        let payload = crate::Payload::Region { region: &staging, offset: 0, len: 8 };
        let mut wr = pair.write(Side::A, 1, 0, payload);
        wr.operation = Operation::Write { rkey, offset, imm: bench.caps(Side::A).write_with_imm.then_some(1) };
        if may_arrive {
            match bench.device(Side::A).post_send(pair.qp(Side::A), &[wr]) {
                Err(PostError::Invalid) => {}
                Ok(1) => bench.until(&mut pair, what, |p| !p.sends(Side::A).is_empty() || p.disconnected(Side::A))?,
                other => fail!("{what}: {other:?}"),
            }
        } else {
            expect_refused(bench, &mut pair, wr, what)?;
        }
        bench.quiet(&mut pair);
        ensure!(may_arrive || pair.receives(Side::B).is_empty(), "{what} was delivered");
        let others = [bystander.local(Side::B)];
        let own = [pair.local(Side::B), &canary].into_iter().filter(|_| !may_arrive);
        for region in own.chain(others) {
            ensure!(read(region, 0, REGION_LEN) == [CANARY; REGION_LEN], "{what} changed the peer's memory");
        }
        // Refused when posted: the link continues.
        if !pair.disconnected(Side::A) && pair.sends(Side::A).is_empty() {
            bench.post_recv(&pair, Side::B, 1)?;
            bench.send_message(&pair, Side::A, 2)?;
            bench.until(&mut pair, "a message after a refused one", |p| !p.receives(Side::B).is_empty())?;
        }
    }
    Ok(())
}

/// The contents of the peer's regions while they must not change. Staging regions hold zeros.
const CANARY: u8 = 0xc3;

/// A place that a WRITE must not reach.
struct Outside {
    what: &'static str,
    rkey: RemoteKey,
    offset: u64,
    /// It has the key of a region that it misses only by a little.
    near: bool,
}

fn outside(pair: &Pair, foreign: RemoteRegion, attempt: usize) -> Outside {
    let RemoteRegion { rkey, base, len } = pair.local(Side::B).remote;
    let len = u64::from(len);
    let at = |what, rkey, offset| Outside { what, rkey, offset, near: attempt < 3 };
    match attempt {
        0 => at("a WRITE past the end", rkey, base + len),
        1 => at("a WRITE across the end", rkey, base + len - 4),
        2 => at("a WRITE before the start", rkey, base.wrapping_sub(8)),
        3 => at("a WRITE at the end of addresses", rkey, u64::MAX - 3),
        4 => at("a WRITE with an unknown key", RemoteKey(rkey.0 ^ 0x5a5a_5a5a), base),
        5 => at("a WRITE into another queue pair's region", foreign.rkey, foreign.base),
        6 => at("a WRITE to where another queue pair's region is", rkey, foreign.base),
        _ => at("a WRITE far away", rkey, base.wrapping_add(1 << 40)),
    }
}

/// The peer cannot reach a region that was given back, also when its memory is used again.
pub(super) fn freed_region_is_gone(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !bench.caps(Side::B).exact_bounds {
        skip!("a region that was given back may stay within reach of its own queue pair");
    }
    let mut pair = bench.connect()?;
    let (device, qp) = (bench.device(Side::B), pair.qp(Side::B));
    let alloc = || device.alloc_region(qp, REGION_LEN).map_err(|e| Stop::Failed(format!("alloc_region: {e}")));
    let freed = alloc()?;
    let remote = freed.remote;
    device.free_region(qp, freed);
    let reused = [alloc()?, alloc()?];
    if reused.iter().any(|r| r.remote == remote) {
        skip!("the device gives freed keys out again at once, so an old key is the same as a new one");
    }
    ensure!(pair.staging(Side::A).memory.write(0, &[CANARY; 8]), "staging too short");
    let mut wr = pair.write(Side::A, 1, 0, pair.staged(Side::A, 0, 8));
    wr.operation = Operation::Write { rkey: remote.rkey, offset: remote.base, imm: None };
    // Refused, or dead, or without effect: in any case, no other queue pair's bytes change.
    let _ = bench.post(&pair, Side::A, &[wr]);
    bench.quiet(&mut pair);
    for region in &reused {
        ensure!(read(region, 0, REGION_LEN).iter().all(|b| *b == 0), "a WRITE with a freed key reached another region");
    }
    Ok(())
}

/// Handles that were never given out cause an error, nothing worse.
pub(super) fn unknown_handles_are_refused(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect()?;
    let device = bench.device(Side::A);
    let (qp, cq) = (QueuePairId(u32::MAX - 3), CompletionQueueId(u32::MAX - 3));
    let staging = pair.staging(Side::A).clone();
    ensure!(device.alloc_region(qp, 64).is_err(), "alloc_region on an unknown queue pair");
    ensure!(device.window(qp, staging.remote).is_err(), "window on an unknown queue pair");
    ensure!(device.post_recv(qp, 1).is_err(), "post_recv on an unknown queue pair");
    let payload = crate::Payload::Region { region: &staging, offset: 0, len: 8 };
    ensure!(device.post_send(qp, &[pair.write(Side::A, 1, 0, payload)]).is_err(), "post_send on an unknown queue pair");
    ensure!(device.poll_qp(qp, &mut [super::bench::EMPTY; 4]) == 0, "poll_qp on an unknown queue pair");
    ensure!(device.pending(cq, &mut [QueuePairId(0); 4]) == 0, "pending on an unknown queue");
    ensure!(device.rebind(qp, bench.cqs[0]).is_err(), "rebind of an unknown queue pair");
    ensure!(device.channel_fd(cq).is_none(), "a channel of an unknown queue");
    device.arm(cq);
    device.disarm(cq);
    device.drain(cq);
    device.wake_qp(qp);
    device.qp_sequence(qp);
    device.fail_qp(qp);
    device.destroy_qp(qp);
    bench.exchange(&mut pair, Side::A, 1)
}
