//! A stream while it is locked: locking, its current state, and the records on its anchor.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::Anchor;
use netacc_proto::{Reason, RxSource, SocketError, Stream, TxSink};
use parking_lot::MutexGuard;

use super::cell::{Inner, LinkCell, StreamCell};
use super::inner::readiness_of;
use super::states::{Flow, Listed, Takers};
use crate::counted::Counted;
use crate::endpoint::Timed;
use crate::{Counters, Endpoint, Mark, Readiness, StreamCounters};

/// How long a write that finds the anchor full waits for the answer to an OPEN before the pledge is voided: it would
/// have waited anyway, and the peer's program has up to some megabytes to read first. Arbitrary.
pub const PLEDGE_PATIENCE: Duration = Duration::from_millis(200);

impl StreamCell {
    /// Locks the stream. Drop the guard before waiting for anything.
    #[inline]
    pub fn lock<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint) -> StreamGuard<'a> {
        StreamGuard::new(self, endpoint, self.inner.lock())
    }

    /// As `lock`, or `None` if another thread has it locked.
    pub fn try_lock<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint) -> Option<StreamGuard<'a>> {
        Some(StreamGuard::new(self, endpoint, self.inner.try_lock()?))
    }

    /// Whether a message has arrived on the stream's link since it was last polled. Cheap; takes only the stream's
    /// lock.
    #[inline]
    pub fn has_news(self: &Arc<Self>, endpoint: &Endpoint) -> bool {
        if self.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            return false;
        }
        self.lock(endpoint).has_news()
    }

    /// Runs `wait`, which blocks in the kernel until the anchor is readable, if reads come from the anchor at all.
    /// Meanwhile no other thread takes records off the anchor: the blocked one would be woken by the record's arrival,
    /// find nothing, and sleep on although the stream has moved to the link.
    pub fn block_in_kernel<R>(self: &Arc<Self>, endpoint: &Endpoint, wait: impl FnOnce() -> R) -> Option<R> {
        {
            let _guard = self.lock(endpoint);
            if !self.readiness().contains(Readiness::KERNEL_RX) {
                return None;
            }
            self.kernel_readers.fetch_add(1, Ordering::SeqCst);
        }
        let _one = Counted::new(&self.kernel_readers);
        Some(wait())
    }
}

/// A locked stream, which can be read. [`change`](StreamGuard::change) is the only way to change it, and flushes the
/// effects of the change: without the flush both sides would wait for ever.
#[must_use]
pub struct StreamGuard<'a> {
    stream: LockedStream<'a>,
}

/// A locked stream, which can be changed: [`StreamGuard::change`] lends it.
pub struct LockedStream<'a> {
    pub(crate) cell: &'a Arc<StreamCell>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) inner: MutexGuard<'a, Inner>,
    pub(crate) arrived: bool,
    /// The link was polled after the event on the anchor was seen.
    pub(crate) polled: bool,
}

impl<'a> StreamGuard<'a> {
    #[inline]
    pub(super) fn new(
        cell: &'a Arc<StreamCell>,
        endpoint: &'a Endpoint,
        inner: MutexGuard<'a, Inner>,
    ) -> StreamGuard<'a> {
        StreamGuard { stream: LockedStream { cell, endpoint, inner, arrived: false, polled: false } }
    }

    /// Changes the stream, and flushes it: messages and records that the protocol wants sent leave, and readiness is
    /// published. The stream stays locked.
    #[inline]
    pub fn change<R>(&mut self, change: impl FnOnce(&mut LockedStream<'a>) -> R) -> R {
        let result = change(&mut self.stream);
        self.stream.flush();
        result
    }

    /// As [`change`](StreamGuard::change), where the change has no effect that is to be flushed if the kernel alone has the
    /// stream. Most short connections never leave that state.
    #[inline]
    pub(crate) fn change_aside<R>(&mut self, change: impl FnOnce(&mut LockedStream<'a>) -> R) -> R {
        let flow = self.stream.inner.reported.flow;
        debug_assert!(flow != Flow::Anchor || self.stream.flow() == flow, "the stream was changed without a flush");
        let result = change(&mut self.stream);
        if flow != Flow::Anchor {
            self.stream.flush();
        }
        result
    }

    /// The program has closed its last descriptor, and the bytes of the stream were the kernel's. Whether that is so: then
    /// nothing is left to do.
    pub fn close_plain(&mut self) -> bool {
        self.change_aside(LockedStream::close_plain)
    }

    /// `n` bytes of the program went to the anchor.
    #[inline]
    pub fn anchor_sent(&mut self, n: usize) {
        self.move_on_anchor(|stream| stream.anchor_sent(n));
    }

    /// `n` bytes of the program were read from the anchor.
    #[inline]
    pub fn anchor_received(&mut self, n: usize) {
        self.move_on_anchor(|stream| stream.anchor_received(n));
    }

    /// As [`change`](StreamGuard::change), of bytes on the anchor: mostly there is nothing to flush.
    #[inline]
    pub(super) fn move_on_anchor(&mut self, count: impl FnOnce(&mut LockedStream<'a>)) {
        count(&mut self.stream);
        if self.stream.inner.reported.flow == Flow::Anchor {
            debug_assert!(
                self.stream.flow() == Flow::Anchor && !self.stream.arrived,
                "the stream was changed without a flush"
            );
        } else {
            self.stream.flush();
        }
    }

    /// Whether the stream [is steady](LockedStream::is_steady), as found after its last change.
    #[inline]
    pub(crate) fn is_known_steady(&self) -> bool {
        self.stream.inner.is_known_steady()
    }

    /// As [`change`](StreamGuard::change), of a stream that [is steady](LockedStream::is_steady), where the change receives
    /// bytes and does nothing else, and [`end_move`](StreamGuard::end_move) follows.
    #[inline(always)]
    pub(crate) fn begin_move(&mut self) -> &mut LockedStream<'a> {
        &mut self.stream
    }

    /// Bytes were received: mostly there is nothing to flush then, which is quickly found out.
    #[inline(always)]
    pub(crate) fn end_move(&mut self) {
        if !self.stream.is_quiet() {
            self.stream.flush();
        }
    }
}

impl<'a> Deref for StreamGuard<'a> {
    type Target = LockedStream<'a>;

    #[inline]
    fn deref(&self) -> &LockedStream<'a> {
        &self.stream
    }
}

impl LockedStream<'_> {
    /// Confirms the addresses by the kernel's. An error is the reason why the stream stays there. With the stream locked its
    /// anchor has an open descriptor, so they are not those of another connection that has the number now.
    pub(crate) fn confirm_addresses(&mut self) -> Result<(), Reason> {
        let anchor = &self.inner.anchor;
        let role = self.inner.proto.role();
        self.cell.ends.confirm(role, || anchor.is_plain_tcp(), || anchor.local_address())
    }

    /// Begins an attempt at promotion: from here on bytes may travel elsewhere than on the anchor.
    ///
    /// # Errors
    /// The reason why the stream stays there.
    pub(crate) fn leave_kernel(&mut self) -> Result<(), Reason> {
        self.cell.may_leave_kernel()?;
        self.inner.tcp.takers.dismiss()?;
        self.count_positions()
    }

    /// Whether a promotion was ever attempted, by either end.
    pub fn was_to_leave_kernel(&self) -> bool {
        matches!(self.inner.tcp.takers, Takers::Leaving(_))
    }

    /// Counts the positions of a stream that is to be promoted. The anchor must have carried exactly the bytes that
    /// this process has moved, or else the descriptor is used in ways that the library does not see.
    fn count_positions(&mut self) -> Result<(), Reason> {
        let inner = &mut *self.inner;
        if inner.tcp.recount || !inner.anchor.is_at(inner.tcp.carried) {
            match inner.anchor.position() {
                Some(actual) => {
                    let expected = inner.tcp.recount || actual == inner.tcp.carried;
                    if !expected && !self.endpoint.sink().unseen_io(self.cell) {
                        return Err(Reason::UnseenIo);
                    }
                    (inner.tcp.carried, inner.tcp.recount) = (actual, false);
                }
                None if inner.tcp.recount => return Err(Reason::Shared),
                None => {}
            }
        }
        inner.proto.set_positions(inner.tcp.carried.written, inner.tcp.carried.read);
        // The state belongs to the last link, which may have died with its queue full; and positions begin anew.
        inner.sending.crowded = false;
        inner.tcp.replay_since = None;
        inner.sending.announced = inner.tcp.carried.read;
        Ok(())
    }

    /// Whether a thread is blocked in the kernel on the anchor's incoming bytes.
    pub(crate) fn is_read_by_kernel(&self) -> bool {
        self.cell.kernel_readers.load(Ordering::SeqCst) > 0
    }

    /// A thread that is blocked in the kernel is woken by the peer's marker alone.
    pub(crate) fn require_marker(&mut self) {
        if self.is_read_by_kernel() {
            self.inner.proto.require_marker();
        }
    }

    /// Whether a message has arrived on its link since that was last polled.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.inner.link().is_some_and(|link| link.has_news(self.endpoint.device()))
    }

    /// Both directions are on the link, nothing has ended or failed, and nothing waits to be sent: bytes move, and
    /// nothing else is to be done.
    #[inline]
    pub fn is_steady(&self) -> bool {
        self.inner.is_steady()
    }

    /// How bytes move now.
    #[inline]
    pub(crate) fn flow(&self) -> Flow {
        self.inner.flow()
    }

    /// The path of writes now.
    #[inline]
    pub fn tx_sink(&self) -> TxSink {
        self.inner.proto.tx_sink()
    }

    /// Whether a write waits for the stream to be on one path: it changes that, or is about to leave a dead link.
    pub fn is_between(&self) -> bool {
        match self.tx_sink() {
            TxSink::Wait => true,
            TxSink::Link => self.has_failing_link(),
            _ => false,
        }
    }

    /// Whether its link is dead, or was found to be.
    pub fn has_failing_link(&self) -> bool {
        self.link().is_some_and(|link| link.is_failing())
    }

    /// The source of reads now. Bytes that are still to be replayed to a socket that others may read from are not
    /// counted: an end before that is an end.
    #[inline]
    pub fn rx_source(&self) -> RxSource {
        match self.inner.proto.rx_source() {
            RxSource::Anchor(_) if self.cell.may_leave_kernel().is_err() => RxSource::Anchor(u64::MAX),
            source => source,
        }
    }

    /// The state machine, for getters.
    pub fn proto(&self) -> &Stream {
        &self.inner.proto
    }

    /// Gives up an attempt at promotion that only waits.
    pub fn withdraw(&mut self) {
        self.inner.proto.withdraw();
    }

    /// Whether the kernel's socket has all of the stream, so far: its state is right, and nothing is to be replayed.
    pub fn kernel_is_accurate(&self) -> bool {
        let proto = &self.inner.proto;
        matches!(proto.tx_sink(), TxSink::Anchor | TxSink::Pledged) && self.rx_source() == RxSource::Anchor(u64::MAX)
    }

    /// Whether the program has closed it.
    pub fn is_closed(&self) -> bool {
        self.inner.closing.is_closed()
    }

    /// The link it is on, or being moved to.
    #[inline]
    pub fn link(&self) -> Option<&Arc<LinkCell>> {
        self.inner.link()
    }

    /// Bytes and messages so far.
    pub fn counters(&self) -> StreamCounters {
        self.inner.counters
    }

    /// `n` bytes of the program went to the anchor.
    #[inline]
    fn anchor_sent(&mut self, n: usize) {
        self.inner.count_anchor_sent(n as u64);
        let position = self.inner.tcp.carried.written;
        self.endpoint.mark(self.cell, &self.inner.proto, Mark::AnchorSent { position }, 0);
    }

    /// `n` bytes of the program were read from the anchor. If a record may come next, and bytes are there, they are
    /// handled now: their event may have come while others were still in front of them, and will not come again.
    #[inline]
    pub(super) fn anchor_received(&mut self, n: usize) {
        if self.inner.proto.awaits_reader() {
            self.require_marker();
        }
        self.inner.count_anchor_received(n as u64);
        let position = self.inner.tcp.carried.read;
        self.endpoint.mark(self.cell, &self.inner.proto, Mark::AnchorRead { position }, 0);
        if self.rx_source() == RxSource::Record {
            self.progress_anchor(false);
        }
    }

    /// The program wants to write while a pledge is out, and does something else meanwhile. It is woken when it can
    /// write: after [`PLEDGE_PATIENCE`] at the latest.
    pub fn wait_for_pledge(&mut self) {
        if self.inner.listed.add(Listed::PLEDGED) {
            self.endpoint.add_timer(Timed::Pledged(self.cell.clone()));
        }
    }

    /// The error of a stream that has failed, for the one call that receives it.
    pub fn take_error(&mut self) -> Option<SocketError> {
        self.inner.proto.take_error()
    }

    /// SO_RCVLOWAT, which has been set on the anchor: with fewer unread bytes the stream is not readable.
    pub fn set_low_water(&mut self, bytes: u32) {
        self.cell.low_water.store(bytes.max(1), Ordering::Relaxed);
        self.inner.tcp.low_water = bytes.max(1);
        self.update_low_water();
        // As the kernel does: a waiting thread is woken for bytes that are there already.
        self.arrived |= readiness_of(&self.inner, self.cell.low_water()).contains(Readiness::READABLE);
    }

    /// The program has written `len` bytes where [`TxSink`] is `Refused`.
    pub fn refuse_write(&mut self, len: usize) {
        self.inner.proto.refuse_write(u32::try_from(len).unwrap_or(u32::MAX));
        self.arrived = true;
    }

    /// Voids an open pledge, because the program does not wait.
    pub fn void_pledge(&mut self) {
        Counters::bump(&self.endpoint.counters().pledges_voided);
        self.inner.proto.void_pledge();
    }
    /// Announces the stream's readiness again.
    pub fn announce_again(&mut self) {
        self.arrived = true;
    }

    /// The program's descriptor has another number now.
    pub fn replace_anchor(&mut self, anchor: Box<dyn Anchor + Send>) {
        self.inner.anchor = anchor.into();
    }
}
