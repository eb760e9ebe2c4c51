//! The sending half of a link: posting, and the messages that wait for room in a queue.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use netacc_device::{
    Capabilities, Device, InPlaceError, InPlaceQueue, Instant, Memory, Operation, Payload, PostError, QueuePairId,
    Region, RemoteRegion, WorkRequest, WorkRequestId,
};
use netacc_proto::{
    number_message, ControlMessage, Immediate, Link, MessageKind, RingDescriptor, Span, CONTROL_SLOT_LEN,
    CREDIT_BLOCK_LEN, LINK_REGION_LEN,
};

use super::waitlist::WaitList;

/// One in this many posted requests is signaled, so that a send queue's entries are reclaimed.
const SIGNAL_INTERVAL: u32 = 16;

/// The number of the link's own messages that may wait for room. Arbitrary: far above what an honest peer causes.
const MAX_DELAYED: usize = 256;

/// The sending half, and the link's protocol state.
pub(crate) struct LinkTx {
    pub(crate) proto: Link,
    qp: QueuePairId,
    /// Each message carries its number.
    numbers: bool,
    /// For messages whose bytes lie in the window, where the device has such a queue and needs no signaled requests.
    in_place: Option<Box<dyn InPlaceQueue>>,
    memory: Ends,
    signals: Signals,
    owed: Owed,
    pub(crate) waiters: Waiters,
    pub(crate) watch: Watch,
    /// On the accepting side: since when it has had no stream, as far as the endpoint has recorded it.
    pub(crate) empty_since: Option<Instant>,
    /// The link stays until the peer has consumed so many messages: the last of them answers a flow's CLOSE, and says which
    /// datagrams were taken.
    answered: u64,
}

/// The first regions of both sides.
struct Ends {
    /// Our first region, where the peer counts the messages that it has consumed.
    local: Region,
    remote: RemoteRegion,
    window: Option<Memory>,
    /// Local copy of the peer's first region, where control messages can neither be mapped nor go inline.
    staging: Option<Region>,
}

/// Requests that are signaled: the device reports their completion.
struct Signals {
    /// The device needs signaled requests now and then.
    needed: bool,
    /// The next request is to be signaled, regardless of the count.
    wanted: bool,
    /// Requests posted since the last signaled one.
    unsignaled: u32,
    /// Signaled requests whose completions have not come.
    signaled: u32,
    /// The send queue had no room, and no completion has come since.
    full: bool,
}

/// Messages and receives that found a queue full, and go out with [`LinkTx::resume`].
#[derive(Default)]
struct Owed {
    /// Receives that the device would not take back yet.
    receives: u32,
    /// The first ones of those, which the peer has had as credit from the beginning.
    initial_receives: u32,
    /// Count of consumed messages.
    credit: Option<u64>,
    /// LINK_GIVE.
    give: bool,
    /// The link's own messages (HELLO, REFUSE). At most [`MAX_DELAYED`].
    messages: VecDeque<ControlMessage>,
}

/// The streams of the link that wait.
#[derive(Default)]
pub(crate) struct Waiters {
    /// For a completion, before which they send no small message.
    pub(crate) completion: WaitList,
    /// For room for a message: message credit, a control slot, or a place in the send queue.
    pub(crate) room: WaitList,
    /// The endpoint has them in its list, and checks them.
    pub(crate) listed: bool,
}

/// Whether the endpoint watches the link for a peer that is silent.
pub(crate) struct Watch {
    /// Nothing happens on the link, and the endpoint does not watch it. [`Endpoint::resume_watch`](crate::Endpoint) is called
    /// once a message is sent, or has come. Never where the device reports silence itself.
    pub(crate) resting: bool,
    /// The peer was probed before the link was to rest, and only data was sent since.
    pub(crate) probed_before_rest: bool,
}

impl Owed {
    fn is_empty(&self) -> bool {
        self.receives == 0 && self.credit.is_none() && !self.give && self.messages.is_empty()
    }
}

impl LinkTx {
    /// The state of a link on which nothing was sent yet.
    pub(super) fn new(
        device: &dyn Device,
        proto: Link,
        qp: QueuePairId,
        caps: &Capabilities,
        local: Region,
        remote: RemoteRegion,
    ) -> LinkTx {
        let window = caps.peer_memory.then(|| device.window(qp, remote).ok()).flatten();
        // If the copy cannot be allocated, the first control message fails, and the link with it: streams stay on their
        // anchors.
        let staging = (window.is_none() && (caps.max_inline as usize) < CONTROL_SLOT_LEN)
            .then(|| device.alloc_region(qp, LINK_REGION_LEN).ok())
            .flatten();
        LinkTx {
            proto,
            qp,
            numbers: !caps.peer_memory,
            in_place: (caps.peer_memory && caps.cheap_writes).then(|| device.in_place(qp)).flatten(),
            memory: Ends { local, remote, window: window.map(|w| w.memory), staging },
            signals: Signals { needed: !caps.cheap_writes, wanted: false, unsignaled: 0, signaled: 0, full: false },
            owed: Owed::default(),
            waiters: Waiters::default(),
            watch: Watch { resting: !caps.notices_silence, probed_before_rest: false },
            empty_since: None,
            answered: 0,
        }
    }

    /// Reads the peer's count of consumed messages. `false`: the peer sent false credit.
    #[inline]
    pub(crate) fn refresh_credit(&mut self) -> bool {
        let Some(word) = self.memory.local.memory.word(0) else { return false };
        self.proto.handle_peer_consumed(word.load(Ordering::Acquire)).is_ok()
    }

    /// The peer needs what was sent last, an answer to a flow's CLOSE: see [`LinkTx::owes_answers`].
    pub(crate) fn has_answered(&mut self) {
        self.answered = self.proto.sent();
    }

    /// Whether the peer may not have consumed such an answer. Then it is asked for its progress.
    pub(crate) fn owes_answers(&mut self, device: &dyn Device) -> bool {
        if self.refresh_credit() && self.proto.peer_consumed() < self.answered {
            self.want(device);
            return true;
        }
        false
    }

    /// Whether the peer would take another DATA message.
    pub(crate) fn has_room(&mut self) -> bool {
        self.refresh_credit() && self.proto.has_credit(false)
    }

    /// Requests message credit, once. False: the request has to wait too, and nothing will announce the credit.
    pub(crate) fn want(&mut self, device: &dyn Device) -> bool {
        let requested = !self.proto.stalled() || self.signal(device, MessageKind::LinkWant, 0).is_ok();
        if !requested {
            self.proto.return_want();
        }
        requested
    }

    #[inline]
    fn take_credit(&mut self, control: bool) -> Result<(), PostError> {
        if self.proto.take_credit(control) {
            return Ok(());
        }
        self.take_fresh_credit(control)
    }

    #[inline(never)]
    fn take_fresh_credit(&mut self, control: bool) -> Result<(), PostError> {
        if !self.refresh_credit() {
            return Err(PostError::Dead);
        }
        if self.proto.take_credit(control) {
            return Ok(());
        }
        Err(PostError::QueueFull)
    }

    #[inline]
    fn post(&mut self, device: &dyn Device, operation: Operation, payload: Payload<'_>) -> Result<(), PostError> {
        let signaled = self.signals.needed && (self.signals.wanted || self.signals.unsignaled + 1 >= SIGNAL_INTERVAL);
        let operation = match operation {
            Operation::Write { rkey, offset, imm: Some(imm) } if self.numbers => {
                // Credit was taken for it.
                Operation::Write { rkey, offset, imm: Some(number_message(imm, self.proto.sent() - 1)) }
            }
            other => other,
        };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload, signaled };
        match device.post_send(self.qp, &[wr]) {
            // Only accepted requests count: a signaled request that met a full queue is still due.
            Ok(1) => {
                self.signals.unsignaled = if signaled { 0 } else { self.signals.unsignaled + 1 };
                self.signals.signaled += u32::from(signaled);
                self.signals.wanted = false;
                Ok(())
            }
            Ok(_) | Err(PostError::QueueFull) => {
                self.signals.full = true;
                Err(PostError::QueueFull)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether a completion is due.
    #[inline]
    pub(crate) fn awaits_completion(&self) -> bool {
        self.signals.signaled > 0
    }

    /// Sets whether the next request is signaled.
    #[inline]
    pub(crate) fn want_completion(&mut self, wanted: bool) {
        self.signals.wanted = wanted;
    }

    /// So many completions have come. Whether the send queue was full.
    pub(crate) fn completed(&mut self, count: u32) -> bool {
        self.signals.signaled = self.signals.signaled.saturating_sub(count);
        std::mem::take(&mut self.signals.full)
    }

    /// Whether the send queue had no room, as far as is known.
    pub(crate) fn is_full(&self) -> bool {
        self.signals.full
    }

    /// The send queue may have room although the device has not reported it.
    pub(crate) fn retry(&mut self) {
        self.signals.full = false;
    }

    /// Posts the first receives.
    pub(crate) fn post_receives(&mut self, device: &dyn Device, depth: u32) {
        self.owed.initial_receives = depth;
        self.repost_receives(device, depth);
    }

    /// Posts `messages` consumed receives again, and earlier ones that the device would not take. Returns how many it
    /// took: only those may be announced to the peer as credit.
    pub(crate) fn repost_receives(&mut self, device: &dyn Device, messages: u32) -> u32 {
        let taken = self.try_receives(device, self.owed.receives + messages);
        let initial = taken.min(self.owed.initial_receives);
        self.owed.initial_receives -= initial;
        taken - initial
    }

    fn try_receives(&mut self, device: &dyn Device, want: u32) -> u32 {
        match device.post_recv(self.qp, want) {
            Err(PostError::QueueFull) => {}
            posted => {
                self.owed.receives = 0;
                return if posted.is_ok() { want } else { 0 };
            }
        }
        // The device posts all or nothing: a queue that is too short for all may have room for some.
        let taken = (0..want).take_while(|_| device.post_recv(self.qp, 1).is_ok()).count() as u32;
        self.owed.receives = want - taken;
        taken
    }

    /// Whether messages or receives wait for room in a queue, and only [`resume`](LinkTx::resume) will post them.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Posts a message that consists of its immediate only.
    pub(crate) fn signal(&mut self, device: &dyn Device, kind: MessageKind, slot: u16) -> Result<(), PostError> {
        self.take_credit(true)?;
        let imm = Some(Immediate::new(kind, slot).encode());
        let operation = Operation::Write { rkey: self.memory.remote.rkey, offset: self.memory.remote.base, imm };
        self.post(device, operation, Payload::Inline(&[])).inspect_err(|_| self.proto.return_credit())
    }

    /// Posts a control message with its payload.
    pub(crate) fn control(&mut self, device: &dyn Device, message: &ControlMessage) -> Result<(), PostError> {
        self.take_credit(true)?;
        let mut slot = self.proto.control_slot();
        // There may have been enough message credit that the peer's progress was never read.
        if slot.is_none() && self.refresh_credit() {
            slot = self.proto.control_slot();
        }
        let Some(slot) = slot else {
            self.proto.return_credit();
            // Where credit writes are costly, the peer reports its progress less often than it has slots, and it may
            // receive no more messages: each stream could wait for its OPEN.
            self.want(device);
            return Err(PostError::QueueFull);
        };
        let at = CREDIT_BLOCK_LEN + slot * CONTROL_SLOT_LEN;
        let bytes = message.encode();
        // The slot's copy stays unchanged until the peer has consumed the message: the slot is not used again before
        // that.
        let staging = self.memory.staging.clone().filter(|s| s.memory.write(at, &bytes));
        let payload = match (&self.memory.window, &staging) {
            (Some(window), _) if window.write(at, &bytes) => Payload::InPlace { len: CONTROL_SLOT_LEN as u32 },
            (_, Some(region)) => Payload::Region { region, offset: at, len: CONTROL_SLOT_LEN as u32 },
            _ => Payload::Inline(&bytes),
        };
        let imm = Some(Immediate::new(MessageKind::Control, 0).encode());
        let operation =
            Operation::Write { rkey: self.memory.remote.rkey, offset: self.memory.remote.base + at as u64, imm };
        let posted = self.post(device, operation, payload);
        posted.inspect_err(|_| {
            self.proto.return_control_slot();
            self.proto.return_credit();
        })
    }

    /// Posts one of the link's own messages, now or when there is room. `Ok(false)`: call [`resume`](LinkTx::resume)
    /// soon.
    pub(crate) fn send(&mut self, device: &dyn Device, message: ControlMessage) -> Result<bool, PostError> {
        if self.owed.messages.len() >= MAX_DELAYED {
            // An honest peer does not have that many OPENs in flight.
            return Err(PostError::Invalid);
        }
        // There is seldom more than one, and each link keeps the memory.
        if self.owed.messages.is_empty() {
            self.owed.messages.reserve_exact(1);
        }
        self.owed.messages.push_back(message);
        self.resume(device)
    }

    /// Posts delayed messages; returns whether none is left, and no receive is owed.
    pub(crate) fn resume(&mut self, device: &dyn Device) -> Result<bool, PostError> {
        while let Some(message) = self.owed.messages.front().copied() {
            match self.control(device, &message) {
                Ok(()) => drop(self.owed.messages.pop_front()),
                Err(PostError::QueueFull) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        if let Some(count) = self.owed.credit {
            self.message_credit(device, count);
        }
        if self.owed.give {
            self.give(device);
        }
        Ok(!self.owes())
    }

    /// Makes the peer refresh its message credit. After [`message_credit`](LinkTx::message_credit).
    pub(crate) fn give(&mut self, device: &dyn Device) {
        if self.owed.credit.is_some() {
            self.owed.give = true;
            return;
        }
        let posted = self.signal(device, MessageKind::LinkGive, 0);
        if posted.is_ok() {
            self.proto.handle_give_sent();
        }
        self.owed.give = posted == Err(PostError::QueueFull);
    }

    /// Posts a DATA message whose bytes lie in the window, or in the copy at the same offset; not if the device's sequence is not
    /// `unless_beyond` any more.
    #[inline(always)]
    pub(crate) fn data(
        &mut self,
        device: &dyn Device,
        (ring, staging): (&RingDescriptor, Option<&Region>),
        span: Span,
        imm: Immediate,
        unless_beyond: Option<u32>,
    ) -> Result<(), InPlaceError> {
        if staging.is_none() {
            if let Some(posted) = self.data_in_place(span.len, imm.encode(), unless_beyond) {
                return posted;
            }
        }
        self.data_by_request(device, (ring, staging), span, imm, unless_beyond)
    }

    /// [`data`](LinkTx::data) of a message whose bytes lie in the window, by the shorter way. `None`: there is none.
    #[inline(always)]
    pub(crate) fn data_in_place(
        &mut self,
        len: u32,
        imm: u32,
        unless_beyond: Option<u32>,
    ) -> Option<Result<(), InPlaceError>> {
        let LinkTx { in_place: Some(queue), proto, .. } = self else { return None };
        if !proto.take_credit(false) {
            return Some(self.data_in_place_afresh(len, imm, unless_beyond));
        }
        let posted = queue.post(unless_beyond, len, imm);
        Some(posted.map_err(|refused| self.take_back(refused)))
    }

    /// [`data_in_place`](LinkTx::data_in_place), where the credit that is known is used up.
    #[inline(never)]
    fn data_in_place_afresh(&mut self, len: u32, imm: u32, unless_beyond: Option<u32>) -> Result<(), InPlaceError> {
        self.take_fresh_credit(false)?;
        let queue = self.in_place.as_ref().ok_or(PostError::Dead)?;
        queue.post(unless_beyond, len, imm).map_err(|refused| self.take_back(refused))
    }

    /// A message was not posted, for which credit was taken.
    #[cold]
    fn take_back(&mut self, refused: InPlaceError) -> InPlaceError {
        self.signals.full |= refused == InPlaceError::Post(PostError::QueueFull);
        self.proto.return_credit();
        refused
    }

    /// [`data`](LinkTx::data) as a work request.
    #[inline(never)]
    pub(crate) fn data_by_request(
        &mut self,
        device: &dyn Device,
        (ring, staging): (&RingDescriptor, Option<&Region>),
        span: Span,
        imm: Immediate,
        unless_beyond: Option<u32>,
    ) -> Result<(), InPlaceError> {
        if unless_beyond.is_some_and(|seen| device.qp_sequence(self.qp) != seen) {
            return Err(InPlaceError::News);
        }
        self.take_credit(false)?;
        let Span { offset, len } = span;
        let at = CREDIT_BLOCK_LEN + offset as usize;
        let payload = match staging {
            Some(region) => Payload::Region { region, offset: at, len },
            None => Payload::InPlace { len },
        };
        let operation = Operation::Write { rkey: ring.rkey, offset: ring.base + at as u64, imm: Some(imm.encode()) };
        self.post(device, operation, payload).inspect_err(|_| self.proto.return_credit())?;
        Ok(())
    }

    /// Writes a credit word of a stream of the peer, without consuming a receive.
    pub(crate) fn credit_word(
        &mut self,
        device: &dyn Device,
        ring: &RingDescriptor,
        value: u64,
    ) -> Result<(), PostError> {
        let operation = Operation::Write { rkey: ring.rkey, offset: ring.base, imm: None };
        self.post(device, operation, Payload::Inline(&value.to_le_bytes()))
    }

    /// Writes the status of a flow into the peer's memory; with an immediate it is a message.
    pub(crate) fn status_word(
        &mut self,
        device: &dyn Device,
        ring: &RingDescriptor,
        value: u64,
        imm: Option<Immediate>,
    ) -> Result<(), PostError> {
        if imm.is_some() {
            self.take_credit(true)?;
        }
        let operation = Operation::Write { rkey: ring.rkey, offset: ring.base, imm: imm.map(Immediate::encode) };
        let posted = self.post(device, operation, Payload::Inline(&value.to_le_bytes()));
        posted.inspect_err(|_| {
            if imm.is_some() {
                self.proto.return_credit();
            }
        })
    }

    /// Writes to the peer how many of its messages this side has consumed.
    pub(crate) fn message_credit(&mut self, device: &dyn Device, count: u64) {
        if let Some(word) = self.memory.window.as_ref().and_then(|w| w.word(0)) {
            word.store(count, Ordering::Release);
            return;
        }
        let operation = Operation::Write { rkey: self.memory.remote.rkey, offset: self.memory.remote.base, imm: None };
        let posted = self.post(device, operation, Payload::Inline(&count.to_le_bytes()));
        self.owed.credit = (posted == Err(PostError::QueueFull)).then_some(count);
    }
}
