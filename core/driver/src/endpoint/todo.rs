//! Work noted under a lock that could not be done there, for [`Endpoint::progress`].
//!
//! Whoever notes some wakes whoever calls that. What is noted again by `progress` itself needs no waking: it says when it
//! wants to be called again.

use std::sync::Arc;

use netacc_device::{Instant, QueuePairId};

use super::Endpoint;
use crate::{LinkCell, StreamCell};

/// A stream or a link that is noted for something.
pub(crate) struct Entry<T> {
    pub(crate) item: Arc<T>,
    /// Since when that has lasted. `None`: `progress` has not seen it yet.
    pub(crate) since: Option<Instant>,
}

impl<T> Entry<T> {
    pub(crate) fn new(item: &Arc<T>) -> Entry<T> {
        Entry { item: item.clone(), since: None }
    }

    /// One that `progress` keeps.
    pub(crate) fn lasting(item: Arc<T>, since: Instant) -> Entry<T> {
        Entry { item, since: Some(since) }
    }
}

/// Work noted under a lock that could not be done there.
#[derive(Default)]
pub(super) struct Todo {
    /// Links whose streams wait for room, and since when `progress` has known. What they wait for usually tells them itself;
    /// this is for whatever does not, so it need not be soon.
    pub(super) starved: Vec<Entry<LinkCell>>,
    /// With the time since which they linger.
    pub(super) lingering: Vec<Entry<StreamCell>>,
    /// Streams whose anchor has shown what counts after a look at the link.
    pub(super) looks: Vec<Arc<StreamCell>>,
    /// Streams whose application waits to write until the pledge is answered, and since when.
    pub(super) pledged: Vec<Entry<StreamCell>>,
    /// Streams whose link has no room, and when that was looked at last.
    pub(super) stalled: Vec<Entry<StreamCell>>,
    /// Streams with the mere beginning of a record on the anchor, and since when.
    pub(super) partial: Vec<Entry<StreamCell>>,
    /// Streams that hold bytes back, and since when.
    pub(super) corked: Vec<Entry<StreamCell>>,
    /// Streams with records or replay that found the anchor full.
    pub(super) blocked: Vec<Arc<StreamCell>>,
    /// Acceptors' streams that are asked for on another link than theirs, and since when.
    pub(super) contested: Vec<Entry<StreamCell>>,
    pub(super) release: Vec<Arc<StreamCell>>,
    pub(super) dead: Vec<QueuePairId>,
    /// Dead links whose peers may be about to end, and since when.
    pub(super) dying: Vec<Entry<LinkCell>>,
    pub(super) claims: Vec<Arc<StreamCell>>,
    /// Links with receives or messages that the device would not take yet.
    pub(super) owing: Vec<QueuePairId>,
    /// Links that may carry no stream, and nobody waits for.
    pub(super) idle: Vec<Arc<LinkCell>>,
    /// Accepted links that have been empty at the last look.
    pub(super) empty: Vec<Arc<LinkCell>>,
    /// Links that are not ready for streams, or are and had none, and since when they have existed.
    pub(super) setup: Vec<Entry<LinkCell>>,
    /// When links that may fall silent unnoticed are looked at next; `None`: all rest. It stays from one `progress` to the
    /// next.
    pub(super) listen_at: Option<Instant>,
}

impl Todo {
    /// What there is to do now. What is looked at by the clock stays.
    pub(super) fn take(&mut self) -> Todo {
        let clock = Todo { listen_at: self.listen_at, ..Todo::default() };
        std::mem::replace(self, clock)
    }

    /// Whether `progress`, which leaves it so, is to be called again soon. What its very call has noted is to be seen, too:
    /// the caller was awake, so no wake-up will come for it.
    pub(super) fn wants_retry(&self) -> bool {
        let unseen = |noted: &[Entry<StreamCell>]| noted.iter().any(|entry| entry.since.is_none());
        !(self.starved.is_empty() && self.owing.is_empty() && self.blocked.is_empty() && self.dying.is_empty())
            || [&self.lingering, &self.partial, &self.pledged, &self.stalled, &self.corked, &self.contested]
                .into_iter()
                .any(|noted| unseen(noted))
            || self.setup.iter().any(|entry| entry.since.is_none())
    }
}

impl Endpoint {
    /// How much work `progress` has of each kind, for people.
    pub fn backlog(&self) -> [(&'static str, usize); 17] {
        let connecting = self.attempts.lock().len();
        let waiting = self.promotions.lock().waiting();
        let todo = self.todo.lock();
        [
            ("connecting", connecting),
            ("waiting", waiting),
            ("starved", todo.starved.len()),
            ("lingering", todo.lingering.len()),
            ("release", todo.release.len()),
            ("dead", todo.dead.len() + todo.dying.len()),
            ("claims", todo.claims.len()),
            ("owing", todo.owing.len()),
            ("idle", todo.idle.len()),
            ("looks", todo.looks.len()),
            ("blocked", todo.blocked.len()),
            ("partial", todo.partial.len()),
            ("pledged", todo.pledged.len()),
            ("stalled", todo.stalled.len()),
            ("corked", todo.corked.len()),
            ("setup", todo.setup.len()),
            ("contested", todo.contested.len()),
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
    /// Streams of the link wait for room, or for a completion.
    pub(crate) fn note_starved(&self, link: &Arc<LinkCell>) {
        self.todo.lock().starved.push(Entry::new(link));
        (self.helper_needed)();
    }

    /// They wait still. By `progress`, which says itself when it is to look again.
    pub(crate) fn renote_starved(&self, link: Arc<LinkCell>, since: Instant) {
        self.todo.lock().starved.push(Entry::lasting(link, since));
    }

    pub(crate) fn note_moved(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().claims.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_lingering(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().lingering.push(Entry::new(cell));
        (self.helper_needed)();
    }

    pub(crate) fn note_look(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().looks.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_corked(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().corked.push(Entry::new(cell));
        (self.helper_needed)();
    }

    pub(crate) fn note_pledged(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().pledged.push(Entry::new(cell));
        (self.helper_needed)();
    }

    pub(crate) fn note_stalled(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().stalled.push(Entry::new(cell));
        (self.helper_needed)();
    }

    /// It is stalled still. By `progress`, which says itself when it is to look again.
    pub(crate) fn renote_stalled(&self, cell: Arc<StreamCell>, looked: Instant) {
        self.todo.lock().stalled.push(Entry::lasting(cell, looked));
    }

    pub(crate) fn note_partial(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().partial.push(Entry::new(cell));
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
