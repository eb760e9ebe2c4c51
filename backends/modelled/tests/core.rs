//! The production core on modelled NICs: endpoints that promote a connection and exchange data over it, in virtual
//! time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire};
use netacc_device::{FourTuple, Instant};
use netacc_driver::loopback::Deaf;
use netacc_driver::{Endpoint, EndpointConfig, LinkIo, Sharing, StreamCell};
use netacc_modelled::{Cluster, HostConfig, HostDevice, HostId};
use netacc_proto::{CacheConfig, Role};
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::{Costs, NicConfig};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
const DELAY_NS: u64 = 1_000;

fn endpoint(device: Arc<HostDevice>) -> Endpoint {
    let config = EndpointConfig {
        ring_len: 65_536,
        message_len: 16_384,
        sharing: Sharing::UpTo(1),
        receive_depth: 64,
        cache: CacheConfig { expire: Some(Duration::from_secs(1)), max_all: 4, max_per: 4 },
        trust_hints: false,
        key: None,
        stall_patience: None,
        idle_after: netacc_driver::IDLE_AFTER,
    };
    let nonce = [device.host().0 as u8 + 1; 16];
    let made = Endpoint::new(
        device.clone(),
        device.clone(),
        device,
        config,
        Arc::new(Deaf),
        Box::new(|| {}),
        Box::new(move || nonce),
    );
    made.expect("a new device has queues")
}

/// A client and a server on two hosts, with one connection.
struct Pair {
    cluster: Cluster,
    ends: [Endpoint; 2],
    streams: [Arc<StreamCell>; 2],
    _wire: AnchorWire,
}

impl Pair {
    fn new(link: LinkConfig, costs: Costs, seed: u64) -> Pair {
        let nic = NicConfig { costs, retry_timeout: Duration::from_micros(100), ..NicConfig::ideal(LINE) };
        let cluster = Cluster::new(&Topology::Direct(link), vec![HostConfig::roce(nic); 2], seed);
        let ends = [HostId(0), HostId(1)].map(|host| endpoint(cluster.open(host)));
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let tuple = FourTuple { local: address(40_000), remote: address(6379) };
        let (near, far, wire) = anchor_pair(AnchorConfig::default());
        let far = ends[1].adopt(Role::Acceptor, tuple.reversed(), Box::new(far));
        ends[1].publish(&far);
        let near = ends[0].adopt(Role::Opener, tuple, Box::new(near));
        Pair { cluster, ends, streams: [near, far], _wire: wire }
    }

    /// Both processes poll everything.
    fn turn(&self) {
        for end in &self.ends {
            end.progress(self.cluster.now());
            end.poll(end.default_cq());
        }
    }

    fn linked(&self) -> bool {
        (0..2).all(|n| self.streams[n].lock(&self.ends[n]).proto().is_linked())
    }

    /// Promotes the connection, and waits until nothing more happens.
    fn promote(&self) {
        self.ends[0].promote(&self.streams[0]).expect("the acceptor is published");
        self.turn();
        while self.cluster.step() {
            self.turn();
        }
        assert!(self.linked(), "not promoted by {:?}", self.cluster.now());
    }

    fn write(&self, n: usize, bytes: &[u8]) -> usize {
        let mut guard = self.streams[n].lock(&self.ends[n]);
        // SAFETY: the slice is readable.
        #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
        let wrote = unsafe { guard.change(|stream| stream.send_link(bytes.as_ptr(), bytes.len(), false)) };
        match wrote {
            LinkIo::Done(count) => count,
            _ => 0,
        }
    }

    fn read(&self, n: usize, most: usize) -> Vec<u8> {
        let mut buf = vec![0; most];
        self.streams[n].lock(&self.ends[n]).change(|stream| {
            // SAFETY: the vector has `most` writable bytes.
            #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
            let count = unsafe { stream.peek_link(buf.as_mut_ptr(), most, 0) };
            stream.consume_link(count);
            buf.truncate(count);
        });
        buf
    }

    /// Writes on one side; returns the time at which the other has read it.
    fn one_way(&self, from: usize, bytes: &[u8]) -> Instant {
        assert_eq!(self.write(from, bytes), bytes.len());
        loop {
            let read = self.read(1 - from, bytes.len());
            if !read.is_empty() {
                assert_eq!(read, bytes);
                return self.cluster.now();
            }
            assert!(self.cluster.step(), "nothing happens any more");
            self.turn();
        }
    }
}

// Breaks if the core sends more than one message for a small write, waits for anything before it does, or the model
// does not count the cost of each stage: the time is a sum that can be computed by hand.
#[test]
fn a_message_over_the_core_takes_the_sum_of_its_parts() {
    let ns = Duration::from_nanos;
    let costs = Costs {
        doorbell: ns(100),
        request_fetch: ns(200),
        payload_fetch: ns(400),
        transmit_packet: ns(30),
        receive_packet: ns(40),
        placement: ns(500),
        completion: ns(300),
        ..Costs::default()
    };
    let pair = Pair::new(LinkConfig::clean(LINE, ns(DELAY_NS)), costs, 0);
    pair.promote();
    let begun = pair.cluster.now();
    let took = pair.one_way(0, &[7; 1000]) - begun;
    // Frame, RETH and immediate, and the bytes.
    let wire = 82 + 16 + 4 + 1000;
    assert_eq!(took, ns(100 + 200 + 400 + 30 + wire + DELAY_NS + 40 + 500 + 300));
}

// Breaks if bytes are lost, doubled or reordered between the core and a network that does all of it, or if anything
// depends on more than the seed.
#[test]
fn a_stream_over_a_bad_network_arrives_and_replays() {
    let run = |seed: u64| {
        let link = LinkConfig {
            loss_ppm: 20_000,
            duplicate_ppm: 20_000,
            reorder_ppm: 20_000,
            reorder_delay: Duration::from_micros(5),
            ..LinkConfig::clean(LINE, Duration::from_nanos(DELAY_NS))
        };
        let pair = Pair::new(link, Costs::default(), seed);
        pair.promote();
        let byte = |position: usize| (position as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3];
        let (mut written, mut read, mut rounds) = (0, 0, 0);
        while read < 300_000 {
            rounds += 1;
            assert!(rounds < 1_000_000, "stuck after {read} bytes");
            let chunk: Vec<u8> = (written..300_000).take(5000).map(byte).collect();
            written += pair.write(0, &chunk);
            for got in pair.read(1, 7000) {
                assert_eq!(got, byte(read), "position {read}");
                read += 1;
            }
            pair.turn();
            pair.cluster.step();
        }
        let repeated = pair.cluster.counters(HostId(0)).data_repeated;
        (pair.cluster.now(), pair.cluster.trace(), repeated)
    };
    let (at, trace, repeated) = run(5);
    assert!(repeated > 0, "the network was not bad");
    assert_eq!((at, trace.clone(), repeated), run(5));
    assert_ne!(trace, run(6).1);
}
