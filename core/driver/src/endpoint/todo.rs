//! Work noted under a lock that could not be done there, for [`Endpoint::progress`].
//!
//! Whoever notes some wakes whoever calls that. What is noted again by `progress` itself needs no waking: it says when it
//! wants to be called again.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use netacc_device::{Instant, QueuePairId};

use super::Endpoint;
use crate::{LinkCell, StreamCell};

/// A stream or a link that is looked at by the clock, and for what.
pub(crate) enum Timed {
    /// A link that is not ready for streams, or is and had none; since it exists.
    Setup(Arc<LinkCell>),
    /// A dead link whose peer may be about to end; since it was found dead.
    Dying(Arc<LinkCell>),
    /// A link whose streams wait for room, or for a completion; since the last look. What they wait for usually tells them
    /// itself; this is for whatever does not, so it need not be soon.
    Starved(Arc<LinkCell>),
    /// A stream whose application waits to write until the pledge is answered.
    Pledged(Arc<StreamCell>),
    /// A stream with the mere beginning of a record on the anchor.
    Partial(Arc<StreamCell>),
    /// A stream whose link has no room; since the last look.
    Stalled(Arc<StreamCell>),
    /// A stream that holds bytes back.
    Corked(Arc<StreamCell>),
    /// An acceptor's stream that is asked for on another link than its own.
    Contested(Arc<StreamCell>),
    /// A closed stream that has not come to its end; since it last got further.
    Lingering(Arc<StreamCell>),
    /// An accepted link that was empty at the last look.
    Empty(Arc<LinkCell>),
}

/// The kinds of [`Timed`], in the order in which `progress` looks at them.
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
    /// Since when that has lasted. `None`: `progress` has not seen it yet.
    pub(super) since: Option<Instant>,
}

/// What a look at a timer came to where it is to be looked at again.
pub(crate) struct Again {
    /// Since when it has lasted, from now on.
    pub(crate) since: Instant,
    /// When to look.
    pub(crate) at: Instant,
}

/// What is looked at by the clock. Each `progress` takes all of it, and keeps what it does not settle.
#[derive(Default)]
pub(super) struct Timers(Vec<Timer>);

impl Timers {
    /// Something that `progress` is to find.
    pub(super) fn note(&mut self, what: Timed) {
        self.0.push(Timer { what, since: None });
    }

    /// Something that `progress` knows, and says itself when it wants to look again.
    pub(super) fn keep(&mut self, what: Timed, since: Instant) {
        self.0.push(Timer { what, since: Some(since) });
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.0.iter().filter(|timer| timer.what.kind() == kind).count()
    }

    /// Drops the notes of a partial record of `cell`.
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

/// Work noted under a lock that could not be done there.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) timers: Timers,
    /// Streams whose anchor has shown what counts after a look at the link.
    pub(super) looks: Vec<Arc<StreamCell>>,
    /// Streams with records or replay that found the anchor full.
    pub(super) blocked: Vec<Arc<StreamCell>>,
    pub(super) release: Vec<Arc<StreamCell>>,
    pub(super) dead: Vec<QueuePairId>,
    pub(super) claims: Vec<Arc<StreamCell>>,
    /// Links with receives or messages that the device would not take yet.
    pub(super) owing: Vec<QueuePairId>,
    /// Links that may carry no stream, and nobody waits for.
    pub(super) idle: Vec<Arc<LinkCell>>,
    /// When links that may fall silent unnoticed are looked at next; `None`: all rest. It stays from one `progress` to the
    /// next.
    pub(super) listen_at: Option<Instant>,
}

impl Todo {
    /// What there is to do now.
    pub(super) fn take(&mut self) -> Todo {
        let clock = Todo { listen_at: self.listen_at, ..Todo::default() };
        std::mem::replace(self, clock)
    }

    /// Whether `progress`, which leaves it so, is to be called again soon. What its very call has noted is to be seen, too:
    /// the caller was awake, so no wake-up will come for it.
    pub(super) fn wants_retry(&self) -> bool {
        !(self.owing.is_empty() && self.blocked.is_empty()) || self.timers.has_unseen()
    }
}

impl Endpoint {
    /// How much work `progress` has of each kind, for people.
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

    /// Whether `progress` has something to do at once.
    pub fn has_work(&self) -> bool {
        let todo = self.todo.lock();
        !(todo.dead.is_empty()
            && todo.release.is_empty()
            && todo.claims.is_empty()
            && todo.idle.is_empty()
            && todo.looks.is_empty())
    }

    /// Has `progress` look at something by the clock.
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

    /// Wakes whoever calls `progress`.
    pub fn need_helper(&self) {
        (self.helper_needed)();
    }
}
