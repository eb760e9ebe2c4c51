//! The control path: what `progress` does with the work that was noted, and when it wants to be called again.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Instant, QueuePairId};
use netacc_proto::{TxSink, LINGER_LIMIT, RECORD_GRACE};

use super::todo::Entry;
use super::{Endpoint, RETRY_INTERVAL};
use crate::stream::{LingerProgress, Noted, CORK_INTERVAL};
use crate::{StreamCell, PLEDGE_PATIENCE};

/// As [`LINGER_LIMIT`] while the peer has bytes to read: as the kernel gives up an orphan whose peer opens no window.
const UNREAD_LIMIT: Duration = Duration::from_secs(240);

/// How long a lingering stream is left alone at most.
const LINGER_INTERVAL: Duration = Duration::from_secs(1);

/// The earliest of some times. Numbers are compared, as a compiler may compare what is undefined in a `None`, and ignore
/// the result: valgrind reports that to the program.
fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    let least = times.into_iter().map(|time| time.map_or(u64::MAX, Instant::as_nanos)).min()?;
    (least != u64::MAX).then(|| Instant::from_nanos(least))
}

impl Endpoint {
    /// The control path: connection events, streams waiting for a link, retries, releases, expiry. Returns when it
    /// wants to be called again even if nothing happens.
    pub fn progress(&self, now: Instant) -> Option<Instant> {
        while let Some(event) = self.cm.poll_event() {
            self.handle_cm_event(event);
        }
        self.poll(self.control_cq);
        self.place_waiting();
        let silence = self.look_for_silence(now);
        let todo = self.todo.lock().take();
        let setup = self.look_at_setups(now, todo.setup);
        self.end_links(now, todo.dying, todo.dead);
        for link in todo.idle {
            self.park(&link, now);
        }
        self.send_owed(todo.owing);
        self.look_at_starved(now, todo.starved);
        for cell in todo.looks {
            cell.take_in(self);
        }
        for cell in todo.blocked {
            cell.lock(self).change(|stream| {
                stream.inner.noted.remove(Noted::BLOCKED);
                stream.progress_anchor(false);
                stream.settle_end(now);
            });
        }
        let pledged = self.look_at_pledged(now, todo.pledged);
        let partial = self.look_at_partial(now, todo.partial);
        let stalled = self.look_at_stalls(now, todo.stalled);
        let corked = self.look_at_corked(now, todo.corked);
        let contested = self.look_at_contested(now, todo.contested);
        let lingering = self.look_at_lingering(now, todo.lingering);
        let empty = self.look_at_empty(now, todo.empty);
        // Not in the loop's head: a lock taken there would be held throughout the loop.
        let more = std::mem::take(&mut self.todo.lock().release);
        for cell in todo.release.into_iter().chain(more) {
            self.release(&cell, now);
        }
        for cell in todo.claims {
            self.sink.moved(&cell);
        }
        let expiry = self.expire_links(now);
        let again = self.todo.lock().wants_retry();
        let retry = again.then(|| now + RETRY_INTERVAL);
        earliest([retry, setup, silence, pledged, partial, stalled, corked, contested, lingering, empty, expiry])
    }

    /// Sends what links owe their peers: receives, and messages of their own.
    fn send_owed(&self, owing: Vec<QueuePairId>) {
        for qp in owing {
            let link = self.links.read().get(&qp).cloned();
            if let Some(link) = link {
                self.return_messages(&link, 0);
                let sent = link.tx.lock().resume(self.device());
                if !self.keep_sending(&link, sent) {
                    self.note_dead(&link);
                }
            }
        }
    }

    /// Voids pledges that writers have waited for long enough. Returns when it wants to look again.
    fn look_at_pledged(&self, now: Instant, pledged: Vec<Entry<StreamCell>>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for Entry { item: cell, since } in pledged {
            let since = since.unwrap_or(now);
            let mut guard = cell.lock(self);
            if guard.tx_sink() == TxSink::Pledged && now.saturating_since(since) < PLEDGE_PATIENCE {
                drop(guard);
                self.todo.lock().pledged.push(Entry::lasting(cell, since));
                next = Some(next.map_or(since + PLEDGE_PATIENCE, |at| at.min(since + PLEDGE_PATIENCE)));
                continue;
            }
            guard.change(|stream| {
                stream.inner.noted.remove(Noted::PLEDGED);
                if stream.tx_sink() == TxSink::Pledged {
                    stream.void_pledge();
                }
            });
        }
        next
    }

    /// Takes for bytes what has not become a record in time. Returns when it wants to look again.
    fn look_at_partial(&self, now: Instant, partial: Vec<Entry<StreamCell>>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for Entry { item: cell, since } in partial {
            // Its look notes it again, from now on: that note is replaced by the one that knows since when.
            let since = cell.lock(self).change(|stream| stream.wait_for_record(now, since.unwrap_or(now)));
            let Some(since) = since else { continue };
            let mut todo = self.todo.lock();
            todo.partial.retain(|entry| !Arc::ptr_eq(&entry.item, &cell));
            todo.partial.push(Entry::lasting(cell, since));
            let at = (since + RECORD_GRACE).max(now + RETRY_INTERVAL);
            next = Some(next.map_or(at, |n| n.min(at)));
        }
        next
    }

    /// Tells peers of what was held back for long enough. Returns when it wants to look again.
    fn look_at_corked(&self, now: Instant, corked: Vec<Entry<StreamCell>>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for Entry { item: cell, since } in corked {
            let since = cell.lock(self).change(|stream| stream.look_at_held(now, since));
            if let Some(since) = since {
                self.todo.lock().corked.push(Entry::lasting(cell, since));
                let due = since + CORK_INTERVAL;
                next = Some(next.map_or(due, |at| at.min(due)));
            }
        }
        next
    }

    /// Brings closed streams to their end. Returns when it wants to look again.
    fn look_at_lingering(&self, now: Instant, lingering: Vec<Entry<StreamCell>>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for Entry { item: cell, since } in lingering {
            // No thread of the program looks at its link any more.
            let link = cell.lock(self).link().cloned();
            if let Some(link) = link {
                self.poll_link(&link);
            }
            let (since, busy, lingers) = cell.lock(self).change(|stream| {
                stream.progress_anchor(false);
                stream.refresh_consumed();
                let left = stream.proto().unconsumed();
                // Since the last look: others make progress on the anchor, too.
                let now_at = LingerProgress { written: stream.inner.counters.tx_bytes_tcp, unconsumed: left };
                let busy = stream.refuse_unread() || stream.inner.closing.has_moved_to(now_at);
                let since = since.filter(|_| !busy).unwrap_or(now);
                let limit = if left > 0 { UNREAD_LIMIT } else { LINGER_LIMIT };
                if stream.inner.lingers() && now.saturating_since(since) > limit {
                    stream.inner.proto.abort();
                    stream.inner.closing.refuse();
                }
                let lingers = stream.inner.lingers();
                if !lingers {
                    // The slot on the link may be needed for longer; the connection ends here.
                    stream.end_linger();
                }
                (since, busy, lingers)
            });
            if lingers {
                self.todo.lock().lingering.push(Entry::lasting(cell, since));
                // Most are through at the first look; those that wait for their peer's application need patience.
                let patience = if busy { RETRY_INTERVAL } else { now.saturating_since(since) / 4 };
                let patience = patience.clamp(RETRY_INTERVAL, LINGER_INTERVAL);
                next = Some(next.map_or(now + patience, |at| at.min(now + patience)));
            } else {
                self.note_release(&cell);
            }
        }
        next
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
