//! The state of conversations by verbs. `verbs` drives them.
//!
//! Invariant: messages of a side arrive in the order in which they were posted, so positions in `pending` name them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use netacc_device::{Instant, QueuePairId};
use netacc_modelled::VerbsEnd;

use crate::workload::{Request, Source, Verb};

/// One conversation.
pub(crate) struct Exchange {
    pub(crate) hosts: [u32; 2],
    pub(crate) ends: [VerbsEnd; 2],
    /// By side: the longest message that comes, from a message's arrival until it is in memory, and the longest that is inline.
    pub(crate) longest: [u32; 2],
    pub(crate) placement: [Duration; 2],
    pub(crate) max_inline: [usize; 2],
    pub(crate) verb: Verb,
    pub(crate) answered: bool,
    pub(crate) source: Source,
    /// Requests that were made and not answered.
    pub(crate) pending: VecDeque<Request>,
    /// Of `pending`, those that were posted, and those that the server has.
    pub(crate) posted: usize,
    pub(crate) served: usize,
    /// By side: bytes of messages that are not in memory as a whole.
    pub(crate) placed: [u64; 2],
    /// By side: of `pending`, those whose message has reached it as a whole, if messages are written.
    pub(crate) written: [usize; 2],
    pub(crate) wake_at: Option<Instant>,
    pub(crate) is_open: bool,
}

/// All conversations by verbs of a run.
#[derive(Default)]
pub(crate) struct VerbsExchanges {
    pub(crate) by_number: BTreeMap<usize, Exchange>,
    pub(crate) by_queue_pair: BTreeMap<(usize, QueuePairId), (usize, usize)>,
}

impl VerbsExchanges {
    /// Their conversations' numbers.
    pub(crate) fn numbers(&self) -> std::vec::IntoIter<usize> {
        self.by_number.keys().copied().collect::<Vec<_>>().into_iter()
    }

    /// Requests that were made and not answered.
    pub(crate) fn unanswered(&self) -> u64 {
        self.by_number.values().map(|exchange| exchange.pending.len() as u64).sum()
    }
}
