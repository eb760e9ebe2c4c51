//! The state of a run: hosts, connections, and what is measured. `turns` drives it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use netacc_device::loopback::anchor::UsedWires;
use netacc_device::{DeviceError, Instant};
use netacc_driver::Endpoint;
use netacc_host::{Cluster, HostId, TcpWires, Usage};
use netacc_rnic::Counters;
use slab::Slab;

use crate::config::{RunConfig, Tcp};
use crate::connection::Connection;
use crate::host_threads::HostThreads;
use crate::measured::{Carried, Measured, Sample, ShortConnection};
use crate::process::{endpoint, Broken, ReadyStreams};
use crate::short_client::ShortClient;
use crate::workload::Conversation;

/// What a host is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// To look at a connection, by its number: its client has a request to make.
    Request(usize),
    /// To make a connection of a conversation.
    Connect(usize),
}

/// Processes on hosts, driven by whoever has the network. See [`Cluster::driven`].
pub struct Run {
    pub(crate) cluster: Cluster,
    pub(crate) endpoints: Vec<Endpoint>,
    /// The connections that there are, by number.
    pub(crate) connections: Slab<Connection>,
    /// Connections that ever were.
    pub(crate) connected: u64,
    /// By conversation: who makes short connections.
    pub(crate) short_clients: Vec<Option<ShortClient>>,
    /// Short connections whose TCP in memory was used.
    pub(crate) used: UsedWires,
    /// Connections that are to be promoted when it is their turn.
    pub(crate) unasked: VecDeque<usize>,
    /// Promotions that were asked for, and whose streams have not been on a link.
    pub(crate) promoting: usize,
    /// Hosts that have something to look at, brought by TCP in memory.
    pub(crate) nudged: Vec<usize>,
    /// Hosts that TCP was the last to come to: their deadlines may be others than the simulator knows.
    pub(crate) rewoken: Vec<u32>,
    /// By host; `None` where calls take no time.
    pub(crate) host_threads: Vec<Option<HostThreads>>,
    /// By host: when making links begins to take its processors' time.
    pub(crate) links_cost_from: Vec<Instant>,
    /// By host: peers' streams that were granted a link, as far as its helper thread was sent for them.
    pub(crate) granted: Vec<u64>,
    pub(crate) wires: TcpWires,
    pub(crate) promote: bool,
    pub(crate) promote_after: u32,
    pub(crate) tcp: Tcp,
    pub(crate) ready: Vec<Arc<ReadyStreams>>,
    pub(crate) wakes: Vec<Option<Instant>>,
    /// By host: when there is what to do.
    pub(crate) timers: Vec<BinaryHeap<Reverse<(Instant, Due)>>>,
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
    /// Short connections that were closed, and that nobody has taken yet.
    pub(crate) closed: Vec<ShortConnection>,
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
        let (mut endpoints, mut ready) = (Vec::new(), Vec::new());
        for host in 0..count {
            let streams = Arc::new(ReadyStreams::default());
            endpoints.push(endpoint(&cluster.open(HostId(host)), &config.stack, &streams)?);
            ready.push(streams);
        }
        let short_clients: Vec<_> = config.conversations.iter().map(ShortClient::new).collect();
        let hosts = config.hosts.len();
        let conversations = config.conversations.len();
        let mut run = Run {
            cluster,
            endpoints,
            connections: Slab::new(),
            connected: 0,
            short_clients,
            used: UsedWires::default(),
            unasked: VecDeque::new(),
            promoting: 0,
            nudged: Vec::new(),
            rewoken: Vec::new(),
            host_threads: config.hosts.iter().map(|h| h.processor.clone().map(HostThreads::new)).collect(),
            links_cost_from: config.hosts.iter().map(|h| h.commands_from).collect(),
            granted: vec![0; hosts],
            wires: TcpWires::default(),
            promote: config.promote,
            promote_after: config.stack.promote_after,
            tcp: config.tcp,
            ready,
            wakes: vec![None; hosts],
            timers: (0..hosts).map(|_| BinaryHeap::new()).collect(),
            read: 0,
            answered: 0,
            measured: vec![Measured::default(); conversations],
            carried: vec![Carried::default(); conversations],
            samples: Vec::new(),
            closed: Vec::new(),
            sampled: config.sampled,
            open: 0,
            broken: None,
        };
        for (host, threads) in run.host_threads.iter().enumerate() {
            if threads.as_ref().is_some_and(HostThreads::has_helper) {
                run.cluster.hold_events(HostId(host as u32));
            }
        }
        for (number, conversation) in config.conversations.iter().enumerate() {
            let over = match &run.short_clients[number] {
                Some(short_client) => short_client.is_over(),
                None => {
                    let connection = run.open(number, conversation, None);
                    run.connections[connection].is_over()
                }
            };
            run.open += usize::from(!over);
        }
        Ok(Some(run))
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

    /// What a host's processors were used for until now; `None` if calls take no time there.
    pub fn usage(&self, host: u32) -> Option<Usage> {
        let threads = self.host_threads.get(host as usize)?.as_ref()?;
        Some(threads.processors.usage(self.cluster.now()))
    }

    /// Connections use TCP before they are on a link.
    pub(crate) fn uses_tcp(&self) -> bool {
        self.tcp != Tcp::Memory || !self.promote
    }

    /// When a host wants to be called. What processes want for housekeeping ends with the last response.
    pub fn next_deadline(&self, host: u32) -> Option<Instant> {
        let wake = *self.wakes.get(host as usize)?;
        let wake = wake.filter(|_| self.open > 0);
        let threads = self.host_threads[host as usize].as_ref().and_then(|d| d.processors.next_deadline());
        wake.into_iter().chain(threads).chain(self.cluster.next_deadline(HostId(host))).min()
    }

    /// A host that must be served again though nothing came for it.
    pub fn take_dirty(&mut self) -> Option<u32> {
        self.cluster.take_dirty().map(|host| host.0).or_else(|| self.rewoken.pop())
    }

    /// What a host's NIC has counted.
    pub fn counters(&self, host: u32) -> Option<Counters> {
        ((host as usize) < self.endpoints.len()).then(|| self.cluster.counters(HostId(host)))
    }
}
