//! A host: its NIC, and the capabilities that its driver reports.

use std::time::Duration;

use netacc_device::{Capabilities, Instant};
use netacc_host::ProcessorConfig;
use netacc_rnic::{NicConfig, Recovery};

/// When a host's processes learn of the bytes that the kernel's TCP has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// From the arrival of a packet until its interrupt, the time of the sender's NIC included.
    pub delay: Duration,
    /// The least time between two interrupts. Packets that come meanwhile share the next one.
    pub interval: Duration,
}

/// Configuration of one host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The device's name, for human readers.
    pub name: String,
    /// The NIC. Its queue depths are taken from `capabilities`.
    pub nic: NicConfig,
    /// The capabilities that the device reports, and obeys. Peer memory, cheap writes and sleeping on one queue pair are not modelled.
    pub capabilities: Capabilities,
    /// Bytes that may be registered at once.
    pub memory_limit_bytes: usize,
    /// Its processors; without them, calls and applications take no time.
    pub processor: Option<ProcessorConfig>,
    /// Commands to its device before this time take no time: lasting objects were made before a run begins.
    pub commands_from: Instant,
    /// Interrupts for TCP's packets.
    pub interrupts: Interrupts,
}

impl HostConfig {
    /// A host whose NIC retries, as RoCE's do.
    pub fn roce(nic: NicConfig) -> HostConfig {
        let capabilities = Capabilities {
            write_with_imm: true,
            sends: false,
            max_inline: 96,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_send_wr: nic.send_depth,
            max_recv_wr: nic.receive_depth,
            max_message: 1 << 20,
            max_cq: 64,
            peer_memory: false,
            placement_is_delivery: false,
            cheap_writes: false,
            qp_wait: false,
            rebind: true,
            knock: false,
            exact_bounds: true,
            initiator_sends_first: false,
            notices_silence: true,
        };
        // Arbitrary: far above the use of a simulated process.
        HostConfig {
            name: "host-roce".into(),
            nic,
            capabilities,
            memory_limit_bytes: 1 << 30,
            processor: None,
            commands_from: Instant::ZERO,
            interrupts: Interrupts::default(),
        }
    }

    /// A host with eRDMA's limits (no receive is fatal, dead queue pairs stay silent, queue pairs stay on their queue) and a
    /// network that loses. Its recovery is a proxy: the real one is not public.
    pub fn erdma_proxy(nic: NicConfig) -> HostConfig {
        let nic =
            NicConfig { no_receive_is_fatal: true, report_flushes: false, recovery: Recovery::SelectiveRepeat, ..nic };
        let mut config = HostConfig::roce(nic);
        config.name = "host-erdma-proxy".into();
        config.capabilities.rebind = false;
        config
    }
}
