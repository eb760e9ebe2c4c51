//! Checks of the connection manager and of the directory.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::bench::{ensure, fail, read, skip, Bench, Established, Stop, REGION_LEN};
use super::{Fixture, Side};
use crate::{
    CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, Directory, FourTuple, Operation, PeerAddress,
    PostError, Receives, WorkRequest, WorkRequestId, MAX_PRIVATE_DATA,
};

/// The two connection managers, and their events that were taken but not used yet: either may need polling for the
/// other to make progress.
struct Events {
    managers: [Arc<dyn ConnectionManager>; 2],
    taken: [VecDeque<CmEvent>; 2],
}

impl Events {
    fn of<F: Fixture + ?Sized>(fixture: &F) -> Option<Events> {
        let managers = [fixture.connection_manager(Side::A)?, fixture.connection_manager(Side::B)?];
        Some(Events { managers, taken: Default::default() })
    }

    fn poll(&mut self) {
        for (manager, taken) in self.managers.iter().zip(&mut self.taken) {
            taken.extend(std::iter::from_fn(|| manager.poll_event()).take(MAX_EVENTS));
        }
    }

    /// Lets time pass until the manager of `side` reports something.
    fn next<F: Fixture + ?Sized>(&mut self, fixture: &mut F, side: Side) -> Result<CmEvent, String> {
        for _ in 0..fixture.patience() {
            self.poll();
            if let Some(event) = self.taken[side as usize].pop_front() {
                return Ok(event);
            }
            fixture.progress();
        }
        let peer = &self.taken[side.peer() as usize];
        Err(format!("no event at {side:?}, at its peer {peer:?}"))
    }

    fn next_on(&mut self, bench: &mut Bench<'_>, side: Side) -> Result<CmEvent, Stop> {
        self.next(bench.fixture, side).map_err(Stop::Failed)
    }

    fn expect_none(&mut self, bench: &mut Bench<'_>, when: &str) -> Result<(), Stop> {
        for _ in 0..bench.fixture.quiet_rounds() {
            self.poll();
            ensure!(self.taken.iter().all(|t| t.is_empty()), "there was an event {when}: {:?}", self.taken);
            bench.fixture.progress();
        }
        Ok(())
    }
}

/// Events that one poll takes at most. Arbitrary: a manager that invents events must not hang the suite.
const MAX_EVENTS: usize = 1000;

fn events(bench: &Bench<'_>) -> Result<Events, Stop> {
    match Events::of(bench.fixture) {
        Some(events) => Ok(events),
        None => skip!("the fixture has no connection manager"),
    }
}

fn established(event: CmEvent, of: ConnectionId) -> Result<Established, String> {
    match event {
        CmEvent::Established { id, qp, local, remote, .. } if id == of => Ok(Established { qp, local, remote }),
        other => Err(format!("not Established of {of:?}: {other:?}")),
    }
}

/// Connects through the managers: the default of [`Fixture::connect`].
pub(super) fn connect<F: Fixture + ?Sized>(
    fixture: &mut F,
    cqs: [CompletionQueueId; 2],
    region_len: usize,
) -> Result<[Established; 2], String> {
    let mut events = Events::of(fixture).ok_or("the fixture has no connection manager")?;
    let [a, b] = events.managers.clone();
    let id = a.connect(b.address(), cqs[0], region_len, b"conformance").map_err(|e| e.to_string())?;
    let request = match events.next(fixture, Side::B)? {
        CmEvent::Request { id, .. } => id,
        other => return Err(format!("not a request: {other:?}")),
    };
    b.accept(request, cqs[1], region_len).map_err(|e| e.to_string())?;
    let far = established(events.next(fixture, Side::B)?, request)?;
    let near = established(events.next(fixture, Side::A)?, id)?;
    match events.taken.iter().flatten().next() {
        Some(stray) => Err(format!("an unexpected event: {stray:?}")),
        None => Ok([near, far]),
    }
}

fn begin(
    bench: &mut Bench<'_>,
    events: &mut Events,
    data: &[u8],
) -> Result<(ConnectionId, ConnectionId, Vec<u8>), Stop> {
    let [a, b] = &events.managers;
    let attempt = a.connect(b.address(), bench.cqs[0], REGION_LEN, data);
    let attempt = attempt.map_err(|e| Stop::Failed(format!("connect: {e}")))?;
    match events.next_on(bench, Side::B)? {
        CmEvent::Request { id, private_data, .. } => Ok((attempt, id, private_data)),
        other => fail!("not a request: {other:?}"),
    }
}

fn accept(bench: &mut Bench<'_>, events: &mut Events, id: ConnectionId) -> Result<Established, Stop> {
    if let Err(error) = events.managers[1].accept(id, bench.cqs[1], REGION_LEN) {
        fail!("accept: {error}");
    }
    established(events.next_on(bench, Side::B)?, id).map_err(Stop::Failed)
}

/// A SEND's bytes lie at the beginning of the peer's first region when its receive completes, whatever their number. A
/// device whose receives cannot have memory must refuse such connections.
pub(super) fn sends_bring_bytes(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    let [a, b] = events.managers.clone();
    let attempt = a.connect_with(b.address(), bench.cqs[0], REGION_LEN, b"", Receives::FirstRegion);
    if !bench.caps(Side::A).sends {
        ensure!(matches!(attempt, Err(CmError::NoSends)), "sends is off, and connecting for them gave {attempt:?}");
        skip!("sends is off");
    }
    let attempt = attempt.map_err(|e| Stop::Failed(format!("connect_with: {e}")))?;
    let request = match events.next_on(bench, Side::B)? {
        CmEvent::Request { id, .. } => id,
        other => fail!("not a request: {other:?}"),
    };
    if let Err(error) = b.accept_with(request, bench.cqs[1], REGION_LEN, Receives::FirstRegion) {
        fail!("accept_with: {error}");
    }
    let far = established(events.next_on(bench, Side::B)?, request).map_err(Stop::Failed)?;
    let near = established(events.next_on(bench, Side::A)?, attempt).map_err(Stop::Failed)?;
    let mut pair = bench.adopt([near, far])?;
    for (number, len) in [1, 7, 8, 9, 64, 1000, REGION_LEN, 1].into_iter().enumerate() {
        for from in Side::BOTH {
            let (to, bytes) = (from.peer(), vec![number as u8 + 1 + 16 * from as u8; len]);
            bench.post_recv(&pair, to, 1)?;
            ensure!(pair.staging(from).memory.write(0, &bytes), "a staging region is too short");
            let payload = pair.staged(from, 0, len);
            let operation = Operation::Send { imm: None };
            let wr = WorkRequest { id: WorkRequestId(number as u64), operation, payload, signaled: true };
            let posted = bench.post(&pair, from, &[wr]);
            ensure!(posted == Ok(1), "posting a SEND of {len} bytes: {posted:?}");
            bench.until(&mut pair, "arrival of a SEND", |p| p.receives(to).len() > number)?;
            let announced = pair.receives(to)[number].1;
            ensure!(announced as usize == len, "a SEND of {len} bytes arrived as one of {announced}");
            ensure!(read(pair.local(to), 0, len) == bytes, "a SEND of {len} bytes arrived without them");
            bench.until(&mut pair, "its send completion", |p| p.sends(from).len() > number)?;
        }
    }
    Ok(())
}

/// Gives back the queue pairs that a check connected by itself.
fn destroy(bench: &Bench<'_>, ends: &[Established; 2]) {
    for side in Side::BOTH {
        bench.device(side).destroy_qp(ends[side as usize].qp);
    }
}

/// Both ends are established once, and have each other's first region.
pub(super) fn connect_and_accept(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    ensure!(events.managers[0].address() != events.managers[1].address(), "both devices have the same address");
    let (attempt, request, _) = begin(bench, &mut events, b"")?;
    let far = accept(bench, &mut events, request)?;
    let near = established(events.next_on(bench, Side::A)?, attempt).map_err(Stop::Failed)?;
    events.expect_none(bench, "after an established connection")?;
    ensure!(
        near.remote == far.local.remote && far.remote == near.local.remote,
        "first regions differ: {near:?} {far:?}"
    );
    for end in [&near, &far] {
        ensure!(end.local.memory.len() == REGION_LEN, "a first region has {} bytes", end.local.memory.len());
        ensure!(read(&end.local, 0, REGION_LEN).iter().all(|b| *b == 0), "a first region is not zeroed");
    }
    destroy(bench, &[near, far]);
    // A pair made by the fixture works in both directions, too.
    let mut pair = bench.connect()?;
    bench.exchange(&mut pair, Side::A, 1)?;
    bench.exchange(&mut pair, Side::B, 2)
}

/// Private data of 0 to 56 bytes arrives, at most followed by zeros.
pub(super) fn private_data_is_carried(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    for len in [0, 1, MAX_PRIVATE_DATA] {
        let sent: Vec<u8> = (1..=len as u8).collect();
        let (attempt, request, got) = begin(bench, &mut events, &sent)?;
        let padded = got.iter().skip(len).all(|b| *b == 0);
        let whole = got.len() >= len && got.len() <= MAX_PRIVATE_DATA && got[..len] == sent && padded;
        ensure!(whole, "{len} bytes of private data arrived as {got:?}");
        let far = accept(bench, &mut events, request)?;
        let near = established(events.next_on(bench, Side::A)?, attempt).map_err(Stop::Failed)?;
        destroy(bench, &[near, far]);
    }
    Ok(())
}

/// 57 bytes are refused by `connect`.
pub(super) fn private_data_is_bounded(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    let attempt =
        events.managers[0].connect(events.managers[1].address(), bench.cqs[0], REGION_LEN, &[1; MAX_PRIVATE_DATA + 1]);
    ensure!(attempt.is_err(), "57 bytes of private data were taken");
    events.expect_none(bench, "after a refused connect")
}

/// The connecting side receives a rejection, once, and may try again.
pub(super) fn reject_is_reported(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    let (attempt, request, _) = begin(bench, &mut events, b"no")?;
    events.managers[1].reject(request);
    match events.next_on(bench, Side::A)? {
        CmEvent::Failed { id, .. } if id == attempt => {}
        other => fail!("a rejected attempt ended in {other:?}"),
    }
    events.expect_none(bench, "after a rejection")?;
    let mut pair = bench.connect()?;
    bench.exchange(&mut pair, Side::A, 1)
}

/// The side that accepted may send before it has received, or its link dies of that, as its capabilities define.
pub(super) fn who_sends_first(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut pair = bench.connect_in_silence(bench.cqs)?;
    bench.post_recv(&pair, Side::A, 1)?;
    if !bench.caps(Side::B).initiator_sends_first {
        bench.send_message(&pair, Side::B, 1)?;
        bench.until(&mut pair, "the first message, of the side that accepted", |p| !p.receives(Side::A).is_empty())?;
        return bench.expect_messages(&pair, Side::A, &[1]);
    }
    let posted = bench.post_message(&pair, Side::B, 1);
    ensure!(matches!(posted, Ok(_) | Err(PostError::Dead)), "a first message of the side that accepted: {posted:?}");
    bench.until(&mut pair, "Disconnected at both ends, the wrong side having sent first", |p| {
        Side::BOTH.iter().all(|side| p.disconnected(*side))
    })?;
    ensure!(pair.receives(Side::A).is_empty(), "the first message of the side that accepted was delivered");
    Ok(())
}

/// An address without a process: an error or a failed attempt, never silence.
pub(super) fn unreachable_is_reported(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    let real = events.managers[1].address().0;
    let wrong = [[0; 4], [u64::MAX; 4], [real[0] ^ 0x5a5a, !real[1], real[2], real[3]]];
    for address in wrong {
        match events.managers[0].connect(PeerAddress(address), bench.cqs[0], REGION_LEN, b"anybody?") {
            Err(CmError::Exhausted(what)) => fail!("connecting to an unused address: no room for {what}"),
            Err(_) => {}
            Ok(attempt) => match events.next_on(bench, Side::A)? {
                CmEvent::Failed { id, .. } if id == attempt => {}
                other => fail!("connecting to an unused address ended in {other:?}"),
            },
        }
    }
    events.expect_none(bench, "after attempts to reach an unused address")
}

/// Several attempts at once can be distinguished.
pub(super) fn connects_may_overlap(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    let mut attempt = Vec::new();
    for number in 0..3u8 {
        let id = events.managers[0].connect(events.managers[1].address(), bench.cqs[0], REGION_LEN, &[number + 1]);
        attempt.push(id.map_err(|e| Stop::Failed(format!("connect {number}: {e}")))?);
    }
    let mut requests = Vec::new();
    for _ in 0..3 {
        match events.next_on(bench, Side::B)? {
            CmEvent::Request { id, private_data, .. } => requests.push((id, private_data.first().copied())),
            other => fail!("not a request: {other:?}"),
        }
    }
    // The last is accepted first, the middle one rejected.
    requests.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    ensure!(requests.iter().map(|r| r.1).eq([Some(3), Some(2), Some(1)]), "requests came as {requests:?}");
    let third = accept(bench, &mut events, requests[0].0)?;
    events.managers[1].reject(requests[1].0);
    let first = accept(bench, &mut events, requests[2].0)?;
    let mut near = [None, None, None];
    for _ in 0..3 {
        let event = events.next_on(bench, Side::A)?;
        let (CmEvent::Established { id, .. } | CmEvent::Failed { id, .. }) = event else { fail!("{event:?}") };
        let Some(index) = attempt.iter().position(|a| *a == id) else { fail!("an unknown attempt: {event:?}") };
        ensure!(near[index].is_none(), "attempt {index} was reported twice");
        near[index] = Some(established(event, id));
    }
    let [Some(Ok(near_first)), Some(Err(_)), Some(Ok(near_third))] = near else { fail!("attempts ended in {near:?}") };
    ensure!(near_first.remote == first.local.remote, "the first attempt was connected to another one's queue pair");
    ensure!(near_third.remote == third.local.remote, "the third attempt was connected to another one's queue pair");
    ensure!(near_first.qp != near_third.qp && first.qp != third.qp, "two connections share a queue pair");
    destroy(bench, &[near_first, first]);
    destroy(bench, &[near_third, third]);
    Ok(())
}

/// Only a request that waits can be accepted.
pub(super) fn accept_is_for_open_requests(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let mut events = events(bench)?;
    let target = events.managers[1].clone();
    let accept_again = |b: &Bench<'_>, id| target.accept(id, b.cqs[1], REGION_LEN);
    ensure!(accept_again(bench, ConnectionId(u64::MAX - 1)).is_err(), "a request that was never made was accepted");
    events.managers[1].reject(ConnectionId(u64::MAX - 1));
    let (attempt, request, _) = begin(bench, &mut events, b"once")?;
    let far = accept(bench, &mut events, request)?;
    let near = established(events.next_on(bench, Side::A)?, attempt).map_err(Stop::Failed)?;
    ensure!(accept_again(bench, request).is_err(), "a request was accepted twice");
    events.managers[1].reject(request);
    events.expect_none(bench, "after answers to no request")?;
    destroy(bench, &[near, far]);
    Ok(())
}

fn directories(bench: &Bench<'_>) -> Result<([Arc<dyn Directory>; 2], Events), Stop> {
    let directory = |side| bench.fixture.directory(side);
    match (directory(Side::A), directory(Side::B)) {
        (Some(a), Some(b)) => Ok(([a, b], events(bench)?)),
        _ => skip!("the fixture has no directory"),
    }
}

/// A connection as side B (the server) sees it.
fn tuple(number: u16, v6: bool) -> FourTuple {
    let ip: IpAddr = if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    FourTuple { local: SocketAddr::new(ip, 6379), remote: SocketAddr::new(ip, 40_000 + number) }
}

/// The other end of a connection is found under its own view of it, and under no other.
pub(super) fn directory_finds_the_other_end(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let ([a, b], events) = directories(bench)?;
    for (number, v6) in [(1, false), (2, true)] {
        let server = tuple(number, v6);
        let client = server.reversed();
        ensure!(a.lookup(&client).is_none(), "found before anything was published");
        let published = b.publish(&server, u32::from(number));
        ensure!(published.is_ok(), "publish: {published:?}");
        let found = a.lookup(&client);
        ensure!(found == Some((events.managers[1].address(), u32::from(number))), "looked up {found:?}");
        ensure!(b.lookup(&server).is_none(), "an end was found as its own other end");
        ensure!(a.lookup(&tuple(number + 100, v6).reversed()).is_none(), "another connection was found");
        ensure!(a.lookup(&tuple(number, !v6).reversed()).is_none(), "the other family's connection was found");
        let published = a.publish(&client, 77);
        ensure!(published.is_ok(), "publish by the client: {published:?}");
        let found = b.lookup(&server);
        ensure!(found == Some((events.managers[0].address(), 77)), "the server looked up {found:?}");
        b.withdraw(&server, u32::from(number));
        a.withdraw(&client, 77);
        ensure!(a.lookup(&client).is_none() && b.lookup(&server).is_none(), "found after it was withdrawn");
    }
    Ok(())
}

/// Many entries, withdrawn one by one; a withdrawal of another stream's number changes nothing.
pub(super) fn directory_withdraws_what_was_published(bench: &mut Bench<'_>) -> Result<(), Stop> {
    let ([a, b], events) = directories(bench)?;
    let found = |number: u16| a.lookup(&tuple(number, false).reversed()).map(|(_, stream)| stream);
    for number in 0..STREAMS {
        let published = b.publish(&tuple(number, false), 1000 + u32::from(number));
        ensure!(published.is_ok(), "publish of connection {number}: {published:?}");
    }
    for number in 0..STREAMS {
        let tuple = tuple(number, false);
        ensure!(found(number) == Some(1000 + u32::from(number)), "connection {number}: found {:?}", found(number));
        b.withdraw(&tuple, 7);
        ensure!(found(number).is_some(), "connection {number} was withdrawn under another stream's number");
        b.withdraw(&tuple, 1000 + u32::from(number));
        ensure!(found(number).is_none(), "connection {number} was found after it was withdrawn");
        b.withdraw(&tuple, 1000 + u32::from(number));
    }
    // The place is free again.
    let again = b.publish(&tuple(0, false), 5);
    let who = a.lookup(&tuple(0, false).reversed());
    b.withdraw(&tuple(0, false), 5);
    ensure!(
        again.is_ok() && who == Some((events.managers[1].address(), 5)),
        "published again: {again:?}, found {who:?}"
    );
    Ok(())
}

/// Streams published at once. Arbitrary.
const STREAMS: u16 = 100;
