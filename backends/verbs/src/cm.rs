//! Connecting: the connection manager's ids, from resolving an address to an established link.
//!
//! Ids are named by address in the events of librdmacm, and an address may be used again; so events are taken, and ids
//! destroyed, under one lock: an event in hand is always about the id that has its name now.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::{
    CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, DeviceError, PeerAddress, QueuePairId,
    Receives, Region, RemoteKey, RemoteRegion, MAX_PRIVATE_DATA,
};

use crate::device::{listen_at, VerbsDevice};
use crate::dial::Dialed;
use crate::ffi::{enter, CmId, ConnectParameters, Event, EventKind, Key};
use crate::link::Link;

/// Attempts, and requests of peers, that may be open at a time. Arbitrary; more are refused.
const MAX_ATTEMPTS: usize = 1024;

/// Ids that wait for the peer's answer to a disconnection, or to tell it, of which the oldest give way. Arbitrary.
const MAX_LEAVING: usize = 1024;

/// How long resolving may take. On one network it takes no longer than ARP.
const RESOLVE_TIMEOUT_MS: i32 = 2000;

/// The state of connecting.
pub(crate) struct Manager {
    /// Ids that listen, each with its port.
    listeners: HashMap<Key, (CmId, u16)>,
    next: u64,
    attempts: HashMap<Key, Attempt>,
    /// Queue pairs that are connected, by their id.
    established: HashMap<Key, QueuePairId>,
    leaving: VecDeque<CmId>,
    /// Ids that can tell nobody of their end before the port has its network back.
    ///
    /// SoftRoCE of Linux 6.1 needs that: a message of the connection manager that finds no way puts the queue pair that
    /// sends those into error, and only its sending half is put right. The host then hears no request any more, whoever
    /// listens, until the device is made again.
    cut_off: VecDeque<CmId>,
    events: VecDeque<CmEvent>,
    /// Requests of peers that were refused since that was last told.
    refused: u64,
}

/// What a queue pair begins with.
#[derive(Clone, Copy)]
struct First {
    cq: CompletionQueueId,
    region_len: usize,
    receives: Receives,
}

struct Attempt {
    id: ConnectionId,
    peer: PeerAddress,
    stage: Stage,
}

enum Stage {
    /// Looking for the device and the way; then the queue pair is made.
    Resolving { cm: CmId, first: First, private_data: Vec<u8> },
    /// Our queue pair exists; the peer has not answered.
    Connecting { link: Arc<Link>, local: Region, private_data: Vec<u8> },
    /// A peer asks; nobody has answered.
    Asked { cm: CmId, remote: RemoteRegion },
    /// We have accepted; the peer has not confirmed.
    Accepted { link: Arc<Link>, local: Region, remote: RemoteRegion },
}

impl Manager {
    /// Ends all that is not a queue pair.
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
    pub(crate) fn forget(&mut self, mut cm: CmId, peer_knows: bool) {
        let connected = self.established.remove(&cm.key()).is_some();
        self.attempts.remove(&cm.key());
        if cm.is_cut_off() {
            cm.destroy_qp();
            return keep(&mut self.cut_off, cm);
        }
        let told = !peer_knows && cm.disconnect().is_ok();
        cm.destroy_qp();
        if connected && told {
            keep(&mut self.leaving, cm);
        }
    }

    /// Ids that could tell nobody of their end do so, if they can now.
    fn catch_up(&mut self) {
        while let Some(cm) = self.cut_off.pop_front_if(|cm| !cm.is_cut_off()) {
            if cm.disconnect().is_ok() {
                keep(&mut self.leaving, cm);
            }
        }
    }

    fn next_id(&mut self) -> ConnectionId {
        self.next += 1;
        ConnectionId(self.next)
    }

    fn key_of(&self, id: ConnectionId) -> Option<Key> {
        self.attempts.iter().find(|(_, attempt)| attempt.id == id).map(|(key, _)| *key)
    }
}

fn keep(ids: &mut VecDeque<CmId>, cm: CmId) {
    if ids.len() >= MAX_LEAVING {
        ids.pop_front();
    }
    ids.push_back(cm);
}

impl VerbsDevice {
    /// What to hand to [`connect`](ConnectionManager::connect) for who listens at `address`.
    pub fn peer_address(address: SocketAddr) -> PeerAddress {
        encode(address)
    }

    /// What [`peer_address`](VerbsDevice::peer_address) was made of. `None`: of nothing where somebody could listen.
    pub fn socket_address(peer: PeerAddress) -> Option<SocketAddr> {
        decode(peer)
    }

    /// Accepts links at one more port, from now on.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen_on(&self, port: u16) -> io::Result<()> {
        let mut manager = self.manager.lock();
        if manager.listeners.values().any(|(_, known)| *known == port) {
            return Ok(());
        }
        let _call = enter();
        let listen = |ip| listen_at(&self.channel, self.context, SocketAddr::new(ip, port));
        let listener = listen(self.address.ip())?;
        manager.listeners.insert(listener.key(), (listener, port));
        // Where the other family's is taken, its links are what peers have to do without.
        if let Some(second) = self.second_address.and_then(|ip| listen(ip).ok()) {
            manager.listeners.insert(second.key(), (second, port));
        }
        Ok(())
    }

    /// Takes in what happened to connections. [`poll_event`](ConnectionManager::poll_event) does the same and then takes
    /// an event; this is for who only wants links to notice that they ended.
    pub fn progress(&self) {
        let mut manager = self.manager.lock();
        let _call = enter();
        for dialed in self.dials.iter().flat_map(|dials| dials.take()) {
            self.dialed(&mut manager, dialed);
        }
        while let Some(event) = self.channel.next_event() {
            self.handle(&mut manager, event);
        }
        manager.catch_up();
        self.hear_trouble();
        if self.node.as_ref().is_some_and(|node| node.is_unlinked()) {
            self.take_away();
        }
    }

    fn handle(&self, manager: &mut Manager, event: Event) {
        let key = event.id;
        match event.kind {
            EventKind::ConnectRequest(cm) if manager.listeners.contains_key(&key) => {
                self.asked(manager, cm, &event.private_data);
            }
            EventKind::ConnectRequest(cm) => cm.reject(),
            EventKind::AddressResolved => self.resolved(manager, key),
            EventKind::RouteResolved => self.routed(manager, key),
            EventKind::Established => self.established(manager, key, &event.private_data),
            EventKind::Refused | EventKind::Unreachable => self.failed(manager, key, CmError::Unreachable),
            // The kernel waits until nothing of ours refers to the device.
            EventKind::DeviceRemoved => {
                self.gone.store(true, Ordering::Release);
                manager.listeners.remove(&key);
                self.ended(manager, key);
            }
            EventKind::Disconnected => self.ended(manager, key),
            EventKind::Other => {}
        }
    }

    fn asked(&self, manager: &mut Manager, cm: CmId, private_data: &[u8]) {
        let told = Told::parse(private_data);
        let (Some(told), Some(ip), true) = (told, cm.peer(), manager.attempts.len() < MAX_ATTEMPTS) else {
            cm.reject();
            manager.refused += 1;
            return;
        };
        let id = manager.next_id();
        let peer = encode(SocketAddr::new(ip, told.port));
        manager.events.push_back(CmEvent::Request { id, peer, private_data: told.data });
        manager.attempts.insert(cm.key(), Attempt { id, peer, stage: Stage::Asked { remote: told.region, cm } });
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
                let told = Told { port: self.address.port(), region: local.remote, data: private_data.clone() };
                let connected = match &self.dials {
                    Some(dials) => dials.begin(&link, told.encode().to_vec(), self.limits.waits_for_receive),
                    None => self.with_cm(&link, |cm, parameters| cm.connect(&parameters), &told),
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

    /// The call that connects has returned. What became of the request comes as an event, unless it was never sent.
    fn dialed(&self, manager: &mut Manager, Dialed { cm, link, outcome }: Dialed) {
        if self.links.get(link.id).is_none() {
            // The queue pair is gone, and had no id to be ended with.
            return manager.forget(cm, link.peer_knows.load(Ordering::Acquire));
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
            Stage::Connecting { link, local, private_data: asked } => match Told::parse(private_data) {
                Some(told) => (link, local, told.region),
                None => {
                    let stage = Stage::Connecting { link, local, private_data: asked };
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
                // There is no connection whose end the peer would have to be told of.
                link.close();
                self.unmake(manager, link.id);
            }
            Stage::Resolving { .. } | Stage::Asked { .. } => {}
        }
        manager.events.push_back(CmEvent::Failed { id, error });
    }

    fn ended(&self, manager: &mut Manager, key: Key) {
        manager.leaving.retain(|cm| cm.key() != key);
        manager.cut_off.retain(|cm| cm.key() != key);
        match manager.established.get(&key) {
            Some(id) => {
                if let Some(link) = self.links.get(*id) {
                    link.peer_knows.store(true, Ordering::Release);
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
                // The caller holds the manager's lock and nothing of this id is in it.
                self.discard(link.id);
                Err(error)
            }
        }
    }

    fn with_cm(
        &self,
        link: &Link,
        call: impl FnOnce(&CmId, ConnectParameters<'_>) -> io::Result<()>,
        told: &Told,
    ) -> io::Result<()> {
        let private_data = told.encode();
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

    /// Hosts: a process may be asked at several ports.
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
        let asked = |attempt: &Attempt| matches!(attempt.stage, Stage::Asked { .. });
        let key = manager.key_of(id).filter(|key| manager.attempts.get(key).is_some_and(asked));
        let attempt = key.and_then(|key| manager.attempts.remove(&key)).ok_or(CmError::Unreachable)?;
        let Attempt { peer, stage: Stage::Asked { cm, remote }, .. } = attempt else {
            return Err(CmError::Unreachable);
        };
        let key = cm.key();
        let (link, local) = self.make(cm, First { cq, region_len, receives }).map_err(cm_error)?;
        if self.limits.initiator_sends_first {
            link.listen_first();
        }
        let told = Told { port: self.address.port(), region: local.remote, data: Vec::new() };
        if let Err(source) = self.with_cm(&link, |cm, parameters| cm.accept(&parameters), &told) {
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
        if let Some(Attempt { stage: Stage::Asked { cm, .. }, .. }) = manager.attempts.get(&key) {
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

    fn event_fds(&self) -> Vec<RawFd> {
        let node = self.node.as_ref().map(|node| node.fd());
        let dials = self.dials.as_ref().map(|dials| dials.fd());
        [Some(self.channel.fd()), Some(self.context.fds()[1]), node, dials].into_iter().flatten().collect()
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

/// What each end tells the other while connecting. Some devices pad it with zeros, so it brings its own length.
struct Told {
    /// Where the sender accepts links.
    port: u16,
    /// Its first region.
    region: RemoteRegion,
    /// The user's data.
    data: Vec<u8>,
}

const VERSION: u8 = 1;
const TOLD_LEN: usize = 20 + MAX_PRIVATE_DATA;

impl Told {
    fn encode(&self) -> [u8; TOLD_LEN] {
        let mut bytes = [0; TOLD_LEN];
        bytes[0] = VERSION;
        bytes[1] = self.data.len() as u8;
        bytes[2..4].copy_from_slice(&self.port.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.region.rkey.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.region.base.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.region.len.to_le_bytes());
        bytes[20..20 + self.data.len()].copy_from_slice(&self.data);
        bytes
    }

    /// `None`: not of our making.
    fn parse(bytes: &[u8]) -> Option<Told> {
        let bytes = bytes.get(..TOLD_LEN)?;
        let len = usize::from(bytes[1]);
        if bytes[0] != VERSION || len > MAX_PRIVATE_DATA {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let base = u64::from(word(8)) | u64::from(word(12)) << 32;
        base.checked_add(u64::from(word(16)))?;
        Some(Told {
            port: u16::from_le_bytes([bytes[2], bytes[3]]),
            region: RemoteRegion { rkey: RemoteKey(word(4)), base, len: word(16) },
            data: bytes[20..20 + len].to_vec(),
        })
    }
}

/// An address as everybody else holds it: sixteen bytes of IP, family and port, nothing.
fn encode(address: SocketAddr) -> PeerAddress {
    let (ip, family) = match address.ip() {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 4),
        IpAddr::V6(v6) => (u128::from(v6), 6),
    };
    PeerAddress([(ip >> 64) as u64, ip as u64, family << 16 | u64::from(address.port()), 0])
}

/// The host of an address, as [`encode`] would have it with port 0.
fn host(PeerAddress([high, low, place, _]): PeerAddress) -> PeerAddress {
    PeerAddress([high, low, place >> 16 << 16, 0])
}

/// `None`: nothing that [`encode`] makes of an address where somebody could listen.
fn decode(peer: PeerAddress) -> Option<SocketAddr> {
    let [high, low, place, rest] = peer.0;
    let port = place as u16;
    let ip: IpAddr = match place >> 16 {
        4 if high == 0 => Ipv4Addr::from(u32::try_from(low).ok()?).into(),
        6 => Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into(),
        _ => return None,
    };
    let usable = !ip.is_unspecified() && !ip.is_multicast() && port != 0 && rest == 0;
    usable.then_some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_nonsense_does_not() {
        for text in ["10.99.0.1:26379", "[fd99::2]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(decode(encode(address)), Some(address));
        }
        let real = encode("10.99.0.1:26379".parse().expect("an address")).0;
        for wrong in
            [[0; 4], [u64::MAX; 4], [1, real[1], real[2], 0], [0, 1 << 32, real[2], 0], [0, real[1], 4 << 16, 0]]
        {
            assert_eq!(decode(PeerAddress(wrong)), None, "{wrong:?}");
        }
    }

    /// Breaks if the two ends of a link had different names for it: no proof of the pre-shared key would fit.
    #[test]
    fn a_host_has_one_name_whatever_the_port() {
        let at = |text: &str| host(encode(text.parse().expect("an address")));
        assert_eq!(at("10.99.0.1:26379"), at("10.99.0.1:4791"));
        assert_ne!(at("10.99.0.1:26379"), at("10.99.0.2:26379"));
        assert_ne!(at("[::a63:1]:1"), at("10.99.0.1:1"), "another family");
    }

    fn told() -> Told {
        let region = RemoteRegion { rkey: RemoteKey(7), base: 0x1234_5678_9abc_d000, len: 4096 };
        Told { port: 26379, region, data: b"proof".to_vec() }
    }

    #[test]
    fn what_is_told_arrives_also_padded() {
        let mut bytes = told().encode().to_vec();
        assert!(bytes.len() <= 56, "RoCE carries no more with a request");
        bytes.resize(56, 0);
        let back = Told::parse(&bytes).expect("whole");
        assert_eq!((back.port, back.region, back.data), (26379, told().region, b"proof".to_vec()));
    }

    #[test]
    fn what_is_not_of_our_making_is_refused() {
        let good = told().encode();
        assert!(Told::parse(&good[..TOLD_LEN - 1]).is_none(), "too short");
        for (place, value) in [(0, 0), (0, 2), (1, MAX_PRIVATE_DATA as u8 + 1), (1, 255)] {
            let mut bytes = good;
            bytes[place] = value;
            assert!(Told::parse(&bytes).is_none(), "byte {place} = {value}");
        }
        let mut bytes = good;
        bytes[8..20].fill(0xff);
        assert!(Told::parse(&bytes).is_none(), "a region beyond the end of addresses");
    }
}
