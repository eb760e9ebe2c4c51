//! Finding the holder of the other end of a connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use netacc_device::middleware::Event;
use netacc_device::{
    CmEvent, ConnectionManager, Device, Directory, DirectoryError, FourTuple, Instant, Obstacle, Operation, Payload,
    PeerAddress, WorkRequest, WorkRequestId, UNKNOWN_STREAM,
};
use netacc_driver::{Endpoint, LinkIo};
use netacc_proto::{
    ControlMessage, Hello, Immediate, MessageKind, Reason, Role, CREDIT_BLOCK_LEN, LINK_REGION_LEN, SETUP_LIMIT,
    VERSION,
};

use crate::common::{connect, run, tuple, Deaf};
use crate::endpoints::{finding, read, write};

/// A directory in which peers can be found but not their streams: each side has its own streams only.
struct OwnOnly {
    device: Arc<LoopbackDevice>,
    own: Mutex<Vec<(FourTuple, u32)>>,
    unreachable: Mutex<Vec<PeerAddress>>,
    /// The process that is found in place of the holder of the connection.
    found: Mutex<Option<PeerAddress>>,
    /// The address of another process of this host, and the process there.
    holder: Mutex<Option<u16>>,
    neighbour: Mutex<Option<PeerAddress>>,
    /// Links come from other peers than connections.
    strangers: AtomicBool,
    /// The reason why no peer is found.
    obstacle: Mutex<Option<Obstacle>>,
    /// Connections cannot be announced, for this reason.
    unpublished: Mutex<Option<DirectoryError>>,
}

impl OwnOnly {
    fn endpoint(fabric: &Fabric) -> (Endpoint, Arc<OwnOnly>) {
        let device = fabric.open(LoopbackConfig::shm());
        let directory = Arc::new(OwnOnly {
            device: device.clone(),
            own: Mutex::default(),
            unreachable: Mutex::default(),
            found: Mutex::default(),
            holder: Mutex::default(),
            neighbour: Mutex::default(),
            strangers: AtomicBool::default(),
            obstacle: Mutex::default(),
            unpublished: Mutex::default(),
        });
        (finding(device, Some(directory.clone()), |_: &Event| {}, Deaf), directory)
    }
}

impl Directory for OwnOnly {
    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        if let Some(error) = *self.unpublished.lock().unwrap() {
            return Err(error);
        }
        self.own.lock().unwrap().push((*tuple, stream));
        self.device.publish(tuple, stream)
    }
    fn withdraw(&self, tuple: &FourTuple, stream: u32) {
        self.own.lock().unwrap().retain(|own| *own != (*tuple, stream));
        self.device.withdraw(tuple, stream);
    }
    fn lookup(&self, tuple: &FourTuple) -> Option<(PeerAddress, u32)> {
        let holder = self.device.lookup(tuple).map(|(peer, _)| peer);
        self.found.lock().unwrap().or(holder).map(|peer| (peer, UNKNOWN_STREAM))
    }
    fn admits(&self, _: PeerAddress, _: &FourTuple) -> bool {
        !self.strangers.load(Ordering::Relaxed)
    }
    fn holder(&self, _: &FourTuple) -> Option<u16> {
        *self.holder.lock().unwrap()
    }
    fn neighbour(&self, _: PeerAddress, port: u16) -> Option<PeerAddress> {
        self.neighbour.lock().unwrap().filter(|_| port == 7)
    }
    fn resolve(&self, tuple: &FourTuple) -> Option<u32> {
        self.own.lock().unwrap().iter().find(|(own, _)| own == tuple).map(|(_, stream)| *stream)
    }
    fn obstacle(&self, _: &FourTuple, accepted: bool) -> Option<Obstacle> {
        self.obstacle.lock().unwrap().filter(|obstacle| accepted || *obstacle != Obstacle::PortTaken)
    }
    fn mark_unreachable(&self, peer: PeerAddress) {
        self.unreachable.lock().unwrap().push(peer);
    }
}

#[test]
fn an_acceptor_finds_by_its_addresses_the_stream_that_the_opener_cannot_name() {
    //= spec §4.1.3
    //= type=test
    //# The hint 0xffffffff means that the opener does not have the acceptor's stream number; the acceptor then finds
    //# the stream by the addresses.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, directory)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let (_, other) = connect(&client, &server, 40_003);
    let (near, far) = connect(&client, &server, 40_004);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert!(other.lock(&server).proto().is_plain());

    let (near, far) = connect(&client, &server, 40_005);
    client.promote(&near).expect("the acceptor is published");
    directory.own.lock().unwrap().clear();
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
    assert_eq!(near.lock(&client).proto().reason(), Reason::UnknownStream);
}

/// Breaks if any process that can reach a link could name another's connection on it.
#[test]
fn an_open_on_a_link_from_elsewhere_is_refused() {
    //= spec §4.1.4
    //= type=test
    //# An OPEN is refused on a link whose other end is not at the anchor's other address.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, directory)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let (near, far) = connect(&client, &server, 40_010);
    directory.strangers.store(true, Ordering::Relaxed);
    *directory.holder.lock().unwrap() = Some(7);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
    assert_eq!(near.lock(&client).proto().reason(), Reason::NotAdmitted);
    assert_eq!(server.counters().snapshot()["opens_refused"], 1);

    // Such a process does not learn the holder, either.
    directory.own.lock().unwrap().clear();
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert_eq!(near.lock(&client).proto().reason(), Reason::UnknownStream);
}

/// Two processes accept on one port, and the one that is found does not have the connection.
#[test]
fn a_stream_follows_a_referral_to_the_process_that_holds_it() {
    //= spec §4.1.5
    //= type=test
    //# An acceptor that does not hold the anchor, but finds the process of its host that does, names in REFUSE the port
    //# at which that process accepts links. The opener MAY connect there, once, and to no other address.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, finder) = OwnOnly::endpoint(&fabric);
    let ((first, first_directory), (second, second_directory)) =
        (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let address = |directory: &OwnOnly| ConnectionManager::address(&*directory.device);
    *finder.found.lock().unwrap() = Some(address(&first_directory));
    *finder.neighbour.lock().unwrap() = Some(address(&second_directory));
    *first_directory.holder.lock().unwrap() = Some(7);
    let rounds = || (0..5).for_each(|_| [&first, &second].into_iter().for_each(|other| run([&client, other])));

    let (near, far) = connect(&client, &second, 40_011);
    client.promote(&near).expect("found");
    rounds();
    assert!(near.lock(&client).proto().is_linked() && far.lock(&second).proto().is_linked());
    assert_eq!(first.counters().snapshot()["opens_refused"], 1);
    assert_eq!(write(&client, &near, b"to the second"), LinkIo::Done(13));
    rounds();
    assert_eq!(read(&second, &far, 64), b"to the second");

    // Two processes that name each other, and neither has it.
    *second_directory.holder.lock().unwrap() = Some(7);
    let (near, _far) = connect(&client, &second, 40_012);
    second_directory.own.lock().unwrap().clear();
    client.promote(&near).expect("found");
    rounds();
    assert!(near.lock(&client).proto().is_plain());
    assert_eq!(near.lock(&client).proto().reason(), Reason::HeldElsewhere);
    assert_eq!(client.counters().snapshot()["opens_sent"], 4);
}

#[test]
fn unreachable_peers_are_reported_to_the_directory() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, directory), (server, _)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let (near, _far) = connect(&client, &server, 40_006);
    let (peer, _) = directory.lookup(&tuple(40_006)).expect("published");
    server.suspend_promotion(true);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert_eq!(*directory.unreachable.lock().unwrap(), [peer]);
}

/// Breaks if a process that cannot be found, for a reason that this side has, were reported as not accelerated.
#[test]
fn the_reason_names_the_obstacle_if_no_peer_is_found() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, finder), (server, directory)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let (near, far) = connect(&client, &server, 40_013);
    directory.withdraw(&tuple(40_013).reversed(), far.number());
    assert_eq!(client.promote(&near), Err(Reason::PeerNotFound));
    assert_eq!(server.obstacle(&far, Role::Acceptor), Reason::PeerNotFound);
    for (obstacle, reasons) in [
        (Obstacle::NoDevice, [Reason::DeviceAbsent; 2]),
        (Obstacle::NoPort, [Reason::NoLinkPort; 2]),
        (Obstacle::PortTaken, [Reason::PeerNotFound, Reason::LinkPortTaken]),
    ] {
        *finder.obstacle.lock().unwrap() = Some(obstacle);
        *directory.obstacle.lock().unwrap() = Some(obstacle);
        assert_eq!(client.promote(&near), Err(reasons[0]));
        assert_eq!(server.obstacle(&far, Role::Acceptor), reasons[1]);
    }
}

/// Breaks if only the process, and not the connection, gave the reason why peers cannot find it.
#[test]
fn an_acceptor_that_cannot_be_found_has_a_reason() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, directory)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    for (error, reason) in [(DirectoryError::NoPort, Reason::NoLinkPort), (DirectoryError::Full, Reason::DirectoryFull)]
    {
        *directory.unpublished.lock().unwrap() = Some(error);
        let (_near, far) = connect(&client, &server, 40_014);
        assert_eq!(far.lock(&server).proto().reason(), reason);
        assert_eq!(server.counters().reasons()[reason.as_str()], 1);
    }
}

/// Breaks if a stream that waits for a link which never comes to be were forgotten silently, and its peer requested
/// another link at once.
#[test]
fn a_stream_whose_link_fails_has_a_reason() {
    let limit = Instant::from_nanos(SETUP_LIMIT.as_nanos() as u64 + 100);
    for (refused_version, reason) in [(None, Reason::LinkFailed), (Some(VERSION + 1), Reason::Violation)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let ((client, directory), (server, _)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
        let (near, _far) = connect(&client, &server, 40_015);
        let stranger = fabric.open(LoopbackConfig::shm());
        let peer = ConnectionManager::address(&*stranger);
        *directory.found.lock().unwrap() = Some(peer);
        client.promote(&near).expect("a peer is found");
        let Some(CmEvent::Request { id, .. }) = stranger.poll_event() else { panic!("no request") };
        stranger.accept(id, stranger.create_cq().expect("it has queues"), LINK_REGION_LEN).expect("it has room");
        client.progress(Instant::from_nanos(0));
        let Some(CmEvent::Established { qp, remote, .. }) = stranger.poll_event() else { panic!("not connected") };
        stranger.post_recv(qp, 64).expect("it has room");
        client.progress(Instant::from_nanos(1));
        if let Some(version) = refused_version {
            let hello = Hello { version, receive_depth: 64, max_streams: 4, credential: None, datagrams: false };
            let bytes = ControlMessage::Hello(hello).encode();
            let imm = Some(Immediate::new(MessageKind::Control, 0).encode());
            let offset = remote.base + CREDIT_BLOCK_LEN as u64;
            let operation = Operation::Write { rkey: remote.rkey, offset, imm };
            let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::Inline(&bytes), signaled: false };
            assert_eq!(stranger.post_send(qp, &[wr]), Ok(1));
            client.progress(Instant::from_nanos(2));
        } else {
            assert_eq!(client.links().len(), 1);
            client.progress(limit);
        }
        assert_eq!(client.links().len(), 0);
        assert_eq!(near.lock(&client).proto().reason(), reason);
        assert_eq!(client.counters().reasons()[reason.as_str()], 1);
        assert_eq!(client.counters().snapshot()["violations"], u64::from(refused_version.is_some()));
        assert_eq!(*directory.unreachable.lock().unwrap(), [peer]);
    }
}
