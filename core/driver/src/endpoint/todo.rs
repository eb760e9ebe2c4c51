//! Work noted under a lock that could not be done there, for [`Endpoint::progress`].
//!
//! Whoever notes some wakes whoever calls that. What is noted again by `progress` itself needs no waking: it says when it
//! wants to be called again.

use std::sync::Arc;

use netacc_device::{Instant, QueuePairId};

use super::Endpoint;
use crate::link::LinkCell;
use crate::StreamCell;
/// Work noted under a lock that could not be done there.
#[derive(Default)]
pub(super) struct Todo {
    /// Streams that their link had no room for, and since when `progress` has known. What they wait for usually tells
    /// them itself; this is for whatever does not, so it need not be soon.
    pub(super) starved: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// With the time since which they linger.
    pub(super) lingering: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams whose anchor has ended, to be taken in after a look at the link.
    pub(super) ended: Vec<Arc<StreamCell>>,
    /// Streams whose application waits to write until the pledge is answered, and since when.
    pub(super) pledged: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams whose link has no room, and since when their peer has taken nothing.
    pub(super) stalled: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams with the mere beginning of a record on the anchor, and since when.
    pub(super) partial: Vec<(Arc<StreamCell>, Option<Instant>)>,
    /// Streams with records or replay that found the anchor full.
    pub(super) blocked: Vec<Arc<StreamCell>>,
    pub(super) release: Vec<Arc<StreamCell>>,
    pub(super) dead: Vec<QueuePairId>,
    /// Dead links whose peers may be about to end, and since when.
    pub(super) dying: Vec<(Arc<LinkCell>, Instant)>,
    pub(super) claims: Vec<Arc<StreamCell>>,
    /// Links with receives or messages that the device would not take yet.
    pub(super) owing: Vec<QueuePairId>,
    /// Links that may carry no stream, and nobody waits for.
    pub(super) idle: Vec<Arc<LinkCell>>,
    /// Links that are not ready for streams, and since when.
    pub(super) setup: Vec<(Arc<LinkCell>, Option<Instant>)>,
}

impl Endpoint {
    /// How much work `progress` has of each kind, for people.
    pub fn backlog(&self) -> [(&'static str, usize); 13] {
        let todo = self.todo.lock();
        [
            ("starved", todo.starved.len()),
            ("lingering", todo.lingering.len()),
            ("release", todo.release.len()),
            ("dead", todo.dead.len() + todo.dying.len()),
            ("claims", todo.claims.len()),
            ("owing", todo.owing.len()),
            ("idle", todo.idle.len()),
            ("ended", todo.ended.len()),
            ("blocked", todo.blocked.len()),
            ("partial", todo.partial.len()),
            ("pledged", todo.pledged.len()),
            ("stalled", todo.stalled.len()),
            ("setup", todo.setup.len()),
        ]
    }

    /// Whether `progress` has something to do at once.
    pub fn has_work(&self) -> bool {
        let todo = self.todo.lock();
        !(todo.dead.is_empty()
            && todo.release.is_empty()
            && todo.claims.is_empty()
            && todo.idle.is_empty()
            && todo.ended.is_empty())
    }
    /// The stream has control messages that its link could not take.
    pub(crate) fn note_starved(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().starved.push((cell.clone(), None));
        (self.helper_needed)();
    }

    pub(crate) fn note_moved(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().claims.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_lingering(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().lingering.push((cell.clone(), None));
        (self.helper_needed)();
    }

    pub(crate) fn note_ended(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().ended.push(cell.clone());
        (self.helper_needed)();
    }

    pub(crate) fn note_pledged(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().pledged.push((cell.clone(), None));
        (self.helper_needed)();
    }

    pub(crate) fn note_stalled(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().stalled.push((cell.clone(), None));
        (self.helper_needed)();
    }

    /// It is stalled still. By `progress`, which says itself when it is to look again.
    pub(crate) fn renote_stalled(&self, cell: Arc<StreamCell>, since: Instant) {
        self.todo.lock().stalled.push((cell, Some(since)));
    }

    pub(crate) fn note_partial(&self, cell: &Arc<StreamCell>) {
        self.todo.lock().partial.push((cell.clone(), None));
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
