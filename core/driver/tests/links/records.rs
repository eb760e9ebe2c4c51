//! Markers, and application bytes that look like them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire, InMemoryAnchor};
use netacc_device::loopback::{DeliveryMode, Fabric};
use netacc_device::middleware::Event;
use netacc_device::{Anchor, AnchorError, AnchorPosition, Instant, Shown};
use netacc_driver::{AnchorEvent, Endpoint, LinkIo, Readiness, Shutdown, StreamCell};
use netacc_proto::{RxSource, TxSink, RECORD_GRACE, RECORD_LEN};

use crate::common::{connect_over, run};
use crate::endpoints::{endpoint, observed, read, sharing, write, writing_markers};

/// Breaks if bytes behind a pledge were left alone after the read that came up to it: a program that waits for
/// readiness after each read would wait for ever, because the event of their arrival is long past.
#[test]
fn reading_up_to_a_pledge_checks_the_next_bytes() {
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
    // The acceptor waits until its program has read; the opener does not.
    near.lock(&client).change(|stream| stream.void_pledge());
    assert_eq!(to.try_write(b"after").expect("there is room"), 5);
    near.lock(&client).anchor_sent(5);
    wire.deliver_all();
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
        wire.deliver_all();
        near.lock(&client).change(|stream| stream.progress_anchor(false));
        far.lock(&server).change(|stream| stream.progress_anchor(false));
    }
    assert_eq!(write(&client, &near, b"by the link"), LinkIo::Done(11));
    run([&client, &server]);
    assert_eq!(read(&server, &far, 64), b"by the link");
}

/// Breaks if an acceptor refuses a stream because its control path has not yet freed what the stream has left of an attempt
/// that both sides have given up.
#[test]
fn an_attempt_does_not_wait_until_the_one_before_is_freed() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let (mut to, mut from) = (a.clone(), b.clone());
    let (near, far) = connect_over(&client, &server, 40_009, (a, b));
    client.promote(&near).expect("the acceptor is published");
    // As far as OPEN, which the acceptor grants. The opener has not read the answer then.
    let mut now = 0;
    while far.lock(&server).link().is_none() {
        now += 1;
        assert!(now < 20, "the acceptor does not get OPEN");
        client.poll(client.default_cq());
        client.progress(Instant::from_nanos(now));
        server.progress(Instant::from_nanos(now));
        server.poll(server.default_cq());
    }
    let link = far.lock(&server).link().cloned().expect("the attempt is granted");
    // The opener's program goes on, so its pledge is void, and both sides leave the slot.
    near.lock(&client).change(|stream| stream.void_pledge());
    assert_eq!(to.try_write(b"go on").expect("there is room"), 5);
    near.lock(&client).anchor_sent(5);
    wire.deliver_all();
    for now in now..now + 3 {
        client.progress(Instant::from_nanos(now));
        client.poll(client.default_cq());
        // Of the server a thread of the program polls alone.
        server.poll_link(&link);
        far.lock(&server).change(|stream| stream.progress_anchor(false));
    }
    assert_eq!(from.try_read(&mut [0; 64]).expect("bytes are there"), 5);
    far.lock(&server).anchor_received(5);
    assert!(near.lock(&client).link().is_none() && far.lock(&server).link().is_some());
    client.promote(&near).expect("the acceptor is published");
    for now in now + 3..now + 6 {
        client.progress(Instant::from_nanos(now));
        client.poll(client.default_cq());
        server.poll_link(&link);
    }
    let why = near.lock(&client).proto().reason();
    assert_eq!(server.counters().snapshot()["opens_refused"], 0, "{why:?}");
    for _ in 0..4 {
        run([&client, &server]);
        wire.deliver_all();
        near.lock(&client).change(|stream| stream.progress_anchor(false));
        far.lock(&server).change(|stream| stream.progress_anchor(false));
    }
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert_eq!(server.links().iter().map(|link| link.streams).sum::<u16>(), 1, "the slot before is free");
    assert_eq!((client.counters().snapshot()["violations"], server.counters().snapshot()["violations"]), (0, 0));
}

/// Breaks if a reader waited for the rest of a record for ever: there is none here, only application bytes that look
/// like one.
#[test]
fn bytes_that_look_like_a_record_are_delivered_after_a_while() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let far = with_beginning_of_record(&client, &server, 40_004, &Watch::default());
    assert!(!far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
    let early = Instant::from_nanos(RECORD_GRACE.as_nanos() as u64 / 2);
    let next = server.progress(Instant::from_nanos(1)).expect("it wants to be called again");
    assert!(next > early, "{next:?}");
    server.progress(early);
    assert!(!far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
    server.progress(next);
    assert!(far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
}

/// A stream of the server with two bytes on its anchor that may begin a record. `watch` observes the anchor.
fn with_beginning_of_record(client: &Endpoint, server: &Endpoint, port: u16, watch: &Watch) -> Arc<StreamCell> {
    with_cut_record(client, server, port, watch).0
}

/// As [`with_beginning_of_record`], with the wire.
fn with_cut_record(client: &Endpoint, server: &Endpoint, port: u16, watch: &Watch) -> (Arc<StreamCell>, AnchorWire) {
    let (_, far, wire) = with_void_pledge(client, server, port, watch);
    (far, wire)
}

/// As [`with_cut_record`], with the client's stream, which has voided its pledge.
fn with_void_pledge(
    client: &Endpoint,
    server: &Endpoint,
    port: u16,
    watch: &Watch,
) -> (Arc<StreamCell>, Arc<StreamCell>, AnchorWire) {
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let mut to = a.clone();
    let (near, far) = connect_over(client, server, port, (a, ReadingAnchor(b, watch.clone())));
    client.promote(&near).expect("the acceptor is published");
    while near.lock(client).tx_sink() != TxSink::Pledged {
        server.progress(Instant::from_nanos(0));
        client.progress(Instant::from_nanos(0));
    }
    near.lock(client).change(|stream| stream.void_pledge());
    assert_eq!(to.try_write(&[0xA7, 0x9D]).expect("there is room"), 2);
    near.lock(client).anchor_sent(2);
    wire.deliver_all();
    server.progress(Instant::from_nanos(0));
    far.lock(server).change(|stream| stream.progress_anchor(false));
    (near, far, wire)
}

/// Breaks if bytes that may begin a marker were given to the program because the connection was reset before the rest of
/// them came. The reset is found by a look at the connection, or reported by the kernel.
#[test]
fn a_beginning_of_a_record_before_a_reset_is_no_data() {
    for (reported, port) in [(false, 40_006), (true, 40_007)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, server) = (endpoint(&fabric), endpoint(&fabric));
        let (far, wire) = with_cut_record(&client, &server, port, &Watch::default());
        wire.break_off();
        wire.deliver_all();
        if reported {
            far.anchor_event(&server, AnchorEvent::Failed);
        } else {
            far.take_in(&server);
        }
        assert!(!far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
        assert!(matches!(far.lock(&server).rx_source(), RxSource::Failed(_)), "reported: {reported}");
    }
}

/// Breaks if such bytes were withheld although the peer has ended its direction in good order, whatever came later.
#[test]
fn a_beginning_of_a_record_before_an_end_is_data() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (near, far, wire) = with_void_pledge(&client, &server, 40_008, &Watch::default());
    near.lock(&client).change(|stream| stream.shutdown(Shutdown::Write));
    near.lock(&client).change(|stream| stream.progress_anchor(false));
    wire.deliver_all();
    far.lock(&server).change(|stream| stream.shutdown(Shutdown::Write));
    wire.break_off();
    wire.deliver_all();
    far.anchor_event(&server, AnchorEvent::Failed);
    assert!(far.readiness().contains(Readiness::KERNEL_RX), "{:?}", far.readiness());
}

/// Breaks if each turn of the control path checked all streams that wait for the clock.
#[test]
fn the_control_path_visits_only_streams_whose_time_has_come() {
    const STREAMS: u16 = 20;
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (sharing(&fabric, STREAMS), sharing(&fabric, STREAMS));
    let watch = Watch::default();
    let begun = |i| with_beginning_of_record(&client, &server, 40_200 + i, &watch);
    let cells: Vec<_> = (0..STREAMS).map(begun).collect();
    let next = server.progress(Instant::from_nanos(1)).expect("it wants to be called again");
    let before = watch.peeks.load(Relaxed);
    for nanos in 2..12 {
        server.progress(Instant::from_nanos(nanos));
    }
    assert_eq!(watch.peeks.load(Relaxed), before, "of {STREAMS} streams, none is due");
    assert!(cells.iter().all(|far| !far.readiness().contains(Readiness::KERNEL_RX)));
    server.progress(next + RECORD_GRACE);
    assert!(watch.peeks.load(Relaxed) >= before + u32::from(STREAMS), "all are due");
    assert!(cells.iter().all(|far| far.readiness().contains(Readiness::KERNEL_RX)));
}

/// Observes one stream and its anchor.
#[derive(Clone, Default)]
struct Watch {
    /// How often bytes on the anchor were looked at.
    peeks: Arc<AtomicU32>,
    /// How often anything else of it was looked at that takes system calls.
    looks: Arc<AtomicU32>,
    cell: Arc<OnceLock<Arc<StreamCell>>>,
    /// The stream's readiness, as other threads see it at certain moments.
    seen: Arc<Mutex<Vec<Readiness>>>,
}

impl Watch {
    fn check(&self) {
        if let Some(cell) = self.cell.get() {
            self.seen.lock().expect("no test panics with it").push(cell.readiness());
        }
    }
}

/// An anchor that reads the readiness whenever it is written to.
struct ReadingAnchor(InMemoryAnchor, Watch);

impl Anchor for ReadingAnchor {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        self.1.check();
        self.0.try_write(bytes)
    }
    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.0.try_read(buf)
    }
    fn try_peek(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.1.peeks.fetch_add(1, Relaxed);
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
    fn shown(&self, low_water: u32) -> Shown {
        self.1.looks.fetch_add(1, Relaxed);
        self.0.shown(low_water)
    }
    fn has_fin(&self, read: u64) -> Option<bool> {
        self.1.looks.fetch_add(1, Relaxed);
        self.0.has_fin(read)
    }
    fn unread(&self) -> u64 {
        self.0.unread()
    }
    fn set_low_water(&mut self, bytes: u32) {
        self.0.set_low_water(bytes);
    }
}

/// Breaks if a side waited for the peer's marker while it still reported readable bytes of the anchor as the program's:
/// a program that blocks after it was woken to read would block for ever.
#[test]
fn a_marker_is_never_taken_for_application_bytes() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (at_client, at_server) = (Watch::default(), Watch::default());
    let posts = at_server.clone();
    let server = writing_markers(&fabric, move |event: &Event| {
        if matches!(event, Event::PostSend { .. }) {
            posts.check();
        }
    });
    let client = writing_markers(&fabric, |_: &Event| {});
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let (near, far) = connect_over(&client, &server, 40_005, (ReadingAnchor(a, at_client.clone()), b));
    client.promote(&near).expect("the acceptor is published");
    while near.lock(&client).tx_sink() != TxSink::Pledged {
        server.progress(Instant::from_nanos(0));
        client.progress(Instant::from_nanos(0));
    }
    assert!(at_client.cell.set(near.clone()).is_ok() && at_server.cell.set(far).is_ok());
    for _ in 0..4 {
        run([&client, &server]);
        wire.deliver_all();
        near.lock(&client).change(|stream| stream.progress_anchor(false));
    }
    assert!(near.lock(&client).proto().is_linked());
    for (watch, first) in [(at_client, "the marker"), (at_server, "ACCEPT")] {
        let seen = watch.seen.lock().expect("no test panics with it").clone();
        assert!(!seen[0].contains(Readiness::KERNEL_RX), "at {first}: {seen:?}");
    }
}

/// Promotes a stream over anchors whose uses are counted. Returns how often each side looked at its anchor and peeked there, and
/// how many bytes both wrote to it; then the same after another event that the anchor had become readable,
/// with which the link has nothing to do: `polls` counts the looks at it.
fn count_looks(client: &Endpoint, server: &Endpoint, polls: &AtomicU32) -> [([(u32, u32); 2], u64); 2] {
    let (at_client, at_server) = (Watch::default(), Watch::default());
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let (client_end, server_end) = (a.clone(), b.clone());
    let anchors = (ReadingAnchor(a, at_client.clone()), ReadingAnchor(b, at_server.clone()));
    let (near, far) = connect_over(client, server, 40_006, anchors);
    let counts = || {
        let written = [&client_end, &server_end].map(|end| end.position().map_or(0, |at| at.written)).iter().sum();
        ([&at_client, &at_server].map(|at| (at.looks.load(Relaxed), at.peeks.load(Relaxed))), written)
    };
    client.promote(&near).expect("the acceptor is published");
    while !(near.lock(client).proto().is_linked() && far.lock(server).proto().is_linked()) {
        client.progress(Instant::from_nanos(0));
        server.progress(Instant::from_nanos(0));
        wire.deliver_all();
        // As the kernel: only where bytes have come.
        for (end, cell, endpoint) in [(&client_end, &near, client), (&server_end, &far, server)] {
            if end.unread() > 0 {
                cell.anchor_event(endpoint, AnchorEvent::Readable);
            }
        }
    }
    let promoted = counts();
    let before = polls.load(Relaxed);
    near.anchor_event(client, AnchorEvent::Readable);
    assert_eq!(polls.load(Relaxed), before, "the link has nothing to do with it");
    [promoted, counts()]
}

fn count_polls(polls: &Arc<AtomicU32>) -> impl Fn(&Event) + Send + Sync + 'static {
    let polls = polls.clone();
    move |event: &Event| {
        polls.fetch_add(u32::from(matches!(event, Event::PollQp { .. })), Relaxed);
    }
}

/// Breaks if a side looked at its anchor more often than it must: each look is a system call, and where thousands of
/// connections are promoted at a time, these calls are what their programs wait for.
#[test]
fn a_promotion_looks_at_the_anchors_four_times() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let polls = Arc::new(AtomicU32::new(0));
    let [client, server] = [(); 2].map(|()| writing_markers(&fabric, count_polls(&polls)));
    // Each before it writes its marker. And the opener when the link announces the acceptor's marker, which this wire
    // brings later, and before it reads it. The event is of a marker that was read meanwhile.
    let both = 2 * RECORD_LEN as u64;
    assert_eq!(count_looks(&client, &server, &polls), [([(3, 1), (1, 1)], both), ([(4, 1), (1, 1)], both)]);
}

/// Breaks if a promotion on shared memory used the anchors, where the link alone decides: a system call to write each marker,
/// and others to find and read it.
#[test]
fn a_promotion_without_markers_looks_at_the_anchors_once() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let polls = Arc::new(AtomicU32::new(0));
    let [client, server] = [(); 2].map(|()| observed(&fabric, count_polls(&polls)));
    // The opener, when ACCEPT comes: the acceptor may have written already.
    assert_eq!(count_looks(&client, &server, &polls), [([(1, 0), (0, 0)], 0), ([(2, 0), (0, 0)], 0)]);
}
