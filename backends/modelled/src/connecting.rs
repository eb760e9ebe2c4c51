//! State of connections that are being made: attempts, requests, datagrams. `cm` works on them.

use netacc_device::tables::Refusal;
use netacc_device::{QueuePairId, RemoteRegion};

use crate::id::HostId;

/// An attempt, at the connector.
pub(crate) struct Attempt {
    pub(crate) host: HostId,
    pub(crate) qp: QueuePairId,
}

/// A request that waits for an answer on the accepting side.
pub(crate) struct Pending {
    pub(crate) host: HostId,
    pub(crate) initiator: HostId,
    pub(crate) attempt: u64,
    pub(crate) qp: QueuePairId,
    pub(crate) region: RemoteRegion,
    /// It was accepted: its queue pair is being made.
    pub(crate) accepted: bool,
}

/// The action to execute when a command of a device is done.
pub(crate) enum NicCommand {
    /// A request leaves.
    SendRequest { target: HostId, request: Message },
    /// A pending request is answered: the queue pair, its region.
    Accept { number: u64, qp: QueuePairId, region: RemoteRegion },
    /// The queue pair of a request that was answered can be used: the peer, and its region.
    Establish { attempt: u64, qp: QueuePairId, peer: HostId, region: RemoteRegion },
}

/// The content of a datagram.
pub(crate) enum Message {
    Request {
        attempt: u64,
        qp: QueuePairId,
        region: RemoteRegion,
        private_data: Vec<u8>,
    },
    Reply {
        attempt: u64,
        qp: QueuePairId,
        region: RemoteRegion,
    },
    Refused {
        attempt: u64,
        refusal: Refusal,
    },
    /// The connector is gone: the acceptor's queue pair has no peer.
    Gone {
        qp: QueuePairId,
    },
}
