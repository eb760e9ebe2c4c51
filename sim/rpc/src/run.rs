//! A run: hosts, conversations, and what is measured.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire};
use netacc_device::{DeviceError, FourTuple, Instant};
use netacc_driver::{Endpoint, StreamCell};
use netacc_host::{Cluster, HostConfig, HostId};
use netacc_proto::Role;
use netacc_rnic::network::TraceHash;
use netacc_rnic::{Counters, Packet};

use crate::process::{endpoint, is_linked, look, Broken, Direction, Ears, StackConfig};
use crate::workload::{Conversation, Source};

/// What runs.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The hosts.
    pub hosts: Vec<HostConfig>,
    /// The conversations.
    pub conversations: Vec<Conversation>,
    /// How the core is set up.
    pub stack: StackConfig,
    /// Whether [`Run::take_samples`] is to have something.
    pub sampled: bool,
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
}

/// A request that was made and not answered.
struct Exchange {
    begun: Instant,
    request_bytes: u32,
    response_bytes: u32,
    /// Where it ends among the requests' bytes.
    request_end: u64,
    /// Where its response ends among the responses' bytes.
    response_end: u64,
}

struct Talk {
    client: u32,
    server: u32,
    source: Source,
    /// Client, then server.
    cells: [Arc<StreamCell>; 2],
    /// Requests, then responses.
    directions: [Direction; 2],
    /// In the order in which they were made.
    asked: VecDeque<Exchange>,
    /// Of those at the front of `asked`, how many the server has read.
    served: usize,
    /// Bytes of all requests, and of all responses to them.
    ends: [u64; 2],
    /// When its host will be woken for the next request.
    alarm: Option<Instant>,
    measured: Measured,
    _wire: AnchorWire,
}

impl Talk {
    /// Nothing is unanswered, and nothing more will be asked.
    fn is_over(&self) -> bool {
        self.asked.is_empty() && self.source.due().is_none()
    }

    /// Makes the requests that are due.
    fn ask(&mut self, now: Instant) {
        while let Some(request) = self.source.take(now) {
            self.ends[0] += u64::from(request.request_bytes);
            self.ends[1] += u64::from(request.response_bytes);
            self.asked.push_back(Exchange {
                begun: request.begun,
                request_bytes: request.request_bytes,
                response_bytes: request.response_bytes,
                request_end: self.ends[0],
                response_end: self.ends[1],
            });
        }
    }

    /// Where the response ends to the last request that the server has all of.
    fn answerable(&mut self) -> u64 {
        let read = self.directions[0].read;
        self.served += self.asked.iter().skip(self.served).take_while(|e| e.request_end <= read).count();
        match self.served.checked_sub(1) {
            Some(last) => self.asked[last].response_end,
            None => self.directions[1].written,
        }
    }

    /// The oldest request, if all of its response was read.
    fn take_answered(&mut self) -> Option<Exchange> {
        let read = self.directions[1].read;
        self.asked.front().filter(|e| e.response_end <= read)?;
        self.served -= 1;
        self.asked.pop_front()
    }
}

/// Processes on hosts, driven by whoever has the network. See [`Cluster::driven`].
pub struct Run {
    cluster: Cluster,
    endpoints: Vec<Endpoint>,
    talks: Vec<Talk>,
    ears: Vec<Arc<Ears>>,
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
        for (number, conversation) in config.conversations.iter().enumerate() {
            talks.push(connect(&endpoints, conversation, number));
        }
        let open = talks.iter().filter(|t| !t.is_over()).count();
        let hosts = config.hosts.len();
        Ok(Some(Run {
            cluster,
            endpoints,
            talks,
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
        for talk in &self.talks {
            // Who cannot be promoted stays on its anchor, and is missed in the end.
            let _ = self.endpoints[talk.client as usize].promote(&talk.cells[0]);
        }
        (0..self.endpoints.len()).for_each(|host| self.turn(host));
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
        wake.into_iter().chain(self.cluster.next_deadline(HostId(host))).min()
    }

    /// A host that must be served again though nothing came for it.
    pub fn take_dirty(&mut self) -> Option<u32> {
        self.cluster.take_dirty().map(|host| host.0)
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

    /// Connections that are on a link, at both ends.
    pub fn linked(&self) -> usize {
        let linked = |talk: &&Talk| {
            let ends = [talk.client as usize, talk.server as usize];
            (0..2).all(|side| is_linked((&self.endpoints[ends[side]], &talk.cells[side])))
        };
        self.talks.iter().filter(linked).count()
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
                self.talk(*number, host, now);
                peers.extend(self.unlinked_peer(*number, host));
            }
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
        let talk = self.talks.get(number)?;
        let ends = [talk.client as usize, talk.server as usize];
        let linked = |side: usize| is_linked((&self.endpoints[ends[side]], &talk.cells[side]));
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
    fn talk(&mut self, number: usize, host: usize, now: Instant) {
        let Some(talk) = self.talks.get_mut(number) else { return };
        let side = usize::from(host != talk.client as usize);
        let cell = talk.cells[side].clone();
        let at = (&self.endpoints[host], &cell);
        if !is_linked(at) {
            return;
        }
        let salt = number as u64 * 2;
        let before = talk.directions[1 - side].read;
        if let Err(position) = talk.directions[1 - side].read(at, salt + 1 - side as u64) {
            self.broken.get_or_insert(Broken { conversation: number, position });
            return;
        }
        self.read += talk.directions[1 - side].read - before;
        if side == 1 {
            let until = talk.answerable();
            talk.directions[1].write(at, salt + 1, until);
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
        talk.directions[0].write(at, salt, talk.ends[0]);
        if !was_over && talk.is_over() {
            self.open -= 1;
        }
        if let Some(due) = talk.source.due().filter(|due| talk.alarm.is_none_or(|at| *due < at)) {
            talk.alarm = Some(due);
            self.alarms[host].push(Reverse((due, number)));
        }
    }
}

/// Looks in a row at most, each because the one before has brought something. Arbitrary: bounds what must end by itself.
const MAX_LOOKS: u32 = 1000;

fn connect(endpoints: &[Endpoint], conversation: &Conversation, number: usize) -> Talk {
    // Any addresses will do that no two connections share.
    let port =
        |base: u32| SocketAddr::from(([10, (number >> 16) as u8, (number >> 8) as u8, number as u8], base as u16));
    let tuple = FourTuple { local: port(40_000), remote: port(6_379) };
    let (near, far, wire) = anchor_pair(AnchorConfig::default());
    let server = &endpoints[conversation.server as usize];
    let far = server.adopt(Role::Acceptor, tuple.reversed(), Box::new(far));
    server.publish(&far);
    let near = endpoints[conversation.client as usize].adopt(Role::Opener, tuple, Box::new(near));
    [&near, &far].iter().for_each(|cell| cell.tag().store(number as u32, std::sync::atomic::Ordering::Relaxed));
    Talk {
        client: conversation.client,
        server: conversation.server,
        source: Source::new(conversation.clone()),
        cells: [near, far],
        directions: [Direction::default(); 2],
        asked: VecDeque::new(),
        served: 0,
        ends: [0; 2],
        alarm: None,
        measured: Measured::default(),
        _wire: wire,
    }
}
