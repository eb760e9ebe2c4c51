//! Bytes that wait in the sender's ring: because the program has corked them, for room, and for others to go with them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::{DeliveryMode, Fabric, Kill, LoopbackConfig, QueuePairEnd};
use netacc_device::middleware::Event;
use netacc_device::Instant;
use netacc_driver::{Endpoint, LinkIo, Readiness, ReadySink, Shutdown, StreamCell};
use netacc_proto::{Reason, RxSource};

use crate::common::{connect, run, Deaf};
use crate::endpoints::{endpoint, fill, read, with_sharing, write, write_more, write_pieces, Linked};

/// Breaks if bytes held back were announced to the peer, or not announced in the end.
#[test]
fn corked_bytes_leave_as_one_message() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_012);
    let [(_, near), (_, far)] = &pair.ends;
    let at = |intervals: f64| Instant::from_nanos((intervals * 2e8) as u64);
    let messages = || near.lock(&client).counters().tx_msgs_link;
    let before = messages();
    // Until it is released.
    assert_eq!(write_more(&client, near, b"held "), LinkIo::Done(5));
    assert_eq!(write_more(&client, near, b"back, "), LinkIo::Done(6));
    pair.progress(at(0.0));
    assert_eq!((messages() - before, read(&server, far, 64)), (0, vec![]));
    assert!(near.lock(&client).change(|stream| stream.push_corked()));
    pair.progress(at(0.0));
    assert_eq!((messages() - before, read(&server, far, 64)), (1, b"held back, ".to_vec()));
    // Until an uncorked write follows.
    assert_eq!(write_more(&client, near, b"and "), LinkIo::Done(4));
    assert_eq!(write(&client, near, b"told"), LinkIo::Done(4));
    pair.progress(at(0.0));
    assert_eq!((messages() - before, read(&server, far, 64)), (2, b"and told".to_vec()));
    // As long as the kernel would hold it back.
    assert_eq!(write_more(&client, near, b"late"), LinkIo::Done(4));
    pair.progress(at(1.0));
    pair.progress(at(1.9));
    assert_eq!(read(&server, far, 64), b"");
    pair.progress(at(3.0));
    assert_eq!(read(&server, far, 64), b"late");
    // A whole message, and bytes for which the ring has no room, are announced at once; and the end goes after
    // everything.
    let many = [7; 4096];
    assert_eq!(write_more(&client, near, &many[..1500]), LinkIo::Done(1500));
    pair.progress(at(3.0));
    assert_eq!(read(&server, far, 4096).len(), 1024);
    assert_eq!(write_more(&client, near, &many), LinkIo::Done(4096 - 476));
    pair.progress(at(3.0));
    assert_eq!(read(&server, far, 8192).len(), 4096);
    assert_eq!(write_more(&client, near, b"the end"), LinkIo::Done(7));
    near.lock(&client).change(|stream| stream.shutdown(Shutdown::Write));
    pair.progress(at(3.0));
    assert_eq!(read(&server, far, 64), b"the end");
    assert_eq!(far.lock(&server).rx_source(), RxSource::Eof);
    assert_eq!((client.counters().snapshot()["violations"], server.counters().snapshot()["violations"]), (0, 0));
}

/// Breaks if bytes that were not announced to the peer were lost with the link, or announced twice.
#[test]
fn corked_bytes_are_replayed_on_the_anchor() {
    for (dies, written) in [(false, false), (true, false), (true, true)] {
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
        }
        if written {
            // If a write finds the link dead, none of it is sent; earlier writes are sent completely.
            assert_eq!(write_pieces(&client, near, &[b"not ", b"sent"]), LinkIo::WouldBlock);
        }
        if !dies {
            near.lock(&client).change(|stream| stream.demote(Reason::Requested));
        }
        // Before the time limit announces the bytes held back.
        for turn in 0..2 {
            pair.progress(Instant::from_nanos(turn * 60_000_000));
        }
        assert!(pair.are_plain());
        assert!(!near.lock(&client).has_corked(), "it would be announced on the next link");
        assert_eq!(far.lock(&server).proto().replay_left(), 10);
        let counters = near.lock(&client).counters();
        assert_eq!((counters.tx_bytes_tcp, counters.tx_bytes_link), (10, 0));
    }
}

/// Breaks if a write had to wait for room that the kernel, with its buffers, would not have needed; if bytes taken in
/// this way got lost, or out of order; or if they were unlimited.
#[test]
fn bytes_without_room_for_a_message_are_corked() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_021);
    let [(_, near), (_, far)] = &pair.ends;
    let messages = || near.lock(&client).counters().tx_msgs_link;
    let before = messages();
    let mut sent = Vec::new();
    // The peer keeps 64 receives posted, and consumes none.
    while !near.lock(&client).has_corked() {
        sent.push(sent.len() as u8);
        assert_eq!(write(&client, near, &sent[sent.len() - 1..]), LinkIo::Done(1));
    }
    assert!(messages() - before < 64 && near.readiness().contains(Readiness::WRITABLE));
    // Bytes that no message could carry are left to wait; a write is refused before that.
    let more = [7; 700];
    assert_eq!(write(&client, near, &more), LinkIo::Done(700));
    assert!(!near.readiness().contains(Readiness::WRITABLE));
    assert_eq!(write(&client, near, &more), LinkIo::Done(1024 - 701));
    assert_eq!(write(&client, near, &more), LinkIo::WouldBlock);
    assert!(!near.lock(&client).is_between());
    sent.extend([7; 1023]);
    pair.progress(Instant::from_nanos(0));
    assert!(!near.lock(&client).has_corked() && near.readiness().contains(Readiness::WRITABLE));
    assert_eq!(read(&server, far, 4096), sent);
    assert_eq!(messages() - before, sent.len() as u64 - 1023);
}

/// A connection over links whose device reports a completion only when the test releases it.
fn over_verbs(fabric: &Fabric) -> (Endpoint, Endpoint) {
    let open = || with_sharing(fabric.open(LoopbackConfig::erdma()), None, |_: &Event| {}, Deaf, 1);
    (open(), open())
}

fn write_each(client: &Endpoint, near: &Arc<StreamCell>, bytes: &[u8]) {
    for byte in bytes.chunks(1) {
        assert_eq!(write(client, near, byte), LinkIo::Done(1));
    }
}

/// Breaks if small writes went out one by one although others are in flight, if they waited for more than a completion,
/// or for one that never comes.
#[test]
fn small_writes_behind_others_go_out_as_one() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = over_verbs(&fabric);
    let pair = Linked::new(&client, &server, 40_022);
    let [(_, near), (_, far)] = &pair.ends;
    let messages = || near.lock(&client).counters().tx_msgs_link;
    let bytes: Vec<u8> = (0..200).collect();
    fabric.set_mode(DeliveryMode::Explicit);
    let before = messages();
    write_each(&client, near, &bytes[..100]);
    let apart = messages() - before;
    assert!((8..=24).contains(&apart), "{apart} messages before a completion is due");
    assert!(near.readiness().contains(Readiness::WRITABLE));
    // The device has completed the sent messages: the rest goes out as one message, with a completion of its own, and
    // later writes wait.
    let complete = || {
        fabric.deliver_all();
        let link = near.lock(&client).link().cloned();
        client.poll_link(&link.expect("it is linked"));
    };
    complete();
    assert!(!near.lock(&client).has_corked());
    assert_eq!(messages() - before, apart + 1);
    write_each(&client, near, &bytes[100..150]);
    assert_eq!(messages() - before, apart + 1);
    complete();
    assert_eq!(messages() - before, apart + 2);
    // No completion, and no call of the program: the control path does not wait for long.
    write_each(&client, near, &bytes[150..]);
    assert!(near.lock(&client).has_corked());
    let mut now = Instant::from_nanos(0);
    while near.lock(&client).has_corked() {
        client.progress(now);
        now = now + Duration::from_micros(100);
    }
    assert!(now <= Instant::from_nanos(3_000_000), "{now:?}");
    assert_eq!(messages() - before, apart + 3);
    fabric.set_mode(DeliveryMode::Immediate);
    fabric.deliver_all();
    pair.progress(now);
    assert_eq!(read(&server, far, 4096), bytes);
}

/// Breaks if a request waited for others that will not come before its answer.
#[test]
fn a_conversation_waits_for_nothing() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = over_verbs(&fabric);
    let pair = Linked::new(&client, &server, 40_023);
    let [(_, near), (_, far)] = &pair.ends;
    let turns = if cfg!(miri) { 4 } else { 100 };
    // Completions come late: none is seen before the next request is written.
    for turn in 0..turns {
        fabric.set_mode(DeliveryMode::Explicit);
        for part in 0..5 {
            let sent = if part % 2 == turn % 2 {
                write(&client, near, b"ask")
            } else {
                write_pieces(&client, near, &[b"a", b"sk"])
            };
            assert_eq!(sent, LinkIo::Done(3));
            assert!(!near.lock(&client).has_corked(), "in turn {turn}");
        }
        fabric.set_mode(DeliveryMode::Immediate);
        fabric.deliver_all();
        pair.progress(Instant::from_nanos(turn));
        assert_eq!(read(&server, far, 64).len(), 15);
        assert_eq!(write(&server, far, b"answer"), LinkIo::Done(6));
        pair.progress(Instant::from_nanos(turn));
        assert_eq!(read(&client, near, 64), b"answer");
    }
}

/// Breaks if a write that finds the link dead were reported like one that finds no room: a program can wait for room,
/// but, where the kernel would have taken the bytes, it cannot wait for a change of path.
#[test]
fn a_write_to_a_dead_link_is_one_between_the_paths() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let device = fabric.open(LoopbackConfig::shm());
    let client = with_sharing(device.clone(), None, |_: &Event| {}, Deaf, 1);
    let server = endpoint(&fabric);
    let pair = Linked::new(&client, &server, 40_024);
    let near = &pair.ends[0].1;
    let qp = near.lock(&client).link().expect("it is linked").qp();
    assert!(fabric.kill(QueuePairEnd { device: device.id(), qp }, Kill::default()));
    assert!(!near.lock(&client).is_between());
    assert_eq!(write(&client, near, b"lost?"), LinkIo::WouldBlock);
    assert!(near.lock(&client).is_between() && near.lock(&client).has_failing_link());
    for turn in 0..2 {
        pair.progress(Instant::from_nanos(turn * 60_000_000));
    }
    assert!(pair.are_plain() && !near.lock(&client).is_between());
}

/// An owner that counts the changes of each of its streams.
struct CountingOwner(Arc<[AtomicU32]>);

impl ReadySink for CountingOwner {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn ready(&self, stream: &Arc<StreamCell>, _: Readiness, arrived: bool) {
        self.0[stream.number() as usize].fetch_add(u32::from(arrived), Relaxed);
    }
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, _: &Arc<StreamCell>) {}
}

/// Breaks if all streams of a link, perhaps thousands, were woken whenever it has room again; if some that wait were
/// passed over for later ones; or if one was forgotten.
#[test]
fn streams_that_wait_for_room_get_it_in_turn() {
    const STREAMS: u16 = if cfg!(miri) { 72 } else { 120 };
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let reported: Arc<[AtomicU32]> = (0..STREAMS).map(|_| AtomicU32::new(0)).collect();
    let open =
        |owner: CountingOwner| with_sharing(fabric.open(LoopbackConfig::erdma()), None, |_: &Event| {}, owner, STREAMS);
    let (client, server) =
        (open(CountingOwner(reported.clone())), open(CountingOwner((0..STREAMS).map(|_| AtomicU32::new(0)).collect())));
    let streams: Vec<_> = (0..STREAMS).map(|n| connect(&client, &server, 42_000 + n)).collect();
    for (near, _) in &streams {
        client.promote(near).expect("the acceptor is published");
    }
    run([&client, &server]);
    assert!(streams
        .iter()
        .all(|(near, far)| near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked()));
    // The peer keeps 64 receives posted, and consumes none.
    let (idle, busy) = streams.split_at(usize::from(STREAMS) / 20);
    for (near, _) in busy {
        assert_eq!(write(&client, near, b"*"), LinkIo::Done(1));
    }
    let waiting = || busy.iter().filter(|(near, _)| near.lock(&client).has_corked()).count();
    let calls = || idle.iter().map(|(near, _)| reported[near.number() as usize].load(Relaxed)).sum::<u32>();
    assert!(waiting() > usize::from(STREAMS) / 20);
    let (mut left, before) = (waiting(), calls());
    while left > 0 {
        for endpoint in [&server, &client] {
            endpoint.poll(endpoint.default_cq());
            endpoint.poll(endpoint.control_cq());
        }
        let now = waiting();
        assert!(now < left, "{now} wait as before");
        assert!(busy[..busy.len() - now].iter().all(|(near, _)| !near.lock(&client).has_corked()), "{now} wait");
        left = now;
    }
    run([&client, &server]);
    assert_eq!(calls(), before);
    assert!(busy.iter().all(|(_, far)| read(&server, far, 4096) == b"*"));
    assert_eq!(client.counters().snapshot()["violations"] + server.counters().snapshot()["violations"], 0);
}

/// Breaks if a stream whose peer reads nothing kept the others of its link waiting: if its unread bytes took the link's
/// messages, its room, or the turn of those that could continue.
#[test]
fn an_unread_stream_blocks_no_other_of_its_link() {
    let turns = if cfg!(miri) { 4 } else { 200 };
    for device in [LoopbackConfig::shm(), LoopbackConfig::erdma()] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let open = || with_sharing(fabric.open(device.clone()), None, |_: &Event| {}, Deaf, 4);
        let (client, server) = (open(), open());
        let pairs: Vec<_> = (40_030..40_033).map(|port| Linked::new(&client, &server, port)).collect();
        let links = |end: usize| -> Vec<_> {
            let ends = pairs.iter().map(|pair| &pair.ends[end]);
            ends.map(|(endpoint, cell)| cell.lock(endpoint).link().expect("it is linked").qp()).collect()
        };
        assert!((0..2).all(|end| links(end).windows(2).all(|two| two[0] == two[1])));
        let [(_, stuck), (_, unread)] = &pairs[0].ends;
        // First in small messages: more than the link may have in flight.
        let mut sent = 0;
        for _ in 0..30 {
            sent += (0..5).filter(|_| write(&client, stuck, b"\x07") == LinkIo::Done(1)).count();
            pairs[0].progress(Instant::from_nanos(0));
        }
        assert_eq!(sent, 150, "each took a message");
        sent += fill(&client, stuck, &[7; 1000]);
        pairs[0].progress(Instant::from_nanos(0));
        assert!(sent >= 4096 && !stuck.readiness().contains(Readiness::WRITABLE), "{sent} fill the ring");
        for turn in 0..turns {
            for pair in &pairs[1..] {
                let [(_, near), (_, far)] = &pair.ends;
                let block = [turn as u8; 1000];
                for (from, to) in [((&client, near), (&server, far)), ((&server, far), (&client, near))] {
                    assert_eq!(write(from.0, from.1, &block), LinkIo::Done(block.len()), "turn {turn}");
                    pair.progress(Instant::from_nanos(0));
                    assert_eq!(read(to.0, to.1, 4096), block, "turn {turn}");
                }
            }
        }
        // All on the one link, which the unread bytes never left.
        assert_eq!(read(&server, unread, 8192), vec![7; sent]);
        for endpoint in [&client, &server] {
            let counted = endpoint.counters().snapshot();
            let of_links = ["links_established", "streams_promoted", "streams_demoted", "violations"];
            assert_eq!(of_links.map(|name| counted[name]), [1, 3, 0, 0]);
        }
        let carried = |pair: &Linked<'_>| pair.ends[0].1.lock(&client).counters().tx_bytes_link;
        assert!(pairs[1..].iter().all(|pair| carried(pair) == turns as u64 * 1000));
    }
}
