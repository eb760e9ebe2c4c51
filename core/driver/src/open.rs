//! Messages in, and the opening of streams on links.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use netacc_device::{
    Completion, CompletionStatus, FourTuple, PostError, Region, RemoteRegion, WorkCompletion, WorkRequestId,
    UNKNOWN_STREAM,
};
use netacc_proto::{
    Accept, ControlMessage, Immediate, MessageKind, Open, Reason, Refuse, RingDescriptor, Role, SlotId, WireTuple,
    CONTROL_SLOT_LEN, CREDIT_BLOCK_LEN, LINK_REGION_LEN,
};

use crate::endpoint::{Attempt, Endpoint, Waiting, BATCH};
use crate::link::{LinkCell, LinkRx};
use crate::stream::Outgoing;
use crate::{Counters, StreamCell};

impl Endpoint {
    /// Begins promoting an opener's stream, if its peer is accelerated. Control path: may allocate and make system calls.
    /// Errors say why not now.
    pub fn promote(&self, cell: &Arc<StreamCell>) -> Result<(), Reason> {
        {
            let guard = cell.lock(self);
            if guard.proto().role() != Role::Opener || !guard.proto().may_promote() || guard.link().is_some() {
                return Err(Reason::PeerBusy);
            }
        }
        if self.is_held_back() {
            return Err(Reason::Requested);
        }
        let (peer, hint) = self.directory().lookup(&cell.tuple).ok_or(Reason::PeerNotFound)?;
        let mut waiting = self.waiting.lock();
        if waiting.iter().any(|w| Arc::ptr_eq(&w.stream, cell)) {
            return Ok(());
        }
        waiting.push(Waiting { stream: cell.clone(), peer, hint, link: None, attempt: None });
        drop(waiting);
        self.place_waiting();
        Ok(())
    }

    /// Gives waiting streams a link: one with room, a cached one, or a new one.
    pub(crate) fn place_waiting(&self) {
        let mut ready = Vec::new();
        let mut waiting = self.waiting.lock();
        waiting.retain_mut(|w| {
            if let Some(link) = self.usable_link(w) {
                ready.push((link, w.stream.clone(), w.hint));
                return false;
            }
            if w.attempt.is_none() && w.link.is_none() {
                match self.cm().connect(w.peer, self.control_cq(), LINK_REGION_LEN, &[]) {
                    Ok(id) => {
                        self.attempts.lock().insert(id, Attempt { peer: w.peer, connector: true });
                        w.attempt = Some(id);
                    }
                    Err(_) => {
                        self.counters().reason(Reason::PeerNotFound);
                        return false;
                    }
                }
            }
            true
        });
        drop(waiting);
        for (link, stream, hint) in ready {
            if let Err(reason) = self.open_on(&link, &stream, hint) {
                self.counters().reason(reason);
                self.note_idle(&link);
            }
        }
    }

    fn usable_link(&self, w: &mut Waiting) -> Option<Arc<LinkCell>> {
        let usable = |l: &Arc<LinkCell>| {
            let tx = l.tx.lock();
            !l.is_dead() && tx.proto.is_ready() && tx.proto.has_room()
        };
        let links = self.links.read();
        if let Some(qp) = w.link {
            let link = links.get(&qp)?;
            if usable(link) {
                return Some(link.clone());
            }
            if !link.tx.lock().proto.is_ready() {
                return None;
            }
            // Other streams were quicker: look for another link.
            (w.link, w.attempt) = (None, None);
        }
        if w.attempt.is_some() {
            return None;
        }
        if let Some(qp) = self.cache.lock().take(w.peer) {
            if let Some(link) = links.get(&qp).filter(|l| usable(l)) {
                Counters::bump(&self.counters().links_reused);
                return Some(link.clone());
            }
        }
        if self.config.streams_per_link <= 1 {
            return None;
        }
        let shared = links.values().find(|l| l.connector && l.peer == w.peer && usable(l)).cloned();
        if let Some(link) = &shared {
            self.cache.lock().remove(link.qp);
        }
        shared
    }

    fn open_on(&self, link: &Arc<LinkCell>, cell: &Arc<StreamCell>, hint: u32) -> Result<(), Reason> {
        let mut rx = link.rx.lock();
        let slot = link.tx.lock().proto.alloc_slot().map_err(|_| Reason::Exhausted)?;
        let opened = self.prepare(link).and_then(|(region, ring)| {
            let mut guard = cell.lock(self);
            if !guard.proto().may_promote() || guard.link().is_some() || guard.inner.closed || self.is_held_back() {
                drop(guard);
                self.device().free_region(link.qp(), region);
                return Err(Reason::PeerBusy);
            }
            if let Err(reason) = cell.may_leave_kernel().and_then(|()| guard.count_positions()) {
                drop(guard);
                self.device().free_region(link.qp(), region);
                return Err(reason);
            }
            let inner = &mut *guard.inner;
            inner.region = Some(region);
            inner.link = Some(link.clone());
            inner.outgoing = None;
            inner.released = false;
            put_slot(&mut rx, slot, cell);
            inner.proto.open(slot.0, wire_tuple(&cell.tuple), hint, self.nonce(), ring);
            Counters::bump(&self.counters().opens_sent);
            Ok(())
        });
        if opened.is_err() {
            link.tx.lock().proto.free_slot(slot);
        }
        opened
    }

    fn prepare(&self, link: &LinkCell) -> Result<(Region, RingDescriptor), Reason> {
        let len = CREDIT_BLOCK_LEN + self.config.ring_len as usize;
        let region = self.device().alloc_region(link.qp(), len).map_err(|_| Reason::MemoryLimit)?;
        let ring =
            RingDescriptor { rkey: region.remote.rkey, base: region.remote.base, ring_len: self.config.ring_len };
        Ok((region, ring))
    }

    /// Handles what has arrived on one link. Any thread; a second thread waits for the first.
    pub fn poll_link(&self, link: &Arc<LinkCell>) {
        let mut rx = link.rx.lock();
        let mut alive = self.drain_link(link, &mut rx);
        if !rx.ended.is_empty() {
            alive = self.take_in_ends(link, &mut rx, alive);
        }
        drop(rx);
        if !alive {
            self.link_died(link);
        }
    }

    /// Returns false if the link must end.
    fn drain_link(&self, link: &Arc<LinkCell>, rx: &mut LinkRx) -> bool {
        link.mark_seen(self.device());
        let mut wcs = [EMPTY; BATCH];
        let (mut alive, mut sent) = (true, false);
        loop {
            let n = self.device().poll_qp(link.qp(), &mut wcs);
            let mut messages = 0;
            for wc in &wcs[..n] {
                match wc.completion {
                    Completion::Receive { imm, len } if wc.status == CompletionStatus::Success => {
                        messages += 1;
                        alive &= self.handle_message(link, rx, imm, len);
                    }
                    Completion::Send { .. } if wc.status == CompletionStatus::Success => sent = true,
                    _ => alive = false,
                }
            }
            if messages > 0 && alive {
                self.return_messages(link, messages);
            }
            if n < wcs.len() || !alive {
                break;
            }
        }
        if sent && alive && link.tx.lock().take_full() {
            rx.slots.iter().flatten().for_each(|cell| cell.lock(self).unstall());
        }
        alive
    }

    /// The anchors of some streams were seen to have ended while their messages were handled. What their peers had sent
    /// before that counts first.
    #[cold]
    fn take_in_ends(&self, link: &Arc<LinkCell>, rx: &mut LinkRx, alive: bool) -> bool {
        let ended = std::mem::take(&mut rx.ended);
        let alive = alive && self.drain_link(link, rx);
        for cell in ended {
            let mut guard = cell.lock(self);
            guard.polled = true;
            guard.progress_anchor(true);
        }
        alive
    }

    /// Posts receives again and tells the peer.
    #[inline]
    pub(crate) fn return_messages(&self, link: &Arc<LinkCell>, messages: u32) {
        let device = self.device();
        let mut tx = link.tx.lock();
        let posted = tx.repost_receives(device, link.qp(), messages);
        let mut count = None;
        for _ in 0..posted {
            count = tx.proto.handle_message().or(count);
        }
        if let Some(count) = count {
            tx.message_credit(device, link, count);
        }
        if tx.proto.poll_give() {
            tx.give(device, link);
        }
        let owes = tx.owes();
        drop(tx);
        if messages > 0 && owes {
            self.note_owing(link);
        }
    }

    /// Returns false if the link must end.
    #[inline]
    fn handle_message(&self, link: &Arc<LinkCell>, rx: &mut LinkRx, imm: u32, len: u32) -> bool {
        let Ok(imm) = Immediate::decode(imm) else {
            Counters::bump(&self.counters().violations);
            return false;
        };
        match imm.kind {
            MessageKind::Data => {
                // A slot that is free here: the message crossed our CLOSE.
                if let Some(Some(cell)) = rx.slots.get(usize::from(imm.slot)) {
                    let mut guard = cell.lock(self);
                    guard.inner.proto.handle_data(len, imm.rewind);
                    guard.inner.counters.rx_msgs_link += 1;
                    guard.arrived = true;
                }
                true
            }
            MessageKind::Control => self.handle_control(link, rx),
            MessageKind::LinkWant => {
                link.tx.lock().proto.handle_want();
                true
            }
            MessageKind::LinkGive => {
                let ok = link.tx.lock().refresh_credit(&link.local);
                for cell in rx.slots.iter().flatten() {
                    cell.lock(self).unstall();
                }
                ok
            }
            kind => {
                if let Some(Some(cell)) = rx.slots.get(usize::from(imm.slot)) {
                    let mut guard = cell.lock(self);
                    guard.inner.proto.handle_signal(kind);
                    guard.arrived = true;
                    if kind == MessageKind::CreditGive {
                        // The credit it announces may have been found, and used up, before: then ask again.
                        guard.unstall();
                    }
                    guard.progress_anchor(false);
                    if guard.inner.end_noted {
                        drop(guard);
                        rx.ended.push(cell.clone());
                    }
                }
                true
            }
        }
    }

    fn handle_control(&self, link: &Arc<LinkCell>, rx: &mut LinkRx) -> bool {
        let at = CREDIT_BLOCK_LEN + netacc_proto::Link::control_slot_of(rx.controls) * CONTROL_SLOT_LEN;
        rx.controls += 1;
        let mut bytes = [0; CONTROL_SLOT_LEN];
        let message = link.local.memory.read(at, &mut bytes).then(|| ControlMessage::decode(&bytes));
        let Some(Ok(message)) = message else {
            Counters::bump(&self.counters().violations);
            return false;
        };
        match message {
            ControlMessage::Hello(hello) => {
                let mut tx = link.tx.lock();
                if tx.proto.handle_hello(&hello).is_err() {
                    Counters::bump(&self.counters().violations);
                    return false;
                }
                if !link.connector {
                    let ours = tx.proto.hello();
                    let sent = tx.send(self.device(), link, ours);
                    drop(tx);
                    return self.keep_sending(link, sent);
                }
                drop(tx);
                // Places the stream that waits for the link; if it has gone meanwhile, the link is kept for others.
                self.note_idle(link);
                true
            }
            ControlMessage::Open(open) => {
                let refused = self.handle_open(link, rx, &open);
                if let Err(reason) = refused {
                    Counters::bump(&self.counters().opens_refused);
                    self.counters().reason(reason);
                    let refuse = ControlMessage::Refuse(Refuse { peer_slot: open.slot, reason: reason as u16 });
                    let sent = link.tx.lock().send(self.device(), link, refuse);
                    return self.keep_sending(link, sent);
                }
                Counters::bump(&self.counters().opens_accepted);
                true
            }
            ControlMessage::Accept(accept) => {
                self.handle_accept(link, rx, &accept);
                true
            }
            ControlMessage::Refuse(refuse) => {
                if let Some(Some(cell)) = rx.slots.get(usize::from(refuse.peer_slot)) {
                    let mut guard = cell.lock(self);
                    guard.inner.proto.handle_refuse(Reason::from_code(refuse.reason));
                    self.counters().reason(Reason::from_code(refuse.reason));
                    guard.arrived = true;
                }
                true
            }
        }
    }

    /// A message of the link itself was sent, or waits for room. False if the link must end.
    pub(crate) fn keep_sending(&self, link: &Arc<LinkCell>, sent: Result<bool, PostError>) -> bool {
        if sent == Ok(false) {
            self.note_owing(link);
        }
        sent.is_ok()
    }

    fn handle_open(&self, link: &Arc<LinkCell>, rx: &mut LinkRx, open: &Open) -> Result<(), Reason> {
        //= spec §4.1.2
        //# OPEN names the anchor by its addresses; the acceptor refuses one that it does not hold.
        //= spec §4.1.3
        //# The hint 0xffffffff says that the opener does not know the acceptor's stream number; the acceptor then finds
        //# the stream by the addresses.
        let number = match open.hint {
            UNKNOWN_STREAM => four_tuple(&open.tuple).and_then(|tuple| self.directory().resolve(&tuple.reversed())),
            number => Some(number),
        };
        let number = number.ok_or(Reason::UnknownStream)?;
        let cell = self.streams.read().cells.get(number as usize).cloned().flatten();
        let cell = cell.filter(|c| wire_tuple(&c.tuple.reversed()) == open.tuple).ok_or(Reason::UnknownStream)?;
        if self.is_held_back() {
            return Err(Reason::Requested);
        }
        if cell.is_shared() && !self.sink().holds_alone(&cell) {
            return Err(Reason::Shared);
        }
        let slot = link.tx.lock().proto.alloc_slot().map_err(|_| Reason::Exhausted)?;
        let accepted = self.outgoing(link, &open.ring).and_then(|outgoing| {
            let (region, ring) = match self.prepare(link) {
                Ok(prepared) => prepared,
                Err(reason) => {
                    self.free_outgoing(link, outgoing);
                    return Err(reason);
                }
            };
            let mut guard = cell.lock(self);
            let result = match guard.inner.link {
                Some(_) => Err(Reason::PeerBusy),
                None if guard.inner.closed => Err(Reason::UnknownStream),
                None if !guard.inner.proto.may_promote() => Err(Reason::PeerBusy),
                None => cell
                    .may_leave_kernel()
                    .and_then(|()| guard.count_positions())
                    .and_then(|()| guard.inner.proto.accept(open, slot.0, self.nonce(), ring)),
            };
            let inner = &mut *guard.inner;
            if let Err(reason) = result {
                drop(guard);
                self.device().free_region(link.qp(), region);
                self.free_outgoing(link, outgoing);
                return Err(reason);
            }
            inner.region = Some(region);
            inner.outgoing = Some(outgoing);
            inner.link = Some(link.clone());
            inner.released = false;
            put_slot(rx, slot, &cell);
            guard.arrived = true;
            Ok(())
        });
        if accepted.is_err() {
            link.tx.lock().proto.free_slot(slot);
        }
        accepted
    }

    fn handle_accept(&self, link: &Arc<LinkCell>, rx: &mut LinkRx, accept: &Accept) {
        let Some(Some(cell)) = rx.slots.get(usize::from(accept.peer_slot)) else { return };
        let outgoing = self.outgoing(link, &accept.ring);
        let mut guard = cell.lock(self);
        match outgoing {
            Ok(outgoing) => guard.inner.outgoing = Some(outgoing),
            Err(_) => guard.inner.proto.void_pledge(),
        }
        guard.inner.proto.handle_accept(accept);
        guard.arrived = true;
        guard.progress_anchor(false);
    }

    /// Gives back what [`outgoing`](Endpoint::outgoing) took from the device of a link that lives.
    pub(crate) fn free_outgoing(&self, link: &LinkCell, outgoing: Outgoing) {
        if let Some(staging) = outgoing.staging {
            self.device().free_region(link.qp(), staging);
        }
    }

    /// Where bytes to the peer's ring are written.
    fn outgoing(&self, link: &LinkCell, ring: &RingDescriptor) -> Result<Outgoing, Reason> {
        let len = CREDIT_BLOCK_LEN as u32 + ring.ring_len;
        if self.device().capabilities().peer_memory {
            let remote = RemoteRegion { rkey: ring.rkey, base: ring.base, len };
            let window = self.device().window(link.qp(), remote).map_err(|_| Reason::Violation)?;
            return Ok(Outgoing { ring: *ring, memory: window.memory, staging: None });
        }
        let staging = self.device().alloc_region(link.qp(), len as usize).map_err(|_| Reason::MemoryLimit)?;
        Ok(Outgoing { ring: *ring, memory: staging.memory.clone(), staging: Some(staging) })
    }
}

fn put_slot(rx: &mut LinkRx, slot: SlotId, cell: &Arc<StreamCell>) {
    let i = usize::from(slot.0);
    if rx.slots.len() <= i {
        rx.slots.resize(i + 1, None);
    }
    rx.slots[i] = Some(cell.clone());
}

fn wire_tuple(tuple: &FourTuple) -> WireTuple {
    fn wire(addr: SocketAddr) -> ([u8; 16], u16) {
        let ip = match addr.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        (ip.octets(), addr.port())
    }
    WireTuple { local: wire(tuple.local), remote: wire(tuple.remote) }
}

/// As [`wire_tuple`] had it. `None`: one end is IPv4 and the other is not.
fn four_tuple(tuple: &WireTuple) -> Option<FourTuple> {
    let end = |(ip, port): ([u8; 16], u16)| SocketAddr::new(IpAddr::from(ip).to_canonical(), port);
    let (local, remote) = (end(tuple.local), end(tuple.remote));
    (local.is_ipv4() == remote.is_ipv4()).then_some(FourTuple { local, remote })
}

const EMPTY: WorkCompletion = WorkCompletion {
    qp: netacc_device::QueuePairId(0),
    status: CompletionStatus::Success,
    completion: Completion::Send { id: WorkRequestId(0) },
};
