//! Promotions without markers: UNMARKED alone says that a side has switched.

use std::sync::{Arc, Mutex};

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire, InMemoryAnchor};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::middleware::{Event, PostedOperation};
use netacc_device::{Anchor, Instant};
use netacc_driver::{Endpoint, LinkIo, StreamCell};
use netacc_proto::{Immediate, MessageKind, RECORD_LEN};

use crate::common::{connect_over, Deaf};
use crate::endpoints::{endpoint, finding, write};

/// A connection that is to be promoted, and the kernel's ends of it.
struct Pair<'a> {
    ends: [(&'a Endpoint, Arc<StreamCell>); 2],
    kernel: [InMemoryAnchor; 2],
    wire: AnchorWire,
}

impl<'a> Pair<'a> {
    fn new(client: &'a Endpoint, server: &'a Endpoint, port: u16) -> Pair<'a> {
        let (a, b, wire) = anchor_pair(AnchorConfig::default());
        let kernel = [a.clone(), b.clone()];
        let (near, far) = connect_over(client, server, port, (a, b));
        Pair { ends: [(client, near), (server, far)], kernel, wire }
    }

    /// Both processes do the work that is due, and see what has come on their anchors.
    fn progress(&self) {
        for round in 0..8 {
            for (endpoint, cell) in &self.ends {
                endpoint.progress(Instant::from_nanos(round));
                endpoint.poll(endpoint.default_cq());
                self.wire.deliver_all();
                cell.lock(endpoint).change(|stream| stream.progress_anchor(true));
            }
        }
    }

    fn promote(&self) {
        let (client, near) = &self.ends[0];
        client.promote(near).expect("the acceptor is published");
        self.progress();
    }

    fn are_linked(&self) -> bool {
        self.ends.iter().all(|(endpoint, cell)| cell.lock(endpoint).proto().is_linked())
    }

    /// Bytes that both ends have written to the anchor.
    fn written(&self) -> u64 {
        self.kernel.iter().map(|end| end.position().expect("it is connected").written).sum()
    }
}

/// The kinds of messages that a device was asked to send, and `None` for each knock.
type Asked = Arc<Mutex<Vec<Option<MessageKind>>>>;

fn recording(fabric: &Fabric, knock: bool, placement_is_delivery: bool) -> (Endpoint, Asked) {
    let asked = Asked::default();
    let log = asked.clone();
    let mut config = LoopbackConfig::shm();
    config.capabilities.knock = knock;
    config.capabilities.placement_is_delivery = placement_is_delivery;
    let observer = move |event: &Event| {
        let mut log = log.lock().expect("no test panics here");
        match event {
            Event::Knock { .. } => log.push(None),
            Event::PostSend { requests, .. } => log.extend(requests.iter().filter_map(|request| {
                let (PostedOperation::Write { imm, .. } | PostedOperation::Send { imm }) = request.operation;
                Immediate::decode(imm?).ok().map(|imm| Some(imm.kind))
            })),
            _ => {}
        }
    };
    (finding(fabric.open(config), None, observer, Deaf), asked)
}

/// Breaks if a peer whose program does not poll the link noticed a switch only when it next does, or if other messages of a link
/// that is not shared had the price of a knock: a wake-up of the peer's helper thread.
#[test]
fn unmarked_alone_knocks() {
    let unmarked = [Some(MessageKind::Unmarked), None];
    for (knock, by_link, expected) in [(true, true, &unmarked[..]), (false, true, &unmarked[..1]), (true, false, &[])] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let [(client, at_client), (server, at_server)] = [(); 2].map(|()| recording(&fabric, knock, by_link));
        let pair = Pair::new(&client, &server, 40_100);
        pair.promote();
        assert!(pair.are_linked());
        assert_eq!(write(&client, &pair.ends[0].1, b"by the link"), LinkIo::Done(11));
        for asked in [at_client, at_server] {
            let asked = asked.lock().expect("no test panics there");
            let seen: Vec<_> =
                asked.iter().copied().filter(|kind| kind.is_none_or(|kind| kind == MessageKind::Unmarked)).collect();
            assert_eq!(seen, expected, "knock {knock}, by the link {by_link}: {asked:?}");
            let knocks = asked.windows(2).filter(|pair| pair[1].is_none());
            assert!(knocks.clone().all(|pair| pair[0] == Some(MessageKind::Unmarked)), "{asked:?}");
        }
    }
}

/// Breaks if a thread that sleeps in the kernel's `recv` slept on while its stream moves to the link: only a marker wakes it.
#[test]
fn a_thread_that_sleeps_in_the_kernel_needs_the_marker() {
    let both = 2 * RECORD_LEN as u64;
    for (sleeper, written) in [(None, 0), (Some(0), both), (Some(1), both)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, server) = (endpoint(&fabric), endpoint(&fabric));
        let pair = Pair::new(&client, &server, 40_101);
        if let Some(side) = sleeper {
            let (endpoint, cell) = &pair.ends[side];
            cell.block_in_kernel(endpoint, || pair.promote()).expect("it reads from the kernel");
            assert!(!pair.are_linked(), "the record is there, for the thread");
            pair.progress();
        } else {
            pair.promote();
        }
        assert!(pair.are_linked(), "{sleeper:?}");
        assert_eq!(pair.written(), written, "{sleeper:?}");
    }
}

/// As above, where the attempt waited until the program had read: another thread sleeps by then.
#[test]
fn a_thread_that_sleeps_after_the_last_bytes_needs_the_marker() {
    for (sleeps, written) in [(false, 0), (true, 2 * RECORD_LEN as u64)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, server) = (endpoint(&fabric), endpoint(&fabric));
        let pair = Pair::new(&client, &server, 40_102);
        let [(client, near), (server, far)] = &pair.ends;
        let [mut to, mut from] = pair.kernel.clone();
        assert_eq!(to.try_write(b"before").expect("there is room"), 6);
        near.lock(client).anchor_sent(6);
        pair.promote();
        assert!(!pair.are_linked(), "the acceptor's program has not read");
        let mut read = || {
            assert_eq!(from.try_read(&mut [0; 6]).expect("bytes are there"), 6);
            far.lock(server).anchor_received(6);
            pair.progress();
        };
        if sleeps {
            far.block_in_kernel(server, read).expect("it reads from the kernel");
        } else {
            read();
        }
        pair.progress();
        assert!(pair.are_linked());
        assert_eq!(pair.written(), 6 + written, "sleeps: {sleeps}");
    }
}
