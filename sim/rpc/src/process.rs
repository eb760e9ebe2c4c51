//! A process: an endpoint on its device, and its ends of conversations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netacc_device::loopback::anchor::InMemoryAnchor;
use netacc_device::middleware::SplitMix64;
use netacc_device::{Anchor, DeviceError, Instant};
use netacc_driver::{Endpoint, EndpointConfig, Mark, Marked, Readiness, ReadySink, Sharing, StreamCell};
use netacc_modelled::HostDevice;
use netacc_proto::{CacheConfig, RxSource, TxSink};
use netacc_socket::{
    Connection, Incoming, MemoryCall, Next, Outgoing, Receiving, SendWait, Sending, SwitchPatience, Waited,
};

/// A promise that a run found broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The conversation.
    pub conversation: usize,
    /// Position in the stream of the byte that was wrong.
    pub position: u64,
}

/// The streams of a process that have something new, by their tags: the numbers of their connections.
#[derive(Default)]
pub(crate) struct ReadyStreams {
    ready: Mutex<Vec<u32>>,
    posted: Mutex<Vec<Posted>>,
    /// The endpoint has queued work for its control path.
    has_work: AtomicBool,
    /// Something was added to these lists since the last [`take`](ReadyStreams::take).
    is_new: AtomicBool,
}

/// The device has a stream's bytes up to a position on its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) number: usize,
    pub(crate) position: u64,
}

impl ReadyStreams {
    /// Takes them, each once, in order. To be called after [`take_posted`](ReadyStreams::take_posted).
    pub(crate) fn take(&self) -> Vec<usize> {
        if !self.is_new.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let mut ready = std::mem::take(&mut *self.list());
        ready.sort_unstable();
        ready.dedup();
        ready.into_iter().map(|tag| tag as usize).collect()
    }

    /// Takes what was posted, in order. Nothing is kept unless the endpoint is traced.
    pub(crate) fn take_posted(&self) -> Vec<Posted> {
        if !self.is_new.load(Ordering::Relaxed) {
            return Vec::new();
        }
        std::mem::take(&mut *self.posted_list())
    }

    /// Whether the endpoint has queued work for its control path since the last [`run_process`].
    pub(crate) fn has_work(&self) -> bool {
        self.has_work.load(Ordering::Relaxed)
    }

    /// Whether there is anything to take, or for the endpoint to do.
    pub(crate) fn has_any(&self) -> bool {
        self.has_work() || self.is_new.load(Ordering::Relaxed)
    }

    /// As if a stream had something new.
    pub(crate) fn renew(&self, number: u32) {
        self.is_new.store(true, Ordering::Relaxed);
        self.list().push(number);
    }

    fn add(&self, cell: &Arc<StreamCell>) {
        self.renew(cell.tag().load(Ordering::Relaxed));
    }

    fn posted_list(&self) -> MutexGuard<'_, Vec<Posted>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, Vec<u32>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadySink for ReadyStreams {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn ready(&self, cell: &Arc<StreamCell>, _: Readiness, _: bool) {
        self.add(cell);
    }
    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }
    fn moved(&self, cell: &Arc<StreamCell>) {
        self.add(cell);
    }
    fn mark(&self, cell: &StreamCell, marked: &Marked) {
        if marked.mark == Mark::Posted {
            let number = cell.tag().load(Ordering::Relaxed) as usize;
            let posted = Posted { number, position: marked.position };
            self.is_new.store(true, Ordering::Relaxed);
            self.posted_list().push(posted);
        }
    }
}

/// How the core is set up on every host: what `NACC_*` variables choose for a real process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Bytes of a stream's ring (`NACC_RING_SIZE`).
    pub ring_bytes: u32,
    /// Bytes of a message at most (`NACC_SOR_MSG_SIZE`); not more than half a ring.
    pub message_bytes: u32,
    /// Streams on a link (`NACC_SOR_CONN_PER_QP`); 0 shares links with peers to which there are many.
    pub streams_per_link: u16,
    /// Receives posted on a queue pair at most.
    pub receive_depth: u32,
    /// Calls on a connection before it asks for a link (`NACC_PROMOTE_AFTER`); 0 when it is made, as where TCP is in memory.
    pub promote_after: u32,
}

impl Default for StackConfig {
    /// Small sizes, one stream a link: for tests.
    fn default() -> StackConfig {
        StackConfig {
            ring_bytes: 65_536,
            message_bytes: 16_384,
            streams_per_link: 1,
            receive_depth: 64,
            promote_after: 0,
        }
    }
}

/// Links without streams that are kept: what `netacc.conf` says without being told otherwise.
const CACHE_EXPIRY: Duration = Duration::from_secs(60);
const CACHE_LINKS: usize = 100;
const CACHE_LINKS_PER_PEER: usize = 10;

/// An endpoint on a simulated host.
pub(crate) fn endpoint(
    device: &Arc<HostDevice>,
    stack: &StackConfig,
    ready: &Arc<ReadyStreams>,
) -> Result<Endpoint, DeviceError> {
    let config = EndpointConfig {
        ring_len: stack.ring_bytes,
        message_len: stack.message_bytes,
        sharing: Sharing::from_setting(stack.streams_per_link),
        receive_depth: stack.receive_depth,
        cache: CacheConfig { expire: Some(CACHE_EXPIRY), max_all: CACHE_LINKS, max_per: CACHE_LINKS_PER_PEER },
        trust_hints: false,
        key: None,
        stall_patience: None,
        idle_after: netacc_driver::IDLE_AFTER,
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
    let helper = ready.clone();
    let helper_needed = Box::new(move || helper.has_work.store(true, Ordering::Relaxed));
    Endpoint::new(device.clone(), cm, directory, config, ready.clone(), helper_needed, Box::new(nonces))
}

/// An end of a connection: its stream, and the socket under it.
pub(crate) struct End<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) cell: &'a Arc<StreamCell>,
    pub(crate) anchor: &'a mut InMemoryAnchor,
}

/// One direction of a conversation: how far its writer and its reader have come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Direction {
    pub(crate) written: u64,
    pub(crate) read: u64,
}

/// Bytes that one call moves at most. Arbitrary.
const CHUNK: usize = 16_384;

/// Memory for the bytes of one call. Each call overwrites it, and all of a run use the same.
pub(crate) struct Chunk(Box<[u8; CHUNK]>);

impl Chunk {
    pub(crate) fn new() -> Chunk {
        Chunk(Box::new([0; CHUNK]))
    }
}

impl Direction {
    /// Writes up to position `until`, as far as there is room.
    pub(crate) fn write(&mut self, end: &mut End<'_>, salt: u64, until: u64, (now, chunk): (Instant, &mut Chunk)) {
        while self.written < until {
            let count = (until - self.written).min(CHUNK as u64);
            let bytes = &mut chunk.0[..count as usize];
            fill(salt, self.written, bytes);
            let sent = end.send(bytes, now) as u64;
            self.written += sent;
            if sent < count {
                break;
            }
        }
    }

    /// Reads what there is, up to position `until`.
    pub(crate) fn read(
        &mut self,
        end: &mut End<'_>,
        salt: u64,
        until: u64,
        (now, chunk): (Instant, &mut Chunk),
    ) -> Result<(), u64> {
        loop {
            let most = (until - self.read).min(CHUNK as u64) as usize;
            if most == 0 {
                return Ok(());
            }
            let bytes = &mut chunk.0[..most];
            let count = end.receive(bytes, now);
            if let Some(position) = mismatch(salt, self.read, &bytes[..count]) {
                return Err(position);
            }
            self.read += count as u64;
            if count == 0 {
                return Ok(());
            }
        }
    }
}

/// Writes the bytes of a stream from `position` on: different streams and neighbouring words have different ones.
fn fill(salt: u64, position: u64, bytes: &mut [u8]) {
    let mut at = position;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = word(salt, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let count = rest.len().min(8 - from);
        let (head, tail) = rest.split_at_mut(count);
        head.copy_from_slice(&word[from..from + count]);
        at += count as u64;
        rest = tail;
    }
}

/// The first position, `position` or later, at which the bytes are not the stream's.
fn mismatch(salt: u64, position: u64, bytes: &[u8]) -> Option<u64> {
    let mut at = position;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = word(salt, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let (head, tail) = rest.split_at(rest.len().min(8 - from));
        if *head != word[from..from + head.len()] {
            let wrong = head.iter().zip(&word[from..]).position(|(got, wanted)| got != wanted);
            return Some(at + wrong.unwrap_or(0) as u64);
        }
        at += head.len() as u64;
        rest = tail;
    }
    None
}

/// Eight bytes of a stream.
fn word(salt: u64, index: u64) -> u64 {
    let mixed = (index ^ salt << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Attempts of a call at a stream that changes meanwhile. Arbitrary: bounds what must end by itself.
const MAX_ATTEMPTS: u32 = 100;

type SendCall<'a> = MemoryCall<InMemoryAnchor, Outgoing<'a>, fn() -> bool>;

/// The process has polled all of its links in this turn, see [`run_process`].
fn poll_no_link() -> bool {
    false
}

impl End<'_> {
    /// Writes some of the bytes, wherever the stream goes; how many.
    fn send(&mut self, bytes: &[u8], now: Instant) -> usize {
        let connection = Connection { endpoint: self.endpoint, cell: self.cell };
        // Of this call alone: a call that would wait ends.
        let patience = SwitchPatience::new();
        let mut call = MemoryCall::new(
            now,
            self.anchor.clone(),
            Outgoing::new(bytes, false, &patience),
            poll_no_link as fn() -> bool,
        );
        let mut sending = Sending::begin(connection, &mut call, true);
        let mut next = Next::Again;
        for _ in 0..MAX_ATTEMPTS {
            next = match next {
                Next::Again => sending.attempt(connection, &mut call),
                Next::Wait(wait) if has_come(connection, &call, wait) => {
                    sending.resume(connection, &mut call, Waited::Again)
                }
                // It is told when it can write.
                Next::Wait(_) => break,
                Next::Done(sent) => return sent.unwrap_or(0),
            };
        }
        sending.done()
    }

    /// Reads what there is, wherever it comes from; how many bytes.
    fn receive(&mut self, bytes: &mut [u8], now: Instant) -> usize {
        let connection = Connection { endpoint: self.endpoint, cell: self.cell };
        let mut call = MemoryCall::new(now, self.anchor.clone(), Incoming::new(bytes, false), poll_no_link);
        let mut receiving = Receiving::begin(connection, &mut call, 1, true);
        for _ in 0..MAX_ATTEMPTS {
            match receiving.attempt(connection, &mut call) {
                Next::Again => {}
                // It is told when it can read.
                Next::Wait(_) => break,
                Next::Done(received) => return received.unwrap_or(0),
            }
        }
        0
    }

    /// Whether nothing will ever be read again: all was, and the peer has closed, or the connection has failed.
    pub(crate) fn is_at_end(&mut self) -> bool {
        let mut guard = self.cell.lock(self.endpoint);
        match guard.rx_source() {
            RxSource::Eof | RxSource::Failed(_) => true,
            RxSource::Anchor(limit) if self.anchor.is_ended() && self.anchor.unread() == 0 => {
                if limit != u64::MAX {
                    guard.change(|stream| stream.anchor_ended());
                }
                true
            }
            _ => false,
        }
    }

    /// Bytes that could be read now.
    pub(crate) fn unread(&self) -> u64 {
        let guard = self.cell.lock(self.endpoint);
        match guard.rx_source() {
            RxSource::Link => u64::from(guard.proto().available()),
            RxSource::Anchor(limit) => self.anchor.unread().min(limit),
            _ => 0,
        }
    }

    /// Something has come on the socket: what the core has there, it looks at.
    pub(crate) fn check_anchor(&mut self) {
        // What came by the link before the anchor moved must be seen first.
        let link = self.cell.lock(self.endpoint).link().cloned();
        if let Some(link) = link {
            self.endpoint.poll_link(&link);
        }
        let mut guard = self.cell.lock(self.endpoint);
        if !guard.proto().is_plain() {
            guard.change(|stream| stream.progress_anchor(self.anchor.is_ended()));
        }
    }
}

/// Whether what a call would wait for has come. If that is the answer to an OPEN and it has not, the program does something else
/// meanwhile.
fn has_come(connection: Connection<'_>, call: &SendCall<'_>, wait: SendWait) -> bool {
    let SendWait::Peer { expected, .. } = wait else { return false };
    connection.cell.lock(connection.endpoint).change(|stream| {
        stream.progress_anchor(call.socket().is_ended());
        let come = expected.is_done(stream, call);
        if !come && stream.tx_sink() == TxSink::Pledged {
            stream.wait_for_pledge();
        }
        come
    })
}

/// Turns that an endpoint gets in a row at most; it asks for few.
const MAX_TURNS: u32 = 16;

/// One look at everything; when the endpoint wants another by itself.
pub(crate) fn run_process(endpoint: &Endpoint, ready: &ReadyStreams, now: Instant) -> Option<Instant> {
    ready.has_work.store(false, Ordering::Relaxed);
    let mut wake = endpoint.progress(now);
    endpoint.poll(endpoint.default_cq());
    for _ in 0..MAX_TURNS {
        if !endpoint.has_work() {
            break;
        }
        ready.has_work.store(false, Ordering::Relaxed);
        wake = endpoint.progress(now);
        endpoint.poll(endpoint.default_cq());
    }
    wake
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a wrong byte goes unseen, is reported elsewhere, or where one reads in pieces matters.
    #[test]
    fn each_wrong_byte_is_found() {
        let mut whole = [0; 100];
        fill(7, 13, &mut whole);
        for at in 0..100 {
            let mut piece = vec![0; 100 - at];
            fill(7, 13 + at as u64, &mut piece);
            assert_eq!(piece, whole[at..]);
            assert_eq!(mismatch(7, 13 + at as u64, &piece), None);
            let mut wrong = whole;
            wrong[at] ^= 1;
            assert_eq!(mismatch(7, 13, &wrong), Some(13 + at as u64));
        }
        // Neither a shift by some words nor another stream passes.
        assert!((1..50).all(|shift| mismatch(7, 13 + 8 * shift, &whole[..8]).is_some()));
        assert!((0..50).filter(|salt| *salt != 7).all(|salt| mismatch(salt, 13, &whole[..8]).is_some()));
    }
}
