//! Streams whose sockets other processes hold, or that a thread watches.

use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric};
use netacc_device::middleware::Event;
use netacc_device::Instant;
use netacc_driver::{Readiness, ReadySink, StreamCell};

use crate::common::{connect, run};
use crate::endpoints::{endpoint, owned};

/// An owner that forks as soon as it has found that it is the only holder of a stream.
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

/// Breaks if a result about the holders of a descriptor outlived a fork in another thread: the child would hold the
/// socket of a stream that is on a link.
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

/// The same for an opener that forks while the link is being made.
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

/// Records the streams of its events.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<u32>>>);

impl ReadySink for Recorder {
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

/// Breaks if no thread checked a stream that a busy program is opening: the peer's answer to the attempt comes by the
/// link, until there is a marker to wait for on the anchor.
#[test]
fn a_stream_that_is_being_opened_is_watched() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let reported = Recorder::default();
    let (client, server) = (owned(&fabric, |_: &Event| {}, reported.clone()), endpoint(&fabric));
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
    assert_eq!(*reported.0.lock().expect("no test panics with it"), [near.number(), near.number()]);
}
