//! What hosts know of connections that are being made: attempts, requests, datagrams. `cm` works on them.

use netacc_device::tables::Refusal;
use netacc_device::{QueuePairId, RemoteRegion};

use crate::id::HostId;

/// An attempt as the connecting side knows it.
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

/// What happens when a command of a device is done.
pub(crate) enum NicCommand {
    /// A request leaves.
    Ask { target: HostId, request: Message },
    /// A pending request is answered: the queue pair, its region.
    Accept { number: u64, qp: QueuePairId, region: RemoteRegion },
    /// The queue pair of a request that was answered can be used: the peer, and its region.
    Establish { attempt: u64, qp: QueuePairId, peer: HostId, region: RemoteRegion },
}

/// What a datagram says.
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
    /// The connecting side is gone: its peer's queue pair is connected to nobody.
    Gone {
        qp: QueuePairId,
    },
}
