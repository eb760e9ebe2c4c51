//! Short messages that are moved in one step, and when they are not: `endpoint/direct.rs`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;

use netacc_device::loopback::{DeliveryMode, Fabric};
use netacc_device::middleware::Event;
use netacc_device::Instant;
use netacc_driver::{Endpoint, LinkIo, Readiness, ReadySink, Shutdown, StreamCell};
use netacc_proto::RxSource;

use crate::common::connect;
use crate::endpoints::{endpoint, owned, read, sharing, write, write_more, Linked};

/// An owner that counts arrivals.
#[derive(Clone, Default)]
struct Arrivals(Arc<AtomicU32>);

impl ReadySink for Arrivals {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, arrived: bool) {
        self.0.fetch_add(u32::from(arrived), Relaxed);
    }
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, _: &Arc<StreamCell>) {}
}

fn send(endpoint: &Endpoint, cell: &Arc<StreamCell>, bytes: &[u8]) -> bool {
    endpoint.send_slice_direct(cell, bytes)
}

fn receive(endpoint: &Endpoint, cell: &Arc<StreamCell>, room: usize, watched: bool) -> Option<Vec<u8>> {
    let mut bytes = vec![0; room];
    let n = endpoint.receive_slice_direct(cell, watched, &mut bytes)?;
    bytes.truncate(n);
    Some(bytes)
}

/// Breaks if a message that its receiver takes from the link were announced, counted in another way than others, or
/// still news afterwards; or if those who watch the stream did not hear of it.
#[test]
fn a_message_is_received_without_being_announced() {
    let (fabric, arrivals) = (Fabric::new(DeliveryMode::Immediate), Arrivals::default());
    let (client, server) = (endpoint(&fabric), owned(&fabric, |_: &Event| {}, arrivals.clone()));
    let pair = Linked::new(&client, &server, 40_101);
    let [(_, near), (_, far)] = &pair.ends;
    let before = arrivals.0.load(Relaxed);
    assert_eq!(receive(&server, far, 64, false), None);
    for _ in 0..200 {
        assert!(send(&client, near, b"once"));
        assert_eq!(receive(&server, far, 64, false).as_deref(), Some(&b"once"[..]));
        assert!(!far.has_news(&server));
    }
    assert_eq!((arrivals.0.load(Relaxed), far.readiness()), (before, Readiness::WRITABLE));
    let (sent, received) = (near.lock(&client).counters(), far.lock(&server).counters());
    assert_eq!((sent.tx_bytes_link, sent.tx_msgs_link), (800, 200));
    assert_eq!((received.rx_bytes_link, received.rx_msgs_link), (800, 200));
    // Whoever watches the stream polls the link in another way.
    assert!(send(&client, near, b"seen"));
    assert_eq!(receive(&server, far, 64, true), None);
    pair.progress(Instant::from_nanos(0));
    assert_eq!((arrivals.0.load(Relaxed), far.readiness()), (before + 1, Readiness::WRITABLE | Readiness::READABLE));
    assert_eq!(receive(&server, far, 64, true).as_deref(), Some(&b"seen"[..]));
    assert_eq!(far.readiness(), Readiness::WRITABLE);
}

/// Breaks if the rest of what was taken from the link were not announced: a thread that sleeps would not read it.
#[test]
fn what_is_left_is_announced() {
    let (fabric, arrivals) = (Fabric::new(DeliveryMode::Immediate), Arrivals::default());
    let (client, server) = (endpoint(&fabric), owned(&fabric, |_: &Event| {}, arrivals.clone()));
    let pair = Linked::new(&client, &server, 40_102);
    let [(_, near), (_, far)] = &pair.ends;
    let before = arrivals.0.load(Relaxed);
    assert!(send(&client, near, b"one ") && send(&client, near, b"two"));
    assert_eq!(receive(&server, far, 5, false).as_deref(), Some(&b"one t"[..]));
    assert_eq!((arrivals.0.load(Relaxed), far.readiness()), (before + 1, Readiness::WRITABLE | Readiness::READABLE));
    assert_eq!(receive(&server, far, 5, false).as_deref(), Some(&b"wo"[..]));
    assert_eq!(far.readiness(), Readiness::WRITABLE);
}

/// Breaks if a message overtook another one, or one were lost that had been taken with others.
#[test]
fn what_comes_with_other_messages_is_handled_in_order() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_103);
    let [(_, near), (_, far)] = &pair.ends;
    let digits = b"0123456789";
    for digit in digits.chunks(1) {
        assert!(send(&client, near, digit));
    }
    assert_eq!(receive(&server, far, 64, false), None, "there are many");
    assert_eq!(read(&server, far, 64), digits);
    assert!(send(&client, near, b"the end"));
    near.lock(&client).change(|stream| stream.shutdown(Shutdown::Write));
    assert_eq!(receive(&server, far, 64, false), None, "the end came, too");
    assert_eq!(read(&server, far, 64), b"the end");
    assert_eq!(far.lock(&server).rx_source(), RxSource::Eof);
    assert_eq!((client.counters().snapshot()["violations"], server.counters().snapshot()["violations"]), (0, 0));
}

/// Breaks if a stream took, or lost, the messages of another one on its link.
#[test]
fn messages_of_other_streams_on_the_link_are_theirs() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (sharing(&fabric, 2), sharing(&fabric, 2));
    let pair = Linked::new(&client, &server, 40_104);
    let (near, far) = connect(&client, &server, 40_105);
    client.promote(&near).expect("the acceptor is published");
    pair.progress(Instant::from_nanos(0));
    crate::common::run([&client, &server]);
    pair.progress(Instant::from_nanos(0));
    let [(_, first_near), (_, first_far)] = &pair.ends;
    let link = |cell: &Arc<StreamCell>| cell.lock(&server).link().map(|link| link.qp());
    assert_eq!(link(&far), link(first_far));
    assert_eq!(write(&client, &near, b"second"), LinkIo::Done(6));
    assert!(send(&client, first_near, b"first"));
    assert_eq!(receive(&server, first_far, 64, false), None);
    assert_eq!((read(&server, first_far, 64), read(&server, &far, 64)), (b"first".to_vec(), b"second".to_vec()));
}

/// Breaks if the receives of messages that were taken one at a time were lost: they are posted again only some messages
/// later, or when a peer that has run out of credit asks, also if the receiver has been idle since.
#[test]
fn an_idle_receiver_returns_the_credit_that_it_has_kept() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_107);
    let [(_, near), (_, far)] = &pair.ends;
    // The ring has room for far more messages of one byte than there is credit for.
    let send_all = || {
        let sent = (0..).take_while(|_| send(&client, near, b".")).count();
        // Waits for room, and asks for it.
        assert_eq!(write(&client, near, b"!"), LinkIo::Done(1));
        for _ in 0..4 {
            pair.progress(Instant::from_nanos(0));
        }
        assert_eq!(read(&server, far, 4096).len(), sent + 1);
        assert!(!near.lock(&client).has_failing_link() && near.readiness().contains(Readiness::WRITABLE));
        sent
    };
    // The first messages of the link, which were no data, are returned by then.
    send_all();
    let all = send_all();
    // One less than are returned together: an eighth of the queue of 64.
    for _ in 0..7 {
        assert!(send(&client, near, b"."));
        assert_eq!(receive(&server, far, 1, false).as_deref(), Some(&b"."[..]));
    }
    assert_eq!(send_all(), all - 7);
    assert_eq!(send_all(), all, "the credit was lost");
    for _ in 0..10 * all {
        assert!(send(&client, near, b"."), "credit that is kept does not grow");
        assert_eq!(receive(&server, far, 1, false).as_deref(), Some(&b"."[..]));
    }
}

/// Breaks if a message went before bytes that are held back, or although there is no room for it; or if a refusal
/// changed anything.
#[test]
fn messages_that_cannot_go_at_once_are_not_sent() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, server) = (endpoint(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_106);
    let [(_, near), (_, far)] = &pair.ends;
    assert_eq!(write_more(&client, near, b"held "), LinkIo::Done(5));
    assert!(!send(&client, near, b"back"));
    assert_eq!(write(&client, near, b"back"), LinkIo::Done(4));
    assert!(send(&client, near, b"!"));
    pair.progress(Instant::from_nanos(0));
    assert_eq!(read(&server, far, 64), b"held back!");
    // The ring has 4 KiB; with less than a quarter of it free a stream is not writable.
    let sent = (0..).take_while(|_| send(&client, near, &[7; 1000])).count();
    assert_eq!((sent, near.lock(&client).proto().free()), (3, 1096));
    assert!(near.readiness().contains(Readiness::WRITABLE));
    pair.progress(Instant::from_nanos(0));
    assert_eq!(read(&server, far, 4096), [7; 3000]);
    assert!(send(&client, near, &[7; 1000]));
}
