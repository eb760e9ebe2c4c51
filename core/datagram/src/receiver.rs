//! The receiving end of a flow.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use netacc_device::Memory;

use crate::{
    capacity_of, Header, Marks, State, Status, BEGUN, DROPPED, ENDED, HEAD, HEADER, OVER, PADDING, PROCESSOR, READY,
    RECORDS, REVOKED, STATUS, TAIL, TAKEN,
};

/// A datagram at the front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    at: u64,
    pub(crate) header: u64,
}

impl Record {
    /// Its bytes.
    pub fn len(&self) -> usize {
        Header(self.header).len() as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the sender says of it.
    pub fn marks(&self) -> Marks {
        Header(self.header).marks()
    }
}

/// The receiving end. One thread at a time, but for [`has_more`](Receiver::has_more).
#[derive(Debug)]
pub struct Receiver {
    inbox: Memory,
    outbox: Memory,
    capacity: u64,
    head: u64,
    /// The head that the sender knows.
    published: u64,
    state: State,
    sleeps: u64,
    wants_time: bool,
    /// The flow has ended, and the sender's region may be another flow's by now: nothing is written there any more.
    ended: bool,
    /// Nothing that the sender has written counts any more: it has broken the rules, or the ring is given back.
    refused: bool,
    /// The number of the flow's datagrams that came by the kernel; `None` before it is known.
    by_kernel: Option<u64>,
}

impl Receiver {
    /// With the own inbox and the sender's outbox; `wants_time` if it is to know when each datagram was sent. `None` if the
    /// lengths are not those of a flow.
    pub fn new(inbox: Memory, outbox: Memory, wants_time: bool) -> Option<Receiver> {
        let capacity = capacity_of(inbox.len())?;
        (outbox.len() >= crate::OUTBOX_LEN).then_some(Receiver {
            inbox,
            outbox,
            capacity,
            head: 0,
            published: 0,
            state: State::Asleep,
            sleeps: 0,
            wants_time,
            ended: false,
            refused: false,
            by_kernel: None,
        })
    }

    /// Whether the ring may have a datagram. Cheap: for a loop that spins.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.tail() != self.head && !self.refused
    }

    /// A number that grows with each datagram that arrives.
    pub fn arrivals(&self) -> u64 {
        self.tail()
    }

    /// The datagram at the front. Skips what the sender has taken back.
    #[inline]
    pub fn front(&mut self) -> Option<Record> {
        loop {
            let waiting = self.tail().wrapping_sub(self.head);
            if waiting == 0 || self.refused {
                return None;
            }
            let header = Header(self.header_at(self.head).load(Acquire));
            let left = self.capacity - self.head % self.capacity;
            if waiting > self.capacity || header.extent() > waiting.min(left) {
                return self.refuse();
            }
            match header.kind() {
                READY => return Some(Record { at: self.head, header: header.0 }),
                REVOKED | PADDING => self.advance(header.extent()),
                _ => return self.refuse(),
            }
        }
    }

    #[cold]
    fn refuse(&mut self) -> Option<Record> {
        self.close();
        //= spec §10.5
        //# A false tail, head, length or kind ends the flow, and nothing else.
        self.refused = true;
        None
    }

    /// Whether all that was sent by the kernel before the record at the front has come, as far as is known.
    #[inline]
    pub fn is_due(&self, record: &Record) -> bool {
        //= spec §10.4.2
        //# A receiver takes a record only if as many datagrams of the flow have come by the kernel as the record says were
        //# sent, or were dropped there.
        let ahead = |come: u64| ((come << 8) as u32).wrapping_sub(Header(record.header).by_kernel()) as i32;
        self.by_kernel.is_some_and(|come| ahead(come) >= 0)
    }

    /// How many datagrams of the flow the sender has sent by the kernel, plus one; 0 before it counts them. Read it before the kernel is asked for one: see
    /// [`kernel_was_empty`](Receiver::kernel_was_empty).
    pub fn sent_by_kernel(&self) -> u64 {
        self.counter(ENDED)
    }

    /// Whether what the kernel has now was sent before anything that the ring gets later: a send by the kernel has begun
    /// whose datagram has not come, as far as is known, or no record is taken yet.
    pub fn expects_by_kernel(&self) -> bool {
        self.by_kernel.is_none_or(|come| self.counter(BEGUN) > come)
    }

    /// The kernel had no datagram after `sent` was [read](Receiver::sent_by_kernel): all of those have come, or were
    /// dropped.
    pub fn kernel_was_empty(&mut self, sent: u64) {
        let goes_on = self.counter(BEGUN) != sent;
        // Whether the datagram of a send that goes on has come is only known to a receiver that has counted those before.
        if sent == 0 || self.is_new() && goes_on {
            return;
        }
        let known = self.by_kernel.filter(|_| goes_on);
        //= spec §10.4.3
        //# It counts at least as many then, and exactly as many if no other send has begun.
        let was_new = self.by_kernel.replace(known.map_or(sent, |come| come.max(sent))).is_none();
        //= spec §10.4.3
        //# A receiver that has never found the kernel like that while no send went on is *new*, and takes no record.
        if was_new {
            self.enter(self.state);
        }
    }

    fn counter(&self, offset: usize) -> u64 {
        self.inbox.word(offset).map_or(0, |word| word.load(SeqCst))
    }

    /// The processor on which the sender ran at its latest send by the kernel, if it has said so. The peer may say anything.
    pub fn sender_processor(&self) -> Option<u32> {
        self.counter(PROCESSOR).checked_sub(1).and_then(|processor| u32::try_from(processor).ok())
    }

    /// So many datagrams of the flow were received from the kernel.
    pub fn came_by_kernel(&mut self, count: u64) {
        self.by_kernel = self.by_kernel.map(|come| come.wrapping_add(count));
    }

    /// The kernel has dropped so many datagrams of this socket, perhaps of this flow: what is in the ring does not wait for
    /// them.
    pub fn kernel_dropped(&mut self, count: u64) {
        let begun = self.counter(BEGUN);
        self.by_kernel = self.by_kernel.map(|come| come.saturating_add(count).min(begun.max(come)));
    }

    /// Takes the datagram at the front for good. `false`: the sender has taken it back meanwhile.
    #[inline]
    pub fn claim(&mut self, record: &Record) -> bool {
        let taken = Header(record.header).with_kind(TAKEN).0;
        self.header_at(record.at).compare_exchange(record.header, taken, AcqRel, Relaxed).is_ok()
    }

    /// Copies bytes of a record from `skip` on.
    ///
    /// # Safety
    /// `to..to + len` is writable.
    #[inline]
    pub unsafe fn copy(&self, record: &Record, skip: usize, to: *mut u8, len: usize) {
        debug_assert!(skip + len <= record.len(), "within the record");
        let place = self.offset(record.at) + Header(record.header).prefix() as usize;
        // SAFETY: by the caller.
        let fits = unsafe { self.inbox.read_into(place + skip, to, len) };
        debug_assert!(fits, "`front` has checked the record's extent");
    }

    /// When a record was sent, as its sender says; `None` if it does not say so.
    pub fn time(&self, record: &Record) -> Option<u64> {
        let at = self.offset(record.at) + HEADER as usize;
        Header(record.header).is_timed().then(|| self.counter(at))
    }

    /// How many datagrams the sender has dropped, as it says, while this receiver was new and the ring was full.
    pub fn dropped(&self) -> u64 {
        self.counter(DROPPED)
    }

    /// The claimed record is not needed any more.
    #[inline]
    pub fn release(&mut self, record: &Record) {
        debug_assert_eq!(record.at, self.head, "records are released in order");
        self.advance(Header(record.header).extent());
    }

    #[inline]
    fn advance(&mut self, extent: u64) {
        self.head += extent;
        if self.head - self.published >= self.capacity / 4 {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.published = self.head;
        if let Some(word) = self.outbox.word(HEAD).filter(|_| !self.ended) {
            word.store(self.head, Release);
        }
    }

    /// From now on the ring is looked at before this end sleeps.
    #[inline]
    pub fn stay_awake(&mut self) {
        if matches!(self.state, State::Asleep | State::Dozing) {
            self.enter(State::Awake);
        }
    }

    /// Whether the kernel has never been [empty](Receiver::kernel_was_empty).
    pub fn is_new(&self) -> bool {
        self.by_kernel.is_none()
    }

    /// A thread is about to sleep in the kernel, `alone` or while others do. `false`: there are datagrams in the ring, and
    /// it must not sleep.
    pub fn fall_asleep(&mut self, alone: bool) -> bool {
        if self.state == State::Closed {
            return self.front().is_none();
        }
        self.publish();
        //= spec §10.3.2
        //# A receiver that is about to sleep says so, with the next number, and looks at the ring again; if there is a
        //# record, it does not sleep.
        self.sleeps += 1;
        self.enter(if alone { State::Dozing } else { State::Asleep });
        let sleeps = self.front().is_none();
        if alone && !sleeps {
            self.stay_awake();
        }
        sleeps
    }

    /// No datagram takes the ring from now on. Those that are there can still be taken.
    pub fn close(&mut self) {
        self.enter(State::Closed);
    }

    /// Closes the ring, and leaves the datagrams in it to the sender, which sends them by the kernel. `false`: the sender has
    /// ended the flow, so this end must take them.
    pub fn give_back(&mut self) -> bool {
        //= spec §10.3.4
        //# A receiver gives its ring back if another process may receive from its socket: it writes its head, and then that
        //# it is closed and has given back, and takes no record after that.
        self.publish();
        self.state = State::Closed;
        self.write(self.status().given_back());
        self.end();
        self.refused = self.counter(OVER) == 0;
        self.refused
    }

    /// The flow has ended, by either side. The receiver can still take the datagrams that are in the ring.
    pub fn end(&mut self) {
        self.ended = true;
        self.state = State::Closed;
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.write(self.status());
    }

    fn status(&self) -> Status {
        Status::new(self.state, self.by_kernel.is_none(), self.wants_time, self.sleeps)
    }

    fn write(&self, status: Status) {
        if let Some(word) = self.outbox.word(STATUS).filter(|_| !self.ended) {
            // Ordered before the next look at the tail: see `Sender::send`.
            word.swap(status.0, SeqCst);
        }
    }

    #[inline]
    fn tail(&self) -> u64 {
        self.inbox.word(TAIL).map_or(0, |word| word.load(SeqCst))
    }

    fn offset(&self, at: u64) -> usize {
        RECORDS + (at % self.capacity) as usize
    }

    /// The header at a position: positions are multiples of 8.
    #[inline]
    fn header_at(&self, at: u64) -> &AtomicU64 {
        self.inbox.word(self.offset(at)).expect("within the inbox, by its length")
    }
}
