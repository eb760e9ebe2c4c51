//! Flows of datagrams, as their owner sees them: see `endpoint::flows`.

use netacc_device::{Memory, QueuePairId, MAX_PRIVATE_DATA};

/// Bytes that a request for a flow carries for its owner.
pub const MAX_FLOW_REQUEST: usize = MAX_PRIVATE_DATA - 1;

/// A flow of datagrams, as one end has it.
#[derive(Debug)]
pub struct Flow {
    /// Its queue pair.
    pub qp: QueuePairId,
    /// The own region, which the peer writes.
    pub local: Memory,
    /// The peer's region.
    pub remote: Memory,
}
