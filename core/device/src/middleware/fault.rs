//! A device with faults: full queues, dying queue pairs, late completions.
//!
//! A real device may do everything that this one does, so a driver must survive it: no completion is lost, doubled or
//! reordered within a queue pair, and the contracts of `pending` and `arm` still hold. All choices come from the seed
//! and from the order of the calls. With nothing switched on it only forwards.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::SplitMix64;
use crate::{
    forward, to_inner, Armed, Capabilities, Completion, CompletionEvents, CompletionQueueId, CompletionStatus, Device,
    DeviceError, KernelOrder, PostError, QueuePairId, Wait, WorkCompletion, WorkRequest,
};

/// The faults on every queue pair. Faults of single queue pairs are chosen with [`Fault::kill_after`] and
/// [`Fault::delay`].
#[derive(Clone, Debug, Default)]
pub struct FaultConfig {
    /// The seed of the choices.
    pub seed: u64,
    /// The number of `post_send` calls, of 1000, that find the queue full or take only some of the requests.
    pub queue_full_per_mille: u16,
    /// The number of `post_recv` calls, of 1000, that find the queue full.
    pub recv_queue_full_per_mille: u16,
    /// A queue pair dies once it has accepted this many requests.
    pub kill_after_posts: Option<u64>,
    /// A completion becomes visible only at the n-th poll (of anything) after the device had it.
    pub delay_polls: u64,
    /// `pending` reports queue pairs in a random order, and withholds so many of 1000 until a later call (with 1000,
    /// for ever).
    pub reorder_per_mille: u16,
}

/// Wraps a device and disturbs it in ways a real device may: nothing is lost, doubled or reordered within a queue
/// pair, and a seed replays. Killed queue pairs die through [`Device::fail_qp`].
pub struct Fault<D: ?Sized> {
    config: FaultConfig,
    capabilities: Capabilities,
    state: Mutex<FaultState>,
    inner: Arc<D>,
}

/// Completions taken from the device and not yet shown.
#[derive(Default)]
struct Delayed {
    /// With the poll count at which each becomes visible, never decreasing.
    completions: VecDeque<(u64, WorkCompletion)>,
    /// The number of them that `pending` has reported already.
    announced: usize,
}

struct FaultState {
    rng: SplitMix64,
    polls: u64,
    posts: BTreeMap<QueuePairId, u64>,
    kills: BTreeMap<QueuePairId, u64>,
    delays: BTreeMap<QueuePairId, u64>,
    /// The queue that reported a queue pair last. Unknown for a queue pair that was only polled directly.
    queues: BTreeMap<QueuePairId, CompletionQueueId>,
    delayed: BTreeMap<QueuePairId, Delayed>,
}

/// Entries taken from the device at a time. Arbitrary.
const BATCH: usize = 32;

impl<D: Device + ?Sized> Fault<D> {
    /// Disturbs `inner` as `config` defines.
    pub fn new(inner: Arc<D>, config: FaultConfig) -> Fault<D> {
        let state = FaultState {
            rng: SplitMix64::new(config.seed),
            polls: 0,
            posts: BTreeMap::new(),
            kills: BTreeMap::new(),
            delays: BTreeMap::new(),
            queues: BTreeMap::new(),
            delayed: BTreeMap::new(),
        };
        let capabilities = disturbed(inner.capabilities().clone(), &config);
        Fault { config, capabilities, state: Mutex::new(state), inner }
    }

    /// The device inside.
    pub fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    /// Makes `qp` die once it has accepted `posts` requests since it was created.
    pub fn kill_after(&self, qp: QueuePairId, posts: u64) {
        self.state.lock().kills.insert(qp, posts);
    }

    /// Delays the completions of `qp` by `polls` from now on.
    pub fn delay(&self, qp: QueuePairId, polls: u64) {
        self.state.lock().delays.insert(qp, polls);
    }

    /// Completions taken from the device and not yet shown.
    pub fn delayed(&self) -> usize {
        self.state.lock().delayed.values().map(|h| h.completions.len()).sum()
    }

    fn is_delaying(&self, state: &FaultState) -> bool {
        self.config.delay_polls > 0
            || self.config.reorder_per_mille > 0
            || !state.delays.is_empty()
            || !state.delayed.is_empty()
    }

    /// Moves the device's completions of `qp` to the held ones.
    fn fetch(&self, state: &mut FaultState, qp: QueuePairId) {
        let delay = state.delays.get(&qp).copied().unwrap_or(self.config.delay_polls);
        let due = state.polls + delay;
        let mut batch = [NOTHING; BATCH];
        loop {
            let count = self.inner.poll_qp(qp, &mut batch);
            if count > 0 {
                let delayed = &mut state.delayed.entry(qp).or_default().completions;
                // A delay that was shortened meanwhile must not let later ones overtake.
                let due = due.max(delayed.back().map_or(0, |(at, _)| *at));
                delayed.extend(batch[..count].iter().map(|wc| (due, *wc)));
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// Queue pairs of `cq` with a due completion that was not reported yet, in reporting order.
    fn ripe(&self, state: &mut FaultState, cq: CompletionQueueId) -> Vec<QueuePairId> {
        let (polls, queues) = (state.polls, &state.queues);
        let mut ripe: Vec<QueuePairId> = state
            .delayed
            .iter()
            // Better reported by the wrong queue than by none.
            .filter(|(qp, _)| queues.get(qp).is_none_or(|of| *of == cq))
            .filter(|(_, delayed)| delayed.completions.get(delayed.announced).is_some_and(|(due, _)| *due <= polls))
            .map(|(qp, _)| *qp)
            .collect();
        if self.config.reorder_per_mille > 0 {
            for last in (1..ripe.len()).rev() {
                ripe.swap(last, state.rng.below(last + 1));
            }
            ripe.retain(|_| !state.rng.chance(self.config.reorder_per_mille));
        }
        ripe
    }

    /// The number of the `wanted` requests that are let through.
    fn admit(&self, state: &mut FaultState, qp: QueuePairId, wanted: usize) -> usize {
        let full = state.rng.chance(self.config.queue_full_per_mille);
        let admitted = if full { state.rng.below(wanted) } else { wanted };
        let left = self.limit(state, qp).map_or(u64::MAX, |limit| limit.saturating_sub(state.posts_of(qp)));
        admitted.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    fn limit(&self, state: &FaultState, qp: QueuePairId) -> Option<u64> {
        state.kills.get(&qp).copied().or(self.config.kill_after_posts)
    }
}

impl FaultState {
    fn posts_of(&self, qp: QueuePairId) -> u64 {
        self.posts.get(&qp).copied().unwrap_or(0)
    }
}

impl<D: Device + ?Sized> Fault<D> {
    /// The result of arming.
    fn armed(&self, cq: CompletionQueueId, outcome: Armed) -> Armed {
        let state = self.state.lock();
        let mut delayed = state.delayed.iter().filter(|(qp, _)| state.queues.get(qp).is_none_or(|of| *of == cq));
        // Held ones will be due after some more polls, and no wake-up will come for them.
        if delayed.any(|(_, h)| h.announced < h.completions.len()) {
            Armed::Pending
        } else {
            outcome
        }
    }
}

impl<D: Device + ?Sized> Device for Fault<D> {
    forward!(to_inner: name, create_cq, alloc_region, free_region, window, discard, fail_qp);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn capabilities_of(&self, qp: QueuePairId) -> Capabilities {
        disturbed(self.inner.capabilities_of(qp), &self.config)
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        let state = &mut *self.state.lock();
        state.polls += 1;
        if !self.is_delaying(state) {
            return self.inner.pending(cq, out);
        }
        let mut batch = [QueuePairId(0); BATCH];
        loop {
            let count = self.inner.pending(cq, &mut batch);
            for qp in &batch[..count] {
                state.queues.insert(*qp, cq);
                self.fetch(state, *qp);
            }
            if count < BATCH {
                break;
            }
        }
        let polls = state.polls;
        let ripe = self.ripe(state, cq);
        let count = ripe.len().min(out.len());
        for (slot, qp) in out.iter_mut().zip(&ripe) {
            *slot = *qp;
            if let Some(delayed) = state.delayed.get_mut(qp) {
                delayed.announced = delayed.completions.iter().take_while(|(due, _)| *due <= polls).count();
            }
        }
        count
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        let state = &mut *self.state.lock();
        state.polls += 1;
        if !self.is_delaying(state) {
            return self.inner.poll_qp(qp, out);
        }
        self.fetch(state, qp);
        let polls = state.polls;
        let Some(delayed) = state.delayed.get_mut(&qp) else { return 0 };
        let due = delayed.completions.iter().take_while(|(due, _)| *due <= polls).count();
        let count = due.min(out.len());
        for (slot, (_, wc)) in out.iter_mut().zip(delayed.completions.drain(..count)) {
            *slot = wc;
        }
        delayed.announced = delayed.announced.saturating_sub(count);
        if delayed.completions.is_empty() {
            state.delayed.remove(&qp);
        }
        count
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        self.inner.rebind(qp, cq)?;
        self.state.lock().queues.insert(qp, cq);
        Ok(())
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        if self.state.lock().rng.chance(self.config.recv_queue_full_per_mille) {
            return Err(PostError::QueueFull);
        }
        self.inner.post_recv(qp, count)
    }

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        let admitted = self.admit(&mut self.state.lock(), qp, wrs.len());
        if admitted == 0 && !wrs.is_empty() {
            let state = self.state.lock();
            let spent = self.limit(&state, qp).is_some_and(|limit| state.posts_of(qp) >= limit);
            drop(state);
            if spent {
                self.inner.fail_qp(qp);
                return Err(PostError::Dead);
            }
            // A dead queue pair reports that, full or not.
            return self.inner.post_send(qp, &[]).and(Err(PostError::QueueFull));
        }
        let accepted = self.inner.post_send(qp, &wrs[..admitted])?;
        let mut state = self.state.lock();
        let posts = state.posts_of(qp) + accepted as u64;
        state.posts.insert(qp, posts);
        let dies = self.limit(&state, qp).is_some_and(|limit| posts >= limit);
        drop(state);
        if dies {
            self.inner.fail_qp(qp);
        }
        Ok(accepted)
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        self.inner.destroy_qp(qp);
        let state = &mut *self.state.lock();
        state.posts.remove(&qp);
        state.kills.remove(&qp);
        state.delays.remove(&qp);
        state.queues.remove(&qp);
        state.delayed.remove(&qp);
    }
}

impl<D: Device + ?Sized> CompletionEvents for Fault<D> {
    forward!(to_inner: disarm, channel_fd, drain, qp_sequence, wake_qp, knock, defer_wakes, release_wakes);

    fn arm(&self, cq: CompletionQueueId) -> Armed {
        self.armed(cq, self.inner.arm(cq))
    }

    fn arm_moderated(&self, cq: CompletionQueueId) -> Armed {
        self.armed(cq, self.inner.arm_moderated(cq))
    }

    fn wait_qp(&self, qp: QueuePairId, seen: u32, timeout: Option<Duration>) -> Wait {
        // The device may have no event left that would wake us.
        if self.state.lock().delayed.contains_key(&qp) {
            return Wait::Woken;
        }
        self.inner.wait_qp(qp, seen, timeout)
    }
}

impl<D: Device + ?Sized> KernelOrder for Fault<D> {
    forward!(to_inner: KernelOrder);
}

/// What is left of a device's capabilities.
fn disturbed(capabilities: Capabilities, config: &FaultConfig) -> Capabilities {
    // A poll that withholds a message of a peer that has died is not the last one that brings something.
    let placement_is_delivery = capabilities.placement_is_delivery && config.delay_polls == 0;
    Capabilities { placement_is_delivery, ..capabilities }
}

/// Fills batches before the device does.
const NOTHING: WorkCompletion =
    WorkCompletion { qp: QueuePairId(0), status: CompletionStatus::Success, completion: Completion::Disconnected };

#[cfg(test)]
mod tests;
