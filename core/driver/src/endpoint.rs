//! Everything of one process on one device: its streams, its links, and the control path between them.
//!
//! The control path (finding a peer, connecting, opening, caching, expiry) runs in the thread that calls
//! [`Endpoint::progress`]: the library's helper thread, or the simulator. Data moves in the thread that calls
//! [`Endpoint::poll`] or [`Endpoint::poll_link`]: usually the program's own thread.
//!
//! * [`timers`]: streams and links with a time limit.
//! * [`todo`](mod@todo): work that is queued under locks, for the control path.
//! * [`adopt`]: the streams that there are.
//! * [`open`]: opening streams.
//! * [`finding`]: finding their peers.
//! * [`incoming`]: completions and messages that arrive on links.
//! * [`direct`]: messages that are received without being announced first.
//! * [`progress`]: the control path.
//! * [`connecting`]: links that are being made.
//! * [`reasons`]: the reasons why a link could not be made.
//! * [`flows`]: flows of datagrams in shared memory.
//! * [`datagrams`]: flows of datagrams on links.
//! * [`dying`]: links that have died.
//! * [`contest`]: streams that two links claim.
//! * [`release`]: frees a stream's resources on its link, and ends empty links.
//! * [`room`]: streams that wait for room on their link.
//! * [`silence`]: links that fall silent without an error from their device.
//! * [`leave`]: leaving all links.
//! * [`marks`]: marks for a trace.
//!
//! This module, [`timers`] and [`todo`](mod@todo) have the data. A thread needs the endpoint to lock a stream, so the other modules,
//! which lock streams, are above them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    CompletionQueueId, ConnectionId, ConnectionManager, Device, DeviceError, Directory, PeerAddress, QueuePairId,
};
use netacc_proto::{CacheConfig, LinkCache, Nonce, PreSharedKey, Reason};
use parking_lot::{Mutex, RwLock};

use crate::copying::Copies;
use crate::counted::{Tallied, Tally};
use crate::datagram::{LinkFlow, SendingFlow};
use crate::link::LinkStatus;
use crate::{Counters, LinkCell, ReadySink, StreamCell};

mod adopt;
mod connecting;
pub(crate) mod contest;
mod datagrams;
mod direct;
mod dying;
mod finding;
mod flows;
mod incoming;
mod leave;
mod marks;
mod open;
mod progress;
mod promotions;
mod reasons;
mod release;
mod rings;
mod room;
mod sharing;
mod silence;
mod timers;
mod todo;
mod unaccepted;

use promotions::Promotions;
use sharing::SeenOrder;
pub use sharing::{Sharing, Spread};
pub(crate) use timers::{Again, Timed};
use todo::Todo;

/// Settings of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Bytes of each stream's incoming ring: a power of two (`NACC_RING_SIZE`).
    pub ring_len: u32,
    /// Largest DATA message (`NACC_SOR_MSG_SIZE`).
    pub message_len: u32,
    /// How many streams share a link (`NACC_SOR_CONN_PER_QP`).
    pub sharing: Sharing,
    /// Receives kept posted per link; narrowed to the device's depth.
    pub receive_depth: u32,
    /// The cache of empty links.
    pub cache: CacheConfig,
    /// See [`StreamConfig::trust_hints`](netacc_proto::StreamConfig::trust_hints): where the directory [trusts](Directory::trusts) the other end.
    pub trust_hints: bool,
    /// A process that does not have the same key shares no link with this one; `None`: no key is needed.
    pub key: Option<PreSharedKey>,
    /// How long a stream without room stays on a link while its peer reads nothing; `None`: for ever. See
    /// `stream/stall.rs`.
    pub stall_patience: Option<Duration>,
    /// A stream that has written nothing for so long gives back memory of its peer's ring. See `stream/growth.rs`.
    pub idle_after: Duration,
}

/// The interval at which links with waiting streams, and lingering anchors, are checked again. An arbitrary small
/// number.
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
    /// The queue of links whose streams have no queue of their own.
    default_cq: CompletionQueueId,
    /// Ordered, so that a choice of one among several links is the same in every replay.
    pub(crate) links: RwLock<BTreeMap<QueuePairId, Arc<LinkCell>>>,
    pub(crate) streams: RwLock<Streams>,
    pub(crate) cache: Mutex<LinkCache<QueuePairId, PeerAddress>>,
    pub(crate) attempts: Mutex<HashMap<ConnectionId, Attempt>>,
    promotions: Mutex<Promotions>,
    flows: Mutex<Flows>,
    /// Whether the device's messages came in turn so far.
    order: SeenOrder,
    /// Streams on links.
    attached: Tally,
    /// Flows on links.
    seated: Tally,
    todo: Mutex<Todo>,
    counters: Counters,
    copies: Copies,
    /// Why streams are kept off links: see [`Endpoint::suspend_promotion`]. [`Reason::None`] if they are not.
    promotion_suspended: AtomicU16,
    /// A trace runs: see [`Mark`](crate::Mark).
    pub(crate) traced: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) cells: Vec<Option<Arc<StreamCell>>>,
    free: Vec<u32>,
}

/// The flows of datagrams.
#[derive(Default)]
struct Flows {
    /// Those being made.
    attempts: HashSet<ConnectionId>,
    established: HashSet<QueuePairId>,
    /// Those on links, by their slots.
    on_links: BTreeMap<(QueuePairId, u16), LinkFlow>,
    /// Those that wait for a link.
    waiting: Vec<Arc<SendingFlow>>,
    /// Those on links with messages that found a queue full.
    owing: BTreeSet<(QueuePairId, u16)>,
}

/// A connection being made.
pub(crate) struct Attempt {
    pub(crate) peer: PeerAddress,
    pub(crate) connector: bool,
}

impl Endpoint {
    /// An endpoint with two completion queues of its own: for control, and for streams without a queue of their own.
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
            promotions: Mutex::default(),
            flows: Mutex::default(),
            order: SeenOrder::default(),
            attached: Tally::default(),
            seated: Tally::default(),
            todo: Mutex::default(),
            counters: Counters::default(),
            copies: Copies::default(),
            promotion_suspended: AtomicU16::new(Reason::None as u16),
            traced: AtomicBool::new(false),
        })
    }

    /// With `true`, no stream is promoted from now on, whichever side requests it; with `false`, streams are promoted
    /// again. Streams that are on links stay there.
    pub fn suspend_promotion(&self, on: bool) {
        let (none, requested) = (Reason::None as u16, Reason::Requested as u16);
        let (from, to) = if on { (none, requested) } else { (requested, none) };
        // Other obstacles to promotion stay in effect.
        let _ = self.promotion_suspended.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether streams are kept off links.
    pub fn is_promotion_suspended(&self) -> bool {
        self.suspension_reason().is_some()
    }

    /// Why streams are kept off links; `None` if they are not.
    pub(crate) fn suspension_reason(&self) -> Option<Reason> {
        let reason = Reason::from_code(self.promotion_suspended.load(Ordering::Acquire));
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

    /// Large copies, in which helper threads may take part.
    #[inline]
    pub fn copies(&self) -> &Copies {
        &self.copies
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

    /// Whether a stream or a flow of this process is on a link, so that data may be posted there. As long as none is, the
    /// process need not announce its [operations in the kernel](netacc_device::KernelOrder).
    #[inline]
    pub fn uses_links(&self) -> bool {
        self.attached.now() > 0 || self.seated.now() > 0
    }

    /// A stream or a flow gets its place on a link. All operations in the kernel up to now come before the data that it
    /// posts there, and may not have been announced.
    fn begin_use(&self, tally: &Tally) -> Tallied {
        let tallied = tally.add();
        self.device.announce_kernel_operations();
        tallied
    }

    /// All streams, for display and for demoting everything.
    pub fn streams(&self) -> Vec<Arc<StreamCell>> {
        self.streams.read().cells.iter().flatten().cloned().collect()
    }

    /// All links, for display.
    pub fn links(&self) -> Vec<LinkStatus> {
        self.links.read().values().map(|l| l.status()).collect()
    }

    /// The links on a completion queue.
    pub fn links_at(&self, cq: CompletionQueueId) -> Vec<Arc<LinkCell>> {
        self.links.read().values().filter(|link| link.cq() == cq).cloned().collect()
    }

    /// The streams on a link.
    pub fn streams_on(&self, link: &LinkCell) -> Vec<Arc<StreamCell>> {
        link.rx.lock().slots.iter().flatten().cloned().collect()
    }

    /// Whether a [stream of the link is being opened](StreamCell::is_opening). Those in the last slots are visited first:
    /// the latest ones, mostly.
    pub fn opens_stream_on(&self, link: &LinkCell) -> bool {
        link.rx.lock().slots.iter().rev().flatten().any(|cell| cell.is_opening())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A link and its streams refer to each other.
        for link in self.links.get_mut().values() {
            link.rx.lock().slots.clear();
        }
    }
}
