//! The state of connecting: the connection manager's ids, and the stage of each.
//!
//! Events of librdmacm identify ids by address, and an address may be used again. So events are taken, and ids
//! destroyed, under one lock, the one around [`Manager`]: an event in hand is always about the id that has that address
//! now.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use netacc_device::{
    CmEvent, CompletionQueueId, ConnectionId, PeerAddress, QueuePairId, Receives, Region, RemoteRegion,
};

use crate::ffi::{CmId, Context, EventChannel, Key};
use crate::link::Link;

/// Attempts, and requests of peers, that may be open at the same time. Arbitrary; more are refused.
pub(crate) const MAX_ATTEMPTS: usize = 1024;

/// The number of ids that wait for the peer's answer to a disconnection, or for the network to send one; beyond it the
/// oldest are dropped. Arbitrary.
const MAX_LEAVING: usize = 1024;

/// Requests that may wait to be accepted. Drivers of iWARP devices silently drop requests beyond it.
pub(crate) const BACKLOG: i32 = 128;

/// The state of connecting.
pub(crate) struct Manager {
    /// Ids that listen, each with its port.
    pub(crate) listeners: HashMap<Key, (CmId, u16)>,
    next: u64,
    pub(crate) attempts: HashMap<Key, Attempt>,
    /// Queue pairs that are connected, by their id.
    pub(crate) established: HashMap<Key, QueuePairId>,
    pub(crate) leaving: VecDeque<CmId>,
    /// Ids that cannot inform their peers of their end before the port has its network back.
    ///
    /// SoftRoCE of Linux 6.1 needs that: a message of the connection manager without a route puts the queue pair that
    /// sends those messages into error, and only its sending half is repaired. The host then receives no request any
    /// more, for any listener, until the device is made again.
    pub(crate) cut_off: VecDeque<CmId>,
    pub(crate) events: VecDeque<CmEvent>,
    /// Requests of peers that were refused since the last report.
    pub(crate) refused: u64,
}

/// The first settings of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct First {
    pub(crate) cq: CompletionQueueId,
    pub(crate) region_len: usize,
    pub(crate) receives: Receives,
}

pub(crate) struct Attempt {
    pub(crate) id: ConnectionId,
    pub(crate) peer: PeerAddress,
    pub(crate) stage: Stage,
}

pub(crate) enum Stage {
    /// Resolving the device and the route; then the queue pair is made.
    Resolving { cm: CmId, first: First, private_data: Vec<u8> },
    /// Our queue pair exists; the peer has not answered.
    Connecting { link: Arc<Link>, local: Region, private_data: Vec<u8> },
    /// A peer has requested a link, and was not answered yet.
    Requested { cm: CmId, remote: RemoteRegion },
    /// We have accepted; the peer has not confirmed.
    Accepted { link: Arc<Link>, local: Region, remote: RemoteRegion },
}

impl Manager {
    /// Ends everything that is not a queue pair.
    pub(crate) fn clear(&mut self) {
        self.listeners.clear();
        self.attempts.clear();
        self.leaving.clear();
        self.cut_off.clear();
        self.events.clear();
    }

    pub(crate) fn new(listeners: Vec<CmId>, port: u16) -> Manager {
        Manager {
            listeners: listeners.into_iter().map(|listener| (listener.key(), (listener, port))).collect(),
            next: 0,
            attempts: HashMap::new(),
            established: HashMap::new(),
            leaving: VecDeque::new(),
            cut_off: VecDeque::new(),
            events: VecDeque::new(),
            refused: 0,
        }
    }

    /// Ends an id and its queue pair. Kept until the peer has answered the disconnection, if there is one: the kernel
    /// repeats a lost one only as long as the id exists.
    pub(crate) fn forget(&mut self, mut cm: CmId, peer_informed: bool) {
        let connected = self.established.remove(&cm.key()).is_some();
        self.attempts.remove(&cm.key());
        if cm.is_cut_off() {
            cm.destroy_qp();
            return keep(&mut self.cut_off, cm);
        }
        let disconnected = !peer_informed && cm.disconnect().is_ok();
        cm.destroy_qp();
        if connected && disconnected {
            keep(&mut self.leaving, cm);
        }
    }

    /// Ids that could not inform their peers of their end do so, if they can now.
    pub(crate) fn catch_up(&mut self) {
        while let Some(cm) = self.cut_off.pop_front_if(|cm| !cm.is_cut_off()) {
            if cm.disconnect().is_ok() {
                keep(&mut self.leaving, cm);
            }
        }
    }

    pub(crate) fn next_id(&mut self) -> ConnectionId {
        self.next += 1;
        ConnectionId(self.next)
    }

    pub(crate) fn key_of(&self, id: ConnectionId) -> Option<Key> {
        self.attempts.iter().find(|(_, attempt)| attempt.id == id).map(|(key, _)| *key)
    }
}

fn keep(ids: &mut VecDeque<CmId>, cm: CmId) {
    if ids.len() >= MAX_LEAVING {
        ids.pop_front();
    }
    ids.push_back(cm);
}

/// Accepts links at an address, if this device serves it.
pub(crate) fn listen_at(channel: &Arc<EventChannel>, context: Context, address: SocketAddr) -> io::Result<CmId> {
    let listener = CmId::new(channel)?;
    listener.bind(address)?;
    if listener.context() != Some(context) {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    }
    listener.listen(BACKLOG)?;
    Ok(listener)
}
