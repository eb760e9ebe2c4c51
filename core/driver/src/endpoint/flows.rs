//! Flows of datagrams: connected queue pairs of which only the first regions are used, which the two processes map. What
//! is in them is the owner's affair ([`ReadySink`](crate::ReadySink)); nothing is ever posted.
//!
//! The connecting side sends the datagrams. Its request to connect names the flow, in the private data: streams' links have
//! none.

use netacc_device::{CmError, ConnectionId, PeerAddress, QueuePairId, Region, RemoteRegion};

use super::incoming::EMPTY;
use super::Endpoint;
use crate::Flow;

/// The first byte of a request for a flow.
const FLOW: u8 = 0xd9;

impl Endpoint {
    /// Requests a flow of datagrams to the process at `peer`. Our region has `region_len` bytes, and `request` at most
    /// [`MAX_FLOW_REQUEST`](crate::MAX_FLOW_REQUEST). The outcome goes to the owner.
    ///
    /// # Errors
    /// See [`CmError`]. Peers that need a pre-shared key have no flows.
    pub fn request_flow(&self, peer: PeerAddress, region_len: usize, request: &[u8]) -> Result<ConnectionId, CmError> {
        if self.config.key.is_some() {
            return Err(CmError::NotAdmitted);
        }
        let private_data = [&[FLOW], request].concat();
        // The event may come as soon as the lock is free.
        let mut flows = self.flows.lock();
        let id = self.cm.connect(peer, self.control_cq, region_len, &private_data)?;
        flows.attempts.insert(id);
        Ok(id)
    }

    /// Ends a flow, also one that the peer has ended. When to call it: once neither region is used any more, because both may be
    /// another flow's when both ends have done so.
    pub fn end_flow(&self, qp: QueuePairId) {
        if self.flows.lock().established.remove(&qp) {
            self.device.destroy_qp(qp);
        }
    }

    /// The owner's part of a request for a flow; `None`: a request for a link.
    pub(super) fn flow_request(private_data: &[u8]) -> Option<&[u8]> {
        private_data.split_first().filter(|(first, _)| **first == FLOW).map(|(_, request)| request)
    }

    pub(super) fn handle_flow_request(&self, id: ConnectionId, peer: PeerAddress, request: &[u8]) {
        //= spec §10.2.2
        //# Where a side needs a pre-shared key, it refuses all flows.
        let wanted = match self.config.key {
            None => self.sink().flow_requested(id, peer, request),
            Some(_) => None,
        };
        let Some(region_len) = wanted else { return self.cm.reject(id) };
        self.flows.lock().attempts.insert(id);
        if self.cm.accept(id, self.control_cq, region_len).is_err() {
            self.flows.lock().attempts.remove(&id);
            self.cm.reject(id);
            self.sink().flow_failed(id);
        }
    }

    /// Returns whether the queue pair is a flow's.
    pub(super) fn handle_flow_established(
        &self,
        id: ConnectionId,
        qp: QueuePairId,
        local: &Region,
        remote: RemoteRegion,
    ) -> bool {
        if !self.flows.lock().attempts.remove(&id) {
            return false;
        }
        match self.device.window(qp, remote) {
            Ok(window) => {
                self.flows.lock().established.insert(qp);
                self.sink().flow_established(id, Flow { qp, local: local.memory.clone(), remote: window.memory });
            }
            // The peer is on another host, or has ended, or has broken the rules.
            Err(_) => {
                self.device.destroy_qp(qp);
                self.sink().flow_failed(id);
            }
        }
        true
    }

    /// Returns whether the attempt was for a flow.
    pub(super) fn handle_flow_failed(&self, id: ConnectionId) -> bool {
        let known = self.flows.lock().attempts.remove(&id);
        if known {
            self.sink().flow_failed(id);
        }
        known
    }

    /// A queue pair without a link has completions: the end of a flow, if it is one's.
    #[cold]
    pub(super) fn poll_flow(&self, qp: QueuePairId) {
        if !self.flows.lock().established.contains(&qp) {
            return;
        }
        let mut completions = [EMPTY; 4];
        let n = self.device.poll_qp(qp, &mut completions);
        if n > 0 {
            // No honest peer posts here, so it can only be the end.
            self.sink().flow_ended(qp);
        }
    }
}
