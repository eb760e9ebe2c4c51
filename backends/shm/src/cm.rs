//! Connecting: processes into pairs, and queue pairs within a pair. Control path.
//!
//! A pair begins with a socket: the connecting side sends `Hello` with its doorbell page, the accepting side answers
//! `Welcome` with the segment and its own. From then on the socket carries `Request`, `Accept`, `Reject`, `Close`, and
//! wake-ups: `Wake` wakes a queue of the peer's, which answers with the queue's descriptor (`WakeFd`), so that the next
//! wake-up goes past the socket. The end of the socket is the death of the peer.
//!
//! Invariants:
//! * lock order: [`Manager`], then a pair's `Control`; never the other way, and no `announce_peer` under `Manager`;
//! * nothing here blocks: sockets are non-blocking, packets that do not fit wait in `outgoing` until there is room;
//! * an invalid packet from a peer ends its pair, and nothing else;
//! * both sides compare the peer's credentials with their own before they send or trust anything, and the process at
//!   the other end must be the one that the table names.
//!
//! Two processes that connect to each other at the same moment get two pairs; either serves.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::*;

use netacc_device::{
    CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, PeerAddress, Receives, RemoteRegion,
    MAX_PRIVATE_DATA,
};

use crate::alloc::Buddy;
use crate::config::MIN_SEGMENT_BYTES;
use crate::device::ShmDevice;
use crate::layout::{DOORBELL_BYTES, SLAB_OFFSET};
use crate::limits;
use crate::manager::{Manager, KICK, LISTENER, PROBE};
use crate::map::Range;
use crate::pair::{Control, Here, PairSlot, Phase, QpControl, Waiting, DEAD, FREE, HANDSHAKE, LIVE};
use crate::pairs::qp_id;
use crate::qp::{self, QpLocal, DOWN};
use crate::rendezvous;
use crate::sys;
use crate::wire::Message;

/// Accepted sockets that have not sent `Hello`; the oldest is closed when another comes. Arbitrary.
const MAX_STRANGERS: usize = 64;
/// Packets taken from one socket before the others get their turn.
const BATCH: usize = 64;
/// Packets that wait for a peer that does not read. More than one per queue pair and kind cannot be needed.
const MAX_OUTGOING: usize = 4 * crate::layout::QPS;

/// The peer broke the protocol, or a resource for it is missing: its pair ends.
struct Violation;

impl ConnectionManager for ShmDevice {
    fn address(&self) -> PeerAddress {
        self.rendezvous.address()
    }

    fn connect_with(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
        receives: Receives,
    ) -> Result<ConnectionId, CmError> {
        receives.check(false)?;
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(CmError::Exhausted("private data"));
        }
        if !self.has_queue(cq.0 as usize) {
            return Err(CmError::Exhausted("completion queue of that number"));
        }
        let cm = &mut *self.cm.lock();
        let slot = match cm.pairs.get(&peer).and_then(|&p| self.pairs.get(p as usize)) {
            Some(slot) => slot,
            None => self.begin_pair(cm, peer)?,
        };
        let id = cm.next_id();
        let control = &mut *slot.control.lock();
        let waiting = Waiting { id, cq: cq.0, region_len, private_data: private_data.to_vec() };
        match slot.state.load(Acquire) {
            LIVE => self.request(slot, control, waiting)?,
            _ => control.waiting.push(waiting),
        }
        Ok(id)
    }

    fn accept_with(
        &self,
        id: ConnectionId,
        cq: CompletionQueueId,
        region_len: usize,
        receives: Receives,
    ) -> Result<(), CmError> {
        receives.check(false)?;
        if !self.has_queue(cq.0 as usize) {
            return Err(CmError::Exhausted("completion queue of that number"));
        }
        let mut cm = self.cm.lock();
        let (pair, index) = cm.incoming.remove(&id).ok_or(CmError::Unreachable)?;
        let slot = self.pairs.get(pair as usize).ok_or(CmError::Unreachable)?;
        let control = &mut *slot.control.lock();
        let peer = control.peer.ok_or(CmError::Unreachable)?;
        let Ok(local) = slot.alloc_region(control, index, region_len) else {
            control.release_index(index);
            self.send(slot, control, Message::Reject { qp: index }, &[]);
            return Err(CmError::MemoryLimit);
        };
        let qp = control.qps.get_mut(&index).filter(|q| q.phase == Phase::Incoming(id)).ok_or(CmError::Unreachable)?;
        let remote = qp.theirs.take().ok_or(CmError::Unreachable)?;
        qp.phase = Phase::Open;
        qp::reset(slot.rx().qp(usize::from(index)), cq.0);
        let generation = slot.qp_or_new(index).open(&slot.wiring(index, cq.0));
        self.send(slot, control, Message::Accept { qp: index, region: local.remote }, &[]);
        let qp = qp_id(slot.index, index.into(), generation);
        cm.events.push_back(CmEvent::Established { id, qp, peer, local, remote });
        sys::ring(self.kick());
        Ok(())
    }

    fn reject(&self, id: ConnectionId) {
        let mut cm = self.cm.lock();
        let Some((pair, index)) = cm.incoming.remove(&id) else { return };
        let Some(slot) = self.pairs.get(pair as usize) else { return };
        let control = &mut *slot.control.lock();
        if control.qps.get(&index).is_some_and(|q| q.phase == Phase::Incoming(id)) {
            control.release_index(index);
            self.send(slot, control, Message::Reject { qp: index }, &[]);
        }
    }

    fn poll_event(&self) -> Option<CmEvent> {
        let cm = &mut *self.cm.lock();
        if cm.events.is_empty() {
            self.progress(cm);
        }
        cm.events.pop_front()
    }

    fn event_fds(&self) -> Vec<RawFd> {
        vec![self.epoll()]
    }
}

impl ShmDevice {
    /// Wakes the threads that sleep on a queue of the peer's, without its wake descriptor.
    pub(crate) fn wake_by_socket(&self, slot: &PairSlot, cq: usize) {
        let control = &mut *slot.control.lock();
        let same = |m: &Message| matches!(m, Message::Wake { cq: other, .. } if usize::from(*other) == cq);
        // One that still waits for room is enough; so a peer that reads nothing does not get ever more packets.
        if slot.state.load(Acquire) == LIVE && !control.outgoing.iter().any(|(message, _)| same(message)) {
            let wants_fd = self.descriptors.may_have_wakes() && self.may_open(1);
            self.send(slot, control, Message::Wake { cq: cq as u8, wants_fd }, &[]);
        }
    }

    /// The peer has woken a queue of ours, and perhaps wants its wake descriptor.
    fn woken(&self, slot: &PairSlot, cq: usize, wants_fd: bool) -> Result<(), Violation> {
        if !self.has_queue(cq) {
            return Err(Violation);
        }
        self.ring_self(cq);
        if let Some(fd) = self.channel(cq).filter(|_| wants_fd) {
            self.send(slot, &mut slot.control.lock(), Message::WakeFd { cq: cq as u8 }, &[fd]);
        }
        Ok(())
    }

    /// Ends all pairs, before the device gives back its descriptors.
    pub(crate) fn kill_all(&self, cm: &mut Manager) {
        for slot in self.pairs.iter() {
            if matches!(slot.state.load(Acquire), LIVE | HANDSHAKE) {
                self.kill(cm, slot);
            }
        }
    }

    /// Destroys our end of an open queue pair.
    pub(crate) fn destroy(&self, slot: &PairSlot, index: u16, local: &QpLocal) {
        {
            let control = &mut *slot.control.lock();
            let Some(qp) = control.qps.get_mut(&index) else { return };
            if std::mem::replace(&mut qp.here, Here::Closed) != Here::Open {
                return;
            }
            local.down.store(DOWN, Release);
            // Before the regions go: a peer that misses one must be able to find the reason.
            local.tx().close.closed.store(1, SeqCst);
            qp.regions.keys().for_each(|&key| slot.revoke(key));
            local.close();
        }
        // No lock held: this may have to find the peer's wake descriptor.
        self.announce_peer(slot, index.into(), local);
        self.settle(slot, &mut slot.control.lock(), index);
    }

    /// Tells the peer once nothing here uses the memory of a destroyed queue pair any more. Frees the queue pair's own
    /// memory and its index once neither side does.
    fn settle(&self, slot: &PairSlot, control: &mut Control, index: u16) {
        let Some(qp) = control.qps.get_mut(&index).filter(|qp| qp.is_abandoned()) else { return };
        let news = std::mem::replace(&mut qp.here, Here::Left) == Here::Closed;
        let over = qp.closed_there;
        let live = slot.state.load(Acquire) == LIVE;
        if news && live {
            self.send(slot, control, Message::Close { qp: index }, &[]);
        }
        if over {
            control.release_index(index);
            slot.trim(control, self.config.idle_bytes);
        }
        if !live {
            retire(slot, control);
        }
    }

    /// Settles all queue pairs whose last region or window has gone since.
    fn settle_abandoned(&self) {
        if !self.leases_ended.swap(false, AcqRel) {
            return;
        }
        for slot in self.pairs.iter() {
            let control = &mut *slot.control.lock();
            let abandoned = control.qps.iter().filter(|(_, qp)| qp.here == Here::Closed && qp.is_abandoned());
            let abandoned: Vec<u16> = abandoned.map(|(index, _)| *index).collect();
            abandoned.into_iter().for_each(|index| self.settle(slot, control, index));
        }
    }

    fn progress(&self, cm: &mut Manager) {
        self.settle_abandoned();
        let mut tags = [0u64; 32];
        let ready = sys::epoll_ready(self.epoll(), &mut tags);
        for &tag in &tags[..ready] {
            match tag {
                LISTENER => self.accept_sockets(cm),
                KICK => {
                    sys::drain(self.kick());
                    self.prove_wanted(cm);
                }
                tag => {
                    let Some(slot) = self.pairs.get((tag & !PROBE) as usize) else { continue };
                    if tag & PROBE == 0 {
                        self.pump(cm, slot);
                    } else {
                        self.pump_probe(slot);
                    }
                }
            }
        }
    }

    /// Whether a process may connect to us.
    fn admits(&self, fd: RawFd) -> Option<sys::Peer> {
        let peer = sys::peer(fd, self.config.group.is_some()).ok()?;
        let member = |gid| peer.gid == gid || peer.groups.contains(&gid);
        (peer.uid == sys::euid() || self.config.group.is_some_and(member)).then_some(peer)
    }

    fn accept_sockets(&self, cm: &mut Manager) {
        for _ in 0..BATCH {
            let Ok(fd) = sys::accept(self.listener()) else { return };
            if self.admits(fd.as_raw_fd()).is_none() {
                continue;
            }
            let Ok(slot) = self.free_slot() else { continue };
            if self.occupy(slot, fd, None).is_err() {
                continue;
            }
            cm.strangers.push_back(slot.index);
            if cm.strangers.len() > MAX_STRANGERS {
                if let Some(oldest) = cm.strangers.pop_front().and_then(|p| self.pairs.get(p as usize)) {
                    self.kill(cm, oldest);
                }
            }
        }
    }

    /// Begins a pair with a process that we want to connect to.
    pub(crate) fn begin_pair<'a>(&'a self, cm: &mut Manager, peer: PeerAddress) -> Result<&'a PairSlot, CmError> {
        let process = self.rendezvous.process(peer).ok_or(CmError::Unreachable)?;
        let fd = match self.rendezvous.names.connect(&process) {
            Ok(fd) => fd,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(CmError::Exhausted("peer's backlog")),
            Err(_) => return Err(CmError::Unreachable),
        };
        match self.admits(fd.as_raw_fd()) {
            Some(p) if self.rendezvous.names.fits(p.pid, &process) => {}
            _ => return Err(CmError::NotAdmitted),
        }
        let slot = self.free_slot().map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory => CmError::MemoryLimit,
            _ => CmError::Exhausted("pair of processes"),
        })?;
        self.occupy(slot, fd, Some(peer)).map_err(|source| CmError::Os { operation: "epoll_ctl", source })?;
        cm.pairs.insert(peer, slot.index);
        let hello = Message::Hello {
            slot: self.rendezvous.slot,
            token: self.rendezvous.token,
            segment_bytes: slot.range.segment_bytes(),
        };
        self.send(slot, &mut slot.control.lock(), hello, &[self.doorbell_fd()]);
        Ok(slot)
    }

    /// A slot without a pair.
    fn free_slot(&self) -> std::io::Result<&PairSlot> {
        let free = |p: &&PairSlot| p.state.load(Acquire) == FREE && !p.range.is_busy();
        // Its socket, and one wake descriptor of the peer's.
        if !self.may_open(2) {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        if let Some(slot) = self.pairs.iter().find(free) {
            return Ok(slot);
        }
        let segment_bytes = self.config.segment().min(limits::segment_bytes());
        if segment_bytes < MIN_SEGMENT_BYTES {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        let segment_bytes = 1 << segment_bytes.ilog2();
        self.pairs.push(|index| Ok(PairSlot::new(index, Range::reserve(segment_bytes, MIN_SEGMENT_BYTES)?)))
    }

    /// Puts a fresh socket into a free slot; `connecting` names the peer when we connect.
    fn occupy(&self, slot: &PairSlot, fd: OwnedFd, connecting: Option<PeerAddress>) -> std::io::Result<()> {
        sys::epoll_set(self.epoll(), true, fd.as_raw_fd(), slot.index.into(), false)?;
        let control = &mut *slot.control.lock();
        *control = Control::new(self.leases_ended.clone());
        control.peer = connecting;
        self.record_own(slot, connecting);
        control.connecting = connecting.is_some();
        slot.sock.store(fd.into_raw_fd(), Release);
        slot.state.store(HANDSHAKE, Release);
        Ok(())
    }

    /// Takes the packets of a pair's socket.
    fn pump(&self, cm: &mut Manager, slot: &PairSlot) {
        self.flush(slot, &mut slot.control.lock());
        for _ in 0..BATCH {
            let sock = slot.sock.load(Acquire);
            if sock < 0 {
                return;
            }
            let packet = match sys::receive(sock) {
                Ok(packet) if packet.whole && !packet.bytes.is_empty() => packet,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // The end, or a packet that no honest peer sends.
                _ => return self.kill(cm, slot),
            };
            let outcome = match Message::decode(&packet.bytes) {
                // The program may have no descriptor left. The peer is woken by this socket as before.
                Some(Message::WakeFd { .. }) if packet.lacks_fds => Ok(()),
                _ if packet.lacks_fds => Err(Violation),
                Some(message) => self.handle(cm, slot, message, packet.fds),
                None => Err(Violation),
            };
            if outcome.is_err() {
                return self.kill(cm, slot);
            }
        }
    }

    fn handle(&self, cm: &mut Manager, slot: &PairSlot, message: Message, fds: Vec<OwnedFd>) -> Result<(), Violation> {
        let live = slot.state.load(Acquire) == LIVE;
        let connecting = slot.control.lock().connecting;
        match message {
            Message::Hello { slot: process, token, segment_bytes } if !live && !connecting => {
                cm.strangers.retain(|&p| p != slot.index);
                self.hello(cm, slot, process, token, segment_bytes, fds)
            }
            Message::Welcome { segment_bytes } if !live && connecting => self.welcome(cm, slot, segment_bytes, fds),
            Message::Wake { cq, wants_fd } if live => self.woken(slot, cq.into(), wants_fd),
            Message::WakeFd { cq } if live => self.take_channel(slot, cq.into(), fds),
            Message::Request { qp, region, private_data } if live => self.requested(cm, slot, qp, region, private_data),
            Message::Accept { qp, region } if live => self.accepted(cm, slot, qp, region),
            Message::Reject { qp } if live => {
                let control = &mut *slot.control.lock();
                let phase = control.qps.get(&qp).map(|q| q.phase);
                let Some(Phase::Requested(id, _)) = phase else { return Err(Violation) };
                control.release_index(qp);
                cm.failed(id, CmError::NotAdmitted);
                Ok(())
            }
            Message::Close { qp } if live => self.closed(slot, qp),
            _ if live && self.spans_namespaces() => self.handle_proof(cm, slot, message),
            _ => Err(Violation),
        }
    }

    fn handle_proof(&self, cm: &mut Manager, slot: &PairSlot, message: Message) -> Result<(), Violation> {
        match message {
            Message::Probe { address } => self.probe(slot, address),
            Message::Probing { address, port } => self.probing(cm, slot, address, port),
            Message::Probed { nonce } => self.probed(cm, slot, nonce),
            _ => return Err(Violation),
        }
        Ok(())
    }

    /// The peer of a pair has been identified.
    fn record_own(&self, slot: &PairSlot, peer: Option<PeerAddress>) {
        slot.own.store(peer == Some(self.rendezvous.address()), Relaxed);
    }

    fn hello(
        &self,
        cm: &mut Manager,
        slot: &PairSlot,
        process: u32,
        token: [u64; 2],
        segment_bytes: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Violation> {
        let [doorbell] = &fds[..] else { return Err(Violation) };
        let process = self.rendezvous.table.process(process).filter(|p| p.token == token).ok_or(Violation)?;
        let pid = sys::peer(slot.sock.load(Acquire), false).map_err(|_| Violation)?.pid;
        if !self.rendezvous.names.fits(pid, &process) || !segment_fits(segment_bytes) {
            return Err(Violation);
        }
        let bytes = segment_bytes.min(slot.range.segment_bytes());
        let segment = sys::memfd(c"netacc-pair", bytes).map_err(|_| Violation)?;
        sys::seal(segment.as_raw_fd(), false).map_err(|_| Violation)?;
        self.attach(slot, &segment, bytes, doorbell, false)?;
        let peer = rendezvous::address(&process);
        let control = &mut *slot.control.lock();
        control.peer = Some(peer);
        self.record_own(slot, control.peer);
        let welcome = Message::Welcome { segment_bytes: bytes };
        let fds = [segment.as_raw_fd(), self.doorbell_fd()];
        // Not queued: the segment's descriptor does not outlive this call.
        let sent = sys::send(slot.sock.load(Acquire), &welcome.encode(), &fds);
        sent.map_err(|_| Violation)?;
        slot.state.store(LIVE, Release);
        cm.pairs.entry(peer).or_insert(slot.index);
        Ok(())
    }

    fn welcome(&self, cm: &mut Manager, slot: &PairSlot, bytes: u64, fds: Vec<OwnedFd>) -> Result<(), Violation> {
        let [segment, doorbell] = &fds[..] else { return Err(Violation) };
        if !segment_fits(bytes) || sys::sealed_size(segment.as_raw_fd()).map_err(|_| Violation)? != bytes {
            return Err(Violation);
        }
        self.attach(slot, segment, bytes, doorbell, true)?;
        let control = &mut *slot.control.lock();
        slot.state.store(LIVE, Release);
        for waiting in std::mem::take(&mut control.waiting) {
            let id = waiting.id;
            if let Err(error) = self.request(slot, control, waiting) {
                cm.failed(id, error);
            }
        }
        if self.spans_namespaces() {
            sys::ring(self.kick());
        }
        Ok(())
    }

    fn attach(
        &self,
        slot: &PairSlot,
        segment: &OwnedFd,
        bytes: u64,
        doorbell: &OwnedFd,
        connecting: bool,
    ) -> Result<(), Violation> {
        if sys::sealed_size(doorbell.as_raw_fd()).map_err(|_| Violation)? < DOORBELL_BYTES as u64 {
            return Err(Violation);
        }
        let mapping = slot.range.attach(segment.as_raw_fd(), bytes, doorbell.as_raw_fd()).map_err(|_| Violation)?;
        slot.wire(bytes, connecting);
        let control = &mut *slot.control.lock();
        control.mapping = Some(mapping);
        let config = &self.config;
        control.buddy = Some(Buddy::new(bytes / 2 - SLAB_OFFSET, config.mr_min_inc_bytes, config.mr_max_inc_bytes));
        Ok(())
    }

    /// Keeps the peer's wake descriptor of a queue.
    fn take_channel(&self, slot: &PairSlot, cq: usize, mut fds: Vec<OwnedFd>) -> Result<(), Violation> {
        let fd = fds.pop().filter(|fd| fds.is_empty() && sys::is_eventfd(fd.as_raw_fd())).ok_or(Violation)?;
        let _guard = slot.wake_fds.lock();
        let place = slot.wake.get(cq).ok_or(Violation)?;
        // Requested twice, or given back meanwhile: this one is closed.
        if place.load(Acquire) < 0 && self.descriptors.may_have_wakes() {
            place.store(fd.into_raw_fd(), Release);
        }
        Ok(())
    }

    /// Sends a request for a queue pair over a live pair.
    fn request(&self, slot: &PairSlot, control: &mut Control, w: Waiting) -> Result<(), CmError> {
        let index = control.take_index().ok_or(CmError::Exhausted("queue pair"))?;
        qp::reset(slot.rx().qp(usize::from(index)), w.cq);
        control.qps.insert(index, QpControl::new(Phase::Requested(w.id, w.cq)));
        let Ok(first) = slot.alloc_region(control, index, w.region_len) else {
            control.release_index(index);
            return Err(CmError::MemoryLimit);
        };
        let region = first.remote;
        if let Some(qp) = control.qps.get_mut(&index) {
            qp.first = Some(first);
        }
        self.send(slot, control, Message::Request { qp: index, region, private_data: w.private_data }, &[]);
        Ok(())
    }

    fn requested(
        &self,
        cm: &mut Manager,
        slot: &PairSlot,
        index: u16,
        region: RemoteRegion,
        private_data: Vec<u8>,
    ) -> Result<(), Violation> {
        let control = &mut *slot.control.lock();
        if !control.may_request(index) {
            return Err(Violation);
        }
        let peer = control.peer.ok_or(Violation)?;
        let id = cm.next_id();
        let theirs = Some(region);
        control.qps.insert(index, QpControl { theirs, ..QpControl::new(Phase::Incoming(id)) });
        cm.incoming.insert(id, (slot.index, index));
        cm.events.push_back(CmEvent::Request { id, peer, private_data });
        Ok(())
    }

    fn accepted(&self, cm: &mut Manager, slot: &PairSlot, index: u16, remote: RemoteRegion) -> Result<(), Violation> {
        let control = &mut *slot.control.lock();
        let peer = control.peer.ok_or(Violation)?;
        let qp = control.qps.get_mut(&index).ok_or(Violation)?;
        let Phase::Requested(id, cq) = qp.phase else { return Err(Violation) };
        let local = qp.first.take().ok_or(Violation)?;
        qp.phase = Phase::Open;
        let generation = slot.qp_or_new(index).open(&slot.wiring(index, cq));
        // Everything that the peer announced before now was dropped, because there was no queue pair.
        self.announce_self(slot, index.into(), cq);
        let qp = qp_id(slot.index, index.into(), generation);
        cm.events.push_back(CmEvent::Established { id, qp, peer, local, remote });
        Ok(())
    }

    fn closed(&self, slot: &PairSlot, index: u16) -> Result<(), Violation> {
        let control = &mut *slot.control.lock();
        let qp = control.qps.get_mut(&index).ok_or(Violation)?;
        if qp.phase != Phase::Open || std::mem::replace(&mut qp.closed_there, true) {
            return Err(Violation);
        }
        self.settle(slot, control, index);
        Ok(())
    }

    /// Sends now, or as soon as there is room. A peer that never reads is cut off.
    pub(crate) fn send(&self, slot: &PairSlot, control: &mut Control, message: Message, fds: &[RawFd]) {
        control.outgoing.push_back((message, fds.to_vec()));
        self.flush(slot, control);
        if control.outgoing.len() > MAX_OUTGOING {
            // `pump` then sees the end, and may take the locks it needs.
            sys::shutdown(slot.sock.load(Acquire));
        }
    }

    fn flush(&self, slot: &PairSlot, control: &mut Control) {
        let sock = slot.sock.load(Acquire);
        if sock < 0 {
            return control.outgoing.clear();
        }
        while let Some((message, fds)) = control.outgoing.front() {
            match sys::send(sock, &message.encode(), fds) {
                Ok(()) => drop(control.outgoing.pop_front()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // The peer is gone; the end of the socket will show it.
                Err(_) => control.outgoing.clear(),
            }
        }
        let watch = !control.outgoing.is_empty();
        if watch != control.watching_output {
            control.watching_output = watch;
            // Fails only if the socket just closed.
            let _ = sys::epoll_set(self.epoll(), false, sock, slot.index.into(), watch);
        }
    }

    /// Ends a pair: the peer died, left, or misbehaved. Bytes that it had placed stay readable.
    fn kill(&self, cm: &mut Manager, slot: &PairSlot) {
        let control = &mut *slot.control.lock();
        let was_live = slot.state.load(Acquire) == LIVE;
        slot.close_fds(self.epoll());
        slot.state.store(if was_live { DEAD } else { FREE }, Release);
        cm.strangers.retain(|&p| p != slot.index);
        cm.pairs.retain(|_, p| *p != slot.index);
        if let Some(peer) = control.peer {
            self.routes.forget(peer);
        }
        cm.incoming.retain(|_, (p, _)| *p != slot.index);
        for waiting in control.waiting.drain(..) {
            cm.events.push_back(CmEvent::Failed { id: waiting.id, error: CmError::Unreachable });
        }
        control.outgoing.clear();
        control.buddy = None;
        let indices: Vec<u16> = control.qps.keys().copied().collect();
        for index in indices {
            let Some(qp) = control.qps.get_mut(&index) else { continue };
            match qp.phase {
                Phase::Requested(id, _) => {
                    cm.failed(id, CmError::Unreachable);
                    control.release_index(index);
                }
                Phase::Incoming(_) => control.release_index(index),
                Phase::Open => {
                    qp.closed_there = true;
                    if qp.here != Here::Open {
                        self.settle(slot, control, index);
                    } else if let Some(local) = slot.qp(index.into()) {
                        self.bring_down(slot, index.into(), local);
                    }
                }
            }
        }
        retire(slot, control);
    }
}

/// Frees the slot of a dead pair once no queue pair of ours is left.
fn retire(slot: &PairSlot, control: &mut Control) {
    let state = slot.state.load(Acquire);
    if matches!(state, DEAD | FREE) && control.qps.is_empty() {
        slot.state.store(FREE, Release);
        // Regions may still hold the mapping; the range is busy until they release it.
        control.mapping = None;
        control.buddy = None;
    }
}

fn segment_fits(bytes: u64) -> bool {
    bytes.is_power_of_two() && (MIN_SEGMENT_BYTES..=crate::config::MAX_SEGMENT_BYTES).contains(&bytes)
}
