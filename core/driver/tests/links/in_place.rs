//! Messages that go by a device's short way for bytes that are in place: `stream/short.rs` and `link/tx.rs`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use netacc_device::{
    forward, CompletionEvents, Device, DeviceError, InPlaceError, InPlaceQueue, Instant, KernelOrder, Operation,
    Payload, PostError, QueuePairId, Region, RemoteRegion, WorkRequest, WorkRequestId,
};
use netacc_driver::{Endpoint, LinkIo};

use crate::common::{config, nonce, Deaf};
use crate::endpoints::{endpoint, read, write, Linked};

/// A device with such a way, of one stream. It counts the messages that go there.
struct Short {
    inner: Arc<LoopbackDevice>,
    /// The window that was mapped last: the stream's.
    window: Arc<Mutex<Option<RemoteRegion>>>,
    posted: Arc<AtomicU32>,
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
        let Short { inner, window, posted } = self;
        Some(Box::new(Queue { qp, inner: inner.clone(), window: window.clone(), posted: posted.clone() }))
    }
}

impl CompletionEvents for Short {
    forward!(to_inner: CompletionEvents);
}

impl KernelOrder for Short {}

struct Queue {
    qp: QueuePairId,
    inner: Arc<LoopbackDevice>,
    window: Arc<Mutex<Option<RemoteRegion>>>,
    posted: Arc<AtomicU32>,
}

impl InPlaceQueue for Queue {
    fn post(&self, seen: Option<u32>, len: u32, imm: u32) -> Result<(), InPlaceError> {
        if seen.is_some_and(|seen| self.inner.qp_sequence(self.qp) != seen) {
            return Err(InPlaceError::News);
        }
        let RemoteRegion { rkey, base, .. } = self.window.lock().expect("a window").ok_or(PostError::Invalid)?;
        let operation = Operation::Write { rkey, offset: base, imm: Some(imm) };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::InPlace { len }, signaled: false };
        self.inner.post_send(self.qp, &[wr])?;
        self.posted.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn with_short_way(fabric: &Fabric) -> (Endpoint, Arc<AtomicU32>) {
    let (inner, posted) = (fabric.open(LoopbackConfig::shm()), Arc::new(AtomicU32::new(0)));
    let device = Arc::new(Short { inner: inner.clone(), window: Arc::default(), posted: posted.clone() });
    let (cm, directory) = (inner.clone(), inner);
    let made = Endpoint::new(device, cm, directory, config(1), Arc::new(Deaf), Box::new(|| {}), Box::new(nonce));
    (made.expect("a loopback device has queues"), posted)
}

/// Breaks if messages went as requests all the same, or if the link's credit ended although the peer returns it.
#[test]
fn messages_of_both_calls_go_the_short_way() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, posted), server) = (with_short_way(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_301);
    let [(_, near), (_, far)] = &pair.ends;
    for turn in 0..200u8 {
        assert!(client.send_slice_direct(near, &[turn; 4]));
        assert_eq!(write(&client, near, &[turn; 3]), LinkIo::Done(3));
        pair.progress(Instant::from_nanos(0));
        assert_eq!(read(&server, far, 64), [turn; 7]);
    }
    let counters = near.lock(&client).counters();
    assert_eq!((posted.load(Relaxed), counters.tx_msgs_link, counters.tx_bytes_link), (400, 400, 1400));
}

/// Breaks if a refusal kept the room, the credit or the mark of a rewind that were taken for its message.
#[test]
fn refused_messages_leave_nothing_behind() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, posted), server) = (with_short_way(&fabric), endpoint(&fabric));
    let pair = Linked::new(&client, &server, 40_302);
    let [(_, near), (_, far)] = &pair.ends;
    let state = || {
        let stream = near.lock(&client);
        (stream.proto().free(), stream.counters().tx_bytes_link)
    };
    for turn in 0..100u8 {
        assert_eq!(write(&server, far, b"news"), LinkIo::Done(4));
        let before = state();
        // More often than the link has credit for messages.
        for _ in 0..100 {
            assert!(!client.send_slice_direct(near, &[turn; 4]), "a message has come that is not handled");
        }
        assert_eq!(state(), before);
        pair.progress(Instant::from_nanos(0));
        assert_eq!(read(&client, near, 64), b"news");
        assert!(client.send_slice_direct(near, &[turn; 4]));
        pair.progress(Instant::from_nanos(0));
        assert_eq!(read(&server, far, 64), [turn; 4]);
    }
    assert_eq!(posted.load(Relaxed), 100);
    assert_eq!((client.counters().snapshot()["violations"], server.counters().snapshot()["violations"]), (0, 0));
}
