//! Messages in, and the opening of streams on links.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use netacc_device::{
    Completion, CompletionStatus, ConnectionId, FourTuple, PeerAddress, PostError, QueuePairId, Region, RemoteRegion,
    WorkCompletion, WorkRequestId, UNKNOWN_STREAM,
};
use netacc_proto::{
    Accept, ControlMessage, Immediate, LinkError, MessageKind, Open, Reason, Refuse, RingDescriptor, Role, SlotId,
    WireTuple, CONTROL_SLOT_LEN, CREDIT_BLOCK_LEN, LINK_REGION_LEN, NO_SLOT,
};

use crate::endpoint::{reason_of, Attempt, Endpoint, Waiting, BATCH};
use crate::link::{LinkCell, LinkRx};
use crate::stream::Outgoing;
use crate::{Counters, StreamCell};

/// What a look at a link found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Alive,
    /// The device has given it up.
    Failed,
    /// Its peer broke the protocol, or is refused: nothing more of what it sends is looked at.
    Refused,
}

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
        cell.lock(self).inner.sent_on = false;
        self.wait_for_link(cell, peer, hint);
        Ok(())
    }

    /// The stream is to be opened at `peer`.
    fn wait_for_link(&self, cell: &Arc<StreamCell>, peer: PeerAddress, hint: u32) {
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|w| Arc::ptr_eq(&w.stream, cell)) {
            waiting.push(Waiting { stream: cell.clone(), peer, hint, link: None, attempt: None });
        }
        drop(waiting);
        self.place_waiting();
    }

    /// The peer has sent a stream, which has left its link, to a process that is at `peer`.
    pub(crate) fn ask_elsewhere(&self, cell: &Arc<StreamCell>, peer: PeerAddress) {
        cell.lock(self).inner.sent_on = true;
        self.wait_for_link(cell, peer, UNKNOWN_STREAM);
    }

    /// Gives waiting streams a link: one with room, a cached one, or a new one.
    pub(crate) fn place_waiting(&self) {
        let (mut ready, mut failed) = (Vec::new(), Vec::new());
        let mut waiting = self.waiting.lock();
        let mut shared = shared_attempts(&waiting);
        waiting.retain_mut(|w| {
            if let Some(link) = self.usable_link(w) {
                ready.push((link, w.stream.clone(), w.hint));
                return false;
            }
            if w.attempt.is_none() && w.link.is_none() {
                let most = self.config.streams_per_link;
                if let Some(joined) = shared.iter_mut().find(|s| s.peer == w.peer && s.streams < most) {
                    joined.streams += 1;
                    (w.attempt, w.link) = (Some(joined.id), joined.link);
                    return true;
                }
                match self.cm().connect(w.peer, self.control_cq(), LINK_REGION_LEN, &[]) {
                    Ok(id) => {
                        self.attempts.lock().insert(id, Attempt { peer: w.peer, connector: true });
                        w.attempt = Some(id);
                        shared.push(SharedAttempt { id, peer: w.peer, link: None, streams: 1 });
                    }
                    Err(error) => {
                        failed.push((w.stream.clone(), reason_of(&error)));
                        return false;
                    }
                }
            }
            true
        });
        drop(waiting);
        failed.into_iter().for_each(|(stream, reason)| self.note_without_link(&stream, reason));
        for (link, stream, hint) in ready {
            if let Err(reason) = self.open_on(&link, &stream, hint) {
                self.note_without_link(&stream, reason);
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
        let opened = self.prepare(link, cell).and_then(|(region, ring)| {
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

    fn prepare(&self, link: &LinkCell, cell: &StreamCell) -> Result<(Region, RingDescriptor), Reason> {
        let ring_len = cell.next_ring_len(self.config.ring_len);
        let len = CREDIT_BLOCK_LEN + ring_len as usize;
        let region = self.device().alloc_region(link.qp(), len).map_err(|_| Reason::MemoryLimit)?;
        let ring = RingDescriptor { rkey: region.remote.rkey, base: region.remote.base, ring_len };
        Ok((region, ring))
    }

    /// Handles what has arrived on one link. Any thread; a second thread waits for the first.
    pub fn poll_link(&self, link: &Arc<LinkCell>) {
        let mut rx = link.rx.lock();
        let mut state = self.drain_link(link, &mut rx);
        if !rx.ended.is_empty() {
            state = self.take_in_ends(link, &mut rx, state);
        }
        drop(rx);
        match state {
            LinkState::Alive => {}
            LinkState::Failed => self.note_dead(link),
            LinkState::Refused => self.link_died(link),
        }
    }

    fn drain_link(&self, link: &Arc<LinkCell>, rx: &mut LinkRx) -> LinkState {
        link.mark_seen(self.device());
        let mut wcs = [EMPTY; BATCH];
        let (mut alive, mut failed, mut sent) = (true, false, false);
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
                    _ => failed = true,
                }
            }
            if messages > 0 && alive && !failed {
                self.return_messages(link, messages);
            }
            if n < wcs.len() || !alive || failed {
                break;
            }
        }
        if sent && alive && !failed && link.tx.lock().take_full() {
            rx.slots.iter().flatten().for_each(|cell| cell.lock(self).unstall());
        }
        match (alive, failed) {
            (true, false) => LinkState::Alive,
            (true, true) => LinkState::Failed,
            (false, _) => LinkState::Refused,
        }
    }

    /// The anchors of some streams were seen to have ended while their messages were handled. What their peers had sent
    /// before that counts first.
    #[cold]
    fn take_in_ends(&self, link: &Arc<LinkCell>, rx: &mut LinkRx, state: LinkState) -> LinkState {
        let ended = std::mem::take(&mut rx.ended);
        let state = if state == LinkState::Alive { self.drain_link(link, rx) } else { state };
        for cell in ended {
            let mut guard = cell.lock(self);
            guard.polled = true;
            guard.progress_anchor(true);
        }
        state
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
                let answer = match tx.proto.handle_hello(&hello) {
                    Ok(answer) => answer,
                    Err(error) => {
                        drop(tx);
                        return self.end_setup(link, error);
                    }
                };
                let sent = answer.map_or(Ok(true), |answer| tx.send(self.device(), link, answer));
                drop(tx);
                if link.connector {
                    // Places the stream that waits for the link; if it has gone meanwhile, the link is kept for others.
                    self.note_idle(link);
                }
                self.keep_sending(link, sent)
            }
            ControlMessage::Proof(proof) => {
                let proven = link.tx.lock().proto.handle_proof(&proof);
                proven.map_or_else(|error| self.end_setup(link, error), |()| true)
            }
            //= spec §2.5.4
            //# Who reads that ends the link.
            ControlMessage::Refuse(Refuse { peer_slot: NO_SLOT, reason, .. }) => {
                let reason = match Reason::from_code(reason) {
                    key @ (Reason::KeyMissing | Reason::KeyMismatch) => key,
                    _ => Reason::NotAdmitted,
                };
                self.refuse_link(link, reason);
                false
            }
            ControlMessage::Open(open) => {
                let refused = self.handle_open(link, rx, &open);
                if let Err(mut reason) = refused {
                    Counters::bump(&self.counters().opens_refused);
                    //= spec §4.1.5
                    //# An acceptor that does not hold the anchor, but knows the process of its host that does, names in REFUSE
                    //# the port at which that one accepts links.
                    let elsewhere = match reason {
                        Reason::UnknownStream => self.holder(link, &open),
                        _ => None,
                    };
                    if elsewhere.is_some() {
                        reason = Reason::HeldElsewhere;
                    }
                    self.counters().reason(reason);
                    let refuse =
                        Refuse { peer_slot: open.slot, reason: reason as u16, ask_at: elsewhere.unwrap_or_default() };
                    let refuse = ControlMessage::Refuse(refuse);
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
                    //= spec §4.1.5
                    //# The opener MAY ask there, once, and at no other address.
                    let elsewhere = match refuse.ask_at {
                        0 => None,
                        port => self.directory().neighbour(link.peer, port),
                    };
                    guard.inner.ask_next = elsewhere.filter(|peer| !guard.inner.sent_on && *peer != link.peer);
                    guard.inner.proto.handle_refuse(Reason::from_code(refuse.reason));
                    self.counters().reason(Reason::from_code(refuse.reason));
                    guard.arrived = true;
                }
                true
            }
        }
    }

    /// The peer cannot have the link. False if that ends it now.
    fn end_setup(&self, link: &Arc<LinkCell>, error: LinkError) -> bool {
        let LinkError::Refused(reason) = error else {
            Counters::bump(&self.counters().violations);
            return false;
        };
        self.refuse_link(link, reason);
        //= spec §2.5.4
        //# Who refuses a link says so with REFUSE, in which the opener's slot is 0xffff, and sends nothing more.
        let refuse = ControlMessage::Refuse(Refuse { peer_slot: NO_SLOT, reason: reason as u16, ask_at: 0 });
        let sent = link.tx.lock().send(self.device(), link, refuse);
        self.keep_sending(link, sent)
    }

    /// One side will not have the link: who waits for it stays on TCP, for that reason.
    pub(crate) fn refuse_link(&self, link: &LinkCell, reason: Reason) {
        if !link.tx.lock().proto.refuse() {
            return;
        }
        Counters::bump(&self.counters().links_refused);
        if !link.connector {
            return self.counters().reason(reason);
        }
        self.directory().note_unreachable(link.peer);
        self.stop_waiting(reason, |w| w.link == Some(link.qp));
    }

    /// Streams for which there will be no link stay on TCP, for this reason.
    pub(crate) fn stop_waiting(&self, reason: Reason, is_over: impl Fn(&Waiting) -> bool) {
        let mut waiting = self.waiting.lock();
        let (over, left): (Vec<_>, Vec<_>) = std::mem::take(&mut *waiting).into_iter().partition(is_over);
        *waiting = left;
        drop(waiting);
        over.iter().for_each(|w| self.note_without_link(&w.stream, reason));
    }

    /// A stream that waited for a link stays on TCP, for this reason.
    fn note_without_link(&self, stream: &Arc<StreamCell>, reason: Reason) {
        self.counters().reason(reason);
        stream.lock(self).inner.proto.note_without_link(reason);
    }

    /// Where the process accepts links that holds what `open` asks for, if its asker may know.
    fn holder(&self, link: &LinkCell, open: &Open) -> Option<u16> {
        let tuple = four_tuple(&open.tuple)?.reversed();
        self.directory().holder(&tuple).filter(|_| self.directory().admits(link.peer, &tuple))
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
        //= spec §2.5.3
        //# Before it has verified the connecting side's proof, the accepting side refuses every OPEN.
        if !link.tx.lock().proto.is_admitted() {
            return Err(Reason::KeyMissing);
        }
        let number = match open.hint {
            UNKNOWN_STREAM => four_tuple(&open.tuple).and_then(|tuple| self.directory().resolve(&tuple.reversed())),
            number => Some(number),
        };
        let number = number.ok_or(Reason::UnknownStream)?;
        let cell = self.streams.read().cells.get(number as usize).cloned().flatten();
        let cell = cell.filter(|c| wire_tuple(&c.tuple.reversed()) == open.tuple).ok_or(Reason::UnknownStream)?;
        //= spec §4.1.4
        //# An OPEN is refused on a link whose other end is not at the anchor's other address.
        if !self.directory().admits(link.peer, &cell.tuple) {
            return Err(Reason::NotAdmitted);
        }
        if self.is_held_back() {
            return Err(Reason::Requested);
        }
        if cell.is_shared() && !self.sink().holds_alone(&cell) {
            return Err(Reason::Shared);
        }
        let slot = link.tx.lock().proto.alloc_slot().map_err(|_| Reason::Exhausted)?;
        let accepted = self.outgoing(link, &open.ring).and_then(|outgoing| {
            let (region, ring) = match self.prepare(link, &cell) {
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
            // The peer waits for this side to see its marker, which need not wait for whoever polls the link: that may be a
            // thread that waits for something else.
            self.note_moved(&cell);
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
        if link.caps.peer_memory {
            let remote = RemoteRegion { rkey: ring.rkey, base: ring.base, len };
            let window = self.device().window(link.qp(), remote).map_err(|_| Reason::Violation)?;
            return Ok(Outgoing { ring: *ring, memory: window.memory, staging: None });
        }
        let staging = self.device().alloc_region(link.qp(), len as usize).map_err(|_| Reason::MemoryLimit)?;
        Ok(Outgoing { ring: *ring, memory: staging.memory.clone(), staging: Some(staging) })
    }
}

/// An attempt, and the streams that wait for its link.
struct SharedAttempt {
    id: ConnectionId,
    peer: PeerAddress,
    /// Once connected.
    link: Option<QueuePairId>,
    streams: u16,
}

fn shared_attempts(waiting: &[Waiting]) -> Vec<SharedAttempt> {
    let mut shared: Vec<SharedAttempt> = Vec::new();
    for w in waiting {
        let Some(id) = w.attempt else { continue };
        match shared.iter_mut().find(|s| s.id == id) {
            Some(s) => s.streams = s.streams.saturating_add(1),
            None => shared.push(SharedAttempt { id, peer: w.peer, link: w.link, streams: 1 }),
        }
    }
    shared
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
