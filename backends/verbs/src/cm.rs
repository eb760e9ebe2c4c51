//! Connecting, from resolving an address to an established link. `manager` has its state.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::{
    CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, DeviceError, PeerAddress, Receives, Region,
    MAX_PRIVATE_DATA,
};

use crate::connect_data::ConnectData;
use crate::connect_threads::ReturnedConnect;
use crate::device::VerbsDevice;
use crate::ffi::{enter, is_any_readable, CmId, ConnectParameters, Event, EventKind, Key};
use crate::link::Link;
use crate::manager::{listen_at, Attempt, First, Manager, Stage, MAX_ATTEMPTS};
use crate::peer_address::{decode, encode, host};

/// How long resolving may take. On one network it takes no longer than ARP.
const RESOLVE_TIMEOUT_MS: i32 = 2000;

impl VerbsDevice {
    /// The address to pass to [`connect`](ConnectionManager::connect) for a process that listens at `address`.
    pub fn peer_address(address: SocketAddr) -> PeerAddress {
        encode(address)
    }

    /// The inverse of [`peer_address`](VerbsDevice::peer_address). `None`: no process could listen at such an address.
    pub fn socket_address(peer: PeerAddress) -> Option<SocketAddr> {
        decode(peer)
    }

    /// Accepts links at one more port, from now on.
    ///
    /// # Errors
    /// Fails if the port is taken.
    pub fn listen_on(&self, port: u16) -> io::Result<()> {
        let mut manager = self.manager.lock();
        if manager.listeners.values().any(|(_, known)| *known == port) {
            return Ok(());
        }
        let _call = enter();
        let listen = |ip| listen_at(&self.channel, self.context, SocketAddr::new(ip, port));
        let listener = listen(self.address.ip())?;
        manager.listeners.insert(listener.key(), (listener, port));
        // If the other family's port is taken, peers have to do without links of that family.
        if let Some(second) = self.second_address.and_then(|ip| listen(ip).ok()) {
            manager.listeners.insert(second.key(), (second, port));
        }
        Ok(())
    }

    /// Handles the events of connections. [`poll_event`](ConnectionManager::poll_event) does the same and then takes an
    /// event; this is for callers that only want links to detect their end.
    pub fn progress(&self) {
        let mut manager = self.manager.lock();
        let _call = enter();
        if !is_any_readable(&self.event_fds()) {
            // One system call, where asking each of them takes one or two.
            return manager.catch_up();
        }
        for returned in self.connect_threads.iter().flat_map(|connect_threads| connect_threads.take()) {
            self.connect_returned(&mut manager, returned);
        }
        while let Some(event) = self.channel.next_event() {
            self.handle(&mut manager, event);
        }
        manager.catch_up();
        self.handle_trouble();
        if self.node.as_ref().is_some_and(|node| node.is_unlinked()) {
            self.take_away();
        }
    }

    fn handle(&self, manager: &mut Manager, event: Event) {
        let key = event.id;
        match event.kind {
            EventKind::ConnectRequest(cm) if manager.listeners.contains_key(&key) => {
                self.requested(manager, cm, &event.private_data);
            }
            EventKind::ConnectRequest(cm) => cm.reject(),
            EventKind::AddressResolved => self.resolved(manager, key),
            EventKind::RouteResolved => self.routed(manager, key),
            EventKind::Established => self.established(manager, key, &event.private_data),
            EventKind::Refused | EventKind::Unreachable => self.failed(manager, key, CmError::Unreachable),
            // The kernel waits until no object of ours refers to the device.
            EventKind::DeviceRemoved => {
                self.gone.store(true, Ordering::Release);
                manager.listeners.remove(&key);
                self.ended(manager, key);
            }
            EventKind::Disconnected => self.ended(manager, key),
            EventKind::Other => {}
        }
    }

    fn requested(&self, manager: &mut Manager, cm: CmId, private_data: &[u8]) {
        let theirs = ConnectData::parse(private_data);
        let (Some(theirs), Some(ip), true) = (theirs, cm.peer(), manager.attempts.len() < MAX_ATTEMPTS) else {
            cm.reject();
            manager.refused += 1;
            return;
        };
        let id = manager.next_id();
        let peer = encode(SocketAddr::new(ip, theirs.port));
        manager.events.push_back(CmEvent::Request { id, peer, private_data: theirs.data });
        manager.attempts.insert(cm.key(), Attempt { id, peer, stage: Stage::Requested { remote: theirs.region, cm } });
    }

    fn resolved(&self, manager: &mut Manager, key: Key) {
        let Some(Attempt { stage: Stage::Resolving { cm, .. }, .. }) = manager.attempts.get(&key) else { return };
        let served = cm.context().is_some_and(|context| context == self.context);
        if !served || cm.resolve_route(RESOLVE_TIMEOUT_MS).is_err() {
            self.failed(manager, key, CmError::Unreachable);
        }
    }

    fn routed(&self, manager: &mut Manager, key: Key) {
        let Some(Attempt { id, peer, stage }) = manager.attempts.remove(&key) else { return };
        let Stage::Resolving { cm, first, private_data } = stage else { return };
        match self.make(cm, first) {
            Ok((link, local)) => {
                let ours = ConnectData { port: self.address.port(), region: local.remote, data: private_data.clone() };
                let connected = match &self.connect_threads {
                    Some(connect_threads) => {
                        connect_threads.begin(&link, ours.encode().to_vec(), self.limits.waits_for_receive)
                    }
                    None => self.with_cm(&link, |cm, parameters| cm.connect(&parameters), &ours),
                };
                let stage = Stage::Connecting { link, local, private_data };
                manager.attempts.insert(key, Attempt { id, peer, stage });
                if connected.is_err() {
                    self.failed(manager, key, CmError::Unreachable);
                }
            }
            Err(error) => manager.events.push_back(CmEvent::Failed { id, error: cm_error(error) }),
        }
    }

    /// The call that connects has returned. The outcome of the request comes as an event, unless the request was never
    /// sent.
    fn connect_returned(&self, manager: &mut Manager, ReturnedConnect { cm, link, outcome }: ReturnedConnect) {
        if self.links.get(link.id).is_none() {
            // The queue pair is gone, and could not end an id that it did not have.
            return manager.forget(cm, link.peer_informed.load(Ordering::Acquire));
        }
        let key = cm.key();
        *link.cm.lock() = Some(cm);
        if outcome.is_err() {
            self.failed(manager, key, CmError::Unreachable);
        } else if link.is_dead() {
            link.hang_up();
        }
    }

    fn established(&self, manager: &mut Manager, key: Key, private_data: &[u8]) {
        let Some(Attempt { id, peer, stage }) = manager.attempts.remove(&key) else { return };
        let (link, local, remote) = match stage {
            Stage::Connecting { link, local, private_data: requested } => match ConnectData::parse(private_data) {
                Some(theirs) => (link, local, theirs.region),
                None => {
                    let stage = Stage::Connecting { link, local, private_data: requested };
                    manager.attempts.insert(key, Attempt { id, peer, stage });
                    self.failed(manager, key, CmError::Unreachable);
                    return;
                }
            },
            Stage::Accepted { link, local, remote } => (link, local, remote),
            stage => {
                manager.attempts.insert(key, Attempt { id, peer, stage });
                return;
            }
        };
        manager.established.insert(key, link.id);
        manager.events.push_back(CmEvent::Established { id, qp: link.id, peer, local, remote });
    }

    fn failed(&self, manager: &mut Manager, key: Key, error: CmError) {
        let Some(Attempt { id, stage, .. }) = manager.attempts.remove(&key) else { return };
        match stage {
            Stage::Connecting { link, .. } | Stage::Accepted { link, .. } => {
                // There is no connection yet, so the peer needs no disconnection.
                link.close();
                self.unmake(manager, link.id);
            }
            Stage::Resolving { .. } | Stage::Requested { .. } => {}
        }
        manager.events.push_back(CmEvent::Failed { id, error });
    }

    fn ended(&self, manager: &mut Manager, key: Key) {
        manager.leaving.retain(|cm| cm.key() != key);
        manager.cut_off.retain(|cm| cm.key() != key);
        match manager.established.get(&key) {
            Some(id) => {
                if let Some(link) = self.links.get(*id) {
                    link.peer_informed.store(true, Ordering::Release);
                    self.close(&link);
                }
            }
            None => self.failed(manager, key, CmError::Unreachable),
        }
    }

    fn make(&self, cm: CmId, first: First) -> Result<(Arc<Link>, Region), DeviceError> {
        let link = self.make_link(cm, first.cq)?;
        let local = link.alloc_region(first.region_len).and_then(|local| {
            let into = (first.receives == Receives::FirstRegion).then_some(&local);
            link.post_ahead(into).map_err(|_| DeviceError::Exhausted { what: "receive queue" })?;
            Ok(local)
        });
        match local {
            Ok(local) => Ok((link, local)),
            Err(error) => {
                link.close();
                // The caller holds the manager's lock, and the manager has no entry of this id.
                self.discard(link.id);
                Err(error)
            }
        }
    }

    fn with_cm(
        &self,
        link: &Link,
        call: impl FnOnce(&CmId, ConnectParameters<'_>) -> io::Result<()>,
        ours: &ConnectData,
    ) -> io::Result<()> {
        let private_data = ours.encode();
        let parameters =
            ConnectParameters { private_data: &private_data, waits_for_receive: self.limits.waits_for_receive };
        match link.cm.lock().as_ref() {
            Some(cm) => call(cm, parameters),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl ConnectionManager for VerbsDevice {
    fn address(&self) -> PeerAddress {
        encode(self.address)
    }

    /// Hosts: the peer may have connected to any of a process's ports.
    fn ends(&self, peer: PeerAddress) -> [PeerAddress; 2] {
        let towards = decode(peer).and_then(|peer| self.address_of_family(peer.ip())).unwrap_or(self.address.ip());
        [encode(SocketAddr::new(towards, self.address.port())), peer].map(host)
    }

    fn connect_with(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
        receives: Receives,
    ) -> Result<ConnectionId, CmError> {
        let to = decode(peer).ok_or(CmError::Unreachable)?;
        let from = self.address_of_family(to.ip()).ok_or(CmError::Unreachable)?;
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(CmError::Unreachable);
        }
        if self.queue(cq).is_none() {
            return Err(CmError::Exhausted("completion queue"));
        }
        let os = |operation| move |source| CmError::Os { operation, source };
        let mut manager = self.manager.lock();
        if manager.attempts.len() >= MAX_ATTEMPTS {
            return Err(CmError::Exhausted("connection attempts"));
        }
        let cm = CmId::new(&self.channel).map_err(os("rdma_create_id"))?;
        cm.hurry();
        cm.resolve_address(SocketAddr::new(from, 0), to, RESOLVE_TIMEOUT_MS).map_err(os("rdma_resolve_addr"))?;
        let id = manager.next_id();
        let key = cm.key();
        let first = First { cq, region_len, receives };
        let stage = Stage::Resolving { cm, first, private_data: private_data.to_vec() };
        manager.attempts.insert(key, Attempt { id, peer, stage });
        Ok(id)
    }

    fn accept_with(
        &self,
        id: ConnectionId,
        cq: CompletionQueueId,
        region_len: usize,
        receives: Receives,
    ) -> Result<(), CmError> {
        let mut manager = self.manager.lock();
        let requested = |attempt: &Attempt| matches!(attempt.stage, Stage::Requested { .. });
        let key = manager.key_of(id).filter(|key| manager.attempts.get(key).is_some_and(requested));
        let attempt = key.and_then(|key| manager.attempts.remove(&key)).ok_or(CmError::Unreachable)?;
        let Attempt { peer, stage: Stage::Requested { cm, remote }, .. } = attempt else {
            return Err(CmError::Unreachable);
        };
        let key = cm.key();
        let (link, local) = self.make(cm, First { cq, region_len, receives }).map_err(cm_error)?;
        if self.limits.initiator_sends_first {
            link.listen_first();
        }
        let ours = ConnectData { port: self.address.port(), region: local.remote, data: Vec::new() };
        if let Err(source) = self.with_cm(&link, |cm, parameters| cm.accept(&parameters), &ours) {
            link.close();
            self.unmake(&mut manager, link.id);
            return Err(CmError::Os { operation: "rdma_accept", source });
        }
        manager.attempts.insert(key, Attempt { id, peer, stage: Stage::Accepted { link, local, remote } });
        Ok(())
    }

    fn reject(&self, id: ConnectionId) {
        let mut manager = self.manager.lock();
        let Some(key) = manager.key_of(id) else { return };
        if let Some(Attempt { stage: Stage::Requested { cm, .. }, .. }) = manager.attempts.get(&key) {
            cm.reject();
            manager.attempts.remove(&key);
        }
    }

    fn poll_event(&self) -> Option<CmEvent> {
        self.progress();
        let mut manager = self.manager.lock();
        match std::mem::take(&mut manager.refused) {
            0 => manager.events.pop_front(),
            refused => Some(CmEvent::Refused(refused)),
        }
    }

    fn may_wait(&self) -> bool {
        is_any_readable(&self.event_fds())
    }

    fn event_fds(&self) -> Vec<RawFd> {
        let node = self.node.as_ref().map(|node| node.fd());
        let connect_threads = self.connect_threads.as_ref().map(|connect_threads| connect_threads.fd());
        [Some(self.channel.fd()), Some(self.context.fds()[1]), node, connect_threads].into_iter().flatten().collect()
    }
}

fn cm_error(error: DeviceError) -> CmError {
    match error {
        DeviceError::MemoryLimit { .. } => CmError::MemoryLimit,
        DeviceError::Exhausted { what } | DeviceError::Unknown { what } => CmError::Exhausted(what),
        DeviceError::Os { operation, source } => CmError::Os { operation, source },
        _ => CmError::Unreachable,
    }
}
