//! What a stream leaves behind on its link, and what becomes of a link without streams.

use std::sync::Arc;

use netacc_device::Instant;

use super::Endpoint;
use crate::link::LinkCell;
use crate::StreamCell;

impl Endpoint {
    /// Frees what a stream held on its link, if neither side uses it any more.
    pub(super) fn release(&self, cell: &Arc<StreamCell>, now: Instant) {
        let mut guard = cell.lock(self);
        let inner = &mut *guard.inner;
        if !inner.is_idle() {
            inner.released = false;
            return;
        }
        inner.released = false;
        let closed = inner.closed;
        if closed {
            // Another thread may have found it through before the look at what lingers has.
            guard.end_linger();
        }
        let inner = &mut *guard.inner;
        let outgoing = inner.outgoing.take();
        let (link, region) = (inner.link.take(), inner.region.take());
        let slot = inner.proto.slot();
        let ask_next = inner.ask_next.take().filter(|_| !closed);
        drop(guard);
        if let Some(link) = link {
            if !link.is_dead() {
                if let Some(outgoing) = outgoing {
                    self.free_outgoing(&link, outgoing);
                }
                if let Some(region) = region {
                    link.free_region(self.device(), region);
                }
                self.free_slot(&link, slot, cell, now);
            }
        }
        if closed {
            self.forget(cell);
        }
        if let Some(peer) = ask_next {
            self.ask_elsewhere(cell, peer);
        }
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
        if empty {
            self.park(link, now);
        }
    }

    /// Keeps an empty link for the next stream, or closes it.
    pub(super) fn park(&self, link: &Arc<LinkCell>, now: Instant) {
        let awaited = self.waiting.lock().iter().any(|w| w.link == Some(link.qp));
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
        }
    }
}
