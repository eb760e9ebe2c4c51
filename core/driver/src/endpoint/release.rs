//! Frees a stream's resources on its link, and caches or ends a link without streams.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Instant, QueuePairId};
use netacc_proto::SlotId;

use super::todo::Left;
use super::{Again, Endpoint, Timed};
use crate::link::LinkRx;
use crate::stream::{Attachment, Listed};
use crate::{LinkCell, StreamCell};

/// How much longer than twice its own limit the accepting side keeps an empty link. Arbitrary: so the connector, which
/// owns the cache, expires the link first, even where it has a longer limit or this side keeps no links.
const ACCEPTED_GRACE: Duration = Duration::from_secs(10);

/// How long an empty link stays because its peer may not have consumed our answer to CLOSE. Arbitrary, much longer than a round
/// trip: a peer whose process is stopped consumes nothing.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How often such a link is checked. Arbitrary.
const ANSWER_INTERVAL: Duration = Duration::from_millis(5);

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
        let left = attached.map(|attached| Left { cell: cell.clone(), attached, slot });
        let left_dead = left.is_some_and(|left| self.release_left(left, now));
        if closed {
            self.forget(cell);
        }
        if let Some(peer) = referred_to {
            self.follow_referral(cell, peer);
        }
        left_dead
    }

    /// Frees what a stream still has on a link that both sides have left, before it is accepted on `link`: the control path has
    /// not got to it yet, and on a busy machine that takes longer than the opener's next attempt.
    pub(super) fn free_last_attempt(&self, link: &Arc<LinkCell>, rx: &mut LinkRx<StreamCell>, cell: &Arc<StreamCell>) {
        let left = cell.lock(self).change(|stream| {
            let inner = &mut *stream.inner;
            if inner.closing.is_closed() || !inner.is_idle() {
                return None;
            }
            let slot = inner.proto.slot();
            inner.attached.take().map(|attached| Left { cell: cell.clone(), attached, slot })
        });
        let Some(left) = left else { return };
        if !Arc::ptr_eq(&left.attached.link, link) {
            // Its link may not be locked here.
            return self.enqueue_left(left);
        }
        self.free_attached(*left.attached);
        if take_slot(rx, left.slot, cell) {
            link.tx.lock().proto.free_slot(SlotId(left.slot));
        }
        // The stream may be refused yet, and leave the link empty.
        self.enqueue_idle(link);
    }

    /// Frees what a stream has left on a link. Returns whether the link was dead, which has freed it then.
    pub(super) fn release_left(&self, left: Left, now: Instant) -> bool {
        let link = left.attached.link.clone();
        if link.is_dead() {
            return true;
        }
        self.free_attached(*left.attached);
        self.free_slot(&link, left.slot, &left.cell, now);
        false
    }

    /// Frees a stream's memory on a link that is not dead: its own ring, and its access to the peer's.
    fn free_attached(&self, Attachment { link, region, outgoing, _tallied: _ }: Attachment) {
        if let Some(outgoing) = outgoing {
            self.free_outgoing(&link, outgoing);
        }
        link.free_region(self.device(), region);
    }

    fn free_slot(&self, link: &Arc<LinkCell>, slot: u16, cell: &Arc<StreamCell>, now: Instant) {
        let mut rx = link.rx.lock();
        if !take_slot(&mut rx, slot, cell) {
            return;
        }
        let mut tx = link.tx.lock();
        tx.proto.free_slot(SlotId(slot));
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
        if !self.waits_for_answers(link, now, now) {
            self.keep_or_close(link, now);
        }
    }

    //= spec §10.6.7
    //# A connector that has sent CLOSE for a flow closes the link only once its peer has consumed that message, or has not
    //# said so for a second.
    /// Whether an empty link has to stay as it is, because its peer learns by the last message which datagrams were taken. It is
    /// checked again then.
    fn waits_for_answers(&self, link: &LinkCell, now: Instant, since: Instant) -> bool {
        let waits = link.connector
            && now.saturating_since(since) < ANSWER_PATIENCE
            && link.tx.lock().owes_answers(self.device());
        if waits {
            let again = Again { since, at: now + ANSWER_INTERVAL };
            self.todo.lock().timers.schedule(Timed::Empty(link.qp), again);
        }
        waits
    }

    fn keep_or_close(&self, link: &Arc<LinkCell>, now: Instant) {
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

    /// Closes an accepted link that has been empty for too long, or goes on with one of ours that waits for its peer.
    pub(super) fn check_empty(&self, now: Instant, qp: QueuePairId, since: Instant) -> Option<Again> {
        let link = self.links.read().get(&qp).cloned()?;
        if link.connector {
            let is_empty = !link.is_dying() && link.tx.lock().proto.streams() == 0;
            if is_empty && !self.waits_for_answers(&link, now, since) {
                self.keep_or_close(&link, now);
            }
            return None;
        }
        let limit = self.accepted_limit()?;
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
        // An OPEN that comes at this moment is lost, or its stream leaves the link again, as on a link that dies.
        self.destroy_link(link.qp);
        None
    }
}

/// Takes a stream out of its slot of a link. Whether it was there.
fn take_slot(rx: &mut LinkRx<StreamCell>, slot: u16, cell: &Arc<StreamCell>) -> bool {
    rx.slots.get_mut(usize::from(slot)).and_then(|entry| entry.take_if(|c| Arc::ptr_eq(c, cell))).is_some()
}
