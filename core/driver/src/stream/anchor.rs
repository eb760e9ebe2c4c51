//! The driver's work on a stream's anchor: records in and out, replay, and the anchor's end.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{AnchorError, Instant, Shown};
use netacc_proto::{
    AnchorWrite, Demotion, PeerFin, Phase, RecordVerdict, Rest, Revival, RxSource, Span, CORKED_WORD, CREDIT_BLOCK_LEN,
    MAGIC_LEN, RECORD_GRACE, RECORD_LEN,
};

use super::cell::{Inner, StreamCell, UNWATCHED};
use super::guard::LockedStream;
use super::states::Listed;
use crate::endpoint::Timed;
use crate::Endpoint;

/// The result of [`LockedStream::progress_anchor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorProgress {
    /// Nothing (more) to do on the anchor now.
    Idle,
    /// Records or replay wait for the anchor to become writable.
    WantWrite,
    /// The beginning of a record may be there: check again soon, with `complete`.
    Partial,
    /// A record that counts once the link has been polled: the endpoint's next `progress` takes it in.
    Unpolled,
}

/// An event that the kernel reports for an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorEvent {
    /// It may have become readable or writable.
    Readable,
    /// The peer has ended its direction.
    Ended,
    /// The connection is broken.
    Failed,
}

/// The next step of [`LockedStream::progress_records`].
enum Step {
    /// Read the next record.
    Next,
    /// Stop with this result; `None`: with the result of the writes before.
    Stop(Option<AnchorProgress>),
}

/// How long a call waits for bytes that are in flight on the anchor. Arbitrary: a live peer answers within a few milliseconds.
const REPLAY_PATIENCE: Duration = Duration::from_millis(100);

/// How long a call waits for a reset of the anchor that no bytes precede any more. Arbitrary: more than a peer needs that waits
/// for a processor.
const RESET_PATIENCE: Duration = Duration::from_secs(1);

/// How long the anchor of a stream that has left its link may take to end as the stream has. The kernel may never have room for
/// the bytes that come first. Arbitrary; longer than any call waits.
const END_PATIENCE: Duration = Duration::from_secs(3);

impl StreamCell {
    /// Handles everything that has come for the stream, by the link and on the anchor.
    pub fn take_in(self: &Arc<Self>, endpoint: &Endpoint) {
        let mut guard = self.lock(endpoint);
        // The link first; and once more if the anchor has shown an event that the link may have carried before, see
        // `waits_for_link`.
        for polled in [false, true] {
            if let Some(link) = guard.link().cloned() {
                drop(guard);
                endpoint.poll_link(&link);
                guard = self.lock(endpoint);
            }
            let shown = guard.change(|stream| {
                stream.polled = polled;
                stream.progress_anchor(false);
                stream.inner.listed.take(Listed::CHECK)
            });
            if !shown {
                return;
            }
        }
    }

    /// Handles a kernel event of the anchor of a stream that is not plain.
    pub fn anchor_event(self: &Arc<Self>, endpoint: &Endpoint, event: AnchorEvent) {
        let guard = self.lock(endpoint);
        if event == AnchorEvent::Readable && guard.is_known_steady() && guard.inner.shown() == Shown::default() {
            // The event is of a record that was taken meanwhile: its marker, in a promotion.
            return;
        }
        // Messages that came by the link before the anchor moved must be handled first: a FIN, above all.
        let link = guard.link().cloned();
        drop(guard);
        if let Some(link) = link {
            endpoint.poll_link(&link);
        }
        let mut guard = self.lock(endpoint);
        if guard.proto().is_plain() {
            self.watched.store(UNWATCHED, Ordering::Release);
            return;
        }
        let found = guard.change(|stream| {
            stream.polled = event != AnchorEvent::Readable;
            stream.inner.tcp.end.reported |= stream.polled;
            if event == AnchorEvent::Failed {
                stream.anchor_failed();
                return AnchorProgress::Idle;
            }
            stream.progress_anchor(false)
        });
        drop(guard);
        if found == AnchorProgress::Unpolled {
            self.take_in(endpoint);
        }
    }
}

impl LockedStream<'_> {
    /// Reads and writes records and replayed bytes on the anchor, as far as they go. Call when the anchor may have
    /// become readable or writable and the stream is not plain. `complete`: the peer has ended its direction, so that no
    /// more of a record will come; after an [`AnchorEvent`] has reported it, it need not be repeated.
    pub fn progress_anchor(&mut self, complete: bool) -> AnchorProgress {
        self.progress_records(if complete { Rest::Ended } else { Rest::Coming })
    }

    fn progress_records(&mut self, rest: Rest) -> AnchorProgress {
        let rest = if self.inner.tcp.end.reported { Rest::Ended } else { rest };
        // What the anchor shows, if that is known.
        let mut known = None;
        loop {
            if known.is_none() && self.inner.proto.is_about_to_switch() {
                known = Some(self.inner.shown());
            }
            let write = self.write_anchor(known);
            // A thread blocked in the kernel takes the record itself: see `StreamCell::block_in_kernel`.
            if self.is_read_by_kernel() {
                return write;
            }
            let inner = &mut *self.inner;
            match inner.proto.rx_source() {
                RxSource::Anchor(_) => return write,
                RxSource::Eof | RxSource::Failed(_) if inner.proto.phase() != Phase::Linked => return write,
                _ => {}
            }
            let mut head = [0; RECORD_LEN + 1];
            // A reset that comes after this is handled next time. Without unread bytes a peek would take its error away.
            let shown = known.take().unwrap_or_else(|| inner.shown());
            if shown.broken && (inner.check_fin().is_some() || inner.proto.ends_by_link()) {
                // The error stays where the next holder of the socket finds it.
                inner.tcp.end.broken = true;
                self.end_of_anchor();
                return write;
            }
            let peeked = if shown.unread || shown.ended {
                inner.anchor.try_peek(&mut head)
            } else {
                Err(AnchorError::WouldBlock)
            };
            let whole = matches!(peeked, Ok(RECORD_LEN..));
            if whole && inner.proto.may_resume() && self.waits_for_link() {
                return AnchorProgress::Unpolled;
            }
            match peeked {
                Ok(0) => {
                    self.inner.tcp.end.fin_seen = true;
                    self.end_of_anchor();
                    return write;
                }
                Ok(n) => match self.take_record(&mut head[..RECORD_LEN], n.min(RECORD_LEN), rest) {
                    // An event announces what comes behind a record that was the last one, and the end.
                    Step::Next if n == RECORD_LEN && !shown.hung_up => known = Some(Shown::default()),
                    Step::Next => {}
                    Step::Stop(found) => return found.unwrap_or(write),
                },
                Err(AnchorError::WouldBlock) => return write,
                Err(_) => {
                    self.inner.tcp.end.broken = true;
                    self.end_of_anchor();
                    return write;
                }
            }
        }
    }

    /// `n` bytes are next on the anchor, and in `head`: takes them if they are a record.
    fn take_record(&mut self, head: &mut [u8], n: usize, rest: Rest) -> Step {
        let inner = &mut *self.inner;
        let before = inner.proto.rx_source();
        let rest = if n < RECORD_LEN { inner.rest_of_record(rest) } else { rest };
        match inner.proto.handle_record(&head[..n], rest) {
            RecordVerdict::Consume => {
                self.arrived = true;
                if self.inner.anchor.try_read(head).ok() != Some(RECORD_LEN) {
                    self.inner.proto.abort();
                    return Step::Stop(Some(AnchorProgress::Idle));
                }
                self.inner.tcp.carried.read += RECORD_LEN as u64;
                self.inner.tcp.partial.end();
                Step::Next
            }
            RecordVerdict::NeedMore if rest.is_over() => {
                //= spec §3.3.2
                //# Any others never do: if the anchor ends after them, the peer has died, and its reader gets a reset.
                self.anchor_ended();
                Step::Stop(None)
            }
            RecordVerdict::NeedMore => {
                if let Some(number) = (n < MAGIC_LEN).then(|| inner.tcp.partial.begin(n)).flatten() {
                    self.endpoint.add_timer(Timed::Partial(self.cell.clone(), number));
                }
                Step::Stop(Some(AnchorProgress::Partial))
            }
            RecordVerdict::Plain => {
                // An event without a change would make the owner come back here at once.
                self.arrived |= before != inner.proto.rx_source();
                inner.tcp.partial.end();
                Step::Stop(Some(self.write_anchor(None)))
            }
        }
    }

    /// Bytes that may be the beginning of a record, or application bytes that look like it, have been there since
    /// `since`: decides after RECORD_GRACE. `number` is that of the beginning. Returns since when to count from now on,
    /// if it is still undecided.
    pub(crate) fn wait_for_record(&mut self, now: Instant, number: u32, since: Instant) -> Option<Instant> {
        let before = self.inner.tcp.partial;
        if before.len == 0 || before.number != number {
            return None;
        }
        let rest = if now.saturating_since(since) >= RECORD_GRACE { Rest::Late } else { Rest::Coming };
        if self.progress_records(rest) != AnchorProgress::Partial {
            self.inner.tcp.partial.end();
        }
        let partial = self.inner.tcp.partial;
        let waiting = partial.len > 0 && partial.number == number;
        waiting.then_some(if partial == before { since } else { now })
    }

    /// The end of the anchor, or RESUME, counts once the link has been polled after it was seen: the peer may have
    /// ended its stream on the link before. The link cannot be polled here, with the stream locked; returns whether it
    /// is still to be.
    fn waits_for_link(&mut self) -> bool {
        //= spec §4.5.4
        //# RESUME counts once every message is handled that the peer had sent on the link before: the end of its
        //# stream, above all.
        let inner = &mut *self.inner;
        // Where a marker may come, the link carries no end; but UNMARKED may come in its place.
        let by_link = inner.proto.ends_by_link() || inner.proto.expects_unmarked();
        let live = by_link && inner.link().is_some_and(|link| !link.is_dead());
        let waits = live && !self.polled;
        if waits && inner.listed.add(Listed::CHECK) {
            self.endpoint.enqueue_check(self.cell);
        }
        waits
    }

    /// The next event on the anchor is its FIN, or its reset.
    pub(crate) fn end_of_anchor(&mut self) {
        if !self.inner.tcp.end.handled && self.waits_for_link() {
            return;
        }
        let inner = &mut *self.inner;
        let before = inner.proto.rx_source();
        let delivered = inner.link().is_some_and(|link| link.caps.placement_is_delivery);
        // While the kernel has the whole stream, it reports the error itself, if no call has taken it; and it reports
        // no reset after a FIN to a reader.
        let kernels = inner.tcp.end.fin_seen || inner.anchor.is_broken();
        let reset = inner.tcp.end.broken && (inner.proto.ends_by_link() || !kernels);
        if reset || !delivered && !inner.tcp.end.broken {
            inner.proto.handle_anchor_end(reset);
        } else if inner.tcp.end.broken {
            inner.proto.handle_kept_reset();
        } else {
            self.refresh_consumed();
            let word = self.inner.attached.as_ref().and_then(|at| at.region.memory.word(CORKED_WORD));
            let corked = word.map_or(0, |word| word.load(Ordering::Acquire));
            self.inner.proto.handle_last_end(corked);
        }
        let inner = &mut *self.inner;
        self.arrived |= !std::mem::replace(&mut inner.tcp.end.handled, true) || before != inner.proto.rx_source();
    }

    /// The link is dead. Whether the anchor of a stream in use does not show yet that the peer has gone, and may show
    /// it soon.
    pub(crate) fn may_end_yet(&mut self) -> bool {
        let inner = &mut *self.inner;
        let on_link = inner.proto.is_linked() || inner.proto.awaits_switch();
        let open = !inner.closing.is_closed() && on_link;
        open && !inner.tcp.end.reported && !inner.anchor.is_over() && !inner.has_fin()
    }

    /// The link is dead, and polled. If the anchor has ended too, the peer is dead, and there is no process to come
    /// back to.
    pub(crate) fn link_died(&mut self) {
        let inner = &mut *self.inner;
        if inner.proto.is_linked() && inner.has_fin() {
            self.end_of_anchor();
        }
        self.inner.proto.demote(Demotion::LinkFailed);
        self.progress_anchor(false);
        self.arrived = true;
    }

    /// Writes pending records and replayed bytes. `known` is what the anchor shows, if the caller knows it.
    pub(crate) fn write_anchor(&mut self, known: Option<Shown>) -> AnchorProgress {
        if self.inner.proto.has_record() {
            self.publish();
        }
        let hung_up = |inner: &Inner| known.unwrap_or_else(|| inner.shown()).hung_up;
        if self.inner.proto.is_about_to_switch() && hung_up(&self.inner) && self.inner.has_fin() {
            //= spec §4.6.9
            //# A side writes neither a marker nor, of its own accord, RESUME where it sees that the anchor has ended.
            self.end_of_anchor();
            if self.inner.proto.is_about_to_switch() {
                return AnchorProgress::WantWrite;
            }
        }
        while let Some(write) = self.inner.proto.poll_anchor_write() {
            let written = match write {
                AnchorWrite::Record(record, from) => self.write_record(&record[from..]),
                // A write would take the error that the program, or the next holder of the socket, is to receive.
                AnchorWrite::Replay(_) if self.inner.anchor.is_over() => {
                    self.inner.proto.drop_replay();
                    continue;
                }
                AnchorWrite::Replay(span) => match self.write_replay(span) {
                    Some(written) => written,
                    None => break,
                },
                AnchorWrite::Shutdown => {
                    // If the connection is broken, reading the anchor will report it.
                    let _ = self.inner.anchor.shutdown_write();
                    self.inner.proto.anchor_written(0);
                    continue;
                }
                AnchorWrite::ShutdownRead => {
                    self.shut_down_read();
                    continue;
                }
            };
            match written {
                Ok(n) => {
                    self.inner.tcp.carried.written += n as u64;
                    self.inner.proto.anchor_written(n);
                }
                Err(AnchorError::WouldBlock) => {
                    // No other code watches for room. A closed stream lingers, and is checked anyway.
                    if !self.inner.closing.is_closed() && self.inner.listed.add(Listed::BLOCKED) {
                        self.endpoint.enqueue_blocked(self.cell);
                    }
                    return AnchorProgress::WantWrite;
                }
                Err(_) => {
                    // The kernel has reported it, and will not again.
                    self.inner.tcp.end.broken = true;
                    self.end_of_anchor();
                    break;
                }
            }
        }
        AnchorProgress::Idle
    }

    fn write_record(&mut self, rest: &[u8]) -> Result<usize, AnchorError> {
        let anchor = &mut self.inner.anchor;
        let n = anchor.try_write(rest)?;
        // The peer answers it, and only then the program may write again.
        anchor.push();
        Ok(n)
    }

    /// Writes bytes that the peer has not consumed on the link, as many as a chunk has. `None`: they cannot be read.
    fn write_replay(&mut self, span: Span) -> Option<Result<usize, AnchorError>> {
        let inner = &mut *self.inner;
        let mut chunk = [0; 4096];
        let len = (span.len as usize).min(chunk.len());
        let out = inner.attached.as_ref()?.outgoing.as_ref()?;
        if !out.memory.read(CREDIT_BLOCK_LEN + span.offset as usize, &mut chunk[..len]) {
            return None;
        }
        let written = inner.anchor.try_write(&chunk[..len]);
        if let Ok(n) = written {
            inner.counters.tx_bytes_tcp += n as u64;
            inner.counters.tx_bytes_link -= n as u64;
        }
        Some(written)
    }

    /// Shuts the anchor down for reading. If this refuses bytes, the anchor ends with a reset.
    fn shut_down_read(&mut self) {
        let inner = &mut *self.inner;
        // If the connection is broken, reading the anchor will report it.
        let _ = inner.anchor.shutdown_read();
        inner.proto.anchor_written(0);
        if !inner.proto.refuse_unread(inner.anchor.unread()) {
            return;
        }
        inner.anchor.reset();
        if inner.proto.revived() == Some(Revival::Reported) {
            // At once: no caller is to receive the error that the program has received.
            inner.anchor.clear_error();
        }
        self.arrived = true;
    }

    /// Whether the kernel has all bytes that are replayed on the anchor of a plain stream, and its reset, if there is to be one.
    /// Waits for bytes no longer than [`REPLAY_PATIENCE`] after the first call, because there may not be room for all of them, and
    /// for the reset no longer than [`RESET_PATIENCE`].
    pub fn has_replay(&mut self, now: Instant) -> bool {
        let inner = &mut *self.inner;
        let ended = inner.anchor.is_ended();
        let all = self.take_in_replay() && (ended || self.inner.proto.peer_fin() != PeerFin::Repeated);
        if (all || ended) && self.take_in_reset() {
            return true;
        }
        if self.waited(now) > END_PATIENCE {
            self.inner.proto.end_revival();
            self.inner.proto.skip_read_shutdown();
        }
        self.waited(now) > if all { RESET_PATIENCE } else { REPLAY_PATIENCE }
    }

    /// The time since the first call of this or [`has_replay`](LockedStream::has_replay).
    fn waited(&mut self, now: Instant) -> Duration {
        now.saturating_since(*self.inner.tcp.replay_since.get_or_insert(now))
    }

    /// Whether the time limit for bytes that are in flight on the anchor has expired: [`REPLAY_PATIENCE`] since the
    /// first call.
    pub(crate) fn has_waited(&mut self, now: Instant) -> bool {
        self.waited(now) > REPLAY_PATIENCE
    }

    /// Whether the reset of a stream that was revived is there, if it is one.
    fn take_in_reset(&mut self) -> bool {
        let inner = &mut *self.inner;
        let Some(revival) = inner.proto.revived() else { return true };
        if !inner.proto.is_plain() {
            return false;
        }
        //= spec §4.8.9
        //# A side whose stream has been revived writes one byte then, where the peer has not reset the anchor itself.
        inner.provoke_reset();
        if !inner.anchor.is_over() {
            return false;
        }
        inner.proto.end_revival();
        if revival == Revival::Reported {
            inner.anchor.clear_error();
        }
        true
    }

    /// Whether the kernel has the whole replay: then the kernel alone serves the stream.
    pub fn take_in_replay(&mut self) -> bool {
        let inner = &mut *self.inner;
        let left = inner.proto.replay_left();
        if left > 0 && inner.anchor.unread() >= left {
            inner.proto.handle_replay();
        }
        inner.proto.replay_left() == 0
    }

    /// Whether the anchor is still to end as the stream has, although the stream has left its link.
    pub fn is_end_pending(&self) -> bool {
        let proto = &self.inner.proto;
        proto.is_plain() && (proto.revived().is_some() || proto.awaits_read_shutdown())
    }

    /// Handles the pending end as far as it goes. The helper thread checks again and again.
    pub fn progress_end(&mut self, now: Instant) {
        if self.is_end_pending() {
            self.has_replay(now);
            self.write_anchor(None);
        }
    }

    /// A read of application bytes below the limit of [`RxSource::Anchor`] found the end of the anchor, or an error: it
    /// did not bring the bytes that the peer had sent, so the peer, or the connection, is gone.
    pub fn anchor_ended(&mut self) {
        self.inner.proto.handle_anchor_end(true);
        self.arrived = true;
    }

    /// The kernel reports an error on the anchor (EPOLLERR). Bytes that have arrived can still be read, but an
    /// incomplete record will not be completed.
    pub fn anchor_failed(&mut self) {
        self.inner.tcp.end.broken = true;
        if self.progress_anchor(false) == AnchorProgress::Partial {
            self.anchor_ended();
        }
    }

    /// A closed stream lingers: discards bytes that arrive for the program, since records may stand behind them.
    /// Returns whether there were any.
    pub(crate) fn refuse_unread(&mut self) -> bool {
        let before = self.inner.proto.positions().1;
        self.discard();
        self.inner.proto.positions().1 != before
    }

    fn discard(&mut self) {
        let mut bytes = [0; 4096];
        // Bounded: the peer may send for ever, and the caller comes again.
        for _ in 0..64 {
            let inner = &mut *self.inner;
            let RxSource::Anchor(limit) = inner.proto.rx_source() else { return };
            let most = bytes.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
            match inner.anchor.try_read(&mut bytes[..most]) {
                Ok(0) if limit == u64::MAX => return,
                Ok(0) => return inner.proto.handle_anchor_end(true),
                Ok(n) => {
                    inner.proto.anchor_received(n as u64);
                    inner.tcp.carried.read += n as u64;
                    inner.closing.refuse();
                }
                Err(AnchorError::WouldBlock) => return,
                Err(_) => return inner.proto.handle_anchor_end(true),
            }
            self.progress_anchor(false);
        }
    }
}
