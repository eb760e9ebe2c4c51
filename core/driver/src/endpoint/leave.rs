//! Leaving all links, because the process ends or continues without them.

use std::sync::atomic::Ordering;

use netacc_device::Instant;
use netacc_proto::Reason;

use super::Endpoint;
use crate::stream::LockedStream;

impl Endpoint {
    /// The process is about to end: streams are held back, and those on a link leave it. Whether nothing would be lost
    /// if the process ended now; call again when peers may have answered.
    pub fn leave(&self, now: Instant) -> bool {
        self.suspend_promotion(true);
        self.bring_back(Reason::Requested, now, |_| false)
    }

    /// As [`leave`](Endpoint::leave), but permanently and for this reason: the process continues without links. So it
    /// also waits for the anchors of streams that have failed. A record that comes there after the links are gone would
    /// be read as data by a child.
    pub fn leave_for_good(&self, reason: Reason, now: Instant) -> bool {
        self.promotion_suspended.store(reason as u16, Ordering::Release);
        self.bring_back(reason, now, |stream| stream.awaits_end())
    }

    /// Whether every stream has left its link, and none of them has something to wait for.
    fn bring_back(&self, reason: Reason, now: Instant, waits: impl Fn(&LockedStream<'_>) -> bool) -> bool {
        let mut done = true;
        for cell in self.streams() {
            let link = cell.lock(self).link().cloned();
            if let Some(link) = link {
                self.poll_link(&link);
            }
            let mut guard = cell.lock(self);
            guard.change(|stream| {
                stream.refresh_consumed();
                if stream.is_wanted() {
                    stream.demote(reason);
                }
                stream.progress_anchor(false);
            });
            done &= guard.change(|stream| stream.can_be_left(now) && !waits(stream));
        }
        done
    }

    /// Whether a peer must still act before the next holder of the sockets gets everything from the kernel: the peer
    /// must answer an OPEN, perhaps one that was given up, or end the anchor of a stream that has failed.
    pub fn awaits_peers(&self) -> bool {
        self.streams().iter().any(|cell| cell.is_opening() || cell.lock(self).awaits_end())
    }
}
