//! A peer that follows no rules.
//!
//! An endpoint has two connections: one with an honest peer, on a link, and one whose peer is the input. The input speaks
//! both on a link of its own and on that connection's anchor, and may name the honest connection too. Whatever it says
//! costs its own connection at most: the endpoint does not panic, and the honest connection goes on carrying bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire, InMemoryAnchor};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use netacc_device::{
    Anchor, CmEvent, ConnectionManager, Device, FourTuple, Instant, Operation, Payload, QueuePairId, Region,
    RemoteRegion, WorkRequest, WorkRequestId,
};
use netacc_driver::{
    Endpoint, EndpointConfig, LinkIo, Readiness, ReadySink, ReceivingFlow, SendingFlow, Sharing, Shutdown, StreamCell,
};
use netacc_proto::{
    number_message, Accept, CacheConfig, ControlMessage, FlowGrant, FlowRequest, Hello, Immediate, MessageKind, Open,
    Reason, Record, RecordHeader, RecordKind, RingDescriptor, Role, TxSink, WireTuple, CONTROL_SLOTS, CONTROL_SLOT_LEN,
    CREDIT_BLOCK_LEN, FLOW_RECORD_HEADER_LEN, LINK_REGION_LEN, VERSION,
};

const RING_LEN: u32 = 4096;
/// Actions of one input at most. Arbitrary; more than any finding so far needed.
const MAX_ACTIONS: usize = 64;

/// The next action of the stranger, or of the program at its other end.
#[derive(Debug, Arbitrary)]
enum Action {
    /// A control message of these bytes, with the header of a type that exists if `kind` names one.
    Control { kind: u8, bytes: [u8; CONTROL_SLOT_LEN] },
    /// OPEN for a connection, with a hint, pledge and ring that may be false.
    Open { honest: bool, hint: Option<u32>, pledge: u16, ring: bool, slot: u16 },
    /// Any immediate.
    Immediate(u32),
    /// A message of a kind, for the stream's slot or another one.
    Signal { kind: u8, slot: Option<u16> },
    /// The credit word of the link.
    LinkCredit(u64),
    /// The credit word of the stream's ring.
    StreamCredit(u64),
    /// Bytes into the stream's ring, with a DATA message.
    Data { offset: u16, len: u16, rewind: bool },
    /// Bytes on the anchor.
    AnchorBytes(u8),
    /// A record on the anchor, with the right token or another.
    AnchorRecord { marker: bool, position: u16, end: u16, token: bool, cut: u8 },
    /// The end of the anchor's direction.
    AnchorEnd { reset: bool },
    /// The program sends.
    ProgramSends(u16),
    /// The program receives.
    ProgramReceives(u16),
    /// The program shuts down.
    ProgramShutsDown(u8),
    /// The program asks for promotion, or demotion.
    ProgramMoves { promote: bool },
    /// Time passes.
    Time { ms: u16 },
    /// FLOW to a socket of the program's.
    Flow { ring: bool, slot: u16 },
    /// A DATAGRAM in the flow that was granted, with a header that may be true.
    Datagram { offset: u16, len: u16, header: Option<[u8; FLOW_RECORD_HEADER_LEN]> },
    /// GRANT for the program's flow.
    Grant { ring: bool, slot: u16 },
    /// The status of that flow.
    FlowStatus { word: u64, message: bool },
    /// The kernel brings the program a proof of the one flow or of the other.
    Proof { sending: bool, token: bool },
    /// The program sends a datagram.
    ProgramSendsDatagram(u16),
    /// The program receives datagrams, and sleeps.
    ProgramSleeps,
}

/// Runs the conversation that the bytes describe.
///
/// # Panics
/// If the endpoint panics, or the honest connection does not carry bytes any more.
pub fn stranger(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let (trust_hints, mapped) = input.arbitrary().unwrap_or_default();
    let mut world = World::new(trust_hints, mapped);
    for _ in 0..MAX_ACTIONS {
        if input.is_empty() {
            break;
        }
        let Ok(action) = input.arbitrary() else { break };
        world.act(&action);
        world.run();
    }
    world.check_honest();
}

/// The flows that were granted to the stranger.
#[derive(Clone, Default)]
struct Owner(Arc<Mutex<Vec<Arc<ReceivingFlow>>>>);

impl ReadySink for Owner {
    fn takes_flows(&self) -> bool {
        true
    }
    fn flow_offered(&self, _: &FourTuple) -> Result<u16, Reason> {
        Ok(PROOF_PORT)
    }
    fn flow_granted(&self, flow: &Arc<ReceivingFlow>) {
        self.0.lock().expect("no thread panics with it").push(flow.clone());
    }
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, _: &Arc<StreamCell>) {}
}

struct World {
    server: Endpoint,
    client: Endpoint,
    honest: (Arc<StreamCell>, Arc<StreamCell>),
    stranger: Stranger,
    /// The program's end of the connection with the stranger.
    victim: Arc<StreamCell>,
    wire: AnchorWire,
    now: u64,
    owner: Owner,
    /// The program's flow to the stranger.
    sending: Arc<SendingFlow>,
}

struct Stranger {
    device: Arc<LoopbackDevice>,
    qp: QueuePairId,
    local: Region,
    remote: RemoteRegion,
    /// Its ring, which the victim writes into.
    ring: Region,
    anchor: InMemoryAnchor,
    /// Control messages.
    sent: usize,
    /// Messages, where they are numbered.
    numbered: Option<u64>,
}

const HONEST_PORT: u16 = 40_001;
const STRANGER_PORT: u16 = 40_002;
const PROOF_PORT: u16 = 40_003;

impl World {
    fn new(trust_hints: bool, mapped: bool) -> World {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let owner = Owner::default();
        let (server, device) = endpoint(&fabric, trust_hints, mapped, owner.clone());
        let (client, _) = endpoint(&fabric, trust_hints, mapped, Owner::default());
        let (near, far, _) = anchor_pair(AnchorConfig::default());
        let accepted = server.adopt(Role::Acceptor, tuple(HONEST_PORT).reversed(), Box::new(far));
        server.publish(&accepted);
        let opened = client.adopt(Role::Opener, tuple(HONEST_PORT), Box::new(near));
        let (anchor, far, wire) = anchor_pair(AnchorConfig::default());
        let victim = server.adopt(Role::Acceptor, tuple(STRANGER_PORT).reversed(), Box::new(far));
        server.publish(&victim);
        let stranger = Stranger::connect(&fabric, &server, &device, anchor, mapped);
        let sending =
            server.open_flow(ConnectionManager::address(&*stranger.device), tuple(STRANGER_PORT), PROOF_PORT, 0);
        let mut world = World {
            server,
            client,
            honest: (opened, accepted),
            stranger,
            victim,
            wire,
            now: 1_000_000_000,
            owner,
            sending,
        };
        world.client.promote(&world.honest.0).expect("the acceptor is published");
        for _ in 0..4 {
            world.run();
            world.honest.0.lock(&world.client).change(|stream| stream.progress_anchor(false));
            world.honest.1.lock(&world.server).change(|stream| stream.progress_anchor(false));
        }
        world.check_honest();
        world
    }

    fn run(&mut self) {
        for _ in 0..4 {
            for endpoint in [&self.client, &self.server] {
                self.now += 1;
                endpoint.progress(Instant::from_nanos(self.now));
                endpoint.poll(endpoint.default_cq());
            }
            self.wire.deliver_all();
            self.victim.lock(&self.server).change(|stream| stream.progress_anchor(false));
        }
    }

    /// The honest connection is on its link and carries bytes both ways.
    fn check_honest(&mut self) {
        let ends = [(&self.honest.0, &self.client), (&self.honest.1, &self.server)];
        for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            assert_eq!(from.0.lock(from.1).tx_sink(), TxSink::Link, "the honest connection left its link");
            assert_eq!(from.0.lock(from.1).change(|stream| stream.send_slice(b"still here", false)), LinkIo::Done(10));
            to.1.poll(to.1.default_cq());
            to.1.poll(to.1.control_cq());
            let mut bytes = [0; 16];
            let n = to.0.lock(to.1).change(|stream| {
                let n = stream.peek_slice(&mut bytes, 0);
                stream.consume_link(n);
                n
            });
            assert_eq!(&bytes[..n], b"still here");
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Time { ms } => self.now += u64::from(ms) * 1_000_000,
            Action::ProgramSends(n) => {
                let mut guard = self.victim.lock(&self.server);
                if guard.tx_sink() == TxSink::Link {
                    guard.change(|stream| stream.send_slice(&vec![7; usize::from(n)], false));
                }
            }
            Action::ProgramReceives(n) => {
                let mut bytes = vec![0; usize::from(n)];
                self.victim.lock(&self.server).change(|stream| {
                    let got = stream.peek_slice(&mut bytes, 0);
                    stream.consume_link(got);
                });
            }
            Action::ProgramShutsDown(how) => {
                let how = [Shutdown::Write, Shutdown::Read, Shutdown::Both][usize::from(how) % 3];
                self.victim.lock(&self.server).change(|stream| stream.shutdown(how));
            }
            Action::ProgramMoves { promote: true } => {
                // Refused, mostly: the stranger opened the connection.
                let _ = self.server.promote(&self.victim);
            }
            Action::ProgramMoves { promote: false } => {
                self.victim.lock(&self.server).change(|stream| stream.demote(netacc_proto::Reason::KernelOnly));
            }
            Action::ProgramSendsDatagram(n) => {
                let _ = self.server.send_datagram(&self.sending, &vec![6; usize::from(n) % 2000], 64, 0);
                while self.server.take_returned(&self.sending).is_some() {}
            }
            Action::ProgramSleeps => {
                for flow in self.granted() {
                    self.server.keep_awake(&flow);
                    while self.server.receive_datagram(&flow).is_some() {}
                    self.server.let_sleep(&flow);
                }
            }
            Action::Proof { sending, token } => {
                let nonce = match sending {
                    true => self.stranger.requested().map(|request| request.nonce),
                    false => self.stranger.granted().map(|grant| grant.nonce),
                };
                let token = nonce.filter(|_| token).unwrap_or([1; 16]);
                let proof = Record { kind: RecordKind::Flow, position: 0, end: 0, token }.encode();
                self.sending.handle_proof(&proof);
                for flow in self.granted() {
                    let _ = self.server.handle_source_proof(&flow, &proof);
                    self.server.keep_awake(&flow);
                }
            }
            _ => self.stranger.act(action, self.victim.number()),
        }
    }
}

impl World {
    fn granted(&self) -> Vec<Arc<ReceivingFlow>> {
        self.owner.0.lock().expect("no thread panics with it").clone()
    }
}

impl Stranger {
    fn connect(
        fabric: &Fabric,
        server: &Endpoint,
        peer: &Arc<LoopbackDevice>,
        anchor: InMemoryAnchor,
        mapped: bool,
    ) -> Stranger {
        let device = fabric.open(device_config(mapped));
        let cq = device.create_cq().expect("a fresh device has queues");
        let address = ConnectionManager::address(&**peer);
        ConnectionManager::connect(&*device, address, cq, LINK_REGION_LEN, &[]).expect("the server listens");
        for round in 0..20 {
            server.progress(Instant::from_nanos(round));
            if let Some(CmEvent::Established { qp, local, remote, .. }) = device.poll_event() {
                device.post_recv(qp, 64).expect("a fresh queue pair has room");
                let ring = device.alloc_region(qp, CREDIT_BLOCK_LEN + RING_LEN as usize).expect("there is memory");
                let numbered = (!mapped).then_some(0);
                let mut stranger = Stranger { device, qp, local, remote, ring, anchor, sent: 0, numbered };
                let hello =
                    Hello { version: VERSION, receive_depth: 64, max_streams: 4, credential: None, datagrams: true };
                stranger.send(&ControlMessage::Hello(hello).encode());
                return stranger;
            }
        }
        unreachable!("the server accepts");
    }

    fn act(&mut self, action: &Action, victim: u32) {
        match *action {
            Action::Control { kind, mut bytes } => {
                if kind % 8 != 0 {
                    (bytes[0], bytes[1]) = (kind % 8, 0);
                }
                self.send(&bytes);
            }
            Action::Open { honest, hint, pledge, ring, slot } => {
                let port = if honest { HONEST_PORT } else { STRANGER_PORT };
                let ring_len = if ring { RING_LEN } else { 64 << 20 };
                let ring = RingDescriptor { rkey: self.ring.remote.rkey, base: self.ring.remote.base, ring_len };
                let open = Open {
                    slot,
                    tuple: wire_tuple(&tuple(port)),
                    hint: hint.unwrap_or(victim),
                    pledge: u64::from(pledge),
                    nonce: [9; 16],
                    ring,
                };
                self.send(&ControlMessage::Open(open).encode());
            }
            Action::Immediate(bits) => {
                self.post(self.remote, 0, Some(bits), &[]);
            }
            Action::Signal { kind, slot } => {
                let slot = slot.or_else(|| self.accepted().map(|accept| accept.slot)).unwrap_or(0);
                self.write(self.remote, 0, Some(u32::from(kind % 16) << 28 | u32::from(slot)), &[]);
            }
            Action::LinkCredit(consumed) => self.write(self.remote, 0, None, &consumed.to_le_bytes()),
            Action::StreamCredit(consumed) => {
                if let Some(ring) = self.their_ring() {
                    self.write(ring, 0, None, &consumed.to_le_bytes());
                }
            }
            Action::Data { offset, len, rewind } => {
                let Some((accept, ring)) = self.accepted().zip(self.their_ring()) else { return };
                let imm = Immediate { rewind, ..Immediate::new(MessageKind::Data, accept.slot) };
                let at = CREDIT_BLOCK_LEN as u64 + u64::from(offset);
                self.write(ring, at, Some(imm.encode()), &vec![8; usize::from(len) % 5000]);
            }
            Action::AnchorBytes(n) => drop(self.anchor.try_write(&vec![b'x'; usize::from(n)])),
            Action::AnchorRecord { marker, position, end, token, cut } => {
                let kind = if marker { RecordKind::Marker } else { RecordKind::Resume };
                let nonce = self.accepted().map(|accept| accept.nonce).filter(|_| token);
                let (position, end) = (u64::from(position), u64::from(end));
                let bytes = Record { kind, position, end, token: nonce.unwrap_or([1; 16]) }.encode();
                let len = bytes.len() - usize::from(cut) % bytes.len();
                drop(self.anchor.try_write(&bytes[..len]));
            }
            Action::AnchorEnd { reset: true } => self.anchor.reset(),
            Action::AnchorEnd { reset: false } => drop(self.anchor.shutdown_write()),
            _ => self.act_on_flow(action),
        }
    }

    fn act_on_flow(&mut self, action: &Action) {
        match *action {
            Action::Flow { ring, slot } => {
                let addresses = wire_tuple(&tuple(STRANGER_PORT));
                let request = FlowRequest {
                    slot,
                    addresses,
                    nonce: [9; 16],
                    ring: self.descriptor(ring),
                    proof_port: PROOF_PORT,
                };
                self.send(&ControlMessage::Flow(request).encode());
            }
            Action::Grant { ring, slot } => {
                let Some(request) = self.requested() else { return };
                let ring = self.descriptor(ring);
                let grant = FlowGrant { peer_slot: request.slot, slot, nonce: [9; 16], ring, proof_port: PROOF_PORT };
                self.send(&ControlMessage::Grant(grant).encode());
            }
            Action::Datagram { offset, len, header } => {
                let Some(grant) = self.granted() else { return };
                let mut record = vec![8; usize::from(len) % 300];
                let true_len = record.len().saturating_sub(FLOW_RECORD_HEADER_LEN) as u16;
                let sleeps = 0;
                let honest = RecordHeader { len: true_len, ttl: 64, tos: 0, sleeps, by_kernel: 0 }.encode();
                record.iter_mut().zip(header.unwrap_or(honest)).for_each(|(to, byte)| *to = byte);
                let imm = Immediate::new(MessageKind::Datagram, grant.slot).encode();
                let to = RemoteRegion { rkey: grant.ring.rkey, base: grant.ring.base, ..self.remote };
                self.write(to, CREDIT_BLOCK_LEN as u64 + u64::from(offset), Some(imm), &record);
            }
            Action::FlowStatus { word, message } => {
                let Some(request) = self.requested() else { return };
                let imm = message.then(|| Immediate::new(MessageKind::Status, request.slot).encode());
                let to = RemoteRegion { rkey: request.ring.rkey, base: request.ring.base, ..self.remote };
                self.write(to, 0, imm, &word.to_le_bytes());
            }
            _ => {}
        }
    }

    fn send(&mut self, message: &[u8]) {
        let at = CREDIT_BLOCK_LEN + self.sent % CONTROL_SLOTS * CONTROL_SLOT_LEN;
        self.sent += 1;
        self.write(self.remote, at as u64, Some(Immediate::new(MessageKind::Control, 0).encode()), message);
    }

    /// Writes, with the next number if it is a message that has one.
    fn write(&mut self, region: RemoteRegion, at: u64, imm: Option<u32>, bytes: &[u8]) {
        let number = imm.and(self.numbered);
        let imm = imm.map(|imm| number.map_or(imm, |before| number_message(imm, before)));
        if self.post(region, at, imm, bytes) {
            self.numbered = number.map(|before| before + 1).or(self.numbered);
        }
    }

    /// Writes, with this immediate. The peer never sees a request that the device refuses: then false.
    fn post(&self, region: RemoteRegion, at: u64, imm: Option<u32>, bytes: &[u8]) -> bool {
        let operation = Operation::Write { rkey: region.rkey, offset: region.base.wrapping_add(at), imm };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::Inline(bytes), signaled: false };
        self.device.post_send(self.qp, &[wr]).is_ok()
    }

    fn descriptor(&self, ring: bool) -> RingDescriptor {
        let ring_len = if ring { RING_LEN } else { 64 << 20 };
        RingDescriptor { rkey: self.ring.remote.rkey, base: self.ring.remote.base, ring_len }
    }

    /// The last ACCEPT that it got.
    fn accepted(&self) -> Option<Accept> {
        self.last(|message| match message {
            ControlMessage::Accept(accept) => Some(accept),
            _ => None,
        })
    }

    fn granted(&self) -> Option<FlowGrant> {
        self.last(|message| match message {
            ControlMessage::Grant(grant) => Some(grant),
            _ => None,
        })
    }

    fn requested(&self) -> Option<FlowRequest> {
        self.last(|message| match message {
            ControlMessage::Flow(request) => Some(request),
            _ => None,
        })
    }

    fn last<T>(&self, wanted: impl Fn(ControlMessage) -> Option<T>) -> Option<T> {
        (0..CONTROL_SLOTS).rev().find_map(|n| {
            let mut bytes = [0; CONTROL_SLOT_LEN];
            self.local.memory.read(CREDIT_BLOCK_LEN + n * CONTROL_SLOT_LEN, &mut bytes).then_some(())?;
            ControlMessage::decode(&bytes).ok().and_then(&wanted)
        })
    }

    fn their_ring(&self) -> Option<RemoteRegion> {
        let ring = self.accepted()?.ring;
        Some(RemoteRegion { rkey: ring.rkey, base: ring.base, ..self.remote })
    }
}

/// Flows are on links only where memory is not mapped. Inline room for all messages of a stranger, but long DATA.
fn device_config(mapped: bool) -> LoopbackConfig {
    match mapped {
        true => LoopbackConfig::shm(),
        false => LoopbackConfig::soft_roce(),
    }
}

fn endpoint(fabric: &Fabric, trust_hints: bool, mapped: bool, owner: Owner) -> (Endpoint, Arc<LoopbackDevice>) {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    let nonce = || {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&NONCE.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        bytes
    };
    let device = fabric.open(device_config(mapped));
    let config = EndpointConfig {
        ring_len: RING_LEN,
        message_len: 1024,
        sharing: Sharing::UpTo(4),
        receive_depth: 64,
        cache: CacheConfig { expire: Some(Duration::from_secs(1)), max_all: 4, max_per: 4 },
        trust_hints,
        key: None,
        stall_patience: None,
        idle_after: netacc_driver::IDLE_AFTER,
    };
    let (sink, wake) = (Arc::new(owner), Box::new(|| {}));
    let made = Endpoint::new(device.clone(), device.clone(), device.clone(), config, sink, wake, Box::new(nonce));
    (made.expect("a loopback device has queues"), device)
}

fn tuple(port: u16) -> FourTuple {
    FourTuple { local: ([127, 0, 0, 1], port).into(), remote: ([127, 0, 0, 1], 6379).into() }
}

fn wire_tuple(tuple: &FourTuple) -> WireTuple {
    let address = |address: std::net::SocketAddr| match address {
        std::net::SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped().octets(), v4.port()),
        std::net::SocketAddr::V6(v6) => (v6.ip().octets(), v6.port()),
    };
    WireTuple { local: address(tuple.local), remote: address(tuple.remote) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a stranger's words made an endpoint panic or took the honest connection off its link.
    #[test]
    fn noise_does_not_affect_the_other_connection() {
        for seed in 0..3_000 {
            stranger(&crate::noise(seed, 64 + seed as usize % 1500));
        }
    }

    // Breaks if the inputs reached nothing: a stranger that follows the rules gets onto a link, and one that does not
    // loses its connection.
    #[test]
    fn a_stranger_that_follows_the_rules_is_promoted_until_it_does_not() {
        let mut world = World::new(true, true);
        world.act(&Action::Open { honest: false, hint: None, pledge: 0, ring: true, slot: 0 });
        world.run();
        let token = world.stranger.accepted().is_some();
        assert!(token, "the server has accepted");
        world.act(&Action::AnchorRecord { marker: true, position: 0, end: 0, token, cut: 0 });
        world.run();
        assert!(world.victim.lock(&world.server).proto().is_linked());
        world.act(&Action::Data { offset: 0, len: 10, rewind: true });
        world.run();
        let mut bytes = [0; 16];
        assert_eq!(world.victim.lock(&world.server).change(|stream| stream.peek_slice(&mut bytes, 0)), 10);
        world.act(&Action::StreamCredit(1 << 40));
        world.act(&Action::Signal { kind: MessageKind::CreditGive as u8, slot: None });
        world.run();
        assert!(world.victim.lock(&world.server).proto().failure().is_some());
        world.check_honest();
    }

    // Breaks if the inputs reached no flow of datagrams, in either direction, or if a false status cost more than its link.
    #[test]
    fn a_stranger_that_follows_the_rules_has_flows_until_it_does_not() {
        let mut world = World::new(true, false);
        let act = |world: &mut World, actions: &[Action]| {
            for action in actions {
                world.act(action);
                world.run();
            }
        };
        act(&mut world, &[Action::Flow { ring: true, slot: 5 }, Action::Proof { sending: false, token: true }]);
        act(&mut world, &[Action::Datagram { offset: 0, len: 40, header: None }]);
        assert!(world.granted()[0].has_more());
        act(&mut world, &[Action::Grant { ring: true, slot: 6 }, Action::Proof { sending: true, token: true }]);
        act(&mut world, &[Action::FlowStatus { word: 3, message: true }, Action::ProgramSendsDatagram(9)]);
        assert_eq!(world.sending.counts().link, 1);
        act(&mut world, &[Action::FlowStatus { word: u64::MAX, message: true }]);
        assert!(world.sending.is_closed() && world.granted()[0].is_closed());
        world.check_honest();
    }
}
