//! The NIC: its tables, its timers, and the calls of its host.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use netacc_device::tables::NumberMap;
use netacc_device::{
    Completion, CompletionStatus, Instant, PostError, QueuePairId, RemoteKey, WorkCompletion, WorkRequestId,
};

use crate::cache::Cache;
use crate::control::ControlPlane;
use crate::engines::{Busy, Stage};
use crate::packet::{Control, NodeId, Packet, Verb};
use crate::qp::{Entry, Life, QueuePair, Table};
use crate::requester::Posting;
use crate::NicConfig;

/// A request for a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Returned in the completion.
    pub id: WorkRequestId,
    /// The operation.
    pub verb: Verb,
    /// Bytes.
    pub len: u32,
    /// The bytes are in the request itself, so they need no fetch of their own.
    pub inline: bool,
    /// Whether success is reported. Failure always is.
    pub signaled: bool,
}

/// Where a piece of a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Into a registered region; the NIC has checked key and bounds.
    Region {
        /// Its key.
        rkey: RemoteKey,
        /// First byte, as the region counts.
        remote: u64,
    },
    /// Into the oldest posted receive.
    Receive,
}

/// Bytes that have arrived and belong in memory now, before the completion that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The receiving queue pair.
    pub qp: QueuePairId,
    /// The sending queue pair.
    pub from: (NodeId, QueuePairId),
    /// The sender's number of the message, as [`Nic::post_send`] returned it.
    pub message: u64,
    /// First byte within the message.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// Where to.
    pub target: Target,
}

/// An event of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A datagram came, once.
    Received {
        /// The sender.
        from: NodeId,
        /// Its token.
        token: u64,
    },
    /// A datagram was repeated as often as permitted, and never acknowledged.
    GivenUp {
        /// The destination.
        to: NodeId,
        /// Its token.
        token: u64,
    },
}

/// Counts of packets and events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of data that were sent, repetitions included.
    pub data_sent: u64,
    /// Of those, the repetitions.
    pub data_repeated: u64,
    /// Packets of data delivered in order.
    pub data_delivered: u64,
    /// Packets of data that had been delivered before.
    pub duplicates: u64,
    /// Times that a queue pair waited for progress and none came.
    pub timeouts: u64,
    /// RNR NAKs that were sent.
    pub not_ready_sent: u64,
    /// Congestion notifications that were sent.
    pub notifications_sent: u64,
    /// Lookups of a queue pair's context that missed.
    pub context_misses: u64,
    /// Lookups of a region that missed.
    pub region_misses: u64,
    /// Packets that found the receive buffer full.
    pub receive_overflows: u64,
    /// Acknowledgements dropped because too many waited for the port.
    pub urgent_overflows: u64,
    /// Queue pairs that failed: retries exhausted, refused, or ended by the peer.
    pub failed: u64,
}

/// A region of host memory that a peer may write.
#[derive(Debug)]
pub(crate) struct RegionEntry {
    /// The queue pair whose peer may.
    pub(crate) qp: QueuePairId,
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// A small number of its own, for the cache.
    pub(crate) slot: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The queue pair may have a packet to send.
    Wake(QueuePairId),
    /// The queue pair may have waited long enough for progress.
    Progress(QueuePairId),
}

/// See the crate's documentation.
pub struct Nic {
    pub(crate) node: NodeId,
    pub(crate) config: NicConfig,
    pub(crate) qps: Table,
    /// By the number of their key.
    pub(crate) regions: NumberMap<u32, RegionEntry>,
    free_region_slots: Vec<u32>,
    pub(crate) context_cache: Cache,
    pub(crate) region_cache: Cache,
    pub(crate) control: ControlPlane,
    pub(crate) control_events: VecDeque<ControlEvent>,
    /// Queue pairs with a packet to send now, in round-robin order.
    pub(crate) round: VecDeque<QueuePairId>,
    timers: BinaryHeap<Reverse<(Instant, u64, Timer)>>,
    timer_count: u64,
    /// The packet that the transmit engine has, or works on, and when it is done with it.
    pub(crate) staged: Option<(Instant, Packet)>,
    /// Acknowledgements and notifications: they go first.
    pub(crate) urgent: VecDeque<Packet>,
    /// Packets that wait for the receive engine, and the time at which it will be done with each.
    pub(crate) receiving: VecDeque<(Instant, Packet)>,
    pub(crate) busy: Busy,
    pub(crate) placements: VecDeque<Placement>,
    /// Queue pairs whose completions become visible, and when; none before the one in front.
    visible: VecDeque<(Instant, QueuePairId)>,
    /// When the command queue has nothing left to do.
    pub(crate) commands_done_at: Instant,
    pub(crate) counters: Counters,
    pub(crate) now: Instant,
}

impl Nic {
    /// A NIC without queue pairs.
    pub fn new(node: NodeId, config: NicConfig) -> Nic {
        // A datagram is answered within a round trip; the interval is that of data, as both wait for the same network.
        let control = ControlPlane::new(config.retry_timeout, config.retry_count);
        Nic {
            node,
            context_cache: Cache::new(config.context_cache),
            busy: Busy::new(config.engines),
            region_cache: Cache::new(config.region_cache),
            config,
            qps: Table::default(),
            regions: NumberMap::default(),
            free_region_slots: Vec::new(),
            control,
            control_events: VecDeque::new(),
            round: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_count: 0,
            staged: None,
            urgent: VecDeque::new(),
            receiving: VecDeque::new(),
            placements: VecDeque::new(),
            visible: VecDeque::new(),
            commands_done_at: Instant::ZERO,
            counters: Counters::default(),
            now: Instant::ZERO,
        }
    }

    /// Its address.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its configuration.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Takes the time of the work that has come since the last call, where [engines are shared](crate::Engines::Shared): on a host
    /// whose one processor does that, too, programs wait for it.
    pub fn take_work(&mut self) -> Duration {
        self.busy.take_work()
    }

    /// Counts of packets and events so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A queue pair that is not connected. `None`: there are too many.
    pub fn create_qp(&mut self) -> Option<QueuePairId> {
        let rate = self.config.rate_control.build(self.config.line_rate_bps, self.config.mtu_bytes);
        self.qps.insert(QueuePair::new(rate), self.config.max_queue_pairs)
    }

    /// Connects a new queue pair to the one that a connection manager has negotiated. `false` if it is not new.
    pub fn connect_qp(&mut self, id: QueuePairId, node: NodeId, qp: QueuePairId) -> bool {
        match self.qps.get_mut(id) {
            Some(ours) if ours.life == Life::Idle => {
                ours.life = Life::Connected { node, qp };
                true
            }
            _ => false,
        }
    }

    /// Lets the peer of `qp` write `len` bytes from `base` under `rkey`. `false`: the key is taken, the queue pair is unknown,
    /// or there are too many regions.
    pub fn register(&mut self, qp: QueuePairId, rkey: RemoteKey, base: u64, len: u64) -> bool {
        let room = self.regions.len() < self.config.max_regions as usize;
        if !room || self.regions.contains_key(&rkey.0) || self.qps.get(qp).is_none() || base.checked_add(len).is_none()
        {
            return false;
        }
        let slot = self.free_region_slots.pop().unwrap_or(self.regions.len() as u32);
        self.regions.insert(rkey.0, RegionEntry { qp, base, len, slot });
        true
    }

    /// Ends what [`register`](Nic::register) began.
    pub fn deregister(&mut self, rkey: RemoteKey) {
        if let Some(region) = self.regions.remove(&rkey.0) {
            self.free_region_slots.push(region.slot);
        }
    }

    /// Posts one request; returns the number of its message.
    ///
    /// # Errors
    /// `QueueFull` until completions are polled; `Dead` if the queue pair is not connected (any more); `Invalid` if the
    /// message is too long.
    pub fn post_send(&mut self, now: Instant, id: QueuePairId, request: SendRequest) -> Result<u64, PostError> {
        self.now = now;
        let costs = &self.config.costs;
        let fetch = if request.inline || request.len == 0 { Duration::ZERO } else { costs.payload_fetch };
        let qp = self.qps.get_mut(id).filter(|qp| qp.peer().is_some()).ok_or(PostError::Dead)?;
        let posting_takes = costs.doorbell + costs.request_fetch + fetch;
        if request.len > self.config.max_message_bytes {
            return Err(PostError::Invalid);
        }
        if qp.send_slots >= self.config.send_depth {
            return Err(PostError::QueueFull);
        }
        qp.send_slots += 1;
        qp.unsignaled += 1;
        let releases = if request.signaled { std::mem::take(&mut qp.unsignaled) } else { 0 };
        let SendRequest { id: wr, verb, len, signaled, .. } = request;
        let ready_at = self.busy.work(now.max(qp.deferred_until), Stage::Post, posting_takes);
        let posting = Posting { id: wr, verb, len, signaled, releases, ready_at };
        let message = qp.requester.post(posting, self.config.mtu_bytes);
        self.activate(id);
        self.start_transmit();
        Ok(message)
    }

    /// Whether `id` is connected: posts are accepted.
    pub fn is_connected(&self, id: QueuePairId) -> bool {
        self.qps.get(id).is_some_and(|qp| qp.peer().is_some())
    }

    /// Whether a completion of `id` is visible by now.
    pub fn has_completion(&self, now: Instant, id: QueuePairId) -> bool {
        self.qps.get(id).and_then(|qp| qp.completions.front()).is_some_and(|entry| entry.visible_at <= now)
    }

    /// How many more receives `id` takes now.
    pub fn receive_room(&self, id: QueuePairId) -> u32 {
        self.qps.get(id).map_or(0, |qp| self.config.receive_depth - qp.receive_slots)
    }

    /// How many more requests `id` takes now.
    pub fn send_room(&self, id: QueuePairId) -> u32 {
        self.qps.get(id).map_or(0, |qp| self.config.send_depth - qp.send_slots)
    }

    /// Posts `count` receives of `len` bytes each; all or none.
    ///
    /// # Errors
    /// `QueueFull` until completions are polled; `Dead` if the queue pair is not connected (any more).
    pub fn post_recv(&mut self, id: QueuePairId, count: u32, len: u32) -> Result<(), PostError> {
        let qp = self.qps.get_mut(id).filter(|qp| qp.peer().is_some()).ok_or(PostError::Dead)?;
        if count > self.config.receive_depth - qp.receive_slots {
            return Err(PostError::QueueFull);
        }
        qp.receive_slots += count;
        (0..count).for_each(|_| qp.responder.post_receive(len));
        Ok(())
    }

    /// The queue pair fails; its peer gets a datagram.
    pub fn fail_qp(&mut self, now: Instant, id: QueuePairId) {
        self.now = now;
        self.fail(id, CompletionStatus::Flushed, true);
        self.start_transmit();
    }

    /// Destroys the queue pair and its regions; its peer gets a datagram.
    pub fn destroy_qp(&mut self, now: Instant, id: QueuePairId) {
        self.now = now;
        self.fail(id, CompletionStatus::Flushed, true);
        if self.qps.remove(id).is_some() {
            let owned = self.regions.iter().filter(|(_, r)| r.qp == id);
            let mut keys: Vec<u32> = owned.map(|(key, _)| *key).collect();
            keys.sort_unstable();
            keys.into_iter().for_each(|key| self.deregister(RemoteKey(key)));
        }
        self.start_transmit();
    }

    /// Sends a datagram to another NIC's connection manager. `false`: too many are under way.
    pub fn send_control(&mut self, now: Instant, to: NodeId, token: u64) -> bool {
        self.now = now;
        let sent = self.control.send(now, to, Control::User { token });
        self.start_transmit();
        sent
    }

    /// Takes what the connection manager is to learn.
    pub fn poll_control(&mut self) -> Option<ControlEvent> {
        self.control_events.pop_front()
    }

    /// Takes bytes that have arrived, oldest first. To be drained after every call that takes a time.
    pub fn poll_placement(&mut self) -> Option<Placement> {
        self.placements.pop_front()
    }

    /// Takes a queue pair that has a completion which is visible by now; one report for each completion. Sleepers learn of
    /// it [`Costs::interrupt`](crate::Costs) later.
    pub fn poll_ready(&mut self, now: Instant) -> Option<QueuePairId> {
        while self.visible.front().is_some_and(|(visible_at, _)| *visible_at <= now) {
            let (_, qp) = self.visible.pop_front()?;
            // Unless it was destroyed meanwhile.
            if self.qps.get(qp).is_some() {
                return Some(qp);
            }
        }
        None
    }

    /// Takes the oldest completion of a queue pair that is visible by now.
    pub fn poll_completion(&mut self, now: Instant, id: QueuePairId) -> Option<WorkCompletion> {
        let qp = self.qps.get_mut(id)?;
        if qp.completions.front()?.visible_at > now {
            return None;
        }
        let entry = qp.completions.pop_front()?;
        qp.send_slots = qp.send_slots.saturating_sub(entry.send_slots);
        qp.receive_slots = qp.receive_slots.saturating_sub(entry.receive_slots);
        Some(entry.wc)
    }

    /// When [`handle_timer`](Nic::handle_timer) has something to do. Packets that wait for the port, and entries that wait to be
    /// polled, have no time.
    pub fn next_deadline(&self) -> Option<Instant> {
        let staged = self.staged.as_ref().map(|(done, _)| *done);
        let visible = self.visible.front().map(|(at, _)| *at);
        let later = |at: Option<Instant>| at.filter(|at| *at > self.now);
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let receiving = self.receiving.front().map(|(done, _)| *done);
        Instant::earliest([later(staged), later(visible), later(self.control.next_due()), timer, receiving])
    }

    /// Does what is due.
    pub fn handle_timer(&mut self, now: Instant) {
        self.now = now;
        self.receive_due();
        while let Some(Reverse((at, _, timer))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Wake(id) => {
                    if let Some(qp) = self.qps.get_mut(id) {
                        qp.wake_at = qp.wake_at.filter(|t| *t != at);
                        self.activate(id);
                    }
                }
                Timer::Progress(id) => self.check_progress(id, at),
            }
        }
        self.start_transmit();
    }

    fn check_progress(&mut self, id: QueuePairId, at: Instant) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        qp.timer_at = qp.timer_at.filter(|t| *t != at);
        match qp.requester.handle_timer(self.now, &self.config) {
            Ok(false) => {}
            Ok(true) => {
                self.counters.timeouts += 1;
                qp.rate.handle_timeout(self.now);
                self.activate(id);
            }
            Err(_) => self.fail(id, CompletionStatus::RetryExceeded, true),
        }
        self.watch_progress(id);
    }

    /// Starts a timer for the requester's deadline, unless an earlier one will check it: a timer is never moved, because
    /// nearly every packet would move it.
    pub(crate) fn watch_progress(&mut self, id: QueuePairId) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let Some(deadline) = qp.requester.deadline() else { return };
        if qp.timer_at.is_none_or(|at| deadline < at) {
            qp.timer_at = Some(deadline);
            self.add_timer(deadline, Timer::Progress(id));
        }
    }

    pub(crate) fn add_timer(&mut self, at: Instant, timer: Timer) {
        self.timer_count += 1;
        self.timers.push(Reverse((at, self.timer_count, timer)));
    }

    /// Adds a completion, which takes `time` to become visible; not before its predecessors, as they are polled in order.
    pub(crate) fn complete(&mut self, id: QueuePairId, entry: (WorkCompletion, u32, u32), time: Duration) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let visible_at = self.busy.work(self.now, Stage::Complete, time);
        let (wc, send_slots, receive_slots) = entry;
        qp.completions.push_back(Entry { wc, visible_at, send_slots, receive_slots });
        self.visible.push_back((visible_at, id));
    }

    /// The queue pair dies: its oldest request ends with `status`, the others are flushed.
    pub(crate) fn fail(&mut self, id: QueuePairId, status: CompletionStatus, notify_peer: bool) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let Some((node, peer)) = qp.peer() else { return };
        qp.life = Life::Dead;
        self.counters.failed += 1;
        let delay = self.config.costs.completion;
        let mut status = status;
        while let Some(request) = self.qps.get_mut(id).and_then(|qp| qp.requester.pop_any()) {
            if status != CompletionStatus::Flushed || self.config.report_flushes {
                let wc = WorkCompletion { qp: id, status, completion: Completion::Send { id: request.id } };
                self.complete(id, (wc, request.releases, 0), delay);
            }
            status = CompletionStatus::Flushed;
        }
        let wc = WorkCompletion { qp: id, status: CompletionStatus::Flushed, completion: Completion::Disconnected };
        self.complete(id, (wc, 0, 0), delay);
        if notify_peer {
            // If too many datagrams are under way the peer finds out by its own retries.
            self.control.send(self.now, node, Control::Disconnect { qp: peer, from: id });
        }
    }
}
