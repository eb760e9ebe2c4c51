//! Two endpoints on loopback devices, and connections between them, which the tests of links share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::{Anchor, FourTuple, Instant};
use netacc_driver::{Endpoint, EndpointConfig, Readiness, ReadySink, Sharing, StreamCell, IDLE_AFTER, STALL_PATIENCE};
use netacc_proto::{CacheConfig, Role};

/// An owner that ignores all events.
pub(crate) struct Deaf;

impl ReadySink for Deaf {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, _: &Arc<StreamCell>) {}
}

/// Small rings, links that carry so many streams, no key.
pub(crate) fn config(streams_per_link: u16) -> EndpointConfig {
    EndpointConfig {
        ring_len: 4096,
        message_len: 1024,
        sharing: Sharing::UpTo(streams_per_link),
        receive_depth: 64,
        cache: CacheConfig { expire: Some(Duration::from_secs(1)), max_all: 4, max_per: 4 },
        trust_hints: true,
        key: None,
        stall_patience: Some(STALL_PATIENCE),
        idle_after: IDLE_AFTER,
    }
}

/// A value that no two streams have drawn.
pub(crate) fn nonce() -> [u8; 16] {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&NONCE.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    bytes
}

/// The addresses of a connection, as its opener names them.
pub(crate) fn tuple(port: u16) -> FourTuple {
    FourTuple { local: SocketAddr::from(([127, 0, 0, 1], port)), remote: SocketAddr::from(([127, 0, 0, 1], 6379)) }
}

/// A connection between the endpoints; the acceptor's publishes itself.
pub(crate) fn connect(opener: &Endpoint, acceptor: &Endpoint, port: u16) -> (Arc<StreamCell>, Arc<StreamCell>) {
    let (a, b, _wire) = anchor_pair(AnchorConfig::default());
    connect_over(opener, acceptor, port, (a, b))
}

/// As [`connect`], over these anchors.
pub(crate) fn connect_over(
    opener: &Endpoint,
    acceptor: &Endpoint,
    port: u16,
    (a, b): (impl Anchor + Send + 'static, impl Anchor + Send + 'static),
) -> (Arc<StreamCell>, Arc<StreamCell>) {
    let far = acceptor.adopt(Role::Acceptor, tuple(port).reversed(), Box::new(b));
    acceptor.publish(&far);
    (opener.adopt(Role::Opener, tuple(port), Box::new(a)), far)
}

/// Both endpoints do the work that is due.
pub(crate) fn run(endpoints: [&Endpoint; 2]) {
    for round in 0..20 {
        for endpoint in endpoints {
            endpoint.progress(Instant::from_nanos(round));
            endpoint.poll(endpoint.default_cq());
        }
    }
}
