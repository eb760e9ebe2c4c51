//! Two endpoints on loopback devices, and connections between them, which the tests of links share.

use std::net::SocketAddr;
use std::sync::Arc;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::{Anchor, FourTuple, Instant};
pub(crate) use netacc_driver::loopback::{config, nonce, Deaf};
use netacc_driver::{Endpoint, StreamCell};
use netacc_proto::Role;

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
