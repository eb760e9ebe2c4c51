//! Frees a stream's resources on its link, and caches or ends a link without streams.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Instant, QueuePairId};

use super::{Again, Endpoint, Timed};
use crate::stream::{Attachment, Listed};
use crate::{LinkCell, StreamCell};

/// How much longer than twice its own limit the accepting side keeps an empty link. Arbitrary: so the connector, which
/// owns the cache, expires the link first, even where it has a longer limit or this side keeps no links.
const ACCEPTED_GRACE: Duration = Duration::from_secs(10);

impl Endpoint {
    /// Frees a stream's resources on its link, if neither side uses them any more. Returns whether the link was dead.
    pub(super) fn release(&self, cell: &Arc<StreamCell>, now: Instant) -> bool {
        let freed = cell.lock(self).change(|stream| {
            stream.inner.listed.remove(Listed::RELEASE);
            if !stream.inner.is_idle() {
                return None;
            }
            let closed = stream.inner.closing.is_closed();
            if closed {
                // Another thread may have found it finished before the check of lingering streams did.
                stream.inner.listed.remove(Listed::LINGERING);
                stream.end_linger();
            }
            let inner = &mut *stream.inner;
            let referred_to = inner.attempt.referral.take().filter(|_| !closed);
            Some((closed, inner.attached.take(), inner.proto.slot(), referred_to))
        });
        let Some((closed, attached, slot, referred_to)) = freed else { return false };
        let was_attached = attached.is_some();
        let alive = attached.filter(|at| !at.link.is_dead());
        let left_dead = was_attached && alive.is_none();
        if let Some(Attachment { link, region, outgoing, _tallied: _ }) = alive {
            if let Some(outgoing) = outgoing {
                self.free_outgoing(&link, outgoing);
            }
            link.free_region(self.device(), region);
            self.free_slot(&link, slot, cell, now);
        }
        if closed {
            self.forget(cell);
        }
        if let Some(peer) = referred_to {
            self.follow_referral(cell, peer);
        }
        left_dead
    }

    fn free_slot(&self, link: &Arc<LinkCell>, slot: u16, cell: &Arc<StreamCell>, now: Instant) {
        let mut rx = link.rx.lock();
        let Some(entry) = rx.slots.get_mut(usize::from(slot)) else { return };
        if !entry.as_ref().is_some_and(|c| Arc::ptr_eq(c, cell)) {
            return;
        }
        *entry = None;
        let mut tx = link.tx.lock();
        tx.proto.free_slot(netacc_proto::SlotId(slot));
        let empty = tx.proto.streams() == 0;
        drop(tx);
        drop(rx);
        if link.connector {
            self.promotions.lock().freed(link.peer);
        }
        if empty {
            self.park(link, now);
        }
    }

    /// Keeps an empty link for the next stream, or closes it.
    pub(super) fn park(&self, link: &Arc<LinkCell>, now: Instant) {
        let awaited = self.promotions.lock().awaits(link.peer, link.qp);
        if link.is_dying() || awaited || link.tx.lock().proto.streams() > 0 {
            return;
        }
        self.rebind(link, self.control_cq);
        //= spec §2.4.1
        //# A side keeps an empty link for its next stream, within the bounds of NACC_EMPTY_QP_*, or closes it.
        if link.connector {
            let mut cache = self.cache.lock();
            cache.remove(link.qp);
            let evicted = cache.insert(link.qp, link.peer, now);
            drop(cache);
            if let Some(evicted) = evicted {
                self.destroy_link(evicted);
            }
        } else if let Some(limit) = self.accepted_limit() {
            if link.tx.lock().empty_since.replace(now).is_none() {
                let again = Again { since: now, at: now + limit };
                self.todo.lock().timers.schedule(Timed::Empty(link.qp), again);
            }
        }
    }

    /// How long an empty link is kept on the accepting side.
    fn accepted_limit(&self) -> Option<Duration> {
        self.config.cache.expire.map(|expire| expire * 2 + ACCEPTED_GRACE)
    }

    /// Closes an accepted link that has been empty for too long.
    pub(super) fn check_empty(&self, now: Instant, qp: QueuePairId) -> Option<Again> {
        let limit = self.accepted_limit()?;
        let link = self.links.read().get(&qp).cloned()?;
        let mut tx = link.tx.lock();
        let Some(since) = tx.empty_since.filter(|_| tx.proto.streams() == 0 && !link.is_dying()) else {
            tx.empty_since = None;
            return None;
        };
        drop(tx);
        //= spec §2.4.2
        //# The accepting side closes a link that has been empty for twice its own NACC_EMPTY_QP_EXPIRE_MS and 10 s more.
        let at = since + limit;
        if now < at {
            return Some(Again { since, at });
        }
        // An OPEN that comes at this moment is lost, as on a link that dies.
        self.destroy_link(link.qp);
        None
    }
}
