//! Attempts to connect, and their events for connection managers.

use super::config::DeliveryMode;
use super::connecting::{initiator_id, target_id, Attempt, CmNotice, NoticeKind};
use super::id::{DeviceId, LinkId, Place};
use super::link::{End, Life, Link};
use super::state::State;
use crate::tables::Refusal;
use crate::{CmError, CmEvent, CompletionQueueId, ConnectionId, PeerAddress, QueuePairId, Receives, RemoteRegion};

impl State {
    /// Checks that a device can have one more queue pair, on that completion queue and with a first region of that
    /// length.
    pub(super) fn check_room(&self, id: DeviceId, cq: CompletionQueueId, region_len: usize) -> Result<u32, CmError> {
        let device = self.live(id).ok_or(CmError::Exhausted("devices"))?;
        if !device.cqs.contains(cq) {
            return Err(CmError::Exhausted("completion queues"));
        }
        let connected =
            self.links.values().flat_map(|l| &l.ends).filter(|e| e.device == id && e.life != Life::Destroyed);
        let connecting = self.attempts.values().filter(|a| a.initiator == id);
        if connected.count() + connecting.count() >= device.config.max_qp as usize {
            return Err(CmError::Exhausted("queue pairs"));
        }
        device.regions.checked_len(region_len).ok_or(CmError::MemoryLimit)
    }

    pub(super) fn check_receives(&self, id: DeviceId, receives: Receives) -> Result<(), CmError> {
        receives.check(self.config(id).capabilities.sends)
    }

    pub(super) fn receive_into(&mut self, id: DeviceId, qp: QueuePairId, receives: Receives, region: RemoteRegion) {
        let end = self.place(id, qp).and_then(|at| Some(&mut self.links.get_mut(&at.link)?.ends[at.side]));
        if let Some(end) = end.filter(|_| receives == Receives::FirstRegion) {
            end.into = Some(region);
        }
    }

    /// The device behind an address, if it accepts connections.
    pub(super) fn admission(&mut self, peer: PeerAddress) -> Result<DeviceId, Refusal> {
        let target = DeviceId::from_address(peer).filter(|id| self.live(*id).is_some()).ok_or(Refusal::Unreachable)?;
        match self.device_mut(target).refusal {
            Some(refusal) => Err(refusal),
            None => Ok(target),
        }
    }

    /// The attempt that has the number `id` at the target, if it is still open.
    pub(super) fn open_attempt(&self, target: DeviceId, id: ConnectionId) -> Option<u64> {
        let attempt = id.0 / 2;
        let open = self.attempts.get(&attempt).is_some_and(|a| a.target == target);
        (open && target_id(attempt) == id && self.live(target).is_some()).then_some(attempt)
    }

    pub(super) fn connect_pair(
        &mut self,
        near: (DeviceId, CompletionQueueId),
        far: (DeviceId, CompletionQueueId),
    ) -> [QueuePairId; 2] {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        let ends = [near, far].map(|(device, cq)| {
            let state = self.device_mut(device);
            let qp = state.fresh_qp();
            state.cqs.bind(qp, cq);
            End::new(device, qp)
        });
        let qps = [ends[0].qp, ends[1].qp];
        for (side, end) in ends.iter().enumerate() {
            self.device_mut(end.device).qps.insert(end.qp, Place { link, side });
        }
        self.links.insert(link, Link { ends, dead: false, silent: false });
        qps
    }

    pub(super) fn notify(&mut self, to: DeviceId, id: ConnectionId, kind: NoticeKind) {
        self.notices.push_back(CmNotice { to, id, kind });
        if self.mode == DeliveryMode::Immediate {
            self.deliver_notice(to, id);
        }
    }

    /// Hands the oldest notice of an attempt to its device. Returns whether there was one.
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
    pub(super) fn deliverable_notices(&self) -> impl Iterator<Item = (DeviceId, ConnectionId)> + '_ {
        self.notices.iter().enumerate().filter_map(|(index, notice)| {
            let earlier = self.notices.iter().take(index).any(|n| n.to == notice.to && n.id == notice.id);
            (!earlier).then_some((notice.to, notice.id))
        })
    }

    /// A process is gone: it gets no event any more, and a process that waits for it gets the error that it is
    /// unreachable.
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
