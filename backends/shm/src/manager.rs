//! The state of connecting, below the device that contains it. `cm` works on it.

use std::collections::{HashMap, VecDeque};

use netacc_device::{CmError, CmEvent, ConnectionId, PeerAddress};

/// Epoll tags that are not pair indices.
pub(crate) const LISTENER: u64 = u64::MAX;
pub(crate) const KICK: u64 = u64::MAX - 1;
/// Marks the tag of the socket at which a process listens for a pair's peer.
pub(crate) const PROBE: u64 = 1 << 32;

/// State of the connection manager.
#[derive(Default)]
pub(crate) struct Manager {
    pub(crate) events: VecDeque<CmEvent>,
    pub(crate) last_id: u64,
    /// The pair to use for a peer.
    pub(crate) pairs: HashMap<PeerAddress, u32>,
    /// Requests not answered yet.
    pub(crate) incoming: HashMap<ConnectionId, (u32, u16)>,
    /// Accepted, no `Hello` yet.
    pub(crate) strangers: VecDeque<u32>,
}

impl Manager {
    pub(crate) fn next_id(&mut self) -> ConnectionId {
        self.last_id += 1;
        ConnectionId(self.last_id)
    }

    pub(crate) fn failed(&mut self, id: ConnectionId, error: CmError) {
        self.events.push_back(CmEvent::Failed { id, error });
    }
}
