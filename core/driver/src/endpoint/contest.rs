//! Streams that two links claim.
//!
//! Any process that may have links can name another's connection in OPEN: another user of the opener's host, where
//! there is no pre-shared key. Such a process gets no byte of it, since it cannot place the marker on the anchor; but
//! while its attempt lasts the opener is refused. An opener has one attempt at a time. So if a second link requests the
//! stream, either one of the two has no right to the stream or the first link is dead. The first attempt is given up
//! after a while, if none of its records can be on the anchor.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Instant, QueuePairId};

use super::{Again, Endpoint, Timed};
use crate::stream::{Claim, LockedStream};
use crate::StreamCell;

/// The minimum duration of an attempt that another link contests. Arbitrary: a process without a right to the stream
/// can also end its opener's attempt in this way, so the attempt gets the time that it usually needs.
pub const CONTEST_PATIENCE: Duration = Duration::from_secs(1);

impl Endpoint {
    /// A link other than `link`, where the stream is, requests it.
    pub(crate) fn record_contest(&self, stream: &mut LockedStream<'_>, link: QueuePairId) {
        let claim = Some(Claim { link, slot: stream.inner.proto.slot() });
        if std::mem::replace(&mut stream.inner.attempt.contested, claim) != claim {
            self.add_timer(Timed::Contested(stream.cell.clone()));
        }
    }

    /// Gives up an attempt that was contested for long enough.
    pub(super) fn check_contested(&self, now: Instant, cell: &Arc<StreamCell>, since: Instant) -> Option<Again> {
        if now.saturating_since(since) < CONTEST_PATIENCE {
            return Some(Again { since, at: since + CONTEST_PATIENCE });
        }
        self.resolve_contest(cell);
        None
    }

    fn resolve_contest(&self, cell: &Arc<StreamCell>) {
        let link = cell.lock(self).link().cloned();
        let Some(link) = link else {
            cell.lock(self).change(|stream| stream.inner.attempt.contested = None);
            return;
        };
        let mut rx = link.rx.lock();
        cell.lock(self).change(|stream| {
            let contested = stream.inner.attempt.contested.take();
            let here = stream.link().is_some_and(|now| Arc::ptr_eq(now, &link));
            let slot = stream.inner.proto.slot();
            if !here
                || contested != Some(Claim { link: link.qp, slot })
                || stream.inner.closing.is_closed()
                || !stream.inner.proto.abandon()
            {
                return;
            }
            // The peer may still write to the region, and name the slot: both stay allocated until the link ends.
            stream.inner.attached = None;
            if let Some(entry) = rx.slots.get_mut(usize::from(slot)) {
                *entry = None;
            }
            self.expect_answer(&mut link.tx.lock());
        });
    }
}
