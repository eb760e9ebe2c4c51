//! The statistics of a running process for `netacc_ss`: the document that the preload library writes and the tool
//! reads, shared so that the two stay the same.
//!
//! A process writes its links and sockets as rows ([`Document`]), and both forms are read.
//!
//! Sections that were not requested are absent. A reader ignores unknown fields, and treats missing fields as empty;
//! [`VERSION`] changes only when that would mislead.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::value::ConfigValue;

mod rows;
mod text;

pub use rows::Document;
pub use text::Text;

/// The version that this crate writes and reads.
pub const VERSION: u32 = 1;

/// A document that a process answers with.
pub trait Answer: serde::de::DeserializeOwned {
    /// The version in which it was written.
    fn version(&self) -> u32;
}

impl Answer for Snapshot {
    fn version(&self) -> u32 {
        self.version
    }
}

impl Answer for Traced {
    fn version(&self) -> u32 {
        self.version
    }
}

impl Answer for Switched {
    fn version(&self) -> u32 {
        self.version
    }
}

/// Named counters; the names are the library's own.
pub type Counters = BTreeMap<String, u64>;

/// One process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`VERSION`].
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// Its name.
    #[serde(default)]
    pub program: String,
    /// The device in use, as `NACC_BACKEND` would name it; `none` when there is none.
    #[serde(default)]
    pub backend: String,
    /// The reason why the process accelerates nothing at all; empty if it may.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// Problems of the configuration, a line each; with `cfg`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The configuration in force: [`crate::Config`] as it serialises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cfg: Option<BTreeMap<String, ConfigValue>>,
    /// Counters of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cnt: Option<Counters>,
    /// How many connections were not accelerated, by reason code; with `cnt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Counters>,
    /// Memory: bytes and regions registered, limits, rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<Counters>,
    /// Links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qp: Option<Vec<QueuePairStats>>,
    /// TCP sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sock: Option<Vec<SocketStats>>,
    /// UDP sockets; with `sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Vec<DatagramSocketStats>>,
}

/// Whether a process is traced now: the answer to `TRACE` and `UNTRACE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// [`VERSION`].
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// A trace runs.
    pub traced: bool,
    /// Why none could be begun; empty if that was not requested, or has worked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The process that traces this one meanwhile, if that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracer: Option<u32>,
}

/// The result of taking a process's connections off their links, or letting them back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// [`VERSION`].
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// Whether its connections may be on links.
    pub allowed: bool,
    /// Its TCP connections.
    pub connections: u64,
    /// Those of them that use a link in at least one direction.
    pub on_link: u64,
}

/// One link: a connected queue pair and its rings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePairStats {
    /// Its number in this process, which [`SocketStats::qp`] refers to.
    pub qp: u64,
    /// The device.
    pub backend: Text,
    /// Its state, in the library's words.
    pub state: Text,
    /// The other end: an address, or a process of this host.
    pub peer: Text,
    /// Streams on it now; 0 is an empty link in the cache.
    pub streams: u32,
    /// Messages received.
    pub rx_msgs: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Messages sent.
    pub tx_msgs: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// One TCP socket of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketStats {
    /// The descriptor.
    pub fd: i32,
    /// Its address.
    pub local: Text,
    /// The peer's address; empty when there is none.
    pub remote: Text,
    /// Whether it is a listener: such a socket has no bytes and needs no reason.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub listening: bool,
    /// The path of its bytes now.
    pub path: Path,
    /// The reason why it is not on a link: a reason code; empty on a link.
    pub reason: Text,
    /// Its state, in the library's words.
    pub state: Text,
    /// Bytes received over links.
    pub rx_bytes_link: u64,
    /// Bytes sent over links.
    pub tx_bytes_link: u64,
    /// Messages received over links.
    pub rx_msgs_link: u64,
    /// Messages sent over links.
    pub tx_msgs_link: u64,
    /// Bytes received over the kernel's connection.
    pub rx_bytes_tcp: u64,
    /// Bytes sent over the kernel's connection.
    pub tx_bytes_tcp: u64,
    /// The link that it is on.
    pub qp: Option<u64>,
    /// The time that its peer takes to answer over TCP, in nanoseconds: the median of the latest answers, of all
    /// connections that this process has opened to that address. Absent if it is not measured, or not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_ns_tcp: Option<u64>,
    /// The same on a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_ns_link: Option<u64>,
    /// The throughput of one-way transfers over TCP, in bytes a second: from the median of the latest samples, as
    /// above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk_bytes_per_s_tcp: Option<u64>,
    /// The same on a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk_bytes_per_s_link: Option<u64>,
}

/// One UDP socket of the program. Counts are of datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatagramSocketStats {
    /// The descriptor.
    pub fd: i32,
    /// Its address.
    pub local: String,
    /// The address that it is connected to; empty when there is none.
    pub remote: String,
    /// Rings that bring datagrams to it.
    pub rings_in: u64,
    /// Rings that take its datagrams.
    pub rings_out: u64,
    /// The reason why it has no rings: for good, or when it has asked for one last; empty if it has some, or has not asked.
    pub reason: String,
    /// Received from rings.
    pub rx_link: u64,
    /// Sent on rings.
    pub tx_link: u64,
    /// Received from the kernel.
    pub rx_kernel: u64,
    /// Sent by the kernel.
    pub tx_kernel: u64,
    /// Dropped, because the receiver's ring was full.
    pub dropped: u64,
}

/// The path of a socket's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// On a link.
    Link,
    /// On the kernel's connection, the anchor.
    #[default]
    Tcp,
}
