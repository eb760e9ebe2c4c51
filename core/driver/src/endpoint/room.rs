//! Streams that wait for their link to take a message.
//!
//! Both are announced for the link as a whole: room by a completion or by LINK_GIVE, and completions that release small
//! messages. With thousands of streams on a link, only the waiting ones are served, and only as many as there is room
//! for; the others keep their places. If no announcement comes, the endpoint serves them when it next checks the link.

use std::sync::Arc;

use netacc_device::Instant;
use parking_lot::MutexGuard;

use super::{Again, Endpoint, Timed, RETRY_INTERVAL};
use crate::link::{LinkRx, LinkTx};
use crate::stream::LockedStream;
use crate::{LinkCell, StreamCell};

impl LockedStream<'_> {
    /// The stream is served when its link has room again.
    pub(crate) fn wait_for_room(&mut self) {
        if let Some(link) = self.link() {
            let mut tx = link.tx.lock();
            tx.waiters.room.push(self.inner.proto.slot());
            self.endpoint.watch_waiters(link, tx);
        }
    }

    /// Corked bytes of the stream go out with the next completion, unless they wait for room.
    pub(crate) fn wait_for_completion(&mut self) {
        if let Some(link) = self.link() {
            let (mut tx, slot) = (link.tx.lock(), self.inner.proto.slot());
            if !tx.waiters.room.contains(slot) {
                tx.waiters.completion.push(slot);
            }
            self.endpoint.watch_waiters(link, tx);
        }
    }
}

impl Endpoint {
    /// Streams of the link wait: the endpoint checks them before long in any case.
    fn watch_waiters(&self, link: &Arc<LinkCell>, mut tx: MutexGuard<'_, LinkTx>) {
        let known = std::mem::replace(&mut tx.waiters.listed, true);
        drop(tx);
        if !known {
            self.add_timer(Timed::Starved(link.clone()));
        }
    }

    /// The link may have room: the streams that have waited longest continue, as far as the room goes. `rx` is the
    /// link's.
    pub(crate) fn serve(&self, link: &Arc<LinkCell>, rx: &LinkRx<StreamCell>) {
        // A stream that finds no room after all goes to the end of the queue, and has its turn next time.
        let turns = link.tx.lock().waiters.room.len();
        for _ in 0..turns {
            let mut tx = link.tx.lock();
            if !tx.has_room() {
                tx.want(self.device());
                break;
            }
            let next = if tx.is_full() { None } else { tx.waiters.room.pop() };
            drop(tx);
            let Some(slot) = next else { break };
            if let Some(Some(cell)) = rx.slots.get(usize::from(slot)) {
                cell.lock(self).change(LockedStream::unstall);
            }
        }
    }

    /// A completion has come: the messages that waited for it go out.
    pub(crate) fn send_delayed(&self, link: &LinkCell, rx: &LinkRx<StreamCell>) {
        let turns = link.tx.lock().waiters.completion.len();
        for _ in 0..turns {
            let next = link.tx.lock().waiters.completion.pop();
            let Some(slot) = next else { break };
            if let Some(Some(cell)) = rx.slots.get(usize::from(slot)) {
                cell.lock(self).change(LockedStream::push_unasked);
            }
        }
    }

    /// Checks a link whose streams wait.
    pub(super) fn check_starved(&self, now: Instant, link: &Arc<LinkCell>, since: Instant) -> Option<Again> {
        let at = now + RETRY_INTERVAL;
        if now.saturating_since(since) < RETRY_INTERVAL {
            return Some(Again { since, at });
        }
        if link.is_dead() {
            return None;
        }
        let rx = link.rx.lock();
        link.tx.lock().retry();
        self.send_delayed(link, &rx);
        self.serve(link, &rx);
        drop(rx);
        let mut tx = link.tx.lock();
        tx.waiters.listed = !(tx.waiters.room.is_empty() && tx.waiters.completion.is_empty());
        tx.waiters.listed.then_some(Again { since: now, at })
    }
}
