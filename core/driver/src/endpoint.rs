//! Everything of one process on one device: its streams, its links, and the control path between them.
//!
//! The control path (finding a peer, connecting, opening, caching, expiry) runs in whoever calls
//! [`Endpoint::progress`]: the shim's helper thread, or the simulator. Data moves in whoever calls
//! [`Endpoint::poll`] or [`Endpoint::poll_link`]: usually the application's own thread.
//!
//! * [`todo`](mod@todo): work that is noted under locks, for the control path.
//! * [`progress`]: the control path.
//! * [`connecting`]: links that are being made.
//! * [`dying`]: links that have died.
//! * [`contest`]: streams that two links claim.
//! * [`release`]: what a stream leaves behind on its link, and empty links.
//! * [`room`]: streams that wait for room on their link.
//! * [`silence`]: links that fall silent without a word from their device.
//!
//! How streams are opened is in [`open`](crate::open), what arrives on links in [`incoming`](crate::incoming).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    Anchor, CompletionQueueId, ConnectionId, ConnectionManager, Device, DeviceError, Directory, DirectoryError,
    FourTuple, Instant, PeerAddress, QueuePairId,
};
use netacc_proto::{CacheConfig, LinkCache, Nonce, PreSharedKey, Reason, Role, Stream, StreamConfig};
use parking_lot::{Mutex, RwLock};

use crate::link::LinkStatus;
use crate::{Counters, LinkCell, ReadySink, StreamCell};

mod connecting;
pub(crate) mod contest;
mod dying;
mod progress;
mod release;
mod room;
mod silence;
mod todo;

pub(crate) use connecting::{reason_of, reason_without_region};
use todo::Todo;

/// Completions taken at a time.
pub(crate) const BATCH: usize = 32;

/// Settings of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Bytes of each stream's incoming ring: a power of two (`NACC_RING_SIZE`).
    pub ring_len: u32,
    /// Largest DATA message (`NACC_SOR_MSG_SIZE`).
    pub message_len: u32,
    /// Streams per link (`NACC_SOR_CONN_PER_QP`).
    pub streams_per_link: u16,
    /// Receives kept posted per link; narrowed to what the device has.
    pub receive_depth: u32,
    /// The cache of empty links.
    pub cache: CacheConfig,
    /// See [`StreamConfig::trust_hints`]: where the directory [trusts](Directory::trusts) the other end.
    pub trust_hints: bool,
    /// Who has not the same key shares no link with this process; `None`: nobody needs one.
    pub key: Option<PreSharedKey>,
    /// How long a stream without room stays on a link whose peer takes nothing from it; `None`: for ever. See `stall`.
    pub stall_patience: Option<Duration>,
}

/// How soon links whose streams wait, and lingering anchors, are looked at again. An arbitrary small number.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Called when [`Endpoint::progress`] should run soon. Must not block.
pub type HelperNeeded = Box<dyn Fn() + Send + Sync>;

/// One process on one device. See the module documentation.
pub struct Endpoint {
    device: Arc<dyn Device>,
    cm: Arc<dyn ConnectionManager>,
    directory: Arc<dyn Directory>,
    pub(crate) config: EndpointConfig,
    sink: Arc<dyn ReadySink>,
    helper_needed: HelperNeeded,
    nonces: Box<dyn Fn() -> Nonce + Send + Sync>,
    /// The queue of links in transition, polled by `progress`.
    control_cq: CompletionQueueId,
    /// The queue of links whose streams nobody has claimed for a queue of their own.
    default_cq: CompletionQueueId,
    /// Ordered, so that whoever picks one of several links picks the same one in every replay.
    pub(crate) links: RwLock<BTreeMap<QueuePairId, Arc<LinkCell>>>,
    pub(crate) streams: RwLock<Streams>,
    pub(crate) cache: Mutex<LinkCache<QueuePairId, PeerAddress>>,
    pub(crate) attempts: Mutex<HashMap<ConnectionId, Attempt>>,
    pub(crate) waiting: Mutex<Vec<Waiting>>,
    todo: Mutex<Todo>,
    counters: Counters,
    /// Why streams are kept off links: see [`Endpoint::hold_back`]. [`Reason::None`] if they are not.
    held_back: AtomicU16,
}

#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) cells: Vec<Option<Arc<StreamCell>>>,
    free: Vec<u32>,
}

/// A connection being made.
pub(crate) struct Attempt {
    pub(crate) peer: PeerAddress,
    pub(crate) connector: bool,
}

/// A stream that waits for a link to `peer`.
pub(crate) struct Waiting {
    pub(crate) stream: Arc<StreamCell>,
    pub(crate) peer: PeerAddress,
    pub(crate) hint: u32,
    /// The link being set up for it, once connected.
    pub(crate) link: Option<QueuePairId>,
    pub(crate) attempt: Option<ConnectionId>,
}

impl Endpoint {
    /// An endpoint with two completion queues of its own: for control, and for streams nobody has claimed.
    pub fn new(
        device: Arc<dyn Device>,
        cm: Arc<dyn ConnectionManager>,
        directory: Arc<dyn Directory>,
        config: EndpointConfig,
        sink: Arc<dyn ReadySink>,
        helper_needed: HelperNeeded,
        nonces: Box<dyn Fn() -> Nonce + Send + Sync>,
    ) -> Result<Endpoint, DeviceError> {
        let control_cq = device.create_cq()?;
        let default_cq = if device.capabilities().max_cq > 1 { device.create_cq()? } else { control_cq };
        let cache = Mutex::new(LinkCache::new(config.cache));
        Ok(Endpoint {
            device,
            cm,
            directory,
            config,
            sink,
            helper_needed,
            nonces,
            control_cq,
            default_cq,
            links: RwLock::default(),
            streams: RwLock::default(),
            cache,
            attempts: Mutex::default(),
            waiting: Mutex::default(),
            todo: Mutex::default(),
            counters: Counters::default(),
            held_back: AtomicU16::new(Reason::None as u16),
        })
    }

    /// From now on no stream is promoted, whichever side asks (`true`), or they are again (`false`). Streams that are on
    /// links stay there.
    pub fn hold_back(&self, on: bool) {
        let (none, requested) = (Reason::None as u16, Reason::Requested as u16);
        let (from, to) = if on { (none, requested) } else { (requested, none) };
        // Whatever else holds them back goes on doing so.
        let _ = self.held_back.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether streams are kept off links.
    pub fn is_held_back(&self) -> bool {
        self.held_back_for().is_some()
    }

    /// Why streams are kept off links; `None` if they are not.
    pub(crate) fn held_back_for(&self) -> Option<Reason> {
        let reason = Reason::from_code(self.held_back.load(Ordering::Acquire));
        (reason != Reason::None).then_some(reason)
    }

    /// The device.
    #[inline]
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The connection manager.
    pub fn cm(&self) -> &dyn ConnectionManager {
        &*self.cm
    }

    /// The directory of connections.
    pub fn directory(&self) -> &dyn Directory {
        &*self.directory
    }

    /// Counters of the process.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Settings.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    #[inline]
    pub(crate) fn sink(&self) -> &dyn ReadySink {
        &*self.sink
    }

    /// The queue that `progress` polls; sleep on it where `progress` is called.
    pub fn control_cq(&self) -> CompletionQueueId {
        self.control_cq
    }

    /// The queue of streams that have no queue of their own.
    pub fn default_cq(&self) -> CompletionQueueId {
        self.default_cq
    }

    pub(crate) fn nonce(&self) -> Nonce {
        (self.nonces)()
    }

    /// A TCP connection of this process, from now on counted and eligible for promotion. For an acceptor's to be found it
    /// must be [`published`](Endpoint::publish).
    pub fn adopt(&self, role: Role, tuple: FourTuple, anchor: Box<dyn Anchor + Send>) -> Arc<StreamCell> {
        let trust_hints = self.config.trust_hints && self.directory.trusts(&tuple);
        let proto = Stream::new(role, StreamConfig { trust_hints });
        let mut streams = self.streams.write();
        let number = streams.free.pop().unwrap_or_else(|| {
            streams.cells.push(None);
            (streams.cells.len() - 1) as u32
        });
        let cell = Arc::new(StreamCell::new(number, tuple, proto, anchor, self.config.message_len));
        streams.cells[number as usize] = Some(cell.clone());
        drop(streams);
        cell
    }

    /// Lets the opener of a connection find it here. Of several processes that hold the acceptor's end only one may.
    pub fn publish(&self, cell: &Arc<StreamCell>) {
        let mut guard = cell.lock(self);
        if guard.inner.published || guard.inner.closed {
            return;
        }
        let reason = match self.directory.publish(&cell.tuple, cell.number) {
            Ok(()) => {
                guard.inner.published = true;
                return;
            }
            Err(DirectoryError::Full) => Reason::DirectoryFull,
            Err(DirectoryError::NoPort) => Reason::NoLinkPort,
            Err(DirectoryError::NoDescriptor) => Reason::DescriptorLimit,
            Err(_) => Reason::OtherHost,
        };
        self.counters.reason(reason);
        guard.inner.proto.note_without_link(reason);
    }

    /// Forgets a stream that never left plain TCP, or is closed and released.
    pub fn forget(&self, cell: &Arc<StreamCell>) {
        // Whoever still holds the stream must neither open it nor touch a descriptor that may be another's by now.
        self.waiting.lock().retain(|w| !Arc::ptr_eq(&w.stream, cell));
        let mut guard = cell.lock(self);
        guard.abandon();
        if std::mem::take(&mut guard.inner.published) {
            self.directory.withdraw(&cell.tuple, cell.number);
        }
        let counters = guard.inner.counters;
        drop(guard);
        let mut streams = self.streams.write();
        let slot = &mut streams.cells[cell.number as usize];
        if slot.as_ref().is_some_and(|c| Arc::ptr_eq(c, cell)) {
            *slot = None;
            streams.free.push(cell.number);
            drop(streams);
            self.counters.absorb(&counters);
        }
    }

    /// All streams, for display and for demoting everything.
    pub fn streams(&self) -> Vec<Arc<StreamCell>> {
        self.streams.read().cells.iter().flatten().cloned().collect()
    }

    /// All links, for display.
    pub fn links(&self) -> Vec<LinkStatus> {
        self.links.read().values().map(|l| l.status()).collect()
    }

    /// Polls `cq` and handles everything on it. Any thread.
    #[inline]
    pub fn poll(&self, cq: CompletionQueueId) -> usize {
        let mut qps = [QueuePairId(0); BATCH];
        let mut total = 0;
        // Bounded: a flood of messages must not keep the caller here for ever.
        for _ in 0..8 {
            let n = self.device.pending(cq, &mut qps);
            for &qp in &qps[..n] {
                let link = self.links.read().get(&qp).cloned();
                if let Some(link) = link {
                    self.poll_link(&link);
                }
            }
            total += n;
            if n < qps.len() {
                break;
            }
        }
        total
    }

    /// Moves a link, and with it all its streams, to another completion queue.
    pub fn rebind(&self, link: &Arc<LinkCell>, cq: CompletionQueueId) {
        {
            // Of two threads that move a link the later one wins, in the device as in our own note of it.
            let _one = link.rx.lock();
            if link.cq() == cq || !link.caps.rebind || self.device.rebind(link.qp, cq).is_err() {
                return;
            }
            link.cq.store(cq.0, Ordering::Relaxed);
        }
        self.poll_link(link);
    }

    /// The links on a completion queue.
    pub fn links_at(&self, cq: CompletionQueueId) -> Vec<Arc<LinkCell>> {
        self.links.read().values().filter(|link| link.cq() == cq).cloned().collect()
    }

    /// The streams on a link.
    pub fn streams_on(&self, link: &LinkCell) -> Vec<Arc<StreamCell>> {
        link.rx.lock().slots.iter().flatten().cloned().collect()
    }

    /// The process is about to end: streams are held back, and those on a link leave it. Whether nothing would be lost
    /// if the process ended now; call again when peers may have answered.
    pub fn leave(&self, now: Instant) -> bool {
        self.hold_back(true);
        self.bring_back(Reason::Requested, now)
    }

    /// As [`leave`](Endpoint::leave), but for good, and for this reason: the process goes on without links.
    pub fn leave_for_good(&self, reason: Reason, now: Instant) -> bool {
        self.held_back.store(reason as u16, Ordering::Release);
        self.bring_back(reason, now)
    }

    fn bring_back(&self, reason: Reason, now: Instant) -> bool {
        let mut done = true;
        for cell in self.streams() {
            let link = cell.lock(self).link().cloned();
            if let Some(link) = link {
                self.poll_link(&link);
            }
            let mut guard = cell.lock(self);
            guard.refresh_consumed();
            if guard.is_wanted() {
                guard.demote(reason);
            }
            guard.progress_anchor(false);
            drop(guard);
            done &= cell.lock(self).can_be_left(now);
        }
        done
    }

    /// Whether a peer is still to act before whoever has the sockets next knows all from the kernel: to answer an OPEN,
    /// perhaps one that was given up, or to end the anchor of a stream that has failed.
    pub fn awaits_peers(&self) -> bool {
        self.streams().iter().any(|cell| cell.is_opening() || cell.lock(self).awaits_end())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A link and its streams hold each other.
        for link in self.links.get_mut().values() {
            link.rx.lock().slots.clear();
        }
    }
}
