//! Streams leave their links, with everything that was written.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::Arc;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorDelivery, AnchorEnd};
use netacc_device::loopback::{DeliveryMode, Fabric, Kill, LoopbackConfig, QueuePairEnd};
use netacc_device::middleware::Event;
use netacc_device::{Anchor, AnchorError, Instant};
use netacc_driver::{AnchorProgress, LinkIo, Readiness, ReadySink, Shutdown, StreamCell, STALL_PATIENCE};
use netacc_proto::{PeerFin, Phase, Reason, RxSource, RECORD_LEN};

use crate::common::{config, connect, connect_over, run, Deaf};
use crate::endpoints::{configured, endpoint, fill, read, with_sharing, write, Linked};

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
    pair.progress(at(1.0));
    pair.progress(at(1.9));
    assert!(near.lock(&client).proto().is_linked());
    // The peer reads a little: not enough to write again, but it is there.
    assert_eq!(read(&server, far, 10).len(), 10);
    pair.progress(at(2.1));
    pair.progress(at(3.0));
    assert!(near.lock(&client).proto().is_linked());
    pair.progress(at(3.2));
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
        pair.progress(Instant::from_nanos(time));
    }
    assert!(near.lock(&client).proto().is_linked());
    assert!(messages > 64, "{messages} with 64 receives");
    fill(&client, near, b"m");
    for _ in 0..2 {
        assert!(near.lock(&client).proto().is_linked());
        pair.progress_unpolled(Instant::from_nanos(time));
        time += STALL_PATIENCE.as_nanos() as u64;
    }
    pair.progress_unpolled(Instant::from_nanos(time));
    assert!(pair.are_plain());
}

/// Breaks if a stream left its link before it had read on the link how its peer has ended it.
#[test]
fn messages_on_the_link_count_before_the_peer_leaves() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_011);
    let [(_, near), (_, far)] = &pair.ends;
    far.lock(&server).change(|stream| stream.shutdown(Shutdown::Write));
    near.lock(&client).change(|stream| stream.demote(Reason::Requested));
    pair.wire.deliver_all();
    server.progress(Instant::from_nanos(0));
    far.take_in(&server);
    pair.wire.deliver_all();
    assert_eq!(near.lock(&client).change(|stream| stream.progress_anchor(false)), AnchorProgress::Unpolled);
    assert!(!near.lock(&client).proto().is_plain());
    near.take_in(&client);
    assert!(near.lock(&client).proto().is_plain() && near.lock(&client).proto().peer_fin() == PeerFin::Repeated);
}

/// Breaks if the reset of a stream that has left its link was given up while its peer waited for a processor: the program's
/// next write succeeded, and no later one failed either.
#[test]
fn the_reset_of_a_stream_that_has_left_is_awaited_longer_than_calls_wait() {
    let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_019);
    let [(_, near), (_, far)] = &pair.ends;
    far.lock(&server).change(|stream| stream.shutdown(Shutdown::Both));
    pair.progress(at(0));
    near.lock(&client).change(|stream| stream.refuse_write(8));
    near.lock(&client).change(|stream| stream.demote(Reason::Shared));
    for turn in 0.. {
        assert!(turn < 8, "it does not leave its link");
        if near.lock(&client).proto().is_plain() {
            break;
        }
        far.take_in(&server);
        pair.wire.deliver_all();
        near.take_in(&client);
        near.lock(&client).change(|stream| stream.progress_anchor(false));
    }
    let waits = |ms| near.lock(&client).change(|stream| (!stream.has_replay(at(ms)), stream.is_end_pending()));
    assert_eq!(waits(1), (true, true));
    assert_eq!(waits(900), (true, true), "a call waits while the peer waits for a processor");
    assert_eq!(waits(1100), (false, true), "and no longer");
    assert_eq!(waits(4000), (false, false));
}

/// Breaks if a check or a record of ours took the error of an anchor that was reset, and the stream was then given back
/// to it: the program would read an end.
#[test]
fn a_reset_is_reported_by_the_side_that_detects_it() {
    for dies in [false, true] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let device = fabric.open(LoopbackConfig::shm());
        let client = with_sharing(device.clone(), None, |_: &Event| {}, Deaf, 1);
        let server = endpoint(&fabric);
        let (a, b, wire) = anchor_pair(AnchorConfig::default());
        let mut kernel = a.clone();
        let pair = Linked::over(&client, &server, 40_014, (a, b), wire);
        let near = &pair.ends[0].1;
        if dies {
            let qp = near.lock(&client).link().expect("it is linked").qp();
            assert!(fabric.kill(QueuePairEnd { device: device.id(), qp }, Kill::default()));
        }
        pair.wire.break_off();
        for turn in 0..3 {
            client.progress(Instant::from_nanos(turn));
            near.lock(&client).change(|stream| stream.demote(Reason::Requested));
            near.lock(&client).change(|stream| stream.progress_anchor(false));
            near.take_in(&client);
        }
        let found = near.lock(&client).rx_source();
        let reported = match found {
            RxSource::Anchor(_) => matches!(kernel.try_read(&mut [0]), Err(AnchorError::Os(_))),
            source => matches!(source, RxSource::Failed(_)),
        };
        assert!(reported, "the link dies: {dies}; {found:?}");
    }
}

/// Breaks if a process ended before the replay on its anchors is there. Unread, the byte turns the close into a reset;
/// a replay behind it finds a FIN sent.
#[test]
fn a_process_ends_once_the_replay_has_arrived() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let anchor = AnchorConfig { mode: DeliveryMode::Explicit, ..AnchorConfig::default() };
    let (a, b, wire) = anchor_pair(anchor);
    let pair = Linked::over(&client, &server, 40_015, (a, b), wire);
    let [(_, near), (_, far)] = &pair.ends;
    assert_eq!(write(&client, near, b"unread"), LinkIo::Done(6));
    let now = Instant::from_nanos(0);
    assert!(!server.leave(now));
    pair.wire.deliver_all();
    near.take_in(&client);
    let to = AnchorEnd::Second;
    assert!(pair.wire.deliver(AnchorDelivery::Bytes { to, len: RECORD_LEN }));
    assert!(!server.leave(now));
    assert!(far.lock(&server).proto().is_plain(), "except for bytes that the kernel has to bring");
    pair.wire.deliver_all();
    assert!(server.leave(now));
}

/// Breaks if a process waited without end for a marker that its peer, which is gone, may or may not have written; or
/// did not wait for one that is in flight.
#[test]
fn a_marker_of_a_peer_that_is_gone_is_waited_for_as_long_as_it_may_take() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let device = fabric.open(LoopbackConfig::shm());
    let (client, server) = (endpoint(&fabric), with_sharing(device.clone(), None, |_: &Event| {}, Deaf, 1));
    let (a, b, _wire) = anchor_pair(AnchorConfig { mode: DeliveryMode::Explicit, ..AnchorConfig::default() });
    let (near, far) = connect_over(&client, &server, 40_016, (a, b));
    client.promote(&near).expect("the acceptor is published");
    let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
    // Until the acceptor has answered; the opener receives no answer any more.
    let promoting = || far.lock(&server).proto().phase() == Phase::Promoting;
    for _ in 0..20 {
        client.progress(at(0));
        server.progress(at(0));
        server.poll(server.default_cq());
        if promoting() {
            break;
        }
    }
    assert!(promoting());
    let qp = far.lock(&server).link().expect("it is being promoted").qp();
    assert!(fabric.kill(QueuePairEnd { device: device.id(), qp }, Kill::default()));
    for ms in (0..100).step_by(10) {
        server.progress(at(ms));
    }
    assert!(!server.leave(at(100)));
    assert!(!server.leave(at(150)));
    assert!(promoting());
    assert!(server.leave(at(250)));
}

/// Breaks if the effects of a change stayed unsent until the stream changes again: the peer would wait for ever.
#[test]
fn a_change_is_flushed_while_the_stream_is_locked() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_029);
    let near = &pair.ends[0].1;
    let on_anchor = || pair.wire.state(AnchorEnd::Second).unread;
    let mut guard = near.lock(&client);
    assert!(guard.proto().is_linked());
    assert_eq!(on_anchor(), 0);
    guard.change(|stream| stream.demote(Reason::Requested));
    assert_eq!(on_anchor(), RECORD_LEN);
    drop(guard);
    assert_eq!(on_anchor(), RECORD_LEN);
}

/// Breaks if a process gave up its links before the anchor of a stream that has failed had ended. Its peer has closed and waits
/// for CLOSE: when the link dies it would write a record, which a child that holds the socket would read as data.
#[test]
fn a_process_without_links_waits_for_the_anchors_of_failed_streams() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let pair = Linked::over(&client, &server, 40_031, (a, b.clone()), wire);
    let [(_, near), (_, far)] = &pair.ends;
    far.lock(&server).change(|stream| stream.close(false, || Some(Box::new(b))));
    near.take_in(&client);
    near.lock(&client).change(|stream| stream.refuse_write(1));
    let now = Instant::from_nanos(0);
    assert!(near.lock(&client).proto().has_failed() && !near.lock(&client).proto().is_plain());
    assert!(client.leave(now), "a process that ends leaves nothing behind");
    let leave = || client.leave_for_good(Reason::DescriptorLimit, now);
    assert!(!leave());
    pair.wire.break_off();
    assert!((0..3).any(|_| leave()), "the anchor has ended");
}

/// Breaks if a closed stream waited for the rest of a record after its anchor was reset, for as long as it may linger.
#[test]
fn a_closed_stream_does_not_wait_for_a_record_that_a_reset_has_cut_off() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let device = fabric.open(LoopbackConfig::shm());
    let (client, server) = (with_sharing(device.clone(), None, |_: &Event| {}, Deaf, 1), endpoint(&fabric));
    let (a, b, wire) = anchor_pair(AnchorConfig { mode: DeliveryMode::Explicit, ..AnchorConfig::default() });
    let pair = Linked::over(&client, &server, 40_030, (a.clone(), b), wire);
    let [(_, near), (_, far)] = &pair.ends;
    let qp = near.lock(&client).link().expect("it is linked").qp();
    assert!(fabric.kill(QueuePairEnd { device: device.id(), qp }, Kill::default()));
    near.lock(&client).change(|stream| stream.close(false, || Some(Box::new(a))));
    client.progress(Instant::from_nanos(0));
    server.progress(Instant::from_nanos(0));
    far.lock(&server).change(|stream| stream.demote(Reason::Requested));
    assert!(pair.wire.deliver(AnchorDelivery::Bytes { to: AnchorEnd::First, len: 1 }));
    pair.wire.break_off();
    for to in [AnchorEnd::First, AnchorEnd::Second] {
        assert!(pair.wire.deliver(AnchorDelivery::Reset { to }));
    }
    let lingers = || client.backlog().contains(&("lingering", 1));
    assert!(lingers());
    let (mut now, mut next) = (0, client.progress(Instant::from_nanos(1)));
    for _ in 0..10 {
        now = next.map_or(now, |at| at.as_nanos());
        next = client.progress(Instant::from_nanos(now));
    }
    assert!(!lingers(), "at {now} ns");
}

/// An owner that counts the calls that may wait for a device, and knows when one is made.
struct Patient(Arc<AtomicU32>, Arc<AtomicBool>);

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
        self.0.fetch_add(1, Relaxed);
        self.1.store(true, Relaxed);
        call();
        self.1.store(false, Relaxed);
    }
}

/// Breaks if the owner does not know that its control path may stand still, or prepares for that where a link ends at once.
#[test]
fn the_end_of_a_link_may_have_to_wait_for_its_device() {
    for (config, calls) in [(LoopbackConfig::erdma(), 1), (LoopbackConfig::shm(), 0)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (count, waits) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (device, seen) = (fabric.open(config.clone()), waits.clone());
        let observer = move |event: &Event| {
            if let Event::DestroyQp { .. } = event {
                assert_eq!(seen.load(Relaxed), calls == 1);
            }
        };
        let client = with_sharing(device.clone(), None, observer, Patient(count.clone(), waits), 1);
        let server = with_sharing(fabric.open(config), None, |_: &Event| {}, Deaf, 1);
        let pair = Linked::new(&client, &server, 40_016);
        let qp = pair.ends[0].1.lock(&client).link().expect("it is linked").qp();
        assert!(fabric.kill(QueuePairEnd { device: device.id(), qp }, Kill::default()));
        pair.progress(Instant::from_nanos(1_000_000_000));
        pair.progress(Instant::from_nanos(2_000_000_000));
        assert!(client.links().is_empty());
        assert_eq!(count.load(Relaxed), calls);
    }
}

/// Breaks if the death of a link concerns a stream that has left it for another one, but whose slot on the dead link is not
/// free yet: the stream would give up its slot on the living link while its peer still uses it.
#[test]
fn a_dead_link_does_not_concern_a_stream_that_has_left_it() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let device = fabric.open(LoopbackConfig::soft_roce());
    let client = configured(fabric.open(LoopbackConfig::soft_roce()), None, |_: &Event| {}, Deaf, config(1));
    let server = configured(device.clone(), None, |_: &Event| {}, Deaf, config(1));
    // Two links, which their streams leave again.
    let others = [40_031, 40_032].map(|port| Linked::new(&client, &server, port));
    let links = others.each_ref().map(|other| {
        let [(_, near), (_, far)] = &other.ends;
        let link = far.lock(&server).link().cloned().expect("it is linked");
        near.lock(&client).change(|stream| stream.demote(Reason::Requested));
        (0..4).for_each(|_| other.progress(Instant::from_nanos(0)));
        assert!(other.are_plain());
        link
    });
    let (a, b, wire) = anchor_pair(AnchorConfig::default());
    let (mut to, mut from) = (a.clone(), b.clone());
    let (near, far) = connect_over(&client, &server, 40_033, (a, b));
    client.promote(&near).expect("the acceptor is published");
    server.progress(Instant::from_nanos(0));
    server.poll(server.default_cq());
    let first = far.lock(&server).link().cloned().expect("the attempt is granted");
    // The opener's program goes on, so its pledge is void, and both sides leave the slot.
    near.lock(&client).change(|stream| stream.void_pledge());
    assert_eq!(to.try_write(b"go on").expect("there is room"), 5);
    near.lock(&client).anchor_sent(5);
    wire.deliver_all();
    // From now on the control path of the server does nothing; a thread of the program polls.
    for _ in 0..3 {
        client.progress(Instant::from_nanos(0));
        client.poll(client.default_cq());
        server.poll_link(&first);
        far.lock(&server).change(|stream| stream.progress_anchor(false));
    }
    assert_eq!(from.try_read(&mut [0; 64]).expect("bytes are there"), 5);
    far.lock(&server).anchor_received(5);
    // Another stream takes the first link, so the second attempt is on the other one.
    let (other, _) = connect(&client, &server, 40_034);
    client.promote(&other).expect("the acceptor is published");
    client.promote(&near).expect("the acceptor is published");
    let second = links.iter().find(|link| link.qp() != first.qp()).expect("there are two");
    server.poll_link(second);
    assert_eq!(far.lock(&server).link().map(|link| link.qp()), Some(second.qp()));
    assert!(fabric.kill(QueuePairEnd { device: device.id(), qp: first.qp() }, Kill::default()));
    for _ in 0..4 {
        run([&client, &server]);
        wire.deliver_all();
        near.lock(&client).change(|stream| stream.progress_anchor(false));
        far.lock(&server).change(|stream| stream.progress_anchor(false));
    }
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert_eq!((client.counters().snapshot()["violations"], server.counters().snapshot()["violations"]), (0, 0));
}

/// Breaks if an opener took the end of its anchor for the end of the stream although its peer had switched, and written: without
/// markers only the link shows that.
#[test]
fn bytes_of_a_peer_that_was_killed_after_it_switched_are_not_lost() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (a, b, _wire) = anchor_pair(AnchorConfig::default());
    let mut its_kernel = b.clone();
    let (near, far) = connect_over(&client, &server, 40_047, (a, b));
    client.promote(&near).expect("the acceptor is published");
    while !near.lock(&client).proto().awaits_switch() {
        server.progress(Instant::from_nanos(0));
        client.progress(Instant::from_nanos(0));
    }
    while !far.lock(&server).proto().is_linked() {
        server.progress(Instant::from_nanos(0));
    }
    assert_eq!(write(&server, &far, b"sent"), LinkIo::Done(4));
    its_kernel.shutdown_write().expect("it is open");
    near.lock(&client).change(|stream| stream.progress_anchor(true));
    client.progress(Instant::from_nanos(0));
    assert_eq!(read(&client, &near, 10), b"sent");
    assert_eq!(near.lock(&client).rx_source(), RxSource::Eof);
}
