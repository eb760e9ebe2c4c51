//! A link: the queue pair, its two halves under two locks, and posting on it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use netacc_device::{
    CompletionQueueId, Device, Memory, Operation, Payload, PeerAddress, PostError, QueuePairId, Region, RemoteRegion,
    WorkRequest, WorkRequestId,
};
use netacc_proto::{
    ControlMessage, Immediate, Link, MessageKind, RingDescriptor, CONTROL_SLOT_LEN, CREDIT_BLOCK_LEN,
};
use parking_lot::Mutex;

use crate::StreamCell;

/// One in this many posted requests asks for a completion, so that a send queue's entries are reclaimed.
const SIGNAL_INTERVAL: u32 = 16;

/// A link as `netacc_ss -s qp` shows it.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The queue pair.
    pub qp: u32,
    /// Streams on it.
    pub streams: u16,
    /// Whether it is dead.
    pub dead: bool,
    /// The completion queue it reports to.
    pub cq: u32,
}

/// One connected queue pair.
pub struct LinkCell {
    pub(crate) qp: QueuePairId,
    pub(crate) peer: PeerAddress,
    /// This side asked for the connection, so it speaks first.
    pub(crate) connector: bool,
    pub(crate) cq: AtomicU32,
    pub(crate) dead: AtomicBool,
    /// Our first region: credit word, control slots.
    pub(crate) local: Region,
    pub(crate) rx: Mutex<LinkRx>,
    pub(crate) tx: Mutex<LinkTx>,
}

/// The receiving half.
pub(crate) struct LinkRx {
    /// Streams by our slot.
    pub(crate) slots: Vec<Option<Arc<StreamCell>>>,
    /// Control messages received.
    pub(crate) controls: u64,
}

/// The sending half, and the link's protocol state.
pub(crate) struct LinkTx {
    pub(crate) proto: Link,
    remote: RemoteRegion,
    window: Option<Memory>,
    posted: u32,
}

impl LinkCell {
    pub(crate) fn new(
        device: &dyn Device,
        proto: Link,
        qp: QueuePairId,
        peer: PeerAddress,
        connector: bool,
        cq: CompletionQueueId,
        regions: (Region, RemoteRegion),
    ) -> LinkCell {
        let (local, remote) = regions;
        let window = device.capabilities().peer_memory.then(|| device.window(qp, remote).ok()).flatten();
        LinkCell {
            qp,
            peer,
            connector,
            cq: AtomicU32::new(cq.0),
            dead: AtomicBool::new(false),
            local,
            rx: Mutex::new(LinkRx { slots: Vec::new(), controls: 0 }),
            tx: Mutex::new(LinkTx { proto, remote, window: window.map(|w| w.memory), posted: 0 }),
        }
    }

    /// The queue pair.
    pub fn qp(&self) -> QueuePairId {
        self.qp
    }

    /// The completion queue that the queue pair reports to.
    pub fn cq(&self) -> CompletionQueueId {
        CompletionQueueId(self.cq.load(Ordering::Relaxed))
    }

    /// Whether the link is dead.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// For display.
    pub fn status(&self) -> LinkStatus {
        LinkStatus {
            qp: self.qp.0,
            streams: self.tx.lock().proto.streams(),
            dead: self.is_dead(),
            cq: self.cq.load(Ordering::Relaxed),
        }
    }
}

impl LinkTx {
    /// Takes in the peer's count of consumed messages. `false`: it lied.
    #[inline]
    pub(crate) fn refresh_credit(&mut self, local: &Region) -> bool {
        let Some(word) = local.memory.word(0) else { return false };
        self.proto.handle_peer_consumed(word.load(Ordering::Acquire)).is_ok()
    }

    #[inline]
    fn take_credit(&mut self, local: &Region, control: bool) -> Result<(), PostError> {
        if self.proto.take_credit(control) {
            return Ok(());
        }
        if !self.refresh_credit(local) {
            return Err(PostError::Dead);
        }
        if self.proto.take_credit(control) {
            return Ok(());
        }
        Err(PostError::QueueFull)
    }

    #[inline]
    fn post(&mut self, device: &dyn Device, qp: QueuePairId, operation: Operation, payload: Payload<'_>) -> Result<(), PostError> {
        self.posted = self.posted.wrapping_add(1);
        let signaled = !device.capabilities().cheap_writes && self.posted % SIGNAL_INTERVAL == 0;
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload, signaled };
        match device.post_send(qp, &[wr]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(PostError::QueueFull),
            Err(e) => Err(e),
        }
    }

    /// Posts a message that is all in its immediate.
    pub(crate) fn signal(&mut self, device: &dyn Device, link: &LinkCell, kind: MessageKind, slot: u16) -> Result<(), PostError> {
        self.take_credit(&link.local, true)?;
        let imm = Some(Immediate::new(kind, slot).encode());
        let operation = Operation::Write { rkey: self.remote.rkey, offset: self.remote.base, imm };
        self.post(device, link.qp, operation, Payload::Inline(&[])).inspect_err(|_| self.proto.return_credit())
    }

    /// Posts a control message with its payload.
    pub(crate) fn control(&mut self, device: &dyn Device, link: &LinkCell, message: &ControlMessage) -> Result<(), PostError> {
        self.take_credit(&link.local, true)?;
        let Some(slot) = self.proto.control_slot() else {
            self.proto.return_credit();
            return Err(PostError::QueueFull);
        };
        let at = CREDIT_BLOCK_LEN + slot * CONTROL_SLOT_LEN;
        let bytes = message.encode();
        let payload = match &self.window {
            Some(window) if window.write(at, &bytes) => Payload::InPlace { len: CONTROL_SLOT_LEN as u32 },
            _ => Payload::Inline(&bytes),
        };
        let imm = Some(Immediate::new(MessageKind::Control, 0).encode());
        let operation = Operation::Write { rkey: self.remote.rkey, offset: self.remote.base + at as u64, imm };
        let posted = self.post(device, link.qp, operation, payload);
        posted.inspect_err(|_| {
            self.proto.return_control_slot();
            self.proto.return_credit();
        })
    }

    /// Posts a DATA message whose bytes lie in the window, or in `staging` at the same offset.
    #[inline]
    pub(crate) fn data(
        &mut self,
        device: &dyn Device,
        link: &LinkCell,
        ring: &RingDescriptor,
        staging: Option<&Region>,
        offset: u32,
        len: u32,
        imm: Immediate,
    ) -> Result<(), PostError> {
        self.take_credit(&link.local, false)?;
        let at = CREDIT_BLOCK_LEN + offset as usize;
        let payload = match staging {
            Some(region) => Payload::Region { region, offset: at, len },
            None => Payload::InPlace { len },
        };
        let operation = Operation::Write { rkey: ring.rkey, offset: ring.base + at as u64, imm: Some(imm.encode()) };
        self.post(device, link.qp, operation, payload).inspect_err(|_| self.proto.return_credit())
    }

    /// Writes a credit word of a stream of the peer, without consuming a receive.
    pub(crate) fn credit_word(&mut self, device: &dyn Device, link: &LinkCell, ring: &RingDescriptor, value: u64) -> Result<(), PostError> {
        let operation = Operation::Write { rkey: ring.rkey, offset: ring.base, imm: None };
        self.post(device, link.qp, operation, Payload::Inline(&value.to_le_bytes()))
    }

    /// Tells the peer how many of its messages we have consumed.
    pub(crate) fn message_credit(&mut self, device: &dyn Device, link: &LinkCell, count: u64) {
        if let Some(word) = self.window.as_ref().and_then(|w| w.word(0)) {
            word.store(count, Ordering::Release);
            return;
        }
        let operation = Operation::Write { rkey: self.remote.rkey, offset: self.remote.base, imm: None };
        // If the queue is full the count goes out with the next one.
        let _ = self.post(device, link.qp, operation, Payload::Inline(&count.to_le_bytes()));
    }
}
