//! The boundary between modelled NICs and a network simulator that owns events and time.
//!
//! The simulator is in charge: it calls in with the time, and nothing calls back, but for programs of socket operations
//! (`program`), which run between its events and ask for one at a time. After each call on a node it asks
//! [`Fleet::poll_transmit`] if the node's port is free, and [`Fleet::next_deadline`] for when to call
//! [`Fleet::handle_timer`]; then [`Fleet::next_dirty`] names other nodes to be served likewise. The NICs carry either plain
//! messages or conversations of the production core; [`reference_run`] and [`reference_rpc_run`] are the same on the
//! network of `netacc_rnic`, to compare with.
//!
//! # Invariants
//! * Nodes are numbered from 0; calls on others do nothing.
//! * Times are nanoseconds of the simulator's clock and never go back.
//! * A frame's `words` mean nothing to the simulator; it may set `congestion` and the hops, and nothing else.
//!
//! This crate does not use or link ns-3: `models/ns3`, under ns-3's licence, links this.

#![expect(unsafe_code, reason = "the shims that cxx generates")]
#![expect(unreachable_pub, reason = "cxx declares public what the two languages share")]

mod datagrams;
mod fleet;
mod parameters;
mod program;
mod scenario;
mod tcp;

use datagrams::{is_datagram_run, new_datagram_run, DatagramRun};
pub use fleet::Fleet;
use fleet::{hop, new_fleet, new_rpc_fleet, reference_rpc_run, reference_run};
use parameters::{nic_attributes, switch_attributes};
use program::{new_program_run, ProgramRun};
use scenario::{new_recording, read_scenario};
pub use scenario::{Recording, Scenario};

/// Types and functions that both languages share.
#[cxx::bridge(namespace = "netacc")]
mod ffi {
    /// A packet.
    #[derive(Clone, Copy, Default)]
    struct Frame {
        /// The NICs' business.
        words: [u64; 9],
        /// Node that sent it.
        src: u32,
        /// Node it is for.
        dst: u32,
        /// The same for all packets of a flow, to spread flows over paths.
        flow: u32,
        /// All of the frame, as it occupies a link.
        wire_bytes: u32,
        /// Carries data: may be marked.
        data: bool,
        /// Congestion experienced.
        congestion: bool,
        /// Has room for the telemetry of switches, which add it to data.
        telemetry: bool,
        /// What switches have added, and how many.
        hops: [u64; 5],
        hop_count: u8,
    }

    /// The form of an attribute's value.
    enum AttributeForm {
        /// A whole number.
        Number,
        /// A number with a fraction.
        Factor,
        /// True or false.
        Flag,
        /// One of some words.
        Word,
        /// A time, as a number of nanoseconds.
        Nanoseconds,
    }

    /// A declared parameter of the models, as an attribute.
    struct AttributeSpec {
        name: String,
        description: String,
        form: AttributeForm,
        least: u64,
        greatest: u64,
        initial: String,
    }

    /// An attribute and its value.
    struct AttributeSetting {
        name: String,
        value: String,
    }

    /// A NIC.
    #[derive(Clone)]
    struct NicParameters {
        line_rate_bps: u64,
        /// The values of `nic_attributes`, in their order.
        values: Vec<String>,
    }

    /// A message.
    #[derive(Clone, Copy)]
    struct FlowSpec {
        src: u32,
        dst: u32,
        bytes: u32,
        start_ns: u64,
    }

    /// A client that asks a server, again when it has the answer.
    #[derive(Clone, Copy)]
    struct ConversationSpec {
        client: u32,
        server: u32,
        request_bytes: u32,
        response_bytes: u32,
        count: u32,
    }

    /// How the core is set up, and what carries TCP.
    #[derive(Clone, Copy)]
    struct StackSpec {
        /// As `NACC_SOR_CONN_PER_QP`.
        streams_per_link: u16,
        /// Of a stream's ring; a power of two. A message is a quarter of it at most.
        ring_bytes: u32,
        /// Connections are promoted. If not, they stay on TCP.
        promote: bool,
        /// The simulator's TCP carries the connections, with sockets' buffers of so many bytes; 0: memory does.
        tcp_buffer_bytes: u64,
    }

    /// A TCP connection that is to be made.
    struct WireSpec {
        /// The greatest number for none.
        number: u32,
        /// Node that connects.
        client: u32,
        /// Node that accepts.
        server: u32,
    }

    /// A datagram between two kernels.
    struct UdpDatagram {
        /// The greatest number for none.
        number: u64,
        /// Node that sends it.
        from: u32,
        /// Node that it is for.
        to: u32,
        /// Of payload.
        bytes: u32,
    }

    /// The measurements of a conversation.
    struct ConversationResult {
        answered: u32,
        min_ns: u64,
        median_ns: u64,
        max_ns: u64,
    }

    /// The outcome of a flow.
    enum FlowState {
        /// Not known yet.
        Open,
        /// Delivered.
        Delivered,
        /// Its queue pair failed.
        Failed,
    }

    /// The outcome of a flow, and its time.
    struct FlowResult {
        state: FlowState,
        end_ns: u64,
    }

    /// The counters of a NIC.
    struct NicCounters {
        data_sent: u64,
        data_repeated: u64,
        data_delivered: u64,
        timeouts: u64,
        notifications_sent: u64,
        context_misses: u64,
        failed: u64,
    }

    /// Two stations on one link, or any number around a switch.
    struct ReferenceNetwork {
        star: bool,
        rate_bps: u64,
        delay_ns: u64,
        loss_ppm: u32,
        buffer_bytes: u64,
        mark: bool,
        mark_min_bytes: u64,
        mark_max_bytes: u64,
        mark_max_ppm: u32,
        seed: u64,
    }

    /// How a run ended.
    struct RunSummary {
        trace_hash: u64,
        deliveries: u64,
        dropped: u64,
        marked: u64,
        last_ns: u64,
    }

    /// A link of a scenario; hosts come first among the nodes.
    #[derive(Clone, Copy)]
    struct NetworkLink {
        a: u32,
        b: u32,
        rate_bps: u64,
        delay_ns: u64,
        loss_ppm: u32,
    }

    /// A change of a link, both ways.
    #[derive(Clone, Copy)]
    struct NetworkFault {
        at_ns: u64,
        link: u32,
        rate_bps: u64,
        loss_ppm: u32,
        /// Switches go around links that lose everything.
        reroute: bool,
    }

    /// The network of a scenario.
    struct NetworkSpec {
        hosts: u32,
        switches: u32,
        links: Vec<NetworkLink>,
        faults: Vec<NetworkFault>,
        /// Attributes of every switch.
        switch_settings: Vec<AttributeSetting>,
        seed: u64,
        /// How often the simulator calls `tick` of a recording.
        tick_ns: u64,
        /// At each tick the simulator writes down the state of every port.
        sample_ports: bool,
        /// Buffer of a TCP socket; 0: memory carries TCP.
        tcp_buffer_bytes: u32,
        /// Bytes of an IP packet of TCP at most.
        tcp_mtu_bytes: u16,
    }

    /// How a run stands.
    enum RunState {
        /// It goes on.
        Going,
        /// Everything was asked and answered.
        Complete,
        /// Some process waits, and none makes progress.
        Stalled,
        /// The time to answer the last requests is over.
        Unfinished,
        /// A byte was not the one written.
        Broken,
    }

    /// The counters of ports and switches in a run.
    #[derive(Clone, Copy)]
    struct NetworkTotals {
        lost: u64,
        dropped: u64,
        marked: u64,
        pauses: u64,
        max_queue_bytes: u64,
        tcp_failed: u64,
        /// Of the simulator.
        events: u64,
    }

    /// The network that a program of socket operations runs on: a star.
    struct ProgramNetwork {
        hosts: u32,
        rate_bps: u64,
        delay_ns: u64,
        loss_ppm: u32,
        duplicate_ppm: u32,
        reorder_ppm: u32,
        reorder_delay_ns: u64,
        buffer_bytes: u64,
        seed: u64,
    }

    unsafe extern "C++" {
        include!("netacc-ns3/include/network.h");

        /// A simulator that is asked for one event at a time.
        type Network;

        /// Makes the next event happen: when; the greatest number if there is none.
        fn step(self: Pin<&mut Network>) -> u64;
        /// Cuts the cable of a node, or repairs it.
        fn set_cut(self: Pin<&mut Network>, node: u32, cut: bool);
    }

    extern "Rust" {
        type ProgramRun;

        /// A program of socket operations, as a line of JSON. Throws if the program is not valid. See `program`.
        fn new_program_run(request: &str) -> Result<Box<ProgramRun>>;
        /// The network that it wants.
        fn network(self: &ProgramRun) -> ProgramNetwork;
        /// Its hosts, for the simulator to drive.
        fn fleet(self: &ProgramRun) -> Box<Fleet>;
        /// Runs it between the events of a network; its trace and how it went, as a line of JSON. Once.
        fn run(self: &mut ProgramRun, network: UniquePtr<Network>) -> Result<String>;
    }

    extern "Rust" {
        type DatagramRun;

        /// Whether a request is for a program of datagram calls. See `datagrams`.
        fn is_datagram_run(request: &str) -> bool;
        /// A program of datagram calls. Throws if the request is not valid.
        fn new_datagram_run(request: &str) -> Result<Box<DatagramRun>>;
        /// The network that it wants.
        fn network(self: &DatagramRun) -> ProgramNetwork;
        /// Its hosts, for the simulator to drive.
        fn fleet(self: &DatagramRun) -> Box<Fleet>;
        /// Begins it on a network. Once.
        fn start(self: &mut DatagramRun, network: UniquePtr<Network>) -> Result<()>;
        /// Whether it takes orders.
        fn is_going(self: &DatagramRun) -> bool;
        /// Carries out an order between the events of the network. The answer, as a line of JSON.
        fn order(self: &mut DatagramRun, line: &str) -> Result<String>;
    }

    extern "Rust" {
        type Fleet;
        type Scenario;
        type Recording;

        /// A resolved scenario, from its JSON. Throws if the JSON is not valid.
        fn read_scenario(text: &str) -> Result<Box<Scenario>>;
        /// The description of the network.
        fn network(self: &Scenario) -> NetworkSpec;
        /// Bytes of each ring of its processes.
        fn ring_bytes(self: &Scenario) -> u32;
        /// Its hosts, before the first request. Throws if a host cannot be made.
        fn fleet(self: &Scenario) -> Result<Box<Fleet>>;
        /// Begins to record a run of it in a folder. Throws if a file cannot be written.
        fn new_recording(scenario: &Scenario, folder: &str) -> Result<Box<Recording>>;
        /// Records the events until now. Throws if a file cannot be written.
        fn tick(self: &mut Recording, fleet: &mut Fleet, now_ns: u64) -> Result<RunState>;
        /// The progress of the run, as a line of JSON.
        fn progress(self: &Recording, fleet: &Fleet, now_ns: u64, events: u64) -> String;
        /// Writes the remaining files. Throws if one cannot be written.
        fn finish(
            self: &mut Recording,
            fleet: &Fleet,
            state: RunState,
            totals: &NetworkTotals,
            code_version: &str,
            ns3_version: &str,
        ) -> Result<()>;

        /// What the port of a switch adds to a packet that it begins to send now: it has sent for so long, and its queue takes so long.
        fn hop(now_ns: u64, sent_ns: u64, queue_ns: u64) -> u64;
        /// The attributes that NICs have.
        fn nic_attributes() -> Vec<AttributeSpec>;
        /// The attributes that switches have.
        fn switch_attributes() -> Vec<AttributeSpec>;
        /// `nodes` NICs and the flows between them. Throws if a parameter or a flow is not valid.
        fn new_fleet(nodes: u32, parameters: &NicParameters, flows: &[FlowSpec]) -> Result<Box<Fleet>>;
        /// `nodes` hosts with the production core, and the conversations between them. Throws if one of these is not valid.
        fn new_rpc_fleet(
            nodes: u32,
            parameters: &NicParameters,
            conversations: &[ConversationSpec],
            stack: StackSpec,
        ) -> Result<Box<Fleet>>;
        /// Starts all hosts. Call it once, at time 0, and serve every node after it.
        fn start(self: &mut Fleet);
        /// A node that must be served again although no packet came for it; the greatest number for none.
        fn next_dirty(self: &mut Fleet) -> u32;
        /// Whether the simulator's TCP is to carry the processes' connections, and with buffers of how many bytes; 0 if not.
        fn tcp_buffer_bytes(self: &Fleet) -> u64;
        /// A TCP connection that is to be made, each once.
        fn next_connect(self: &mut Fleet) -> WireSpec;
        /// It is made, at both ends.
        fn handle_connected(self: &mut Fleet, wire: u32, now_ns: u64);
        /// A connection whose ends were used: there may be bytes to send, or room for more. The greatest number for none.
        fn next_wire(self: &mut Fleet) -> u32;
        /// Bytes that a side (0 connected, 1 accepted) has written; how many. They are the simulator's now.
        fn poll_wire(self: &mut Fleet, wire: u32, side: u32, buffer: &mut [u8]) -> usize;
        /// Whether a side has written its last byte. Reported once.
        fn poll_wire_end(self: &mut Fleet, wire: u32, side: u32) -> bool;
        /// Bytes that a side has room for.
        fn wire_room(self: &Fleet, wire: u32, side: u32) -> usize;
        /// Bytes reach a side, at most as many as there is room for.
        fn handle_wire(self: &mut Fleet, wire: u32, side: u32, now_ns: u64, bytes: &[u8]);
        /// The end of the peer's bytes reaches a side.
        fn handle_wire_end(self: &mut Fleet, wire: u32, side: u32, now_ns: u64);
        /// A connection could not be made, or has failed.
        fn handle_wire_failure(self: &mut Fleet, wire: u32, now_ns: u64);
        /// A datagram that a kernel sends, each once.
        fn next_datagram(self: &mut Fleet) -> UdpDatagram;
        /// A datagram has reached its node. The network may double it.
        fn handle_datagram(self: &mut Fleet, number: u64);
        /// The measurements of a conversation; throws if a byte was not the one written.
        fn conversation(self: &Fleet, number: u32) -> Result<ConversationResult>;
        /// A frame reaches a node.
        fn handle_packet(self: &mut Fleet, node: u32, now_ns: u64, frame: &Frame);
        /// A node's deadline is now.
        fn handle_timer(self: &mut Fleet, node: u32, now_ns: u64);
        /// The next frame of a node whose port is free; whether there is one.
        fn poll_transmit(self: &mut Fleet, node: u32, now_ns: u64, frame: &mut Frame) -> bool;
        /// When a node wants to be called; the greatest number for never.
        fn next_deadline(self: &Fleet, node: u32) -> u64;
        /// A hash over all frames that reached a node, and when.
        fn trace_hash(self: &Fleet) -> u64;
        /// How many frames reached a node.
        fn deliveries(self: &Fleet) -> u64;
        /// The outcome of a flow.
        fn result(self: &Fleet, flow: u32) -> FlowResult;
        /// The counters of a NIC.
        fn counters(self: &Fleet, node: u32) -> NicCounters;

        /// The same conversations on the plain network, ten simulated seconds at most.
        fn reference_rpc_run(
            network: &ReferenceNetwork,
            nodes: u32,
            parameters: &NicParameters,
            conversations: &[ConversationSpec],
            stack: StackSpec,
        ) -> Result<RunSummary>;
        /// The same flows on the plain network.
        fn reference_run(
            network: &ReferenceNetwork,
            nodes: u32,
            parameters: &NicParameters,
            flows: &[FlowSpec],
        ) -> Result<RunSummary>;
    }
}
