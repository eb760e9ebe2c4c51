//! The base of the checks: connected pairs, waiting, and the guarantees that hold at every moment.

use std::sync::Arc;

use super::{Fixture, Outcome, Side};
use crate::{
    Capabilities, Completion, CompletionQueueId, CompletionStatus, Device, Operation, Payload, PostError, QueuePairId,
    Region, RemoteRegion, WorkCompletion, WorkRequest, WorkRequestId,
};

/// The reason why a check ends early.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(String),
    Skipped(String),
}

impl From<Stop> for Outcome {
    fn from(stop: Stop) -> Outcome {
        match stop {
            Stop::Failed(reason) => Outcome::Failed(reason),
            Stop::Skipped(reason) => Outcome::Skipped(reason),
        }
    }
}

macro_rules! fail {
    ($($text:tt)*) => { return Err($crate::conformance::bench::Stop::Failed(format!($($text)*))) };
}

macro_rules! skip {
    ($($text:tt)*) => { return Err($crate::conformance::bench::Stop::Skipped(format!($($text)*))) };
}

macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => { if !$condition { $crate::conformance::bench::fail!($($text)*) } };
}

pub(super) use {ensure, fail, skip};

/// Bytes of the first regions. A multiple of the page size, so that rounding up hides nothing.
pub(super) const REGION_LEN: usize = 4096;

/// Bytes between the payloads of successive messages in a region.
pub(super) const SLOT: usize = 64;

/// One end of an established connection.
#[derive(Clone, Debug)]
pub struct Established {
    /// Its queue pair.
    pub qp: QueuePairId,
    /// Its first region.
    pub local: Region,
    /// The peer's first region.
    pub remote: RemoteRegion,
}

/// A connected pair of queue pairs, and everything polled from them so far.
pub(super) struct Pair {
    pub(super) ends: [Established; 2],
    staging: [Region; 2],
    seen: [Vec<WorkCompletion>; 2],
}

impl Pair {
    pub(super) fn qp(&self, side: Side) -> QueuePairId {
        self.ends[side as usize].qp
    }

    /// The region of `side` that its peer writes.
    pub(super) fn local(&self, side: Side) -> &Region {
        &self.ends[side as usize].local
    }

    /// The region of `side` that it sends from.
    pub(super) fn staging(&self, side: Side) -> &Region {
        &self.staging[side as usize]
    }

    /// Immediates and lengths of the messages that `side` received.
    pub(super) fn receives(&self, side: Side) -> Vec<(u32, u32)> {
        let seen = self.seen[side as usize].iter();
        seen.filter_map(|wc| match wc.completion {
            Completion::Receive { imm, len } if wc.status == CompletionStatus::Success => Some((imm, len)),
            _ => None,
        })
        .collect()
    }

    /// Ids and outcomes of the sends that completed at `side`.
    pub(super) fn sends(&self, side: Side) -> Vec<(u64, CompletionStatus)> {
        let seen = self.seen[side as usize].iter();
        seen.filter_map(|wc| match wc.completion {
            Completion::Send { id } => Some((id.0, wc.status)),
            _ => None,
        })
        .collect()
    }

    /// The completions of `side`, shortened for the report.
    fn summary(&self, side: Side) -> String {
        let seen = &self.seen[side as usize];
        let last: Vec<_> = seen.iter().rev().take(3).rev().map(|wc| (wc.completion, wc.status)).collect();
        format!("{} completions, the last being {last:?}", seen.len())
    }

    pub(super) fn disconnected(&self, side: Side) -> bool {
        self.seen[side as usize].iter().any(|wc| wc.completion == Completion::Disconnected)
    }

    /// A WRITE of `side` to `position` in the peer's first region.
    pub(super) fn write<'a>(&self, side: Side, id: u64, position: usize, payload: Payload<'a>) -> WorkRequest<'a> {
        let RemoteRegion { rkey, base, .. } = self.ends[side as usize].remote;
        let operation = Operation::Write { rkey, offset: base.wrapping_add(position as u64), imm: None };
        WorkRequest { id: WorkRequestId(id), operation, payload, signaled: true }
    }

    /// The `len` bytes at `position` of the region that `side` sends from.
    pub(super) fn staged(&self, side: Side, position: usize, len: usize) -> Payload<'_> {
        Payload::Region { region: self.staging(side), offset: position, len: len as u32 }
    }
}

/// The bench: a fixture, one completion queue on each side, and the pairs of the running check.
pub(super) struct Bench<'f> {
    pub(super) fixture: &'f mut dyn Fixture,
    pub(super) cqs: [CompletionQueueId; 2],
    second_cqs: Option<[CompletionQueueId; 2]>,
    open: Vec<[QueuePairId; 2]>,
    /// The first guarantee that was found broken during a check.
    broken: Option<String>,
}

impl<'f> Bench<'f> {
    pub(super) fn new(fixture: &'f mut dyn Fixture) -> Result<Bench<'f>, Stop> {
        let cqs = create_cqs(fixture)?;
        Ok(Bench { fixture, cqs, second_cqs: None, open: Vec::new(), broken: None })
    }

    pub(super) fn device(&self, side: Side) -> Arc<dyn Device> {
        self.fixture.device(side)
    }

    pub(super) fn caps(&self, side: Side) -> Capabilities {
        self.device(side).capabilities().clone()
    }

    /// A second completion queue on each side, the same for all checks.
    pub(super) fn second_cqs(&mut self) -> Result<[CompletionQueueId; 2], Stop> {
        if Side::BOTH.iter().any(|side| self.caps(*side).max_cq < 2) {
            skip!("max_cq is 1");
        }
        if let Some(cqs) = self.second_cqs {
            return Ok(cqs);
        }
        let cqs = create_cqs(self.fixture)?;
        self.second_cqs = Some(cqs);
        Ok(cqs)
    }

    /// Ends a check: destroys its queue pairs, and reports a guarantee that was found broken meanwhile.
    pub(super) fn finish_check(&mut self) -> Result<(), Stop> {
        for qps in std::mem::take(&mut self.open) {
            for side in Side::BOTH {
                self.device(side).destroy_qp(qps[side as usize]);
            }
        }
        (0..self.fixture.quiet_rounds()).for_each(|_| self.fixture.progress());
        self.broken.take().map_or(Ok(()), |reason| Err(Stop::Failed(reason)))
    }

    /// A connected pair on the first completion queues, on which A has sent its first message.
    pub(super) fn connect(&mut self) -> Result<Pair, Stop> {
        self.connect_on(self.cqs)
    }

    pub(super) fn connect_on(&mut self, cqs: [CompletionQueueId; 2]) -> Result<Pair, Stop> {
        let mut pair = self.connect_in_silence(cqs)?;
        self.speak_first(&mut pair)?;
        Ok(pair)
    }

    /// A connected pair on which neither side has sent a message.
    pub(super) fn connect_in_silence(&mut self, cqs: [CompletionQueueId; 2]) -> Result<Pair, Stop> {
        let ends = self.fixture.connect(cqs, REGION_LEN).map_err(|e| Stop::Failed(format!("connecting: {e}")))?;
        self.adopt(ends)
    }

    /// Makes a pair of two ends that are connected.
    pub(super) fn adopt(&mut self, ends: [Established; 2]) -> Result<Pair, Stop> {
        self.open.push([ends[0].qp, ends[1].qp]);
        let staging = |side: Side| {
            let region = self.device(side).alloc_region(ends[side as usize].qp, REGION_LEN);
            region.map_err(|e| Stop::Failed(format!("alloc_region: {e}")))
        };
        let staging = [staging(Side::A)?, staging(Side::B)?];
        Ok(Pair { ends, staging, seen: Default::default() })
    }

    /// Sends the initiator's first message, and removes its traces.
    fn speak_first(&mut self, pair: &mut Pair) -> Result<(), Stop> {
        self.exchange(pair, Side::A, 0)?;
        self.until(pair, "the first completion of the connecting side", |p| !p.sends(Side::A).is_empty())?;
        ensure!(pair.sends(Side::A) == [(0, CompletionStatus::Success)], "first message: {:?}", pair.seen[0]);
        ensure!(pair.local(Side::B).memory.write(0, &[0; SLOT]), "a first region is shorter than it should be");
        pair.seen = Default::default();
        Ok(())
    }

    /// Polls both ends for all there is.
    pub(super) fn collect(&mut self, pair: &mut Pair) {
        Side::BOTH.into_iter().for_each(|side| self.collect_side(pair, side));
    }

    pub(super) fn collect_side(&mut self, pair: &mut Pair, side: Side) {
        let mut out = [EMPTY; 8];
        // Bounded: a device that invents completions must not hang the suite.
        for _ in 0..MAX_POLLS {
            let count = self.device(side).poll_qp(pair.qp(side), &mut out);
            for wc in &out[..count.min(out.len())] {
                self.record(pair, side, *wc);
            }
            if count < out.len() {
                return;
            }
        }
        self.broken.get_or_insert_with(|| "poll_qp never runs dry".into());
    }

    /// Keeps a completion, and checks the rules for every completion.
    pub(super) fn record(&mut self, pair: &mut Pair, side: Side, wc: WorkCompletion) {
        let was_disconnected = pair.disconnected(side);
        pair.seen[side as usize].push(wc);
        let problem = match wc.completion {
            _ if wc.qp != pair.qp(side) => "poll_qp gave another queue pair's completion",
            Completion::Disconnected if was_disconnected => "Disconnected was reported twice",
            Completion::Receive { .. } if was_disconnected => "a receive completed after Disconnected",
            Completion::Receive { .. } if wc.status != CompletionStatus::Success => "a receive failed",
            _ => return,
        };
        self.broken.get_or_insert_with(|| format!("{problem}: {wc:?} on {:?} of {side:?}", pair.qp(side)));
    }

    /// Lets time pass until `done`, polling the pair.
    pub(super) fn until(&mut self, pair: &mut Pair, what: &str, done: impl Fn(&Pair) -> bool) -> Result<(), Stop> {
        for _ in 0..self.fixture.patience() {
            self.collect(pair);
            if done(pair) {
                return Ok(());
            }
            self.fixture.progress();
        }
        fail!("never happened: {what}; A saw {}; B saw {}", pair.summary(Side::A), pair.summary(Side::B))
    }

    /// Lets time pass until `done`, polling nothing.
    pub(super) fn until_unpolled(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), Stop> {
        for _ in 0..self.fixture.patience() {
            if done(self) {
                return Ok(());
            }
            self.fixture.progress();
        }
        fail!("never happened: {what}")
    }

    /// Lets some time pass, polling the pair.
    pub(super) fn quiet(&mut self, pair: &mut Pair) {
        for _ in 0..self.fixture.quiet_rounds() {
            self.fixture.progress();
            self.collect(pair);
        }
    }

    /// Lets some time pass without polling.
    pub(super) fn quiet_unpolled(&mut self) {
        (0..self.fixture.quiet_rounds()).for_each(|_| self.fixture.progress());
    }

    pub(super) fn post_recv(&self, pair: &Pair, side: Side, count: u32) -> Result<(), Stop> {
        let posted = self.device(side).post_recv(pair.qp(side), count);
        posted.map_err(|e| Stop::Failed(format!("post_recv of {count} on {side:?}: {e}")))
    }

    pub(super) fn post(&self, pair: &Pair, side: Side, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        self.device(side).post_send(pair.qp(side), wrs)
    }

    /// Posts message `number` in the way that suits the device: `SLOT` bytes made of the number, at slot `number`, then
    /// an immediate of that number. Its send completes with that id.
    pub(super) fn post_message(&self, pair: &Pair, from: Side, number: u32) -> Result<usize, PostError> {
        let position = message_position(number);
        if !pair.staging(from).memory.write(position, &message_bytes(number)) {
            return Err(PostError::Invalid);
        }
        let mut write = pair.write(from, u64::from(number), position, pair.staged(from, position, SLOT));
        if self.caps(from).write_with_imm {
            if let Operation::Write { imm, .. } = &mut write.operation {
                *imm = Some(number);
            }
            return self.post(pair, from, &[write]);
        }
        let operation = Operation::Send { imm: Some(number) };
        let send = WorkRequest { operation, payload: Payload::Inline(&[]), ..write };
        write.signaled = false;
        self.post(pair, from, &[write, send])
    }

    pub(super) fn send_message(&self, pair: &Pair, from: Side, number: u32) -> Result<(), Stop> {
        let expected = if self.caps(from).write_with_imm { 1 } else { 2 };
        let posted = self.post_message(pair, from, number);
        ensure!(posted == Ok(expected), "posting message {number} from {from:?}: {posted:?}");
        Ok(())
    }

    /// Checks that `to` received exactly the messages `numbers`, in order, and has their bytes.
    pub(super) fn expect_messages(&self, pair: &Pair, to: Side, numbers: &[u32]) -> Result<(), Stop> {
        let with_imm = self.caps(to.peer()).write_with_imm;
        let receives = pair.receives(to);
        ensure!(receives.len() == numbers.len(), "{to:?} received {receives:?}, sent were {numbers:?}");
        for ((imm, len), number) in receives.iter().zip(numbers) {
            if with_imm {
                ensure!((*imm, *len) == (*number, SLOT as u32), "message {number} arrived as imm {imm}, len {len}");
            } else {
                ensure!(*imm == *number || *imm == 0, "message {number} arrived with immediate {imm}");
            }
            let bytes = read(pair.local(to), message_position(*number), SLOT);
            ensure!(bytes == message_bytes(*number), "message {number} arrived without its bytes: {:?}", &bytes[..8]);
        }
        Ok(())
    }

    /// Sends one message on a pair that should work, with a receive for it, and checks its arrival.
    pub(super) fn exchange(&mut self, pair: &mut Pair, from: Side, number: u32) -> Result<(), Stop> {
        let before = pair.receives(from.peer()).len();
        self.post_recv(pair, from.peer(), 1)?;
        self.send_message(pair, from, number)?;
        self.until(pair, "arrival of a message", |p| p.receives(from.peer()).len() > before)?;
        let bytes = read(pair.local(from.peer()), message_position(number), SLOT);
        ensure!(bytes == message_bytes(number), "message {number} arrived without its bytes");
        Ok(())
    }
}

/// The position of message `number`. Messages further apart than a region holds share their place.
pub(super) fn message_position(number: u32) -> usize {
    (number as usize * SLOT) % REGION_LEN
}

/// The bytes of message `number`.
pub(super) fn message_bytes(number: u32) -> Vec<u8> {
    (0..SLOT as u32).map(|i| (number.wrapping_mul(31).wrapping_add(i) | 1) as u8).collect()
}

/// Bytes of a region; empty if it is too short, which no check expects.
pub(super) fn read(region: &Region, position: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    if region.memory.read(position, &mut bytes) {
        bytes
    } else {
        Vec::new()
    }
}

/// Whether a WRITE that ends here, with a byte other than zero, has arrived. Its completion does not show this: on
/// iWARP that comes when the bytes have been handed to TCP.
pub(super) fn has_arrived(region: &Region, end: usize) -> bool {
    end.checked_sub(1).is_none_or(|last| read(region, last, 1) != [0])
}

fn create_cqs(fixture: &dyn Fixture) -> Result<[CompletionQueueId; 2], Stop> {
    let create = |side| fixture.device(side).create_cq().map_err(|e| Stop::Failed(format!("create_cq: {e}")));
    Ok([create(Side::A)?, create(Side::B)?])
}

/// Fills the polling buffer before the device does.
pub(super) const EMPTY: WorkCompletion =
    WorkCompletion { qp: QueuePairId(0), status: CompletionStatus::Success, completion: Completion::Disconnected };

/// Polls without an end before a device counts as faulty. Arbitrary, above any queue's depth.
const MAX_POLLS: usize = 100_000;
