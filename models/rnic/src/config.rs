//! What a modelled NIC can do, what it costs, and how it recovers.
//!
//! Every figure has a unit in its type or name. [`NicConfig::ideal`] costs nothing, so that closed forms hold exactly;
//! calibrated figures of real devices belong to `models/profiles`, with their sources. eRDMA's own congestion control and
//! loss recovery are not public: a configuration of this model that stands for it is a proxy.

use std::time::Duration;

use crate::commands::CommandTimes;
use crate::rate::RateConfig;

/// How lost packets are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The responder drops what comes out of order and asks once; the requester goes back (RoCE as specified).
    GoBackN,
    /// The responder keeps what comes out of order and says so for each packet; the requester sends what is missing
    /// (after IRN: Mittal et al., "Revisiting Network Support for RDMA", SIGCOMM 2018). Placement stays in order.
    SelectiveRepeat,
}

/// What a message does that finds no posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReceive {
    /// RNR NAK: the requester tries again after a pause.
    Retry,
    /// The connection dies at both ends (iWARP, eRDMA).
    Fatal,
}

/// Times that the NIC and the bus take. All of them latency, except the two `*_packet` ones and the misses, which occupy the
/// transmit or receive engine and so bound packets per second.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Costs {
    /// From the store to the doorbell until the NIC has seen it.
    pub doorbell: Duration,
    /// Fetching a work request over the bus.
    pub request_fetch: Duration,
    /// Fetching the first bytes of a payload; later ones stream behind.
    pub payload_fetch: Duration,
    /// The transmit engine's time for one packet.
    pub transmit_packet: Duration,
    /// The receive engine's time for one packet.
    pub receive_packet: Duration,
    /// What either engine waits when a queue pair's context is not on chip.
    pub context_miss: Duration,
    /// What either engine waits when a region's entry of the table is not on chip.
    pub region_miss: Duration,
    /// From the receive engine until a payload is in host memory.
    pub placement: Duration,
    /// Writing a completion to host memory.
    pub completion: Duration,
    /// From a completion until a sleeper has been interrupted, where its queue was armed.
    pub interrupt: Duration,
}

/// Configuration of one NIC. The two ends of a connection may differ, except in `recovery` and `mtu_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Payload bytes of a full packet.
    pub mtu_bytes: u32,
    /// Rate of the port, in bits per second: where rate control begins, and what it never exceeds.
    pub line_rate_bps: u64,
    /// How lost packets are sent again.
    pub recovery: Recovery,
    /// Packets after which an acknowledgement is asked for; one always is at the end of a message, when the window is
    /// full, and for what is sent again.
    pub ack_interval: u32,
    /// Without progress for so long, everything unacknowledged is sent again.
    pub retry_timeout: Duration,
    /// Attempts to recover without progress, before the queue pair fails.
    pub retry_count: u8,
    /// The pause that an RNR NAK asks for.
    pub rnr_pause: Duration,
    /// RNR NAKs without progress before the queue pair fails; `None` is for ever (the value 7 of the real field).
    pub rnr_retry: Option<u8>,
    /// What a message does that finds no receive here.
    pub no_receive: NoReceive,
    /// Packets in flight on a queue pair, whatever rate control says. Bounds what a responder keeps out of order.
    pub max_in_flight: u32,
    /// Rate control of each queue pair.
    pub rate: RateConfig,
    /// At most one congestion notification for a queue pair in so long.
    pub notification_interval: Duration,
    /// Whether requests that a dead queue pair never did complete as flushed. Some devices stay silent.
    pub report_flushes: bool,
    /// Queue pairs that may exist at once. At most 2^20.
    pub max_qp: u32,
    /// Requests of a send queue, those included whose completion was not polled.
    pub max_send_wr: u32,
    /// Receives of a receive queue, those included whose completion was not polled.
    pub max_recv_wr: u32,
    /// Bytes of a message.
    pub max_message_bytes: u32,
    /// Regions that may be registered at once.
    pub max_regions: u32,
    /// Queue-pair contexts on chip; 0 for all.
    pub context_cache_entries: usize,
    /// Region entries on chip; 0 for all.
    pub region_cache_entries: usize,
    /// Packets that wait for the receive engine; more are dropped.
    pub receive_buffer_packets: usize,
    /// What everything costs that is posted.
    pub costs: Costs,
    /// What everything costs that is asked of its command queue.
    pub commands: CommandTimes,
}

/// The InfiniBand encoding of the local ACK timeout: 4.096 us times 2^`exponent` (IBTA volume 1, 9.7.6.1.3).
pub fn local_ack_timeout(exponent: u8) -> Duration {
    Duration::from_nanos(4096u64 << exponent.min(31))
}

impl NicConfig {
    /// A NIC that costs nothing and forgets nothing: what remains is the protocol and the network.
    pub fn ideal(line_rate_bps: u64) -> NicConfig {
        NicConfig {
            mtu_bytes: 4096,
            line_rate_bps,
            recovery: Recovery::GoBackN,
            ack_interval: 16,
            // The usual 14: 67 ms, as applications and rdma_cm set it.
            retry_timeout: local_ack_timeout(14),
            retry_count: 7,
            // The usual code 12: 0.64 ms.
            rnr_pause: Duration::from_micros(640),
            rnr_retry: Some(6),
            no_receive: NoReceive::Retry,
            // Arbitrary: twice what 100 Gb/s and 100 us hold at this MTU.
            max_in_flight: 512,
            rate: RateConfig::Unlimited,
            notification_interval: Duration::from_micros(50),
            report_flushes: true,
            max_qp: 1 << 17,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_message_bytes: 1 << 30,
            max_regions: 1 << 18,
            context_cache_entries: 0,
            region_cache_entries: 0,
            receive_buffer_packets: 1024,
            costs: Costs::default(),
            commands: CommandTimes::default(),
        }
    }
}
