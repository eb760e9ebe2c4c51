//! A wire with the transport of `netacc-rnic` on it: loss, delay, a rate, retransmission and its limit.
//!
//! Each function has a modelled NIC, and each pair of ends that uses the wire a queue pair on either. The NICs carry
//! lengths and order, this wire the content: every message and every answer with data is a SEND of the model, and the
//! receive for it is posted along. So keys, bounds and empty receive queues stay with the functions, and the model only
//! does transport. An answer without data is the transport's own acknowledgement.
//!
//! Time is that of the calls, but each event has its own time: an event that is handled late is handled as if it were
//! not, so rates and delays do not depend on when this process runs.
//!
//! # Invariants
//! * `sent` has an end's messages and answers in the order in which its NIC got them.
//! * A request is in `awaited` from the time it is sent until its answer leaves this wire.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::{Completion, CompletionStatus, Instant, QueuePairId, WorkCompletion, WorkRequestId};
use netacc_rnic::network::Serializer;
use netacc_rnic::{Events, Nic, NicConfig, NodeId, Packet, SendRequest, Verb};

use crate::status::Status;
use crate::wire::{End, Message, Reply, Wire, WireEvent};

/// Events that one call handles. Arbitrary: it bounds how long a thread has the fabric locked.
const MAX_EVENTS: u32 = 100_000;

/// Work requests of a modelled queue pair. More than the functions' queues hold.
const MAX_WORK: u32 = 1 << 20;

/// Of a million.
pub const MILLION: u32 = 1_000_000;

/// The settings of the wire. With loss, duplication, delay and rate at zero it is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireSettings {
    /// The number of packets, of a million, that are lost.
    pub loss_ppm: u32,
    /// The number of packets, of a million, that arrive twice.
    pub duplicate_ppm: u32,
    /// From the last bit sent to the last bit received.
    pub delay: Duration,
    /// Bits per second of each function's port; 0: without a limit.
    pub rate_bps: u64,
    /// Payload bytes of a packet. Only for queue pairs that are connected later.
    pub mtu_bytes: u32,
    /// After this time without progress, everything unacknowledged is sent again. Only for queue pairs that are
    /// connected later.
    pub retry_timeout: Duration,
    /// Attempts without progress, before the connection fails. Only for queue pairs that are connected later.
    pub retry_count: u8,
}

impl Default for WireSettings {
    fn default() -> WireSettings {
        let NicConfig { mtu_bytes, retry_timeout, retry_count, .. } = NicConfig::ideal(0);
        WireSettings {
            loss_ppm: 0,
            duplicate_ppm: 0,
            delay: Duration::ZERO,
            rate_bps: 0,
            mtu_bytes,
            retry_timeout,
            retry_count,
        }
    }
}

impl WireSettings {
    /// Whether any impairment is set.
    pub fn is_impaired(&self) -> bool {
        self.loss_ppm > 0 || self.duplicate_ppm > 0 || self.delay > Duration::ZERO || self.rate_bps > 0
    }

    fn serializer(&self) -> Serializer {
        Serializer::new(if self.rate_bps > 0 { self.rate_bps } else { UNLIMITED_BPS })
    }

    fn nic(&self) -> NicConfig {
        NicConfig {
            mtu_bytes: self.mtu_bytes,
            retry_timeout: self.retry_timeout,
            retry_count: self.retry_count,
            no_receive_is_fatal: true,
            send_depth: MAX_WORK,
            receive_depth: MAX_WORK,
            max_message_bytes: u32::MAX,
            ..NicConfig::ideal(UNLIMITED_BPS)
        }
    }
}

/// So fast that a packet takes no time.
const UNLIMITED_BPS: u64 = 1_000_000_000_000_000;

/// A content of the wire.
enum Content {
    Request(Message),
    Answer { id: u64, reply: Reply },
}

/// A request whose answer has not left this wire.
#[derive(Default)]
struct Awaited {
    /// The transport has acknowledged the request.
    acknowledged: bool,
    /// The responder has handled it. An answer with data is in flight by itself.
    reply: Option<Reply>,
}

enum Event {
    Timer(usize),
    PortFree(usize),
    Arrival(Packet),
}

struct Node {
    nic: Nic,
    port: Serializer,
    port_busy: bool,
    timer: Option<Instant>,
    /// The ends of the model's queue pairs.
    ends: BTreeMap<QueuePairId, End>,
}

/// See the module's documentation.
pub struct ModelledWire {
    settings: WireSettings,
    rng: SplitMix64,
    /// By function, once it has used the wire.
    nodes: BTreeMap<usize, Node>,
    /// Queue pairs of the model, and the other end.
    pairs: BTreeMap<End, (QueuePairId, End)>,
    sent: BTreeMap<End, VecDeque<Content>>,
    awaited: BTreeMap<(End, u64), Awaited>,
    events: Events<Event>,
    /// The time up to which events were handled.
    clock: Instant,
    out: VecDeque<WireEvent>,
}

impl ModelledWire {
    /// A wire without ends. The same seed loses the same packets of the same traffic.
    pub fn new(seed: u64) -> ModelledWire {
        ModelledWire {
            settings: WireSettings::default(),
            rng: SplitMix64::new(seed),
            nodes: BTreeMap::new(),
            pairs: BTreeMap::new(),
            sent: BTreeMap::new(),
            awaited: BTreeMap::new(),
            events: Events::default(),
            clock: Instant::ZERO,
            out: VecDeque::new(),
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &WireSettings {
        &self.settings
    }

    /// Changes the settings: for packets that are sent from now on, and for later connections where a field's
    /// documentation limits it to them.
    pub fn set(&mut self, settings: WireSettings) {
        for node in self.nodes.values_mut() {
            node.port = settings.serializer();
        }
        self.settings = settings;
        // NICs keep their configuration: those without a connection are made anew when they have one.
        self.nodes.retain(|_, node| !node.ends.is_empty());
    }

    /// Whether requests of an end have not been answered.
    pub fn is_busy(&self, end: End) -> bool {
        self.awaited.range((end, 0)..=(end, u64::MAX)).next().is_some()
    }

    /// Whether a request of an end waits for its answer.
    pub fn awaits(&self, end: End, id: u64) -> bool {
        self.awaited.contains_key(&(end, id))
    }

    fn node(&mut self, function: usize) -> &mut Node {
        let settings = &self.settings;
        self.nodes.entry(function).or_insert_with(|| Node {
            nic: Nic::new(node_id(function), settings.nic()),
            port: settings.serializer(),
            port_busy: false,
            timer: None,
            ends: BTreeMap::new(),
        })
    }

    /// Joins two ends that use the wire for the first time. `None`: there are too many.
    fn join(&mut self, ends: [End; 2]) -> Option<()> {
        let [a, b] = ends;
        if self.pairs.contains_key(&a) {
            return Some(());
        }
        let qp_a = self.node(a.function).nic.create_qp()?;
        let qp_b = self.node(b.function).nic.create_qp()?;
        for (own, qp, other, other_qp) in [(a, qp_a, b, qp_b), (b, qp_b, a, qp_a)] {
            let node = self.node(own.function);
            node.nic.connect_qp(qp, node_id(other.function), other_qp);
            node.ends.insert(qp, own);
            self.pairs.insert(own, (qp, other));
        }
        Some(())
    }

    fn post(&mut self, now: Instant, from: End, content: Content) {
        self.advance(now);
        let Some((qp, to)) = self.pairs.get(&from).copied() else { return };
        let (id, len) = match &content {
            Content::Request(message) => (message.id, message.len()),
            Content::Answer { reply: Reply::Data(data), .. } => (ANSWER, u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Content::Answer { .. } => (ANSWER, 0),
        };
        let Some((to_qp, _)) = self.pairs.get(&to).copied() else { return };
        let request =
            SendRequest { id: WorkRequestId(id), verb: Verb::Send { imm: None }, len, inline: false, signaled: true };
        let clock = self.clock;
        let received = self.node(to.function).nic.post_recv(to_qp, 1, u32::MAX);
        let sent = self.node(from.function).nic.post_send(clock, qp, request);
        if received.is_err() || sent.is_err() {
            // A queue pair of the model is dead.
            return self.out.push_back(WireEvent::Failed { end: from, status: Status::RetryExceeded });
        }
        self.sent.entry(from).or_default().push_back(content);
        self.serve(from.function);
    }

    /// Handles the events until `now`.
    fn advance(&mut self, now: Instant) {
        for _ in 0..MAX_EVENTS {
            if self.events.next_at().is_none_or(|at| at > now) {
                self.clock = self.clock.max(now);
                return;
            }
            let Some((at, event)) = self.events.pop() else { return };
            self.clock = self.clock.max(at);
            let clock = self.clock;
            match event {
                Event::Timer(function) => {
                    let Some(node) = self.nodes.get_mut(&function).filter(|node| node.timer == Some(at)) else {
                        continue;
                    };
                    node.timer = None;
                    node.nic.handle_timer(clock);
                    self.serve(function);
                }
                Event::PortFree(function) => {
                    if let Some(node) = self.nodes.get_mut(&function) {
                        node.port_busy = false;
                    }
                    self.serve(function);
                }
                Event::Arrival(packet) => {
                    let NodeId(function) = packet.dst;
                    if let Some(node) = self.nodes.get_mut(&(function as usize)) {
                        node.nic.handle_packet(clock, packet);
                    }
                    self.serve(function as usize);
                }
            }
        }
    }

    /// Takes a NIC's results, sends its packets, and sets its timer.
    fn serve(&mut self, function: usize) {
        let clock = self.clock;
        let Some(node) = self.nodes.get_mut(&function) else { return };
        while node.nic.poll_placement().is_some() {}
        let mut completions = Vec::new();
        while let Some(qp) = node.nic.poll_ready(clock) {
            if let (Some(end), Some(wc)) = (node.ends.get(&qp), node.nic.poll_completion(clock, qp)) {
                completions.push((*end, wc));
            }
        }
        completions.into_iter().for_each(|(end, wc)| self.complete(end, wc));
        let Some(node) = self.nodes.get_mut(&function) else { return };
        if !node.port_busy {
            if let Some(packet) = node.nic.poll_transmit(clock) {
                node.port_busy = true;
                let busy_for = node.port.time(packet.wire_bytes);
                self.events.schedule(clock + busy_for, Event::PortFree(function));
                self.transmit(clock + busy_for, packet);
            }
        }
        let Some(node) = self.nodes.get_mut(&function) else { return };
        let Some(at) = node.nic.next_deadline().map(|deadline| deadline.max(clock)) else { return };
        if node.timer.is_none_or(|set| at < set) {
            node.timer = Some(at);
            self.events.schedule(at, Event::Timer(function));
        }
    }

    fn transmit(&mut self, sent_at: Instant, packet: Packet) {
        let WireSettings { loss_ppm, duplicate_ppm, delay, .. } = self.settings;
        let lost = chance(&mut self.rng, loss_ppm);
        let twice = chance(&mut self.rng, duplicate_ppm);
        if lost {
            return;
        }
        for _ in 0..1 + u8::from(twice) {
            self.events.schedule(sent_at + delay, Event::Arrival(packet));
        }
    }

    fn complete(&mut self, end: End, wc: WorkCompletion) {
        let Some((_, peer)) = self.pairs.get(&end).copied() else { return };
        match (wc.completion, wc.status) {
            (Completion::Receive { .. }, CompletionStatus::Success) => {
                match self.sent.get_mut(&peer).and_then(VecDeque::pop_front) {
                    Some(Content::Request(message)) => {
                        self.awaited.entry((peer, message.id)).or_default();
                        self.out.push_back(WireEvent::Delivered { to: end, message });
                    }
                    Some(Content::Answer { id, reply }) => self.answer(end, id, reply),
                    None => {}
                }
            }
            (Completion::Send { id: WorkRequestId(ANSWER) }, CompletionStatus::Success) => {}
            (Completion::Send { id: WorkRequestId(id) }, CompletionStatus::Success) => {
                let Some(awaited) = self.awaited.get_mut(&(end, id)) else { return };
                awaited.acknowledged = true;
                if let Some(reply) = awaited.reply.take() {
                    self.answer(end, id, reply);
                }
            }
            (Completion::Send { .. } | Completion::Receive { .. }, CompletionStatus::Flushed) => {}
            (Completion::Send { .. } | Completion::Receive { .. }, _) => {
                self.out.push_back(WireEvent::Failed { end, status: Status::RetryExceeded });
            }
            // Behind the failure that led to it at this end, if there was one: the first report counts.
            (Completion::Disconnected, _) => self.out.push_back(WireEvent::Failed { end, status: Status::Flushed }),
        }
    }

    fn answer(&mut self, to: End, id: u64, reply: Reply) {
        if self.awaited.remove(&(to, id)).is_some() {
            self.out.push_back(WireEvent::Replied { to, id, reply });
        }
    }
}

/// The id of all answers, as a work request: no request has it, because those count from 0.
const ANSWER: u64 = u64::MAX;

fn node_id(function: usize) -> NodeId {
    NodeId(u32::try_from(function).unwrap_or(u32::MAX))
}

fn chance(rng: &mut SplitMix64, ppm: u32) -> bool {
    ppm > 0 && rng.next_u64() % u64::from(MILLION) < u64::from(ppm)
}

impl Wire for ModelledWire {
    fn connect(&mut self, _ends: [End; 2]) {
        // The first message makes the queue pairs of the model, so that copied connections need none.
    }

    fn disconnect(&mut self, now: Instant, ends: [End; 2]) {
        self.advance(now);
        for end in ends {
            self.sent.remove(&end);
            self.awaited.retain(|(from, _), _| *from != end);
            let Some((qp, _)) = self.pairs.remove(&end) else { continue };
            let clock = self.clock;
            let node = self.node(end.function);
            node.ends.remove(&qp);
            node.nic.destroy_qp(clock, qp);
            self.serve(end.function);
        }
        self.out.retain(|event| !ends.contains(&event.end()));
    }

    fn send(&mut self, now: Instant, from: End, to: End, message: Message) {
        if self.join([from, to]).is_none() {
            return self.out.push_back(WireEvent::Failed { end: from, status: Status::General });
        }
        self.awaited.insert((from, message.id), Awaited::default());
        self.post(now, from, Content::Request(message));
    }

    fn reply(&mut self, now: Instant, from: End, to: End, id: u64, reply: Reply) {
        let Some(awaited) = self.awaited.get_mut(&(to, id)) else { return };
        match reply {
            Reply::Data(_) => self.post(now, from, Content::Answer { id, reply }),
            Reply::Done | Reply::Terminated(_) if awaited.acknowledged => self.answer(to, id, reply),
            Reply::Done | Reply::Terminated(_) => awaited.reply = Some(reply),
        }
    }

    fn poll(&mut self, now: Instant) -> Option<WireEvent> {
        if self.out.is_empty() {
            self.advance(now);
        }
        self.out.pop_front()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.events.next_at()
    }
}
