//! Links on which no message arrives any more, without an error from the device.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, QueuePairEnd};
use netacc_device::middleware::Event;
use netacc_device::{Anchor, Instant, QueuePairId};
use netacc_driver::{Endpoint, LinkIo, Shutdown, StreamCell};

use crate::common::{connect_over, Deaf};
use crate::endpoints::{finding, read, write, write_more, Linked};

fn at(s: u64) -> Instant {
    Instant::from_nanos(s * 1_000_000_000)
}

/// An endpoint whose device does not report silence.
fn endpoint(fabric: &Fabric) -> Endpoint {
    finding(fabric.open(LoopbackConfig::erdma()), None, |_: &Event| {}, Deaf)
}

fn silent(endpoint: &Endpoint) -> u64 {
    endpoint.counters().snapshot()["links_silent"]
}

/// Breaks if streams stood still for ever on a link that carries nothing any more; if a byte of theirs were lost with
/// it; or if the link were given up before its peer had time to answer.
#[test]
fn a_link_that_falls_silent_is_left() {
    //= spec §2.6.2
    //= type=test
    //# A side that has sent this LINK_WANT and receives nothing for SILENCE_LIMIT (10 s) ends the link.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_050);
    let [(_, near), (_, far)] = &pair.ends;
    pair.progress(at(1));
    pair.progress(at(2));
    // Nothing is delivered from here on, and no side gets an error.
    fabric.set_mode(DeliveryMode::Explicit);
    assert_eq!(write(&client, near, b"into the void"), LinkIo::Done(13));
    for s in 3..13 {
        pair.progress(at(s));
        assert!(near.lock(&client).proto().is_linked(), "after {s} s");
    }
    // Probed at the first check, of 3 s; and no answer for ten more.
    pair.progress(at(13));
    pair.progress(at(14));
    assert!(pair.are_plain());
    assert_eq!(far.lock(&server).proto().replay_left(), 13);
    assert_eq!((silent(&client), client.links().len()), (1, 0));
    assert_eq!(client.counters().snapshot()["links_failed"], 1);
}

/// Breaks if a process that computes, or waits elsewhere, lost its links: its control path answers probes. And if two
/// idle ends went on probing each other.
#[test]
fn a_peer_that_checks_no_silence_answers_probes() {
    //= spec §2.6.1, §2.6.3
    //= type=test
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let posts = Arc::new(AtomicU32::new(0));
    let counted = posts.clone();
    let observer = move |event: &Event| {
        counted.fetch_add(u32::from(matches!(event, Event::PostSend { .. })), Relaxed);
    };
    // Its queue pairs may report to another queue than the control path's.
    let mut config = LoopbackConfig::erdma();
    config.capabilities.rebind = true;
    let client = finding(fabric.open(config.clone()), None, observer, Deaf);
    let server = finding(fabric.open(config), None, |_: &Event| {}, Deaf);
    let pair = Linked::new(&client, &server, 40_051);
    let [(_, near), (_, far)] = &pair.ends;
    for (endpoint, cell) in &pair.ends {
        let link = cell.lock(endpoint).link().cloned().expect("it is linked");
        endpoint.rebind(&link, endpoint.default_cq());
        assert_eq!(link.cq(), endpoint.default_cq());
    }
    assert_eq!(write(&client, near, b"unread"), LinkIo::Done(6));
    let control = |s: u64| {
        for endpoint in [&client, &server] {
            endpoint.progress(at(s));
        }
    };
    (1..5).for_each(control);
    let posted = posts.load(Relaxed);
    (5..100).for_each(control);
    assert_eq!(posts.load(Relaxed), posted, "the peer has taken everything: nothing to probe for");
    assert_eq!((silent(&client), silent(&server)), (0, 0));
    assert_eq!(read(&server, far, 64), b"unread");
    // A peer whose control path does nothing either counts as gone.
    assert_eq!(write(&client, near, b"unseen"), LinkIo::Done(6));
    for s in 100..113 {
        client.progress(at(s));
    }
    assert_eq!((silent(&client), client.links().len()), (1, 0));
}

/// Breaks if a process had to wake for links whose device reports silence itself, for idle ones, or once its links are
/// gone; or if it did not begin again when a message is sent, or comes.
#[test]
fn silence_is_not_checked_without_need() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    for (config, checks) in [(LoopbackConfig::erdma(), true), (LoopbackConfig::soft_roce(), false)] {
        let [client, server] = [(); 2].map(|()| finding(fabric.open(config.clone()), None, |_: &Event| {}, Deaf));
        let pair = Linked::new(&client, &server, 40_052);
        let [(_, near), (_, far)] = &pair.ends;
        assert_eq!(client.progress(at(5)), checks.then(|| at(6)));
        (6..60).for_each(|s| pair.progress(at(s)));
        assert_eq!([&client, &server].map(|endpoint| endpoint.progress(at(60))), [None; 2]);
        assert_eq!(write(&client, near, b"again"), LinkIo::Done(5));
        assert_eq!(client.progress(at(61)), checks.then(|| at(62)));
        assert_eq!(server.progress(at(61)).is_some(), checks);
        assert_eq!(read(&server, far, 64), b"again");
        near.lock(&client).change(|stream| stream.demote(netacc_proto::Reason::Requested));
        (62..66).for_each(|s| pair.progress(at(s)));
        assert!(pair.are_plain() && client.links().is_empty(), "the cache keeps it for a second");
        assert_eq!(client.progress(at(66)), None);
    }
}

/// Breaks if a message that is sent on a link that rests could be lost without a probe.
#[test]
fn a_message_on_a_resting_link_resumes_its_watch() {
    let sends: [fn(&Endpoint, &Arc<StreamCell>); 3] = [
        |endpoint, cell| assert_eq!(write(endpoint, cell, b"bytes"), LinkIo::Done(5)),
        |endpoint, cell| {
            assert_eq!(write_more(endpoint, cell, b"bytes"), LinkIo::Done(5));
            assert!(cell.lock(endpoint).change(|stream| stream.push_corked()));
        },
        |endpoint, cell| cell.lock(endpoint).change(|stream| stream.shutdown(Shutdown::Write)),
    ];
    for send in sends {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, server) = (endpoint(&fabric), endpoint(&fabric));
        let pair = Linked::new(&client, &server, 40_053);
        (1..40).for_each(|s| pair.progress(at(s)));
        assert_eq!(client.progress(at(40)), None);
        fabric.set_mode(DeliveryMode::Explicit);
        send(&client, &pair.ends[0].1);
        (41..55).for_each(|s| pair.progress(at(s)));
        assert_eq!((silent(&client), client.links().len()), (1, 0));
    }
}

/// Breaks if a stream whose answer to OPEN will never come waited for it for ever: its peer has taken all that was
/// sent, so nothing else causes a probe.
#[test]
fn a_missing_answer_is_probed_for() {
    for silent_from in [None, Some(10)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let device = fabric.open(LoopbackConfig::erdma());
        let (client, server) = (finding(device.clone(), None, |_: &Event| {}, Deaf), endpoint(&fabric));
        let (a, b, _wire) = anchor_pair(AnchorConfig::default());
        let mut to = a.clone();
        let (near, _far) = connect_over(&client, &server, 40_054, (a, b));
        // The acceptor's program does not read this, and so it does not answer.
        assert_eq!(to.try_write(b"before").expect("there is room"), 6);
        near.lock(&client).anchor_sent(6);
        client.promote(&near).expect("the acceptor is published");
        for s in 0..120 {
            if silent_from == Some(s) {
                let end = QueuePairEnd { device: device.id(), qp: client_qp(&near, &client) };
                assert!(fabric.silence(end));
            }
            client.progress(at(s));
            server.progress(at(s));
        }
        assert_eq!(near.is_opening(), silent_from.is_none());
        assert_eq!((silent(&client), client.progress(at(120))), (u64::from(silent_from.is_some()), None));
    }
}

fn client_qp(cell: &Arc<StreamCell>, endpoint: &Endpoint) -> QueuePairId {
    cell.lock(endpoint).link().expect("its OPEN is on one").qp()
}

/// Breaks if an accepted link that is empty stayed for ever where its other end cannot be reached, or if it ended
/// although that end might still use it.
#[test]
fn an_accepted_link_that_stays_empty_is_closed() {
    //= spec §2.4.2
    //= type=test
    //# The accepting side closes a link that has been empty for twice its own NACC_EMPTY_QP_EXPIRE_MS and 10 s more.
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let device = fabric.open(LoopbackConfig::soft_roce());
    let client = finding(device.clone(), None, |_: &Event| {}, Deaf);
    let server = finding(fabric.open(LoopbackConfig::soft_roce()), None, |_: &Event| {}, Deaf);
    let pair = Linked::new(&client, &server, 40_055);
    let qp = client_qp(&pair.ends[0].1, &client);
    pair.ends[0].1.lock(&client).change(|stream| stream.demote(netacc_proto::Reason::Requested));
    pair.progress(at(0));
    assert!(pair.are_plain() && server.links().len() == 1);
    // The client's cache keeps it for a second; its messages do not arrive then.
    assert!(fabric.silence(QueuePairEnd { device: device.id(), qp }));
    client.progress(at(2));
    assert_eq!(client.links().len(), 0);
    assert_eq!((server.progress(at(11)), server.links().len()), (Some(at(12)), 1));
    server.progress(at(12));
    assert_eq!(server.links().len(), 0);
    assert_eq!(server.counters().snapshot()["links_failed"], 0);
}
