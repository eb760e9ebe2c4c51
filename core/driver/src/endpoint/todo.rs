//! Work that could not be done under a lock, queued for [`Endpoint::progress`].
//!
//! A thread that queues work wakes the thread that calls `progress`. Work that `progress` itself queues again needs no
//! wake-up: it returns when it must be called again.

use std::sync::Arc;

use netacc_device::{Instant, QueuePairId};

use super::timers::{Kind, Timed, Timer, Timers};
use super::Endpoint;
use crate::stream::Attachment;
use crate::{LinkCell, StreamCell};

/// The resources of a stream on a link that it has left for its next one, before they were freed.
pub(super) struct Left {
    pub(super) cell: Arc<StreamCell>,
    pub(super) attached: Box<Attachment>,
    pub(super) slot: u16,
}

/// Work that could not be done under a lock.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) timers: Timers,
    pub(super) queued: Queued,
    /// The time of the next check of links that may become silent without an error; `None`: all rest.
    pub(super) probe_at: Option<Instant>,
}

/// Work without a time.
#[derive(Default)]
pub(super) struct Queued {
    /// Streams whose anchor has shown events that count after another poll of the link.
    pub(super) checks: Vec<Arc<StreamCell>>,
    /// Streams with records or replay that found the anchor full.
    pub(super) blocked: Vec<Arc<StreamCell>>,
    pub(super) release: Vec<Arc<StreamCell>>,
    pub(super) left: Vec<Left>,
    pub(super) dead: Vec<QueuePairId>,
    pub(super) claims: Vec<Arc<StreamCell>>,
    /// Links with receives or messages that the device would not take yet.
    pub(super) owing: Vec<QueuePairId>,
    /// Links that may carry no stream, and that no stream waits for.
    pub(super) idle: Vec<Arc<LinkCell>>,
}

impl Queued {
    /// Whether all of it waits for something else: what is to be done at once is empty.
    fn may_wait(&self) -> bool {
        self.dead.is_empty()
            && self.release.is_empty()
            && self.left.is_empty()
            && self.claims.is_empty()
            && self.idle.is_empty()
            && self.checks.is_empty()
    }
}

impl Todo {
    /// Takes the work that is queued now, and the timers that are due. `None`, as mostly, if there is neither.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Queued, Vec<Timer>)> {
        let due = self.timers.take_due(now);
        if due.is_empty() && self.queued.may_wait() && !self.has_refused() {
            return None;
        }
        Some((std::mem::take(&mut self.queued), due))
    }

    /// Whether a device or an anchor has refused something for now.
    fn has_refused(&self) -> bool {
        !(self.queued.owing.is_empty() && self.queued.blocked.is_empty())
    }

    /// Whether `progress`, which leaves the work in this state, is to be called again soon. Work that the same call has
    /// queued counts too: the caller was awake, so no wake-up will come for it.
    pub(super) fn wants_retry(&self) -> bool {
        self.has_refused() || self.timers.has_unseen()
    }
}

impl Endpoint {
    /// The amount of work that `progress` has of each kind, for human readers.
    pub fn backlog(&self) -> [(&'static str, usize); 19] {
        let connecting = self.attempts.lock().len();
        let (waiting, unaccepted) = {
            let promotions = self.promotions.lock();
            (promotions.waiting(), promotions.unaccepted.count())
        };
        let todo = self.todo.lock();
        let timed = |kind| todo.timers.count(kind);
        [
            ("connecting", connecting),
            ("waiting", waiting),
            ("unaccepted", unaccepted),
            ("starved", timed(Kind::Starved)),
            ("lingering", timed(Kind::Lingering)),
            ("release", todo.queued.release.len() + todo.queued.left.len()),
            ("dead", todo.queued.dead.len() + timed(Kind::Dying)),
            ("claims", todo.queued.claims.len()),
            ("owing", todo.queued.owing.len()),
            ("idle", todo.queued.idle.len()),
            ("looks", todo.queued.checks.len()),
            ("blocked", todo.queued.blocked.len()),
            ("partial", timed(Kind::Partial)),
            ("pledged", timed(Kind::Pledged)),
            ("stalled", timed(Kind::Stalled)),
            ("corked", timed(Kind::Corked)),
            ("setup", timed(Kind::Setup)),
            ("contested", timed(Kind::Contested)),
            ("grown", timed(Kind::Grown)),
        ]
    }

    /// Whether `progress` has work to do at once.
    pub fn has_work(&self) -> bool {
        !self.todo.lock().queued.may_wait()
    }

    /// Adds a timed entry for `progress`.
    pub(crate) fn add_timer(&self, what: Timed) {
        self.todo.lock().timers.add(what);
        (self.helper_needed)();
    }

    pub(crate) fn enqueue_moved(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().queued.claims.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn enqueue_check(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().queued.checks.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn enqueue_blocked(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().queued.blocked.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn enqueue_release(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().queued.release.push(cell.clone());
        (self.helper_needed)();
    }

    pub(super) fn enqueue_left(&self, left: Left) {
        self.todo.lock().queued.left.push(left);
        (self.helper_needed)();
    }

    pub(crate) fn enqueue_idle(&self, link: &Arc<LinkCell>) {
        self.todo.lock().queued.idle.push(link.clone());
        (self.helper_needed)();
    }

    pub(crate) fn enqueue_owing(&self, link: &Arc<LinkCell>) {
        self.todo.lock().queued.owing.push(link.qp);
        (self.helper_needed)();
    }

    /// Wakes the thread that calls `progress`.
    pub fn need_helper(&self) {
        (self.helper_needed)();
    }
}

#[cfg(test)]
mod tests {
    use netacc_device::FourTuple;
    use netacc_proto::{Role, StreamConfig};

    use super::super::Again;
    use super::*;
    use crate::LazyAnchor;

    fn stream() -> Arc<StreamCell> {
        let end = |port| ([127, 0, 0, 1], port).into();
        let tuple = FourTuple { local: end(1), remote: end(2) };
        let proto = (Role::Opener, StreamConfig { trust_hints: false });
        Arc::new(StreamCell::new(0, tuple.into(), proto, LazyAnchor::gone(), 0))
    }

    /// Breaks if a turn without work moved all lists, or if one passed over work that nothing else brings up.
    #[test]
    fn a_turn_takes_work_where_there_is_any() {
        let at = Instant::from_nanos;
        let queue: [fn(&mut Queued); 6] = [
            |queued| queued.checks.push(stream()),
            |queued| queued.blocked.push(stream()),
            |queued| queued.release.push(stream()),
            |queued| queued.claims.push(stream()),
            |queued| queued.dead.push(QueuePairId(1)),
            |queued| queued.owing.push(QueuePairId(1)),
        ];
        for (kind, queue) in queue.into_iter().enumerate() {
            let mut todo = Todo::default();
            assert!(todo.take(at(1)).is_none());
            queue(&mut todo.queued);
            assert!(todo.take(at(1)).is_some(), "of kind {kind}");
            assert!(todo.take(at(1)).is_none(), "of kind {kind}");
        }
        let mut todo = Todo::default();
        todo.timers.schedule(Timed::Setup(QueuePairId(1)), Again { since: at(1), at: at(5) });
        assert!(todo.take(at(4)).is_none());
        let (_, due) = todo.take(at(5)).expect("a timer is due");
        assert_eq!(due.len(), 1);
    }
}
