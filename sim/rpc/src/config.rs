//! The configuration of a run.

use netacc_modelled::HostConfig;

use crate::process::StackConfig;
use crate::workload::Conversation;

/// The hosts of a run, and their load.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The hosts. Before [`commands_from`](HostConfig::commands_from) their helper threads take no time for links, either.
    pub hosts: Vec<HostConfig>,
    /// The conversations.
    pub conversations: Vec<Conversation>,
    /// How the core is set up.
    pub stack: StackConfig,
    /// The carrier of their TCP.
    pub tcp: Tcp,
    /// Whether [`Run::take_samples`](crate::Run::take_samples) has samples.
    pub sampled: bool,
    /// Whether [`Run::take_messages`](crate::Run::take_messages) has messages.
    pub traced: bool,
}

/// The carrier of the connections' TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Memory: its bytes take no time and are never lost. Connections that are promoted use their links only; alone it wants
    /// hosts with processors, or nothing takes time.
    Memory,
    /// A simulator's own TCP ([`Run::tcp`](crate::Run::tcp)). Connections use it as soon as they are made, and are promoted meanwhile.
    Simulated {
        /// Bytes of a socket's send and receive buffers each.
        buffer_bytes: usize,
    },
}
