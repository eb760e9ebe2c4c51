//! The sending end of a flow.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use netacc_device::Memory;

use crate::{
    capacity_of, Header, Marks, State, Status, BEGUN, BY_KERNEL_SHIFT, DROPPED, ENDED, HEAD, HEADER, LONGEST, OVER,
    PADDING, PROCESSOR, READY, RECORDS, REVOKED, STATUS, TAIL, TIME, TIMED,
};

/// Why a datagram does not take the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The receiver sleeps, or does not look at the ring.
    Asleep,
    /// There is no room now.
    Full,
    /// There is no room now, and the receiver is new: the datagram is dropped.
    Dropped,
    /// It is too long for any ring of this capacity.
    TooLong,
    /// The receiver has closed the flow, or has broken its rules: no datagram takes this ring any more.
    Closed,
}

/// A datagram that was taken back from a ring, to be sent by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What its IP header is to say.
    pub marks: Marks,
}

/// The sending end. One thread at a time.
#[derive(Debug)]
pub struct Sender {
    inbox: Memory,
    outbox: Memory,
    capacity: u64,
    tail: u64,
    /// The last head that was read.
    head: u64,
    /// Sends by the kernel that have begun, and that have ended.
    begun: u64,
    ended: u64,
    dropped: u64,
    closed: bool,
    /// The status at which the last datagram that went by the kernel found the receiver.
    found: Status,
    /// That datagram has been sent, and has woken a receiver that was dozing.
    woken: Option<Status>,
}

impl Sender {
    /// With the receiver's inbox and the own outbox. `None` if their lengths are not those of a flow.
    pub fn new(inbox: Memory, outbox: Memory) -> Option<Sender> {
        let capacity = capacity_of(inbox.len())?;
        (outbox.len() >= crate::OUTBOX_LEN).then_some(Sender {
            inbox,
            outbox,
            capacity,
            tail: 0,
            head: 0,
            begun: 0,
            ended: 0,
            dropped: 0,
            closed: false,
            found: Status::new(State::Asleep, false, false, 0),
            woken: None,
        })
    }

    /// Begins to count the sends by the kernel, of which so many are going on. Before that no datagram takes the ring.
    pub fn start(&mut self, going_on: u64) {
        self.ended = 1;
        self.begun = 1 + going_on;
        self.word(BEGUN).store(self.begun, SeqCst);
        self.word(ENDED).store(self.ended, SeqCst);
    }

    /// So many datagrams of this flow are about to be sent by the kernel, in one call.
    pub fn begin_by_kernel(&mut self, count: u64) {
        //= spec §10.4.1
        //# A sender counts its sends by the kernel, before they begin and after they have ended.
        self.found = self.status();
        self.begun += count;
        self.word(BEGUN).store(self.begun, SeqCst);
    }

    /// This end runs on that processor, and is about to send by the kernel.
    pub fn runs_on(&mut self, processor: u32) {
        //= spec §10.4.5
        //# A sender writes the processor on which it runs before a send by the kernel.
        self.word(PROCESSOR).store(1 + u64::from(processor), Relaxed);
    }

    /// They were `sent`, or could not be.
    pub fn end_by_kernel(&mut self, count: u64, sent: bool) {
        self.woken = Some(self.found).filter(|found| sent && found.state() == State::Dozing);
        self.ended += count;
        self.word(ENDED).store(self.ended, SeqCst);
    }

    /// Takes back the datagrams that have to go by the kernel before anything else of the flow that goes there now, oldest
    /// first: those in the ring of a receiver that is new, which would be overtaken, or that has given its ring back. When to
    /// call it: before a datagram goes by the kernel, and at the end of the flow.
    pub fn reclaim(&mut self) -> Vec<Reclaimed> {
        if self.tail == self.head {
            return Vec::new();
        }
        let status = self.status();
        let must = status.is_new() || status.is_given_back();
        if !must || self.refresh_head().is_err() {
            return Vec::new();
        }
        let mut reclaimed: Vec<Reclaimed> = Vec::new();
        //= spec §10.3.4
        //# The sender takes back, the newest first, the records that are not taken, and sends their datagrams by the kernel
        //# in their order, before any other of the flow.
        for (at, header) in self.ready().into_iter().rev() {
            // The receiver takes the oldest first, so it keeps older ones than those that go by the kernel.
            if self.revoke(at, header) {
                let mut bytes = vec![0; header.len() as usize];
                if self.inbox.read(self.offset(at) + header.prefix() as usize, &mut bytes) {
                    reclaimed.push(Reclaimed { bytes, marks: header.marks() });
                }
            }
        }
        reclaimed.reverse();
        reclaimed
    }

    /// Ends the flow, by this end or the other. Returns the datagrams that a receiver has given back, as
    /// [`reclaim`](Sender::reclaim) does; those that it has not stay its own.
    pub fn end(&mut self) -> Vec<Reclaimed> {
        //= spec §10.3.5
        //# A sender that ends a flow says so in the inbox, and then looks whether the ring was given back.
        self.closed = true;
        self.word(OVER).swap(1, SeqCst);
        match self.status().is_given_back() {
            true => self.reclaim(),
            false => Vec::new(),
        }
    }

    /// The records that nobody has taken, as far as the receiver has left them as they were written.
    fn ready(&self) -> Vec<(u64, Header)> {
        let (mut found, mut at) = (Vec::new(), self.head);
        while at != self.tail {
            let header = Header(self.word(self.offset(at)).load(Acquire));
            let left = self.capacity - at % self.capacity;
            if header.extent() > left.min(self.tail - at) {
                break;
            }
            if header.kind() == READY {
                found.push((at, header));
            }
            at += header.extent();
        }
        found
    }

    /// Whether the ring has room for so many datagrams, `len` bytes together, of which none is longer than `longest`, if its
    /// receiver stays as it is.
    pub fn has_room_for(&mut self, count: u64, len: usize, longest: usize) -> bool {
        let around = TIME + 2 * HEADER;
        let bytes = (count + 1).saturating_mul(around).saturating_add((len + longest) as u64);
        self.has_room(bytes) || self.refresh_head().is_ok() && self.has_room(bytes)
    }

    /// Sends a datagram, made of pieces of `len` bytes together. `now` is the time for a receiver that wants it.
    ///
    /// # Errors
    /// See [`Refusal`]: unless it is dropped, it must go by the kernel, between [`begin_by_kernel`](Sender::begin_by_kernel) and
    /// [`end_by_kernel`](Sender::end_by_kernel).
    ///
    /// # Safety
    /// The pieces are readable, and `len` bytes together.
    #[inline]
    pub unsafe fn send(
        &mut self,
        pieces: impl Iterator<Item = (*const u8, usize)>,
        len: usize,
        marks: Marks,
        now: impl FnOnce() -> u64,
    ) -> Result<(), Refusal> {
        let status = self.status();
        if self.closed || status.state() == State::Closed {
            return Err(Refusal::Closed);
        }
        if !self.is_awake(status) {
            return Err(Refusal::Asleep);
        }
        if len as u64 > LONGEST.min(self.capacity / 4) {
            return Err(Refusal::TooLong);
        }
        let timed = if status.wants_time() { TIMED } else { 0 };
        let header = Header::new(READY | timed | self.ended << BY_KERNEL_SHIFT, len as u64).with_marks(marks);
        let at = match self.reserve(header.extent()) {
            Err(Refusal::Full) if status.is_new() => return Err(self.drop_one()),
            reserved => reserved?,
        };
        //= spec §10.2.4
        //# If bit 39 is set, 8 bytes follow: the time at which the datagram was sent, in nanoseconds since 1970.
        if header.is_timed() {
            self.word(self.offset(at) + HEADER as usize).store(now(), Relaxed);
        }
        let mut place = self.offset(at) + header.prefix() as usize;
        for (from, n) in pieces {
            // SAFETY: by the caller.
            let fits = unsafe { self.inbox.write_from(place, from, n) };
            debug_assert!(fits, "reserved");
            place += n;
        }
        self.store_header(at, header);
        self.tail = at + header.extent();
        // Orders the tail before the next look at the state, as `fall_asleep` orders the state before its look at the tail.
        self.word(TAIL).swap(self.tail, SeqCst);
        //= spec §10.3.3
        //# If neither holds any more, it takes the record back, unless the receiver has taken it, and sends the datagram by
        //# the kernel.
        if !self.is_awake(self.status()) && self.revoke(at, header) {
            return Err(Refusal::Asleep);
        }
        Ok(())
    }

    #[cold]
    fn drop_one(&mut self) -> Refusal {
        self.dropped += 1;
        self.word(DROPPED).store(self.dropped, Release);
        Refusal::Dropped
    }

    /// Makes room for a record that lies in one piece; returns its position. It fills with padding the bytes that it skips.
    #[inline]
    fn reserve(&mut self, extent: u64) -> Result<u64, Refusal> {
        let left = self.capacity - self.tail % self.capacity;
        let skipped = if left < extent { left } else { 0 };
        if !self.has_room(skipped + extent) {
            self.refresh_head()?;
            if !self.has_room(skipped + extent) {
                return Err(Refusal::Full);
            }
        }
        //= spec §10.2.4
        //# A record lies in one piece; what is too short for it at the end of the ring is padding.
        if skipped > 0 {
            self.store_header(self.tail, Header::new(PADDING, skipped - HEADER));
        }
        Ok(self.tail + skipped)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.tail - self.head + bytes <= self.capacity
    }

    #[cold]
    fn refresh_head(&mut self) -> Result<(), Refusal> {
        let head = self.outbox.word(HEAD).map_or(0, |word| word.load(Acquire));
        if head < self.head || head > self.tail || !head.is_multiple_of(HEADER) {
            self.closed = true;
            return Err(Refusal::Closed);
        }
        self.head = head;
        Ok(())
    }

    /// Takes a record back. `false`: the receiver has it.
    #[cold]
    fn revoke(&self, at: u64, header: Header) -> bool {
        let word = self.word(RECORDS + (at % self.capacity) as usize);
        word.compare_exchange(header.0, header.with_kind(REVOKED).0, AcqRel, Relaxed).is_ok()
    }

    /// Whether the receiver looks at the ring before it sleeps.
    #[inline]
    fn is_awake(&self, status: Status) -> bool {
        status.state() == State::Awake || self.woken == Some(status)
    }

    #[inline]
    fn status(&self) -> Status {
        Status(self.outbox.word(STATUS).map_or(State::Closed as u64, |word| word.load(Acquire)))
    }

    fn offset(&self, at: u64) -> usize {
        RECORDS + (at % self.capacity) as usize
    }

    fn store_header(&self, at: u64, header: Header) {
        self.word(self.offset(at)).store(header.0, Release);
    }

    /// A word of the inbox: offsets are multiples of 8 below its length.
    #[inline]
    fn word(&self, offset: usize) -> &std::sync::atomic::AtomicU64 {
        self.inbox.word(offset).expect("within the inbox, by its length")
    }
}
