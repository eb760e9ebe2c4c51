//! Connecting queue pairs, and finding the peer to connect to.

use std::net::SocketAddr;

use crate::{CompletionQueueId, ConnectionId, PeerAddress, QueuePairId, Region, RemoteRegion};

/// Private data that every connection manager carries for its user, in bytes: RoCE's bound of 56, minus the bytes with
/// which a backend describes the connection's first region.
pub const MAX_PRIVATE_DATA: usize = 32;

/// A TCP connection as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FourTuple {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
}

impl FourTuple {
    /// The same connection as the other end sees it.
    pub fn reversed(self) -> FourTuple {
        FourTuple { local: self.remote, remote: self.local }
    }
}

/// The memory that the receives of a queue pair have for a SEND's bytes. Both ends agree on it, by the private data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receives {
    /// None: bytes come by WRITE, and a SEND brings an immediate.
    #[default]
    Empty,
    /// The first region (capability `sends`): a SEND's bytes are placed at its beginning, so only one may be in flight.
    /// A device without immediates then has no WRITE WITH IMMEDIATE, because it sends that as a SEND itself.
    FirstRegion,
}

impl Receives {
    /// The check of a device without the capability `sends`.
    pub fn check(self, sends: bool) -> Result<(), CmError> {
        match self {
            Receives::FirstRegion if !sends => Err(CmError::NoSends),
            _ => Ok(()),
        }
    }
}

/// Failures of connecting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// No process accepts links at that address (any more).
    #[error("peer does not accept links")]
    Unreachable,
    /// The peer is another user, or lacks the shared key.
    #[error("peer is not admitted")]
    NotAdmitted,
    /// The device has no room for another connection.
    #[error("no resources for a connection: {0}")]
    Exhausted(&'static str),
    /// No memory could be registered for it.
    #[error("no memory can be registered for a connection")]
    MemoryLimit,
    /// Its receives cannot have memory (capability `sends`).
    #[error("the device's receives take no bytes")]
    NoSends,
    /// A system call failed.
    #[error("{operation} failed: {source}")]
    Os {
        /// The call.
        operation: &'static str,
        /// Its error.
        #[source]
        source: std::io::Error,
    },
}

/// An event that a connection manager reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// A peer wants to connect. Answer with `accept` or `reject`.
    Request {
        /// The number of the attempt.
        id: ConnectionId,
        /// The peer that requests the connection.
        peer: PeerAddress,
        /// The data that it sent along (at most [`MAX_PRIVATE_DATA`] bytes; untrusted until checked).
        private_data: Vec<u8>,
    },
    /// The attempt `id` succeeded: `qp` is connected.
    Established {
        /// The number of the attempt.
        id: ConnectionId,
        /// Our end.
        qp: QueuePairId,
        /// The peer.
        peer: PeerAddress,
        /// The first region of the connection: ours, writable by the peer, `region_len` zeroed bytes. Every
        /// connection has one at each end, so that the first message needs no exchange of keys. Freed with the QP.
        local: Region,
        /// The peer's counterpart.
        remote: RemoteRegion,
    },
    /// The attempt `id` failed.
    Failed {
        /// The number of the attempt.
        id: ConnectionId,
        /// The error.
        error: CmError,
    },
    /// So many requests of peers were refused before they became events: they were malformed, or too many at a time.
    Refused(u64),
}

/// Connects queue pairs. Control path: called by one thread, may make system calls, never blocks for a peer.
pub trait ConnectionManager: Send + Sync {
    /// The address at which this process accepts links.
    fn address(&self) -> PeerAddress;

    /// The addresses of the ends of a link to `peer`, ours first, by which the peer names them as well: a proof about a
    /// link is a proof about one between these two.
    fn ends(&self, peer: PeerAddress) -> [PeerAddress; 2] {
        [self.address(), peer]
    }

    /// Begins connecting to `peer`; the outcome is a [`CmEvent`]. The connecting side must send first on the
    /// established link (an iWARP rule). Completions go to `cq`. The connection's first region has `region_len` bytes.
    fn connect_with(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
        receives: Receives,
    ) -> Result<ConnectionId, CmError>;

    /// As [`connect_with`](ConnectionManager::connect_with), with receives that have no memory.
    fn connect(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
    ) -> Result<ConnectionId, CmError> {
        self.connect_with(peer, cq, region_len, private_data, Receives::Empty)
    }

    /// Accepts a request; `Established` follows. Our first region has `region_len` bytes.
    fn accept_with(
        &self,
        id: ConnectionId,
        cq: CompletionQueueId,
        region_len: usize,
        receives: Receives,
    ) -> Result<(), CmError>;

    /// As [`accept_with`](ConnectionManager::accept_with), with receives that have no memory.
    fn accept(&self, id: ConnectionId, cq: CompletionQueueId, region_len: usize) -> Result<(), CmError> {
        self.accept_with(id, cq, region_len, Receives::Empty)
    }

    /// Refuses a request.
    fn reject(&self, id: ConnectionId);

    /// Makes progress and takes the next event. Call until `None` when [`event_fds`](ConnectionManager::event_fds)
    /// are readable, and after every `connect`.
    fn poll_event(&self) -> Option<CmEvent>;

    /// Whether [`poll_event`](ConnectionManager::poll_event) may have to wait now for a device, for seconds if that does not
    /// answer: the handling of most events takes commands to it.
    fn may_wait(&self) -> bool {
        false
    }

    /// Descriptors that are readable when `poll_event` has work to do. Empty in simulation.
    fn event_fds(&self) -> Vec<std::os::fd::RawFd>;
}

/// Failures of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The table is full; the connection stays on TCP.
    #[error("directory full")]
    Full,
    /// The peer could not find the port to connect to: the rule that finds a port for links gives none for this TCP
    /// port.
    #[error("no port for links")]
    NoPort,
    /// The process was short of descriptors, and the backend has none any more.
    #[error("no descriptor")]
    NoDescriptor,
    /// The backend cannot reach that address (another host, for example).
    #[error("address not served by this backend")]
    NotServed,
}

/// The obstacle that keeps a connection that is [served](Directory::serves) off links, as far as this end can
/// determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The device that reaches the other end is absent. It may appear, or come back.
    NoDevice,
    /// The rule that finds a port for links gives none for the acceptor's TCP port.
    NoPort,
    /// A process that refers no peer to this one has that port.
    PortTaken,
    /// The process at the other end belongs to another user, which this device does not admit.
    OtherUser,
    /// No process has accepted the connection at the other end yet.
    NotAccepted,
    /// The process at the other end could use links, and does not offer this connection.
    NotOffered,
    /// The process at the other end uses links, but is in no directory that this one can see.
    Apart,
    /// No process of the containers that share the directory has the other end.
    Elsewhere,
}

/// The number of a stream that only its holder can number: see [`Directory::resolve`].
pub const UNKNOWN_STREAM: u32 = u32::MAX;

/// Finds the process that holds the accepted end of a connector's TCP connection. Cheap enough for the data path: no
/// system calls.
pub trait Directory: Send + Sync {
    /// Whether the backend may reach the other end of `tuple` at all.
    fn serves(&self, tuple: &FourTuple) -> bool {
        let _ = tuple;
        true
    }

    /// Whether only processes that this one trusts anyway can be at the other end of `tuple`: their messages on a link
    /// are then as good as the proof on the anchor.
    fn trusts(&self, tuple: &FourTuple) -> bool {
        let _ = tuple;
        false
    }

    /// Whether a link whose other end is `peer` may carry `tuple` (as this process sees it): the addresses must agree.
    fn admits(&self, peer: PeerAddress, tuple: &FourTuple) -> bool {
        let _ = (peer, tuple);
        true
    }

    /// Announces that this process holds `tuple` (as this process sees it), as its stream number `stream`.
    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError>;

    /// Lets peers find this process for flows of datagrams to the port of `tuple.local`, from the host of `tuple.remote`.
    fn offer_flows(&self, tuple: &FourTuple) {
        let _ = tuple;
    }

    /// Withdraws the announcement of `publish`.
    fn withdraw(&self, tuple: &FourTuple, stream: u32);

    /// The process that holds, or may hold, the other end of `tuple` (as this process sees it), and its stream number
    /// there or [`UNKNOWN_STREAM`].
    fn lookup(&self, tuple: &FourTuple) -> Option<(PeerAddress, u32)>;

    /// Whether `lookup` finds a process for `tuple` once that has accepted the connection, and not before. Otherwise what
    /// it finds is a guess.
    fn shows_accepted(&self, tuple: &FourTuple) -> bool {
        let _ = tuple;
        false
    }

    /// The number under which this process published `tuple` (as this process sees it), where peers cannot look it up.
    fn resolve(&self, tuple: &FourTuple) -> Option<u32> {
        let _ = tuple;
        None
    }

    /// The port at which another process of this host, which holds `tuple` (as this process sees it), accepts links.
    fn holder(&self, tuple: &FourTuple) -> Option<u16> {
        let _ = tuple;
        None
    }

    /// The process that accepts links at another port of the host where `peer` does.
    fn neighbour(&self, peer: PeerAddress, port: u16) -> Option<PeerAddress> {
        let _ = (peer, port);
        None
    }

    /// The reason why `lookup` finds no process for `tuple` (as this process sees it), or why no peer has requested it,
    /// if the reason can be found at this end. `accepted`: this end has accepted the connection.
    fn obstacle(&self, tuple: &FourTuple, accepted: bool) -> Option<Obstacle> {
        let _ = (tuple, accepted);
        None
    }

    /// An attempt to connect to `peer` has failed: it need not be looked up again soon.
    fn mark_unreachable(&self, peer: PeerAddress) {
        let _ = peer;
    }
}
