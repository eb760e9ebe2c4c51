//! Flows of datagrams on links: opening and granting them, moving their datagrams, ending them.
//!
//! A flow has a slot on a link, as a stream has. The owner sends what the link does not take by the kernel, carries the
//! proofs there, and gives the program's threads what arrives.
//!
//! Lock order: a link's `rx`, then a flow, then the link's `tx`. No lock of a flow is held while the
//! [`ReadySink`](crate::ReadySink) is called.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::{DeviceError, FourTuple, InPlaceError, Instant, PeerAddress, PostError, QueuePairId, Region};
use netacc_proto::{
    ControlMessage, FlowGrant, FlowProof, FlowReceiver, FlowRefusal, FlowRequest, FlowSender, Immediate, MessageKind,
    Reason, RecordHeader, Refuse, RingDescriptor, SlotId, CREDIT_BLOCK_LEN, FLOW_RECORD_HEADER_LEN, LINK_REGION_LEN,
};

use super::open::{four_tuple, wire_tuple};
use super::promotions::Usability;
use super::reasons::reason_without_region;
use super::{Attempt, Endpoint, RETRY_INTERVAL};
use crate::datagram::{
    Far, LinkDatagram, LinkFlow, Place, Receiving, ReceivingFlow, Report, Seat, Sending, SendingFlow, Use,
};
use crate::LinkCell;

/// The program's side.
impl Endpoint {
    /// Opens a flow to the process at `peer`. The source is `addresses.local`, from which `by_kernel` datagrams were sent to the
    /// destination by the kernel; the owner receives proofs at `proof_port`. Until the flow [is open](SendingFlow::is_open)
    /// the kernel takes its datagrams.
    pub fn open_flow(
        &self,
        peer: PeerAddress,
        addresses: FourTuple,
        proof_port: u16,
        by_kernel: u64,
    ) -> Arc<SendingFlow> {
        let flow = Arc::new(SendingFlow::new(peer, addresses, proof_port, by_kernel));
        self.flows.lock().waiting.push(flow.clone());
        self.need_helper();
        flow
    }

    /// Sends a datagram on the link.
    ///
    /// # Errors
    /// It must go by the kernel, after those that [`take_returned`](Endpoint::take_returned) has.
    pub fn send_datagram(&self, flow: &SendingFlow, bytes: &[u8], ttl: u8, tos: u8) -> Result<(), FlowRefusal> {
        let mut inner = flow.inner.lock();
        self.refresh_sender(&mut inner);
        if !inner.returned.is_empty() {
            return Err(FlowRefusal::Asleep);
        }
        let Sending { place: Place::On(on), counts, .. } = &mut *inner else { return Err(FlowRefusal::Closed) };
        let (seat, proto) = &mut **on;
        let (placed, header) = proto.prepare(bytes.len(), ttl, tos)?;
        let far = seat.far.filter(|_| seat.ours == Use::Goes && !seat.peer_has_closed).ok_or(FlowRefusal::Closed)?;
        let at = CREDIT_BLOCK_LEN + placed.span.offset as usize;
        let memory = &seat.region.memory;
        let fits = memory.write(at, &header.encode()) && memory.write(at + FLOW_RECORD_HEADER_LEN, bytes);
        debug_assert!(fits, "placed within the ring");
        let mut tx = seat.link.tx.lock();
        let imm = Immediate::new(MessageKind::Datagram, far.slot);
        match tx.data(self.device(), (&far.ring, Some(&seat.region)), placed.span, imm, None) {
            Ok(()) => {
                if tx.watch.resting {
                    self.resume_watch(&mut tx);
                }
                proto.commit(placed);
                counts.link += 1;
                Ok(())
            }
            Err(InPlaceError::Post(PostError::QueueFull)) => Err(FlowRefusal::Full),
            Err(_) => Err(FlowRefusal::Closed),
        }
    }

    /// The next datagram that the receiver has not taken before it slept. It must go by the kernel.
    pub fn take_returned(&self, flow: &SendingFlow) -> Option<LinkDatagram> {
        let mut inner = flow.inner.lock();
        self.refresh_sender(&mut inner);
        inner.returned.pop_front()
    }

    /// Ends a flow. The receiver's answer says which datagrams it has not taken: until the flow [is
    /// drained](SendingFlow::is_drained), [`take_returned`](Endpoint::take_returned) may have some.
    pub fn close_sending(&self, flow: &SendingFlow) {
        self.flows.lock().waiting.retain(|waiting| !std::ptr::eq(&**waiting, flow));
        let mut inner = flow.inner.lock();
        self.refresh_sender(&mut inner);
        let Place::On(on) = &mut inner.place else {
            inner.place = Place::Gone;
            return;
        };
        on.1.close();
        let ends = self.close_seat(&mut on.0);
        self.free_seat_if(ends, &mut inner.place);
    }

    /// Takes the next datagram that has come by the link.
    pub fn receive_datagram(&self, flow: &ReceivingFlow) -> Option<LinkDatagram> {
        let mut inner = flow.inner.lock();
        let Receiving { proto, seat, left, counts, .. } = &mut *inner;
        let datagram = match (left.pop_front(), seat) {
            (Some(first), _) => first,
            (None, None) => return None,
            (None, Some(seat)) => {
                let front = proto.front()?;
                let datagram = LinkDatagram { bytes: seat.read(front.span), ttl: front.ttl, tos: front.tos };
                proto.take();
                datagram
            }
        };
        counts.link += 1;
        if proto.wants_report() {
            self.report(&mut inner, Report::Silent);
        }
        Some(datagram)
    }

    /// The program looks at the flow before it sleeps from now on.
    pub fn keep_awake(&self, flow: &ReceivingFlow) {
        let mut inner = flow.inner.lock();
        if inner.proto.stay_awake() {
            self.report(&mut inner, Report::Silent);
        }
    }

    /// A thread is about to sleep in the kernel. `false`: datagrams have come by the link, and it must not sleep.
    pub fn let_sleep(&self, flow: &ReceivingFlow) -> bool {
        let mut inner = flow.inner.lock();
        if !inner.left.is_empty() {
            return false;
        }
        let was_awake = inner.proto.is_awake();
        let sleeps = inner.proto.fall_asleep();
        if sleeps && was_awake {
            self.report(&mut inner, Report::Message);
        }
        sleeps
    }

    /// The kernel has brought the owner a datagram from the source. If it is the flow's proof: the answer, to be sent from the
    /// flow's socket to that port at the source's address.
    pub fn handle_source_proof(&self, flow: &ReceivingFlow, bytes: &[u8]) -> Option<FlowProof> {
        let mut inner = flow.inner.lock();
        let answer = inner.proto.handle_proof(bytes)?;
        self.report(&mut inner, Report::Message);
        Some(answer)
    }

    /// Handles what has come on the link of a flow. Call it with nothing locked that the [`ReadySink`](crate::ReadySink) locks.
    pub fn poll_receiving(&self, flow: &ReceivingFlow) {
        if let Some(link) = flow.link() {
            self.poll_link(&link);
        }
    }

    /// As [`poll_receiving`](Endpoint::poll_receiving), for the sending end.
    pub fn poll_sending(&self, flow: &SendingFlow) {
        if let Some(link) = flow.link() {
            self.poll_link(&link);
        }
    }

    /// Whether a link has flows of datagrams: then what comes on it concerns sockets of which no thread need be aware.
    pub fn has_flows(&self, link: &LinkCell) -> bool {
        self.flows.lock().on_links.range((link.qp, 0)..=(link.qp, u16::MAX)).next().is_some()
    }

    /// Takes nothing more of a flow, but what has come, which can still be received.
    pub fn keep_received(&self, flow: &ReceivingFlow) {
        let mut inner = flow.inner.lock();
        inner.keep_rest();
        self.end_receiving(&mut inner);
    }

    /// Takes nothing more of a flow: its sender sends by the kernel all that was not taken.
    pub fn give_back(&self, flow: &ReceivingFlow) {
        self.end_receiving(&mut flow.inner.lock());
    }

    fn end_receiving(&self, inner: &mut Receiving) {
        inner.proto.give_back();
        self.report(inner, Report::Message);
        self.close_receiver(inner);
    }

    /// Takes nothing more of a flow.
    pub fn close_receiving(&self, flow: &ReceivingFlow) {
        let mut inner = flow.inner.lock();
        inner.proto.close();
        inner.left.clear();
        self.close_receiver(&mut inner);
    }
}

/// The peer's side, and the control path.
impl Endpoint {
    /// Reads the receiver's status, and copies what it returns.
    fn refresh_sender(&self, inner: &mut Sending) {
        let Sending { place: Place::On(on), returned, counts, .. } = inner else { return };
        let (seat, proto) = &mut **on;
        let word = seat.region.memory.word(0).map_or(0, |word| word.load(Ordering::Acquire));
        if proto.handle_status(word).is_err() {
            proto.close();
            self.end_violated(&seat.link);
            return;
        }
        while let Some(span) = proto.poll_returned() {
            let mut record = seat.read(span);
            let bytes = record.split_off(FLOW_RECORD_HEADER_LEN);
            let header = record.first_chunk().map(RecordHeader::decode).expect("as long as a header");
            counts.returned += 1;
            returned.push_back(LinkDatagram { bytes, ttl: header.ttl, tos: header.tos });
        }
    }

    /// Writes the receiver's status into the sender's memory.
    fn report(&self, inner: &mut Receiving, how: Report) {
        let how = inner.owed.take().map_or(how, |owed| owed.max(how));
        // The sender keeps its region until it has our CLOSE.
        let Some(seat) = inner.seat.as_ref().filter(|seat| seat.ours != Use::Ended) else { return };
        let Some(far) = seat.far else { return };
        let imm = (how == Report::Message).then(|| Immediate::new(MessageKind::Status, far.slot));
        let word = inner.proto.report();
        let posted = seat.link.tx.lock().status_word(self.device(), &far.ring, word, imm);
        if posted == Err(PostError::QueueFull) {
            self.owe(seat);
            inner.owed = Some(how);
        }
    }

    /// A message found the queue full: [`progress`](Endpoint::progress) sends it later.
    fn owe(&self, seat: &Seat) {
        self.flows.lock().owing.insert((seat.link.qp, seat.slot));
        self.need_helper();
    }

    /// Sends CLOSE, now or later. Whether the flow is over.
    fn close_seat(&self, seat: &mut Seat) -> bool {
        if seat.ours == Use::Goes {
            seat.ours = Use::Ends;
        }
        if seat.close_if_due(self.device()) {
            self.owe(seat);
        }
        seat.is_over()
    }

    /// Sends the receiver's CLOSE, behind its last status.
    fn close_receiver(&self, inner: &mut Receiving) {
        let Some(seat) = &mut inner.seat else { return };
        if inner.owed.is_some() {
            // `progress` sends both.
            if seat.ours == Use::Goes {
                seat.ours = Use::Ends;
            }
        } else if self.close_seat(seat) {
            self.free_seat(inner.seat.take());
        }
    }

    fn free_seat_if(&self, ends: bool, place: &mut Place) {
        if ends {
            if let Place::On(on) = std::mem::replace(place, Place::Gone) {
                self.free_seat(Some(on.0));
            }
        }
    }

    /// Gives back a slot that neither side uses any more, and its memory.
    fn free_seat(&self, seat: Option<Seat>) {
        let Some(Seat { link, slot, region, .. }) = seat else { return };
        self.flows.lock().on_links.remove(&(link.qp, slot));
        if link.is_dead() {
            return;
        }
        link.free_region(self.device(), region);
        link.tx.lock().proto.free_slot(SlotId(slot));
        if link.connector {
            self.promotions.lock().freed(link.peer);
        }
        self.enqueue_idle(&link);
    }

    /// A peer has broken the rules of a flow: its link ends.
    fn end_violated(&self, link: &Arc<LinkCell>) {
        link.tx.lock().proto.record_violation();
        self.enqueue_dead(link);
    }

    fn flow_at(&self, link: &LinkCell, slot: u16) -> Option<LinkFlow> {
        self.flows.lock().on_links.get(&(link.qp, slot)).cloned()
    }

    /// Places flows that wait for a link, and sends what found a queue full. Returns when to call it again.
    pub(super) fn progress_flows(&self, now: Instant) -> Option<Instant> {
        let waiting = std::mem::take(&mut self.flows.lock().waiting);
        for flow in waiting {
            self.place_flow(flow);
        }
        let owing = std::mem::take(&mut self.flows.lock().owing);
        for (qp, slot) in owing {
            let flow = self.flows.lock().on_links.get(&(qp, slot)).cloned();
            self.send_owed_of_flow(flow);
        }
        let flows = self.flows.lock();
        (!flows.waiting.is_empty() || !flows.owing.is_empty()).then_some(now + RETRY_INTERVAL)
    }

    fn send_owed_of_flow(&self, flow: Option<LinkFlow>) {
        match flow {
            Some(LinkFlow::Sending(flow)) => {
                let mut inner = flow.inner.lock();
                if let Place::On(on) = &mut inner.place {
                    let ends = on.0.ours != Use::Goes && self.close_seat(&mut on.0);
                    self.free_seat_if(ends, &mut inner.place);
                }
            }
            Some(LinkFlow::Receiving(flow)) => {
                let mut inner = flow.inner.lock();
                if let Some(owed) = inner.owed {
                    self.report(&mut inner, owed);
                }
                if inner.seat.as_ref().is_some_and(|seat| seat.ours != Use::Goes) {
                    self.close_receiver(&mut inner);
                }
            }
            None => {}
        }
    }

    //= spec §10.6.1
    //# A sender requests a flow by FLOW, on a link to the destination's host, if the peer's HELLO says that it takes flows.
    /// Opens a flow on a link to its peer, or makes one, or lets it wait.
    fn place_flow(&self, flow: Arc<SendingFlow>) {
        let mut links: Vec<_> = self.links.read().values().filter(|link| link.peer == flow.peer).cloned().collect();
        // One that was made for the flow comes before those that it would share.
        links.sort_by_cached_key(|link| link.tx.lock().proto.streams());
        let all = links.len();
        links.retain(|link| self.check_link(link.qp) != Usability::NotReady);
        let mut is_made = links.len() < all
            || self.attempts.lock().values().any(|attempt| attempt.connector && attempt.peer == flow.peer);
        for link in &links {
            if self.check_link(link.qp) == Usability::Usable && self.takes_flow(link, links.len()) {
                match self.request_on(link, &flow) {
                    Ok(()) => return,
                    Err(_) => self.enqueue_idle(link),
                }
            }
        }
        let mut inner = flow.inner.lock();
        if let Place::Waiting { requested } = &mut inner.place {
            if !is_made && !std::mem::replace(requested, true) {
                is_made = self.connect_for(flow.peer);
            }
            if !is_made {
                inner.place = Place::Gone;
                inner.refused = Some(Reason::PeerNotFound);
            }
        }
        drop(inner);
        if is_made {
            self.flows.lock().waiting.push(flow);
        } else {
            self.sink().flow_changed(&flow);
        }
    }

    /// Whether a flow may be opened on a link with room, which is one of so many that are ready.
    fn takes_flow(&self, link: &LinkCell, links: usize) -> bool {
        let distribution = self.config.sharing.distribution(Some(&link.caps), self.order.get());
        let tx = link.tx.lock();
        let may_share = tx.proto.streams() == 0 || distribution.shares(links);
        tx.proto.takes_datagrams() && !link.caps.peer_memory && may_share
    }

    fn connect_for(&self, peer: PeerAddress) -> bool {
        let id = self.cm().connect(peer, self.control_cq(), LINK_REGION_LEN, &[]);
        id.map(|id| self.attempts.lock().insert(id, Attempt { peer, connector: true })).is_ok()
    }

    fn seat(&self, link: &Arc<LinkCell>, slot: u16, region: Region, far: Option<Far>) -> Seat {
        let _tallied = self.begin_use(&self.seated);
        Seat { link: link.clone(), slot, region, far, ours: Use::Goes, peer_has_closed: false, _tallied }
    }

    /// Requests a flow on a link.
    fn request_on(&self, link: &Arc<LinkCell>, flow: &Arc<SendingFlow>) -> Result<(), Reason> {
        let ring_len = self.config.ring_len;
        let (slot, region) = self.take_slot(link, ring_len)?;
        let (nonce, ring) = (self.nonce(), descriptor(&region, ring_len));
        let addresses = wire_tuple(&flow.addresses);
        let request = FlowRequest { slot, addresses, nonce, ring, proof_port: flow.proof_port };
        let seat = self.seat(link, slot, region, None);
        let mut inner = flow.inner.lock();
        inner.nonce = Some(nonce);
        inner.place = Place::On(Box::new((seat, FlowSender::new(ring_len, inner.by_kernel))));
        drop(inner);
        self.flows.lock().on_links.insert((link.qp, slot), LinkFlow::Sending(flow.clone()));
        if link.is_dead() {
            // Its flows may have ended before this one was among them.
            self.end_flows_on(link.qp);
            return Ok(());
        }
        self.send_control(link, ControlMessage::Flow(request));
        Ok(())
    }

    fn take_slot(&self, link: &LinkCell, ring_len: u32) -> Result<(u16, Region), Reason> {
        let slot = link.tx.lock().proto.alloc_slot().map_err(|_| Reason::Exhausted)?;
        let region = link.alloc_region(self.device(), CREDIT_BLOCK_LEN + ring_len as usize);
        let region = region.map_err(|error: DeviceError| {
            link.tx.lock().proto.free_slot(slot);
            reason_without_region(&error)
        })?;
        // Whichever side requests the flow: a link of ours that is in use does not expire.
        self.cache.lock().remove(link.qp);
        Ok((slot.0, region))
    }

    fn send_control(&self, link: &Arc<LinkCell>, message: ControlMessage) {
        let sent = link.tx.lock().send(self.device(), message);
        if !self.keep_sending(link, sent) {
            self.enqueue_dead(link);
        }
    }

    /// A peer requests a flow to a socket of this process.
    pub(super) fn handle_flow(&self, link: &Arc<LinkCell>, request: &FlowRequest) {
        if let Err(reason) = self.grant_flow(link, request) {
            self.counters().reason(reason);
            let refuse = Refuse { peer_slot: request.slot, reason: reason as u16, redirect_port: 0 };
            self.send_control(link, ControlMessage::Refuse(refuse));
            self.enqueue_idle(link);
        }
    }

    fn grant_flow(&self, link: &Arc<LinkCell>, request: &FlowRequest) -> Result<(), Reason> {
        if !link.tx.lock().proto.is_admitted() {
            return Err(Reason::KeyMissing);
        }
        if let Some(reason) = self.suspension_reason() {
            return Err(reason);
        }
        //= spec §10.6.2
        //# The receiver refuses a flow to a socket that it does not have, from an address at which the other end of the link
        //# is not, or from which the kernel has brought that socket nothing.
        let addresses = four_tuple(&request.addresses).map(FourTuple::reversed).ok_or(Reason::UnknownStream)?;
        if !self.directory().admits(link.peer, &addresses) {
            return Err(Reason::NotAdmitted);
        }
        let ring_len = request.ring.ring_len;
        //= spec §10.6.3
        //# It MAY refuse one whose ring is longer than it gives to streams.
        if ring_len > self.config.ring_len || link.caps.peer_memory {
            return Err(Reason::MemoryLimit);
        }
        let proof_port = self.sink().flow_offered(&addresses)?;
        let (slot, region) = self.take_slot(link, ring_len)?;
        let proto = FlowReceiver::new(self.nonce(), request);
        let grant = proto.grant(request.slot, slot, descriptor(&region, ring_len), proof_port);
        let far = Some(Far { slot: request.slot, ring: request.ring });
        let seat = self.seat(link, slot, region, far);
        let flow = Arc::new(ReceivingFlow::new(addresses, proto, seat));
        self.flows.lock().on_links.insert((link.qp, slot), LinkFlow::Receiving(flow.clone()));
        // First: the sender's proof must find an owner that knows the flow.
        self.sink().flow_granted(&flow);
        self.send_control(link, ControlMessage::Grant(grant));
        Ok(())
    }

    /// A peer grants a flow of ours. False if the link must end.
    pub(super) fn handle_grant(&self, link: &LinkCell, grant: &FlowGrant) -> bool {
        let Some(LinkFlow::Sending(flow)) = self.flow_at(link, grant.peer_slot) else { return true };
        let mut inner = flow.inner.lock();
        let Place::On(on) = &mut inner.place else { return true };
        let (seat, proto) = &mut **on;
        if seat.far.is_some() {
            link.tx.lock().proto.record_violation();
            return false;
        }
        seat.far = Some(Far { slot: grant.slot, ring: grant.ring });
        if seat.ours == Use::Goes && proto.handle_grant(grant).is_err() {
            link.tx.lock().proto.record_violation();
            return false;
        }
        let ends = seat.ours != Use::Goes && self.close_seat(seat);
        self.free_seat_if(ends, &mut inner.place);
        drop(inner);
        self.sink().flow_changed(&flow);
        true
    }

    /// A peer refuses a flow of ours, if the slot is one's.
    pub(super) fn handle_flow_refused(&self, link: &LinkCell, refuse: &Refuse) {
        let Some(LinkFlow::Sending(flow)) = self.flow_at(link, refuse.peer_slot) else { return };
        let mut inner = flow.inner.lock();
        if matches!(&inner.place, Place::On(on) if on.0.far.is_none()) {
            inner.refused = Some(Reason::from_code(refuse.reason));
            self.free_seat_if(true, &mut inner.place);
        }
        drop(inner);
        self.sink().flow_changed(&flow);
    }

    /// A datagram of `len` bytes has come. False if the link must end.
    pub(super) fn handle_datagram(&self, link: &LinkCell, slot: u16, len: u32) -> bool {
        // A slot that is free here: the message crossed our CLOSE.
        let Some(LinkFlow::Receiving(flow)) = self.flow_at(link, slot) else { return true };
        let mut inner = flow.inner.lock();
        let Receiving { proto, seat: Some(seat), .. } = &mut *inner else { return true };
        let handled = proto.handle_message(len).and_then(|placed| {
            let mut header = [0; FLOW_RECORD_HEADER_LEN];
            let fits = seat.region.memory.read(CREDIT_BLOCK_LEN + placed.span.offset as usize, &mut header);
            debug_assert!(fits, "placed within the ring");
            proto.handle_record(placed, &RecordHeader::decode(&header))
        });
        if handled.is_err() {
            link.tx.lock().proto.record_violation();
        }
        handled.is_ok()
    }

    /// The receiver of a flow of ours has written a status that concerns its sender.
    pub(super) fn handle_flow_status(&self, link: &LinkCell, slot: u16) {
        let Some(LinkFlow::Sending(flow)) = self.flow_at(link, slot) else { return };
        self.refresh_sender(&mut flow.inner.lock());
        self.sink().flow_changed(&flow);
    }

    //= spec §10.6.5
    //# Either side ends a flow by CLOSE. The slot is free once both have sent it. A receiver keeps what was in the ring.
    /// A peer does not use a slot any more, if it is a flow's.
    pub(super) fn handle_flow_closed(&self, link: &LinkCell, slot: u16) {
        match self.flow_at(link, slot) {
            Some(LinkFlow::Sending(flow)) => {
                let mut inner = flow.inner.lock();
                //= spec §10.6.6
                //# A sender that has the receiver's CLOSE reads the status, and sends by the kernel what was not taken
                //# before a sleep.
                self.refresh_sender(&mut inner);
                let Sending { place: Place::On(on), counts, .. } = &mut *inner else { return };
                on.0.peer_has_closed = true;
                counts.lost += on.1.close();
                let ends = self.close_seat(&mut on.0);
                self.free_seat_if(ends, &mut inner.place);
                drop(inner);
                self.sink().flow_changed(&flow);
            }
            Some(LinkFlow::Receiving(flow)) => {
                let mut inner = flow.inner.lock();
                //= spec §10.6.6
                //# A receiver that gets CLOSE keeps what is in the ring, writes its status, and then sends its own CLOSE.
                inner.keep_rest();
                self.report(&mut inner, Report::Silent);
                if let Some(seat) = &mut inner.seat {
                    seat.peer_has_closed = true;
                }
                self.close_receiver(&mut inner);
            }
            None => {}
        }
    }

    /// A link is dead: its flows are over.
    pub(super) fn end_flows_on(&self, qp: QueuePairId) {
        let mut flows = self.flows.lock();
        let slots: Vec<_> = flows.on_links.range((qp, 0)..=(qp, u16::MAX)).map(|(at, _)| *at).collect();
        let ended: Vec<_> = slots.iter().filter_map(|at| flows.on_links.remove(at)).collect();
        drop(flows);
        for flow in ended {
            match flow {
                LinkFlow::Sending(flow) => {
                    let mut inner = flow.inner.lock();
                    self.refresh_sender(&mut inner);
                    if let Place::On(mut on) = std::mem::replace(&mut inner.place, Place::Gone) {
                        inner.counts.lost += on.1.close();
                    }
                    drop(inner);
                    self.sink().flow_changed(&flow);
                }
                LinkFlow::Receiving(flow) => {
                    let mut inner = flow.inner.lock();
                    inner.keep_rest();
                    inner.seat = None;
                }
            }
        }
    }
}

fn descriptor(region: &Region, ring_len: u32) -> RingDescriptor {
    RingDescriptor { rkey: region.remote.rkey, base: region.remote.base, ring_len }
}
