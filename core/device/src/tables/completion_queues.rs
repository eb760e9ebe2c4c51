//! Completion queues, and the queue pairs that report to them.

use std::collections::VecDeque;

use super::NumberMap;
use crate::{Armed, CompletionQueueId, DeviceError, Instant, QueuePairId};

/// The completion queues of a device. The device keeps the completions themselves, and decides which queue pairs have
/// any.
///
/// Invariant: a queue pair is in its queue's `ready` exactly when it is `listed`.
#[derive(Debug, Default)]
pub struct CompletionQueues {
    queues: Vec<Queue>,
    members: NumberMap<QueuePairId, Member>,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<QueuePairId>,
    armed: bool,
    /// The time from which on the simulated channel is readable: a completion came while it was armed.
    readable_at: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    cq: CompletionQueueId,
    listed: bool,
}

impl CompletionQueues {
    /// Adds a queue, unless there are `max`.
    ///
    /// # Errors
    /// There are `max` queues already.
    pub fn create(&mut self, max: u32) -> Result<CompletionQueueId, DeviceError> {
        if self.queues.len() >= max as usize {
            return Err(DeviceError::Exhausted { what: "completion queue" });
        }
        self.queues.push(Queue::default());
        Ok(CompletionQueueId(self.queues.len() as u32 - 1))
    }

    /// Whether there is a queue of that number.
    pub fn contains(&self, cq: CompletionQueueId) -> bool {
        (cq.0 as usize) < self.queues.len()
    }

    /// A new queue pair reports to `cq`.
    pub fn bind(&mut self, qp: QueuePairId, cq: CompletionQueueId) {
        self.members.insert(qp, Member { cq, listed: false });
    }

    /// A queue pair was destroyed.
    pub fn remove(&mut self, qp: QueuePairId) {
        if let Some(member) = self.members.remove(&qp) {
            self.forget(member.cq, qp);
        }
    }

    /// Drops all queues: their process has died.
    pub fn clear(&mut self) {
        *self = CompletionQueues::default();
    }

    /// Moves a queue pair to another queue. Neither queue reports the completions that it already has, because the caller
    /// polls it next. `false`: there is no such queue pair or queue.
    pub fn rebind(&mut self, qp: QueuePairId, cq: CompletionQueueId) -> bool {
        if !self.contains(cq) {
            return false;
        }
        let Some(member) = self.members.get_mut(&qp) else { return false };
        let old = std::mem::replace(member, Member { cq, listed: false });
        self.forget(old.cq, qp);
        true
    }

    fn forget(&mut self, cq: CompletionQueueId, qp: QueuePairId) {
        if let Some(queue) = self.queues.get_mut(cq.0 as usize) {
            queue.ready.retain(|ready| *ready != qp);
        }
    }

    /// A queue pair has a completion. If its queue is armed, the channel becomes readable at `readable_at`, or earlier
    /// because of an earlier completion.
    pub fn report(&mut self, qp: QueuePairId, readable_at: Instant) {
        let Some(member) = self.members.get_mut(&qp) else { return };
        let Some(queue) = self.queues.get_mut(member.cq.0 as usize) else { return };
        if !std::mem::replace(&mut member.listed, true) {
            queue.ready.push_back(qp);
        }
        if queue.armed {
            queue.readable_at.get_or_insert(readable_at);
        }
    }

    /// Whether a queue pair was reported that nobody has taken.
    pub fn has_ready(&self) -> bool {
        self.queues.iter().any(|queue| !queue.ready.is_empty())
    }

    /// As [`Device::pending`](crate::Device::pending). Leaves out queue pairs for which `counts` is false.
    pub fn take(
        &mut self,
        cq: CompletionQueueId,
        out: &mut [QueuePairId],
        counts: impl Fn(QueuePairId) -> bool,
    ) -> usize {
        let Some(queue) = self.queues.get_mut(cq.0 as usize) else { return 0 };
        let mut count = 0;
        while count < out.len() {
            let Some(qp) = queue.ready.pop_front() else { break };
            let Some(member) = self.members.get_mut(&qp) else { continue };
            member.listed = false;
            if counts(qp) {
                out[count] = qp;
                count += 1;
            }
        }
        count
    }

    /// As [`CompletionEvents::arm`](crate::CompletionEvents::arm). Queue pairs without completions leave the list.
    pub fn arm(
        &mut self,
        cq: CompletionQueueId,
        now: Instant,
        mut has_completion: impl FnMut(QueuePairId) -> bool,
    ) -> Armed {
        let Some(queue) = self.queues.get_mut(cq.0 as usize) else { return Armed::Sleep };
        let members = &mut self.members;
        queue.ready.retain(|qp| {
            let has = has_completion(*qp);
            if let Some(member) = members.get_mut(qp) {
                member.listed = has;
            }
            has
        });
        if !std::mem::replace(&mut queue.armed, true) {
            queue.readable_at = None;
        }
        if queue.ready.is_empty() {
            return Armed::Sleep;
        }
        queue.readable_at = Some(now);
        Armed::Pending
    }

    /// As [`CompletionEvents::disarm`](crate::CompletionEvents::disarm).
    pub fn disarm(&mut self, cq: CompletionQueueId) {
        if let Some(queue) = self.queues.get_mut(cq.0 as usize) {
            queue.armed = false;
            queue.readable_at = None;
        }
    }

    /// Whether the channel of `cq` is readable.
    pub fn is_readable(&self, cq: CompletionQueueId, now: Instant) -> bool {
        let queue = self.queues.get(cq.0 as usize);
        queue.is_some_and(|queue| queue.armed && queue.readable_at.is_some_and(|at| at <= now))
    }

    /// The next time at which a channel becomes readable.
    pub fn next_readable(&self, now: Instant) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.readable_at.filter(|at| *at > now)).min()
    }
}
