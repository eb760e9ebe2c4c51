//! Deliberate faults, to show that the harness would notice: each breaks a rule that devices, anchors and sinks keep.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use netacc_device::loopback::anchor::InMemoryAnchor;
use netacc_device::{
    Anchor, AnchorError, Completion, Device, Operation, Payload, PostError, QueuePairId, Region, WorkCompletion,
    WorkRequest,
};
use netacc_proto::{Immediate, MessageKind, Record, RecordKind, NUMBER_BITS, RECORD_LEN};
use parking_lot::Mutex;

use crate::Mutant;

/// Strikes once, at the n-th opportunity. Clones share the count.
#[derive(Clone)]
pub(crate) struct Countdown(Arc<AtomicU32>);

impl Countdown {
    pub(crate) fn new(n: u32) -> Countdown {
        Countdown(Arc::new(AtomicU32::new(n + 1)))
    }

    /// Begins again.
    pub(crate) fn reset(&self, n: u32) {
        self.0.store(n + 1, Ordering::Relaxed);
    }

    pub(crate) fn strikes(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 1
    }
}

/// A message held back, to be posted after the next one.
struct Delayed {
    operation: Operation,
    bytes: Option<Vec<u8>>,
    len: u32,
}

/// A device's misbehaviour.
pub(crate) struct DeviceMutant {
    mutant: Mutant,
    countdown: Countdown,
    delayed: Mutex<BTreeMap<QueuePairId, Delayed>>,
    /// The last requests of each queue pair.
    executed: Mutex<BTreeMap<QueuePairId, VecDeque<Executed>>>,
}

/// A request that the device may execute again, with its payload as the device keeps it.
struct Executed {
    operation: Operation,
    payload: Kept,
}

enum Kept {
    Inline(Vec<u8>),
    Region { region: Region, offset: usize, len: u32 },
}

/// Requests that can be repeated.
const REPEATED: usize = 6;
/// Requests between two repetitions, at most. Arbitrary: each repetition of a message ends a link.
const REPEATED_AGAIN: u32 = 200;

fn kind_of(operation: &Operation) -> Option<MessageKind> {
    match operation {
        Operation::Write { imm: Some(imm), .. } => Immediate::decode(*imm & !NUMBER_BITS).ok().map(|i| i.kind),
        _ => None,
    }
}

impl DeviceMutant {
    pub(crate) fn new(mutant: Mutant, countdown: Countdown) -> DeviceMutant {
        DeviceMutant { mutant, countdown, delayed: Mutex::default(), executed: Mutex::default() }
    }

    /// Whether a region that is given back is kept.
    pub(crate) fn keeps_region(&self) -> bool {
        self.mutant == Mutant::LeakRegion && self.countdown.strikes()
    }

    /// Takes out completions that are not to be seen.
    pub(crate) fn filter(&self, wcs: &mut [WorkCompletion]) -> usize {
        let mut kept = 0;
        for i in 0..wcs.len() {
            let lost = self.mutant == Mutant::DropDisconnect && wcs[i].completion == Completion::Disconnected;
            if !(lost && self.countdown.strikes()) {
                wcs[kept] = wcs[i];
                kept += 1;
            }
        }
        kept
    }

    pub(crate) fn post_send(
        &self,
        device: &dyn Device,
        qp: QueuePairId,
        wrs: &[WorkRequest<'_>],
    ) -> Result<usize, PostError> {
        let [wr] = wrs else { return device.post_send(qp, wrs) };
        let kind = kind_of(&wr.operation);
        let data = kind == Some(MessageKind::Data);
        let bare = matches!(wr.operation, Operation::Write { imm: None, .. });
        let gives = matches!(kind, Some(MessageKind::CreditGive | MessageKind::LinkGive));
        let delayed = self.delayed.lock().remove(&qp);
        if let Some(delayed) = delayed {
            let posted = device.post_send(qp, wrs)?;
            let payload = delayed.bytes.as_deref().map_or(Payload::InPlace { len: delayed.len }, Payload::Inline);
            let late = WorkRequest { operation: delayed.operation, payload, ..*wr };
            let _ = device.post_send(qp, &[late]);
            return Ok(posted);
        }
        match self.mutant {
            Mutant::DropData if data && self.countdown.strikes() => Ok(1),
            Mutant::DropGive if gives && self.countdown.strikes() => Ok(1),
            Mutant::DuplicateData if data && self.countdown.strikes() => {
                let posted = device.post_send(qp, wrs)?;
                let _ = device.post_send(qp, wrs);
                Ok(posted)
            }
            Mutant::ReorderData if data && self.countdown.strikes() => {
                let bytes = match wr.payload {
                    Payload::Region { region, offset, len }
                        if len as usize <= device.capabilities().max_inline as usize =>
                    {
                        let mut bytes = vec![0; len as usize];
                        let _ = region.memory.read(offset, &mut bytes);
                        Some(bytes)
                    }
                    Payload::InPlace { .. } => None,
                    // Too long to be held back: let it pass.
                    _ => return device.post_send(qp, wrs),
                };
                self.delayed.lock().insert(qp, Delayed { operation: wr.operation, bytes, len: wr.payload.len() });
                Ok(1)
            }
            Mutant::CorruptData if data => match wr.payload {
                Payload::Region { region, offset, len } if len > 0 && self.countdown.strikes() => {
                    let mut byte = [0];
                    let _ = region.memory.read(offset, &mut byte);
                    let _ = region.memory.write(offset, &[byte[0] ^ 0x20]);
                    device.post_send(qp, wrs)
                }
                _ => device.post_send(qp, wrs),
            },
            Mutant::CorruptCredit if bare && self.countdown.strikes() => {
                let lie = (1u64 << 40).to_le_bytes();
                device.post_send(qp, &[WorkRequest { payload: Payload::Inline(&lie), ..*wr }])
            }
            Mutant::Repeat => self.post_and_repeat(device, qp, wr),
            _ => device.post_send(qp, wrs),
        }
    }

    /// Posts a request and, sometimes, an earlier one again.
    fn post_and_repeat(&self, device: &dyn Device, qp: QueuePairId, wr: &WorkRequest<'_>) -> Result<usize, PostError> {
        let posted = device.post_send(qp, std::slice::from_ref(wr))?;
        let payload = match wr.payload {
            Payload::Inline(bytes) => Kept::Inline(bytes.to_vec()),
            Payload::Region { region, offset, len } => Kept::Region { region: region.clone(), offset, len },
            // Shared memory, which repeats nothing.
            Payload::InPlace { .. } => return Ok(posted),
        };
        let mut executed = self.executed.lock();
        let executed = executed.entry(qp).or_default();
        executed.push_back(Executed { operation: wr.operation, payload });
        if executed.len() > REPEATED {
            executed.pop_front();
        }
        if self.countdown.strikes() {
            self.countdown.reset(wr.payload.len() % REPEATED_AGAIN);
            let Executed { operation, payload } = &executed[0];
            let payload = match payload {
                Kept::Inline(bytes) => Payload::Inline(bytes),
                Kept::Region { region, offset, len } => Payload::Region { region, offset: *offset, len: *len },
            };
            // Refused where its memory is gone: then SoftRoCE could not read it either.
            let _ = device.post_send(qp, &[WorkRequest { id: wr.id, operation: *operation, payload, signaled: false }]);
        }
        Ok(posted)
    }
}

/// An anchor's misbehaviour.
#[derive(Clone)]
pub(crate) struct AnchorMutant {
    pub(crate) mutant: Mutant,
    pub(crate) countdown: Countdown,
}

impl AnchorMutant {
    pub(crate) fn write(&self, anchor: &mut InMemoryAnchor, bytes: &[u8]) -> Result<usize, AnchorError> {
        let record = bytes.first_chunk::<RECORD_LEN>().and_then(|b| Record::decode(b).ok());
        let resume = record.is_some_and(|r| r.kind == RecordKind::Resume);
        match self.mutant {
            Mutant::DropResume if resume && self.countdown.strikes() => Ok(bytes.len()),
            Mutant::DuplicateAnchor if record.is_none() && self.countdown.strikes() => {
                let n = anchor.try_write(bytes)?;
                let _ = anchor.try_write(&bytes[..n]);
                Ok(n)
            }
            _ => anchor.try_write(bytes),
        }
    }
}
