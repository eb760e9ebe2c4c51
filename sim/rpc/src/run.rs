//! A run: hosts, conversations, and what is measured.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire};
use netacc_device::{DeviceError, FourTuple, Instant};
use netacc_driver::{Endpoint, StreamCell};
use netacc_host::{Cluster, HostConfig, HostId};
use netacc_proto::Role;
use netacc_rnic::network::{Network, Station, Topology, TraceHash};
use netacc_rnic::{Counters, Packet};

use crate::process::{endpoint, is_linked, look, Broken, Direction, Ears};

/// A client that asks a server, again when it has the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Host of the client.
    pub client: u32,
    /// Host of the server.
    pub server: u32,
    /// Bytes of a request, at least 1.
    pub request_bytes: u32,
    /// Bytes of a response, at least 1.
    pub response_bytes: u32,
    /// How many requests.
    pub count: u32,
}

/// What runs.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The hosts.
    pub hosts: Vec<HostConfig>,
    /// The conversations.
    pub conversations: Vec<Conversation>,
    /// Streams on a link (`NACC_SOR_CONN_PER_QP`).
    pub streams_per_link: u16,
}

/// What a conversation has measured: from the first byte of a request until the last of its response was read.
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

struct Talk {
    conversation: Conversation,
    /// Client, then server.
    cells: [Arc<StreamCell>; 2],
    /// Requests, then responses.
    directions: [Direction; 2],
    begun: Instant,
    measured: Measured,
    _wire: AnchorWire,
}

/// Processes on hosts, driven by whoever has the network. See [`Cluster::driven`].
pub struct Run {
    cluster: Cluster,
    endpoints: Vec<Endpoint>,
    talks: Vec<Talk>,
    ears: Vec<Arc<Ears>>,
    wakes: Vec<Option<Instant>>,
    /// Conversations that are not complete.
    open: usize,
    broken: Option<Broken>,
}

impl Run {
    /// Hosts with nothing said yet. `None` if a conversation names a host that does not exist or has an empty request or
    /// response.
    ///
    /// # Errors
    /// When a device has no queues.
    pub fn new(config: &RunConfig) -> Result<Option<Run>, DeviceError> {
        let count = config.hosts.len() as u32;
        let sane = |c: &Conversation| {
            c.client.max(c.server) < count && c.client != c.server && c.request_bytes.min(c.response_bytes) > 0
        };
        if !config.conversations.iter().all(sane) {
            return Ok(None);
        }
        let cluster = Cluster::driven(config.hosts.clone());
        let (mut endpoints, mut ears) = (Vec::new(), Vec::new());
        for host in 0..count {
            let heard = Arc::new(Ears::default());
            endpoints.push(endpoint(&cluster.open(HostId(host)), config.streams_per_link, &heard)?);
            ears.push(heard);
        }
        let mut talks = Vec::new();
        for (number, conversation) in config.conversations.iter().enumerate() {
            talks.push(connect(&endpoints, *conversation, number));
        }
        let open = talks.iter().filter(|t| t.conversation.count > 0).count();
        let wakes = vec![None; config.hosts.len()];
        Ok(Some(Run { cluster, endpoints, ears, talks, wakes, open, broken: None }))
    }

    /// Has every client begin. Once, at the beginning of time.
    pub fn start(&mut self) {
        for talk in &self.talks {
            // Who cannot be promoted stays on its anchor, and is missed in the end.
            let _ = self.endpoints[talk.conversation.client as usize].promote(&talk.cells[0]);
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
            self.wakes[host] = look(&self.endpoints[host], now);
            let heard = self.ears[host].take();
            for number in &heard {
                self.talk(*number, host, now);
                peers.extend(self.unlinked_peer(*number, host));
            }
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
        let ends = [talk.conversation.client as usize, talk.conversation.server as usize];
        let linked = |side: usize| is_linked((&self.endpoints[ends[side]], &talk.cells[side]));
        (!linked(0) || !linked(1)).then_some(ends[usize::from(host == ends[0])])
    }

    /// One end of a conversation does what it can.
    fn talk(&mut self, number: usize, host: usize, now: Instant) {
        let Some(talk) = self.talks.get_mut(number) else { return };
        let Conversation { client, request_bytes, response_bytes, count, .. } = talk.conversation;
        let (request, response) = (u64::from(request_bytes), u64::from(response_bytes));
        let side = usize::from(host != client as usize);
        let at = (&self.endpoints[host], &talk.cells[side]);
        if !is_linked(at) {
            return;
        }
        let salt = number as u64 * 2;
        let read = talk.directions[1 - side].read(at, salt + 1 - side as u64);
        if let Err(position) = read {
            self.broken.get_or_insert(Broken { conversation: number, position });
            return;
        }
        let [requests, responses] = &mut talk.directions;
        if side == 1 {
            responses.write(at, salt + 1, requests.read / request * response);
            return;
        }
        let done = talk.measured.latencies_ns.len() as u64;
        if done < u64::from(count) && requests.written > done * request && responses.read == (done + 1) * response {
            talk.measured.latencies_ns.push((now - talk.begun).as_nanos() as u64);
            if done + 1 == u64::from(count) {
                self.open -= 1;
            }
        }
        let done = talk.measured.latencies_ns.len() as u64;
        if done < u64::from(count) {
            if requests.written == done * request {
                talk.begun = now;
            }
            requests.write(at, salt, (done + 1) * request);
        }
    }
}

/// Looks in a row at most, each because the one before has brought something. Arbitrary: bounds what must end by itself.
const MAX_LOOKS: u32 = 1000;

fn connect(endpoints: &[Endpoint], conversation: Conversation, number: usize) -> Talk {
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
        conversation,
        cells: [near, far],
        directions: [Direction::default(); 2],
        begun: Instant::ZERO,
        measured: Measured::default(),
        _wire: wire,
    }
}

/// One host of a run, as a station of the plain network.
struct Host {
    run: Rc<RefCell<Run>>,
    host: u32,
}

impl Station for Host {
    fn handle_packet(&mut self, now: Instant, packet: Packet) {
        self.run.borrow_mut().handle_packet(self.host, now, packet);
    }

    fn handle_timer(&mut self, now: Instant) {
        self.run.borrow_mut().handle_timer(self.host, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        self.run.borrow_mut().poll_transmit(self.host, now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.run.borrow().next_deadline(self.host)
    }
}

/// Runs to the end, or to `most`, on the plain network. `None` if the configuration makes no sense.
///
/// # Errors
/// A byte that was not the one written; or a device without queues, as a message.
pub fn run_plain(
    config: &RunConfig,
    topology: &Topology,
    seed: u64,
    most: Instant,
) -> Result<Option<Result<Outcome, Broken>>, DeviceError> {
    let Some(run) = Run::new(config)? else { return Ok(None) };
    let run = Rc::new(RefCell::new(run));
    let count = config.hosts.len();
    let hosts = (0..count as u32).map(|host| Host { run: run.clone(), host }).collect();
    let mut net = Network::new(topology, hosts, seed);
    run.borrow_mut().start();
    // A shell around a NIC in a simulator does the same: it serves its own node, then all that need it.
    let serve_dirty = |net: &mut Network<Host>| loop {
        let dirty = run.borrow_mut().take_dirty();
        match dirty {
            Some(host) => net.kick(host as usize),
            None => return,
        }
    };
    for host in 0..count {
        net.kick(host);
        serve_dirty(&mut net);
    }
    while net.next_event().is_some_and(|at| at <= most) {
        net.step();
        while net.take_touched().is_some() {}
        serve_dirty(&mut net);
    }
    let outcome = run.borrow().outcome();
    Ok(Some(outcome))
}
