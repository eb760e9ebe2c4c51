//! The fabric's state of connections that are being made: attempts, and events for connection managers.

use super::id::DeviceId;
use crate::tables::Refusal;
use crate::{CompletionQueueId, ConnectionId, PeerAddress, QueuePairId, Receives, Region, RemoteRegion};

/// An attempt that was neither accepted nor refused.
pub(super) struct Attempt {
    pub(super) initiator: DeviceId,
    pub(super) initiator_cq: CompletionQueueId,
    pub(super) initiator_region_len: u32,
    pub(super) initiator_receives: Receives,
    pub(super) target: DeviceId,
}

/// An event for a connection manager. The events of one attempt and device keep their order.
pub(super) struct CmNotice {
    pub(super) to: DeviceId,
    pub(super) id: ConnectionId,
    pub(super) kind: NoticeKind,
}

/// The event.
pub(super) enum NoticeKind {
    Request { peer: PeerAddress, private_data: Vec<u8> },
    Established { qp: QueuePairId, peer: PeerAddress, local: Region, remote: RemoteRegion },
    Failed(Refusal),
}

/// The number of an attempt at its initiator. The two ends use different numbers for it, as on any real backend.
pub(super) fn initiator_id(attempt: u64) -> ConnectionId {
    ConnectionId(attempt * 2)
}

/// The number of an attempt at its target.
pub(super) fn target_id(attempt: u64) -> ConnectionId {
    ConnectionId(attempt * 2 + 1)
}
