//! Streams whose peer reads nothing. A ring is much smaller than the kernel's buffers, and its messages need a thread
//! that polls; a program may rely on writing more than that before its peer reads any of it. So a stream that has had
//! no room for `stall_patience`, while its peer read nothing at all, continues in the kernel: a link has no advantage
//! for a stream that only waits. The thread that watches the peer's anchor takes the peer's end there.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;
use netacc_proto::{Reason, TxSink};

use super::cell::StreamCell;
use super::guard::LockedStream;
use super::states::{Listed, Taken};
use crate::endpoint::{Again, Timed};
use crate::Endpoint;

/// How long a peer usually may read nothing from a link that has no room. Arbitrary: longer than one turn of a busy
/// event loop on an overloaded machine; and short for a program that would not have had to wait.
pub const STALL_PATIENCE: Duration = Duration::from_millis(250);

impl LockedStream<'_> {
    /// The link has no room for the stream's next message, or soon will not.
    #[cold]
    pub(crate) fn record_stall(&mut self) {
        let bounded = self.endpoint.config().stall_patience.is_some();
        if bounded && self.inner.listed.add(Listed::STALLED) {
            self.inner.stall.taken = self.taken();
            self.inner.stall.since = None;
            self.endpoint.add_timer(Timed::Stalled(self.cell.clone()));
        }
    }

    fn taken(&self) -> Taken {
        let proto = &self.inner.proto;
        let messages = self.link().map_or(0, |link| link.tx.lock().proto.peer_consumed());
        Taken { bytes: proto.positions().0 - proto.unconsumed(), messages }
    }

    /// Whether there is still no room, and the stream stays on its link.
    fn is_still_stalled(&mut self, now: Instant, patience: Duration) -> bool {
        if let Some(link) = self.link() {
            link.tx.lock().refresh_credit();
        }
        self.refresh_consumed();
        let stalled = self.tx_sink() == TxSink::Link && (!self.proto().link_writable() || self.inner.sending.crowded);
        if stalled && !self.inner.closing.is_closed() {
            let taken = self.taken();
            if std::mem::replace(&mut self.inner.stall.taken, taken) != taken {
                self.inner.stall.since = None;
            }
            let since = *self.inner.stall.since.get_or_insert(now);
            if now.saturating_since(since) < patience {
                return true;
            }
            self.demote(Reason::PeerIdle);
            self.progress_anchor(false);
        }
        self.inner.listed.remove(Listed::STALLED);
        false
    }
}

impl Endpoint {
    /// Checks a stream that had no room, eight times in `stall_patience`. There may be thousands of them. `checked` is
    /// the time of the last check.
    pub(crate) fn check_stall(&self, now: Instant, cell: &Arc<StreamCell>, checked: Instant) -> Option<Again> {
        let patience = self.config().stall_patience?;
        let interval = patience / 8;
        let mut since = checked;
        if now.saturating_since(checked) >= interval {
            since = now;
            if !cell.lock(self).change(|stream| stream.is_still_stalled(now, patience)) {
                return None;
            }
        }
        Some(Again { since, at: since + interval })
    }
}
