//! Parameters of a modelled NIC: its limits, its costs, and how it recovers.
//!
//! Every figure has a unit in its type or name. A parameter that is declared here can be set in scenarios and profiles; a
//! value beside them is set by the program. [`NicConfig::ideal`] costs nothing, so that closed forms hold exactly;
//! calibrated figures of real devices belong to `models/profiles`, with their sources. eRDMA's own congestion control and
//! loss recovery are not public: a configuration of this model that stands for it is a proxy.

use std::time::Duration;

use netacc_parameters::{choice, parameters};

use crate::commands::CommandTimes;
use crate::rate::RateConfig;

choice! {
    /// How lost packets are sent again.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Recovery {
        /// The responder drops what comes out of order and asks once; the requester goes back (RoCE as specified).
        GoBackN = "go-back-n",
        /// The responder keeps packets that come out of order and acknowledges each; the requester sends the missing ones (after
        /// IRN: Mittal et al., "Revisiting Network Support for RDMA", SIGCOMM 2018). Placement stays in order.
        SelectiveRepeat = "selective-repeat",
    }
}

choice! {
    /// Whether the parts of a NIC work side by side.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Engines {
        /// Each by itself: a NIC in hardware.
        Separate = "separate",
        /// All on one processor, in the order in which work arrives: a device in software.
        Shared = "shared",
    }
}

parameters! {
    /// Times that the NIC and the bus take. All are latency, except the two `*_packet` ones and the misses, which occupy the
    /// transmit or receive engine and so bound packets per second. Where engines are [shared](Engines::Shared) all but `interrupt` occupy
    /// their processor.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Costs {
        /// From the store to the doorbell until the NIC has seen it.
        doorbell: Duration = Duration::ZERO;
        /// Fetching a work request over the bus.
        request_fetch: Duration = Duration::ZERO;
        /// Fetching the first bytes of a payload; later ones stream behind.
        payload_fetch: Duration = Duration::ZERO;
        /// The transmit engine's time for one packet.
        transmit_packet: Duration = Duration::ZERO;
        /// The receive engine's time for one packet.
        receive_packet: Duration = Duration::ZERO;
        /// The wait of either engine when a queue pair's context is not on chip.
        context_miss: Duration = Duration::ZERO;
        /// The wait of either engine when a region's entry of the table is not on chip.
        region_miss: Duration = Duration::ZERO;
        /// From the receive engine until a payload is in host memory.
        placement: Duration = Duration::ZERO;
        /// Writing a completion to host memory.
        completion: Duration = Duration::ZERO;
        /// From a completion until a sleeping thread has been interrupted, where its queue was armed.
        interrupt: Duration = Duration::ZERO;
    }
}

parameters! {
    /// Configuration of one NIC. The two ends of a connection may differ, except in `recovery` and `mtu_bytes`.
    ///
    /// The defaults are those of an ideal NIC, which costs nothing and forgets nothing.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NicConfig {
        /// Payload bytes of a full packet.
        mtu_bytes: u32 = 4096, at least 1;
        /// Whether posting, sending, receiving and completing happen side by side, or one after the other on a processor that they
        /// share: a device in software.
        engines: Engines = Engines::Separate;
        /// How lost packets are sent again.
        recovery: Recovery = Recovery::GoBackN;
        /// Packets after which the requester asks for an acknowledgement. It always asks at the end of a message, when the
        /// window is full, and for packets that it sends again.
        ack_interval: u32 = 16, at least 1;
        /// After this time without progress, everything unacknowledged is sent again. The usual code 14: 67 ms, as
        /// applications and rdma_cm set it.
        retry_timeout: Duration = local_ack_timeout(14), at least 1;
        /// Attempts to recover without progress, before the queue pair fails.
        retry_count: u8 = 7;
        /// The pause that an RNR NAK asks for. The usual code 12: 0.64 ms.
        rnr_pause: Duration = Duration::from_micros(640);
        /// A message that finds no receive ends the connection at both ends (iWARP, eRDMA). Else the responder sends an RNR NAK,
        /// and the requester tries again after a pause.
        no_receive_is_fatal: bool = false;
        /// Packets in flight on a queue pair, whatever rate control permits. Bounds the packets that a responder keeps out of
        /// order. The default is arbitrary: twice what 100 Gb/s and 100 us hold at an MTU of 4096 bytes.
        max_in_flight: u32 = 512, at least 1;
        /// The shortest time between congestion notifications for a queue pair (DCQCN, SIGCOMM 2015, section 3: N).
        notification_interval: Duration = Duration::from_micros(50);
        /// Requests that a dead queue pair never did complete as flushed. Some devices stay silent.
        report_flushes: bool = true;
        /// Queue pairs that may exist at once, up to 2^20.
        max_queue_pairs: u32 = 1 << 17, at least 1;
        /// Requests of a send queue, including those whose completion was not polled.
        send_depth: u32 = 64, at least 1;
        /// Receives of a receive queue, including those whose completion was not polled.
        receive_depth: u32 = 64, at least 1;
        /// Queue-pair contexts on chip; 0 for all.
        context_cache: usize = 0;
        /// Region entries on chip; 0 for all.
        region_cache: usize = 0;
        /// Packets that wait for the receive engine; more are dropped.
        receive_buffer_packets: usize = 1024, at least 1;
    }
    beside {
        /// Rate of the port, in bits per second: where rate control begins, and its limit.
        line_rate_bps: u64 = 100_000_000_000;
        /// RNR NAKs without progress before the queue pair fails; `None` is for ever (the value 7 of the real field).
        rnr_retry: Option<u8> = Some(6);
        /// Rate control of each queue pair.
        rate_control: RateConfig = RateConfig::Unlimited;
        /// Bytes of a message.
        max_message_bytes: u32 = 1 << 30;
        /// Regions that may be registered at once.
        max_regions: u32 = 1 << 18;
        /// Times of posted requests.
        costs: Costs = Costs::default();
        /// Times of commands to the command queue.
        commands: CommandTimes = CommandTimes::default();
    }
}

/// The InfiniBand encoding of the local ACK timeout: 4.096 us times 2^`exponent` (IBTA volume 1, 9.7.6.1.3).
pub fn local_ack_timeout(exponent: u8) -> Duration {
    Duration::from_nanos(4096u64 << exponent.min(31))
}

impl NicConfig {
    /// A NIC that costs nothing and forgets nothing: only the protocol and the network remain.
    pub fn ideal(line_rate_bps: u64) -> NicConfig {
        NicConfig { line_rate_bps, ..NicConfig::default() }
    }
}
