//! The state of a run: hosts, connections, and measurements. `turns` drives it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use netacc_device::loopback::anchor::UsedWires;
use netacc_device::{DeviceError, Instant};
use netacc_driver::Endpoint;
use netacc_host::{ProcessorConfig, Usage};
use netacc_modelled::{Cluster, HostConfig, HostId, Interrupts, TcpWires};
use netacc_rnic::{Counters, Engines};
use slab::Slab;

use crate::config::{RunConfig, Tcp};
use crate::connection::Connection;
use crate::exchanges::VerbsExchanges;
use crate::flow::{Flow, Port};
use crate::host_threads::HostThreads;
use crate::measured::{Carried, Measured, Sample, ShortConnection};
use crate::process::{endpoint, Broken, Chunk, ReadyStreams};
use crate::short_client::ShortClient;
use crate::stages::TracedMessage;
use crate::workload::{Arrival, Conversation, Dependent, Received, Transport};

/// The reason for which a host is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A connection, by its number: its client has a request to make.
    Request(usize),
    /// To make a connection of a conversation.
    Connect(usize),
    /// A connection, by its number: an interrupt brings what TCP has for it.
    Interrupt(usize),
    /// A connection, by its number: the softirq has done its work, and the program learns of the bytes.
    Received(usize),
    /// The stack passes the next datagram that has arrived to its socket.
    DatagramIn,
    /// The stack passes the next datagram that leaves to the NIC.
    DatagramOut,
    /// A flow of datagrams: its client may send.
    Datagrams(usize),
    /// A flow of datagrams: those that were sent too long ago are lost.
    DatagramExpiry(usize),
    /// The conversation by verbs of this number: its client may post.
    Verbs(usize),
    /// The conversation by verbs of this number: a message is in memory on this side.
    Written(usize, usize),
}

/// The process of one host, and the times at which it has something to do.
pub(crate) struct HostState {
    /// `None` where calls take no time.
    pub(crate) threads: Option<HostThreads>,
    /// The one core is also the processor of the host's device.
    pub(crate) has_device_on_core: bool,
    /// Connections of the process that it has not closed.
    pub(crate) connections: u32,
    /// When making links begins to take the processors' time.
    pub(crate) links_cost_from: Instant,
    pub(crate) interrupts: Interrupts,
    /// The time of the latest interrupt, which may be to come.
    pub(crate) interrupted: Option<Instant>,
    /// Its datagrams.
    pub(crate) port: Port,
    /// Peers' streams that were granted a link, as far as the helper thread was sent for them.
    pub(crate) granted: u64,
    pub(crate) ready: Arc<ReadyStreams>,
    /// When the endpoint wants a turn by itself.
    pub(crate) endpoint_wake: Option<Instant>,
    pub(crate) timers: BinaryHeap<Reverse<(Instant, Due)>>,
}

impl HostState {
    fn new(of: &HostConfig, ready: Arc<ReadyStreams>) -> HostState {
        let has_one_core = of.processor.as_ref().is_some_and(|processor| processor.cores == 1);
        HostState {
            threads: of.processor.clone().map(HostThreads::new),
            has_device_on_core: has_one_core && of.nic.engines == Engines::Shared,
            connections: 0,
            links_cost_from: of.commands_from,
            interrupts: of.interrupts,
            interrupted: None,
            port: Port::default(),
            granted: 0,
            ready,
            // The first turn is for everything.
            endpoint_wake: Some(Instant::ZERO),

            timers: BinaryHeap::new(),
        }
    }
}

impl HostState {
    /// When its process has something to do by itself.
    pub(crate) fn wake(&self) -> Option<Instant> {
        Instant::earliest([self.endpoint_wake, self.timers.peek().map(|Reverse((at, _))| *at)])
    }

    /// When a thread of its process has done its work, or runs.
    pub(crate) fn thread_deadline(&self) -> Option<Instant> {
        self.threads.as_ref().and_then(|threads| threads.processors.next_deadline())
    }
}

/// The connections to promote, and the progress of each.
pub(crate) struct Promotions {
    /// Operations before a connection is promoted.
    pub(crate) after: u32,
    /// Connections that are to be promoted when it is their turn.
    pub(crate) unrequested: VecDeque<usize>,
    /// Promotions that were asked for, and whose streams have not been on a link.
    pub(crate) promoting: usize,
}

/// The measurements of a run.
pub(crate) struct Results {
    /// Bytes that processes have read.
    pub(crate) read: u64,
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// By conversation.
    pub(crate) measured: Vec<Measured>,
    /// By conversation: of connections that are closed.
    pub(crate) carried: Vec<Carried>,
    /// Each request is kept in `samples`, and each short connection in `closed`.
    pub(crate) sampled: bool,
    /// Requests that the caller has not taken yet.
    pub(crate) samples: Vec<Sample>,
    /// Each message is kept in `messages`.
    pub(crate) traced: bool,
    /// Messages that were read, and that the caller has not taken yet.
    pub(crate) messages: Vec<TracedMessage>,
    /// Short connections that were closed, and that the caller has not taken yet.
    pub(crate) closed: Vec<ShortConnection>,
}

impl Results {
    fn new(config: &RunConfig) -> Results {
        let conversations = config.conversations.len();
        Results {
            read: 0,
            answered: 0,
            measured: vec![Measured::default(); conversations],
            carried: vec![Carried::default(); conversations],
            sampled: config.sampled,
            traced: config.traced,
            messages: Vec::new(),
            samples: Vec::new(),
            closed: Vec::new(),
        }
    }
}

/// Processes on hosts, driven by the owner of the network. See [`Cluster::driven`].
pub struct Run {
    pub(crate) cluster: Cluster,
    pub(crate) endpoints: Vec<Endpoint>,
    /// The connections that there are, by number.
    pub(crate) connections: Slab<Connection>,
    /// Connections that ever were.
    pub(crate) connected: u64,
    /// By conversation: the client that makes short connections. Boxed, as most conversations have none.
    pub(crate) short_clients: Vec<Option<Box<ShortClient>>>,
    /// By conversation: that of one by datagrams. Boxed for the same reason.
    pub(crate) flows: Vec<Option<Box<Flow>>>,
    /// Those by verbs.
    pub(crate) exchanges: VerbsExchanges,
    /// Short connections whose TCP in memory was used.
    pub(crate) used: UsedWires,
    pub(crate) promotions: Promotions,
    /// Hosts for which TCP in memory has brought something.
    pub(crate) nudged: Vec<usize>,
    /// Hosts that TCP was the last to come to: the simulator may have earlier deadlines of them.
    pub(crate) rewoken: Vec<u32>,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) wires: TcpWires,
    pub(crate) tcp: Tcp,
    pub(crate) results: Results,
    pub(crate) chunk: Chunk,
    /// Requests that wait for others: the number of the connection, and that of the request on it.
    pub(crate) dependents: BTreeMap<Received, Vec<(usize, usize)>>,
    /// Conversations that are not complete.
    pub(crate) open: usize,
    pub(crate) broken: Option<Broken>,
}

/// Whether all conversations make sense, and name hosts and conversations that there are.
fn is_sane(config: &RunConfig) -> bool {
    let (hosts, conversations) = (config.hosts.len() as u32, config.conversations.len() as u32);
    let known = |d: &Dependent| d.after.iter().all(|received| received.conversation < conversations);
    config.conversations.iter().all(|c| {
        let depends_on_known = !matches!(&c.arrival, Arrival::After(all) if !all.iter().all(known));
        c.client.max(c.server) < hosts && c.client != c.server && c.is_sane() && depends_on_known
    })
}

impl Run {
    /// Hosts before their first request. `None` if a conversation names a host that does not exist, or itself, or has a plan that
    /// makes no sense.
    ///
    /// # Errors
    /// When a device has no queues.
    pub fn new(config: &RunConfig) -> Result<Option<Run>, DeviceError> {
        if !is_sane(config) {
            return Ok(None);
        }
        let cluster = Cluster::driven(config.hosts.clone());
        let (mut endpoints, mut hosts) = (Vec::new(), Vec::new());
        for (host, of) in config.hosts.iter().enumerate() {
            let ready = Arc::new(ReadyStreams::default());
            let endpoint = endpoint(&cluster.open(HostId(host as u32)), &config.stack, &ready)?;
            endpoint.set_traced(config.traced);
            endpoints.push(endpoint);
            hosts.push(HostState::new(of, ready));
        }
        let short_clients: Vec<_> =
            config.conversations.iter().map(|plan| ShortClient::new(plan).map(Box::new)).collect();
        let limit = |host: u32| {
            let processor = config.hosts[host as usize].processor.as_ref();
            processor.map_or(ProcessorConfig::free().datagram_queue, |processor| processor.datagram_queue)
        };
        let flow = |plan: &Conversation| Flow::new(plan, [plan.client, plan.server].map(limit));
        let flows: Vec<_> = config.conversations.iter().map(|plan| flow(plan).map(Box::new)).collect();
        let mut run = Run {
            cluster,
            endpoints,
            connections: Slab::with_capacity(config.conversations.len()),
            connected: 0,
            short_clients,
            flows,
            exchanges: VerbsExchanges::default(),
            used: UsedWires::default(),
            promotions: Promotions { after: config.stack.promote_after, unrequested: VecDeque::new(), promoting: 0 },
            nudged: Vec::new(),
            rewoken: Vec::new(),
            hosts,
            wires: TcpWires::default(),
            tcp: config.tcp,
            results: Results::new(config),
            chunk: Chunk::new(),
            dependents: BTreeMap::new(),
            open: 0,
            broken: None,
        };
        for (host, state) in run.hosts.iter().enumerate() {
            if state.threads.as_ref().is_some_and(HostThreads::has_helper) {
                run.cluster.defer_events(HostId(host as u32));
            }
        }
        for (number, conversation) in config.conversations.iter().enumerate() {
            let over = match (&run.short_clients[number], &run.flows[number], conversation.transport) {
                (Some(short_client), ..) => short_client.is_over(),
                (None, Some(flow), _) => !flow.is_open(),
                (None, None, Transport::Verbs { verb, answered }) => {
                    let Some(is_open) = run.join(number, conversation, config, (verb, answered)) else {
                        return Ok(None);
                    };
                    !is_open
                }
                (None, None, _) => {
                    let number = run.open(number, conversation, None);
                    run.add_dependents(number, &conversation.arrival);
                    let connection = &mut run.connections[number];
                    connection.is_open = !connection.is_over();
                    !connection.is_open
                }
            };
            run.open += usize::from(!over);
        }
        Ok(Some(run))
    }

    fn add_dependents(&mut self, number: usize, arrival: &Arrival) {
        let Arrival::After(all) = arrival else { return };
        for (request, dependent) in all.iter().enumerate() {
            for received in &dependent.after {
                self.dependents.entry(*received).or_default().push((number, request));
            }
        }
    }

    /// The connections' TCP, for the simulator that carries it. After each delivery the simulator calls
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

    /// How a host's processors were used until now; `None` if calls take no time there.
    pub fn usage(&self, host: u32) -> Option<Usage> {
        let threads = self.hosts.get(host as usize)?.threads.as_ref()?;
        Some(threads.usage(self.cluster.now()))
    }

    /// A connection uses TCP, before it is on a link or for good.
    pub(crate) fn uses_tcp(&self, connection: &Connection) -> bool {
        self.tcp != Tcp::Memory || !connection.promoted
    }

    /// When a host wants to be called. Deadlines for housekeeping end with the last response.
    pub fn next_deadline(&self, host: u32) -> Option<Instant> {
        let state = self.hosts.get(host as usize)?;
        let wake = state.wake().filter(|_| self.open > 0);
        Instant::earliest([wake, state.thread_deadline(), self.cluster.next_deadline(HostId(host))])
    }

    /// A host that must be served again though nothing came for it.
    pub fn take_dirty(&mut self) -> Option<u32> {
        self.cluster.take_dirty().map(|host| host.0).or_else(|| self.rewoken.pop())
    }

    /// The counters of a host's NIC.
    pub fn counters(&self, host: u32) -> Option<Counters> {
        ((host as usize) < self.endpoints.len()).then(|| self.cluster.counters(HostId(host)))
    }
}
