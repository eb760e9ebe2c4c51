//! Two endpoints on loopback devices: bringing links up, opening streams, refusing strangers.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire, InMemoryAnchor};
use netacc_device::loopback::{DeliveryMode, Fabric, Kill, LoopbackConfig, LoopbackDevice, QueuePairEnd};
use netacc_device::middleware::{Event, Observer, Trace};
use netacc_device::{
    Anchor, AnchorError, AnchorPosition, ConnectionManager, Directory, DirectoryError, FourTuple, Instant, PeerAddress,
    UNKNOWN_STREAM,
};
use netacc_driver::{AnchorProgress, Endpoint, LinkIo, Readiness, ReadySink, Shutdown, StreamCell, STALL_PATIENCE};
use netacc_proto::{Reason, RxSource, TxSink, RECORD_GRACE};

use crate::common::{config, connect, connect_over, nonce, run, tuple, Deaf};

fn endpoint(fabric: &Fabric) -> Endpoint {
    observed(fabric, |_: &Event| {})
}

/// An endpoint whose calls to the device are observed.
fn observed(fabric: &Fabric, observer: impl Observer + 'static) -> Endpoint {
    owned(fabric, observer, Deaf)
}

/// An endpoint with this owner.
fn owned(fabric: &Fabric, observer: impl Observer + 'static, owner: impl ReadySink + 'static) -> Endpoint {
    finding(fabric.open(LoopbackConfig::shm()), None, observer, owner)
}

/// An endpoint whose links carry so many streams.
fn sharing(fabric: &Fabric, streams_per_link: u16) -> Endpoint {
    with_sharing(fabric.open(LoopbackConfig::shm()), None, |_: &Event| {}, Deaf, streams_per_link)
}

/// An endpoint that finds its peers in `directory`, or in the device's own.
fn finding(
    device: Arc<LoopbackDevice>,
    directory: Option<Arc<dyn Directory>>,
    observer: impl Observer + 'static,
    owner: impl ReadySink + 'static,
) -> Endpoint {
    with_sharing(device, directory, observer, owner, 1)
}

fn with_sharing(
    device: Arc<LoopbackDevice>,
    directory: Option<Arc<dyn Directory>>,
    observer: impl Observer + 'static,
    owner: impl ReadySink + 'static,
    streams_per_link: u16,
) -> Endpoint {
    let traced = Arc::new(Trace::new(device.clone(), observer));
    let directory = directory.unwrap_or_else(|| device.clone());
    let made = Endpoint::new(
        traced,
        device,
        directory,
        config(streams_per_link),
        Arc::new(owner),
        Box::new(|| {}),
        Box::new(nonce),
    );
    made.expect("a loopback device has queues")
}

fn write(endpoint: &Endpoint, cell: &Arc<StreamCell>, bytes: &[u8]) -> LinkIo {
    let mut guard = cell.lock(endpoint);
    // SAFETY: the slice is readable.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    unsafe {
        guard.send_link(bytes.as_ptr(), bytes.len(), false)
    }
}

/// As [`write`], with more to come.
fn write_more(endpoint: &Endpoint, cell: &Arc<StreamCell>, bytes: &[u8]) -> LinkIo {
    let mut guard = cell.lock(endpoint);
    // SAFETY: the slice is readable.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    unsafe {
        guard.send_link(bytes.as_ptr(), bytes.len(), true)
    }
}

fn read(endpoint: &Endpoint, cell: &Arc<StreamCell>, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    // SAFETY: the vector has `len` writable bytes.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    let got = unsafe { cell.lock(endpoint).recv_link(buf.as_mut_ptr(), len) };
    match got {
        LinkIo::Done(n) => buf.truncate(n),
        _ => buf.clear(),
    }
    buf
}

/// Breaks if either side speaks out of turn: the other would answer the first message with the end of the link.
#[test]
fn the_connecting_side_speaks_first_and_streams_follow() {
    //= spec §2.3.1
    //= type=test
    //# The connecting side sends HELLO first; the accepting side answers with its own.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (near, far) = connect(&client, &server, 40_000);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert_eq!(write(&client, &near, b"over the link"), LinkIo::Done(13));
    run([&client, &server]);
    assert_eq!(read(&server, &far, 64), b"over the link");
    assert_eq!(client.counters().snapshot()["violations"], 0);
    assert_eq!(server.counters().snapshot()["violations"], 0);
}

/// Breaks if each of several connections that are made at a time had a link made for it.
#[test]
fn streams_that_wait_for_a_link_share_it() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (sharing(&fabric, 4), sharing(&fabric, 4));
    let pairs: Vec<_> = (40_020..40_025).map(|port| connect(&client, &server, port)).collect();
    for (near, _) in &pairs {
        client.promote(near).expect("the acceptor is published");
    }
    run([&client, &server]);
    assert!(pairs
        .iter()
        .all(|(near, far)| near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked()));
    assert_eq!(client.counters().snapshot()["links_established"], 2, "five streams, four to a link");
}

/// Breaks if a stream were opened on a link that is dead, but has not ended yet because its peer may be ending.
#[test]
fn no_stream_is_opened_on_a_link_that_dies() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let device = fabric.open(LoopbackConfig::shm());
    let client = with_sharing(device.clone(), None, |_: &Event| {}, Deaf, 4);
    let server = sharing(&fabric, 4);
    let (first, second) = (connect(&client, &server, 40_030), connect(&client, &server, 40_031));
    client.promote(&first.0).expect("the acceptor is published");
    run([&client, &server]);
    let qp = first.0.lock(&client).link().expect("it is linked").qp();
    assert!(fabric.kill(QueuePairEnd { device: device.id(), qp }, Kill::default()));
    client.progress(Instant::from_nanos(0));
    client.promote(&second.0).expect("the acceptor is published");
    run([&client, &server]);
    let on_link = |stream: &Arc<StreamCell>| stream.lock(&client).link().map(|link| link.qp());
    assert_eq!(on_link(&first.0), Some(qp), "the anchor has not said that the peer has ended");
    assert!(second.0.lock(&client).proto().is_linked() && second.1.lock(&server).proto().is_linked());
    assert_eq!(client.counters().snapshot()["links_established"], 2);
}

/// A directory in which peers can be found but not their streams: each side knows its own.
struct OwnOnly {
    device: Arc<LoopbackDevice>,
    own: Mutex<Vec<(FourTuple, u32)>>,
    unreachable: Mutex<Vec<PeerAddress>>,
    /// Who is found in place of who holds the connection.
    found: Mutex<Option<PeerAddress>>,
    /// What another process of this host is said to listen at, and who is there.
    holder: Mutex<Option<u16>>,
    neighbour: Mutex<Option<PeerAddress>>,
    /// Links come from elsewhere than connections.
    strangers: AtomicBool,
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
        });
        (finding(device, Some(directory.clone()), |_: &Event| {}, Deaf), directory)
    }
}

impl Directory for OwnOnly {
    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
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
    fn note_unreachable(&self, peer: PeerAddress) {
        self.unreachable.lock().unwrap().push(peer);
    }
}

#[test]
fn an_acceptor_finds_by_its_addresses_the_stream_that_the_opener_cannot_name() {
    //= spec §4.1.3
    //= type=test
    //# The hint 0xffffffff says that the opener does not know the acceptor's stream number; the acceptor then finds
    //# the stream by the addresses.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, known)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let (_, other) = connect(&client, &server, 40_003);
    let (near, far) = connect(&client, &server, 40_004);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert!(other.lock(&server).proto().is_plain());

    let (near, far) = connect(&client, &server, 40_005);
    client.promote(&near).expect("the acceptor is published");
    known.own.lock().unwrap().clear();
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
    assert_eq!(near.lock(&client).proto().reason(), Reason::UnknownStream);
}

/// Breaks if whoever can reach a link could name anybody's connection on it.
#[test]
fn an_open_on_a_link_from_elsewhere_is_refused() {
    //= spec §4.1.4
    //= type=test
    //# An OPEN is refused on a link whose other end is not at the anchor's other address.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, known)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let (near, far) = connect(&client, &server, 40_010);
    known.strangers.store(true, Ordering::Relaxed);
    *known.holder.lock().unwrap() = Some(7);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
    assert_eq!(near.lock(&client).proto().reason(), Reason::NotAdmitted);
    assert_eq!(server.counters().snapshot()["opens_refused"], 1);

    // Nor is such a one told who has it.
    known.own.lock().unwrap().clear();
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert_eq!(near.lock(&client).proto().reason(), Reason::UnknownStream);
}

/// Two processes accept on one port, and the one that is found does not have the connection.
#[test]
fn a_stream_goes_on_to_the_process_that_holds_it() {
    //= spec §4.1.5
    //= type=test
    //# An acceptor that does not hold the anchor, but knows the process of its host that does, names in REFUSE the port at
    //# which that one accepts links. The opener MAY ask there, once, and at no other address.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, finder) = OwnOnly::endpoint(&fabric);
    let ((first, first_known), (second, second_known)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let address = |known: &OwnOnly| ConnectionManager::address(&*known.device);
    *finder.found.lock().unwrap() = Some(address(&first_known));
    *finder.neighbour.lock().unwrap() = Some(address(&second_known));
    *first_known.holder.lock().unwrap() = Some(7);
    let rounds = || (0..5).for_each(|_| [&first, &second].into_iter().for_each(|other| run([&client, other])));

    let (near, far) = connect(&client, &second, 40_011);
    client.promote(&near).expect("found");
    rounds();
    assert!(near.lock(&client).proto().is_linked() && far.lock(&second).proto().is_linked());
    assert_eq!(first.counters().snapshot()["opens_refused"], 1);
    assert_eq!(write(&client, &near, b"to the second"), LinkIo::Done(13));
    rounds();
    assert_eq!(read(&second, &far, 64), b"to the second");

    // Two that name each other, and neither has it.
    *second_known.holder.lock().unwrap() = Some(7);
    let (near, _far) = connect(&client, &second, 40_012);
    second_known.own.lock().unwrap().clear();
    client.promote(&near).expect("found");
    rounds();
    assert!(near.lock(&client).proto().is_plain());
    assert_eq!(near.lock(&client).proto().reason(), Reason::HeldElsewhere);
    assert_eq!(client.counters().snapshot()["opens_sent"], 4);
}

#[test]
fn the_directory_hears_of_peers_that_were_not_there() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, known), (server, _)) = (OwnOnly::endpoint(&fabric), OwnOnly::endpoint(&fabric));
    let (near, _far) = connect(&client, &server, 40_006);
    let (peer, _) = known.lookup(&tuple(40_006)).expect("published");
    server.hold_back(true);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert_eq!(*known.unreachable.lock().unwrap(), [peer]);
}

/// Breaks if a stream that is closed while it is plain can still be opened, by either side, before it is forgotten.
#[test]
fn a_plain_stream_that_is_closed_is_not_opened_any_more() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (near, _far) = connect(&client, &server, 40_007);
    assert!(near.lock(&client).close_plain());
    let _ = client.promote(&near);
    run([&client, &server]);
    assert_eq!(client.counters().snapshot()["opens_sent"], 0);

    let (near, far) = connect(&client, &server, 40_008);
    assert!(far.lock(&server).close_plain());
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert_eq!(server.counters().snapshot()["opens_accepted"], 0);
    assert!(near.lock(&client).proto().is_plain());

    let (near, far) = connect(&client, &server, 40_009);
    client.promote(&near).expect("the acceptor is published");
    run([&client, &server]);
    assert!(!near.lock(&client).close_plain() && !far.lock(&server).close_plain());
}

/// Breaks if the acceptor believed the directory's hint without looking at the addresses.
#[test]
fn an_open_for_a_connection_that_is_not_held_is_refused() {
    //= spec §4.1.2
    //= type=test
    //# OPEN names the anchor by its addresses; the acceptor refuses one that it does not hold.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (near, far) = connect(&client, &server, 40_001);
    // The acceptor's number now stands for another connection, while the directory still names it for the first.
    client.promote(&near).expect("the acceptor is published");
    server.forget(&far);
    let (_, other) = connect(&client, &server, 40_002);
    assert_eq!(other.number(), far.number());
    run([&client, &server]);
    assert!(!near.lock(&client).proto().is_linked() && !other.lock(&server).proto().is_linked());
    assert_eq!(server.counters().snapshot()["opens_refused"], 1);
    assert_eq!(client.counters().snapshot()["violations"], 0);
}

/// Breaks if bytes behind a pledge were left alone after the read that came up to it: an application that waits for
/// readiness after each read would wait for ever, because their arrival is long past.
#[test]
fn reading_up_to_a_pledge_looks_at_what_follows() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let (mut to, mut from) = (a.clone(), b.clone());
    let (near, far) = connect_over(&client, &server, 40_003, (a, b));
    assert_eq!(to.try_write(b"before").expect("there is room"), 6);
    near.lock(&client).anchor_sent(6);
    client.promote(&near).expect("the acceptor is published");
    for _ in 0..4 {
        run([&client, &server]);
    }
    // The acceptor waits until its application has read; the opener does not.
    near.lock(&client).void_pledge();
    assert_eq!(to.try_write(b"after").expect("there is room"), 5);
    near.lock(&client).anchor_sent(5);
    wire.settle();
    assert!(far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
    assert_eq!(from.try_read(&mut [0; 6]).expect("bytes are there"), 6);
    far.lock(&server).anchor_received(6);
    assert!(far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
    assert_eq!(client.counters().snapshot()["violations"], 0);
    // Read to the end, it may be promoted.
    assert_eq!(from.try_read(&mut [0; 64]).expect("bytes are there"), 5);
    far.lock(&server).anchor_received(5);
    client.promote(&near).expect("the acceptor is published");
    for _ in 0..4 {
        run([&client, &server]);
        wire.settle();
        near.lock(&client).progress_anchor(false);
        far.lock(&server).progress_anchor(false);
    }
    assert_eq!(write(&client, &near, b"by the link"), LinkIo::Done(11));
    run([&client, &server]);
    assert_eq!(read(&server, &far, 64), b"by the link");
}

/// Breaks if a reader waited for the rest of a record for ever: here there is none, the application's bytes look like it.
#[test]
fn bytes_that_look_like_a_record_are_delivered_after_a_while() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let mut to = a.clone();
    let (near, far) = connect_over(&client, &server, 40_004, (a, b));
    client.promote(&near).expect("the acceptor is published");
    while near.lock(&client).tx_sink() != TxSink::Pledged {
        server.progress(Instant::from_nanos(0));
        client.progress(Instant::from_nanos(0));
    }
    near.lock(&client).void_pledge();
    assert_eq!(to.try_write(&[0xA7, 0x9D]).expect("there is room"), 2);
    near.lock(&client).anchor_sent(2);
    wire.settle();
    server.progress(Instant::from_nanos(0));
    far.lock(&server).progress_anchor(false);
    assert!(!far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
    let early = Instant::from_nanos(RECORD_GRACE.as_nanos() as u64 / 2);
    let next = server.progress(Instant::from_nanos(1)).expect("it wants to look again");
    assert!(next > early, "{next:?}");
    server.progress(early);
    assert!(!far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
    server.progress(next);
    assert!(far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
}

/// Readiness of one stream, as others see it at certain moments.
#[derive(Clone, Default)]
struct Watch {
    cell: Arc<OnceLock<Arc<StreamCell>>>,
    seen: Arc<Mutex<Vec<Readiness>>>,
}

impl Watch {
    fn look(&self) {
        if let Some(cell) = self.cell.get() {
            self.seen.lock().expect("no test panics with it").push(cell.readiness());
        }
    }
}

/// An anchor that looks whenever something is written to it.
struct Looking(InMemoryAnchor, Watch);

impl Anchor for Looking {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        self.1.look();
        self.0.try_write(bytes)
    }
    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.0.try_read(buf)
    }
    fn try_peek(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.0.try_peek(buf)
    }
    fn position(&self) -> Option<AnchorPosition> {
        self.0.position()
    }
    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        self.0.shutdown_write()
    }
    fn shutdown_read(&mut self) -> Result<(), AnchorError> {
        self.0.shutdown_read()
    }
    fn is_broken(&self) -> bool {
        self.0.is_broken()
    }
    fn is_over(&self) -> bool {
        self.0.is_over()
    }
    fn clear_error(&mut self) {
        self.0.clear_error();
    }
    fn abort(&mut self) {
        self.0.abort();
    }
    fn reset(&mut self) {
        self.0.reset();
    }
    fn is_ended(&self) -> bool {
        self.0.is_ended()
    }
    fn unread(&self) -> u64 {
        self.0.unread()
    }
    fn set_low_water(&mut self, bytes: u32) {
        self.0.set_low_water(bytes);
    }
}

/// Breaks if a side asked for the peer's marker while it still told that readable bytes of the anchor are the
/// application's: a program that blocks after being told that there is something to read would block for ever.
#[test]
fn a_marker_is_never_taken_for_application_bytes() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (at_client, at_server) = (Watch::default(), Watch::default());
    let posts = at_server.clone();
    let server = observed(&fabric, move |event: &Event| {
        if matches!(event, Event::PostSend { .. }) {
            posts.look();
        }
    });
    let client = endpoint(&fabric);
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let (near, far) = connect_over(&client, &server, 40_005, (Looking(a, at_client.clone()), b));
    client.promote(&near).expect("the acceptor is published");
    while near.lock(&client).tx_sink() != TxSink::Pledged {
        server.progress(Instant::from_nanos(0));
        client.progress(Instant::from_nanos(0));
    }
    assert!(at_client.cell.set(near.clone()).is_ok() && at_server.cell.set(far).is_ok());
    for _ in 0..4 {
        run([&client, &server]);
        wire.settle();
        near.lock(&client).progress_anchor(false);
    }
    assert!(near.lock(&client).proto().is_linked());
    for (watch, first) in [(at_client, "the marker"), (at_server, "ACCEPT")] {
        let seen = watch.seen.lock().expect("no test panics with it").clone();
        assert!(!seen[0].contains(Readiness::KERNEL_RX), "at {first}: {seen:?}");
    }
}

/// Breaks if positions counted bytes that went by a link, or left out the records: the two ends would disagree as soon as
/// one of them asks its kernel, because another process has used the socket too.
#[test]
fn a_socket_that_others_have_used_is_promoted_again() {
    //= spec §4.2.6
    //= type=test
    //# At a promotion positions are counted anew: they begin at the number of bytes that stand on the anchor before the
    //# pledge, records and replayed bytes included.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let (mut to, mut from) = (a.clone(), b.clone());
    let (near, far) = connect_over(&client, &server, 40_006, (a, b));
    let settle = || {
        for _ in 0..4 {
            run([&client, &server]);
            wire.settle();
            near.lock(&client).progress_anchor(false);
            far.lock(&server).progress_anchor(false);
        }
    };
    client.promote(&near).expect("the acceptor is published");
    settle();
    assert_eq!(write(&client, &near, b"by the link"), LinkIo::Done(11));
    settle();
    assert_eq!(read(&server, &far, 64), b"by the link");
    near.lock(&client).demote(Reason::Requested);
    settle();
    assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
    // Another process of the client's writes, which this one does not see. The server has only counted itself.
    near.share();
    assert_eq!(to.try_write(b"by others").expect("there is room"), 9);
    wire.settle();
    assert_eq!(from.try_read(&mut [0; 64]).expect("it is there"), 9);
    far.lock(&server).anchor_received(9);
    near.unshare(near.shares());
    let carried = to.position().expect("the model knows");
    client.promote(&near).expect("the acceptor is published");
    settle();
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert_eq!(near.lock(&client).proto().positions(), (carried.written, carried.read));
    assert_eq!(write(&client, &near, b"by the link again"), LinkIo::Done(17));
    settle();
    assert_eq!(read(&server, &far, 64), b"by the link again");
}

/// A connection on its link.
struct Linked<'a> {
    ends: [(&'a Endpoint, Arc<StreamCell>); 2],
    wire: AnchorWire,
}

impl<'a> Linked<'a> {
    fn new(client: &'a Endpoint, server: &'a Endpoint, port: u16) -> Linked<'a> {
        let (a, b, wire) = anchor_pair(AnchorConfig::default());
        let (near, far) = connect_over(client, server, port, (a, b));
        client.promote(&near).expect("the acceptor is published");
        let pair = Linked { ends: [(client, near), (server, far)], wire };
        pair.settle(Instant::from_nanos(0));
        assert!(pair.ends.iter().all(|(endpoint, cell)| cell.lock(endpoint).proto().is_linked()));
        pair
    }

    /// Both processes do what there is to do.
    fn settle(&self, at: Instant) {
        for _ in 0..4 {
            self.ends[1].0.progress(at);
            self.settle_unpolled(at);
        }
    }

    /// Nobody polls for the server, unless its anchor, which is watched all the same, asks for that.
    fn settle_unpolled(&self, at: Instant) {
        for _ in 0..4 {
            self.ends[0].0.progress(at);
            self.wire.settle();
            self.ends.iter().for_each(|(endpoint, cell)| {
                let found = cell.lock(endpoint).progress_anchor(false);
                if found == AnchorProgress::Unpolled {
                    cell.take_in(endpoint);
                }
            });
        }
    }

    fn are_plain(&self) -> bool {
        self.ends.iter().all(|(endpoint, cell)| cell.lock(endpoint).proto().is_plain())
    }
}

/// Writes until there is no room; how many bytes that were.
fn fill(endpoint: &Endpoint, cell: &Arc<StreamCell>, message: &[u8]) -> usize {
    let mut written = 0;
    while let LinkIo::Done(n) = write(endpoint, cell, message) {
        written += n;
    }
    written
}

/// Breaks if a writer whose peer does not read waited for ever on a full ring, which is smaller than the kernel's
/// buffers; and if a reader that is merely slow lost the link.
#[test]
fn a_stream_whose_peer_takes_nothing_leaves_its_link() {
    let at = |patiences: f64| Instant::from_nanos((STALL_PATIENCE.as_nanos() as f64 * patiences) as u64);
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_007);
    let [(_, near), (_, far)] = &pair.ends;
    assert_eq!(fill(&client, near, &[7; 1000]), 4096);
    pair.settle(at(1.0));
    pair.settle(at(1.9));
    assert!(near.lock(&client).proto().is_linked());
    // The peer reads a little: not enough to write again, but it is there.
    assert_eq!(read(&server, far, 10).len(), 10);
    pair.settle(at(2.1));
    pair.settle(at(3.0));
    assert!(near.lock(&client).proto().is_linked());
    pair.settle(at(3.2));
    assert!(pair.are_plain());
    assert_eq!(near.lock(&client).proto().reason(), Reason::PeerIdle);
    assert!(far.lock(&server).proto().awaits_replay());
}

/// Breaks if only byte credit counted: small messages run out of receives long before the ring is full.
#[test]
fn a_stream_whose_peer_does_not_poll_leaves_its_link() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_008);
    let near = &pair.ends[0].1;
    let (mut messages, mut time) = (0, 0);
    // A peer that polls, however slowly, keeps the link.
    for _ in 0..4 {
        messages += fill(&client, near, b"m");
        time += STALL_PATIENCE.as_nanos() as u64 * 3 / 4;
        pair.settle(Instant::from_nanos(time));
    }
    assert!(near.lock(&client).proto().is_linked());
    assert!(messages > 64, "{messages} with 64 receives");
    fill(&client, near, b"m");
    for _ in 0..2 {
        assert!(near.lock(&client).proto().is_linked());
        pair.settle_unpolled(Instant::from_nanos(time));
        time += STALL_PATIENCE.as_nanos() as u64;
    }
    pair.settle_unpolled(Instant::from_nanos(time));
    assert!(pair.are_plain());
}

/// Breaks if a stream left its link before it had read there how its peer has ended it.
#[test]
fn what_the_peer_has_said_on_the_link_counts_before_it_leaves() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_011);
    let [(_, near), (_, far)] = &pair.ends;
    far.lock(&server).shutdown(Shutdown::Write);
    near.lock(&client).demote(Reason::Requested);
    pair.wire.settle();
    server.progress(Instant::from_nanos(0));
    far.take_in(&server);
    pair.wire.settle();
    assert_eq!(near.lock(&client).progress_anchor(false), AnchorProgress::Unpolled);
    assert!(!near.lock(&client).proto().is_plain());
    near.take_in(&client);
    assert!(near.lock(&client).proto().is_plain() && near.lock(&client).proto().expects_end());
}

/// Breaks if the peer were told of what is held back, or not told of it in the end.
#[test]
fn what_is_corked_goes_out_as_one_message() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_012);
    let [(_, near), (_, far)] = &pair.ends;
    let at = |intervals: f64| Instant::from_nanos((intervals * 1e8) as u64);
    let messages = || near.lock(&client).counters().tx_msgs_link;
    let before = messages();
    // Until it is let go of.
    assert_eq!(write_more(&client, near, b"held "), LinkIo::Done(5));
    assert_eq!(write_more(&client, near, b"back, "), LinkIo::Done(6));
    pair.settle(at(0.0));
    assert_eq!((messages() - before, read(&server, far, 64)), (0, vec![]));
    assert!(near.lock(&client).push_held());
    pair.settle(at(0.0));
    assert_eq!((messages() - before, read(&server, far, 64)), (1, b"held back, ".to_vec()));
    // Until something follows that is not.
    assert_eq!(write_more(&client, near, b"and "), LinkIo::Done(4));
    assert_eq!(write(&client, near, b"told"), LinkIo::Done(4));
    pair.settle(at(0.0));
    assert_eq!((messages() - before, read(&server, far, 64)), (2, b"and told".to_vec()));
    // As long as the kernel would hold it.
    assert_eq!(write_more(&client, near, b"late"), LinkIo::Done(4));
    pair.settle(at(1.0));
    pair.settle(at(1.9));
    assert_eq!(read(&server, far, 64), b"");
    pair.settle(at(3.0));
    assert_eq!(read(&server, far, 64), b"late");
    // A whole message, and what the ring has no room for, is told at once; and the end goes after it all.
    let many = [7; 4096];
    assert_eq!(write_more(&client, near, &many[..1500]), LinkIo::Done(1500));
    pair.settle(at(3.0));
    assert_eq!(read(&server, far, 4096).len(), 1024);
    assert_eq!(write_more(&client, near, &many), LinkIo::Done(4096 - 476));
    pair.settle(at(3.0));
    assert_eq!(read(&server, far, 8192).len(), 4096);
    assert_eq!(write_more(&client, near, b"the end"), LinkIo::Done(7));
    near.lock(&client).shutdown(Shutdown::Write);
    pair.settle(at(3.0));
    assert_eq!(read(&server, far, 64), b"the end");
    assert_eq!(far.lock(&server).rx_source(), RxSource::Eof);
    assert_eq!((client.counters().snapshot()["violations"], server.counters().snapshot()["violations"]), (0, 0));
}

/// Breaks if bytes that the peer was not told of were lost with the link, or told of twice.
#[test]
fn what_is_held_back_comes_on_the_anchor_if_the_link_is_left() {
    for dies in [false, true] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let device = fabric.open(LoopbackConfig::shm());
        let client = with_sharing(device.clone(), None, |_: &Event| {}, Deaf, 1);
        let server = endpoint(&fabric);
        let pair = Linked::new(&client, &server, 40_013);
        let [(_, near), (_, far)] = &pair.ends;
        assert_eq!(write(&client, near, b"told, "), LinkIo::Done(6));
        assert_eq!(write_more(&client, near, b"held"), LinkIo::Done(4));
        let qp = near.lock(&client).link().expect("it is linked").qp();
        if dies {
            assert!(fabric.kill(QueuePairEnd { device: device.id(), qp }, Kill::default()));
        } else {
            near.lock(&client).demote(Reason::Requested);
        }
        for turn in 0..4 {
            pair.settle(Instant::from_nanos(turn * 60_000_000));
        }
        assert!(pair.are_plain());
        assert_eq!(far.lock(&server).proto().replay_left(), 10);
        let counters = near.lock(&client).counters();
        assert_eq!((counters.tx_bytes_tcp, counters.tx_bytes_link), (10, 0));
    }
}

/// An owner that forks as soon as it has found that it holds a stream alone.
struct Forking;

impl ReadySink for Forking {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}
    fn holds_alone(&self, stream: &Arc<StreamCell>) -> bool {
        let seen = stream.shares();
        stream.share();
        stream.unshare(seen);
        !stream.is_shared()
    }
    fn moved(&self, _: &Arc<StreamCell>) {}
}

/// Breaks if what was found out about the holders of a descriptor outlived a fork in another thread: the child would hold
/// the socket of a stream that is on a link.
#[test]
fn an_acceptor_that_forks_meanwhile_refuses() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), owned(&fabric, |_: &Event| {}, Forking));
    let (near, far) = connect(&client, &server, 40_009);
    far.share();
    client.promote(&near).expect("the acceptor is published");
    (0..4).for_each(|_| run([&client, &server]));
    assert!(far.is_shared() && far.lock(&server).proto().is_plain());
    assert_eq!(server.counters().snapshot()["opens_refused"], 1);
}

/// As above, of an opener that forks while the link is being made.
#[test]
fn an_opener_that_forks_meanwhile_does_not_open() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (near, _far) = connect(&client, &server, 40_010);
    client.promote(&near).expect("the acceptor is published");
    near.share();
    (0..4).for_each(|_| run([&client, &server]));
    assert!(near.lock(&client).proto().is_plain() && near.lock(&client).link().is_none());
    assert_eq!(client.counters().snapshot()["opens_sent"], 0);
}

/// Notes which streams it is told of.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<u32>>>);

impl ReadySink for Noting {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, stream: &Arc<StreamCell>) {
        self.0.lock().expect("no test panics with it").push(stream.number());
    }
}

/// Breaks if nobody looked after a stream that is being opened by a program that does something else: what the peer says of
/// the attempt comes by the link, until there is a marker to wait for on the anchor.
#[test]
fn a_stream_that_is_being_opened_is_looked_after() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let told = Noting::default();
    let (client, server) = (owned(&fabric, |_: &Event| {}, told.clone()), endpoint(&fabric));
    let (near, _far) = connect(&client, &server, 40_011);
    client.promote(&near).expect("the acceptor is published");
    let waits = || near.lock(&client).proto().awaits_switch();
    while !waits() {
        for endpoint in [&server, &client] {
            endpoint.progress(Instant::from_nanos(0));
            endpoint.poll(endpoint.default_cq());
        }
    }
    client.progress(Instant::from_nanos(0));
    assert!(waits() && !near.is_opening());
    // When the attempt began, and when it was answered.
    assert_eq!(*told.0.lock().expect("no test panics with it"), [near.number(), near.number()]);
}
