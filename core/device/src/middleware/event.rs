//! A call on a device, as plain data.
//!
//! Positions and lengths only, never payload: recordings of real programs can be shown to others.

use serde::{Deserialize, Serialize};

use crate::{
    Armed, CompletionQueueId, Operation, Payload, PostError, QueuePairId, Region, RemoteKey, RemoteRegion, Wait,
    WorkCompletion, WorkRequest, WorkRequestId,
};

/// The source of the bytes of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadKind {
    /// [`Payload::Inline`].
    Inline,
    /// [`Payload::Region`].
    Region {
        /// Key of the region.
        rkey: RemoteKey,
        /// First byte within it.
        offset: usize,
    },
    /// [`Payload::InPlace`].
    InPlace,
}

/// The operation of a posted request: [`Operation`] as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PostedOperation {
    /// [`Operation::Write`].
    Write {
        /// Key of the peer's region.
        rkey: RemoteKey,
        /// The place in it, as the device defines it.
        offset: u64,
        /// The immediate.
        imm: Option<u32>,
    },
    /// [`Operation::Send`].
    Send {
        /// The immediate.
        imm: Option<u32>,
    },
}

/// A [`WorkRequest`] without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostedRequest {
    /// Its id.
    pub id: WorkRequestId,
    /// The operation.
    pub operation: PostedOperation,
    /// The place of its bytes.
    pub payload: PayloadKind,
    /// Their number.
    pub len: u32,
    /// Whether success is reported.
    pub signaled: bool,
}

impl From<&WorkRequest<'_>> for PostedRequest {
    fn from(wr: &WorkRequest<'_>) -> PostedRequest {
        PostedRequest {
            id: wr.id,
            operation: match wr.operation {
                Operation::Write { rkey, offset, imm } => PostedOperation::Write { rkey, offset, imm },
                Operation::Send { imm } => PostedOperation::Send { imm },
            },
            payload: match wr.payload {
                Payload::Inline(_) => PayloadKind::Inline,
                Payload::Region { region, offset, .. } => PayloadKind::Region { rkey: region.remote.rkey, offset },
                Payload::InPlace { .. } => PayloadKind::InPlace,
            },
            len: wr.payload.len(),
            signaled: wr.signaled,
        }
    }
}

/// One call and its result. Errors of the control path are kept as their text: the call cannot be made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Event {
    /// [`Device::create_cq`](crate::Device::create_cq).
    CreateCq {
        /// The result.
        result: Result<CompletionQueueId, String>,
    },
    /// [`Device::pending`](crate::Device::pending).
    Pending {
        /// The queue.
        cq: CompletionQueueId,
        /// The queue pairs that it reported.
        qps: Vec<QueuePairId>,
    },
    /// [`Device::poll_qp`](crate::Device::poll_qp).
    PollQp {
        /// The queue pair.
        qp: QueuePairId,
        /// The completions that it returned.
        completions: Vec<WorkCompletion>,
    },
    /// [`CompletionEvents::qp_sequence`](crate::CompletionEvents::qp_sequence).
    QpSequence {
        /// The queue pair.
        qp: QueuePairId,
        /// The result.
        sequence: u32,
    },
    /// [`CompletionEvents::wait_qp`](crate::CompletionEvents::wait_qp).
    WaitQp {
        /// The queue pair.
        qp: QueuePairId,
        /// The sequence it was called with.
        seen: u32,
        /// The time limit, in nanoseconds.
        timeout_ns: Option<u64>,
        /// The result.
        outcome: Wait,
    },
    /// [`CompletionEvents::wake_qp`](crate::CompletionEvents::wake_qp).
    WakeQp {
        /// The queue pair.
        qp: QueuePairId,
    },
    /// [`CompletionEvents::knock`](crate::CompletionEvents::knock).
    Knock {
        /// The queue pair.
        qp: QueuePairId,
    },
    /// [`CompletionEvents::arm`](crate::CompletionEvents::arm).
    Arm {
        /// The queue.
        cq: CompletionQueueId,
        /// The result.
        outcome: Armed,
    },
    /// [`CompletionEvents::arm_moderated`](crate::CompletionEvents::arm_moderated).
    ArmModerated {
        /// The queue.
        cq: CompletionQueueId,
        /// The result.
        outcome: Armed,
    },
    /// [`CompletionEvents::defer_wakes`](crate::CompletionEvents::defer_wakes).
    HoldWakes,
    /// [`CompletionEvents::release_wakes`](crate::CompletionEvents::release_wakes).
    ReleaseWakes,
    /// [`CompletionEvents::disarm`](crate::CompletionEvents::disarm).
    Disarm {
        /// The queue.
        cq: CompletionQueueId,
    },
    /// [`CompletionEvents::channel_fd`](crate::CompletionEvents::channel_fd).
    ChannelFd {
        /// The queue.
        cq: CompletionQueueId,
        /// The result.
        fd: Option<i32>,
    },
    /// [`Device::rebind`](crate::Device::rebind).
    Rebind {
        /// The queue pair.
        qp: QueuePairId,
        /// Its new queue.
        cq: CompletionQueueId,
        /// The result.
        result: Result<(), String>,
    },
    /// [`Device::alloc_region`](crate::Device::alloc_region).
    AllocRegion {
        /// The queue pair.
        qp: QueuePairId,
        /// Bytes requested.
        len: usize,
        /// The region.
        result: Result<RemoteRegion, String>,
    },
    /// [`Device::free_region`](crate::Device::free_region).
    FreeRegion {
        /// The queue pair.
        qp: QueuePairId,
        /// The region.
        region: RemoteRegion,
    },
    /// [`Device::window`](crate::Device::window).
    Window {
        /// The queue pair.
        qp: QueuePairId,
        /// The peer's region.
        remote: RemoteRegion,
        /// Whether it could be mapped.
        result: Result<(), String>,
    },
    /// [`Device::discard`](crate::Device::discard).
    Discard {
        /// The queue pair.
        qp: QueuePairId,
        /// The peer's region.
        remote: RemoteRegion,
        /// Its first byte that is not needed.
        from: u32,
    },
    /// [`Device::post_recv`](crate::Device::post_recv).
    PostRecv {
        /// The queue pair.
        qp: QueuePairId,
        /// Receives posted.
        count: u32,
        /// The result.
        result: Result<(), PostError>,
    },
    /// [`Device::post_send`](crate::Device::post_send).
    PostSend {
        /// The queue pair.
        qp: QueuePairId,
        /// All requests that were offered.
        requests: Vec<PostedRequest>,
        /// The number of accepted requests.
        result: Result<usize, PostError>,
    },
    /// [`Device::fail_qp`](crate::Device::fail_qp).
    FailQp {
        /// The queue pair.
        qp: QueuePairId,
    },
    /// [`Device::destroy_qp`](crate::Device::destroy_qp).
    DestroyQp {
        /// The queue pair.
        qp: QueuePairId,
    },
}

impl Event {
    /// A call that only polled, and found nothing: most of the calls of a spinning driver.
    pub fn is_idle(&self) -> bool {
        match self {
            Event::Pending { qps, .. } => qps.is_empty(),
            Event::PollQp { completions, .. } => completions.is_empty(),
            Event::QpSequence { .. } | Event::ChannelFd { .. } => true,
            _ => false,
        }
    }
}

/// The described part of a region.
pub(super) fn described(region: &Region) -> RemoteRegion {
    region.remote
}
