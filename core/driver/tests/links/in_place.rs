//! Messages that go by a device's short way for bytes that are in place: `stream/short.rs` and `link/tx.rs`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use netacc_device::{
    forward, CompletionEvents, Device, DeviceError, InPlaceError, InPlaceQueue, Instant, KernelOrder, Operation,
    Payload, PostError, QueuePairId, Region, RemoteRegion, WorkRequest, WorkRequestId,
};
use netacc_driver::{Endpoint, LinkIo};
use netacc_proto::Reason;

use crate::common::{config, nonce, Deaf};
use crate::endpoints::{endpoint, read, write, Linked};

/// The short way of a device.
#[derive(Default)]
struct Way {
    /// Messages that went there.
    posted: AtomicU32,
    /// A message has come that is not handled, as far as it knows: the device has no sequences.
    has_news: AtomicBool,
    /// Announcements of what the process has done in the kernel.
    announced: AtomicU32,
}

/// A device with such a way, of one stream.
struct Short {
    inner: Arc<LoopbackDevice>,
    /// The window that was mapped last: the stream's.
    window: Arc<Mutex<Option<RemoteRegion>>>,
    way: Arc<Way>,
}

macro_rules! to_inner {
    ($self:ident, $method:ident($($argument:ident),*)) => { $self.inner.$method($($argument),*) };
}

impl Device for Short {
    forward!(to_inner: name, capabilities, capabilities_of, create_cq, pending, poll_qp, rebind, alloc_region, free_region);
    forward!(to_inner: discard, post_recv, post_send, fail_qp, destroy_qp);

    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        *self.window.lock().expect("a window") = Some(remote);
        self.inner.window(qp, remote)
    }

    fn in_place(&self, qp: QueuePairId) -> Option<Box<dyn InPlaceQueue>> {
        let Short { inner, window, way } = self;
        Some(Box::new(Queue { qp, inner: inner.clone(), window: window.clone(), way: way.clone() }))
    }
}

impl CompletionEvents for Short {
    forward!(to_inner: CompletionEvents);
}

impl KernelOrder for Short {
    fn announce_kernel_operations(&self) {
        self.way.announced.fetch_add(1, Relaxed);
    }
}

struct Queue {
    qp: QueuePairId,
    inner: Arc<LoopbackDevice>,
    window: Arc<Mutex<Option<RemoteRegion>>>,
    way: Arc<Way>,
}

impl InPlaceQueue for Queue {
    fn post(&self, seen: Option<u32>, len: u32, imm: u32) -> Result<(), InPlaceError> {
        if seen.is_some() && self.way.has_news.load(Relaxed) {
            return Err(InPlaceError::News);
        }
        let RemoteRegion { rkey, base, .. } = self.window.lock().expect("a window").ok_or(PostError::Invalid)?;
        let operation = Operation::Write { rkey, offset: base, imm: Some(imm) };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::InPlace { len }, signaled: false };
        self.inner.post_send(self.qp, &[wr])?;
        self.way.posted.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn with_short_way(fabric: &Fabric) -> (Endpoint, Arc<Way>) {
    let (inner, way) = (fabric.open(LoopbackConfig::shm()), Arc::<Way>::default());
    let device = Arc::new(Short { inner: inner.clone(), window: Arc::default(), way: way.clone() });
    let (cm, directory) = (inner.clone(), inner);
    let made = Endpoint::new(device, cm, directory, config(1), Arc::new(Deaf), Box::new(|| {}), Box::new(nonce));
    (made.expect("a loopback device has queues"), way)
}

/// Breaks if messages went as requests all the same, or if the link's credit ended although the peer returns it.
#[test]
fn messages_of_both_calls_go_the_short_way() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, way), server) = (with_short_way(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_301);
    let [(_, near), (_, far)] = &pair.ends;
    for turn in 0..200u8 {
        assert!(client.send_slice_direct(near, &[turn; 4]));
        assert_eq!(write(&client, near, &[turn; 3]), LinkIo::Done(3));
        pair.progress(Instant::from_nanos(0));
        assert_eq!(read(&server, far, 64), [turn; 7]);
    }
    let counters = near.lock(&client).counters();
    assert_eq!((way.posted.load(Relaxed), counters.tx_msgs_link, counters.tx_bytes_link), (400, 400, 1400));
}

/// Breaks if bytes on a link could come before those that the process had written in the kernel earlier, or if a process
/// without links announced all that it does there.
#[test]
fn a_place_on_a_link_announces_earlier_operations_in_the_kernel() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    for opens in [true, false] {
        let ((short, way), other) = (with_short_way(&fabric), endpoint(&fabric));
        assert!(!short.uses_links() && way.announced.load(Relaxed) == 0);
        let (client, server) = if opens { (&short, &other) } else { (&other, &short) };
        let pair = Linked::new(client, server, 40_303);
        assert!(short.uses_links() && way.announced.load(Relaxed) == 1, "it opens: {opens}");
        for (endpoint, cell) in &pair.ends {
            cell.lock(endpoint).change(|stream| stream.demote(Reason::Requested));
        }
        (0..10).for_each(|_| pair.progress(Instant::from_nanos(0)));
        assert!(!short.uses_links(), "it opens: {opens}");
    }
}

/// Breaks if a refusal kept the room, the credit or the mark of a rewind that were taken for its message.
#[test]
fn refused_messages_leave_nothing_behind() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, way), server) = (with_short_way(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_302);
    let [(_, near), (_, far)] = &pair.ends;
    let state = || {
        let stream = near.lock(&client);
        (stream.proto().free(), stream.counters().tx_bytes_link)
    };
    for turn in 0..100u8 {
        way.has_news.store(true, Relaxed);
        // The client learns that its last message was read.
        assert!(!client.send_slice_direct(near, &[turn; 4]));
        let before = state();
        // More often than the link has credit for messages.
        for _ in 0..100 {
            assert!(!client.send_slice_direct(near, &[turn; 4]), "a message has come that is not handled");
        }
        assert_eq!(state(), before);
        way.has_news.store(false, Relaxed);
        assert!(client.send_slice_direct(near, &[turn; 4]));
        pair.progress(Instant::from_nanos(0));
        assert_eq!(read(&server, far, 64), [turn; 4]);
    }
    assert_eq!(way.posted.load(Relaxed), 100);
    assert_eq!((client.counters().snapshot()["violations"], server.counters().snapshot()["violations"]), (0, 0));
}
