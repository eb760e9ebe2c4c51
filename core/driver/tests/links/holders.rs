//! Streams whose sockets other processes hold, or that a thread watches.

use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric};
use netacc_device::middleware::Event;
use netacc_device::Instant;
use netacc_driver::{Readiness, ReadySink, Shutdown, StreamCell};

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

/// Breaks if a record could come while a thread takes what comes, on either side; if the process did not try again later; or if
/// threads went on to take bytes so, and hindered the next attempt as well.
#[test]
fn no_attempt_begins_while_a_thread_takes_bytes_asleep() {
    for (side, opens) in [(0, 0), (1, 1)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, server) = (endpoint(&fabric), endpoint(&fabric));
        let (near, far) = connect(&client, &server, 40_012);
        let promote = || {
            client.promote(&near).expect("the acceptor is published");
            (0..4).for_each(|_| run([&client, &server]));
        };
        let (cell, endpoint) = [(&near, &client), (&far, &server)][side];
        let take = |receive: &dyn Fn()| {
            let received = || {
                receive();
                Ok::<_, ()>(0)
            };
            cell.take_asleep(endpoint, received)
        };
        assert_eq!(take(&promote), Some(Ok(0)));
        assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain(), "side {side}");
        assert_eq!(client.counters().snapshot()["opens_sent"], opens);
        assert_eq!(take(&|| panic!("it sleeps")), None);
        promote();
        assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked(), "side {side}");
    }
}

/// Breaks if bytes that were taken asleep were not counted, also where the stream has ended one direction meanwhile, or if a thread
/// that was cancelled counted as asleep for ever.
#[test]
fn bytes_that_are_taken_asleep_are_counted() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let (near, far) = connect(&client, &server, 40_013);
    let cancelled = std::panic::AssertUnwindSafe(|| {
        far.take_asleep(&server, || -> Result<usize, ()> { panic!("as in a cancelled thread") })
    });
    assert!(std::panic::catch_unwind(cancelled).is_err());
    assert_eq!(near.take_asleep(&client, || Ok::<_, ()>(7)), Some(Ok(7)));
    assert_eq!(near.take_asleep(&client, || Err::<usize, _>("interrupted")), Some(Err("interrupted")));
    let ends = || {
        near.lock(&client).change(|stream| stream.shutdown(Shutdown::Write));
        Ok::<_, ()>(5)
    };
    assert_eq!(near.take_asleep(&client, ends), Some(Ok(5)));
    let guard = near.lock(&client);
    assert_eq!((guard.counters().rx_bytes_tcp, guard.proto().positions()), (12, (0, 12)));
    drop(guard);
    let (near, far) = connect(&client, &server, 40_014);
    drop(near);
    assert_eq!(far.take_asleep(&server, || Ok::<_, ()>(1)), Some(Ok(1)));
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
