//! Links whose devices do not report an unreachable peer: the control path checks them, and probes their peers.
//!
//! The rule is the protocol's (SPEC §2.6). The control path does this, whichever queue a link reports to, so that a
//! program that computes, or waits for something else, answers too. There is no timer while all links rest.

use std::sync::Arc;

use netacc_device::Instant;
use netacc_proto::{Phase, Silence, PROBE_INTERVAL};

use super::Endpoint;
use crate::link::LinkTx;
use crate::{Counters, LinkCell};

impl Endpoint {
    /// A message was sent, or has come, on a link that rests: it is checked from now on.
    #[cold]
    pub(crate) fn resume_watch(&self, tx: &mut LinkTx) {
        tx.watch.resting = false;
        self.todo.lock().probe_at.get_or_insert(Instant::ZERO);
        (self.helper_needed)();
    }

    /// A stream expects a message from the link's peer that it did not expect before.
    pub(crate) fn expect_answer(&self, tx: &mut LinkTx) {
        tx.watch.probed_before_rest = false;
        if tx.watch.resting {
            self.resume_watch(tx);
        }
    }

    /// Checks all links that are awake, if it is time. Returns when to check again.
    pub(super) fn check_silence(&self, now: Instant) -> Option<Instant> {
        let due = self.todo.lock().probe_at?;
        if now < due {
            return Some(due);
        }
        // Links whose watch is resumed from now on set `probe_at` again.
        self.todo.lock().probe_at = None;
        let links: Vec<_> = self.links.read().values().filter(|link| !link.caps.notices_silence).cloned().collect();
        let awake = links.iter().filter(|link| self.listen_to(link, now)).count();
        let probe_at = &mut self.todo.lock().probe_at;
        if awake > 0 || probe_at.is_some() {
            *probe_at = Some(now + PROBE_INTERVAL);
        }
        *probe_at
    }

    /// Whether the link is still awake.
    fn listen_to(&self, link: &Arc<LinkCell>, now: Instant) -> bool {
        if link.tx.lock().watch.resting {
            return false;
        }
        //= spec §2.6.3
        //# A side handles arrived messages of a link at least every PROBE_INTERVAL, whatever its applications do, so
        //# that it answers. It stops once no message has come, and none was outstanding, for 30 intervals.
        self.poll_link(link);
        let mut tx = link.tx.lock();
        if link.is_failing() {
            return false;
        }
        if !tx.refresh_credit() {
            // The peer sent false credit; `refresh_credit` has recorded that.
            drop(tx);
            self.enqueue_dead(link);
            return false;
        }
        // A link that is not ready has a time limit of its own.
        if !tx.proto.is_ready() {
            return true;
        }
        match tx.proto.check_silence(now) {
            Silence::None => {}
            Silence::Rest => {
                tx.watch.resting = true;
                drop(tx);
                return self.probe_before_rest(link);
            }
            //= spec §2.6.1
            //# A side that has received nothing on a link for PROBE_INTERVAL (1 s), and has no proof that the peer has
            //# consumed all its messages, sends LINK_WANT (§5.4.2).
            Silence::Probe => drop(tx.want(self.device())),
            //= spec §2.6.2
            //# A side that has sent this LINK_WANT and receives nothing for SILENCE_LIMIT (10 s) ends the link.
            Silence::Dead => {
                drop(tx);
                Counters::bump(&self.counters.links_silent);
                self.enqueue_dead(link);
                return false;
            }
        }
        true
    }

    /// The link is about to rest. If a stream waits for a message that comes by the link alone, an answer to OPEN, or
    /// CLOSE, the link stays awake, and its peer is probed once: that message may be all that was lost, and then
    /// neither side has more to send. Returns whether it stays awake.
    fn probe_before_rest(&self, link: &LinkCell) -> bool {
        let cells = self.streams_on(link);
        // Only the slot is left of a claim that was given up.
        let expects = cells.len() < usize::from(link.streams())
            || cells.iter().any(|cell| {
                let guard = cell.lock(self);
                guard.proto().uses_slot() && (guard.inner.closing.is_closed() || guard.proto().phase() != Phase::Linked)
            });
        let mut tx = link.tx.lock();
        if !expects || tx.watch.probed_before_rest {
            return !tx.watch.resting;
        }
        tx.watch.resting = false;
        tx.watch.probed_before_rest = tx.want(self.device());
        true
    }
}
