//! One accelerated socket, shared by threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    Anchor, AnchorError, AnchorPosition, FourTuple, Instant, Memory, PeerAddress, PostError, QueuePairId, Region,
};
use netacc_proto::{
    AnchorWrite, Control, Demotion, Immediate, MessageKind, Phase, Reason, RingDescriptor, RxSource, SocketError,
    Stream, TxSink, CREDIT_BLOCK_LEN,
};
use parking_lot::{Mutex, MutexGuard};

use crate::stall::Taken;
use crate::{Counters, Endpoint, LinkCell, Readiness, StreamCounters};

/// How long a write that finds the anchor full waits for the answer to an OPEN before the pledge is voided: it would
/// have waited anyway, and the peer's application has up to some megabytes to read first. Arbitrary.
pub const PLEDGE_PATIENCE: Duration = Duration::from_millis(200);

/// A stream of this process.
pub struct StreamCell {
    /// Its number in the directory.
    pub(crate) number: u32,
    pub(crate) tuple: FourTuple,
    ready: AtomicU32,
    /// Threads asleep until this stream changes; see [`StreamCell::sleepers`].
    sleepers: AtomicU32,
    /// For the owner: which object of the shim this is.
    tag: AtomicU32,
    /// Threads blocked in the kernel on the anchor's incoming bytes; see [`StreamCell::block_in_kernel`].
    kernel_readers: AtomicU32,
    /// The queue pair that sleepers sleep on, plus one; 0 for none yet.
    sleep_qp: AtomicU32,
    /// How often another process was given the descriptor since this one held it alone; see [`StreamCell::share`].
    shared: AtomicU32,
    /// See [`StreamCell::pin`].
    pinned: AtomicBool,
    /// See [`StreamCell::is_opening`].
    opening: AtomicBool,
    /// See [`StreamGuard::set_low_water`].
    low_water: AtomicU32,
    /// See [`StreamCell::limit_ring`].
    ring_limit: AtomicU32,
    inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    pub(crate) proto: Stream,
    pub(crate) anchor: Box<dyn Anchor + Send>,
    pub(crate) link: Option<Arc<LinkCell>>,
    /// The peer has named another process to ask, once the stream has left the link.
    pub(crate) ask_next: Option<PeerAddress>,
    /// This attempt is at a process that the peer has named.
    pub(crate) sent_on: bool,
    /// Our region: the peer's consumed position, then our incoming ring.
    pub(crate) region: Option<Region>,
    /// Where outgoing bytes are written: the peer's region itself, or a local copy of the same shape.
    pub(crate) outgoing: Option<Outgoing>,
    /// Bytes that this process has written to and read from the anchor, records included.
    pub(crate) carried: AnchorPosition,
    /// Others may have used the anchor too: ask it.
    pub(crate) recount: bool,
    pub(crate) counters: StreamCounters,
    pub(crate) published: bool,
    pub(crate) reported_promotions: u32,
    pub(crate) was_linked: bool,
    pub(crate) released: bool,
    pub(crate) closed: bool,
    /// The application waits to write until the pledge is answered, and the endpoint knows.
    pub(crate) pledge_awaited: bool,
    /// So many bytes that may be the beginning of a record are next on the anchor, and the endpoint knows.
    pub(crate) partial: usize,
    /// They have been for RECORD_GRACE. Only while [`StreamGuard::wait_for_record`] looks.
    pub(crate) grace_over: bool,
    /// The kernel has said that the peer has ended its direction of the anchor.
    pub(crate) peer_ended: bool,
    /// Its FIN was read: the kernel will tell a reader of no reset that comes after it.
    pub(crate) fin_seen: bool,
    /// The end of the anchor was seen and is to be taken in once the link has been polled.
    pub(crate) end_noted: bool,
    /// It was taken in.
    pub(crate) end_handled: bool,
    /// A call of ours was told that the anchor is broken. The kernel tells of it once.
    pub(crate) anchor_broken: bool,
    /// Since when somebody waits for what comes again on the anchor; see [`StreamGuard::has_replay`].
    pub(crate) replay_since: Option<Instant>,
    /// SO_RCVLOWAT of the anchor.
    pub(crate) anchor_low_water: u32,
    /// How much of a closed stream was written to the anchor, and what was unconsumed, when it was looked at last.
    pub(crate) lingered: (u64, u64),
    /// The anchor has ended in another way than the stream.
    unlike: bool,
    /// A byte was written so that the kernel learns what the stream knows; see `give_back`.
    pub(crate) provoked: bool,
    /// Records or replay wait for room on the anchor, and the endpoint knows.
    pub(crate) blocked: bool,
    /// Its link had no room, and the endpoint knows.
    pub(crate) starved: bool,
    /// The endpoint knows that its link has no room; and what the peer had taken when that was last looked at.
    pub(crate) stall_noted: bool,
    pub(crate) taken: Taken,
    /// A write found byte credit but no room for a message: not writable until something has come back.
    pub(crate) crowded: bool,
    /// Bytes for a closed socket were thrown away: it ends with a reset, as from the kernel.
    pub(crate) refused: bool,
    /// Consumed position last told to the peer.
    told: u64,
    message_len: u32,
}

impl Inner {
    /// Neither side uses what the stream holds on its link any more. A CLOSE that found the queue full is still to go.
    pub(crate) fn is_idle(&self) -> bool {
        let proto = &self.proto;
        !(proto.holds_slot() || proto.needs_memory() || proto.has_control() || self.lingers())
    }

    /// Whether the kernel, of an anchor that has ended as the stream has, has the same error to tell: of a broken pipe if
    /// the peer's FIN was there before its reset.
    fn knows_error(&self) -> bool {
        !self.unlike && (self.proto.error() != Some(SocketError::Reset) || !self.fin_seen)
    }

    /// Whether the peer's FIN is next on the anchor.
    pub(crate) fn has_fin(&mut self) -> bool {
        let now = match self.look_for_fin() {
            Some(fin) => fin && self.anchor.unread() == 0,
            // Takes the error of a reset that came without one.
            None => matches!(self.anchor.try_peek(&mut [0]), Ok(0)),
        };
        self.fin_seen |= now;
        now
    }

    /// Whether the peer's FIN has come on the anchor, be it with unread bytes in front of it; `None` if only reading tells.
    pub(crate) fn look_for_fin(&mut self) -> Option<bool> {
        let counted = (!self.recount).then_some(self.carried.read)?;
        let fin = self.anchor.has_fin(counted)?;
        self.fin_seen |= fin;
        Some(fin)
    }

    /// Closed by the application, but records may still have to be read from the anchor or written to it.
    pub(crate) fn lingers(&self) -> bool {
        self.proto.must_linger()
    }
}

pub(crate) struct Outgoing {
    pub(crate) ring: RingDescriptor,
    pub(crate) memory: Memory,
    /// The local region, where the peer's memory is not mapped.
    pub(crate) staging: Option<Region>,
}

/// What `shutdown` shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// SHUT_RD
    Read,
    /// SHUT_WR
    Write,
    /// SHUT_RDWR
    Both,
}

/// How far an operation on the link came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkIo {
    /// So many bytes.
    Done(usize),
    /// Nothing now: wait for readiness.
    WouldBlock,
    /// The path has changed: look at `tx_sink` / `rx_source` again.
    Moved,
}

impl StreamCell {
    pub(crate) fn new(
        number: u32,
        tuple: FourTuple,
        proto: Stream,
        anchor: Box<dyn Anchor + Send>,
        message_len: u32,
    ) -> StreamCell {
        StreamCell {
            number,
            tuple,
            ready: AtomicU32::new((Readiness::KERNEL_RX | Readiness::KERNEL_TX).bits()),
            sleepers: AtomicU32::new(0),
            tag: AtomicU32::new(u32::MAX),
            kernel_readers: AtomicU32::new(0),
            sleep_qp: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            pinned: AtomicBool::new(false),
            opening: AtomicBool::new(false),
            low_water: AtomicU32::new(1),
            ring_limit: AtomicU32::new(u32::MAX),
            inner: Mutex::new(Inner {
                proto,
                anchor,
                link: None,
                ask_next: None,
                sent_on: false,
                region: None,
                outgoing: None,
                carried: AnchorPosition { written: 0, read: 0 },
                recount: false,
                counters: StreamCounters::default(),
                published: false,
                reported_promotions: 0,
                was_linked: false,
                released: false,
                closed: false,
                pledge_awaited: false,
                partial: 0,
                grace_over: false,
                peer_ended: false,
                fin_seen: false,
                end_noted: false,
                end_handled: false,
                anchor_broken: false,
                replay_since: None,
                unlike: false,
                anchor_low_water: 1,
                lingered: (0, 0),
                provoked: false,
                blocked: false,
                starved: false,
                stall_noted: false,
                taken: Taken::default(),
                crowded: false,
                refused: false,
                told: 0,
                message_len,
            }),
        }
    }

    /// The TCP connection, as this side sees it.
    pub fn tuple(&self) -> FourTuple {
        self.tuple
    }

    /// Readiness, without a lock.
    #[inline]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.ready.load(Ordering::Acquire))
    }

    /// Says whether the owner has something to tell beside the stream: [`Readiness::NOTICE`]. It tells those who wait.
    pub fn set_notice(&self, on: bool) {
        if on {
            self.ready.fetch_or(Readiness::NOTICE.bits(), Ordering::AcqRel);
        } else {
            self.ready.fetch_and(!Readiness::NOTICE.bits(), Ordering::AcqRel);
        }
    }

    /// SO_RCVBUF: the rings of links to come are not longer than that, as far as rings can be so short.
    pub fn limit_ring(&self, bytes: u32) {
        self.ring_limit.store(bytes, Ordering::Relaxed);
    }

    /// The length of the stream's next ring, where `most` is the usual one.
    pub fn next_ring_len(&self, most: u32) -> u32 {
        //= spec §3.2.4
        //# A ring length that is not a power of two between 4 KiB and 64 MiB is malformed.
        const SHORTEST: u32 = 4096;
        let limit = self.ring_limit.load(Ordering::Relaxed).max(SHORTEST);
        most.min(1 << limit.ilog2())
    }

    /// How many threads have announced, with [`sleeps`](StreamCell::sleeps), that they look for the last time and then
    /// sleep. While not zero, every change is announced through [`ReadySink`](crate::ReadySink) even if no bit was gained.
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::SeqCst)
    }

    /// Its number in the directory.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether something has arrived on the stream's link since it was last looked at. Cheap; no lock but the stream's.
    #[inline]
    pub fn has_news(self: &Arc<Self>, endpoint: &Endpoint) -> bool {
        if self.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            return false;
        }
        let inner = self.inner.lock();
        inner.link.as_ref().is_some_and(|link| link.has_news(endpoint.device()))
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
        let _one = Counted(&self.kernel_readers);
        Some(wait())
    }

    /// Counts the calling thread among the [`sleepers`](StreamCell::sleepers) until the result is dropped.
    pub fn sleeps(&self) -> Counted<'_> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        Counted(&self.sleepers)
    }

    /// The queue pair that sleepers sleep on.
    pub fn sleep_qp(&self) -> Option<QueuePairId> {
        self.sleep_qp.load(Ordering::Acquire).checked_sub(1).map(QueuePairId)
    }

    /// Set before sleeping.
    pub fn set_sleep_qp(&self, qp: QueuePairId) {
        self.sleep_qp.store(qp.0.wrapping_add(1), Ordering::Release);
    }

    /// Another process is about to hold the descriptor, and may use it: closing it here must leave the others a plain
    /// socket, and what this process has counted is not all that the anchor has carried. Once the stream has been locked
    /// after this, no promotion begins. Returns whether it was shared already.
    pub fn share(&self) -> bool {
        self.inner.lock().recount = true;
        self.shared.fetch_add(1, Ordering::AcqRel) > 0
    }

    /// How often the descriptor was shared since this process held it alone; 0 if no other process may hold it.
    pub fn shares(&self) -> u32 {
        self.shared.load(Ordering::Acquire)
    }

    /// This process alone holds the descriptor (again), as was found out after [`shares`](StreamCell::shares) said `seen`.
    /// Without effect if it has been shared since.
    pub fn unshare(&self, seen: u32) {
        let _ = self.shared.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether another process may hold the descriptor.
    pub fn is_shared(&self) -> bool {
        self.shares() > 0
    }

    /// Keeps the stream off links for good.
    pub fn pin(&self) {
        self.pinned.store(true, Ordering::Release);
    }

    /// Whether it is kept off links for good.
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Whether an OPEN of ours is out that the peer may still have something to say about: by the link alone, which a program
    /// that does something else does not look at.
    pub fn is_opening(&self) -> bool {
        self.opening.load(Ordering::Acquire)
    }

    /// Whether bytes may travel elsewhere than on the anchor. Only with the stream locked: whoever shares or pins it locks it
    /// afterwards, and so sees what has begun.
    pub(crate) fn may_leave_kernel(&self) -> Result<(), Reason> {
        match (self.is_pinned(), self.is_shared()) {
            (true, _) => Err(Reason::KernelOnly),
            (_, true) => Err(Reason::Shared),
            _ => Ok(()),
        }
    }

    /// SO_RCVLOWAT.
    pub fn low_water(&self) -> u32 {
        self.low_water.load(Ordering::Relaxed)
    }

    /// The owner's mark.
    pub fn tag(&self) -> &AtomicU32 {
        &self.tag
    }

    /// Locks the stream. Drop the guard before waiting for anything.
    #[inline]
    pub fn lock<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint) -> StreamGuard<'a> {
        StreamGuard { cell: self, endpoint, inner: self.inner.lock(), arrived: false, polled: false }
    }

    /// As `lock`, or `None` if another thread holds it.
    pub fn try_lock<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint) -> Option<StreamGuard<'a>> {
        Some(StreamGuard { cell: self, endpoint, inner: self.inner.try_lock()?, arrived: false, polled: false })
    }
}

/// One of those that a count counts; not any more once dropped, also if the thread is cancelled while it waits.
pub struct Counted<'a>(&'a AtomicU32);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A locked stream. Dropping it sends what the protocol wants sent and publishes the new readiness.
pub struct StreamGuard<'a> {
    pub(crate) cell: &'a Arc<StreamCell>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) inner: MutexGuard<'a, Inner>,
    pub(crate) arrived: bool,
    /// The link was polled after the anchor's end was seen.
    pub(crate) polled: bool,
}

impl Drop for StreamGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.settle();
    }
}

impl StreamGuard<'_> {
    /// Counts the positions of a stream that is to be promoted. What its anchor has carried must be what this process has
    /// moved, or else somebody uses the descriptor in ways that are not seen.
    pub(crate) fn count_positions(&mut self) -> Result<(), Reason> {
        let inner = &mut *self.inner;
        match inner.anchor.position() {
            Some(actual) => {
                let expected = inner.recount || actual == inner.carried;
                if !expected && !self.endpoint.sink().unseen_io(self.cell) {
                    return Err(Reason::UnseenIo);
                }
                (inner.carried, inner.recount) = (actual, false);
            }
            None if inner.recount => return Err(Reason::Shared),
            None => {}
        }
        inner.proto.set_positions(inner.carried.written, inner.carried.read);
        // Of the last link, which may have died with its queue full; and positions begin anew.
        inner.crowded = false;
        inner.replay_since = None;
        inner.told = inner.carried.read;
        Ok(())
    }

    /// Whether a thread is blocked in the kernel on the anchor's incoming bytes.
    pub(crate) fn is_read_by_kernel(&self) -> bool {
        self.cell.kernel_readers.load(Ordering::SeqCst) > 0
    }

    /// Where writes go now.
    #[inline]
    pub fn tx_sink(&self) -> TxSink {
        self.inner.proto.tx_sink()
    }

    /// Where reads come from now. What is still to be replayed to a socket that others may read from is not counted: an
    /// end before that is an end.
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

    /// Whether the kernel's socket knows all of the stream, so far: what it says is right, and nothing is to be replayed.
    pub fn is_kernels(&self) -> bool {
        let proto = &self.inner.proto;
        matches!(proto.tx_sink(), TxSink::Anchor | TxSink::Pledged) && self.rx_source() == RxSource::Anchor(u64::MAX)
    }

    /// Whether the application has closed it.
    pub fn is_closed(&self) -> bool {
        self.inner.closed
    }

    /// The link it is on, or being moved to.
    pub fn link(&self) -> Option<&Arc<LinkCell>> {
        self.inner.link.as_ref()
    }

    /// Bytes and messages so far.
    pub fn counters(&self) -> StreamCounters {
        self.inner.counters
    }

    /// `n` application bytes went to the anchor.
    #[inline]
    pub fn anchor_sent(&mut self, n: usize) {
        self.inner.proto.anchor_sent(n as u64);
        self.inner.carried.written += n as u64;
        self.inner.counters.tx_bytes_tcp += n as u64;
    }

    /// `n` application bytes were read from the anchor. If a record may come next, and bytes are there, they are looked at
    /// now: they may have announced themselves while others were still in front of them, and will not do so again.
    #[inline]
    pub fn anchor_received(&mut self, n: usize) {
        self.inner.proto.anchor_received(n as u64);
        self.inner.carried.read += n as u64;
        self.inner.counters.rx_bytes_tcp += n as u64;
        if self.rx_source() == RxSource::Record {
            self.progress_anchor(false);
        }
    }

    /// The application wants to write while a pledge is out, and does something else meanwhile. It is told when it can
    /// write: after [`PLEDGE_PATIENCE`] at the latest.
    pub fn wait_for_pledge(&mut self) {
        if !std::mem::replace(&mut self.inner.pledge_awaited, true) {
            self.endpoint.note_pledged(self.cell);
        }
    }

    /// The error of a stream that has failed, for the one call that is told of it.
    pub fn take_error(&mut self) -> Option<SocketError> {
        self.inner.proto.take_error()
    }

    /// SO_RCVLOWAT, which has been set on the anchor: with fewer unread bytes the stream is not readable.
    pub fn set_low_water(&mut self, bytes: u32) {
        self.cell.low_water.store(bytes.max(1), Ordering::Relaxed);
        self.inner.anchor_low_water = bytes.max(1);
        self.settle_low_water();
        // As the kernel does: whoever waits is told of what is there already.
        self.arrived |= readiness_of(&self.inner, self.cell.low_water()).contains(Readiness::READABLE);
    }

    /// Where a record may come, the kernel is to tell of fewer bytes than the application wants to be told of.
    fn settle_low_water(&mut self) {
        let inner = &mut *self.inner;
        let wanted = if matches!(inner.proto.rx_source(), RxSource::Anchor(_)) { self.cell.low_water() } else { 1 };
        if std::mem::replace(&mut inner.anchor_low_water, wanted) != wanted {
            inner.anchor.set_low_water(wanted);
        }
    }

    /// The application has written some bytes where [`TxSink`] is `Refused`.
    pub fn refuse_write(&mut self) {
        self.inner.proto.refuse_write();
        self.arrived = true;
    }

    /// Voids an open pledge, because the application will not wait.
    pub fn void_pledge(&mut self) {
        Counters::bump(&self.endpoint.counters().pledges_voided);
        self.inner.proto.void_pledge();
    }

    /// Sends from `src` on the link, as much as credit allows.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline]
    pub unsafe fn send_link(&mut self, src: *const u8, len: usize) -> LinkIo {
        let inner = &mut *self.inner;
        let (Some(region), Some(out), Some(link)) = (&inner.region, &inner.outgoing, &inner.link) else {
            return LinkIo::Moved;
        };
        let Some(word) = region.memory.word(0) else { return LinkIo::Moved };
        let Some(slot) = inner.proto.peer_slot() else { return LinkIo::Moved };
        let device = self.endpoint.device();
        let mut done = 0;
        while done < len {
            inner.proto.handle_consumed(word.load(Ordering::Acquire));
            let span = inner.proto.claim((len - done).min(inner.message_len as usize) as u32);
            if span.len == 0 {
                break;
            }
            // SAFETY: `done + span.len <= len`, so the source is within the caller's buffer.
            if !unsafe {
                out.memory.write_from(CREDIT_BLOCK_LEN + span.offset as usize, src.add(done), span.len as usize)
            } {
                break;
            }
            let mut tx = link.tx.lock();
            let rewind = inner.proto.commit(span.len);
            let imm = Immediate { kind: MessageKind::Data, rewind, slot };
            match tx.data(device, link, &out.ring, out.staging.as_ref(), span, imm) {
                Ok(()) => {
                    inner.counters.tx_bytes_link += u64::from(span.len);
                    inner.counters.tx_msgs_link += 1;
                    done += span.len as usize;
                }
                Err(e) => {
                    inner.proto.uncommit(span.len, rewind);
                    if e == PostError::QueueFull {
                        Counters::bump(&self.endpoint.counters().message_credit_stalls);
                        // Otherwise it is the device's queue that is full, which is soon over.
                        inner.crowded = !tx.has_room(&link.local);
                        tx.want(device, link);
                        drop(tx);
                        if !std::mem::replace(&mut inner.starved, true) {
                            self.endpoint.note_starved(self.cell);
                        }
                        self.note_stall();
                    } else {
                        drop(tx);
                        // What the peer had sent before is taken in first: see `progress`.
                        self.endpoint.note_dead(link);
                        inner.crowded = true;
                        return if done > 0 { LinkIo::Done(done) } else { LinkIo::WouldBlock };
                    }
                    return if done > 0 { LinkIo::Done(done) } else { LinkIo::WouldBlock };
                }
            }
        }
        if !inner.proto.link_writable() {
            // Ask before the application runs dry, so that `poll` for writing has something to wait for.
            inner.proto.handle_consumed(word.load(Ordering::Acquire));
            if !inner.proto.link_writable() {
                Counters::bump(&self.endpoint.counters().byte_credit_stalls);
                inner.proto.stalled();
                self.note_stall();
            }
        }
        match (done, self.tx_sink()) {
            (0, TxSink::Link) => LinkIo::WouldBlock,
            (0, _) => LinkIo::Moved,
            (n, _) => LinkIo::Done(n),
        }
    }

    /// Copies up to `len` bytes from the ring to `dst`, starting `skip` bytes after the consumed position, without
    /// consuming. Returns how many.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline]
    pub unsafe fn peek_link(&mut self, dst: *mut u8, len: usize, skip: usize) -> usize {
        let Some(region) = &self.inner.region else { return 0 };
        let mut done = 0;
        // At most two spans: the ring wraps once.
        while done < len {
            let span = self.inner.proto.readable((skip + done) as u32);
            let n = (span.len as usize).min(len - done);
            // SAFETY: `done + n <= len`, so the destination is within the caller's buffer.
            if n == 0 || !unsafe { region.memory.read_into(CREDIT_BLOCK_LEN + span.offset as usize, dst.add(done), n) }
            {
                break;
            }
            done += n;
        }
        done
    }

    /// The application has taken `n` bytes that it peeked: returns them to the sender as credit.
    #[inline]
    pub fn consume_link(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let inner = &mut *self.inner;
        let credit = inner.proto.consume(n as u32);
        inner.counters.rx_bytes_link += n as u64;
        if !credit.tell {
            // The peer has let go of the memory that the word lies in.
            return;
        }
        let (Some(out), Some(link)) = (&inner.outgoing, &inner.link) else { return };
        let device = self.endpoint.device();
        if out.staging.is_none() {
            if let Some(word) = out.memory.word(0) {
                word.store(credit.consumed, Ordering::Release);
            }
        } else {
            //= spec §5.2.5
            //# Where a write is not cheap, a receiver MAY tell of consumption only after a quarter of its ring.
            let due = credit.consumed - inner.told >= u64::from(inner.proto.rx_ring_len() / 4);
            // What the queue has no room for is told with the next read, or when the peer asks.
            if due && !credit.give && link.tx.lock().credit_word(device, link, &out.ring, credit.consumed).is_ok() {
                inner.told = credit.consumed;
            }
        }
        if credit.give {
            inner.proto.give_credit();
        }
    }

    /// Receives up to `len` bytes from the ring.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[expect(unsafe_code, reason = "application buffers arrive as raw pointers")]
    #[inline]
    pub unsafe fn recv_link(&mut self, dst: *mut u8, len: usize) -> LinkIo {
        // SAFETY: passed on to the caller.
        let n = unsafe { self.peek_link(dst, len, 0) };
        if n == 0 {
            return if matches!(self.rx_source(), RxSource::Link) { LinkIo::WouldBlock } else { LinkIo::Moved };
        }
        self.consume_link(n);
        LinkIo::Done(n)
    }

    /// [`send_link`](StreamGuard::send_link) from a slice.
    #[expect(unsafe_code, reason = "calls the raw form")]
    #[inline]
    pub fn send_slice(&mut self, src: &[u8]) -> LinkIo {
        // SAFETY: the slice is readable.
        unsafe { self.send_link(src.as_ptr(), src.len()) }
    }

    /// [`peek_link`](StreamGuard::peek_link) into a slice.
    #[expect(unsafe_code, reason = "calls the raw form")]
    #[inline]
    pub fn peek_slice(&mut self, dst: &mut [u8], skip: usize) -> usize {
        // SAFETY: the slice is writable.
        unsafe { self.peek_link(dst.as_mut_ptr(), dst.len(), skip) }
    }

    /// The kernel's socket of a plain stream has been shut down directly: the stream is past promotion.
    pub fn note_kernel_shutdown(&mut self, how: Shutdown) {
        // Others may have read what has come again: see `rx_source`.
        self.inner.proto.handle_replay();
        self.shutdown(how);
        while let Some(AnchorWrite::Shutdown | AnchorWrite::ShutdownRead) = self.inner.proto.poll_anchor_write() {
            self.inner.proto.anchor_written(0);
        }
    }

    /// Lets go of the duplicate that outlived the application's descriptor.
    pub(crate) fn end_linger(&mut self) {
        let inner = &mut *self.inner;
        if inner.proto.resets() && inner.proto.has_said_fin() {
            // In the order in which a kernel would have said it. Of one that has ended already nobody asks.
            let _ = inner.anchor.shutdown_write();
        }
        if inner.refused || inner.proto.resets() || inner.proto.failure().is_some() {
            inner.anchor.abort();
        }
        self.abandon();
    }

    /// The application has closed the descriptor of a stream that is plain TCP: it must not be used again.
    pub(crate) fn abandon(&mut self) {
        self.inner.closed = true;
        self.inner.anchor = Box::new(GoneAnchor);
    }

    /// Announces the stream's readiness anew.
    pub fn note_arrival(&mut self) {
        self.arrived = true;
    }

    /// The application's descriptor has another number now.
    pub fn replace_anchor(&mut self, anchor: Box<dyn Anchor + Send>) {
        self.inner.anchor = anchor;
    }

    /// Something may have come back to a stream that could not send: looks at its byte credit, asks for more, and tells
    /// the owner.
    pub(crate) fn unstall(&mut self) {
        self.refresh_consumed();
        let inner = &mut *self.inner;
        if let Some(link) = inner.link.as_ref().filter(|_| inner.crowded) {
            let asked = link.tx.lock().want(self.endpoint.device(), link);
            if !asked && !std::mem::replace(&mut inner.starved, true) {
                self.endpoint.note_starved(self.cell);
            }
        }
        let proto = &mut self.inner.proto;
        if proto.tx_sink() == TxSink::Link && !proto.link_writable() {
            proto.stalled();
        }
        self.arrived = true;
    }

    /// Takes in the peer's consumed position, and its count of messages if that is what a write waits for. A writer
    /// that spins need not wait for the announcement.
    #[inline]
    pub fn refresh_consumed(&mut self) {
        let inner = &mut *self.inner;
        if inner.crowded {
            // A dead link will never have room: nothing is to be waited for.
            inner.crowded =
                inner.link.as_ref().is_some_and(|link| !link.is_dead() && !link.tx.lock().has_room(&link.local));
        }
        if let Some(word) = inner.region.as_ref().and_then(|r| r.memory.word(0)) {
            inner.proto.handle_consumed(word.load(Ordering::Acquire));
        }
    }

    /// Leaves the link. Progress comes with [`progress_anchor`](StreamGuard::progress_anchor) until `proto().is_plain()`.
    pub fn demote(&mut self, reason: Reason) {
        if self.inner.proto.has_ended() && !self.inner.proto.revive() {
            return self.give_back();
        }
        if self.inner.proto.is_linked() && self.inner.has_fin() {
            //= spec §4.6.9
            //# A side writes neither a marker nor, of its own accord, RESUME where it sees that the anchor has ended.
            // The peer is gone without a word: its kernel would answer with a reset. What the link has brought decides.
            return self.end_of_anchor();
        }
        self.inner.proto.demote(Demotion::Requested(reason));
    }

    /// Leaves the link for an anchor that has ended as the stream has, or soon will have: then nothing happens yet.
    fn give_back(&mut self) {
        let told = self.inner.proto.error().is_none();
        let inner = &mut *self.inner;
        let failed = inner.proto.failure().is_some();
        // Of a closed stream nobody asks.
        if inner.closed || !inner.knows_error() {
            return;
        }
        // Records may come until the anchor has ended, and be there in part.
        if !failed && !inner.has_fin() {
            return;
        }
        if failed && !inner.anchor.is_over() {
            // Nobody reads what comes there: the peer's kernel answers with a reset, once it has closed.
            let closed = inner.proto.is_peer_gone() && inner.anchor.is_ended();
            if closed && !std::mem::replace(&mut inner.provoked, true) {
                inner.carried.written += inner.anchor.try_write(&[0]).unwrap_or(0) as u64;
            }
            if !inner.anchor.is_over() {
                return;
            }
        }
        if failed {
            self.discard_records();
            if told {
                self.inner.anchor.clear_error();
            } else if self.inner.proto.error() == Some(SocketError::Pipe) && !self.inner.has_fin() {
                self.inner.unlike = true;
                return;
            }
        }
        self.arrived |= self.inner.proto.give_back();
    }

    /// Takes what is unread on the anchor of a stream that has failed: records, or parts of some.
    fn discard_records(&mut self) {
        let inner = &mut *self.inner;
        let mut bytes = [0; 4096];
        // Bounded, as the kernel's buffer is. A read would take the error with it.
        for _ in 0..64 {
            if inner.anchor.is_broken() || !matches!(inner.anchor.try_peek(&mut bytes), Ok(n) if n > 0) {
                return;
            }
            let Ok(n) = inner.anchor.try_read(&mut bytes) else { return };
            inner.carried.read += n as u64;
        }
    }

    /// Whether a stream that has ended cannot be given back to its anchor: what it has to say, the kernel does not know.
    pub fn is_kept(&self) -> bool {
        let proto = &self.inner.proto;
        if proto.is_revivable() {
            return false;
        }
        let unknown = !self.inner.knows_error() || !proto.is_peer_gone() && !self.inner.anchor.is_over();
        proto.has_ended() && (proto.available() > 0 || proto.failure().is_some() && unknown)
    }

    /// Whether the stream has failed, and its anchor, which soon will have, may bring records before.
    pub(crate) fn awaits_end(&self) -> bool {
        let proto = &self.inner.proto;
        proto.failure().is_some() && !proto.is_plain() && !self.inner.closed && !self.is_kept()
    }

    /// Whether the stream has anything that must not end with the process: it is open, or its peer has not read it all. What
    /// lies on the link can be read by the process at its other end alone, and that may give the socket away.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.inner.closed || self.inner.proto.unconsumed() > 0
    }

    /// Whether nobody would miss anything if the process ended: the kernel has it all, or the link of a closed stream.
    pub(crate) fn can_be_left(&self) -> bool {
        let proto = &self.inner.proto;
        let said = !self.is_wanted() && proto.phase() == Phase::Linked && !proto.has_control();
        proto.is_plain() || proto.failure().is_some() || said
    }

    /// Whether nothing can be read or written any more after this `shutdown`.
    pub fn ends_both(&self, how: Shutdown) -> bool {
        self.inner.proto.ends_both(how != Shutdown::Write, how != Shutdown::Read)
    }

    /// `shutdown`.
    pub fn shutdown(&mut self, how: Shutdown) {
        // What the kernel has already is before it.
        self.take_in_replay();
        if how != Shutdown::Write {
            self.inner.proto.shutdown_read();
        }
        if how != Shutdown::Read {
            self.inner.proto.shutdown_write();
        }
    }

    /// The application has closed its last descriptor, of a stream that the kernel's socket is all of: then true, and the
    /// stream is to be [forgotten](Endpoint::forget). From now on nobody opens it, whichever side asks: a pledge would be
    /// followed by the kernel's end of the connection, and its peer would take that for a death.
    pub fn close_plain(&mut self) -> bool {
        let plain = self.inner.proto.is_plain() && self.inner.link.is_none();
        if plain {
            self.abandon();
        }
        plain
    }

    /// The application has closed its last descriptor. If the result is true the anchor must live on (as `keep`, a
    /// duplicate) until records and replay are through; the endpoint then finishes by itself.
    pub fn close(&mut self, abort: bool, keep: impl FnOnce() -> Option<Box<dyn Anchor + Send>>) -> bool {
        let inner = &mut *self.inner;
        inner.closed = true;
        inner.proto.close(abort);
        if inner.proto.must_linger() {
            // It may be through at once.
            self.progress_anchor(false);
        }
        let inner = &mut *self.inner;
        if inner.proto.failure().is_some() || inner.proto.resets() {
            inner.anchor.abort();
        }
        if inner.published {
            inner.published = false;
            self.endpoint.directory().withdraw(&self.cell.tuple, self.cell.number);
        }
        let linger = inner.lingers();
        match linger.then(keep).flatten() {
            Some(anchor) => inner.anchor = anchor,
            None => inner.anchor = Box::new(GoneAnchor),
        }
        if linger {
            self.endpoint.note_lingering(self.cell);
        } else if inner.is_idle() {
            self.endpoint.note_release(self.cell);
        }
        linger
    }

    /// Sends what the protocol wants sent, and publishes readiness.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let proto = &self.inner.proto;
        if !proto.is_steady() || proto.promotions() != self.inner.reported_promotions {
            self.flush();
        }
        self.publish();
    }

    fn flush(&mut self) {
        // Before the peer can answer: see `publish`.
        self.publish();
        // An anchor write can produce a signal (SWITCHED), hence this order.
        self.write_anchor();
        let inner = &mut *self.inner;
        let device = self.endpoint.device();
        while let Some(control) = inner.proto.poll_control() {
            let Some(link) = &inner.link else { continue };
            let mut tx = link.tx.lock();
            let told = match (&control, &inner.outgoing) {
                // "Look at the credit word" is worth nothing before the word is there.
                (Control::Signal(MessageKind::CreditGive), Some(out)) if out.staging.is_some() => {
                    let consumed = inner.proto.positions().1;
                    if consumed > inner.told && matches!(inner.proto.rx_source(), RxSource::Link) {
                        tx.credit_word(device, link, &out.ring, consumed).map(|()| inner.told = consumed)
                    } else {
                        Ok(())
                    }
                }
                _ => Ok(()),
            };
            let sent = match &control {
                _ if told.is_err() => told,
                Control::Message(message) => tx.control(device, link, message),
                Control::Signal(kind) => match inner.proto.peer_slot() {
                    Some(slot) => tx.signal(device, link, *kind, slot),
                    None => Ok(()),
                },
            };
            drop(tx);
            match sent {
                Ok(()) => {}
                Err(PostError::QueueFull) => {
                    inner.proto.return_control(control);
                    if !std::mem::replace(&mut inner.starved, true) {
                        self.endpoint.note_starved(self.cell);
                    }
                    break;
                }
                Err(_) => {
                    self.endpoint.note_dead(link);
                    break;
                }
            }
        }
        self.after_change();
    }

    /// Bookkeeping of promotions, demotions and releases.
    fn after_change(&mut self) {
        self.settle_low_water();
        let inner = &mut *self.inner;
        let counters = self.endpoint.counters();
        let opening = inner.proto.is_opening();
        let mut moved = self.cell.opening.swap(opening, Ordering::AcqRel) != opening;
        if inner.proto.promotions() != inner.reported_promotions {
            inner.reported_promotions = inner.proto.promotions();
            Counters::bump(&counters.streams_promoted);
            inner.was_linked = true;
            moved = true;
        }
        if moved {
            self.endpoint.note_moved(self.cell);
        }
        if inner.was_linked && inner.proto.is_plain() {
            inner.was_linked = false;
            if !inner.closed {
                Counters::bump(&counters.streams_demoted);
                counters.reason(inner.proto.reason());
                // Whoever looked at its link for it may look there no more.
                self.endpoint.note_moved(self.cell);
            }
        }
        // Its application may never use it again; but the peer's is to see the end.
        if self.is_settling() && !self.inner.closed && !std::mem::replace(&mut self.inner.blocked, true) {
            self.endpoint.note_blocked(self.cell);
        }
        let inner = &mut *self.inner;
        if inner.link.is_some() && !inner.released && inner.is_idle() {
            inner.released = true;
            self.endpoint.note_release(self.cell);
        }
    }

    /// Makes the readiness visible to those who do not lock the stream, and tells the owner.
    ///
    /// They look at it after the kernel has reported the anchor readable, to tell application bytes from a record. So it
    /// must be right before anything is sent that the peer answers with a record.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let now = readiness_of(&self.inner, self.cell.low_water());
        let before = self.cell.readiness().difference(Readiness::NOTICE);
        if now != before {
            // Only who has the stream locked changes these bits; the owner's own stays as it is.
            self.cell.ready.fetch_xor((now ^ before).bits(), Ordering::AcqRel);
        }
        if self.arrived || now != before {
            self.endpoint.sink().ready(self.cell, now, self.arrived);
            self.arrived = false;
        }
    }
}

/// What `poll` says: the table of `netacc_proto`'s `stream/tcp.rs`.
#[inline]
fn readiness_of(inner: &Inner, low_water: u32) -> Readiness {
    let proto = &inner.proto;
    let mut r = match proto.rx_source() {
        RxSource::Anchor(_) => Readiness::KERNEL_RX,
        _ if proto.no_more_in() => Readiness::READABLE,
        // A sender that has no room does not wait for a reader that wants more than there is room for.
        RxSource::Link if proto.available() >= low_water.min(proto.rx_ring_len() / 2).max(1) => Readiness::READABLE,
        // The kernel's readiness announces a record; whoever asks makes progress first.
        RxSource::Link | RxSource::Record => Readiness::empty(),
        RxSource::Eof | RxSource::Failed(_) => Readiness::READABLE,
    };
    r |= match proto.tx_sink() {
        TxSink::Link if proto.link_writable() && !inner.crowded => Readiness::WRITABLE,
        TxSink::Link | TxSink::Wait => Readiness::empty(),
        // Writable, as far as anybody knows, until a write has been told to wait.
        TxSink::Pledged if inner.pledge_awaited => Readiness::empty(),
        TxSink::Anchor | TxSink::Pledged => Readiness::KERNEL_TX,
        TxSink::Closed | TxSink::Refused => Readiness::WRITABLE,
    };
    if r.contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
        return r;
    }
    if proto.error().is_some() {
        r |= Readiness::ERR;
    }
    if proto.no_more_in() {
        r |= Readiness::RDHUP;
    }
    if proto.no_more_in() && proto.no_more_out() {
        r |= Readiness::HUP;
    }
    r
}

/// Stands in for the anchor of a closed stream whose link still has CLOSE to exchange.
pub(crate) struct GoneAnchor;

impl Anchor for GoneAnchor {
    fn try_write(&mut self, _: &[u8]) -> Result<usize, AnchorError> {
        Err(AnchorError::WouldBlock)
    }
    fn try_read(&mut self, _: &mut [u8]) -> Result<usize, AnchorError> {
        Err(AnchorError::WouldBlock)
    }
    fn try_peek(&mut self, _: &mut [u8]) -> Result<usize, AnchorError> {
        Err(AnchorError::WouldBlock)
    }
    fn position(&self) -> Option<AnchorPosition> {
        None
    }
    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        Ok(())
    }
    fn shutdown_read(&mut self) -> Result<(), AnchorError> {
        Ok(())
    }
    fn is_broken(&self) -> bool {
        false
    }
    fn is_over(&self) -> bool {
        true
    }
    fn is_ended(&self) -> bool {
        true
    }
    fn unread(&self) -> u64 {
        0
    }
    fn clear_error(&mut self) {}
    fn abort(&mut self) {}
    fn reset(&mut self) {}
    fn set_low_water(&mut self, _: u32) {}
}
