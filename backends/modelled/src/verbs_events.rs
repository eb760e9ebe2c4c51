//! The queue pairs of programs that use verbs themselves, and what these learn.

use std::collections::{BTreeSet, VecDeque};

use netacc_device::{QueuePairId, RemoteKey, WorkCompletion};

/// Something that a program which uses verbs learns by polling, its memory or its completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsEvent {
    /// So many more bytes have reached the queue pair, in order. They are in memory [`placement`](netacc_rnic::Costs) later.
    Placed(QueuePairId, u32),
    /// A completion is visible.
    Completed(WorkCompletion),
}

/// An end of a pair of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsEnd {
    /// Its queue pair.
    pub qp: QueuePairId,
    /// The region that its peer may write, from position 0.
    pub rkey: RemoteKey,
}

/// The queue pairs of a host's programs that use verbs themselves, and what these have not polled.
#[derive(Default)]
pub(crate) struct Verbs {
    pub(crate) queue_pairs: BTreeSet<QueuePairId>,
    pub(crate) events: VecDeque<VerbsEvent>,
}
