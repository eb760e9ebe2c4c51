//! All NICs of a simulation, and the flows between them.

use std::time::Duration;

use netacc_device::Instant;
use netacc_harness::{ProgramTcp, ProgramUdp};
use netacc_modelled::{Cluster, HostConfig, HostId};
use netacc_rnic::flows::{Flow, FlowStation, Outcome};
use netacc_rnic::network::{LinkConfig, Marking, Network, Station, SwitchConfig, Topology, TraceHash};
use netacc_rnic::{Body, Hop, NodeId, Packet, Telemetry};
use netacc_rpc::{run_plain, Broken, Conversation, Run, RunConfig, StackConfig, Tcp};

use crate::ffi::{
    ConversationResult, ConversationSpec, FlowResult, FlowSpec, FlowState, Frame, NicCounters, NicParameters,
    ReferenceNetwork, RunSummary, StackSpec, UdpDatagram,
};
use crate::parameters::{nic_config, ParameterError};

/// The shortest ring of a stream. Arbitrary: the core's messages about itself fit in.
const MIN_RING_BYTES: u32 = 4096;

/// The NICs of a simulation. See the crate's documentation.
pub struct Fleet(Workload);

/// The load of the NICs.
enum Workload {
    /// Messages.
    Flows { stations: Vec<FlowStation>, flows: usize, trace: TraceHash },
    /// Conversations of the production core.
    Rpc(Box<Run>),
    /// Programs of socket operations: the harness runs the hosts' processes.
    Hosts(Cluster, Carried),
}

/// What the simulator carries between the kernels of hosts whose processes the harness runs.
pub(crate) enum Carried {
    Nothing,
    /// Their TCP connections.
    Tcp(ProgramTcp),
    /// Their datagrams.
    Datagrams(ProgramUdp),
}

/// An error in a simulation, or in its description.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FleetError {
    /// Zero where something is needed.
    Zero(&'static str),
    /// A parameter of the NICs has no value, or one that is not permitted.
    Parameters(ParameterError),
    /// A ring that is too short, or not a power of two.
    Ring,
    /// A flow names a node that does not exist, or there are too many.
    Flows,
    /// A conversation names a host that does not exist, or has no bytes.
    Conversations,
    /// A direct link joins two nodes.
    NotTwo,
    /// The hosts' devices have no queues.
    Device(String),
    /// A byte of a conversation was not the one written.
    Broken(Broken),
}

impl From<ParameterError> for FleetError {
    fn from(error: ParameterError) -> FleetError {
        FleetError::Parameters(error)
    }
}

impl std::fmt::Display for FleetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FleetError::Zero(what) => write!(f, "{what} must not be 0"),
            FleetError::Ring => write!(f, "a ring has a power of two of bytes, at least {MIN_RING_BYTES}"),
            FleetError::Parameters(error) => write!(f, "{error}"),
            FleetError::Flows => f.write_str("a flow names a node that does not exist, or there are too many flows"),
            FleetError::Conversations => f.write_str(
                "a conversation names a host that does not exist, or itself, or has an empty request or response",
            ),
            FleetError::Device(what) => write!(f, "a host cannot be made: {what}"),
            FleetError::Broken(Broken { conversation, position }) => {
                write!(f, "conversation {conversation}: the byte at {position} is not the one written")
            }
            FleetError::NotTwo => f.write_str("a direct link joins two nodes"),
        }
    }
}

pub(crate) fn new_fleet(nodes: u32, parameters: &NicParameters, flows: &[FlowSpec]) -> Result<Box<Fleet>, FleetError> {
    let stations = stations(nodes, parameters, flows)?;
    Ok(Box::new(Fleet(Workload::Flows { stations, flows: flows.len(), trace: TraceHash::default() })))
}

pub(crate) fn new_rpc_fleet(
    nodes: u32,
    parameters: &NicParameters,
    conversations: &[ConversationSpec],
    stack: StackSpec,
) -> Result<Box<Fleet>, FleetError> {
    let config = run_config(nodes, parameters, conversations, stack)?;
    let run = Run::new(&config).map_err(|e| FleetError::Device(e.to_string()))?;
    Ok(Box::new(Fleet(Workload::Rpc(Box::new(run.ok_or(FleetError::Conversations)?)))))
}

fn run_config(
    nodes: u32,
    parameters: &NicParameters,
    conversations: &[ConversationSpec],
    stack: StackSpec,
) -> Result<RunConfig, FleetError> {
    let mut host = HostConfig::roce(nic_config(parameters)?);
    // Only the machine limits memory here.
    host.memory_limit_bytes = usize::MAX;
    let StackSpec { streams_per_link, ring_bytes, promote, tcp_buffer_bytes } = stack;
    if !ring_bytes.is_power_of_two() || ring_bytes < MIN_RING_BYTES {
        return Err(FleetError::Ring);
    }
    let tcp = match usize::try_from(tcp_buffer_bytes) {
        Ok(0) | Err(_) => Tcp::Memory,
        Ok(buffer_bytes) => Tcp::Simulated { buffer_bytes },
    };
    let conversation =
        |c: &ConversationSpec| Conversation::closed(c.client, c.server, c.request_bytes, c.response_bytes, c.count);
    let promoted = |plan| Conversation { promoted: promote, ..plan };
    let conversations = conversations.iter().map(|c| conversation(c).map(promoted)).collect::<Option<_>>();
    let conversations = conversations.ok_or(FleetError::Conversations)?;
    let stack = StackConfig { ring_bytes, message_bytes: ring_bytes / 4, streams_per_link, ..StackConfig::default() };
    Ok(RunConfig { hosts: vec![host; nodes as usize], conversations, stack, tcp, sampled: false, traced: false })
}

fn stations(nodes: u32, parameters: &NicParameters, flows: &[FlowSpec]) -> Result<Vec<FlowStation>, FleetError> {
    let config = nic_config(parameters)?;
    let flow = |f: &FlowSpec| Flow { src: f.src, dst: f.dst, bytes: f.bytes, start: Instant::from_nanos(f.start_ns) };
    let flows: Vec<Flow> = flows.iter().map(flow).collect();
    FlowStation::build(nodes, &config, &flows).ok_or(FleetError::Flows)
}

impl Fleet {
    /// Hosts with the production core and their conversations.
    pub(crate) fn of_run(run: Run) -> Fleet {
        Fleet(Workload::Rpc(Box::new(run)))
    }

    pub(crate) fn run(&self) -> Option<&Run> {
        match &self.0 {
            Workload::Rpc(run) => Some(run),
            Workload::Flows { .. } | Workload::Hosts(..) => None,
        }
    }

    pub(crate) fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.0 {
            Workload::Rpc(run) => Some(run),
            Workload::Flows { .. } | Workload::Hosts(..) => None,
        }
    }

    /// Hosts whose processes the caller runs.
    pub(crate) fn of_hosts(cluster: Option<Cluster>, carried: Carried) -> Fleet {
        Fleet(Workload::Hosts(cluster.unwrap_or_else(|| Cluster::driven(Vec::new())), carried))
    }

    /// The TCP of hosts whose processes the caller runs.
    pub(crate) fn program_tcp(&self) -> Option<&ProgramTcp> {
        match &self.0 {
            Workload::Hosts(_, Carried::Tcp(tcp)) => Some(tcp),
            Workload::Hosts(..) | Workload::Flows { .. } | Workload::Rpc(_) => None,
        }
    }

    fn program_udp(&self) -> Option<&ProgramUdp> {
        match &self.0 {
            Workload::Hosts(_, Carried::Datagrams(udp)) => Some(udp),
            Workload::Hosts(..) | Workload::Flows { .. } | Workload::Rpc(_) => None,
        }
    }

    pub(crate) fn next_datagram(&mut self) -> UdpDatagram {
        let next = self.program_udp().and_then(ProgramUdp::next_packet);
        let none = UdpDatagram { number: u64::MAX, from: 0, to: 0, bytes: 0 };
        next.map_or(none, |packet| UdpDatagram {
            number: packet.number,
            from: packet.from as u32,
            to: packet.to as u32,
            bytes: packet.len as u32,
        })
    }

    pub(crate) fn handle_datagram(&mut self, number: u64) {
        if let Some(udp) = self.program_udp() {
            udp.handle_arrival(number);
        }
    }

    pub(crate) fn start(&mut self) {
        if let Workload::Rpc(run) = &mut self.0 {
            run.start();
        }
    }

    pub(crate) fn next_dirty(&mut self) -> u32 {
        match &mut self.0 {
            Workload::Flows { .. } => u32::MAX,
            Workload::Rpc(run) => run.take_dirty().unwrap_or(u32::MAX),
            Workload::Hosts(cluster, _) => cluster.take_dirty().map_or(u32::MAX, |host| host.0),
        }
    }

    pub(crate) fn handle_packet(&mut self, node: u32, now_ns: u64, frame: &Frame) {
        let Some(packet) = Packet::from_words(&frame.words) else { return };
        let hops = frame.hops.iter().take(frame.hop_count.into()).copied().map(Hop);
        let telemetry = frame.telemetry.then(|| Telemetry::of(hops));
        let packet = Packet { congestion: frame.congestion, wire_bytes: frame.wire_bytes, telemetry, ..packet };
        let now = Instant::from_nanos(now_ns);
        match &mut self.0 {
            Workload::Flows { stations, trace, .. } => {
                trace.record(now, &packet);
                if let Some(station) = stations.get_mut(node as usize) {
                    station.handle_packet(now, packet);
                }
            }
            Workload::Rpc(run) => run.handle_packet(node, now, packet),
            Workload::Hosts(cluster, _) if known(cluster, node) => {
                cluster.handle_packet(HostId(node), now, packet);
            }
            Workload::Hosts(..) => {}
        }
    }

    pub(crate) fn handle_timer(&mut self, node: u32, now_ns: u64) {
        let now = Instant::from_nanos(now_ns);
        match &mut self.0 {
            Workload::Flows { stations, .. } => {
                if let Some(station) = stations.get_mut(node as usize) {
                    station.handle_timer(now);
                }
            }
            Workload::Rpc(run) => run.handle_timer(node, now),
            Workload::Hosts(cluster, _) if known(cluster, node) => {
                cluster.handle_timer(HostId(node), now);
            }
            Workload::Hosts(..) => {}
        }
    }

    pub(crate) fn poll_transmit(&mut self, node: u32, now_ns: u64, frame: &mut Frame) -> bool {
        let now = Instant::from_nanos(now_ns);
        let packet = match &mut self.0 {
            Workload::Flows { stations, .. } => stations.get_mut(node as usize).and_then(|s| s.poll_transmit(now)),
            Workload::Rpc(run) => run.poll_transmit(node, now),
            Workload::Hosts(cluster, _) if known(cluster, node) => cluster.poll_transmit(HostId(node), now),
            Workload::Hosts(..) => None,
        };
        let Some(packet) = packet else { return false };
        let Packet { src: NodeId(src), dst: NodeId(dst), src_qp, wire_bytes, congestion, telemetry, body, .. } = packet;
        let data = matches!(body, Body::Data { .. });
        let words = packet.to_words();
        *frame = Frame { words, src, dst, flow: src_qp.0, wire_bytes, data, congestion, ..Frame::default() };
        if let Some(telemetry) = telemetry {
            frame.telemetry = true;
            frame.hop_count = telemetry.hops().len() as u8;
            frame.hops.iter_mut().zip(telemetry.hops()).for_each(|(to, hop)| *to = hop.0);
        }
        true
    }

    pub(crate) fn next_deadline(&self, node: u32) -> u64 {
        let deadline = match &self.0 {
            Workload::Flows { stations, .. } => stations.get(node as usize).and_then(Station::next_deadline),
            Workload::Rpc(run) => run.next_deadline(node),
            Workload::Hosts(cluster, _) if known(cluster, node) => cluster.next_deadline(HostId(node)),
            Workload::Hosts(..) => None,
        };
        deadline.map_or(u64::MAX, Instant::as_nanos)
    }

    fn trace(&self) -> TraceHash {
        match &self.0 {
            Workload::Flows { trace, .. } => trace.clone(),
            Workload::Rpc(run) => run.trace(),
            Workload::Hosts(cluster, _) => cluster.trace(),
        }
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace().value()
    }

    pub(crate) fn deliveries(&self) -> u64 {
        self.trace().deliveries()
    }

    pub(crate) fn result(&self, flow: u32) -> FlowResult {
        let open = FlowResult { state: FlowState::Open, end_ns: 0 };
        let Workload::Flows { stations, flows, .. } = &self.0 else { return open };
        if flow as usize >= *flows {
            return open;
        }
        // A delivered message counts, even if its acknowledgement has not arrived.
        let of_flow = stations.iter().flat_map(FlowStation::outcomes).filter(|(number, _)| *number == flow);
        let end = |(_, outcome): &(u32, Outcome)| match *outcome {
            Outcome::Delivered(at) => FlowResult { state: FlowState::Delivered, end_ns: at.as_nanos() },
            Outcome::Failed(at) => FlowResult { state: FlowState::Failed, end_ns: at.as_nanos() },
        };
        let results: Vec<FlowResult> = of_flow.map(end).collect();
        let delivered = results.iter().position(|r| r.state == FlowState::Delivered);
        results.into_iter().nth(delivered.unwrap_or(0)).unwrap_or(open)
    }

    pub(crate) fn conversation(&self, number: u32) -> Result<ConversationResult, FleetError> {
        let none = ConversationResult { answered: 0, min_ns: 0, median_ns: 0, max_ns: 0 };
        let Workload::Rpc(run) = &self.0 else { return Ok(none) };
        let Some(measured) = run.measured(number as usize).map_err(FleetError::Broken)? else { return Ok(none) };
        let mut sorted = measured.latencies_ns.clone();
        sorted.sort_unstable();
        let Some((min_ns, max_ns)) = sorted.first().copied().zip(sorted.last().copied()) else { return Ok(none) };
        Ok(ConversationResult { answered: sorted.len() as u32, min_ns, median_ns: sorted[sorted.len() / 2], max_ns })
    }

    pub(crate) fn counters(&self, node: u32) -> NicCounters {
        let c = match &self.0 {
            Workload::Flows { stations, .. } => stations.get(node as usize).map(|s| s.nic().counters()),
            Workload::Rpc(run) => run.counters(node),
            Workload::Hosts(cluster, _) => known(cluster, node).then(|| cluster.counters(HostId(node))),
        };
        let c = c.unwrap_or_default();
        NicCounters {
            data_sent: c.data_sent,
            data_repeated: c.data_repeated,
            data_delivered: c.data_delivered,
            timeouts: c.timeouts,
            notifications_sent: c.notifications_sent,
            context_misses: c.context_misses,
            failed: c.failed,
        }
    }
}

/// A hop of telemetry, as the simulator's switches add it.
pub(crate) fn hop(now_ns: u64, sent_ns: u64, queue_ns: u64) -> u64 {
    Hop::new(Instant::from_nanos(now_ns), sent_ns, queue_ns).0
}

fn known(cluster: &Cluster, node: u32) -> bool {
    (node as usize) < cluster.len()
}

pub(crate) fn reference_rpc_run(
    network: &ReferenceNetwork,
    nodes: u32,
    parameters: &NicParameters,
    conversations: &[ConversationSpec],
    stack: StackSpec,
) -> Result<RunSummary, FleetError> {
    let config = run_config(nodes, parameters, conversations, stack)?;
    let most = Instant::from_nanos(10_000_000_000);
    let outcome = run_plain(&config, &topology(network, nodes)?, network.seed, most);
    let outcome = outcome.map_err(|e| FleetError::Device(e.to_string()))?.ok_or(FleetError::Conversations)?;
    let outcome = outcome.map_err(FleetError::Broken)?;
    Ok(RunSummary {
        trace_hash: outcome.trace.value(),
        deliveries: outcome.trace.deliveries(),
        // A run of conversations does not count it.
        dropped: 0,
        marked: 0,
        last_ns: outcome.end.as_nanos(),
    })
}

fn topology(network: &ReferenceNetwork, nodes: u32) -> Result<Topology, FleetError> {
    if network.rate_bps == 0 {
        return Err(FleetError::Zero("rate_bps"));
    }
    let mut link = LinkConfig::clean(network.rate_bps, Duration::from_nanos(network.delay_ns));
    link.loss_ppm = network.loss_ppm;
    let marking = network.mark.then_some(Marking {
        min_bytes: network.mark_min_bytes,
        max_bytes: network.mark_max_bytes,
        max_ppm: network.mark_max_ppm,
    });
    match network.star {
        true => Ok(Topology::Star(link, SwitchConfig { buffer_bytes: network.buffer_bytes, marking })),
        false if nodes != 2 => Err(FleetError::NotTwo),
        false => Ok(Topology::Direct(link)),
    }
}

pub(crate) fn reference_run(
    network: &ReferenceNetwork,
    nodes: u32,
    parameters: &NicParameters,
    flows: &[FlowSpec],
) -> Result<RunSummary, FleetError> {
    let stations = stations(nodes, parameters, flows)?;
    let topology = topology(network, nodes)?;
    let mut net = Network::new(&topology, stations, network.seed);
    (0..nodes as usize).for_each(|node| net.kick(node));
    let mut last = Instant::ZERO;
    loop {
        let before = net.trace().deliveries();
        if !net.step() {
            break;
        }
        if net.trace().deliveries() != before {
            last = net.now();
        }
    }
    let (dropped, marked) = net.switch_counts();
    let trace = net.trace();
    let (trace_hash, deliveries) = (trace.value(), trace.deliveries());
    Ok(RunSummary { trace_hash, deliveries, dropped, marked, last_ns: last.as_nanos() })
}
