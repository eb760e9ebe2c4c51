//! Streams and links with a time limit, ordered by the time of their next check.
//!
//! A check of the timers costs O(log n) for each entry that has expired, and nothing for the others. Except for the
//! entries of links that are set up, none is removed before its time: one that is not wanted any more is dropped at its
//! next check. So entries that live for seconds name a link by its queue pair, and do not keep it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use netacc_device::{Instant, QueuePairId};

use crate::{LinkCell, StreamCell};

/// A stream or a link with a time limit, and the reason.
pub(crate) enum Timed {
    /// A link that is not ready for streams, or is and had none; since it exists.
    Setup(QueuePairId),
    /// A dead link whose peer may be about to end; since it was found dead.
    Dying(Arc<LinkCell>),
    /// A link whose streams wait for room, or for a completion; since the last look. They are usually woken by the
    /// event that they wait for; this is the fallback, so it need not be soon.
    Starved(Arc<LinkCell>),
    /// A stream whose program waits to write until the pledge is answered.
    Pledged(Arc<StreamCell>),
    /// A stream with the mere beginning of a record on the anchor, and the number of that beginning.
    Partial(Arc<StreamCell>, u32),
    /// A stream whose link has no room; since the last look.
    Stalled(Arc<StreamCell>),
    /// A stream that holds bytes back.
    Corked(Arc<StreamCell>),
    /// An acceptor's stream that an OPEN requests on another link than its own.
    Contested(Arc<StreamCell>),
    /// A closed stream that has not come to its end; since it last got further.
    Lingering(Arc<StreamCell>),
    /// A stream that has written more than the beginning of its peer's ring; since it last wrote.
    Grown(Arc<StreamCell>),
    /// An accepted link that was empty at the last check, or one of ours that stays until its peer has consumed a message.
    Empty(QueuePairId),
}

/// The kinds of [`Timed`], in the order in which `progress` checks those that are due at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Setup,
    Dying,
    Starved,
    Pledged,
    Partial,
    Stalled,
    Corked,
    Contested,
    Lingering,
    Grown,
    Empty,
}

/// The number of variants of [`Kind`].
const KINDS: usize = Kind::Empty as usize + 1;

impl Timed {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Timed::Setup(_) => Kind::Setup,
            Timed::Dying(_) => Kind::Dying,
            Timed::Starved(_) => Kind::Starved,
            Timed::Pledged(_) => Kind::Pledged,
            Timed::Partial(..) => Kind::Partial,
            Timed::Stalled(_) => Kind::Stalled,
            Timed::Corked(_) => Kind::Corked,
            Timed::Contested(_) => Kind::Contested,
            Timed::Lingering(_) => Kind::Lingering,
            Timed::Grown(_) => Kind::Grown,
            Timed::Empty(_) => Kind::Empty,
        }
    }
}

/// An entry that is due.
pub(super) struct Timer {
    pub(super) what: Timed,
    /// The time at which that began. `None`: `progress` has not seen it yet.
    pub(super) since: Option<Instant>,
    sequence: u64,
}

/// The result of checking a timer that must be checked again.
#[derive(Clone, Copy)]
pub(crate) struct Again {
    /// The time at which that began, from now on.
    pub(crate) since: Instant,
    /// The time of the next check.
    pub(crate) at: Instant,
}

/// The timed entries.
#[derive(Default)]
pub(super) struct Timers {
    /// Entries that no `progress` has seen yet.
    fresh: Vec<Timer>,
    /// By the time of the next check, and by number, so that replays have the same order.
    scheduled: BTreeMap<Key, Timer>,
    /// The scheduled entries of links that are set up.
    setups: HashMap<QueuePairId, Key>,
    /// The number of entries of each kind.
    counts: [usize; KINDS],
    /// The number of the next entry.
    sequence: u64,
}

type Key = (Instant, u64);

impl Timers {
    /// Adds an entry for the next `progress` to check, whatever the time.
    pub(super) fn add(&mut self, what: Timed) {
        let timer = self.number(what, None);
        self.fresh.push(timer);
    }

    /// Adds an entry that is checked again at a certain time.
    pub(super) fn schedule(&mut self, what: Timed, Again { since, at }: Again) {
        let timer = self.number(what, Some(since));
        let key = (at, timer.sequence);
        if let Timed::Setup(qp) = timer.what {
            self.setups.insert(qp, key);
        }
        self.scheduled.insert(key, timer);
    }

    /// The link is set up, and has had a stream, or has ended.
    pub(super) fn end_setup(&mut self, qp: QueuePairId) {
        if let Some(key) = self.setups.remove(&qp) {
            self.scheduled.remove(&key);
            self.counts[Kind::Setup as usize] -= 1;
        }
    }

    fn number(&mut self, what: Timed, since: Option<Instant>) -> Timer {
        self.counts[what.kind() as usize] += 1;
        self.sequence += 1;
        Timer { what, since, sequence: self.sequence }
    }

    /// Takes the entries that are to be checked at `now`, in the order of [`Kind`]; those of a kind stay in theirs.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Timer> {
        let mut due = std::mem::take(&mut self.fresh);
        while let Some(first) = self.scheduled.first_entry().filter(|first| first.key().0 <= now) {
            let timer = first.remove();
            if let Timed::Setup(qp) = timer.what {
                self.setups.remove(&qp);
            }
            due.push(timer);
        }
        for timer in &due {
            self.counts[timer.what.kind() as usize] -= 1;
        }
        due.sort_unstable_by_key(|timer| (timer.what.kind(), timer.sequence));
        due
    }

    /// The time of the next check.
    pub(super) fn next(&self) -> Option<Instant> {
        self.scheduled.first_key_value().map(|((at, _), _)| *at)
    }

    /// The number of entries of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize]
    }

    /// Whether entries wait for the next `progress`.
    pub(super) fn has_unseen(&self) -> bool {
        !self.fresh.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn numbers(due: Vec<Timer>) -> Vec<(Kind, u32)> {
        let number = |timer: &Timer| match &timer.what {
            Timed::Setup(qp) | Timed::Empty(qp) => qp.0,
            _ => unreachable!("the tests have no others"),
        };
        due.iter().map(|timer| (timer.what.kind(), number(timer))).collect()
    }

    /// Breaks if entries were lost, came before their time, or in another order than that of their kinds.
    #[test]
    fn entries_come_when_they_are_due_in_the_order_of_their_kinds() {
        let mut timers = Timers::default();
        timers.schedule(Timed::Empty(QueuePairId(1)), Again { since: at(0), at: at(10) });
        timers.schedule(Timed::Setup(QueuePairId(2)), Again { since: at(0), at: at(20) });
        timers.schedule(Timed::Setup(QueuePairId(3)), Again { since: at(0), at: at(20) });
        timers.add(Timed::Empty(QueuePairId(4)));
        assert!(timers.has_unseen());
        assert_eq!((timers.count(Kind::Setup), timers.count(Kind::Empty)), (2, 2));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(numbers(timers.take_due(at(9))), [(Kind::Empty, 4)]);
        assert!(!timers.has_unseen());
        let due = numbers(timers.take_due(at(20)));
        assert_eq!(due, [(Kind::Setup, 2), (Kind::Setup, 3), (Kind::Empty, 1)]);
        assert_eq!((timers.count(Kind::Setup), timers.count(Kind::Empty), timers.next()), (0, 0, None));
    }

    /// Breaks if an idle process woke up for a link that was set up in time.
    #[test]
    fn a_link_that_is_set_up_has_no_timer() {
        let mut timers = Timers::default();
        for qp in [5, 6] {
            timers.schedule(Timed::Setup(QueuePairId(qp)), Again { since: at(0), at: at(10) });
        }
        timers.end_setup(QueuePairId(5));
        timers.end_setup(QueuePairId(5));
        assert_eq!((timers.count(Kind::Setup), numbers(timers.take_due(at(10)))), (1, vec![(Kind::Setup, 6)]));
        timers.end_setup(QueuePairId(6));
        assert_eq!((timers.count(Kind::Setup), timers.next()), (0, None));
    }
}
