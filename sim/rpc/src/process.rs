//! A process: an endpoint on its device, and its ends of conversations.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::{DeviceError, Instant};
use netacc_driver::{Endpoint, EndpointConfig, LinkIo, Readiness, ReadySink, StreamCell};
use netacc_host::HostDevice;
use netacc_proto::CacheConfig;

/// A promise that a run found broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The conversation.
    pub conversation: usize,
    /// Position in the stream of the byte that was wrong.
    pub position: u64,
}

/// Hears which streams have something new, by their tags: which conversations they are.
#[derive(Default)]
pub(crate) struct Ears(Mutex<Vec<u32>>);

impl Ears {
    /// Takes what was heard, each once, in order of the conversations.
    pub(crate) fn take(&self) -> Vec<usize> {
        let mut heard = std::mem::take(&mut *self.list());
        heard.sort_unstable();
        heard.dedup();
        heard.into_iter().map(|tag| tag as usize).collect()
    }

    fn hear(&self, cell: &Arc<StreamCell>) {
        self.list().push(cell.tag().load(Ordering::Relaxed));
    }

    fn list(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadySink for Ears {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn ready(&self, cell: &Arc<StreamCell>, _: Readiness, _: bool) {
        self.hear(cell);
    }
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, cell: &Arc<StreamCell>) {
        self.hear(cell);
    }
}

/// How the core is set up on every host: what `NACC_*` variables choose for a real process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Bytes of a stream's ring (`NACC_RING_SIZE`).
    pub ring_bytes: u32,
    /// Bytes of a message at most (`NACC_SOR_MSG_SIZE`); not more than half a ring.
    pub message_bytes: u32,
    /// Streams on a link (`NACC_SOR_CONN_PER_QP`); at least 1.
    pub streams_per_link: u16,
    /// Receives posted on a queue pair at most.
    pub receive_depth: u32,
}

impl Default for StackConfig {
    /// Small sizes, one stream a link: for tests.
    fn default() -> StackConfig {
        StackConfig { ring_bytes: 65_536, message_bytes: 16_384, streams_per_link: 1, receive_depth: 64 }
    }
}

/// An endpoint on a simulated host.
pub(crate) fn endpoint(
    device: &Arc<HostDevice>,
    stack: &StackConfig,
    ears: &Arc<Ears>,
) -> Result<Endpoint, DeviceError> {
    let config = EndpointConfig {
        ring_len: stack.ring_bytes,
        message_len: stack.message_bytes,
        streams_per_link: stack.streams_per_link,
        receive_depth: stack.receive_depth,
        cache: CacheConfig { expire: Some(Duration::from_secs(1)), max_all: 64, max_per: 4 },
        trust_hints: false,
        key: None,
        stall_patience: None,
    };
    let rng = Mutex::new(SplitMix64::new(u64::from(device.host().0)));
    let nonces = move || {
        let mut nonce = [0; 16];
        let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
        nonce[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        nonce[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
        nonce
    };
    let (cm, directory) = (device.clone(), device.clone());
    Endpoint::new(device.clone(), cm, directory, config, ears.clone(), Box::new(|| {}), Box::new(nonces))
}

/// One direction of a conversation: how far its writer and its reader have come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Direction {
    pub(crate) written: u64,
    pub(crate) read: u64,
}

/// Bytes that one call moves at most. Arbitrary.
const CHUNK: u64 = 16_384;

impl Direction {
    /// Writes up to position `until`, as far as there is room; whether anything was.
    pub(crate) fn write(&mut self, at: (&Endpoint, &Arc<StreamCell>), salt: u64, until: u64) -> bool {
        let before = self.written;
        while self.written < until {
            let count = (until - self.written).min(CHUNK);
            let bytes: Vec<u8> = (self.written..self.written + count).map(|p| byte(salt, p)).collect();
            match send(at, &bytes) {
                0 => break,
                n => self.written += n as u64,
            }
        }
        self.written > before
    }

    /// Reads what there is; whether there was anything.
    pub(crate) fn read(&mut self, at: (&Endpoint, &Arc<StreamCell>), salt: u64) -> Result<bool, u64> {
        let before = self.read;
        loop {
            let bytes = receive(at);
            for got in &bytes {
                if *got != byte(salt, self.read) {
                    return Err(self.read);
                }
                self.read += 1;
            }
            if bytes.is_empty() {
                return Ok(self.read > before);
            }
        }
    }
}

/// The byte at a position of a stream: different streams and neighbouring positions have different ones.
fn byte(salt: u64, position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt << 7) >> 32) as u8
}

fn send((endpoint, cell): (&Endpoint, &Arc<StreamCell>), bytes: &[u8]) -> usize {
    let mut guard = cell.lock(endpoint);
    // SAFETY: the slice is readable.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    let wrote = unsafe { guard.send_link(bytes.as_ptr(), bytes.len()) };
    match wrote {
        LinkIo::Done(count) => count,
        _ => 0,
    }
}

fn receive((endpoint, cell): (&Endpoint, &Arc<StreamCell>)) -> Vec<u8> {
    let mut bytes = vec![0; CHUNK as usize];
    // SAFETY: the vector has that many writable bytes.
    #[expect(unsafe_code, reason = "the driver takes application buffers as raw pointers")]
    let got = unsafe { cell.lock(endpoint).recv_link(bytes.as_mut_ptr(), bytes.len()) };
    match got {
        LinkIo::Done(count) => bytes.truncate(count),
        _ => bytes.clear(),
    }
    bytes
}

/// Whether a stream is on a link.
pub(crate) fn is_linked((endpoint, cell): (&Endpoint, &Arc<StreamCell>)) -> bool {
    cell.lock(endpoint).proto().is_linked()
}

/// Turns that an endpoint gets in a row at most; it asks for few.
const MAX_TURNS: u32 = 16;

/// One look at everything; when the endpoint wants another by itself.
pub(crate) fn look(endpoint: &Endpoint, now: Instant) -> Option<Instant> {
    let mut wake = endpoint.progress(now);
    endpoint.poll(endpoint.default_cq());
    for _ in 0..MAX_TURNS {
        if !endpoint.has_work() {
            break;
        }
        wake = endpoint.progress(now);
        endpoint.poll(endpoint.default_cq());
    }
    wake
}
