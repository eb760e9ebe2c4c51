//! Connecting queue pairs of a fabric, and its directory of streams.

use std::os::fd::RawFd;

use super::connecting::{initiator_id, target_id, Attempt, NoticeKind};
use super::device::LoopbackDevice;
use crate::tables::Refusal;
use crate::{
    CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, Directory, DirectoryError, FourTuple,
    PeerAddress, Receives, MAX_PRIVATE_DATA,
};

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
                    let entry = Attempt {
                        initiator: self.id,
                        initiator_cq: cq,
                        initiator_region_len: region_len,
                        initiator_receives: receives,
                        target,
                    };
                    s.attempts.insert(attempt, entry);
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
            let Some(entry) = s.attempts.remove(&attempt) else { return Ok(()) };
            let initiator = entry.initiator;
            if s.live(initiator).is_none() {
                s.notify(self.id, id, NoticeKind::Failed(Refusal::Unreachable));
                return Ok(());
            }
            // Its memory may have been used for something else since the request.
            if s.check_room(initiator, entry.initiator_cq, entry.initiator_region_len as usize).is_err() {
                s.notify(self.id, id, NoticeKind::Failed(Refusal::Exhausted));
                s.notify(initiator, initiator_id(attempt), NoticeKind::Failed(Refusal::Exhausted));
                return Ok(());
            }
            let near = (initiator, entry.initiator_cq);
            let qps = s.connect_pair(near, (self.id, cq));
            let theirs = s.device_mut(initiator).register(qps[0], entry.initiator_region_len);
            let ours = s.device_mut(self.id).register(qps[1], region_len);
            let (their_remote, our_remote) = (theirs.remote, ours.remote);
            s.receive_into(initiator, qps[0], entry.initiator_receives, their_remote);
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
