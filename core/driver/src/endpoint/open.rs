//! The opening of streams on links.
//!
//! A stream that is to be promoted waits for a link to its peer: one with room, a cached one, or one that is made for
//! it. Then it is opened there, or it stays on TCP and receives a reason.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use netacc_device::{DeviceError, FourTuple, Instant, PeerAddress, QueuePairId, Region, RemoteRegion, UNKNOWN_STREAM};
use netacc_proto::{
    Accept, Markers, Open, Reason, RingDescriptor, SlotId, WireTuple, CREDIT_BLOCK_LEN, LINK_REGION_LEN,
};

use super::promotions::{Peer, Promotions, Usability, Waiting};
use super::reasons::{reason_of, reason_without_region};
use super::sharing::Distribution;
use super::{rings, Attempt, Endpoint};
use crate::counted::Tallied;
use crate::link::LinkRx;
use crate::stream::{Attachment, Listed, LockedStream, Outgoing, Referral};
use crate::{Counters, LinkCell, StreamCell};

impl Endpoint {
    /// The peer has referred a stream, which has left its link, to a process that is at `peer`.
    pub(crate) fn follow_referral(&self, cell: &Arc<StreamCell>, peer: PeerAddress) {
        cell.lock(self).change(|stream| stream.inner.attempt.referral = Referral::Followed);
        self.promotions.lock().add(peer, cell, UNKNOWN_STREAM);
        self.place(peer);
    }

    /// Gives waiting streams a link: one with room, a cached one, or a new one. Returns when to call it again even if
    /// nothing happens.
    pub(crate) fn place_waiting(&self, now: Instant) -> Option<Instant> {
        let recount = |address| self.promotions.lock().peer(address).and_then(|peer| peer.recount(now));
        let unfinished = self.promotions.lock().unfinished();
        let again = unfinished.into_iter().filter_map(|address| {
            recount(address);
            self.place(address);
            recount(address)
        });
        again.min()
    }

    /// As [`place_waiting`](Endpoint::place_waiting), for streams to one peer.
    pub(super) fn place(&self, address: PeerAddress) {
        let mut promotions = self.promotions.lock();
        // Not for each stream: dozens of links may be in the making. One that is ready later is announced.
        let mut ready = promotions.peer(address).map_or_else(VecDeque::new, |peer| self.take_ready(peer));
        // One at a time: a stream takes its room on a link when it is opened there.
        while let Some(link) = self.link_for_first(&mut promotions, address, &mut ready) {
            let Some(waiting) = promotions.pop(address) else { break };
            let opening = promotions.peer(address).map(|peer| peer.open_one());
            drop(promotions);
            let stream = waiting.stream.clone();
            if let Err(reason) = self.open_on(&link, waiting, opening) {
                self.handle_no_link(&stream, reason);
                self.enqueue_idle(&link);
            }
            promotions = self.promotions.lock();
        }
        self.connect_wanted(&mut promotions, address);
        let refused = promotions.peer(address).filter(|peer| !peer.is_making()).and_then(|peer| peer.refused);
        let failed = refused.map(|reason| (reason, promotions.drain(address)));
        promotions.finish(address);
        drop(promotions);
        for qp in ready {
            // The streams that it was made for have gone.
            let link = self.links.read().get(&qp).cloned();
            link.iter().for_each(|link| self.enqueue_idle(link));
        }
        if let Some((reason, streams)) = failed {
            streams.iter().for_each(|w| self.handle_no_link(&w.stream, reason));
        }
    }

    /// The links to a peer that have become ready, unless no stream could be opened there yet.
    fn take_ready(&self, peer: &mut Peer) -> VecDeque<QueuePairId> {
        if peer.is_busy() && peer.has_waiting() {
            return VecDeque::new();
        }
        peer.take_ready(|qp| self.check_link(qp)).into()
    }

    /// A link for the stream that has waited for longest: one of `ready`, a cached one, or one with room.
    fn link_for_first(
        &self,
        promotions: &mut Promotions,
        address: PeerAddress,
        ready: &mut VecDeque<QueuePairId>,
    ) -> Option<Arc<LinkCell>> {
        let peer = promotions.peer(address)?;
        if peer.is_busy() && peer.has_waiting() {
            peer.put_back(ready.drain(..));
            return None;
        }
        if !peer.has_waiting() {
            return None;
        }
        let get = |qp: QueuePairId| self.links.read().get(&qp).cloned();
        while let Some(qp) = ready.pop_front() {
            if self.check_link(qp) == Usability::Usable {
                return get(qp);
            }
        }
        if let Some(qp) = self.cache.lock().take(address) {
            if self.check_link(qp) == Usability::Usable {
                Counters::bump(&self.counters().links_reused);
                return get(qp);
            }
        }
        let distribution = self.distribution(peer);
        let shared = peer.find_room(distribution, |qp| self.check_link(qp)).and_then(get)?;
        self.cache.lock().remove(shared.qp);
        Some(shared)
    }

    /// Begins to make the links that are wanted for the streams that wait.
    fn connect_wanted(&self, promotions: &mut Promotions, address: PeerAddress) {
        let Some(peer) = promotions.peer(address) else { return };
        for _ in 0..peer.wanted(self.distribution(peer)) {
            match self.cm().connect(address, self.control_cq(), LINK_REGION_LEN, &[]) {
                Ok(id) => {
                    self.attempts.lock().insert(id, Attempt { peer: address, connector: true });
                    peer.attempts.push(id);
                }
                Err(error) => {
                    peer.refused = Some(reason_of(&error));
                    break;
                }
            }
        }
    }

    /// How streams to a peer are distributed.
    fn distribution(&self, peer: &Peer) -> Distribution {
        let own = self.config.sharing.distribution(peer.caps(), self.order.get());
        peer.admitted().map_or(own, |most| own.at_most(most))
    }

    pub(super) fn check_link(&self, qp: QueuePairId) -> Usability {
        let links = self.links.read();
        let Some(link) = links.get(&qp).filter(|link| !link.is_dying()) else { return Usability::Unusable };
        let tx = link.tx.lock();
        match (tx.proto.is_ready(), tx.proto.has_room()) {
            (false, _) => Usability::NotReady,
            (true, true) => Usability::Usable,
            (true, false) => Usability::Unusable,
        }
    }

    /// Opens a stream on a link. `opening` counts it until the peer has answered.
    pub(super) fn open_on(
        &self,
        link: &Arc<LinkCell>,
        waiting: Waiting,
        opening: Option<Tallied>,
    ) -> Result<(), Reason> {
        let Waiting { stream: cell, hint } = &waiting;
        let mut rx = link.rx.lock();
        // It may have died since it was chosen, and then nobody would take the stream off it.
        if link.is_dead() {
            return Err(Reason::LinkFailed);
        }
        let slot = link.tx.lock().proto.alloc_slot().map_err(|_| Reason::Exhausted)?;
        let opened = self.prepare(link, cell).and_then(|Incoming { region, ring }| {
            let mut guard = cell.lock(self);
            if !guard.proto().may_promote()
                || guard.link().is_some()
                || guard.inner.closing.is_closed()
                || self.is_promotion_suspended()
            {
                drop(guard);
                link.free_region(self.device(), region);
                return Err(Reason::PeerBusy);
            }
            if let Err(reason) = guard.change(LockedStream::leave_kernel) {
                drop(guard);
                link.free_region(self.device(), region);
                return Err(reason);
            }
            guard.change(|stream| {
                let inner = &mut *stream.inner;
                inner.attached = Some(Box::new(Attachment {
                    link: link.clone(),
                    region,
                    outgoing: None,
                    _tallied: self.begin_use(&self.attached),
                }));
                inner.listed.remove(Listed::RELEASE);
                inner.attempt.opening = opening;
                put_slot(&mut rx, slot, cell);
                let tuple = wire_tuple(&cell.tuple());
                inner.proto.open(slot.0, tuple, *hint, self.nonce(), ring, markers_on(link));
                Counters::bump(&self.counters().opens_sent);
            });
            Ok(())
        });
        if opened.is_err() {
            link.tx.lock().proto.free_slot(slot);
        }
        opened
    }

    /// Memory for the bytes that the peer sends.
    fn prepare(&self, link: &LinkCell, cell: &StreamCell) -> Result<Incoming, Reason> {
        let ring_len = cell.next_ring_len(rings::ring_len(self.config.ring_len, self.attached.now()));
        let len = CREDIT_BLOCK_LEN + ring_len as usize;
        let region = link.alloc_region(self.device(), len).map_err(|e| reason_without_region(&e))?;
        let ring = RingDescriptor { rkey: region.remote.rkey, base: region.remote.base, ring_len };
        Ok(Incoming { region, ring })
    }

    /// A stream that waited for a link stays on TCP, for this reason.
    fn handle_no_link(&self, stream: &Arc<StreamCell>, reason: Reason) {
        self.counters().reason(reason);
        stream.lock(self).change(|stream| stream.inner.proto.handle_no_link(reason));
    }

    /// The address at which another process, which holds the stream that `open` requests, accepts links, if the peer
    /// may learn it.
    pub(crate) fn holder(&self, link: &LinkCell, open: &Open) -> Option<u16> {
        let tuple = four_tuple(&open.tuple)?.reversed();
        self.directory().holder(&tuple).filter(|_| self.directory().admits(link.peer, &tuple))
    }

    pub(crate) fn handle_open(
        &self,
        link: &Arc<LinkCell>,
        rx: &mut LinkRx<StreamCell>,
        open: &Open,
    ) -> Result<(), Reason> {
        //= spec §2.5.3
        //# Before it has verified the connecting side's proof, the accepting side refuses every OPEN.
        if !link.tx.lock().proto.is_admitted() {
            return Err(Reason::KeyMissing);
        }
        let cell = self.named_by(link, open)?;
        if let Some(reason) = self.suspension_reason() {
            return Err(reason);
        }
        self.sink().may_promote()?;
        if cell.is_shared() && !self.sink().holds_alone(&cell) {
            return Err(Reason::Shared);
        }
        self.free_last_attempt(link, rx, &cell);
        let slot = link.tx.lock().proto.alloc_slot().map_err(|_| Reason::Exhausted)?;
        let accepted = self.accept_on(link, rx, &cell, slot, open);
        if accepted.is_err() {
            link.tx.lock().proto.free_slot(slot);
        }
        accepted
    }

    /// The stream that an OPEN names, if this process holds it and the link's peer may have it.
    fn named_by(&self, link: &LinkCell, open: &Open) -> Result<Arc<StreamCell>, Reason> {
        //= spec §4.1.2
        //# OPEN names the anchor by its addresses; the acceptor refuses one that it does not hold.
        //= spec §4.1.3
        //# The hint 0xffffffff means that the opener does not have the acceptor's stream number; the acceptor then
        //# finds the stream by the addresses.
        let number = match open.hint {
            UNKNOWN_STREAM => four_tuple(&open.tuple).and_then(|tuple| self.directory().resolve(&tuple.reversed())),
            number => Some(number),
        };
        let number = number.ok_or(Reason::UnknownStream)?;
        let cell = self.streams.read().cells.get(number as usize).cloned().flatten();
        let cell = cell.filter(|c| wire_tuple(&c.tuple().reversed()) == open.tuple).ok_or(Reason::UnknownStream)?;
        //= spec §4.1.4
        //# An OPEN is refused on a link whose other end is not at the anchor's other address.
        if !self.directory().admits(link.peer, &cell.tuple()) {
            return Err(Reason::NotAdmitted);
        }
        Ok(cell)
    }

    /// Accepts a stream on a slot of its link. An error leaves the slot to the caller.
    fn accept_on(
        &self,
        link: &Arc<LinkCell>,
        rx: &mut LinkRx<StreamCell>,
        cell: &Arc<StreamCell>,
        slot: SlotId,
        open: &Open,
    ) -> Result<(), Reason> {
        let outgoing = self.outgoing(link, &open.ring)?;
        let Incoming { region, ring } = match self.prepare(link, cell) {
            Ok(incoming) => incoming,
            Err(reason) => {
                self.free_outgoing(link, outgoing);
                return Err(reason);
            }
        };
        let mut guard = cell.lock(self);
        let refused = guard.change(|stream| match self.accept_position(stream, link, open, slot, ring) {
            Ok(()) => {
                let inner = &mut *stream.inner;
                let outgoing = Some(outgoing);
                let _tallied = self.begin_use(&self.attached);
                inner.attached = Some(Box::new(Attachment { link: link.clone(), region, outgoing, _tallied }));
                inner.listed.remove(Listed::RELEASE);
                put_slot(rx, slot, cell);
                stream.arrived = true;
                // The peer waits for this side to see its marker. The marker must not wait for the thread that polls
                // the link, because that thread may wait for something else.
                self.enqueue_moved(cell);
                None
            }
            Err(reason) => Some((reason, region, outgoing)),
        });
        drop(guard);
        let Some((reason, region, outgoing)) = refused else { return Ok(()) };
        link.free_region(self.device(), region);
        self.free_outgoing(link, outgoing);
        Err(reason)
    }

    /// Lets the protocol accept a stream on a slot of `link`, from the positions at which its anchor is.
    fn accept_position(
        &self,
        stream: &mut LockedStream<'_>,
        link: &LinkCell,
        open: &Open,
        slot: SlotId,
        ring: RingDescriptor,
    ) -> Result<(), Reason> {
        let current = stream.link().map(|current| current.qp);
        match current {
            Some(current) => {
                if current != link.qp {
                    self.record_contest(stream, current);
                }
                Err(Reason::PeerBusy)
            }
            None if stream.inner.closing.is_closed() => Err(Reason::UnknownStream),
            None if !stream.inner.proto.may_promote() => Err(Reason::PeerBusy),
            None => {
                stream.confirm_addresses()?;
                stream.leave_kernel()?;
                let markers = if stream.is_read_by_kernel() { Markers::Written } else { markers_on(link) };
                stream.inner.proto.accept(open, slot.0, self.nonce(), ring, markers)
            }
        }
    }

    pub(crate) fn handle_accept(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>, accept: &Accept) {
        let Some(Some(cell)) = rx.slots.get(usize::from(accept.peer_slot)) else { return };
        let outgoing = self.outgoing(link, &accept.ring);
        let mut guard = cell.lock(self);
        guard.change(|stream| {
            match outgoing {
                Ok(outgoing) => {
                    if let Some(at) = &mut stream.inner.attached {
                        at.outgoing = Some(outgoing);
                    }
                }
                Err(_) => stream.inner.proto.void_pledge(),
            }
            stream.require_marker();
            stream.inner.proto.handle_accept(accept);
            stream.arrived = true;
            stream.progress_anchor(false);
        });
    }

    /// Gives the resources of [`outgoing`](Endpoint::outgoing) back to the device of a live link.
    pub(crate) fn free_outgoing(&self, link: &LinkCell, outgoing: Outgoing) {
        if let Some(staging) = outgoing.staging {
            link.free_region(self.device(), staging);
        }
    }

    /// Why a stream stays on TCP that has no window onto the peer's ring. Counts a violation.
    fn reason_without_window(&self, error: &DeviceError) -> Reason {
        match error {
            DeviceError::NotRegistered => {
                //= spec §1.4
                //# A violation costs the stream: the detecting side aborts it and counts the event.
                Counters::bump(&self.counters().violations);
                Reason::Violation
            }
            // The peer may end a link, and its ring with it, at any time after it has named the ring.
            _ => Reason::LinkFailed,
        }
    }

    /// The place where bytes to the peer's ring are written.
    fn outgoing(&self, link: &LinkCell, ring: &RingDescriptor) -> Result<Outgoing, Reason> {
        let len = CREDIT_BLOCK_LEN as u32 + ring.ring_len;
        if link.caps.peer_memory {
            let remote = RemoteRegion { rkey: ring.rkey, base: ring.base, len };
            let window = self.device().window(link.qp(), remote).map_err(|e| self.reason_without_window(&e))?;
            return Ok(Outgoing::mapped(*ring, window.memory));
        }
        let staging = link.alloc_region(self.device(), len as usize);
        let staging = staging.map_err(|e| reason_without_region(&e))?;
        Ok(Outgoing::staged(*ring, staging))
    }
}

/// Our region for a stream, and the descriptor of its ring that the peer receives.
struct Incoming {
    region: Region,
    ring: RingDescriptor,
}

/// Whether markers may be put off on `link`.
fn markers_on(link: &LinkCell) -> Markers {
    if link.caps.placement_is_delivery {
        Markers::PutOff
    } else {
        Markers::Written
    }
}

fn put_slot(rx: &mut LinkRx<StreamCell>, slot: SlotId, cell: &Arc<StreamCell>) {
    let i = usize::from(slot.0);
    if rx.slots.len() <= i {
        rx.slots.resize(i + 1, None);
    }
    rx.slots[i] = Some(cell.clone());
}

pub(super) fn wire_tuple(tuple: &FourTuple) -> WireTuple {
    fn wire(addr: SocketAddr) -> ([u8; 16], u16) {
        let ip = match addr.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        (ip.octets(), addr.port())
    }
    WireTuple { local: wire(tuple.local), remote: wire(tuple.remote) }
}

/// The inverse of [`wire_tuple`]. `None`: one end is IPv4 and the other is not.
pub(super) fn four_tuple(tuple: &WireTuple) -> Option<FourTuple> {
    let end = |(ip, port): ([u8; 16], u16)| SocketAddr::new(IpAddr::from(ip).to_canonical(), port);
    let (local, remote) = (end(tuple.local), end(tuple.remote));
    (local.is_ipv4() == remote.is_ipv4()).then_some(FourTuple { local, remote })
}
