//! The memory that a stream's messages take in its peer's ring: a page while they are short, as much as the load needs, and
//! a page again once the stream is idle.
//!
//! A ring has as many bytes as its peer may want to send at once. The memory behind them comes from the system page by page,
//! as they are written. A conversation of short messages starts again at the beginning of the ring (REWIND), so it takes the
//! first page alone. A stream that has written beyond that page, and then nothing for [`idle_after`](crate::EndpointConfig::idle_after), gives the other pages back.
//! It is the writer who does, and not the owner of the ring: nobody else writes there, so none of its bytes are lost as long
//! as the peer has consumed all that were sent. This needs the peer's memory (`caps.peer_memory`); registered memory is
//! pinned.
//!
//! Invariant: no byte of the ring at or beyond [`Outgoing::reach`] was written since its memory was given back.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;

use super::cell::{Attachment, Outgoing, StreamCell};
use super::guard::LockedStream;
use super::states::Listed;
use crate::endpoint::{Again, Timed};
use crate::Endpoint;

/// A stream that has written nothing for so long is usually idle. Arbitrary: a page that it needs again costs less than a
/// microsecond.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The stream is about to write more than the beginning of its peer's ring: the endpoint checks it.
#[cold]
pub(super) fn record_growth(endpoint: &Endpoint, cell: &Arc<StreamCell>, listed: &mut Listed) {
    if listed.add(Listed::GROWN) {
        endpoint.add_timer(Timed::Grown(cell.clone()));
    }
}

impl LockedStream<'_> {
    /// Gives memory back if the stream has been idle since `since`. Returns the time from which on it is idle, as far as is known
    /// now, and when to check again; `None`: it needs no check any more.
    fn shrink(&mut self, now: Instant, since: Instant) -> Option<Again> {
        let idle_after = self.endpoint.config().idle_after;
        self.refresh_consumed();
        let written = self.inner.proto.positions().0;
        if std::mem::replace(&mut self.inner.sending.written, written) != written {
            return Some(Again { since: now, at: now + idle_after });
        }
        let idle = now.saturating_since(since);
        let busy = self.inner.proto.unconsumed() > 0 || self.inner.sending.cork.is_pending();
        let inner = &mut *self.inner;
        if let Some(Attachment { link, outgoing: Some(out), .. }) = inner.attached.as_deref_mut() {
            if busy || idle < idle_after {
                // A peer that reads nothing may do so for hours.
                return Some(Again { since, at: now + idle.max(idle_after) });
            }
            // Of a stream that has left the link it is not known what its peer has still to read from the ring. All of the
            // ring goes once the peer has left it, too.
            if inner.proto.tx_ring_len() > 0 && out.shrinks() {
                self.endpoint.device().discard(link.qp(), out.remote(), Outgoing::KEPT);
            }
        }
        inner.listed.remove(Listed::GROWN);
        None
    }
}

impl Endpoint {
    /// Checks a stream that has written more than the beginning of its peer's ring, and wrote last at `since`.
    pub(crate) fn check_growth(&self, now: Instant, cell: &Arc<StreamCell>, since: Instant) -> Option<Again> {
        cell.lock(self).change(|stream| stream.shrink(now, since))
    }
}
