//! A run: hosts, conversations, and what is measured.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use netacc_device::{DeviceError, Instant};
use netacc_driver::Endpoint;
use netacc_host::{Cluster, HostConfig, HostId, TcpWires, Usage};
use netacc_rnic::network::TraceHash;
use netacc_rnic::{Counters, Packet};

use crate::desk::Desk;
use crate::process::{endpoint, look, Broken, Ears, StackConfig};
use crate::talk::{connect, is_linked, Exchange, Talk};
use crate::workload::Conversation;

/// What runs.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The hosts.
    pub hosts: Vec<HostConfig>,
    /// The conversations.
    pub conversations: Vec<Conversation>,
    /// How the core is set up.
    pub stack: StackConfig,
    /// Whether connections are promoted. If not, what runs is TCP alone.
    pub promote: bool,
    /// Who carries their TCP.
    pub tcp: Tcp,
    /// Whether [`Run::take_samples`] is to have something.
    pub sampled: bool,
}

/// What carries the connections' TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Memory: its bytes take no time and are never lost. Connections that are promoted talk on their links only; alone it wants
    /// hosts with processors, or nothing takes time.
    Memory,
    /// A simulator's own TCP ([`Run::tcp`]). Connections talk as soon as they are made, and are promoted meanwhile.
    Simulated {
        /// Bytes of a socket's send and receive buffers each.
        buffer_bytes: usize,
    },
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The conversation.
    pub conversation: u32,
    /// When it was made; of an open loop, when it was due.
    pub begun: Instant,
    /// When the last byte of its response was read.
    pub end: Instant,
    /// Bytes of the request.
    pub request_bytes: u32,
    /// Bytes of the response.
    pub response_bytes: u32,
}

/// What a conversation has measured: from when a request was made until the last byte of its response was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// In nanoseconds, in order.
    pub latencies_ns: Vec<u64>,
}

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By conversation.
    pub measured: Vec<Measured>,
    /// Whether all requests were answered.
    pub complete: bool,
    /// Every packet that was delivered, and when.
    pub trace: TraceHash,
    /// When the last thing happened.
    pub end: Instant,
    /// What the processors of each host were used for; `None` where calls take no time.
    pub usage: Vec<Option<Usage>>,
}

/// Processes on hosts, driven by whoever has the network. See [`Cluster::driven`].
pub struct Run {
    pub(crate) cluster: Cluster,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) talks: Vec<Talk>,
    /// Connections that are to be promoted when it is their turn.
    pub(crate) unasked: VecDeque<usize>,
    /// Promotions that were asked for, and whose streams have not been on a link.
    pub(crate) promoting: usize,
    /// Hosts that have something to look at, brought by TCP in memory.
    pub(crate) nudged: Vec<usize>,
    /// Hosts that TCP was the last to come to: their deadlines may be others than the simulator knows.
    rewoken: Vec<u32>,
    /// By host; `None` where calls take no time.
    pub(crate) desks: Vec<Option<Desk>>,
    pub(crate) wires: TcpWires,
    pub(crate) promote: bool,
    pub(crate) tcp: Tcp,
    pub(crate) ears: Vec<Arc<Ears>>,
    wakes: Vec<Option<Instant>>,
    /// By host: when which conversation has a request to make.
    alarms: Vec<BinaryHeap<Reverse<(Instant, usize)>>>,
    /// Bytes that processes have read.
    read: u64,
    /// Requests that were answered.
    answered: u64,
    /// Those that nobody has taken yet.
    samples: Vec<Sample>,
    sampled: bool,
    /// Conversations that are not complete.
    open: usize,
    broken: Option<Broken>,
}

impl Run {
    /// Hosts with nothing said yet. `None` if a conversation names a host that does not exist, or itself, or has a plan that
    /// makes no sense.
    ///
    /// # Errors
    /// When a device has no queues.
    pub fn new(config: &RunConfig) -> Result<Option<Run>, DeviceError> {
        let count = config.hosts.len() as u32;
        let sane = |c: &Conversation| c.client.max(c.server) < count && c.client != c.server && c.is_sane();
        if !config.conversations.iter().all(sane) {
            return Ok(None);
        }
        let cluster = Cluster::driven(config.hosts.clone());
        let (mut endpoints, mut ears) = (Vec::new(), Vec::new());
        for host in 0..count {
            let heard = Arc::new(Ears::default());
            endpoints.push(endpoint(&cluster.open(HostId(host)), &config.stack, &heard)?);
            ears.push(heard);
        }
        let mut talks = Vec::new();
        let mut wires = TcpWires::default();
        for (number, conversation) in config.conversations.iter().enumerate() {
            let talk = connect(&endpoints, conversation, number, config.tcp);
            if config.tcp != Tcp::Memory {
                wires.add([HostId(talk.client), HostId(talk.server)], talk.wire.clone());
            }
            talks.push(talk);
        }
        let open = talks.iter().filter(|t| !t.is_over()).count();
        let hosts = config.hosts.len();
        Ok(Some(Run {
            cluster,
            endpoints,
            talks,
            unasked: VecDeque::new(),
            promoting: 0,
            nudged: Vec::new(),
            rewoken: Vec::new(),
            desks: config.hosts.iter().map(|h| h.processor.clone().map(Desk::new)).collect(),
            wires,
            promote: config.promote,
            tcp: config.tcp,
            ears,
            wakes: vec![None; hosts],
            alarms: (0..hosts).map(|_| BinaryHeap::new()).collect(),
            read: 0,
            answered: 0,
            samples: Vec::new(),
            sampled: config.sampled,
            open,
            broken: None,
        }))
    }

    /// Has every client begin. Once, at the beginning of time.
    pub fn start(&mut self) {
        if self.tcp == Tcp::Memory {
            (0..self.talks.len()).for_each(|number| self.handle_connected(number as u32, Instant::ZERO));
        }
        (0..self.endpoints.len()).for_each(|host| self.turn(host));
    }

    /// The connections' TCP, for the simulator that carries it; after it has brought something it says so with
    /// [`handle_connected`](Run::handle_connected) or [`handle_arrival`](Run::handle_arrival).
    pub fn tcp(&mut self) -> &mut TcpWires {
        &mut self.wires
    }

    /// Bytes that TCP may bring to a side of a connection now.
    pub fn tcp_room(&self, number: u32, side: usize) -> usize {
        self.wires.room(number, side)
    }

    /// Bytes of the buffers that a simulator's sockets are to have, if it is to carry the TCP.
    pub fn tcp_buffer_bytes(&self) -> Option<usize> {
        match self.tcp {
            Tcp::Memory => None,
            Tcp::Simulated { buffer_bytes } => Some(buffer_bytes),
        }
    }

    /// TCP has brought something to a side (0 connected, 1 accepted) of a connection: bytes, the end, or a failure.
    pub fn handle_arrival(&mut self, number: u32, side: usize, now: Instant) {
        let Some(talk) = self.talks.get_mut(number as usize).filter(|_| side < 2) else { return };
        self.cluster.set_now(now);
        let hosts = [talk.client as usize, talk.server as usize];
        let host = hosts[side];
        talk.end(&self.endpoints[host], side).look_at_anchor();
        let waits = std::mem::take(&mut talk.blocked[1 - side]);
        self.ears[host].note(number);
        self.turn_for_tcp(host);
        if waits {
            self.ears[hosts[1 - side]].note(number);
            self.turn_for_tcp(hosts[1 - side]);
        }
    }

    /// TCP has brought wrong bytes.
    pub fn handle_corruption(&mut self, number: u32) {
        let conversation = number as usize;
        let position = self.talks.get(conversation).map_or(0, |t| t.directions[0].read);
        self.broken.get_or_insert(Broken { conversation, position });
    }

    /// What a host's processors were used for until now; `None` if calls take no time there.
    pub fn usage(&self, host: u32) -> Option<Usage> {
        let desk = self.desks.get(host as usize)?.as_ref()?;
        Some(desk.processors.usage(self.cluster.now()))
    }

    /// Connections talk before they are on a link.
    pub(crate) fn talks_at_once(&self) -> bool {
        self.tcp != Tcp::Memory || !self.promote
    }

    /// A packet reaches a host.
    pub fn handle_packet(&mut self, host: u32, now: Instant, packet: Packet) {
        if (host as usize) < self.endpoints.len() {
            self.cluster.handle_packet(HostId(host), now, packet);
            self.turn(host as usize);
        }
    }

    /// A host's deadline is now.
    pub fn handle_timer(&mut self, host: u32, now: Instant) {
        if (host as usize) < self.endpoints.len() {
            self.cluster.handle_timer(HostId(host), now);
            self.turn(host as usize);
        }
    }

    /// The next packet of a host whose port is free.
    pub fn poll_transmit(&mut self, host: u32, now: Instant) -> Option<Packet> {
        ((host as usize) < self.endpoints.len()).then(|| self.cluster.poll_transmit(HostId(host), now)).flatten()
    }

    /// When a host wants to be called. What processes want for housekeeping ends with the last response.
    pub fn next_deadline(&self, host: u32) -> Option<Instant> {
        let wake = *self.wakes.get(host as usize)?;
        let wake = wake.filter(|_| self.open > 0);
        let desk = self.desks[host as usize].as_ref().and_then(|d| d.processors.next_deadline());
        wake.into_iter().chain(desk).chain(self.cluster.next_deadline(HostId(host))).min()
    }

    /// A host that must be served again though nothing came for it.
    pub fn take_dirty(&mut self) -> Option<u32> {
        self.cluster.take_dirty().map(|host| host.0).or_else(|| self.rewoken.pop())
    }

    /// How it went so far.
    ///
    /// # Errors
    /// The first byte that was not the one written.
    pub fn outcome(&self) -> Result<Outcome, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        Ok(Outcome {
            measured: self.talks.iter().map(|t| t.measured.clone()).collect(),
            complete: self.open == 0,
            trace: self.cluster.trace(),
            end: self.cluster.now(),
            usage: (0..self.desks.len() as u32).map(|host| self.usage(host)).collect(),
        })
    }

    /// What a conversation has measured so far.
    ///
    /// # Errors
    /// The first byte, of any conversation, that was not the one written.
    pub fn measured(&self, number: usize) -> Result<Option<&Measured>, Broken> {
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None => Ok(self.talks.get(number).map(|t| &t.measured)),
        }
    }

    /// The requests answered since the last call, in order, if the run is sampled.
    pub fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// Bytes that processes have read: while that stands still, there is no progress.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Requests that were answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Requests that were made and not answered.
    pub fn unanswered(&self) -> u64 {
        self.talks.iter().map(|t| t.asked.len() as u64).sum()
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.cluster.now()
    }

    /// Whether somebody waits, for an answer or to be able to ask.
    pub fn is_waiting(&self) -> bool {
        let now = self.cluster.now();
        self.talks.iter().any(|t| !t.asked.is_empty() || t.source.due().is_some_and(|due| due <= now))
    }

    /// Whether everything was asked and answered.
    pub fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// The first byte that was not the one written.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// A hash over every packet that was delivered, and when.
    pub fn trace(&self) -> TraceHash {
        self.cluster.trace()
    }

    /// What a host's NIC has counted.
    pub fn counters(&self, host: u32) -> Option<Counters> {
        ((host as usize) < self.endpoints.len()).then(|| self.cluster.counters(HostId(host)))
    }

    /// As [`turn`](Run::turn), for what the host's NIC has nothing to do with: nobody asks it for its deadline by itself.
    pub(crate) fn turn_for_tcp(&mut self, host: usize) {
        self.turn(host);
        self.rewoken.push(host as u32);
    }

    /// The process of a host looks at its device and does what can be done; and, while a connection of its has not been
    /// promoted, so does the other end, as the anchor's bytes take no time, and then this one again.
    fn turn(&mut self, host: usize) {
        let peers = self.look(host);
        for peer in &peers {
            self.look(*peer);
        }
        if !peers.is_empty() {
            self.look(host);
        }
        for _ in 0..MAX_LOOKS {
            let Some(host) = self.nudged.pop() else { break };
            self.look(host);
            self.rewoken.push(host as u32);
        }
    }

    /// TCP in memory has carried something at once: its other end is told, as nobody else does.
    fn nudge_peer(&mut self, number: usize, host: usize) {
        let talk = &self.talks[number];
        let ends = [talk.client as usize, talk.server as usize];
        let peer = ends[usize::from(host == ends[0])];
        self.ears[peer].note(number as u32);
        if !self.nudged.contains(&peer) {
            self.nudged.push(peer);
        }
    }

    /// One process. Returns the hosts at the other end of those connections that are on their way to a link.
    fn look(&mut self, host: usize) -> Vec<usize> {
        let now = self.cluster.now();
        let mut peers = Vec::new();
        for _ in 0..MAX_LOOKS {
            let wake = look(&self.endpoints[host], now);
            let mut heard = self.ears[host].take();
            heard.extend(self.take_due(host, now));
            for number in &heard {
                match &mut self.desks[host] {
                    Some(desk) => desk.put(now, *number),
                    None => self.talk(*number, host, now),
                }
                peers.extend(self.unlinked_peer(*number, host));
                if self.promote && !self.talks[*number].was_linked {
                    self.note_linked(*number);
                }
            }
            self.work(host, now);
            let alarm = self.alarms[host].peek().map(|Reverse((at, _))| *at);
            self.wakes[host] = wake.into_iter().chain(alarm).min();
            if heard.is_empty() {
                break;
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// The other host of a conversation whose ends are not both on their link.
    fn unlinked_peer(&self, number: usize, host: usize) -> Option<usize> {
        let talk = self.talks.get(number).filter(|_| self.tcp == Tcp::Memory)?;
        let ends = [talk.client as usize, talk.server as usize];
        let linked = |side: usize| is_linked(&self.endpoints[ends[side]], &talk.cells[side]);
        (!linked(0) || !linked(1)).then_some(ends[usize::from(host == ends[0])])
    }

    /// The conversations of a host that have a request to make by now.
    fn take_due(&mut self, host: usize, now: Instant) -> Vec<usize> {
        let mut due = Vec::new();
        while let Some(Reverse((_, number))) = self.alarms[host].peek().filter(|Reverse((at, _))| *at <= now) {
            due.push(*number);
            self.talks[*number].alarm = None;
            self.alarms[host].pop();
        }
        due
    }

    /// One end of a conversation does what it can.
    pub(crate) fn talk(&mut self, number: usize, host: usize, now: Instant) {
        if self.promote || self.tcp != Tcp::Memory {
            return self.move_bytes(number, host, now);
        }
        let before = self.moved(number, host);
        self.move_bytes(number, host, now);
        let after = self.moved(number, host);
        if (after.read, after.written) != (before.read, before.written) {
            self.nudge_peer(number, host);
        }
    }

    fn move_bytes(&mut self, number: usize, host: usize, now: Instant) {
        let at_once = self.talks_at_once();
        let connected = self.tcp == Tcp::Memory || self.wires.is_connected(number as u32);
        let Some(talk) = self.talks.get_mut(number) else { return };
        let side = usize::from(host != talk.client as usize);
        let endpoint = &self.endpoints[host];
        if !connected || !at_once && !is_linked(endpoint, &talk.cells[side]) {
            return;
        }
        let salt = number as u64 * 2;
        let before = talk.directions[1 - side].read;
        if let Err(position) = talk.read(endpoint, side, salt + 1 - side as u64) {
            self.broken.get_or_insert(Broken { conversation: number, position });
            return;
        }
        self.read += talk.directions[1 - side].read - before;
        if side == 1 {
            let until = talk.answerable();
            talk.write(endpoint, 1, salt + 1, until);
            return;
        }
        let was_over = talk.is_over();
        while let Some(exchange) = talk.take_answered() {
            let Exchange { begun, request_bytes, response_bytes, .. } = exchange;
            self.answered += 1;
            talk.measured.latencies_ns.push(now.saturating_since(begun).as_nanos() as u64);
            if self.sampled {
                let conversation = number as u32;
                self.samples.push(Sample { conversation, begun, end: now, request_bytes, response_bytes });
            }
            talk.source.handle_answer(now);
        }
        talk.ask(now);
        talk.write(endpoint, 0, salt, talk.ends[0]);
        if !was_over && talk.is_over() {
            self.open -= 1;
        }
        if let Some(due) = talk.source.due().filter(|due| talk.alarm.is_none_or(|at| *due < at)) {
            talk.alarm = Some(due);
            self.alarms[host].push(Reverse((due, number)));
        }
        self.ask_again(number);
    }
}

/// Looks in a row at most, each because the one before has brought something. Arbitrary: bounds what must end by itself.
const MAX_LOOKS: u32 = 1000;
