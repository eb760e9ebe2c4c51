//! Endpoints on loopback devices, for the tests of this crate and of those above it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::LoopbackDevice;
use netacc_proto::CacheConfig;

use crate::{Endpoint, EndpointConfig, Readiness, ReadySink, Sharing, StreamCell, IDLE_AFTER, STALL_PATIENCE};

/// An owner that ignores all events.
#[derive(Clone, Copy, Debug)]
pub struct Deaf;

impl ReadySink for Deaf {
    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}

    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn moved(&self, _: &Arc<StreamCell>) {}
}

/// Small rings, links that carry so many streams, no key.
pub fn config(streams_per_link: u16) -> EndpointConfig {
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
pub fn nonce() -> [u8; 16] {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&NONCE.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    bytes
}

/// An endpoint on a device, which is its directory, too. Nobody calls `progress` for it but the test.
pub fn open(device: Arc<LoopbackDevice>, config: EndpointConfig, owner: impl ReadySink + 'static) -> Endpoint {
    let (cm, directory) = (device.clone(), device.clone());
    let made = Endpoint::new(device, cm, directory, config, Arc::new(owner), Box::new(|| {}), Box::new(nonce));
    made.expect("a loopback device has queues")
}
