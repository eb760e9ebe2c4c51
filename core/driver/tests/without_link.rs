//! Streams for which there is no link: the keys of the two sides differ, or there is no room for one. And strangers who
//! break the rules.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use netacc_device::{
    Anchor, CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, Device, FourTuple, Instant,
    Operation, Payload, PeerAddress, QueuePairId, Receives, Region, RemoteRegion, WorkRequest, WorkRequestId,
};
use netacc_driver::loopback;
use netacc_driver::{Endpoint, EndpointConfig, Readiness, ReadySink, Sharing, Spread, StreamCell, CONTEST_PATIENCE};
use netacc_proto::{
    number_message, CacheConfig, ControlMessage, Credential, Failure, Hello, Immediate, MessageKind, Open,
    PreSharedKey, Reason, RingDescriptor, WireTuple, CONTROL_SLOT_LEN, CREDIT_BLOCK_LEN, LINK_REGION_LEN, NO_SLOT,
    SETUP_LIMIT, UNUSED_LIMIT, VERSION,
};

use crate::common::{config, connect, connect_over, nonce, run, tuple, Deaf};

fn endpoint(fabric: &Fabric, key: Option<&[u8]>) -> (Endpoint, Arc<LoopbackDevice>) {
    on_device(fabric.open(LoopbackConfig::shm()), key, 4)
}

fn on_device(
    device: Arc<LoopbackDevice>,
    key: Option<&[u8]>,
    streams_per_link: u16,
) -> (Endpoint, Arc<LoopbackDevice>) {
    configured(device, key, config(streams_per_link))
}

fn configured(
    device: Arc<LoopbackDevice>,
    key: Option<&[u8]>,
    config: EndpointConfig,
) -> (Endpoint, Arc<LoopbackDevice>) {
    let config = EndpointConfig {
        // A stream that uses no link stays: only a refused link ends.
        cache: CacheConfig { expire: None, max_all: 4, max_per: 4 },
        key: key.map(|key| PreSharedKey::new(key).expect("long enough")),
        stall_patience: None,
        idle_after: netacc_driver::IDLE_AFTER,
        ..config
    };
    (loopback::open(device.clone(), config, Deaf), device)
}

const KEY: &[u8] = b"the key of the two of them";
const OTHER: &[u8] = b"another process's key";

fn count(endpoint: &Endpoint, counter: &str) -> u64 {
    endpoint.counters().snapshot()[counter]
}

fn reasons(endpoint: &Endpoint, reason: Reason) -> u64 {
    endpoint.counters().reasons().get(reason.as_str()).copied().unwrap_or(0)
}

#[test]
fn with_one_key_streams_go_onto_links_and_share_them() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, _)) = (endpoint(&fabric, Some(KEY)), endpoint(&fabric, Some(KEY)));
    for port in [40_001, 40_002] {
        let (near, far) = connect(&client, &server, port);
        client.promote(&near).expect("the acceptor is published");
        run([&client, &server]);
        assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    }
    assert_eq!(count(&client, "links_established"), 1, "proven once, used twice");
    assert_eq!((count(&client, "links_refused"), count(&server, "links_refused")), (0, 0));
}

/// Breaks if a stream went onto a link whose other end has not shown the key; if it did not stay whole on TCP; if
/// either side did not give the reason; and if the link were left standing.
#[test]
fn with_different_keys_or_one_alone_streams_stay_on_tcp_for_that_reason() {
    //= spec §2.5.4
    //= type=test
    //# A side that refuses a link sends REFUSE, in which the opener's slot is 0xffff, and nothing more. A side that
    //# reads that ends the link.
    for (near_key, far_key, reason) in [
        (Some(KEY), Some(OTHER), Reason::KeyMismatch),
        (Some(KEY), None, Reason::KeyMissing),
        (None, Some(KEY), Reason::KeyMissing),
    ] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let ((client, _), (server, _)) = (endpoint(&fabric, near_key), endpoint(&fabric, far_key));
        let (near, far) = connect(&client, &server, 40_003);
        for attempts in 1..3 {
            client.promote(&near).expect("the acceptor is published");
            run([&client, &server]);
            assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
            assert_eq!(near.lock(&client).proto().reason(), reason);
            for side in [&client, &server] {
                assert_eq!((reasons(side, reason), count(side, "links_refused")), (attempts, attempts), "{reason}");
                assert_eq!(side.links().len(), 0, "the link is ended on both sides");
                assert_eq!((count(side, "violations"), count(side, "links_failed")), (0, 0));
            }
            assert_eq!(count(&client, "opens_sent"), 0);
        }
    }
}

/// A stranger that connects to a device and sends arbitrary messages.
struct Stranger {
    device: Arc<LoopbackDevice>,
    qp: QueuePairId,
    local: Region,
    remote: RemoteRegion,
    sent: usize,
}

impl Stranger {
    /// Connected to `server` at `peer`.
    fn at(fabric: &Fabric, server: &Endpoint, peer: PeerAddress) -> Stranger {
        let device = fabric.open(LoopbackConfig::soft_roce());
        let cq = device.create_cq().expect("it has queues");
        Self::connect(device, cq, server, peer)
    }

    fn connect(device: Arc<LoopbackDevice>, cq: CompletionQueueId, server: &Endpoint, peer: PeerAddress) -> Stranger {
        ConnectionManager::connect(&*device, peer, cq, LINK_REGION_LEN, &[]).expect("the server listens");
        for round in 0..20 {
            server.progress(Instant::from_nanos(round));
            if let Some(CmEvent::Established { qp, local, remote, .. }) = device.poll_event() {
                device.post_recv(qp, 64).expect("it has room");
                return Stranger { device, qp, local, remote, sent: 0 };
            }
        }
        panic!("not accepted");
    }

    fn send(&mut self, message: &ControlMessage) {
        let at = CREDIT_BLOCK_LEN + self.sent * CONTROL_SLOT_LEN;
        self.sent += 1;
        self.write(at as u64, Some(Immediate::new(MessageKind::Control, 0).encode()), &message.encode());
    }

    /// As [`send`](Stranger::send), where messages are numbered and all were control messages.
    fn send_numbered(&mut self, message: &ControlMessage) {
        let at = CREDIT_BLOCK_LEN + self.sent * CONTROL_SLOT_LEN;
        let imm = number_message(Immediate::new(MessageKind::Control, 0).encode(), self.sent as u64);
        self.sent += 1;
        self.write(at as u64, Some(imm), &message.encode());
    }

    /// Sends a message that consists of its immediate only.
    fn signal(&self, kind: MessageKind, slot: u16) {
        self.write(0, Some(Immediate::new(kind, slot).encode()), &[]);
    }

    /// Claims to have consumed so many messages.
    fn claim(&self, consumed: u64) {
        self.write(0, None, &consumed.to_le_bytes());
    }

    fn write(&self, at: u64, imm: Option<u32>, bytes: &[u8]) {
        let operation = Operation::Write { rkey: self.remote.rkey, offset: self.remote.base + at, imm };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::Inline(bytes), signaled: false };
        assert_eq!(self.device.post_send(self.qp, &[wr]), Ok(1));
    }

    /// The n-th message that it received.
    fn received(&self, n: usize) -> Option<ControlMessage> {
        let mut bytes = [0; CONTROL_SLOT_LEN];
        self.local.memory.read(CREDIT_BLOCK_LEN + n * CONTROL_SLOT_LEN, &mut bytes).then_some(())?;
        ControlMessage::decode(&bytes).ok()
    }
}

fn hello(credential: Option<Credential>) -> ControlMessage {
    ControlMessage::Hello(Hello { version: VERSION, receive_depth: 64, max_streams: 4, credential, datagrams: false })
}

const EMPTY: Credential = Credential { nonce: [7; 16], proof: [0; 32] };

fn open(tuple: &FourTuple) -> ControlMessage {
    let ring = RingDescriptor { rkey: netacc_device::RemoteKey(1), base: 0, ring_len: 4096 };
    open_with(tuple, netacc_device::UNKNOWN_STREAM, ring)
}

fn open_with(tuple: &FourTuple, hint: u32, ring: RingDescriptor) -> ControlMessage {
    let wire = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped().octets(), v4.port()),
        SocketAddr::V6(v6) => (v6.ip().octets(), v6.port()),
    };
    let tuple = WireTuple { local: wire(tuple.local), remote: wire(tuple.remote) };
    ControlMessage::Open(Open { slot: 0, tuple, hint, pledge: 0, nonce: [0; 16], ring })
}

/// Breaks if an OPEN were handled before the proof: a stranger could have a connection of its own accelerated, or find
/// out which there are.
#[test]
fn an_open_before_the_proof_is_refused() {
    //= spec §2.5.3
    //= type=test
    //# Before it has verified the connecting side's proof, the accepting side refuses every OPEN.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, device)) = (endpoint(&fabric, Some(KEY)), endpoint(&fabric, Some(KEY)));
    let (_near, far) = connect(&client, &server, 40_004);
    let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    stranger.send(&hello(Some(EMPTY)));
    stranger.send(&open(&tuple(40_004)));
    run([&client, &server]);
    assert!(matches!(stranger.received(0), Some(ControlMessage::Hello(Hello { credential: Some(_), .. }))));
    let Some(ControlMessage::Refuse(refuse)) = stranger.received(1) else { panic!("{:?}", stranger.received(1)) };
    assert_eq!((refuse.peer_slot, Reason::from_code(refuse.reason)), (0, Reason::KeyMissing));
    assert!(far.lock(&server).proto().is_plain());
    assert_eq!((count(&server, "opens_refused"), count(&server, "opens_accepted")), (1, 0));
}

/// Breaks if a wrong proof, or one that belongs to another link, were accepted.
#[test]
fn a_proof_that_is_wrong_or_replayed_is_refused_and_counted() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, device)) = (endpoint(&fabric, Some(KEY)), endpoint(&fabric, Some(KEY)));
    let address = ConnectionManager::address(&*device);
    let mut first = Stranger::at(&fabric, &server, address);
    first.send(&hello(Some(EMPTY)));
    run([&client, &server]);
    let Some(ControlMessage::Hello(Hello { credential: Some(shown), .. })) = first.received(0) else {
        panic!("{:?}", first.received(0))
    };
    // The server's own proof, sent back to it.
    first.send(&ControlMessage::Proof(shown.proof));
    run([&client, &server]);
    let refused = |stranger: &Stranger| match stranger.received(1) {
        Some(ControlMessage::Refuse(r)) => (r.peer_slot, Reason::from_code(r.reason)),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&first), (NO_SLOT, Reason::KeyMismatch));
    assert_eq!((reasons(&server, Reason::KeyMismatch), count(&server, "links_refused")), (1, 1));

    // A second try on the same link is a violation, and ends it.
    first.send(&ControlMessage::Proof(shown.proof));
    run([&client, &server]);
    assert_eq!((count(&server, "violations"), server.links().len()), (1, 0));
}

/// Breaks if strangers could hold links for as long as they like.
#[test]
fn a_link_that_is_never_proven_is_ended() {
    //= spec §2.5.5
    //= type=test
    //# A link that is not ready for streams after SETUP_LIMIT (10 s) is ended.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, device)) = (endpoint(&fabric, Some(KEY)), endpoint(&fabric, Some(KEY)));
    let address = ConnectionManager::address(&*device);
    let mut silent_after_hello = Stranger::at(&fabric, &server, address);
    silent_after_hello.send(&hello(Some(EMPTY)));
    let _silent = Stranger::at(&fabric, &server, address);
    let (near, _far) = connect(&client, &server, 40_005);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert_eq!(server.links().len(), 3);
    let limit = SETUP_LIMIT.as_nanos() as u64;
    assert!(server.progress(Instant::from_nanos(limit - 1)).is_some_and(|at| at.as_nanos() <= limit + 20));
    assert_eq!(server.links().len(), 3);
    server.progress(Instant::from_nanos(limit + 20));
    assert_eq!(server.links().len(), 1, "the one that was proven stays");
    assert_eq!(reasons(&server, Reason::KeyMissing), 2);
    assert!(near.lock(&client).proto().is_linked());

    // Without a key it is the missing HELLO.
    let (server, device) = endpoint(&fabric, None);
    let _silent = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    server.progress(Instant::from_nanos(0));
    assert_eq!(server.links().len(), 1);
    server.progress(Instant::from_nanos(limit + 20));
    assert_eq!((server.links().len(), reasons(&server, Reason::KeyMissing)), (0, 0));
}

/// Breaks if strangers could keep links for as long as they like where no key is needed, or if a process that uses its
/// link lost it.
#[test]
fn an_unused_link_is_ended() {
    //= spec §2.5.6
    //= type=test
    //# The accepting side ends a link on which no stream was opened within UNUSED_LIMIT (60 s).
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, device)) = (endpoint(&fabric, None), endpoint(&fabric, None));
    let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    stranger.send(&hello(None));
    stranger.send(&open(&tuple(40_000)));
    let (near, far) = connect(&client, &server, 40_010);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert_eq!((server.links().len(), count(&server, "opens_refused")), (2, 1));
    // The honest one has been used, and is empty now.
    near.lock(&client).change(|stream| stream.demote(Reason::Requested));
    run([&client, &server]);
    assert!(far.lock(&server).proto().is_plain());
    let limit = UNUSED_LIMIT.as_nanos() as u64;
    assert!(server.progress(Instant::from_nanos(limit - 1)).is_some_and(|at| at.as_nanos() <= limit + 20));
    assert_eq!(server.links().len(), 2);
    server.progress(Instant::from_nanos(limit + 20));
    client.progress(Instant::from_nanos(limit + 20));
    assert_eq!((server.links().len(), client.links().len()), (1, 1), "the one that was used stays");
    assert_eq!((count(&server, "links_failed"), count(&server, "violations")), (0, 0));

    // A process that has connected keeps a link that its stream did not wait for: its cache decides for how long.
    let (client, _) = endpoint(&fabric, None);
    let (near, _far) = connect(&client, &server, 40_011);
    client.promote(&near).expect("the acceptor is published");
    client.forget(&near);
    run([&client, &server]);
    assert_eq!((client.links().len(), count(&client, "opens_sent")), (1, 0));
    client.progress(Instant::from_nanos(limit + 20));
    assert_eq!(client.links().len(), 1);
}

/// Breaks if a link were kept whose peer sends false credit in a word that only the silence check read, and for which
/// no message is sent.
#[test]
fn a_false_consumed_count_ends_a_watched_link() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (server, device) = on_device(fabric.open(LoopbackConfig::erdma()), None, 4);
    let mut liar = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    liar.send(&hello(None));
    server.progress(Instant::from_nanos(0));
    liar.claim(1000);
    server.progress(Instant::from_nanos(2_000_000_000));
    server.progress(Instant::from_nanos(3_000_000_000));
    assert_eq!((server.links().len(), count(&server, "violations")), (0, 1));
}

/// Breaks if a peer could make this side count without limit, or harm more than its own link.
#[test]
fn a_link_may_be_refused_for_unknown_reasons() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, device)) = (endpoint(&fabric, None), endpoint(&fabric, None));
    let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    let (near, _far) = connect(&client, &server, 40_006);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    for reason in [9999, Reason::LinkFailed as u16] {
        let refuse = netacc_proto::Refuse { peer_slot: NO_SLOT, reason, redirect_port: 1 };
        stranger.send(&ControlMessage::Refuse(refuse));
        run([&client, &server]);
        stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    }
    assert_eq!((reasons(&server, Reason::NotAdmitted), reasons(&server, Reason::LinkFailed)), (2, 0));
    assert!(near.lock(&client).proto().is_linked());
}

/// Breaks if a violation that costs its stream alone, or one that costs the link, went uncounted, or if either cost
/// more.
#[test]
fn each_violation_is_counted_once() {
    //= spec §1.4
    //= type=test
    //# A violation costs the stream: the detecting side aborts it and counts the event.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, device)) = (endpoint(&fabric, None), endpoint(&fabric, None));
    let (_near, far) = connect(&client, &server, 40_009);
    let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    stranger.send(&hello(None));
    let region = stranger.device.alloc_region(stranger.qp, CREDIT_BLOCK_LEN + 4096).expect("it has memory");
    let ring = RingDescriptor { rkey: region.remote.rkey, base: region.remote.base, ring_len: 4096 };
    stranger.send(&open_with(&tuple(40_009), far.number(), ring));
    run([&client, &server]);
    let Some(ControlMessage::Accept(accept)) = stranger.received(1) else { panic!("{:?}", stranger.received(1)) };
    for violations in [0, 1, 1] {
        stranger.signal(MessageKind::Fin, accept.slot);
        run([&client, &server]);
        let violated = matches!(far.lock(&server).proto().failure(), Some(Failure::Violation(_)));
        assert_eq!((violated, count(&server, "violations")), (violations > 0, violations));
        assert_eq!(server.links().len(), 1);
    }
    stranger.claim(1000);
    stranger.signal(MessageKind::LinkGive, 0);
    run([&client, &server]);
    assert_eq!((count(&server, "violations"), server.links().len()), (2, 0));
}

/// Breaks if a peer that ends its link after an OPEN were treated as a violator, or if one that names a ring that it
/// does not have were not.
#[test]
fn an_opener_that_ends_its_link_breaks_no_rule() {
    //= spec §1.4
    //= type=test
    //# A violation costs the stream: the detecting side aborts it and counts the event.
    for (ends, expected, violations) in [(true, Reason::LinkFailed, 0), (false, Reason::Violation, 1)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let ((client, _), (server, device)) = (endpoint(&fabric, None), endpoint(&fabric, None));
        let (_near, far) = connect(&client, &server, 40_016);
        let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
        stranger.send(&hello(None));
        run([&client, &server]);
        let region = stranger.device.alloc_region(stranger.qp, CREDIT_BLOCK_LEN + 4096).expect("it has memory");
        let ring_len = if ends { 4096 } else { 8192 };
        let ring = RingDescriptor { rkey: region.remote.rkey, base: region.remote.base, ring_len };
        stranger.send(&open_with(&tuple(40_016), far.number(), ring));
        if ends {
            stranger.device.destroy_qp(stranger.qp);
        }
        run([&client, &server]);
        assert_eq!((count(&server, "opens_refused"), reasons(&server, expected)), (1, 1), "{expected}");
        assert_eq!(count(&server, "violations"), violations);
        assert!(far.lock(&server).proto().is_plain());
    }
}

/// Breaks if a process that names another's connection could keep it off links for as long as it likes.
#[test]
fn a_stream_that_a_stranger_has_claimed_is_its_openers_after_a_while() {
    // Beyond every position that will ever be read; and where the stream is, so that it is granted.
    for pledge in [u64::MAX, 0] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let ((client, _), (server, device)) = (endpoint(&fabric, None), endpoint(&fabric, None));
        let (a, b, wire) = anchor_pair(AnchorConfig::default());
        let (mut to, mut from) = (a.clone(), b.clone());
        let (near, far) = connect_over(&client, &server, 40_010, (a, b));
        let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
        stranger.send(&hello(None));
        let region = stranger.device.alloc_region(stranger.qp, CREDIT_BLOCK_LEN + 4096).expect("it has memory");
        let ring = RingDescriptor { rkey: region.remote.rkey, base: region.remote.base, ring_len: 4096 };
        let ControlMessage::Open(open) = open_with(&tuple(40_010), far.number(), ring) else { panic!("it is one") };
        stranger.send(&ControlMessage::Open(Open { pledge, ..open }));
        run([&client, &server]);
        assert_eq!(count(&server, "opens_accepted"), 1);
        // More bytes follow on the connection, so that no marker can come.
        assert_eq!(to.try_write(b"go on").expect("there is room"), 5);
        near.lock(&client).anchor_sent(5);
        wire.deliver_all();
        far.lock(&server).change(|stream| stream.progress_anchor(false));
        assert_eq!(from.try_read(&mut [0; 64]).expect("it is there"), 5);
        far.lock(&server).anchor_received(5);

        let promote = || {
            client.promote(&near).expect("the acceptor is published");
            for _ in 0..4 {
                run([&client, &server]);
                wire.deliver_all();
                near.lock(&client).change(|stream| stream.progress_anchor(false));
                far.lock(&server).change(|stream| stream.progress_anchor(false));
            }
            near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked()
        };
        assert!(!promote() && near.lock(&client).proto().reason() == Reason::PeerBusy);
        let due = CONTEST_PATIENCE.as_nanos() as u64;
        assert!(server.progress(Instant::from_nanos(due - 1)).is_some_and(|at| at.as_nanos() <= due + 20));
        assert!(!promote());
        server.progress(Instant::from_nanos(due + 20));
        server.progress(Instant::from_nanos(due + 20));
        assert!(promote(), "{pledge}");
        // The stranger's answer to its attempt refers to nothing.
        for kind in [MessageKind::Switched, MessageKind::Fin, MessageKind::Close] {
            stranger.signal(kind, 0);
        }
        run([&client, &server]);
        assert_ne!(far.lock(&server).proto().peer_fin(), netacc_proto::PeerFin::Received);
        assert!(far.lock(&server).proto().is_linked() && near.lock(&client).proto().is_linked());
        assert_eq!((count(&server, "violations"), count(&client, "violations")), (0, 0));
        assert_eq!(server.links().len(), 2);
    }
}

/// Breaks if requests that are refused were not counted, by this side or by its connection manager.
#[test]
fn requests_that_are_refused_are_counted() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (server, device) = endpoint(&fabric, None);
    server.suspend_promotion(true);
    let stranger = fabric.open(LoopbackConfig::soft_roce());
    let cq = stranger.create_cq().expect("it has queues");
    let peer = ConnectionManager::address(&*device);
    ConnectionManager::connect(&*stranger, peer, cq, LINK_REGION_LEN, &[]).expect("the server listens");
    server.progress(Instant::from_nanos(0));
    assert_eq!((count(&server, "requests_refused"), server.links().len()), (1, 0));

    let device = fabric.open(LoopbackConfig::shm());
    let picky = Picky { device: device.clone(), refused: Mutex::new(vec![3, 4]) };
    let (sink, waits) = (Arc::new(Patient::default()), |patient: &Patient| patient.waits.load(Relaxed));
    let owner = sink.clone();
    let made =
        Endpoint::new(device.clone(), Arc::new(picky), device, config(1), owner, Box::new(|| {}), Box::new(nonce));
    let server = made.expect("a loopback device has queues");
    assert_eq!(waits(&sink), 0);
    server.progress(Instant::from_nanos(0));
    assert_eq!(count(&server, "requests_refused"), 7);
    // Breaks if the owner does not know that the control path may stand still, or prepares for that without a cause.
    assert_eq!(waits(&sink), 1);
    server.progress(Instant::from_nanos(1));
    assert_eq!(waits(&sink), 1);
}

/// An owner that counts the calls that may wait for a device, and does something before the next one.
#[derive(Default)]
struct Patient {
    waits: AtomicU32,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl ReadySink for Patient {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, _: &Arc<StreamCell>) {}
    fn wait_for_device(&self, call: &mut dyn FnMut()) {
        self.waits.fetch_add(1, Relaxed);
        let before = self.before.lock().unwrap().take();
        before.into_iter().for_each(|before| before());
        call();
    }
}

/// Breaks if a stream is accepted on a link whose streams have left it because it is dead, but whose queue pair is not ended
/// yet: nobody would take it off.
#[test]
fn a_dead_link_accepts_no_stream() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, _) = on_device(fabric.open(LoopbackConfig::soft_roce()), None, 4);
    let (device, sink) = (fabric.open(LoopbackConfig::soft_roce()), Arc::new(Patient::default()));
    let owner = sink.clone();
    let made = Endpoint::new(
        device.clone(),
        device.clone(),
        device.clone(),
        config(4),
        owner,
        Box::new(|| {}),
        Box::new(nonce),
    );
    let server = Arc::new(made.expect("a loopback device has queues"));
    let [first, second] = [40_013, 40_014].map(|port| connect(&client, &server, port).1);
    let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
    stranger.send(&hello(None));
    let ring = RingDescriptor { rkey: stranger.local.remote.rkey, base: 0, ring_len: 4096 };
    let asks = |port, far: &Arc<StreamCell>| open_with(&tuple(port), far.number(), ring);
    stranger.send_numbered(&asks(40_013, &first));
    run([&client, &server]);
    let link = first.lock(&server).link().cloned().expect("it is accepted");
    // Out of turn, so the link ends.
    stranger.write(0, Some(number_message(Immediate::new(MessageKind::LinkWant, 0).encode(), 7)), &[]);
    let (owner, dead, last) = (server.clone(), link.clone(), asks(40_014, &second));
    *sink.before.lock().unwrap() = Some(Box::new(move || {
        assert!(dead.is_dead());
        stranger.send_numbered(&last);
        owner.poll_link(&dead);
    }));
    server.poll_link(&link);
    assert_eq!((sink.waits.load(Relaxed), server.links().len()), (1, 0));
    assert!(second.lock(&server).link().is_none());
    assert_eq!(count(&server, "opens_accepted"), 1);
}

/// A connection manager that refuses requests itself, and counts them. To report them it may have to wait.
struct Picky {
    device: Arc<LoopbackDevice>,
    refused: Mutex<Vec<u64>>,
}

impl ConnectionManager for Picky {
    fn address(&self) -> PeerAddress {
        ConnectionManager::address(&*self.device)
    }
    fn connect_with(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
        receives: Receives,
    ) -> Result<ConnectionId, CmError> {
        self.device.connect_with(peer, cq, region_len, private_data, receives)
    }
    fn accept_with(
        &self,
        id: ConnectionId,
        cq: CompletionQueueId,
        region_len: usize,
        receives: Receives,
    ) -> Result<(), CmError> {
        self.device.accept_with(id, cq, region_len, receives)
    }
    fn reject(&self, id: ConnectionId) {
        self.device.reject(id);
    }
    fn poll_event(&self) -> Option<CmEvent> {
        self.refused.lock().unwrap().pop().map(CmEvent::Refused)
    }
    fn may_wait(&self) -> bool {
        !self.refused.lock().unwrap().is_empty()
    }
    fn event_fds(&self) -> Vec<std::os::fd::RawFd> {
        Vec::new()
    }
}

/// Breaks if a side that has no room for a link did not report that, or blamed its peer; and if it did not try again
/// later.
#[test]
fn without_room_for_a_link_a_stream_stays_on_tcp_for_that_reason() {
    let small = |change: fn(&mut LoopbackConfig)| {
        let mut config = LoopbackConfig::shm();
        change(&mut config);
        config
    };
    let one_qp = small(|config| config.max_qp = 1);
    // Enough for a link's own region and one stream's.
    let little = small(|config| config.memory_limit_bytes = LINK_REGION_LEN + 4096 + CREDIT_BLOCK_LEN);
    // Enough for two links and one stream.
    let few = small(|config| config.max_mr = 3);
    let plenty = LoopbackConfig::shm();
    for (near_config, far_config, near_reason, far_reason) in [
        (one_qp.clone(), plenty.clone(), Some(Reason::Exhausted), None),
        (plenty.clone(), one_qp, None, Some(Reason::Exhausted)),
        (little.clone(), plenty.clone(), Some(Reason::MemoryLimit), None),
        (plenty.clone(), little, None, Some(Reason::MemoryLimit)),
        (few.clone(), plenty.clone(), Some(Reason::Exhausted), None),
        (plenty, few, None, Some(Reason::Exhausted)),
    ] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, _) = on_device(fabric.open(near_config), None, 1);
        let (server, _) = on_device(fabric.open(far_config), None, 1);
        let (first, first_far) = connect(&client, &server, 40_007);
        client.promote(&first).expect("the acceptor is published");
        run([&client, &server]);
        assert!(first.lock(&client).proto().is_linked(), "there is room for one");

        let (second, second_far) = connect(&client, &server, 40_008);
        client.promote(&second).expect("the acceptor is published");
        run([&client, &server]);
        assert!(second.lock(&client).proto().is_plain() && second_far.lock(&server).proto().is_plain());
        if let Some(reason) = near_reason {
            assert_eq!((second.lock(&client).proto().reason(), reasons(&client, reason)), (reason, 1));
            assert_eq!(reasons(&client, Reason::PeerNotFound), 0, "it is not the peer's fault");
        }
        if let Some(reason) = far_reason {
            assert_eq!(reasons(&server, reason), 1);
            let reported = second.lock(&client).proto().reason();
            assert!([Reason::NotAdmitted, reason].contains(&reported), "{reported}");
        }
        assert!(first.lock(&client).proto().is_linked(), "the first has lost nothing");

        // The first goes, and its link with it.
        first.lock(&client).change(|stream| stream.demote(Reason::Requested));
        run([&client, &server]);
        first_far.lock(&server).change(|stream| stream.progress_anchor(false));
        first.lock(&client).change(|stream| stream.progress_anchor(false));
        run([&client, &server]);
        client.promote(&second).expect("the acceptor is published");
        run([&client, &server]);
        assert!(second.lock(&client).proto().is_linked() && second_far.lock(&server).proto().is_linked());
    }
}

/// Breaks if a message that the device has executed twice counts twice, or if one that is missing is not missed: SoftRoCE does
/// both under load.
#[test]
fn a_message_out_of_turn_ends_its_link() {
    //= spec §3.1.4
    //= type=test
    for (second, ends) in [(1, false), (0, true), (2, true)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (server, device) = on_device(fabric.open(LoopbackConfig::soft_roce()), None, 4);
        let (client, _) = on_device(fabric.open(LoopbackConfig::soft_roce()), None, 4);
        let mut stranger = Stranger::at(&fabric, &server, ConnectionManager::address(&*device));
        stranger.send(&hello(None));
        run([&client, &server]);
        let want = Immediate::new(MessageKind::LinkWant, 0).encode();
        stranger.write(0, Some(number_message(want, second)), &[]);
        run([&client, &server]);
        assert_eq!((server.links().len(), count(&server, "links_out_of_turn")), if ends { (0, 1) } else { (1, 0) });
        assert_eq!(count(&server, "violations"), 0, "the peer may have done nothing wrong");
    }
}

/// Breaks if streams shared links of a device for ever that executes messages out of turn, whichever side has seen it, or if one
/// stayed on TCP for it.
#[test]
fn a_device_that_broke_the_order_of_messages_has_a_link_for_each_stream() {
    // The opener has seen it when it had links already; the acceptor before it had any, and its HELLO says so.
    for (seen_by, before, expected) in [(0, 3, vec![1, 1, 1, 1, 2]), (1, 0, vec![1, 1, 1])] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let spread = Spread { dedicated: 2, most: 4 };
        let sharing = Sharing::Automatic { mapped: spread, posted: spread };
        let ends = [(); 2].map(|()| {
            configured(fabric.open(LoopbackConfig::soft_roce()), None, EndpointConfig { sharing, ..config(1) })
        });
        let [(client, _), (server, _)] = &ends;
        let promoted = |ports: std::ops::Range<u16>| {
            let pairs: Vec<_> = ports.map(|port| connect(client, server, port)).collect();
            pairs.iter().for_each(|(near, _)| client.promote(near).expect("the acceptor is published"));
            run([client, server]);
            pairs
        };
        let kept = promoted(40_300..40_300 + before);
        let (seeing, device) = &ends[seen_by];
        let mut stranger = Stranger::at(&fabric, seeing, ConnectionManager::address(&**device));
        stranger.send(&hello(None));
        run([client, server]);
        assert_eq!(count(seeing, "sharing_stopped"), 0);
        stranger.write(0, Some(number_message(Immediate::new(MessageKind::LinkWant, 0).encode(), 0)), &[]);
        run([client, server]);
        assert_eq!((count(seeing, "links_out_of_turn"), count(seeing, "sharing_stopped")), (1, 1));
        let new = promoted(40_310..40_313);
        assert!(kept.iter().chain(&new).all(|(near, _)| near.lock(client).proto().is_linked()));
        let mut streams: Vec<_> = client.links().iter().map(|link| link.streams).collect();
        streams.sort_unstable();
        assert_eq!(streams, expected);
        // As many links as streams are made at a time.
        let crowd: Vec<_> = (40_320..40_330).map(|port| connect(client, server, port)).collect();
        crowd.iter().for_each(|(near, _)| client.promote(near).expect("the acceptor is published"));
        assert!(client.backlog().contains(&("connecting", crowd.len())), "{:?}", client.backlog());
    }
}
