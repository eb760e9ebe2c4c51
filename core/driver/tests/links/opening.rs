//! Links come up, and streams are opened on them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::loopback::{DeliveryMode, Fabric, Kill, LoopbackConfig, QueuePairEnd};
use netacc_device::middleware::Event;
use netacc_device::tables::Refusal;
use netacc_device::{Anchor, Instant};
use netacc_driver::{Endpoint, EndpointConfig, LinkIo, Sharing, Spread, StreamCell};
use netacc_proto::{Reason, TxSink};

use crate::common::{config, connect, connect_over, nonce, run, Deaf};
use crate::endpoints::{configured, endpoint, finding, read, sharing, with_sharing, write};

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

/// Breaks if a link were polled by a thread of the program alone while a stream of it is being opened, or by the helper for
/// ever after.
#[test]
fn a_link_opens_a_stream_from_open_to_the_answer() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (sharing(&fabric, 2), sharing(&fabric, 2));
    let pairs = [40_010, 40_011].map(|port| connect(&client, &server, port));
    for (near, _) in &pairs {
        client.promote(near).expect("the acceptor is published");
        // Until the OPEN is out: the first link has to come up before.
        while near.lock(&client).link().is_none() {
            for endpoint in [&server, &client] {
                endpoint.progress(Instant::from_nanos(0));
            }
        }
        let link = near.lock(&client).link().expect("there is one").clone();
        assert!(near.is_opening() && client.opens_stream_on(&link));
        run([&client, &server]);
        assert!(near.lock(&client).proto().is_linked() && !client.opens_stream_on(&link));
    }
    assert_eq!(streams_on_links(&client), [2]);
}

/// Breaks if each stream of a crowd that is to be promoted had its turn apart: that visits all links that are being made.
#[test]
fn a_crowd_that_is_enqueued_is_placed_in_one_turn() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (sharing(&fabric, 2), sharing(&fabric, 2));
    let pairs: Vec<_> = (40_050..40_056).map(|port| connect(&client, &server, port)).collect();
    for (near, _) in &pairs {
        client.enqueue_promotion(near).expect("the acceptor is published");
    }
    let backlog = |kind| client.backlog().into_iter().find_map(|(name, count)| (name == kind).then_some(count));
    assert_eq!((backlog("waiting"), backlog("connecting")), (Some(6), Some(0)));
    client.progress(Instant::from_nanos(0));
    assert_eq!((backlog("waiting"), backlog("connecting")), (Some(6), Some(3)));
    run([&client, &server]);
    assert!(pairs.iter().all(|(near, _)| near.lock(&client).proto().is_linked()));
    assert_eq!(streams_on_links(&client), [2; 3]);
}

/// Breaks if the links that are being made were checked again for each stream of a turn: there may be dozens of both. One that
/// becomes ready meanwhile is found by the next turn.
#[test]
fn links_that_are_being_made_are_checked_once_in_a_turn() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let device = fabric.open(LoopbackConfig::shm());
    let (client, server) = (Arc::new(OnceLock::<Endpoint>::new()), endpoint(&fabric));
    // Each stream that is opened has a nonce. The peer's answers on all links are handled then.
    let opening = Arc::downgrade(&client);
    let answered = Box::new(move || {
        if let Some(client) = opening.upgrade().as_deref().and_then(OnceLock::get) {
            client.poll(client.default_cq());
        }
        nonce()
    });
    let (cm, directory) = (device.clone(), device.clone());
    let made = Endpoint::new(device, cm, directory, config(1), Arc::new(Deaf), Box::new(|| {}), answered);
    let client = client.get_or_init(|| made.expect("a loopback device has queues"));

    let cells: Vec<_> = (40_060..40_064).map(|port| connect(client, &server, port).0).collect();
    for near in &cells {
        client.enqueue_promotion(near).expect("the acceptor is published");
    }
    let turn = |endpoint: &Endpoint| endpoint.progress(Instant::from_nanos(0));
    for endpoint in [client, &server, client] {
        turn(endpoint);
    }
    let links = client.links_at(client.control_cq());
    assert_eq!(links.len(), cells.len());
    links.iter().for_each(|link| client.rebind(link, client.default_cq()));
    // All links are answered, and the client takes one of the answers.
    turn(&server);
    client.poll_link(&links[0]);
    let opened = || cells.iter().filter(|near| near.lock(client).link().is_some()).count();
    turn(client);
    assert_eq!(opened(), 1);
    turn(client);
    assert_eq!(opened(), cells.len());
}

/// Breaks if each of several connections that are made at the same time had a link made for it.
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

/// Two endpoints on such devices, which share links automatically.
fn automatic(fabric: &Fabric, device: &LoopbackConfig, mapped: Spread, posted: Spread) -> [Endpoint; 2] {
    let open = || {
        let config = EndpointConfig { sharing: Sharing::Automatic { mapped, posted }, ..config(1) };
        configured(fabric.open(device.clone()), None, |_: &Event| {}, Deaf, config)
    };
    [open(), open()]
}

/// So many streams on each of the links, in order.
fn streams_on_links(endpoint: &Endpoint) -> Vec<u16> {
    let mut streams: Vec<_> = endpoint.links().iter().map(|link| link.streams).collect();
    streams.sort_unstable();
    streams
}

/// Breaks if the first streams to a peer had to share a link, if further ones had links made for them while others have
/// room, if they crowded on one link, or if nothing were made once all are full. Or if devices were not told apart by what
/// a link costs there.
#[test]
fn streams_share_links_once_there_are_many() {
    let (used, unused) = (Spread { dedicated: 2, most: 3 }, Spread { dedicated: 1, most: 5 });
    for (device, mapped, posted) in [(LoopbackConfig::shm(), used, unused), (LoopbackConfig::soft_roce(), unused, used)]
    {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let [client, server] = automatic(&fabric, &device, mapped, posted);
        let mut pairs = Vec::new();
        let mut links_after = |streams: u16| {
            for port in 40_100 + pairs.len() as u16..40_100 + streams {
                let (near, far) = connect(&client, &server, port);
                client.promote(&near).expect("the acceptor is published");
                pairs.push((near, far));
            }
            run([&client, &server]);
            for (near, far) in &pairs {
                assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
            }
            streams_on_links(&client)
        };
        assert_eq!(links_after(1), [1]);
        assert_eq!(links_after(2), [1, 1]);
        assert_eq!(links_after(4), [2, 2], "spread over those that there are");
        assert_eq!(links_after(6), [3, 3]);
        assert_eq!(links_after(8), [2, 3, 3], "a third one once both are full");
    }
}

/// Breaks if a crowd that comes at once had a link made for each stream where links are dear, or waited for ever for links
/// that nobody makes.
#[test]
fn a_crowd_on_a_device_shares_a_few_links() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let posted = Spread { dedicated: 4, most: 8 };
    let [client, server] = automatic(&fabric, &LoopbackConfig::erdma(), Spread { dedicated: 256, most: 1024 }, posted);
    let pairs: Vec<_> = (0..48).map(|i| connect(&client, &server, 40_200 + i)).collect();
    pairs.iter().for_each(|(near, _)| client.promote(near).expect("the acceptor is published"));
    run([&client, &server]);
    assert!(pairs.iter().all(|(near, _)| near.lock(&client).proto().is_linked()));
    assert_eq!(streams_on_links(&client), [8; 6]);
}

/// Breaks if a stream stayed on TCP because no further link can be made, while another link has room.
#[test]
fn streams_share_what_there_is_where_no_link_can_be_made() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let spread = Spread { dedicated: 4, most: 2 };
    let sharing = Sharing::Automatic { mapped: spread, posted: spread };
    let devices = [(); 2].map(|()| fabric.open(LoopbackConfig::soft_roce()));
    let [client, server] = devices
        .clone()
        .map(|device| configured(device, None, |_: &Event| {}, Deaf, EndpointConfig { sharing, ..config(1) }));
    let promoted = |port| {
        let (near, _) = connect(&client, &server, port);
        client.promote(&near).expect("the acceptor is published");
        run([&client, &server]);
        near
    };
    promoted(40_270);
    fabric.refuse_connects(devices[1].id(), Some(Refusal::Exhausted));
    promoted(40_271);
    assert_eq!(streams_on_links(&client), [2]);
    let third = promoted(40_272);
    assert_eq!(third.lock(&client).proto().reason(), Reason::Exhausted);
}

/// Breaks if more links are being made at the same time than peers queue, or if streams that wait for the next one are
/// forgotten.
#[test]
fn a_crowd_of_streams_is_promoted_a_few_links_at_a_time() {
    const STREAMS: u16 = 100;
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pairs: Vec<_> = (0..STREAMS).map(|i| connect(&client, &server, 41_000 + i)).collect();
    for (near, _) in &pairs {
        client.promote(near).expect("the acceptor is published");
    }
    let backlog = client.backlog();
    assert!(backlog.contains(&("connecting", 64)), "of {STREAMS} that are wanted: {backlog:?}");
    assert!(backlog.contains(&("waiting", usize::from(STREAMS))), "{backlog:?}");
    run([&client, &server]);
    let linked = pairs.iter().filter(|(near, _)| near.lock(&client).proto().is_linked()).count();
    assert_eq!(linked, usize::from(STREAMS));
}

/// Breaks if a crowd of streams could not write until the last of them was opened; or if all links were polled by the
/// helper thread meanwhile, because on each of them some stream is being opened.
#[test]
#[cfg_attr(miri, ignore = "thousands of streams")]
fn few_streams_are_opened_at_a_time_and_on_few_links() {
    const STREAMS: u16 = 6000;
    const LINKS: u16 = 256;
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let spread = Spread { dedicated: LINKS, most: 1024 };
    let [client, server] = automatic(&fabric, &LoopbackConfig::shm(), spread, spread);
    let promoted = |ports: std::ops::Range<u16>| {
        let pairs: Vec<_> = ports.map(|port| connect(&client, &server, 50_000 + port).0).collect();
        pairs.iter().for_each(|near| client.promote(near).expect("the acceptor is published"));
        pairs
    };
    let first = promoted(0..LINKS);
    run([&client, &server]);
    let crowd = promoted(LINKS..STREAMS);
    let opening = || crowd.iter().filter(|near| near.is_opening()).map(|near| near.number()).collect::<Vec<_>>();
    let batch = opening();
    assert_eq!(batch.len(), 128);
    // From then on it is known that many wait.
    let last = batch.iter().copied().max();
    while opening().into_iter().min() <= last {
        server.progress(Instant::from_nanos(100));
        client.progress(Instant::from_nanos(100));
    }
    let opening: Vec<_> = crowd.iter().filter(|near| near.is_opening()).collect();
    assert_eq!(opening.len(), 128);
    let waiting: Vec<_> = crowd.iter().filter(|near| near.lock(&client).link().is_none()).collect();
    assert!(waiting.len() > 500 && waiting.iter().all(|near| near.lock(&client).tx_sink() == TxSink::Anchor));
    let links: std::collections::BTreeSet<_> =
        opening.iter().filter_map(|near| Some(near.lock(&client).link()?.qp().0)).collect();
    assert!(links.len() <= 10, "{} of {LINKS}", links.len());
    // One batch after the other.
    for _ in 0..STREAMS / 128 {
        run([&client, &server]);
    }
    assert!(first.iter().chain(&crowd).all(|near| near.lock(&client).proto().is_linked()));
}

/// Breaks if streams whose peer does not answer, because its program reads nothing, kept all others off their links.
#[test]
#[cfg_attr(miri, ignore = "thousands of streams")]
fn openings_without_an_answer_delay_others_only_for_a_while() {
    const STREAMS: u16 = 200;
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (sharing(&fabric, STREAMS), sharing(&fabric, STREAMS));
    let cells: Vec<_> = (0..STREAMS).map(|i| connect(&client, &server, 43_000 + i).0).collect();
    client.promote(&cells[0]).expect("the acceptor is published");
    run([&client, &server]);
    cells[1..].iter().for_each(|near| client.promote(near).expect("the acceptor is published"));
    let opening = || cells.iter().filter(|near| near.is_opening()).count();
    let next = client.progress(Instant::from_nanos(100)).expect("streams wait");
    assert_eq!(opening(), 128);
    assert!(next.as_nanos() <= 50_000_100, "{next:?}");
    client.progress(Instant::from_nanos(50_000_100));
    assert_eq!(opening(), usize::from(STREAMS) - 1);
}

/// Breaks if each stream on a link that is used again has memory registered for it, or finds bytes of the previous
/// stream there.
#[test]
fn the_next_stream_of_a_link_registers_nothing() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let registered = Arc::new(AtomicU32::new(0));
    let counted = registered.clone();
    let count = move |event: &Event| {
        counted.fetch_add(u32::from(matches!(event, Event::AllocRegion { .. })), Relaxed);
    };
    let client = finding(fabric.open(LoopbackConfig::soft_roce()), None, count, Deaf);
    let server = finding(fabric.open(LoopbackConfig::soft_roce()), None, |_: &Event| {}, Deaf);
    let mut first = 0;
    for port in 40_040..40_050 {
        let (near, far) = connect(&client, &server, port);
        client.promote(&near).expect("the acceptor is published");
        run([&client, &server]);
        assert_eq!(write(&client, &near, b"for this stream alone"), LinkIo::Done(21));
        run([&client, &server]);
        assert_eq!(read(&server, &far, 64), b"for this stream alone");
        near.lock(&client).change(|stream| stream.close(false, || None));
        far.lock(&server).change(|stream| stream.close(false, || None));
        run([&client, &server]);
        first = if first == 0 { registered.load(Relaxed) } else { first };
    }
    assert_eq!(registered.load(Relaxed), first);
    assert_eq!(client.counters().snapshot()["links_established"], 1);
    assert_eq!(client.counters().snapshot()["violations"] + server.counters().snapshot()["violations"], 0);
}

/// Breaks if OPENs waited for other messages once the link's control slots are used: the peer reports its progress once
/// in a quarter of its receives, which are more than slots.
#[test]
fn more_streams_than_control_slots_are_opened_at_once() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let open = || {
        let mut device = LoopbackConfig::erdma();
        device.capabilities.max_recv_wr = 256;
        let config = EndpointConfig { receive_depth: 256, ..config(100) };
        configured(fabric.open(device), None, |_: &Event| {}, Deaf, config)
    };
    let (client, server) = (open(), open());
    let count = if cfg!(miri) { 20 } else { 100 };
    let streams: Vec<_> = (0..count).map(|n| connect(&client, &server, 41_000 + n)).collect();
    for (near, _) in &streams {
        client.promote(near).expect("the acceptor is published");
    }
    run([&client, &server]);
    let linked = streams
        .iter()
        .filter(|(near, far)| near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert_eq!(linked.count(), usize::from(count));
    assert_eq!(client.counters().snapshot()["links_established"], 1);
    assert_eq!(client.counters().snapshot()["violations"] + server.counters().snapshot()["violations"], 0);
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
    assert_eq!(on_link(&first.0), Some(qp), "the anchor has not shown the peer's end");
    assert!(second.0.lock(&client).proto().is_linked() && second.1.lock(&server).proto().is_linked());
    assert_eq!(client.counters().snapshot()["links_established"], 2);
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

/// Breaks if positions counted bytes that went by a link, or left out the records: the two ends would disagree as soon
/// as one of them reads its kernel's counts, because another process has used the socket too.
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
    let progress = || {
        for _ in 0..4 {
            run([&client, &server]);
            wire.deliver_all();
            near.lock(&client).change(|stream| stream.progress_anchor(false));
            far.lock(&server).change(|stream| stream.progress_anchor(false));
        }
    };
    client.promote(&near).expect("the acceptor is published");
    progress();
    assert_eq!(write(&client, &near, b"by the link"), LinkIo::Done(11));
    progress();
    assert_eq!(read(&server, &far, 64), b"by the link");
    near.lock(&client).change(|stream| stream.demote(Reason::Requested));
    progress();
    assert!(near.lock(&client).proto().is_plain() && far.lock(&server).proto().is_plain());
    // Another process of the client's writes, which this one does not see. The server has only counted itself.
    near.share();
    assert_eq!(to.try_write(b"by others").expect("there is room"), 9);
    wire.deliver_all();
    assert_eq!(from.try_read(&mut [0; 64]).expect("it is there"), 9);
    far.lock(&server).anchor_received(9);
    near.unshare(near.shares());
    let carried = to.position().expect("the model has it");
    client.promote(&near).expect("the acceptor is published");
    progress();
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert_eq!(near.lock(&client).proto().positions(), (carried.written, carried.read));
    assert_eq!(write(&client, &near, b"by the link again"), LinkIo::Done(17));
    progress();
    assert_eq!(read(&server, &far, 64), b"by the link again");
}
