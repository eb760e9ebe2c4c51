#![expect(unsafe_code, reason = "work requests name memory by address")]
//! One queue pair: the counts of its queues, its memory, and its completions.
//!
//! The device's own state cannot be trusted after an error (some complete nothing any more, some accept posts for
//! ever), so this module keeps counts of its own. A queue pair is dead once we have seen a failure, a disconnection, or
//! an event of its death; from then on it refuses posts and reports `Disconnected`, once.
//!
//! Invariants: `completed <= posted <= completed + depth`; a request's place (`posted % depth`) is used again only when
//! it has completed, so its mark and its note are still there when its completion comes. At least one request in every
//! quarter of the queue is signalled, even if the caller did not request it, or a queue of unsignalled requests could
//! never be emptied.

mod done;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use netacc_device::{
    Completion, CompletionStatus, DeviceError, Operation, Payload, PostError, QueuePairId, Region, RemoteKey,
    RemoteRegion, WorkCompletion, WorkRequest, WorkRequestId,
};
use parking_lot::{Mutex, RwLock};

use crate::device_cq::DeviceCq;
use crate::ffi::abi::{self, WorkCompletion as RawCompletion};
use crate::ffi::{Chain, CmId, Pd, QueuePair, RawRecv, RawSend, SendKind, Trouble};
use crate::memory::{LinkMemory, Part};
use crate::queue::Queue;
use done::{status, Done};

/// Bytes that each receive has. With immediates they stay unused; without, they get the note of a message.
pub(crate) const HEADER_LEN: usize = 8;

/// The requests and receives of one queue pair, and its device's capabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Requests that the device's send queue holds.
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_message: u32,
    pub(crate) immediate: bool,
}

impl Shape {
    /// Bytes that a post copies: the device copies them, or we do, into the request's note. The core posts its credit
    /// words in this way.
    pub(crate) fn max_copied(&self) -> u32 {
        self.max_inline.max(HEADER_LEN as u32)
    }
}

pub(crate) struct Link {
    pub(crate) id: QueuePairId,
    /// In the queue's list of links that have completions.
    pub(crate) reported: AtomicBool,
    /// The connection manager has reported the end: the peer need not be informed.
    pub(crate) peer_informed: AtomicBool,
    pub(crate) device_cq: DeviceCq,
    /// The queue that it reports to.
    home: Mutex<Arc<Queue>>,
    /// The connection; gone once it is destroyed. Locked after the two sides.
    pub(crate) cm: Mutex<Option<CmId>>,
    shape: Shape,
    pub(crate) memory: LinkMemory<Arc<Pd>>,
    /// Receives first, then the notes that we send: for messages, and for bytes that the device does not copy.
    headers: Part,
    /// The memory of all receives in place of notes: messages bring their own bytes. Decided before it is connected.
    into: OnceLock<RawRecv>,
    send: Mutex<SendSide>,
    recv: Mutex<RecvSide>,
    marks: Box<[Mark]>,
    completed: AtomicU64,
    dead: AtomicBool,
    /// A message of the peer must arrive before anything is sent, and has not yet.
    listening: AtomicBool,
    done: Mutex<Done>,
}

/// The living queue pairs. Each call looks up its own, so it is not a map that hashes with a key: numbers that we
/// assign ourselves do not need one.
#[derive(Default)]
pub(crate) struct Links(pub(crate) RwLock<BTreeMap<QueuePairId, Arc<Link>>>);

impl Links {
    pub(crate) fn get(&self, id: QueuePairId) -> Option<Arc<Link>> {
        self.0.read().get(&id).cloned()
    }
}

/// The result of polling the device.
pub(crate) struct Gathered {
    /// There is a completion to report.
    pub(crate) any: bool,
    /// The link died of one.
    pub(crate) died: bool,
}

struct SendSide {
    qp: Option<QueuePair>,
    posted: u64,
    since_signal: u32,
    batch: Vec<RawSend>,
    /// The number of requests of the device after each of the caller's.
    ends: Vec<usize>,
    chain: Chain<abi::SendWr>,
}

struct RecvSide {
    qp: Option<QueuePair>,
    posted: u64,
    /// The number of those that the caller has not posted yet.
    ahead: u32,
    chain: Chain<abi::RecvWr>,
}

/// The caller's data of a request.
#[derive(Default)]
struct Mark {
    id: AtomicU64,
    report: AtomicBool,
}

/// The place of a request's bytes.
#[derive(Clone, Copy)]
struct Source {
    /// The call that posts the request copies them.
    inline: bool,
    address: u64,
    lkey: u32,
}

impl Source {
    fn inline(address: u64) -> Source {
        Source { inline: true, address, lkey: 0 }
    }
}

const RECEIVE: u64 = 1 << 63;

/// The link that a request of this number belongs to.
pub(crate) fn link_of(wr_id: u64) -> QueuePairId {
    QueuePairId(((wr_id & !RECEIVE) >> 32) as u32)
}

impl Link {
    #[expect(clippy::too_many_arguments, reason = "these are the parts that it is made of, each used once")]
    pub(crate) fn new(
        id: QueuePairId,
        queue: Arc<Queue>,
        device_cq: DeviceCq,
        memory: LinkMemory<Arc<Pd>>,
        headers: Part,
        cm: CmId,
        qp: QueuePair,
        shape: Shape,
    ) -> Link {
        Link {
            id,
            reported: AtomicBool::new(false),
            peer_informed: AtomicBool::new(false),
            device_cq,
            home: Mutex::new(queue),
            cm: Mutex::new(Some(cm)),
            shape,
            memory,
            headers,
            into: OnceLock::new(),
            send: Mutex::new(SendSide {
                qp: Some(qp),
                posted: 0,
                since_signal: 0,
                batch: Vec::with_capacity(shape.send_depth as usize),
                ends: Vec::with_capacity(shape.send_depth as usize),
                chain: Chain::new(shape.send_depth),
            }),
            recv: Mutex::new(RecvSide { qp: Some(qp), posted: 0, ahead: 0, chain: Chain::new(shape.recv_depth) }),
            marks: (0..shape.send_depth).map(|_| Mark::default()).collect(),
            completed: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            done: Mutex::default(),
        }
    }

    /// Bytes of notes that a queue pair of this shape needs.
    pub(crate) fn headers_len(shape: &Shape) -> u32 {
        (shape.recv_depth + shape.send_depth) * HEADER_LEN as u32
    }

    /// Completions that may be waiting at the same time.
    pub(crate) fn entries(shape: &Shape) -> u32 {
        shape.send_depth + shape.recv_depth
    }

    /// The queue that it reports to.
    pub(crate) fn home(&self) -> Arc<Queue> {
        Arc::clone(&self.home.lock())
    }

    /// Moves it to another queue.
    pub(crate) fn move_to(self: &Arc<Self>, queue: Arc<Queue>) -> io::Result<()> {
        let mut home = self.home.lock();
        if Arc::ptr_eq(&home, &queue) {
            return Ok(());
        }
        home.remove(self);
        self.reported.store(false, Ordering::Release);
        if let Err(error) = queue.add(self) {
            // There is room in the queue where it was.
            let _ = home.add(self);
            return Err(error);
        }
        *home = queue;
        Ok(())
    }

    /// Takes the device's completions.
    pub(crate) fn gather(&self) -> Gathered {
        let (was_dead, mut any) = (self.is_dead(), false);
        self.device_cq.poll(|completion| {
            // A stray completion of a queue pair that is gone is dropped.
            if link_of(completion.wr_id) == self.id {
                any |= self.take(completion);
            }
        });
        Gathered { any, died: !was_dead && self.is_dead() }
    }

    /// As [`gather`](Link::gather), for a caller that is not going to poll the link.
    pub(crate) fn collect(&self) {
        let Gathered { any, died } = self.gather();
        if any {
            self.home().announce(self);
        }
        if died {
            // A queue pair that failed by itself: the peer may not have detected it.
            self.hang_up();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.done.lock().waiting.is_empty()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Moves waiting completions into `out`.
    pub(crate) fn pop(&self, out: &mut [WorkCompletion]) -> usize {
        let mut done = self.done.lock();
        let count = out.len().min(done.waiting.len());
        for (place, completion) in out.iter_mut().zip(done.waiting.drain(..count)) {
            *place = completion;
        }
        count
    }

    // ---- memory ---------------------------------------------------------------------------------------------

    pub(crate) fn alloc_region(&self, len: usize) -> Result<Region, DeviceError> {
        if self.is_dead() {
            return Err(DeviceError::Unknown { what: "queue pair" });
        }
        let len = u32::try_from(len).map_err(|_| DeviceError::MemoryLimit { wanted: len })?;
        let part = self.memory.alloc(len)?;
        let remote = RemoteRegion { rkey: RemoteKey(part.rkey), base: part.address, len };
        Ok(Region { memory: part.memory, remote })
    }

    /// The address and key by which the device finds `len` bytes at `offset` of a region of ours.
    fn locate(&self, region: &Region, offset: usize, len: u32) -> Option<(u64, u32)> {
        let RemoteRegion { rkey, base, .. } = region.remote;
        let (available, lkey) = self.memory.find(base, rkey.0)?;
        let end = offset.checked_add(len as usize)?;
        (end <= available.min(region.memory.len())).then_some((base + offset as u64, lkey))
    }

    // ---- posting --------------------------------------------------------------------------------------------

    pub(crate) fn post_recv(&self, count: u32) -> Result<(), PostError> {
        let mut side = self.recv.lock();
        let Some(qp) = side.qp.filter(|_| !self.is_dead()) else { return Err(PostError::Dead) };
        if count > self.shape.recv_depth - self.done.lock().receives {
            return Err(PostError::QueueFull);
        }
        let RecvSide { posted, chain, ahead, .. } = &mut *side;
        let paid = count.min(*ahead);
        *ahead -= paid;
        let outcome = self.give(qp, posted, chain, count - paid);
        let given = outcome.map_or_else(|(taken, _)| paid + taken, |()| count);
        if self.done.lock().allow(given) {
            self.home().announce(self);
        }
        outcome.map_err(|(_, errno)| post_error(errno))
    }

    /// Posts all receives that the device can hold, before the peer can send. They include the caller's first ones.
    /// `into`: the region of ours that they have in place of notes.
    pub(crate) fn post_ahead(&self, into: Option<&Region>) -> Result<(), PostError> {
        if let Some(region) = into {
            let len = region.remote.len;
            let (address, lkey) = self.locate(region, 0, len).ok_or(PostError::Invalid)?;
            self.into.get_or_init(|| RawRecv { wr_id: 0, address, len, lkey });
        }
        let mut side = self.recv.lock();
        let Some(qp) = side.qp else { return Err(PostError::Dead) };
        let RecvSide { posted, chain, ahead, .. } = &mut *side;
        *ahead = self.shape.recv_depth;
        self.give(qp, posted, chain, self.shape.recv_depth).map_err(|(_, errno)| post_error(errno))
    }

    /// Posts receives to the device. `Err`: the number of accepted receives, and the error.
    fn give(
        &self,
        qp: QueuePair,
        posted: &mut u64,
        chain: &mut Chain<abi::RecvWr>,
        count: u32,
    ) -> Result<(), (u32, i32)> {
        let header = |number| self.headers.address + number % u64::from(self.shape.recv_depth) * HEADER_LEN as u64;
        let receives = (*posted..*posted + u64::from(count)).map(|number| {
            let wr_id = RECEIVE | self.number(number);
            match self.into.get() {
                Some(into) => RawRecv { wr_id, ..*into },
                None => RawRecv { wr_id, address: header(number), len: HEADER_LEN as u32, lkey: self.headers.lkey },
            }
        });
        // SAFETY: the notes stay registered as long as the queue pair exists. So does a region, or it was freed before,
        // and the device cannot reach it.
        let outcome = unsafe { qp.post_recv(receives, chain) };
        *posted += outcome.map_or_else(|(taken, _)| taken as u64, |()| count.into());
        outcome.map_err(|(taken, errno)| (taken as u32, errno))
    }

    /// Nothing may be sent before a message of the peer has arrived. Checked here even if this device does not check
    /// it, because another one would fail.
    pub(crate) fn listen_first(&self) {
        self.listening.store(true, Ordering::Release);
    }

    /// Posts as many requests as fit. [`PostError::Dead`] also if the device took half a message, or would end the
    /// connection because the peer has to send first: the caller then ends the link.
    pub(crate) fn post_send(&self, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        let mut side = self.send.lock();
        let refused = self.is_dead() || self.listening.load(Ordering::Acquire);
        let Some(qp) = side.qp.filter(|_| !refused) else { return Err(PostError::Dead) };
        let SendSide { posted, since_signal, batch, ends, chain, .. } = &mut *side;
        batch.clear();
        ends.clear();
        let mut room = (u64::from(self.shape.send_depth) - (*posted - self.completed.load(Ordering::Acquire))) as usize;
        for wr in wrs {
            let (needed, source) = self.check(wr)?;
            if needed > room {
                // No later request is posted, but wrong ones are still refused.
                room = 0;
                continue;
            }
            room -= needed;
            self.prepare(*posted + batch.len() as u64, wr, source, batch)?;
            ends.push(batch.len());
        }
        if ends.is_empty() {
            return if wrs.is_empty() { Ok(0) } else { Err(PostError::QueueFull) };
        }
        for request in batch.iter_mut() {
            *since_signal += 1;
            request.signaled |= *since_signal >= self.shape.send_depth / 4;
            if request.signaled {
                *since_signal = 0;
            }
        }
        // SAFETY: payloads lie in registered regions or notes, whose memory stays mapped while we hold it and, if it is
        // freed before, cannot be reached by the device; inline ones are copied by the call.
        let (taken, errno) = match unsafe { qp.post_send(batch, chain) } {
            Ok(()) => (batch.len(), None),
            Err((taken, errno)) => (taken, Some(errno)),
        };
        *posted += taken as u64;
        let whole = ends.iter().filter(|end| **end <= taken).count();
        match errno {
            None => Ok(whole),
            // Half a message was posted: it cannot be taken back.
            Some(_) if taken != whole.checked_sub(1).map_or(0, |last| ends[last]) => Err(PostError::Dead),
            Some(errno) if whole == 0 => Err(post_error(errno)),
            Some(_) => Ok(whole),
        }
    }

    /// The number of the device's requests that it takes, and the place of its bytes.
    fn check(&self, wr: &WorkRequest<'_>) -> Result<(usize, Source), PostError> {
        let len = wr.payload.len();
        let source = match wr.payload {
            Payload::Inline(bytes) if len <= self.shape.max_copied() => Source::inline(bytes.as_ptr() as u64),
            Payload::Inline(_) | Payload::InPlace { .. } => return Err(PostError::Invalid),
            Payload::Region { region, offset, len } => {
                let (address, lkey) = self.locate(region, offset, len).ok_or(PostError::Invalid)?;
                // A device that gets the bytes with the request need not fetch them.
                if len <= self.shape.max_inline {
                    Source::inline(address)
                } else {
                    Source { inline: false, address, lkey }
                }
            }
        };
        let sends = self.into.get().is_some();
        let (fits, needed) = match wr.operation {
            Operation::Write { imm: Some(_), .. } if sends && !self.shape.immediate => (false, 1),
            Operation::Write { imm, .. } => {
                (len <= self.shape.max_message, if imm.is_some() && !self.shape.immediate { 2 } else { 1 })
            }
            Operation::Send { .. } if sends => (len <= self.shape.max_message, 1),
            // A note has no room for a payload beside the immediate.
            Operation::Send { .. } if !self.shape.immediate => (len == 0, 1),
            Operation::Send { .. } => (len as usize <= HEADER_LEN, 1),
        };
        if fits {
            Ok((needed, source))
        } else {
            Err(PostError::Invalid)
        }
    }

    /// Appends the device's requests for `wr`. `number`: the number of the first.
    fn prepare(
        &self,
        number: u64,
        wr: &WorkRequest<'_>,
        source: Source,
        batch: &mut Vec<RawSend>,
    ) -> Result<(), PostError> {
        let len = wr.payload.len();
        let Source { inline, address, lkey } = match wr.payload {
            Payload::Inline(bytes) if len > self.shape.max_inline => self.staged(number, bytes)?,
            _ => source,
        };
        let mut request = RawSend {
            wr_id: self.number(number),
            kind: SendKind::Send { imm: None },
            signaled: wr.signaled,
            inline,
            address,
            len,
            lkey,
        };
        match wr.operation {
            Operation::Write { rkey, offset, imm } if imm.is_none() || self.shape.immediate => {
                request.kind = SendKind::Write { address: offset, rkey: rkey.0, imm };
            }
            Operation::Write { rkey, offset, imm } => {
                request.kind = SendKind::Write { address: offset, rkey: rkey.0, imm: None };
                request.signaled = false;
                self.mark(number, wr.id, false);
                batch.push(request);
                let header = self.header(number + 1, imm.unwrap_or(0), len)?;
                self.mark(number + 1, wr.id, wr.signaled);
                batch.push(RawSend { signaled: wr.signaled, ..header });
                return Ok(());
            }
            Operation::Send { imm } if self.shape.immediate => request.kind = SendKind::Send { imm },
            Operation::Send { .. } if self.into.get().is_some() => {}
            Operation::Send { imm } => {
                request = RawSend { signaled: wr.signaled, ..self.header(number, imm.unwrap_or(0), 0)? };
            }
        }
        self.mark(number, wr.id, wr.signaled);
        batch.push(request);
        Ok(())
    }

    /// A SEND that carries immediate and length to a peer whose device has no immediates.
    fn header(&self, number: u64, imm: u32, len: u32) -> Result<RawSend, PostError> {
        let [a, b, c, d] = imm.to_le_bytes();
        let [e, f, g, h] = len.to_le_bytes();
        let Source { inline, address, lkey } = self.staged(number, &[a, b, c, d, e, f, g, h])?;
        Ok(RawSend {
            wr_id: self.number(number),
            kind: SendKind::Send { imm: None },
            signaled: false,
            inline,
            address,
            len: HEADER_LEN as u32,
            lkey,
        })
    }

    /// Copies bytes to a place where they stay until the request of this number has completed.
    fn staged(&self, number: u64, bytes: &[u8]) -> Result<Source, PostError> {
        let place = u64::from(self.shape.recv_depth) + number % u64::from(self.shape.send_depth);
        let offset = place as usize * HEADER_LEN;
        if !self.headers.memory.write(offset, bytes) {
            return Err(PostError::Invalid);
        }
        Ok(Source { inline: false, address: self.headers.address + offset as u64, lkey: self.headers.lkey })
    }

    fn number(&self, number: u64) -> u64 {
        u64::from(self.id.0) << 32 | number & u64::from(u32::MAX)
    }

    fn mark(&self, number: u64, id: WorkRequestId, report: bool) {
        let mark = &self.marks[(number % u64::from(self.shape.send_depth)) as usize];
        mark.id.store(id.0, Ordering::Relaxed);
        mark.report.store(report, Ordering::Release);
    }

    // ---- completions ----------------------------------------------------------------------------------------

    /// Takes one of the device's completions. Returns true if there is a completion for the caller.
    pub(crate) fn take(&self, raw: &RawCompletion) -> bool {
        let mut done = self.done.lock();
        let before = done.waiting.len();
        let success = raw.status == abi::WC_SUCCESS;
        if raw.wr_id & RECEIVE != 0 {
            if success && !done.disconnected {
                if self.listening.load(Ordering::Relaxed) {
                    self.listening.store(false, Ordering::Release);
                }
                let completion = self.received(raw);
                done.receive(WorkCompletion { qp: self.id, status: CompletionStatus::Success, completion });
            }
        } else {
            let last = self.completed.load(Ordering::Relaxed);
            // The numbers on the wire have 32 bits, and fewer numbers than a queue's depth are in flight.
            let ahead = (raw.wr_id as u32).wrapping_sub(last as u32);
            if ahead >= self.shape.send_depth {
                // None of ours that is in flight; some devices repeat themselves after an error.
                return false;
            }
            let number = last + u64::from(ahead);
            let mark = &self.marks[(number % u64::from(self.shape.send_depth)) as usize];
            let report = mark.report.load(Ordering::Acquire);
            let id = WorkRequestId(mark.id.load(Ordering::Relaxed));
            self.completed.store(number + 1, Ordering::Release);
            if report || !success {
                done.push(self.id, status(raw.status), Completion::Send { id });
            }
        }
        if !success {
            self.dead.store(true, Ordering::Release);
            done.disconnect(self.id);
        }
        done.waiting.len() > before
    }

    fn received(&self, raw: &RawCompletion) -> Completion {
        if self.shape.immediate {
            let imm = if raw.wc_flags & abi::WC_WITH_IMM != 0 { u32::from_be(raw.imm_data) } else { 0 };
            return Completion::Receive { imm, len: raw.byte_len };
        }
        if self.into.get().is_some() {
            return Completion::Receive { imm: 0, len: raw.byte_len };
        }
        let place = raw.wr_id as u32 % self.shape.recv_depth;
        let mut header = [0; HEADER_LEN];
        // A note that was cut short leaves zeros or an old one: a false value of the peer like any other, which the
        // caller checks.
        let _ = self.headers.memory.read(place as usize * HEADER_LEN, &mut header);
        let [a, b, c, d, e, f, g, h] = header;
        Completion::Receive { imm: u32::from_le_bytes([a, b, c, d]), len: u32::from_le_bytes([e, f, g, h]) }
    }

    /// Whether the event of a death concerns this link.
    pub(crate) fn is_in(&self, trouble: Trouble) -> bool {
        match trouble {
            Trouble::QueuePair(address) => self.send.lock().qp.is_some_and(|qp| qp.address() == address),
            Trouble::CompletionQueue(address) => self.device_cq.cq.address() == address,
            Trouble::Device => true,
            Trouble::Nothing => false,
        }
    }

    /// The end, for a cause that is not a completion. Returns true if it had not ended before.
    pub(crate) fn close(&self) -> bool {
        self.dead.store(true, Ordering::Release);
        self.done.lock().disconnect(self.id)
    }

    /// Informs the peer, if that is possible now, and puts the device's queue pair into the error state, unless it is
    /// gone.
    pub(crate) fn hang_up(&self) {
        if let Some(cm) = self.cm.lock().as_ref().filter(|cm| !cm.is_cut_off()) {
            // If the peer disconnected first, this is the answer that it waits for; a second one does no harm.
            let _ = cm.disconnect();
        }
        if let Some(qp) = self.send.lock().qp {
            qp.fail();
        }
    }

    /// Ends all use of the queue pair, and returns its connection to be destroyed.
    pub(crate) fn retire(&self) -> Option<CmId> {
        self.dead.store(true, Ordering::Release);
        let mut send = self.send.lock();
        let mut recv = self.recv.lock();
        (send.qp, recv.qp) = (None, None);
        self.cm.lock().take()
    }
}

fn post_error(errno: i32) -> PostError {
    match errno {
        libc::ENOMEM | libc::ENOSPC | libc::EAGAIN => PostError::QueueFull,
        libc::EINVAL | libc::EMSGSIZE => PostError::Invalid,
        _ => PostError::Dead,
    }
}
