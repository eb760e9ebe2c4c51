//! Endpoints to test with, and a program's calls on a link.

use std::sync::Arc;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire, InMemoryAnchor};
use netacc_device::loopback::{Fabric, LoopbackConfig, LoopbackDevice};
use netacc_device::middleware::{Event, Observer, Trace};
use netacc_device::{Directory, Instant};
use netacc_driver::{AnchorProgress, Endpoint, EndpointConfig, LinkIo, ReadySink, StreamCell};

use crate::common::{config, connect_over, nonce, Deaf};

pub(crate) fn endpoint(fabric: &Fabric) -> Endpoint {
    observed(fabric, |_: &Event| {})
}

/// An endpoint whose calls to the device are observed.
pub(crate) fn observed(fabric: &Fabric, observer: impl Observer + 'static) -> Endpoint {
    owned(fabric, observer, Deaf)
}

/// An endpoint with this owner.
pub(crate) fn owned(fabric: &Fabric, observer: impl Observer + 'static, owner: impl ReadySink + 'static) -> Endpoint {
    finding(fabric.open(LoopbackConfig::shm()), None, observer, owner)
}

/// An endpoint whose links may lose messages when they die, so that markers are written.
pub(crate) fn writing_markers(fabric: &Fabric, observer: impl Observer + 'static) -> Endpoint {
    let mut config = LoopbackConfig::shm();
    config.capabilities.placement_is_delivery = false;
    finding(fabric.open(config), None, observer, Deaf)
}

/// An endpoint whose links carry so many streams.
pub(crate) fn sharing(fabric: &Fabric, streams_per_link: u16) -> Endpoint {
    with_sharing(fabric.open(LoopbackConfig::shm()), None, |_: &Event| {}, Deaf, streams_per_link)
}

/// An endpoint that finds its peers in `directory`, or in the device's own.
pub(crate) fn finding(
    device: Arc<LoopbackDevice>,
    directory: Option<Arc<dyn Directory>>,
    observer: impl Observer + 'static,
    owner: impl ReadySink + 'static,
) -> Endpoint {
    with_sharing(device, directory, observer, owner, 1)
}

pub(crate) fn with_sharing(
    device: Arc<LoopbackDevice>,
    directory: Option<Arc<dyn Directory>>,
    observer: impl Observer + 'static,
    owner: impl ReadySink + 'static,
    streams_per_link: u16,
) -> Endpoint {
    configured(device, directory, observer, owner, config(streams_per_link))
}

pub(crate) fn configured(
    device: Arc<LoopbackDevice>,
    directory: Option<Arc<dyn Directory>>,
    observer: impl Observer + 'static,
    owner: impl ReadySink + 'static,
    config: EndpointConfig,
) -> Endpoint {
    let traced = Arc::new(Trace::new(device.clone(), observer));
    let directory = directory.unwrap_or_else(|| device.clone());
    let made = Endpoint::new(traced, device, directory, config, Arc::new(owner), Box::new(|| {}), Box::new(nonce));
    made.expect("a loopback device has queues")
}

pub(crate) fn write(endpoint: &Endpoint, cell: &Arc<StreamCell>, bytes: &[u8]) -> LinkIo {
    let mut guard = cell.lock(endpoint);
    // SAFETY: the slice is readable.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    unsafe {
        guard.change(|stream| stream.send_link(bytes.as_ptr(), bytes.len(), false))
    }
}

/// As [`write`], with more to come.
pub(crate) fn write_more(endpoint: &Endpoint, cell: &Arc<StreamCell>, bytes: &[u8]) -> LinkIo {
    let mut guard = cell.lock(endpoint);
    // SAFETY: the slice is readable.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    unsafe {
        guard.change(|stream| stream.send_link(bytes.as_ptr(), bytes.len(), true))
    }
}

/// Writes the pieces as one.
pub(crate) fn write_pieces(endpoint: &Endpoint, cell: &Arc<StreamCell>, pieces: &[&[u8]]) -> LinkIo {
    let mut guard = cell.lock(endpoint);
    // SAFETY: the slices are readable.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    unsafe {
        guard.change(|stream| stream.send_pieces(pieces.iter().map(|piece| (piece.as_ptr(), piece.len())), false))
    }
}

pub(crate) fn read(endpoint: &Endpoint, cell: &Arc<StreamCell>, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let got = cell.lock(endpoint).change(|stream| {
        let got = stream.peek_slice(&mut buf, 0);
        stream.consume_link(got);
        got
    });
    buf.truncate(got);
    buf
}

/// A connection on its link.
pub(crate) struct Linked<'a> {
    pub(crate) ends: [(&'a Endpoint, Arc<StreamCell>); 2],
    pub(crate) wire: AnchorWire,
}

impl<'a> Linked<'a> {
    pub(crate) fn new(client: &'a Endpoint, server: &'a Endpoint, port: u16) -> Linked<'a> {
        let (a, b, wire) = anchor_pair(AnchorConfig::default());
        Linked::over(client, server, port, (a, b), wire)
    }

    pub(crate) fn over(
        client: &'a Endpoint,
        server: &'a Endpoint,
        port: u16,
        anchors: (InMemoryAnchor, InMemoryAnchor),
        wire: AnchorWire,
    ) -> Linked<'a> {
        let (near, far) = connect_over(client, server, port, anchors);
        client.promote(&near).expect("the acceptor is published");
        let pair = Linked { ends: [(client, near), (server, far)], wire };
        pair.progress(Instant::from_nanos(0));
        assert!(pair.ends.iter().all(|(endpoint, cell)| cell.lock(endpoint).proto().is_linked()));
        pair
    }

    /// Both processes do the work that is due.
    pub(crate) fn progress(&self, at: Instant) {
        for _ in 0..4 {
            self.ends[1].0.progress(at);
            self.progress_unpolled(at);
        }
    }

    /// No thread polls for the server, except when its anchor, which is watched all the same, requires it.
    pub(crate) fn progress_unpolled(&self, at: Instant) {
        for _ in 0..4 {
            self.ends[0].0.progress(at);
            self.wire.deliver_all();
            self.ends.iter().for_each(|(endpoint, cell)| {
                let found = cell.lock(endpoint).change(|stream| stream.progress_anchor(false));
                if found == AnchorProgress::Unpolled {
                    cell.take_in(endpoint);
                }
            });
        }
    }

    pub(crate) fn are_plain(&self) -> bool {
        self.ends.iter().all(|(endpoint, cell)| cell.lock(endpoint).proto().is_plain())
    }
}

/// Writes until there is no room; returns the number of bytes.
pub(crate) fn fill(endpoint: &Endpoint, cell: &Arc<StreamCell>, message: &[u8]) -> usize {
    let mut written = 0;
    while let LinkIo::Done(n) = write(endpoint, cell, message) {
        written += n;
    }
    written
}
