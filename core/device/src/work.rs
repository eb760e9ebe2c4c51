//! Work requests and their completions.

use crate::{Capabilities, QueuePairId, Region, RemoteKey, WorkRequestId};

/// The source of the bytes of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Copied by the device at post time; at most `max_inline` bytes.
    Inline(&'a [u8]),
    /// Read from a local registered region until the request completes.
    Region {
        /// The registered region.
        region: &'a Region,
        /// First byte within the region.
        offset: usize,
        /// Length in bytes.
        len: u32,
    },
    /// Already written through [`Device::window`](crate::Device::window) at the remote address of the operation.
    InPlace {
        /// Length in bytes.
        len: u32,
    },
}

impl Payload<'_> {
    /// Length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Payload::Inline(b) => b.len() as u32,
            Payload::Region { len, .. } | Payload::InPlace { len } => *len,
        }
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// RDMA WRITE into the peer's region; with `imm` it also consumes a receive and completes at the peer.
    Write {
        /// Key of the peer's region.
        rkey: RemoteKey,
        /// First byte within the peer's region.
        offset: u64,
        /// The immediate, if the peer shall get a completion.
        imm: Option<u32>,
    },
    /// SEND into the receive the peer posted first. It carries bytes if that receive has memory
    /// ([`Receives`](crate::Receives)).
    Send {
        /// The immediate, where the device carries one.
        imm: Option<u32>,
    },
}

/// One entry of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    /// Returned in the completion.
    pub id: WorkRequestId,
    /// The operation.
    pub operation: Operation,
    /// The bytes.
    pub payload: Payload<'a>,
    /// Whether a successful completion is reported. Failures are always reported, where the device can.
    pub signaled: bool,
}

impl WorkRequest<'_> {
    /// Whether a device of these capabilities can execute it, regardless of regions and peers.
    pub fn fits(&self, caps: &Capabilities) -> bool {
        let payload_fits = match self.payload {
            Payload::Inline(bytes) => bytes.len() <= caps.max_inline as usize,
            Payload::Region { region, offset, len } => {
                offset.checked_add(len as usize).is_some_and(|end| end <= region.memory.len())
            }
            Payload::InPlace { .. } => caps.peer_memory && matches!(self.operation, Operation::Write { .. }),
        };
        let imm_fits = caps.write_with_imm || !matches!(self.operation, Operation::Write { imm: Some(_), .. });
        payload_fits && imm_fits && self.payload.len() <= caps.max_message
    }
}

/// Outcome of a work request, as in `ibv_wc_status`, reduced to what the core distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// Flushed because the queue pair is in error.
    Flushed,
    /// The transport gave up (retry count, remote gone).
    RetryExceeded,
    /// The peer refused access or length.
    RemoteError,
    /// Any other device code, kept as it came.
    Other(u32),
}

/// The operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Completion {
    /// One of our signaled (or failed) sends.
    Send {
        /// Its id.
        id: WorkRequestId,
    },
    /// A message of the peer consumed one of our receives.
    Receive {
        /// Its immediate (0 where there is none).
        imm: u32,
        /// Bytes placed. From the peer: check before use.
        len: u32,
    },
    /// The queue pair entered the error state; no further receive will complete.
    Disconnected,
}

/// One entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WorkCompletion {
    /// The queue pair it belongs to.
    pub qp: QueuePairId,
    /// The outcome.
    pub status: CompletionStatus,
    /// The operation.
    pub completion: Completion,
}
