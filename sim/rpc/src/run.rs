//! A run: hosts, conversations, and what is measured.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use netacc_device::loopback::anchor::Bell;
use netacc_device::{DeviceError, Instant};
use netacc_driver::Endpoint;
use netacc_host::{Cluster, HostConfig, HostId, TcpWires, Usage};
use netacc_rnic::{Counters, Packet};
use slab::Slab;

use crate::desk::Desk;
use crate::measured::{ns, Carried, Measured, Sample, ShortConnection};
use crate::process::{endpoint, look, Broken, Ears, StackConfig};
use crate::short::Visitor;
use crate::talk::{Exchange, Talk};
use crate::workload::Conversation;

/// What runs.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The hosts. Before [`commands_from`](HostConfig::commands_from) their helper threads take no time for links, either.
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

/// What a host is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// To look at a connection, by its number: its client has a request to make.
    Talk(usize),
    /// To make a connection of a conversation.
    Connection(usize),
}

/// Processes on hosts, driven by whoever has the network. See [`Cluster::driven`].
pub struct Run {
    pub(crate) cluster: Cluster,
    pub(crate) endpoints: Vec<Endpoint>,
    /// The connections that there are, by number.
    pub(crate) talks: Slab<Talk>,
    /// Connections that ever were.
    pub(crate) connected: u64,
    /// By conversation: who makes short connections.
    pub(crate) visitors: Vec<Option<Visitor>>,
    /// Short connections whose TCP in memory was used.
    pub(crate) bell: Bell,
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
    /// By host: when making links begins to take its processors' time.
    pub(crate) links_cost_from: Vec<Instant>,
    /// By host: peers' streams that were granted a link, as far as its helper thread was sent for them.
    pub(crate) granted: Vec<u64>,
    pub(crate) wires: TcpWires,
    pub(crate) promote: bool,
    pub(crate) promote_after: u32,
    pub(crate) tcp: Tcp,
    pub(crate) ears: Vec<Arc<Ears>>,
    wakes: Vec<Option<Instant>>,
    /// By host: when there is what to do.
    pub(crate) alarms: Vec<BinaryHeap<Reverse<(Instant, Due)>>>,
    /// Bytes that processes have read.
    pub(crate) read: u64,
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// By conversation.
    pub(crate) measured: Vec<Measured>,
    /// By conversation: of connections that are closed.
    pub(crate) carried: Vec<Carried>,
    /// Those that nobody has taken yet.
    pub(crate) samples: Vec<Sample>,
    /// Those that nobody has taken yet.
    pub(crate) connections: Vec<ShortConnection>,
    pub(crate) sampled: bool,
    /// Conversations that are not complete.
    pub(crate) open: usize,
    pub(crate) broken: Option<Broken>,
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
        let visitors: Vec<_> = config.conversations.iter().map(Visitor::new).collect();
        let hosts = config.hosts.len();
        let conversations = config.conversations.len();
        let mut run = Run {
            cluster,
            endpoints,
            talks: Slab::new(),
            connected: 0,
            visitors,
            bell: Bell::default(),
            unasked: VecDeque::new(),
            promoting: 0,
            nudged: Vec::new(),
            rewoken: Vec::new(),
            desks: config.hosts.iter().map(|h| h.processor.clone().map(Desk::new)).collect(),
            links_cost_from: config.hosts.iter().map(|h| h.commands_from).collect(),
            granted: vec![0; hosts],
            wires: TcpWires::default(),
            promote: config.promote,
            promote_after: config.stack.promote_after,
            tcp: config.tcp,
            ears,
            wakes: vec![None; hosts],
            alarms: (0..hosts).map(|_| BinaryHeap::new()).collect(),
            read: 0,
            answered: 0,
            measured: vec![Measured::default(); conversations],
            carried: vec![Carried::default(); conversations],
            samples: Vec::new(),
            connections: Vec::new(),
            sampled: config.sampled,
            open: 0,
            broken: None,
        };
        for (host, desk) in run.desks.iter().enumerate() {
            if desk.as_ref().is_some_and(Desk::has_helper) {
                run.cluster.hold_events(HostId(host as u32));
            }
        }
        for (number, conversation) in config.conversations.iter().enumerate() {
            let over = match &run.visitors[number] {
                Some(visitor) => visitor.is_over(),
                None => {
                    let talk = run.open(number, conversation, None);
                    run.talks[talk].is_over()
                }
            };
            run.open += usize::from(!over);
        }
        Ok(Some(run))
    }

    /// Has every client begin. Once, at the beginning of time.
    pub fn start(&mut self) {
        if self.tcp == Tcp::Memory {
            (0..self.talks.len()).for_each(|number| self.handle_connected(number as u32, Instant::ZERO));
        }
        (0..self.visitors.len()).for_each(|conversation| self.plan_visit(conversation));
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
        if let Some(mut end) = talk.end(&self.endpoints[host], side) {
            end.look_at_anchor();
        }
        let waits = std::mem::take(&mut talk.blocked[1 - side]);
        self.ears[host].note(number);
        self.turn_for_tcp(host);
        if waits {
            self.ears[hosts[1 - side]].note(number);
            self.turn_for_tcp(hosts[1 - side]);
        }
        self.settle(number as usize);
    }

    /// TCP has brought wrong bytes.
    pub fn handle_corruption(&mut self, number: u32) {
        let Some(talk) = self.talks.get(number as usize) else { return };
        let (conversation, position) = (talk.conversation as usize, talk.directions[0].read);
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
    pub(crate) fn nudge_peer(&mut self, number: usize, host: usize) {
        let Some(talk) = self.talks.get(number) else { return };
        let peer = talk.host(usize::from(host == talk.client as usize));
        self.ears[peer].note(number as u32);
        self.nudge(peer);
    }

    /// A host has something to look at that no event brings.
    pub(crate) fn nudge(&mut self, host: usize) {
        if !self.nudged.contains(&host) {
            self.nudged.push(host);
        }
    }

    /// One process. Returns the hosts at the other end of those connections that are on their way to a link.
    fn look(&mut self, host: usize) -> Vec<usize> {
        let now = self.cluster.now();
        let mut peers = Vec::new();
        for _ in 0..MAX_LOOKS {
            let wake = look(&self.endpoints[host], now);
            let mut heard = self.ears[host].take();
            self.take_due(host, now, &mut heard);
            for number in &heard {
                if !self.talks.contains(*number) {
                    continue;
                }
                match &mut self.desks[host] {
                    Some(desk) => desk.put(now, *number),
                    None => self.talk(*number, host, now),
                }
                peers.extend(self.unlinked_peer(*number, host));
                if self.promote {
                    self.note_linked(*number);
                }
            }
            self.send_helper(host, now);
            self.work(host, now);
            self.settle_all();
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
        let linked = |side: usize| talk.is_linked(&self.endpoints[talk.host(side)], side);
        let peer = talk.host(usize::from(host == talk.client as usize));
        (!linked(0) || !linked(1)).then_some(peer)
    }

    /// What is due on a host by now: connections are made, and those with something to do are added to `heard`.
    fn take_due(&mut self, host: usize, now: Instant, heard: &mut Vec<usize>) {
        while let Some(Reverse((_, due))) = self.alarms[host].peek().filter(|Reverse((at, _))| *at <= now) {
            let due = *due;
            self.alarms[host].pop();
            match due {
                Due::Talk(number) => {
                    heard.push(number);
                    if let Some(talk) = self.talks.get_mut(number) {
                        talk.alarm = None;
                    }
                }
                Due::Connection(conversation) => self.visit(conversation, now, heard),
            }
        }
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
        if talk.is_closing(side) {
            return self.go_on_closing(number, side, now);
        }
        if !connected || !at_once && !talk.is_linked(endpoint, side) {
            return self.close_if_over(number, side, now);
        }
        let conversation = talk.conversation as usize;
        let before = talk.directions[1 - side].read;
        if let Err(position) = talk.read(endpoint, side) {
            self.broken.get_or_insert(Broken { conversation, position });
            return;
        }
        self.read += talk.directions[1 - side].read - before;
        if side == 1 {
            let until = talk.answerable();
            talk.write(endpoint, 1, until);
            return self.close_if_over(number, side, now);
        }
        self.ask_and_hear(number, now);
        self.close_if_over(number, side, now);
    }

    /// A client takes its answers, and asks what it has to.
    fn ask_and_hear(&mut self, number: usize, now: Instant) {
        let Some(talk) = self.talks.get_mut(number) else { return };
        let was_over = talk.is_over();
        let mut answers = 0;
        while let Some(exchange) = talk.take_answered() {
            let Exchange { begun, request_bytes, response_bytes, .. } = exchange;
            answers += 1;
            self.measured[talk.conversation as usize].latencies_ns.push(ns(begun, now));
            if self.sampled {
                let conversation = talk.conversation;
                self.samples.push(Sample { conversation, begun, end: now, request_bytes, response_bytes });
            }
            talk.source.handle_answer(now);
        }
        self.answered += u64::from(answers);
        let host = talk.client as usize;
        talk.ask(now);
        talk.write(&self.endpoints[host], 0, talk.ends[0]);
        let ends = !was_over && talk.is_over();
        match &mut talk.short {
            Some(short) => short.answered += answers,
            None => self.open -= usize::from(ends),
        }
        if let Some(due) = talk.source.due().filter(|due| talk.alarm.is_none_or(|at| *due < at)) {
            talk.alarm = Some(due);
            self.alarms[host].push(Reverse((due, Due::Talk(number))));
        }
        self.ask_after_use(number, answers);
    }
}

/// Looks in a row at most, each because the one before has brought something. Arbitrary: bounds what must end by itself.
const MAX_LOOKS: u32 = 1000;
