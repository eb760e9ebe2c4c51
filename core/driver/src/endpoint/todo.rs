//! Work that could not be done under a lock, queued for [`Endpoint::progress`].
//!
//! A thread that queues work wakes the thread that calls `progress`. Work that `progress` itself queues again needs no
//! wake-up: it returns when it must be called again.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use netacc_device::{Instant, QueuePairId};

use super::Endpoint;
use crate::{LinkCell, StreamCell};

/// A stream or a link with a time limit, and the reason.
pub(crate) enum Timed {
    /// A link that is not ready for streams, or is and had none; since it exists.
    Setup(Arc<LinkCell>),
    /// A dead link whose peer may be about to end; since it was found dead.
    Dying(Arc<LinkCell>),
    /// A link whose streams wait for room, or for a completion; since the last look. They are usually woken by the
    /// event that they wait for; this is the fallback, so it need not be soon.
    Starved(Arc<LinkCell>),
    /// A stream whose program waits to write until the pledge is answered.
    Pledged(Arc<StreamCell>),
    /// A stream with the mere beginning of a record on the anchor.
    Partial(Arc<StreamCell>),
    /// A stream whose link has no room; since the last look.
    Stalled(Arc<StreamCell>),
    /// A stream that holds bytes back.
    Corked(Arc<StreamCell>),
    /// An acceptor's stream that an OPEN requests on another link than its own.
    Contested(Arc<StreamCell>),
    /// A closed stream that has not come to its end; since it last got further.
    Lingering(Arc<StreamCell>),
    /// An accepted link that was empty at the last check.
    Empty(Arc<LinkCell>),
}

/// The kinds of [`Timed`], in the order in which `progress` checks them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    Empty,
}

impl Timed {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Timed::Setup(_) => Kind::Setup,
            Timed::Dying(_) => Kind::Dying,
            Timed::Starved(_) => Kind::Starved,
            Timed::Pledged(_) => Kind::Pledged,
            Timed::Partial(_) => Kind::Partial,
            Timed::Stalled(_) => Kind::Stalled,
            Timed::Corked(_) => Kind::Corked,
            Timed::Contested(_) => Kind::Contested,
            Timed::Lingering(_) => Kind::Lingering,
            Timed::Empty(_) => Kind::Empty,
        }
    }
}

/// An entry of [`Timers`].
pub(super) struct Timer {
    pub(super) what: Timed,
    /// The time at which that began. `None`: `progress` has not seen it yet.
    pub(super) since: Option<Instant>,
}

/// The result of checking a timer that must be checked again.
pub(crate) struct Again {
    /// The time at which that began, from now on.
    pub(crate) since: Instant,
    /// The time of the next check.
    pub(crate) at: Instant,
}

/// The timed entries. Each `progress` takes all of them, and keeps those that are not finished.
#[derive(Default)]
pub(super) struct Timers(Vec<Timer>);

impl Timers {
    /// Adds an entry for `progress` to find.
    pub(super) fn note(&mut self, what: Timed) {
        self.0.push(Timer { what, since: None });
    }

    /// An entry that `progress` adds itself; it returns when it must be called again.
    pub(super) fn keep(&mut self, what: Timed, since: Instant) {
        self.0.push(Timer { what, since: Some(since) });
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.0.iter().filter(|timer| timer.what.kind() == kind).count()
    }

    /// Drops the entries for a partial record of `cell`.
    pub(super) fn forget_partial(&mut self, cell: &Arc<StreamCell>) {
        self.0.retain(|timer| !matches!(&timer.what, Timed::Partial(noted) if Arc::ptr_eq(noted, cell)));
    }

    /// In the order of [`Kind`]; those of a kind stay in theirs.
    pub(super) fn sorted(mut self) -> Peekable<vec::IntoIter<Timer>> {
        self.0.sort_by_key(|timer| timer.what.kind());
        self.0.into_iter().peekable()
    }

    fn has_unseen(&self) -> bool {
        self.0.iter().any(|timer| timer.since.is_none())
    }
}

/// Work that could not be done under a lock.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) timers: Timers,
    /// Streams whose anchor has shown events that count after another poll of the link.
    pub(super) looks: Vec<Arc<StreamCell>>,
    /// Streams with records or replay that found the anchor full.
    pub(super) blocked: Vec<Arc<StreamCell>>,
    pub(super) release: Vec<Arc<StreamCell>>,
    pub(super) dead: Vec<QueuePairId>,
    pub(super) claims: Vec<Arc<StreamCell>>,
    /// Links with receives or messages that the device would not take yet.
    pub(super) owing: Vec<QueuePairId>,
    /// Links that may carry no stream, and that no stream waits for.
    pub(super) idle: Vec<Arc<LinkCell>>,
    /// The time of the next check of links that may become silent without an error; `None`: all rest. It stays from one
    /// `progress` to the next.
    pub(super) listen_at: Option<Instant>,
}

impl Todo {
    /// Takes the work that is queued now.
    pub(super) fn take(&mut self) -> Todo {
        let clock = Todo { listen_at: self.listen_at, ..Todo::default() };
        std::mem::replace(self, clock)
    }

    /// Whether `progress`, which leaves the work in this state, is to be called again soon. Work that the same call has
    /// queued counts too: the caller was awake, so no wake-up will come for it.
    pub(super) fn wants_retry(&self) -> bool {
        !(self.owing.is_empty() && self.blocked.is_empty()) || self.timers.has_unseen()
    }
}

impl Endpoint {
    /// The amount of work that `progress` has of each kind, for human readers.
    pub fn backlog(&self) -> [(&'static str, usize); 17] {
        let connecting = self.attempts.lock().len();
        let waiting = self.promotions.lock().waiting();
        let todo = self.todo.lock();
        let timed = |kind| todo.timers.count(kind);
        [
            ("connecting", connecting),
            ("waiting", waiting),
            ("starved", timed(Kind::Starved)),
            ("lingering", timed(Kind::Lingering)),
            ("release", todo.release.len()),
            ("dead", todo.dead.len() + timed(Kind::Dying)),
            ("claims", todo.claims.len()),
            ("owing", todo.owing.len()),
            ("idle", todo.idle.len()),
            ("looks", todo.looks.len()),
            ("blocked", todo.blocked.len()),
            ("partial", timed(Kind::Partial)),
            ("pledged", timed(Kind::Pledged)),
            ("stalled", timed(Kind::Stalled)),
            ("corked", timed(Kind::Corked)),
            ("setup", timed(Kind::Setup)),
            ("contested", timed(Kind::Contested)),
        ]
    }

    /// Whether `progress` has work to do at once.
    pub fn has_work(&self) -> bool {
        let todo = self.todo.lock();
        !(todo.dead.is_empty()
            && todo.release.is_empty()
            && todo.claims.is_empty()
            && todo.idle.is_empty()
            && todo.looks.is_empty())
    }

    /// Adds a timed entry for `progress`.
    pub(crate) fn note(&self, what: Timed) {
        self.todo.lock().timers.note(what);
        (self.helper_needed)();
    }

    pub(crate) fn note_moved(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().claims.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_look(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().looks.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_blocked(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().blocked.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_release(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().release.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_idle(&self, link: &Arc<LinkCell>) {
        self.todo.lock().idle.push(link.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_owing(&self, link: &Arc<LinkCell>) {
        self.todo.lock().owing.push(link.qp);
        (self.helper_needed)();
    }

    /// Wakes the thread that calls `progress`.
    pub fn need_helper(&self) {
        (self.helper_needed)();
    }
}
