//! The helper's checks of links, and the queue of a link on which a stream is being opened.

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::FourTuple;
use netacc_driver::loopback::{self, Deaf};
use netacc_driver::EndpointConfig;
use netacc_proto::Role;

use super::*;

/// An endpoint that puts all streams to a peer on one link.
fn endpoint(fabric: &Fabric) -> Endpoint {
    let config = EndpointConfig { stall_patience: None, ..loopback::config(2 * FEW) };
    loopback::open(fabric.open(LoopbackConfig::shm()), config, Deaf)
}

/// A connection, of which the opener's stream waits to be promoted.
fn connect(opener: &Endpoint, acceptor: &Endpoint, port: u16) -> Arc<StreamCell> {
    let end = |port| ([127, 0, 0, 1], port).into();
    let tuple = FourTuple { local: end(port), remote: end(6379) };
    let (near, far, _) = anchor_pair(AnchorConfig::default());
    acceptor.publish(&acceptor.adopt(Role::Acceptor, tuple.reversed(), Box::new(far)));
    let cell = opener.adopt(Role::Opener, tuple, Box::new(near));
    opener.enqueue_promotion(&cell).expect("the acceptor is published");
    cell
}

fn run(endpoints: [&Endpoint; 2]) {
    for round in 0..20 {
        for endpoint in endpoints {
            endpoint.progress(Instant::from_nanos(round));
            endpoint.poll(endpoint.default_cq());
        }
    }
}

/// Breaks if a link on which a stream is being opened stayed with a thread of the program, or if all of its streams were visited
/// then, at once or later: it belongs to the helper, whatever the others are.
#[test]
fn a_link_that_opens_a_stream_is_the_helpers_and_is_not_checked() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    for port in 0..FEW {
        connect(&client, &server, 40_000 + port);
    }
    run([&client, &server]);
    let cell = connect(&client, &server, 50_000);
    client.progress(Instant::from_nanos(100));
    let link = cell.lock(&client).link().cloned().expect("the link has room");
    assert!(cell.is_opening() && link.streams() > FEW);
    let put_off = || of_process().put_off.lock().known.contains(&link.qp());
    for queue in [client.default_cq(), client.control_cq()] {
        client.rebind(&link, queue);
        reassign(&client, &link, &cell);
        assert_eq!((link.cq(), put_off()), (client.control_cq(), false));
    }
    // The answer comes while the link is moved.
    client.rebind(&link, client.default_cq());
    server.progress(Instant::from_nanos(100));
    assert!(cell.is_opening());
    reassign(&client, &link, &cell);
    assert!(!cell.is_opening() && put_off(), "the helper finds out where it belongs now");
}

/// Breaks if a link were checked twice for two changes, or if the checks of many links took more than a tenth of the
/// helper's time.
#[test]
fn links_that_are_put_off_are_checked_once_and_one_at_a_time() {
    let at = Instant::from_nanos;
    let mut put_off = PutOff::new();
    let added = [7, 8, 7, 9].map(|qp| put_off.add(QueuePairId(qp), qp));
    assert_eq!(added, [true, true, false, true]);
    assert_eq!(put_off.next(), Some(Instant::ZERO));
    assert_eq!(put_off.take_due(at(100)), Some(7));
    put_off.enqueue_check(at(100), at(110));
    assert_eq!((put_off.next(), put_off.take_due(at(199))), (Some(at(200)), None));
    assert!(put_off.add(QueuePairId(7), 7));
    assert_eq!([(); 4].map(|()| put_off.take_due(at(200))), [Some(8), Some(9), Some(7), None]);
    assert_eq!(put_off.next(), None);
}

#[test]
fn as_many_waiting_threads_as_processors_leave_none() {
    let queues = Queues::new(2);
    assert!(!queues.outnumber_processors());
    queues.waited_at.store(1, Ordering::Relaxed);
    assert!(!queues.outnumber_processors());
    queues.waited_at.store(2, Ordering::Relaxed);
    assert!(queues.outnumber_processors());
}
