//! Connecting queue pairs of a fabric, and its directory of streams.

use std::os::fd::RawFd;

use super::link::{End, Life, Link};
use super::state::{LinkId, Place, State};
use super::{Delivery, DeliveryMode, DeviceId, LoopbackDevice, Refusal};
use crate::{
    CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, Directory, DirectoryError, FourTuple,
    PeerAddress, QueuePairId, Receives, Region, RemoteRegion, MAX_PRIVATE_DATA,
};

/// An attempt that was neither accepted nor refused.
pub(super) struct Attempt {
    initiator: DeviceId,
    initiator_cq: CompletionQueueId,
    initiator_region_len: u32,
    initiator_receives: Receives,
    target: DeviceId,
}

/// Something a connection manager is to learn. Those of one attempt and device keep their order.
pub(super) struct CmNotice {
    pub(super) to: DeviceId,
    pub(super) id: ConnectionId,
    kind: NoticeKind,
}

enum NoticeKind {
    Request { peer: PeerAddress, private_data: Vec<u8> },
    Established { qp: QueuePairId, peer: PeerAddress, local: Region, remote: RemoteRegion },
    Failed(Refusal),
}

// The two ends of an attempt know it by different numbers, as they would on any real backend.
fn initiator_id(attempt: u64) -> ConnectionId {
    ConnectionId(attempt * 2)
}

fn target_id(attempt: u64) -> ConnectionId {
    ConnectionId(attempt * 2 + 1)
}

impl ConnectionManager for LoopbackDevice {
    fn address(&self) -> PeerAddress {
        self.id.address()
    }

    fn connect_with(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
        receives: Receives,
    ) -> Result<ConnectionId, CmError> {
        self.fabric.with(|s| {
            s.check_receives(self.id, receives)?;
            if private_data.len() > MAX_PRIVATE_DATA {
                return Err(CmError::Exhausted("private data"));
            }
            let region_len = s.check_room(self.id, cq, region_len)?;
            let attempt = s.next_attempt;
            s.next_attempt += 1;
            let id = initiator_id(attempt);
            match s.admission(peer) {
                Err(refusal) => s.notify(self.id, id, NoticeKind::Failed(refusal)),
                Ok(target) => {
                    let asked = Attempt {
                        initiator: self.id,
                        initiator_cq: cq,
                        initiator_region_len: region_len,
                        initiator_receives: receives,
                        target,
                    };
                    s.attempts.insert(attempt, asked);
                    let mut private_data = private_data.to_vec();
                    if s.config(self.id).pad_private_data {
                        private_data.resize(MAX_PRIVATE_DATA, 0);
                    }
                    let peer = self.id.address();
                    s.notify(target, target_id(attempt), NoticeKind::Request { peer, private_data });
                }
            }
            Ok(id)
        })
    }

    fn accept_with(
        &self,
        id: ConnectionId,
        cq: CompletionQueueId,
        region_len: usize,
        receives: Receives,
    ) -> Result<(), CmError> {
        self.fabric.with(|s| {
            s.check_receives(self.id, receives)?;
            let attempt = s.open_attempt(self.id, id).ok_or(CmError::Unreachable)?;
            let region_len = s.check_room(self.id, cq, region_len)?;
            let Some(asked) = s.attempts.remove(&attempt) else { return Ok(()) };
            let initiator = asked.initiator;
            if s.live(initiator).is_none() {
                s.notify(self.id, id, NoticeKind::Failed(Refusal::Unreachable));
                return Ok(());
            }
            // Its memory may have gone to something else since it asked.
            if s.check_room(initiator, asked.initiator_cq, asked.initiator_region_len as usize).is_err() {
                s.notify(self.id, id, NoticeKind::Failed(Refusal::Exhausted));
                s.notify(initiator, initiator_id(attempt), NoticeKind::Failed(Refusal::Exhausted));
                return Ok(());
            }
            let near = (initiator, asked.initiator_cq);
            let qps = s.connect_pair(near, (self.id, cq));
            let theirs = s.device_mut(initiator).register(qps[0], asked.initiator_region_len);
            let ours = s.device_mut(self.id).register(qps[1], region_len);
            let (their_remote, our_remote) = (theirs.remote, ours.remote);
            s.receive_into(initiator, qps[0], asked.initiator_receives, their_remote);
            s.receive_into(self.id, qps[1], receives, our_remote);
            let peer = initiator.address();
            s.notify(self.id, id, NoticeKind::Established { qp: qps[1], peer, local: ours, remote: their_remote });
            let peer = self.id.address();
            let established = NoticeKind::Established { qp: qps[0], peer, local: theirs, remote: our_remote };
            s.notify(initiator, initiator_id(attempt), established);
            Ok(())
        })
    }

    fn reject(&self, id: ConnectionId) {
        self.fabric.with(|s| {
            let Some(attempt) = s.open_attempt(self.id, id) else { return };
            if let Some(refused) = s.attempts.remove(&attempt) {
                s.notify(refused.initiator, initiator_id(attempt), NoticeKind::Failed(Refusal::NotAdmitted));
            }
        });
    }

    fn poll_event(&self) -> Option<CmEvent> {
        self.fabric.with(|s| s.device_mut(self.id).events.pop_front())
    }

    fn event_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Directory for LoopbackDevice {
    fn trusts(&self, _: &FourTuple) -> bool {
        true
    }

    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        self.fabric.with(|s| {
            if s.live(self.id).is_none() {
                return Err(DirectoryError::NotServed);
            }
            s.directory.publish(tuple, self.id, stream)
        })
    }

    fn withdraw(&self, tuple: &FourTuple, stream: u32) {
        self.fabric.with(|s| s.directory.withdraw(tuple, self.id, stream));
    }

    fn lookup(&self, tuple: &FourTuple) -> Option<(PeerAddress, u32)> {
        self.fabric.with(|s| s.directory.lookup(tuple).map(|(id, stream)| (id.address(), stream)))
    }
}

impl State {
    /// A device can have one more queue pair, on that completion queue and with a first region of that length.
    fn check_room(&self, id: DeviceId, cq: CompletionQueueId, region_len: usize) -> Result<u32, CmError> {
        let device = self.live(id).ok_or(CmError::Exhausted("devices"))?;
        if cq.0 as usize >= device.cqs.len() {
            return Err(CmError::Exhausted("completion queues"));
        }
        let connected =
            self.links.values().flat_map(|l| &l.ends).filter(|e| e.device == id && e.life != Life::Destroyed);
        let connecting = self.attempts.values().filter(|a| a.initiator == id);
        if connected.count() + connecting.count() >= device.config.max_qp as usize {
            return Err(CmError::Exhausted("queue pairs"));
        }
        let free = device.config.memory_limit_bytes.saturating_sub(device.registered_bytes);
        u32::try_from(region_len).ok().filter(|_| region_len <= free).ok_or(CmError::MemoryLimit)
    }

    fn check_receives(&self, id: DeviceId, receives: Receives) -> Result<(), CmError> {
        receives.check(self.config(id).capabilities.sends)
    }

    fn receive_into(&mut self, id: DeviceId, qp: QueuePairId, receives: Receives, region: RemoteRegion) {
        let end = self.place(id, qp).and_then(|at| Some(&mut self.links.get_mut(&at.link)?.ends[at.side]));
        if let Some(end) = end.filter(|_| receives == Receives::FirstRegion) {
            end.into = Some(region);
        }
    }

    /// The device behind an address, if it lets connects through.
    fn admission(&mut self, peer: PeerAddress) -> Result<DeviceId, Refusal> {
        let target = DeviceId::from_address(peer).filter(|id| self.live(*id).is_some()).ok_or(Refusal::Unreachable)?;
        match self.device_mut(target).refusal {
            Some(refusal) => Err(refusal),
            None => Ok(target),
        }
    }

    /// The attempt that the target knows as `id`, if it is still open.
    fn open_attempt(&self, target: DeviceId, id: ConnectionId) -> Option<u64> {
        let attempt = id.0 / 2;
        let open = self.attempts.get(&attempt).is_some_and(|a| a.target == target);
        (open && target_id(attempt) == id && self.live(target).is_some()).then_some(attempt)
    }

    fn connect_pair(
        &mut self,
        near: (DeviceId, CompletionQueueId),
        far: (DeviceId, CompletionQueueId),
    ) -> [QueuePairId; 2] {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        let ends = [near, far].map(|(device, cq)| {
            let qp = self.device_mut(device).fresh_qp();
            End::new(device, qp, cq)
        });
        let qps = [ends[0].qp, ends[1].qp];
        for (side, end) in ends.iter().enumerate() {
            self.device_mut(end.device).qps.insert(end.qp, Place { link, side });
        }
        self.links.insert(link, Link { ends, dead: false, silent: false });
        qps
    }

    fn notify(&mut self, to: DeviceId, id: ConnectionId, kind: NoticeKind) {
        self.notices.push_back(CmNotice { to, id, kind });
        if self.mode == DeliveryMode::Immediate {
            self.deliver_notice(to, id);
        }
    }

    /// Hands the oldest notice of an attempt to its device. Whether there was one.
    pub(super) fn deliver_notice(&mut self, to: DeviceId, id: ConnectionId) -> bool {
        let Some(index) = self.notices.iter().position(|n| n.to == to && n.id == id) else { return false };
        let Some(notice) = self.notices.remove(index) else { return false };
        let event = match notice.kind {
            NoticeKind::Request { peer, private_data } => CmEvent::Request { id, peer, private_data },
            NoticeKind::Established { qp, peer, local, remote } => CmEvent::Established { id, qp, peer, local, remote },
            NoticeKind::Failed(refusal) => CmEvent::Failed { id, error: refusal.into() },
        };
        self.device_mut(to).events.push_back(event);
        true
    }

    /// The oldest undelivered notice of each attempt and device.
    pub(super) fn deliverable_notices(&self, out: &mut Vec<Delivery>) {
        for (index, notice) in self.notices.iter().enumerate() {
            let earlier = self.notices.iter().take(index).any(|n| n.to == notice.to && n.id == notice.id);
            if !earlier {
                out.push(Delivery::Connection { to: notice.to, id: notice.id });
            }
        }
    }

    /// A process is gone: nobody hears of it any more, and whoever waits for it learns that it is unreachable.
    pub(super) fn forget_connector(&mut self, gone: DeviceId) {
        self.notices.retain(|n| n.to != gone);
        self.directory.forget(gone);
        let waiting: Vec<u64> = self.attempts.iter().filter(|(_, a)| a.target == gone).map(|(n, _)| *n).collect();
        for attempt in waiting {
            if let Some(Attempt { initiator, .. }) = self.attempts.remove(&attempt) {
                if initiator != gone {
                    self.notify(initiator, initiator_id(attempt), NoticeKind::Failed(Refusal::Unreachable));
                }
            }
        }
    }
}
