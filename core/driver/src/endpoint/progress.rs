//! The control path: `progress` does the work that was queued, and computes when it must be called again.

use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use netacc_device::{Instant, QueuePairId};
use netacc_proto::{TxSink, LINGER_LIMIT, RECORD_GRACE};

use super::timers::{Kind, Timer};
use super::todo::Queued;
use super::{Again, Endpoint, Timed, RETRY_INTERVAL};
use crate::stream::{LingerProgress, Listed, CORK_INTERVAL};
use crate::{StreamCell, PLEDGE_PATIENCE};

/// As [`LINGER_LIMIT`] while the peer has bytes to read. The value is the time after which the kernel gives up an
/// orphan whose peer opens no window.
const UNREAD_LIMIT: Duration = Duration::from_secs(240);

/// The longest time between two checks of a lingering stream.
const LINGER_INTERVAL: Duration = Duration::from_secs(1);

impl Endpoint {
    /// The control path: connection events, streams waiting for a link, retries, releases, expiry. Returns when it
    /// wants to be called again even if nothing happens.
    pub fn progress(&self, now: Instant) -> Option<Instant> {
        self.handle_cm_events();
        self.poll(self.control_cq);
        let unaccepted = self.find_accepted(now);
        let waiting = self.place_waiting(now);
        let flows = self.progress_flows(now);
        let silence = self.check_silence(now);
        // Not in the condition: a lock taken there would be held throughout.
        let work = self.todo.lock().take(now);
        if let Some((queued, due)) = work {
            self.work_off(now, queued, due);
        }
        let expiry = self.expire_links(now);
        let todo = self.todo.lock();
        let retry = todo.wants_retry().then(|| now + RETRY_INTERVAL);
        Instant::earliest([retry, unaccepted, waiting, flows, silence, todo.timers.next(), expiry])
    }

    /// Does work that was queued, and checks timers that are due, in the order in which one may cause another.
    fn work_off(&self, now: Instant, queued: Queued, due: Vec<Timer>) {
        let mut due = due.into_iter().peekable();
        self.check_timers(now, &mut due, Kind::Dying);
        self.end_links(now, queued.dead);
        for link in queued.idle {
            self.park(&link, now);
        }
        self.send_owed(queued.owing);
        self.check_timers(now, &mut due, Kind::Starved);
        for cell in queued.checks {
            cell.take_in(self);
        }
        for cell in queued.blocked {
            cell.lock(self).change(|stream| {
                stream.inner.listed.remove(Listed::BLOCKED);
                stream.progress_anchor(false);
                stream.progress_end(now);
            });
        }
        self.check_timers(now, &mut due, Kind::Empty);
        // Not in the loop's head: a lock taken there would be held throughout the loop.
        let more = std::mem::take(&mut self.todo.lock().queued.release);
        let mut left_dead = false;
        for cell in queued.release.into_iter().chain(more) {
            left_dead |= self.release(&cell, now);
        }
        let left = std::mem::take(&mut self.todo.lock().queued.left);
        for left in queued.left.into_iter().chain(left) {
            left_dead |= self.release_left(left, now);
        }
        if left_dead {
            // The device frees the memory of a queue pair that has ended once nothing reads it any more.
            self.handle_cm_events();
        }
        for cell in queued.claims {
            self.sink.moved(&cell);
        }
    }

    fn handle_cm_events(&self) {
        let handle_all = || {
            while let Some(event) = self.cm.poll_event() {
                self.handle_cm_event(event);
            }
        };
        if self.cm.may_wait() {
            self.sink.wait_for_device(&mut || handle_all());
        } else {
            handle_all();
        }
    }

    /// Sends what links owe their peers: receives, and control messages.
    fn send_owed(&self, owing: Vec<QueuePairId>) {
        for qp in owing {
            let link = self.links.read().get(&qp).cloned();
            if let Some(link) = link {
                self.return_messages(&link, 0);
                let sent = link.tx.lock().resume(self.device());
                if !self.keep_sending(&link, sent) {
                    self.enqueue_dead(&link);
                }
            }
        }
    }

    /// Checks the timed entries that are due, up to a kind.
    fn check_timers(&self, now: Instant, due: &mut Peekable<vec::IntoIter<Timer>>, last: Kind) {
        while let Some(Timer { what, since: known, .. }) = due.next_if(|timer| timer.what.kind() <= last) {
            let since = known.unwrap_or(now);
            let again = match &what {
                Timed::Setup(qp) => self.check_setup(now, *qp, since),
                Timed::Dying(link) => self.end_link(now, link, since),
                Timed::Starved(link) => self.check_starved(now, link, since),
                Timed::Pledged(cell) => self.check_pledged(now, cell, since),
                Timed::Partial(cell, number) => self.check_partial(now, cell, *number, since),
                Timed::Stalled(cell) => self.check_stall(now, cell, since),
                Timed::Corked(cell) => self.check_corked(now, cell, known),
                Timed::Contested(cell) => self.check_contested(now, cell, since),
                Timed::Lingering(cell) => self.check_lingering(now, cell, since),
                Timed::Grown(cell) => self.check_growth(now, cell, since),
                Timed::Empty(qp) => self.check_empty(now, *qp, since),
            };
            if let Some(again) = again {
                self.todo.lock().timers.schedule(what, again);
            }
        }
    }

    /// Voids a pledge after the time limit for its writer.
    fn check_pledged(&self, now: Instant, cell: &Arc<StreamCell>, since: Instant) -> Option<Again> {
        let mut guard = cell.lock(self);
        if guard.tx_sink() == TxSink::Pledged && now.saturating_since(since) < PLEDGE_PATIENCE {
            return Some(Again { since, at: since + PLEDGE_PATIENCE });
        }
        guard.change(|stream| {
            stream.inner.listed.remove(Listed::PLEDGED);
            if stream.tx_sink() == TxSink::Pledged {
                stream.void_pledge();
            }
        });
        None
    }

    /// Treats an incomplete record as application bytes after the time limit.
    fn check_partial(&self, now: Instant, cell: &Arc<StreamCell>, number: u32, since: Instant) -> Option<Again> {
        let since = cell.lock(self).change(|stream| stream.wait_for_record(now, number, since))?;
        Some(Again { since, at: (since + RECORD_GRACE).max(now + RETRY_INTERVAL) })
    }

    /// Sends a peer the corked bytes after the time limit.
    fn check_corked(&self, now: Instant, cell: &Arc<StreamCell>, since: Option<Instant>) -> Option<Again> {
        let since = cell.lock(self).change(|stream| stream.check_cork(now, since))?;
        Some(Again { since, at: since + CORK_INTERVAL })
    }

    /// Brings a closed stream to its end.
    fn check_lingering(&self, now: Instant, cell: &Arc<StreamCell>, since: Instant) -> Option<Again> {
        let (listed, link) = {
            let guard = cell.lock(self);
            (guard.inner.listed.contains(Listed::LINGERING), guard.link().cloned())
        };
        if !listed {
            // It has come to its end meanwhile.
            return None;
        }
        // No thread of the program polls its link any more.
        if let Some(link) = link {
            self.poll_link(&link);
        }
        let (since, busy, lingers) = cell.lock(self).change(|stream| {
            stream.progress_anchor(false);
            stream.refresh_consumed();
            let left = stream.proto().unconsumed();
            // Since the last check: other threads make progress on the anchor, too.
            let now_at = LingerProgress { written: stream.inner.counters.tx_bytes_tcp, unconsumed: left };
            let busy = stream.refuse_unread() || stream.inner.closing.has_moved_to(now_at);
            let since = if busy { now } else { since };
            let limit = if left > 0 { UNREAD_LIMIT } else { LINGER_LIMIT };
            if stream.inner.lingers() && now.saturating_since(since) > limit {
                stream.inner.proto.abort();
                stream.inner.closing.refuse();
            }
            let lingers = stream.inner.lingers();
            if !lingers {
                stream.inner.listed.remove(Listed::LINGERING);
                // The slot on the link may be needed for longer; the connection ends here.
                stream.end_linger();
            }
            (since, busy, lingers)
        });
        if lingers {
            // Most are finished at the first check; streams that wait for their peer's program need longer.
            let patience = if busy { RETRY_INTERVAL } else { now.saturating_since(since) / 4 };
            return Some(Again { since, at: now + patience.clamp(RETRY_INTERVAL, LINGER_INTERVAL) });
        }
        self.enqueue_release(cell);
        None
    }

    /// Closes cached links that have not been used for long enough. Returns when the next one is due.
    fn expire_links(&self, now: Instant) -> Option<Instant> {
        loop {
            let expired = self.cache.lock().poll_expired(now);
            let Some(qp) = expired else { break };
            self.destroy_link(qp);
        }
        self.cache.lock().next_expiry()
    }
}
