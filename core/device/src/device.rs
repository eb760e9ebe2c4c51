//! The device: queue pairs, completion queues, memory. Sleeping until it has completions, and the order of its messages
//! and the kernel's bytes, are traits of their own.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::{
    Capabilities, Completion, CompletionQueueId, CompletionStatus, Instant, QueuePairId, Region, RemoteRegion,
    WorkCompletion, WorkRequest,
};

/// Failures of the control path of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The backend cannot work on this machine.
    #[error("backend unavailable: {what}")]
    Unavailable {
        /// The missing thing.
        what: &'static str,
        /// The system's error, if any.
        #[source]
        source: Option<std::io::Error>,
    },
    /// Memory cannot be pinned because of its size: RLIMIT_MEMLOCK, or the backend's share of it.
    #[error("cannot register {wanted} bytes (memory limit)")]
    MemoryLimit {
        /// Bytes requested.
        wanted: usize,
    },
    /// A table of the device is full (queue pairs, completion queues, regions).
    #[error("device has no free {what}")]
    Exhausted {
        /// The table.
        what: &'static str,
    },
    /// No such queue pair or completion queue, or it is not connected.
    #[error("unknown or unconnected {what}")]
    Unknown {
        /// The object that was named.
        what: &'static str,
    },
    /// The peer named memory that it has not registered for this queue pair, which is connected: a violation.
    #[error("memory of the peer that it has not registered")]
    NotRegistered,
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

/// The reason why a work request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full: back-pressure. Poll completions, or wait for the peer, and post again.
    #[error("queue full")]
    QueueFull,
    /// The queue pair is in error: the link is dead.
    #[error("queue pair in error state")]
    Dead,
    /// The request exceeds a capability or a region. A bug of the caller, or a false value of the peer.
    #[error("request outside capabilities or region")]
    Invalid,
}

/// A queue pair's short way for messages whose bytes are in place: unsignaled RDMA WRITEs with immediate that write nothing.
/// [`Device::in_place`] returns it.
pub trait InPlaceQueue: Send + Sync {
    /// Posts a message of `len` bytes, no more than the device's longest message. With `seen`, only if the
    /// [sequence](CompletionEvents::qp_sequence) of the queue pair is that, or else [`InPlaceError::News`]; of a queue pair that
    /// has ended either error may be returned. A completion that was polled since is not enough: the thread that polled it may
    /// not have handled it yet.
    fn post(&self, seen: Option<u32>, len: u32, imm: u32) -> Result<(), InPlaceError>;
}

/// The reason why a [message in place](InPlaceQueue::post) was not posted. One byte, as every short message returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlaceError {
    /// The sequence of the queue pair is not the one that the caller has seen.
    News,
    /// As for a work request.
    Post(PostError),
}

impl From<PostError> for InPlaceError {
    #[inline]
    fn from(error: PostError) -> InPlaceError {
        InPlaceError::Post(error)
    }
}

/// Result of arming a completion queue before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Armed {
    /// Nothing is pending; the channel becomes readable at the next completion.
    Sleep,
    /// Completions are already there: poll again, do not sleep.
    Pending,
}

/// The largest delay of a wake-up that was requested with [`CompletionEvents::arm_moderated`]. Arbitrary: much longer
/// than a batch takes, and short even in the worst case, a program that stops in the middle of one.
pub const MODERATION: Duration = Duration::from_millis(1);

/// The times of a process's operation in the kernel, on a clock that all processes of the host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct KernelOperation {
    /// Before the system call, or later: a process that looked at the kernel's state earlier has not seen the
    /// operation. A process that looked there later has seen it, or else will find something newer there as well.
    pub begun: Instant,
    /// After the system call: a process that looks at the kernel's state later sees it.
    pub ended: Instant,
}

/// The result of [`CompletionEvents::wait_qp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Wait {
    /// Something may have happened: poll again.
    Woken,
    /// The time limit has passed.
    TimedOut,
    /// A signal handler without SA_RESTART ran (EINTR).
    Interrupted,
}

/// An RDMA device, real or software. Shared by all threads of a process; only [`wait_qp`](CompletionEvents::wait_qp) blocks.
///
/// Locking is the caller's: `post_send` and `post_recv` calls for one queue pair are serialised, `poll_qp` calls for
/// one queue pair are serialised, and the two groups may run at the same time. Everything else may be called
/// from any thread at any time. The hot path takes no lock of its own.
pub trait Device: CompletionEvents + KernelOrder + Send + Sync {
    /// The backend's name, for people. Never branch on it.
    fn name(&self) -> &str;

    /// The properties of the device. Constant for its lifetime.
    fn capabilities(&self) -> &Capabilities;

    /// The properties of the device for one queue pair. More than [`capabilities`](Device::capabilities) where several
    /// devices are one. Constant for the life of the queue pair.
    fn capabilities_of(&self, qp: QueuePairId) -> Capabilities {
        let _ = qp;
        self.capabilities().clone()
    }

    // Completion queues.

    /// Creates a completion queue with its channel. At most `capabilities().max_cq`.
    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError>;

    /// Takes up to `out.len()` queue pairs of `cq` that have completions, each at most once; returns how many. A queue
    /// pair taken here is not reported again before its next completion, so the caller must drain it with
    /// [`poll_qp`](Device::poll_qp). Where the device can determine it, a few queue pairs of one peer come in the order
    /// in which it posted to them. Any thread may call; never blocks.
    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize;

    /// Takes up to `out.len()` completions of one queue pair, oldest first. Call again until it returns less than
    /// `out.len()`. Also works for a queue pair that [`pending`](Device::pending) did not report.
    /// Calls for one queue pair are serialised by the caller (the link's lock); never blocks.
    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize;

    /// Takes the oldest completion of one queue pair, as [`poll_qp`](Device::poll_qp) does with room for one. A device
    /// whose messages are cheap has a shorter way for a message that is there.
    fn poll_one(&self, qp: QueuePairId) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion { qp, status: CompletionStatus::Success, completion: Completion::Disconnected }];
        (self.poll_qp(qp, &mut out) > 0).then_some(out[0])
    }

    /// Moves `qp` to `cq` (capability `rebind`). After the call the caller must drain `qp` once with `poll_qp`:
    /// completions that came before the move may be reported by neither queue, and may wake no thread. Completions that
    /// come after it are reported by `cq`.
    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError>;

    // Memory.

    /// Allocates `len` zeroed and registered bytes that only the peer of `qp` may write.
    ///
    /// # Errors
    /// [`DeviceError::MemoryLimit`] when it cannot be pinned, [`DeviceError::Exhausted`] when the device has no more regions.
    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError>;

    /// Gives a region back. The peer's writes into it fail from now on, or have no effect; where bounds are not exact
    /// (capability `exact_bounds`) they may reach other memory of `qp`.
    fn free_region(&self, qp: QueuePairId, region: Region);

    /// Maps the peer's region (capability `peer_memory`). The returned region's bytes *are* the peer's.
    /// The descriptor comes from the peer and is checked.
    ///
    /// # Errors
    /// [`DeviceError::NotRegistered`] when the peer has registered no such region. [`DeviceError::Unknown`] when the
    /// queue pair is not connected any more: the peer's regions end with the connection, so a region that is missing
    /// then is no violation.
    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        let _ = (qp, remote);
        Err(DeviceError::Unavailable { what: "a peer's memory cannot be mapped", source: None })
    }

    /// Gives the system back the memory of the peer's region from its byte `from` on, or of less, as far as that takes whole
    /// pages; it takes memory again where it is written. Only for a region with a [window](Device::window), whose bytes from
    /// there on nobody reads until this process has written them again: they may be lost.
    fn discard(&self, qp: QueuePairId, remote: RemoteRegion, from: u32) {
        let _ = (qp, remote, from);
    }

    // Requests.

    /// Posts `count` receives, with the memory that was chosen when connecting ([`Receives`](crate::Receives)).
    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError>;

    /// Posts requests in order with one doorbell. `Ok(n)`: the first `n` were accepted; `n < wrs.len()` only when the
    /// queue is full. `Err` if not even the first was accepted.
    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError>;

    /// A shorter way than [`post_send`](Device::post_send) for messages whose bytes are in place (capability `peer_memory`), for
    /// all the time of the queue pair. A device has one if it need not find anything out for each message. The queue may keep the
    /// device.
    fn in_place(&self, qp: QueuePairId) -> Option<Box<dyn InPlaceQueue>> {
        let _ = qp;
        None
    }

    /// Puts the queue pair into the error state; both sides will see [`Completion::Disconnected`](crate::Completion).
    fn fail_qp(&self, qp: QueuePairId);

    /// Destroys the queue pair and frees its regions. The peer sees `Disconnected`, after everything that was already
    /// placed.
    fn destroy_qp(&self, qp: QueuePairId);
}

/// How threads sleep until a completion comes, and what wakes them. A device in virtual time needs `arm` and `disarm`
/// alone, because no thread may sleep there.
pub trait CompletionEvents {
    /// Requests a wake-up on the channel of `cq`. Call before sleeping, and sleep only on [`Armed::Sleep`]. Stays armed
    /// until [`disarm`](CompletionEvents::disarm).
    fn arm(&self, cq: CompletionQueueId) -> Armed;

    /// As [`arm`](CompletionEvents::arm), with moderation: the wake-up may come late, so the caller polls by itself
    /// after [`MODERATION`]. Peers in the middle of a batch (see [`defer_wakes`](CompletionEvents::defer_wakes)) then
    /// wake it once instead of for each message. Verbs calls this completion queue moderation. A device may treat both
    /// alike.
    fn arm_moderated(&self, cq: CompletionQueueId) -> Armed {
        self.arm(cq)
    }

    /// Ends the effect of [`arm`](CompletionEvents::arm) or [`arm_moderated`](CompletionEvents::arm_moderated). The
    /// channel may stay readable until [`drain`](CompletionEvents::drain).
    fn disarm(&self, cq: CompletionQueueId);

    /// The file descriptor that is readable while an armed `cq` has completions. `None` in simulation.
    fn channel_fd(&self, cq: CompletionQueueId) -> Option<RawFd> {
        let _ = cq;
        None
    }

    /// Consumes pending wake-ups of the channel, so that it is not readable any more. A caller that watches the channel
    /// edge-triggered does not need it: each wake-up is an edge, and draining is a system call.
    fn drain(&self, cq: CompletionQueueId) {
        let _ = cq;
    }

    /// A number that changes whenever a completion is added to `qp` (capability `qp_wait`, else 0). With the capability
    /// `peer_memory`, too, each message adds one to it. Read it before the
    /// last poll of the queue pair, then pass it to [`wait_qp`](CompletionEvents::wait_qp).
    fn qp_sequence(&self, qp: QueuePairId) -> u32 {
        let _ = qp;
        0
    }

    /// Sleeps until the sequence of `qp` differs from `seen`, [`wake_qp`](CompletionEvents::wake_qp), a signal, or
    /// `timeout` (capability `qp_wait`). For a thread blocked on one stream. Spurious wake-ups are allowed.
    fn wait_qp(&self, qp: QueuePairId, seen: u32, timeout: Option<Duration>) -> Wait {
        let _ = (qp, seen, timeout);
        Wait::Woken
    }

    /// Wakes local threads in [`wait_qp`](CompletionEvents::wait_qp) on `qp`, for causes that are not completions.
    fn wake_qp(&self, qp: QueuePairId) {
        let _ = qp;
    }

    /// Makes the completion queue that the peer's end of `qp` was connected on report that end, too, although it may
    /// have been [moved](Device::rebind) since; wakes threads that sleep there (capability `knock`). Call it after
    /// posting a message that cannot wait until the peer polls the queue pair again.
    fn knock(&self, qp: QueuePairId) {
        let _ = qp;
    }

    /// This thread is in the middle of a batch: until it calls [`release_wakes`](CompletionEvents::release_wakes) its posts
    /// need not wake peers that sleep [with moderation](CompletionEvents::arm_moderated).
    fn defer_wakes(&self) {}

    /// Wakes the peers that were not woken because of [`defer_wakes`](CompletionEvents::defer_wakes). From now on posts
    /// wake all peers at once.
    fn release_wakes(&self) {}
}

/// How peers on one kernel order a message after its sender's earlier operations in the kernel. A device between hosts
/// does not need this.
pub trait KernelOrder {
    /// This process is about to do an operation on a connection that its peer observes in the kernel: to send there, to
    /// connect, to shut down or to close.
    fn begin_kernel_operation(&self) {}

    /// The operation is done. Peers that receive messages posted later then check the kernel first.
    fn end_kernel_operation(&self, operation: KernelOperation) {
        let _ = operation;
    }

    /// Operations that have ended by now may not have been announced: peers that receive messages posted later check the
    /// kernel first.
    fn announce_kernel_operations(&self) {}

    /// The latest [operation in the kernel](KernelOrder::end_kernel_operation) that a sender had done before it posted
    /// a message which [`poll_qp`](Device::poll_qp) has taken, as far as the device can determine. Never earlier than
    /// an earlier result.
    fn kernel_news(&self) -> KernelOperation {
        KernelOperation::default()
    }
}
