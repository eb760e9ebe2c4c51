//! Everything of one process on one device: its streams, its links, and the control path between them.
//!
//! The control path (finding a peer, connecting, opening, caching, expiry) runs in whoever calls
//! [`Endpoint::progress`]: the shim's helper thread, or the simulator. Data moves in whoever calls
//! [`Endpoint::poll`] or [`Endpoint::poll_link`]: usually the application's own thread.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    Anchor, CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, Device, DeviceError, Directory,
    FourTuple, Instant, PeerAddress, QueuePairId,
};
use netacc_proto::{
    Admission, CacheConfig, LinkCache, LinkConfig, Nonce, PreSharedKey, Reason, Role, Stream, StreamConfig, TxSink,
    LINGER_LIMIT, LINK_REGION_LEN, RECORD_GRACE, SETUP_LIMIT,
};
use parking_lot::{Mutex, RwLock};

use crate::link::{LinkCell, LinkStatus};
use crate::{Counters, ReadySink, StreamCell, PLEDGE_PATIENCE};

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
    /// See [`Endpoint::hold_back`].
    held_back: AtomicBool,
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

/// Work noted under a lock that could not be done there.
#[derive(Default)]
struct Todo {
    /// Streams that their link had no room for, and since when `progress` has known. What they wait for usually tells
    /// them itself; this is for whatever does not, so it need not be soon.
    starved: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// With the time since which they linger.
    lingering: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams whose anchor has ended, to be taken in after a look at the link.
    ended: Vec<Arc<StreamCell>>,
    /// Streams whose application waits to write until the pledge is answered, and since when.
    pledged: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams whose link has no room, and since when their peer has taken nothing.
    stalled: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams with the mere beginning of a record on the anchor, and since when.
    partial: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams with records or replay that found the anchor full.
    blocked: Vec<Arc<StreamCell>>,
    release: Vec<Arc<StreamCell>>,
    dead: Vec<QueuePairId>,
    /// Dead links whose peers may be about to end, and since when.
    dying: Vec<(Arc<LinkCell>, Instant)>,
    claims: Vec<Arc<StreamCell>>,
    /// Links with receives or messages that the device would not take yet.
    owing: Vec<QueuePairId>,
    /// Links that may carry no stream, and nobody waits for.
    idle: Vec<Arc<LinkCell>>,
    /// Links that are not ready for streams, and since when.
    setup: Vec<(Arc<LinkCell>, Option<Instant>)>,
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
            held_back: AtomicBool::new(false),
        })
    }

    /// From now on no stream is promoted, whichever side asks (`true`), or they are again (`false`). Streams that are on
    /// links stay there.
    pub fn hold_back(&self, on: bool) {
        self.held_back.store(on, Ordering::Release);
    }

    /// Whether streams are kept off links.
    pub fn is_held_back(&self) -> bool {
        self.held_back.load(Ordering::Acquire)
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
        match self.directory.publish(&cell.tuple, cell.number) {
            Ok(()) => guard.inner.published = true,
            Err(netacc_device::DirectoryError::Full) => self.counters.reason(Reason::DirectoryFull),
            Err(netacc_device::DirectoryError::NoPort) => self.counters.reason(Reason::NoLinkPort),
            Err(_) => self.counters.reason(Reason::OtherHost),
        }
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

    /// The streams on a link.
    pub fn streams_on(&self, link: &LinkCell) -> Vec<Arc<StreamCell>> {
        link.rx.lock().slots.iter().flatten().cloned().collect()
    }

    /// The control path: connection events, streams waiting for a link, retries, releases, expiry. Returns when it
    /// wants to be called again even if nothing happens.
    pub fn progress(&self, now: Instant) -> Option<Instant> {
        while let Some(event) = self.cm.poll_event() {
            self.handle_cm_event(event);
        }
        self.poll(self.control_cq);
        self.place_waiting();
        let todo = std::mem::take(&mut *self.todo.lock());
        let Todo { starved, lingering, release, dead, claims, owing, idle, ended, .. } = todo;
        let Todo { blocked, partial, pledged, stalled, setup, dying, .. } = todo;
        let setup = self.look_at_setups(now, setup);
        for (link, since) in dying {
            self.end_link(link, since, now);
        }
        for qp in dead {
            let link = self.links.read().get(&qp).cloned();
            if let Some(link) = link.filter(|link| !link.dying.swap(true, Ordering::AcqRel)) {
                self.end_link(link, now, now);
            }
        }
        for link in idle {
            self.park(&link, now);
        }
        for qp in owing {
            let link = self.links.read().get(&qp).cloned();
            if let Some(link) = link {
                self.return_messages(&link, 0);
                let sent = link.tx.lock().resume(self.device(), &link);
                if !self.keep_sending(&link, sent) {
                    self.note_dead(&link);
                }
            }
        }
        let mut again = false;
        let mut lingerers: Option<Instant> = None;
        for (cell, since) in starved {
            let since = since.unwrap_or(now);
            if now.saturating_since(since) < RETRY_INTERVAL {
                self.todo.lock().starved.push((cell, Some(since)));
                continue;
            }
            let mut guard = cell.lock(self);
            guard.inner.starved = false;
            guard.unstall();
            again |= guard.proto().has_control();
        }
        for cell in ended {
            cell.take_in(self);
        }
        for cell in blocked {
            let mut guard = cell.lock(self);
            guard.inner.blocked = false;
            guard.progress_anchor(false);
            guard.settle_end(now);
        }
        let mut decided: Option<Instant> = None;
        for (cell, since) in pledged {
            let since = since.unwrap_or(now);
            let mut guard = cell.lock(self);
            if guard.tx_sink() == TxSink::Pledged && now.saturating_since(since) < PLEDGE_PATIENCE {
                drop(guard);
                self.todo.lock().pledged.push((cell, Some(since)));
                decided = Some(decided.map_or(since + PLEDGE_PATIENCE, |d| d.min(since + PLEDGE_PATIENCE)));
                continue;
            }
            guard.inner.pledge_awaited = false;
            if guard.tx_sink() == TxSink::Pledged {
                guard.void_pledge();
            }
        }
        for (cell, since) in partial {
            // Its look notes it again, from now on: that note is replaced by the one that knows since when.
            let Some(since) = cell.lock(self).wait_for_record(now, since.unwrap_or(now)) else { continue };
            let mut todo = self.todo.lock();
            todo.partial.retain(|(c, _)| !Arc::ptr_eq(c, &cell));
            todo.partial.push((cell, Some(since)));
            let at = (since + RECORD_GRACE).max(now + RETRY_INTERVAL);
            decided = Some(decided.map_or(at, |d| d.min(at)));
        }
        let unstalled = self.look_at_stalls(now, stalled);
        for (cell, since) in lingering {
            // No thread of the program looks at its link any more.
            let link = cell.lock(self).link().cloned();
            if let Some(link) = link {
                self.poll_link(&link);
            }
            let mut guard = cell.lock(self);
            guard.progress_anchor(false);
            guard.refresh_consumed();
            let left = guard.proto().unconsumed();
            // Since the last look: others make progress on the anchor, too.
            let moved = (guard.inner.counters.tx_bytes_tcp, left);
            let busy = guard.refuse_unread() || moved != std::mem::replace(&mut guard.inner.lingered, moved);
            let since = since.filter(|_| !busy).unwrap_or(now);
            let limit = if left > 0 { UNREAD_LIMIT } else { LINGER_LIMIT };
            if guard.inner.lingers() && now.saturating_since(since) > limit {
                guard.inner.proto.abort();
                guard.inner.refused = true;
            }
            if guard.inner.lingers() {
                drop(guard);
                self.todo.lock().lingering.push((cell, Some(since)));
                // Most are through at the first look; those that wait for their peer's application need patience.
                let patience = if busy { RETRY_INTERVAL } else { now.saturating_since(since) / 4 };
                let patience = patience.clamp(RETRY_INTERVAL, LINGER_INTERVAL);
                lingerers = Some(lingerers.map_or(now + patience, |at| at.min(now + patience)));
            } else {
                // The slot on the link may be needed for longer; the connection ends here.
                guard.end_linger();
                drop(guard);
                self.note_release(&cell);
            }
        }
        // Not in the loop's head: a lock taken there would be held throughout the loop.
        let more = std::mem::take(&mut self.todo.lock().release);
        for cell in release.into_iter().chain(more) {
            self.release(&cell, now);
        }
        for cell in claims {
            self.sink.moved(&cell);
        }
        loop {
            let expired = self.cache.lock().poll_expired(now);
            let Some(qp) = expired else { break };
            self.destroy_link(qp);
        }
        let expiry = self.cache.lock().next_expiry();
        let todo = self.todo.lock();
        // Noted by this very call, whose caller was awake: no wake-up will come for it.
        again |= !(todo.starved.is_empty() && todo.owing.is_empty() && todo.blocked.is_empty());
        again |= !todo.dying.is_empty();
        again |= todo.lingering.iter().any(|(_, since)| since.is_none());
        again |= todo.partial.iter().chain(&todo.pledged).chain(&todo.stalled).any(|(_, since)| since.is_none());
        again |= todo.setup.iter().any(|(_, since)| since.is_none());
        drop(todo);
        let retry = again.then(|| now + RETRY_INTERVAL);
        [retry, lingerers, decided, unstalled, setup, expiry].into_iter().flatten().min()
    }

    /// The process is about to end: streams are held back, and those on a link leave it. Whether nothing would be lost
    /// if the process ended now; call again when peers may have answered.
    pub fn leave(&self) -> bool {
        self.hold_back(true);
        let mut done = true;
        for cell in self.streams() {
            let link = cell.lock(self).link().cloned();
            if let Some(link) = link {
                self.poll_link(&link);
            }
            let mut guard = cell.lock(self);
            guard.refresh_consumed();
            if guard.is_wanted() {
                guard.demote(Reason::Requested);
            }
            guard.progress_anchor(false);
            drop(guard);
            done &= cell.lock(self).can_be_left();
        }
        done
    }

    /// Whether a peer is still to act before whoever has the sockets next knows all from the kernel: to answer an OPEN,
    /// perhaps one that was given up, or to end the anchor of a stream that has failed.
    pub fn awaits_peers(&self) -> bool {
        self.streams().iter().any(|cell| cell.is_opening() || cell.lock(self).awaits_end())
    }

    /// How much work `progress` has of each kind, for people.
    pub fn backlog(&self) -> [(&'static str, usize); 13] {
        let todo = self.todo.lock();
        [
            ("starved", todo.starved.len()),
            ("lingering", todo.lingering.len()),
            ("release", todo.release.len()),
            ("dead", todo.dead.len() + todo.dying.len()),
            ("claims", todo.claims.len()),
            ("owing", todo.owing.len()),
            ("idle", todo.idle.len()),
            ("ended", todo.ended.len()),
            ("blocked", todo.blocked.len()),
            ("partial", todo.partial.len()),
            ("pledged", todo.pledged.len()),
            ("stalled", todo.stalled.len()),
            ("setup", todo.setup.len()),
        ]
    }

    /// Whether `progress` has something to do at once.
    pub fn has_work(&self) -> bool {
        let todo = self.todo.lock();
        !(todo.dead.is_empty()
            && todo.release.is_empty()
            && todo.claims.is_empty()
            && todo.idle.is_empty()
            && todo.ended.is_empty())
    }

    fn handle_cm_event(&self, event: CmEvent) {
        match event {
            CmEvent::Request { id, peer, .. } => {
                if self.is_held_back() || self.todo.lock().setup.len() >= MAX_SETUPS {
                    return self.cm.reject(id);
                }
                self.attempts.lock().insert(id, Attempt { peer, connector: false });
                if let Err(error) = self.cm.accept(id, self.control_cq, LINK_REGION_LEN) {
                    // That a peer has gone in between is no reason of ours.
                    if let Some(reason) = Some(reason_of(&error)).filter(|reason| *reason != Reason::PeerNotFound) {
                        self.counters.reason(reason);
                    }
                    self.attempts.lock().remove(&id);
                    self.cm.reject(id);
                }
            }
            CmEvent::Established { id, qp, peer, local, remote } => {
                let attempt = self.attempts.lock().remove(&id);
                let connector = attempt.is_some_and(|a| a.connector && a.peer == peer);
                let caps = self.device.capabilities_of(qp);
                let depth = self.config.receive_depth.min(caps.max_recv_wr);
                let credit_interval = if caps.cheap_writes { 1 } else { depth / 4 };
                let config = LinkConfig {
                    max_streams: self.config.streams_per_link,
                    receive_depth: depth,
                    credit_interval: credit_interval.max(1),
                    connector,
                };
                let admission =
                    |key: &PreSharedKey| Admission { key: key.clone(), nonce: self.nonce(), ends: self.cm.ends(peer) };
                let proto = netacc_proto::Link::new(config, self.config.key.as_ref().map(admission));
                let link = Arc::new(LinkCell::new(
                    self.device(),
                    proto,
                    qp,
                    peer,
                    connector,
                    self.control_cq,
                    (local, remote),
                ));
                link.tx.lock().post_receives(self.device(), qp, depth);
                self.links.write().insert(qp, link.clone());
                self.todo.lock().setup.push((link.clone(), None));
                Counters::bump(&self.counters.links_established);
                for w in self.waiting.lock().iter_mut().filter(|w| w.attempt == Some(id)) {
                    w.link = Some(qp);
                }
                //= spec §2.3.1
                //# The connecting side sends HELLO first; the accepting side answers with its own.
                if connector {
                    let mut tx = link.tx.lock();
                    let hello = tx.proto.hello();
                    // The peer may not have posted receives yet: the message then waits.
                    let sent = tx.send(self.device(), &link, hello);
                    drop(tx);
                    if !self.keep_sending(&link, sent) {
                        self.note_dead(&link);
                    }
                }
                if link.tx.lock().owes() {
                    self.note_owing(&link);
                }
                self.poll_link(&link);
            }
            CmEvent::Failed { id, error } => {
                let reason = reason_of(&error);
                let attempt = self.attempts.lock().remove(&id).filter(|attempt| attempt.connector);
                // That we have no room for a link says nothing of the peer.
                if let Some(attempt) = attempt.filter(|_| reason == Reason::PeerNotFound) {
                    self.directory.note_unreachable(attempt.peer);
                }
                self.stop_waiting(reason, |w| w.attempt == Some(id));
            }
            _ => {}
        }
    }

    /// A link was found dead at `since`. Ends it, unless its peer may be a process that ends, whose sockets are closed one
    /// after the other: the anchors say so soon, and a record written to one meanwhile would be answered with a reset.
    fn end_link(&self, link: Arc<LinkCell>, since: Instant, now: Instant) {
        // What the peer sent before it died, or before the link did, has arrived and must not be lost.
        self.poll_link(&link);
        let undecided = || self.streams_on(&link).iter().any(|cell| cell.lock(self).may_end_yet());
        if now.saturating_since(since) < END_PATIENCE && !link.is_dead() && undecided() {
            return self.todo.lock().dying.push((link, since));
        }
        self.link_died(&link);
    }

    /// A link is dead: all its streams leave it.
    pub(crate) fn link_died(&self, link: &Arc<LinkCell>) {
        if link.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        self.cache.lock().remove(link.qp);
        self.waiting.lock().retain(|w| w.link != Some(link.qp));
        let cells: Vec<_> = std::mem::take(&mut link.rx.lock().slots).into_iter().flatten().collect();
        // A link without streams may have been closed by the peer in good order.
        let (ready, refused) = {
            let tx = link.tx.lock();
            (tx.proto.is_ready(), tx.proto.is_refused())
        };
        if !refused && (!cells.is_empty() || !ready) {
            Counters::bump(&self.counters.links_failed);
        }
        for cell in &cells {
            let mut guard = cell.lock(self);
            guard.link_died();
            let closed = guard.inner.closed;
            drop(guard);
            if closed {
                self.note_release(cell);
            }
        }
        self.links.write().remove(&link.qp);
        // Rings live on in the streams' regions until their bytes are read or replayed.
        self.device.destroy_qp(link.qp);
    }

    pub(crate) fn destroy_link(&self, qp: QueuePairId) {
        if let Some(link) = self.links.write().remove(&qp) {
            link.dead.store(true, Ordering::Release);
            self.device.destroy_qp(qp);
        }
    }

    /// Ends links that have not become ready in time. Returns when it wants to look again.
    fn look_at_setups(&self, now: Instant, setup: Vec<(Arc<LinkCell>, Option<Instant>)>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (link, since) in setup {
            let since = since.unwrap_or(now);
            if link.is_dead() || link.tx.lock().proto.is_ready() {
                continue;
            }
            //= spec §2.5.5
            //# A link that is not ready for streams after SETUP_LIMIT (10 s) is ended.
            if now.saturating_since(since) < SETUP_LIMIT {
                next = Some(next.map_or(since + SETUP_LIMIT, |at| at.min(since + SETUP_LIMIT)));
                self.todo.lock().setup.push((link, Some(since)));
                continue;
            }
            if self.config.key.is_some() {
                self.refuse_link(&link, Reason::KeyMissing);
            }
            self.link_died(&link);
        }
        next
    }

    /// Frees what a stream held on its link, if neither side uses it any more.
    fn release(&self, cell: &Arc<StreamCell>, now: Instant) {
        let mut guard = cell.lock(self);
        let inner = &mut *guard.inner;
        if !inner.is_idle() {
            inner.released = false;
            return;
        }
        inner.released = false;
        let closed = inner.closed;
        let outgoing = inner.outgoing.take();
        let (link, region) = (inner.link.take(), inner.region.take());
        let slot = inner.proto.slot();
        let ask_next = inner.ask_next.take().filter(|_| !closed);
        drop(guard);
        if let Some(link) = link {
            if !link.is_dead() {
                if let Some(outgoing) = outgoing {
                    self.free_outgoing(&link, outgoing);
                }
                if let Some(region) = region {
                    self.device.free_region(link.qp, region);
                }
                self.free_slot(&link, slot, cell, now);
            }
        }
        if closed {
            self.forget(cell);
        }
        if let Some(peer) = ask_next {
            self.ask_elsewhere(cell, peer);
        }
    }

    fn free_slot(&self, link: &Arc<LinkCell>, slot: u16, cell: &Arc<StreamCell>, now: Instant) {
        let mut rx = link.rx.lock();
        let Some(entry) = rx.slots.get_mut(usize::from(slot)) else { return };
        if !entry.as_ref().is_some_and(|c| Arc::ptr_eq(c, cell)) {
            return;
        }
        *entry = None;
        let mut tx = link.tx.lock();
        tx.proto.free_slot(netacc_proto::SlotId(slot));
        let empty = tx.proto.streams() == 0;
        drop(tx);
        drop(rx);
        if empty {
            self.park(link, now);
        }
    }

    /// Keeps an empty link for the next stream, or closes it.
    fn park(&self, link: &Arc<LinkCell>, now: Instant) {
        let awaited = self.waiting.lock().iter().any(|w| w.link == Some(link.qp));
        if link.is_dead() || awaited || link.tx.lock().proto.streams() > 0 {
            return;
        }
        self.rebind(link, self.control_cq);
        //= spec §2.4.1
        //# A side keeps an empty link for its next stream, within the bounds of NACC_EMPTY_QP_*, or closes it.
        if link.connector {
            let mut cache = self.cache.lock();
            cache.remove(link.qp);
            let evicted = cache.insert(link.qp, link.peer, now);
            drop(cache);
            if let Some(evicted) = evicted {
                self.destroy_link(evicted);
            }
        }
    }

    /// The stream has control messages that its link could not take.
    pub(crate) fn note_starved(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().starved.push((cell.clone(), None));
        (self.helper_needed)();
    }

    pub(crate) fn note_moved(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().claims.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_lingering(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().lingering.push((cell.clone(), None));
        (self.helper_needed)();
    }

    pub(crate) fn note_ended(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().ended.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_pledged(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().pledged.push((cell.clone(), None));
        (self.helper_needed)();
    }

    pub(crate) fn note_stalled(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().stalled.push((cell.clone(), None));
        (self.helper_needed)();
    }

    /// It is stalled still. By `progress`, which says itself when it is to look again.
    pub(crate) fn renote_stalled(&self, cell: Arc<StreamCell>, since: Instant) {
        self.todo.lock().stalled.push((cell, Some(since)));
    }

    pub(crate) fn note_partial(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().partial.push((cell.clone(), None));
        (self.helper_needed)();
    }

    pub(crate) fn note_blocked(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().blocked.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_release(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().release.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_idle(&self, link: &Arc<LinkCell>) {
        self.todo.lock().idle.push(link.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_owing(&self, link: &Arc<LinkCell>) {
        self.todo.lock().owing.push(link.qp);
        (self.helper_needed)();
    }

    pub(crate) fn note_dead(&self, link: &Arc<LinkCell>) {
        if link.dying.load(Ordering::Acquire) {
            return;
        }
        self.todo.lock().dead.push(link.qp);
        (self.helper_needed)();
    }

    /// Wakes whoever calls `progress`.
    pub fn need_helper(&self) {
        (self.helper_needed)();
    }
}

/// Why a stream stays on TCP whose link could not be made.
pub(crate) fn reason_of(error: &CmError) -> Reason {
    match error {
        CmError::MemoryLimit => Reason::MemoryLimit,
        CmError::Exhausted(_) => Reason::Exhausted,
        CmError::Os { source, .. } if is_exhaustion(source) => Reason::Exhausted,
        _ => Reason::PeerNotFound,
    }
}

/// Whether a system call failed for want of something that it makes. EAGAIN is what the kernel says where a group of
/// processes has its share of a device.
fn is_exhaustion(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    let kinds = [ErrorKind::OutOfMemory, ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::WouldBlock];
    kinds.contains(&error.kind()) || matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

/// As [`LINGER_LIMIT`] while the peer has bytes to read: as the kernel gives up an orphan whose peer opens no window.
const UNREAD_LIMIT: std::time::Duration = std::time::Duration::from_secs(240);

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A link and its streams hold each other.
        for link in self.links.get_mut().values() {
            link.rx.lock().slots.clear();
        }
    }
}

/// Links that are being set up, beyond which peers' requests are refused. Arbitrary: as many as a connection manager has
/// attempts.
const MAX_SETUPS: usize = 1024;

/// How long a lingering stream is left alone at most.
const LINGER_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// How long the anchors of a dead link may take to say that their peer has ended. Arbitrary: the kernel closes the sockets
/// of a process within microseconds, once it has a processor for that.
const END_PATIENCE: std::time::Duration = std::time::Duration::from_millis(50);

/// How soon starved streams and lingering anchors are looked at again. An arbitrary small number.
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);
