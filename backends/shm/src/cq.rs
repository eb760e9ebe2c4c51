//! The completion queues of a device.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::pair::PAIRS;

/// A completion queue: its channel, and the position where `pending` continues.
pub(crate) struct CompletionQueue {
    /// The channel, or -1.
    pub(crate) fd: AtomicI32,
    /// Pair at which the next scan begins, and queue pair index within it.
    pub(crate) next_pair: AtomicU32,
    pub(crate) next_qp: AtomicU32,
    pub(crate) calls: AtomicU32,
    /// Pairs that had a completion lately.
    pub(crate) warm: [AtomicU64; PAIRS / 64],
}

impl CompletionQueue {
    /// Without a channel: that is made when a thread is about to sleep on it.
    pub(crate) fn new() -> CompletionQueue {
        CompletionQueue {
            fd: AtomicI32::new(-1),
            next_pair: AtomicU32::new(0),
            next_qp: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            warm: [const { AtomicU64::new(0) }; PAIRS / 64],
        }
    }
}
