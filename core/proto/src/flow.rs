//! A flow of datagrams on a link: from one UDP socket to another one, in one direction. SPEC §10.6 to §10.9.
//!
//! The sockets stay the kernel's, and a datagram takes the link only if it can at once: both addresses are proven, the
//! receiver is awake, and ring and link have room. The kernel takes it otherwise, so the kernel wakes each sleeper.
//!
//! A receiver that falls asleep may have datagrams under way to it. Each sleep has a number, and each record has the number
//! of the sleep after which it was sent: the receiver skips those of earlier sleeps, and the sender, which keeps every record
//! until the receiver is done with it, sends them by the kernel. Both count the records that were taken, so they agree about
//! each one.

use alloc::collections::VecDeque;
use core::time::Duration;

use netacc_device::Instant;

use crate::ring::{Span, Violation};
use crate::wire::{FlowGrant, FlowRequest, Nonce, Record, RecordKind, RingDescriptor, RECORD_LEN};

/// The time between two proofs of a sender. Arbitrary: longer than a round trip in a data centre.
pub const FLOW_PROOF_INTERVAL: Duration = Duration::from_millis(5);

/// So many proofs are sent before a sender gives up. Arbitrary: a network that loses half of the datagrams passes some.
pub const FLOW_PROOF_TRIES: u32 = 12;

/// How long a record waits for datagrams that its sender had sent by the kernel before. Arbitrary: much longer than a
/// datagram is under way in a data centre.
pub const FLOW_ORDER_PATIENCE: Duration = Duration::from_millis(10);

/// Bytes before a datagram in the ring.
pub const FLOW_RECORD_HEADER_LEN: usize = 16;

/// Bytes of the longest datagram: UDP's over IPv4.
const LONGEST: usize = 65_507;

/// Records lie at multiples of this.
const ALIGNMENT: u64 = 8;

/// What precedes a datagram in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the datagram.
    pub len: u16,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// The number of the receiver's sleep after which it was sent.
    pub sleeps: u16,
    /// The number of datagrams that were sent by the kernel before it, since the flow was granted.
    pub by_kernel: u64,
}

impl RecordHeader {
    /// To the wire.
    pub fn encode(&self) -> [u8; FLOW_RECORD_HEADER_LEN] {
        //= spec §10.8.1
        //# A record begins with the length of the datagram in 2 bytes, its time to live or hop limit, its type of service or
        //# traffic class, the number of the receiver's last sleep in 2, 2 zeros, and the number of sends by the kernel in 8.
        let mut out = [0; FLOW_RECORD_HEADER_LEN];
        out[..2].copy_from_slice(&self.len.to_le_bytes());
        (out[2], out[3]) = (self.ttl, self.tos);
        out[4..6].copy_from_slice(&self.sleeps.to_le_bytes());
        out[8..].copy_from_slice(&self.by_kernel.to_le_bytes());
        out
    }

    /// From the wire: any bytes have a meaning.
    pub fn decode(bytes: &[u8; FLOW_RECORD_HEADER_LEN]) -> RecordHeader {
        let [a, b, ttl, tos, c, d, _, _, rest @ ..] = *bytes;
        let (len, sleeps) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        RecordHeader { len, ttl, tos, sleeps, by_kernel: u64::from_le_bytes(rest) }
    }
}

/// Bits of a count in the word that a receiver writes. A ring has fewer records.
const COUNT_BITS: u32 = 23;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// What a receiver says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Status {
    /// Records that it is done with: taken, or skipped.
    done: u64,
    /// Those among them that it has taken.
    taken: u64,
    /// It looks at the ring before it sleeps.
    awake: bool,
    /// The sender has proven the source.
    proven: bool,
    /// The number of its sleeps.
    sleeps: u16,
}

impl Status {
    /// One word, so that all of it is of one time.
    fn encode(&self) -> u64 {
        //= spec §10.7.4
        //# Its *status* is the first word of the sender's credit block: bit 0 if it is awake, bit 1 if the source is proven,
        //# the number of records that it is done with (bits 2 to 24) and that it has taken (25 to 47), and the number of its
        //# sleeps (48 to 63), each modulo its size.
        u64::from(self.awake)
            | u64::from(self.proven) << 1
            | (self.done & COUNT_MASK) << 2
            | (self.taken & COUNT_MASK) << (2 + COUNT_BITS)
            | u64::from(self.sleeps) << (2 + 2 * COUNT_BITS)
    }

    /// The status that follows this one.
    fn next(&self, word: u64) -> Status {
        let count = |before: u64, shift: u32| before + ((word >> shift).wrapping_sub(before) & COUNT_MASK);
        Status {
            done: count(self.done, 2),
            taken: count(self.taken, 2 + COUNT_BITS),
            awake: word & 1 != 0,
            proven: word & 2 != 0,
            sleeps: (word >> (2 + 2 * COUNT_BITS)) as u16,
        }
    }
}

/// Why a datagram does not take the link now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRefusal {
    /// The addresses are not proven yet.
    Unproven,
    /// The receiver sleeps.
    Asleep,
    /// The ring has no room.
    Full,
    /// It is too long for any ring of this length.
    TooLong,
    /// No datagram takes this flow any more.
    Closed,
}

/// The place of a record in the ring. Positions count bytes from the beginning of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Header and datagram.
    pub span: Span,
    /// The position after it.
    end: u64,
}

/// Where the record of `len` bytes (with its header) lies that follows `position`: in one piece.
fn place(position: u64, len: u32, ring_len: u32) -> Placed {
    //= spec §10.8.2
    //# It lies in one piece: where the rest of the ring is too short, it begins at offset 0.
    let (extent, ring) = (u64::from(len).next_multiple_of(ALIGNMENT), u64::from(ring_len));
    let left = ring - position % ring;
    let start = if left < extent { position + left } else { position };
    Placed { span: Span { offset: (start % ring) as u32, len }, end: start + extent }
}

/// The longest datagram of a flow.
fn longest(ring_len: u32) -> usize {
    //= spec §10.8.3
    //# A datagram that is longer than a quarter of the ring goes by the kernel.
    LONGEST.min(ring_len as usize / 4)
}

/// A datagram that proves its sender's address. It goes from the socket of a flow to the peer's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowProof {
    /// Its bytes.
    pub record: [u8; RECORD_LEN],
    /// The port at the peer's address to which it goes.
    pub port: u16,
}

/// How far a sender has come.
#[derive(Clone, Copy, Debug)]
enum Setup {
    /// The request was sent.
    Requested,
    /// It was granted; the kernel is to carry proofs.
    Proving {
        token: Nonce,
        port: u16,
        destination_proven: bool,
        next: Instant,
        tries: u32,
    },
    Open,
    Closed,
}

/// The sending end.
///
/// Invariant: `done <= sent`, `taken <= valid`: what a peer says otherwise is a violation.
#[derive(Debug)]
pub struct FlowSender {
    ring_len: u32,
    setup: Setup,
    status: Status,
    position: u64,
    /// The position after the last record that the receiver is done with.
    consumed: u64,
    sent: u64,
    /// Records that were sent and not returned.
    valid: u64,
    /// Records that the receiver may not be done with.
    kept: VecDeque<Placed>,
    /// Returned records that the driver has not sent by the kernel yet.
    to_return: VecDeque<Span>,
    by_kernel: u64,
}

impl FlowSender {
    /// A flow that is to be requested, after so many datagrams were sent by the kernel.
    pub fn new(ring_len: u32, by_kernel: u64) -> FlowSender {
        FlowSender {
            ring_len,
            setup: Setup::Requested,
            status: Status::default(),
            position: 0,
            consumed: 0,
            sent: 0,
            valid: 0,
            kept: VecDeque::new(),
            to_return: VecDeque::new(),
            by_kernel,
        }
    }

    /// The receiver has granted the flow.
    pub fn handle_grant(&mut self, grant: &FlowGrant) -> Result<(), Violation> {
        //= spec §10.6.4
        //# Its ring is as long as the sender's region says; another length, or a second grant, is a violation.
        if !matches!(self.setup, Setup::Requested) || grant.ring.ring_len != self.ring_len {
            return Err(Violation("grant out of turn"));
        }
        let (token, port) = (grant.nonce, grant.proof_port);
        self.setup = Setup::Proving { token, port, destination_proven: false, next: Instant::ZERO, tries: 0 };
        Ok(())
    }

    /// The proof that is to be sent by the kernel now.
    pub fn poll_proof(&mut self, now: Instant) -> Option<FlowProof> {
        let Setup::Proving { token, port, next, tries, .. } = &mut self.setup else { return None };
        if now < *next {
            return None;
        }
        //= spec §10.7.2
        //# The sender repeats its proof every FLOW_PROOF_INTERVAL until both addresses are proven, and closes the flow after
        //# FLOW_PROOF_TRIES.
        if *tries >= FLOW_PROOF_TRIES {
            self.setup = Setup::Closed;
            return None;
        }
        (*tries, *next) = (*tries + 1, now + FLOW_PROOF_INTERVAL);
        let record = Record { kind: RecordKind::Flow, position: self.by_kernel, end: 0, token: *token };
        Some(FlowProof { record: record.encode(), port: *port })
    }

    /// When [`poll_proof`](FlowSender::poll_proof) has the next one.
    pub fn next_proof(&self) -> Option<Instant> {
        match self.setup {
            Setup::Proving { next, .. } => Some(next),
            _ => None,
        }
    }

    /// The kernel has brought the receiver's [proof](is_flow_proof) from the destination.
    pub fn handle_proof(&mut self) {
        if let Setup::Proving { destination_proven, .. } = &mut self.setup {
            *destination_proven = true;
        }
        self.open_if_proven();
    }

    fn open_if_proven(&mut self) {
        //= spec §10.7.1
        //# No datagram takes the link before the kernel has brought each side the other's proof.
        if matches!(self.setup, Setup::Proving { destination_proven: true, .. }) && self.status.proven {
            self.setup = Setup::Open;
        }
    }

    /// Reads the receiver's status. [`poll_returned`](FlowSender::poll_returned) may have records afterwards.
    pub fn handle_status(&mut self, word: u64) -> Result<(), Violation> {
        let status = self.status.next(word);
        let has_slept = status.sleeps != self.status.sleeps;
        //= spec §10.8.6
        //# Counts that go back, or beyond what was sent, are a violation, and end the link.
        if status.taken > self.valid || status.done > self.sent || status.taken > status.done {
            return Err(Violation("status of a flow"));
        }
        if has_slept {
            //= spec §10.8.5
            //# A sender that sees a new sleep sends the records that were not taken before it by the kernel, in their order.
            let returned = (self.valid - status.taken) as usize;
            let first = self.kept.len().saturating_sub(returned);
            self.to_return.extend(self.kept.range(first..).map(|placed| placed.span));
            self.valid = status.taken;
        }
        while self.sent - (self.kept.len() as u64) < status.done {
            let done = self.kept.pop_front();
            self.consumed = done.map_or(self.position, |placed| placed.end);
        }
        self.status = status;
        self.open_if_proven();
        Ok(())
    }

    /// The next record that is to be sent by the kernel: where its bytes are in the own copy of the ring. Copy them before
    /// the next datagram is placed.
    pub fn poll_returned(&mut self) -> Option<Span> {
        self.to_return.pop_front()
    }

    /// Where a datagram of `len` bytes would be, with its header. [`commit`](FlowSender::commit) follows once it is posted.
    pub fn prepare(&self, len: usize, ttl: u8, tos: u8) -> Result<(Placed, RecordHeader), FlowRefusal> {
        match self.setup {
            Setup::Requested | Setup::Proving { .. } => return Err(FlowRefusal::Unproven),
            Setup::Closed => return Err(FlowRefusal::Closed),
            Setup::Open => {}
        }
        //= spec §10.8.4
        //# A sender places a record only if the receiver is awake, the ring has room, and the link has message credit.
        if !self.status.awake {
            return Err(FlowRefusal::Asleep);
        }
        if len > longest(self.ring_len) {
            return Err(FlowRefusal::TooLong);
        }
        let placed = place(self.position, (len + FLOW_RECORD_HEADER_LEN) as u32, self.ring_len);
        if placed.end - self.consumed > u64::from(self.ring_len) {
            return Err(FlowRefusal::Full);
        }
        let (sleeps, by_kernel) = (self.status.sleeps, self.by_kernel);
        Ok((placed, RecordHeader { len: len as u16, ttl, tos, sleeps, by_kernel }))
    }

    /// The record was posted.
    pub fn commit(&mut self, placed: Placed) {
        self.position = placed.end;
        self.sent += 1;
        self.valid += 1;
        self.kept.push_back(placed);
    }

    /// A datagram of the flow was sent by the kernel.
    pub fn count_by_kernel(&mut self) {
        self.by_kernel += 1;
    }

    /// Whether the receiver is done with everything that was sent.
    pub fn is_drained(&self) -> bool {
        self.kept.is_empty()
    }

    /// No datagram takes the flow any more. Returns how many of those that were sent may be lost with the link.
    pub fn close(&mut self) -> u64 {
        self.setup = Setup::Closed;
        self.valid - self.status.taken
    }

    /// Whether it was closed, or has given up.
    pub fn is_closed(&self) -> bool {
        matches!(self.setup, Setup::Closed)
    }

    /// Whether datagrams may take the link.
    pub fn is_open(&self) -> bool {
        matches!(self.setup, Setup::Open)
    }
}

/// A datagram in the receiver's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its bytes.
    pub span: Span,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    by_kernel: u64,
}

/// Whether the record at the front waits for datagrams by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    No,
    Since(Instant),
    /// For long enough.
    Over,
}

/// The receiving end.
#[derive(Debug)]
pub struct FlowReceiver {
    nonce: Nonce,
    /// The sender's.
    token: Nonce,
    /// Of the sender's library.
    proof_port: u16,
    ring_len: u32,
    position: u64,
    /// Records that are not taken yet, and the position after each.
    arrived: VecDeque<(Arrived, u64)>,
    /// The position from which on the ring is in use.
    consumed: u64,
    /// That position when the last status was written.
    reported: u64,
    status: Status,
    came_by_kernel: u64,
    wait: Wait,
    closed: bool,
}

impl FlowReceiver {
    /// A flow that is granted. The nonce is fresh.
    pub fn new(nonce: Nonce, request: &FlowRequest) -> FlowReceiver {
        FlowReceiver {
            nonce,
            token: request.nonce,
            proof_port: request.proof_port,
            ring_len: request.ring.ring_len,
            position: 0,
            arrived: VecDeque::new(),
            consumed: 0,
            reported: 0,
            status: Status::default(),
            came_by_kernel: 0,
            wait: Wait::No,
            closed: false,
        }
    }

    /// The answer to the request. `proof_port` is the own library's.
    pub fn grant(&self, peer_slot: u16, slot: u16, ring: RingDescriptor, proof_port: u16) -> FlowGrant {
        FlowGrant { peer_slot, slot, nonce: self.nonce, ring, proof_port }
    }

    /// So many datagrams have come by the kernel from the source before the flow.
    pub fn start(&mut self, came_by_kernel: u64) {
        self.came_by_kernel = came_by_kernel;
    }

    /// The kernel has brought the library a datagram from the source. If it is the sender's proof: the own proof, to be sent by
    /// the kernel. A new status is due.
    pub fn handle_proof(&mut self, bytes: &[u8]) -> Option<FlowProof> {
        let proof = flow_proof(bytes, &self.nonce)?;
        if !self.status.proven {
            self.status.proven = true;
            //= spec §10.9.3
            //# If more have come than the sender's proof says were sent, another socket had the source's address before: then the
            //# receiver counts from 0.
            if self.came_by_kernel > proof.position {
                self.came_by_kernel = 0;
            }
        }
        //= spec §10.7.3
        //# The receiver answers each proof, and proves nothing before.
        let record = Record { kind: RecordKind::Flow, position: 0, end: 0, token: self.token };
        Some(FlowProof { record: record.encode(), port: self.proof_port })
    }

    /// A message of `len` bytes has come: where its record lies. [`handle_record`](FlowReceiver::handle_record) follows.
    pub fn handle_message(&mut self, len: u32) -> Result<Placed, Violation> {
        let most = FLOW_RECORD_HEADER_LEN + longest(self.ring_len);
        //= spec §10.8.7
        //# A record of another length than its message, beyond the ring, before the source is proven, or of a sleep that the
        //# receiver has not begun, is a violation, and ends the link.
        if !self.status.proven || (len as usize) < FLOW_RECORD_HEADER_LEN || len as usize > most {
            return Err(Violation("message of a flow"));
        }
        let placed = place(self.position, len, self.ring_len);
        if placed.end - self.consumed > u64::from(self.ring_len) {
            return Err(Violation("datagram beyond the ring"));
        }
        Ok(placed)
    }

    /// The header at that place.
    pub fn handle_record(&mut self, placed: Placed, header: &RecordHeader) -> Result<(), Violation> {
        let Span { offset, len } = placed.span;
        if FLOW_RECORD_HEADER_LEN + usize::from(header.len) != len as usize {
            return Err(Violation("length of a datagram"));
        }
        let behind = self.status.sleeps.wrapping_sub(header.sleeps);
        let is_current = behind == 0;
        // An honest sender sends nothing of a sleep once it has seen the next one.
        if behind > u16::MAX / 2 || is_current && !self.status.awake || !is_current && self.has_more() {
            return Err(Violation("sleep of a flow"));
        }
        self.position = placed.end;
        if is_current && !self.closed {
            let span = Span { offset: offset + FLOW_RECORD_HEADER_LEN as u32, len: u32::from(header.len) };
            let arrived = Arrived { span, ttl: header.ttl, tos: header.tos, by_kernel: header.by_kernel };
            self.arrived.push_back((arrived, placed.end));
        } else if !self.has_more() {
            // The sender sends it by the kernel.
            self.status.done += 1;
            self.consumed = placed.end;
        }
        Ok(())
    }

    /// The datagram at the front, if it may be taken.
    pub fn front(&mut self) -> Option<Arrived> {
        let (front, _) = *self.arrived.front()?;
        if front.by_kernel > self.came_by_kernel {
            if self.wait != Wait::Over {
                return None;
            }
            self.came_by_kernel = front.by_kernel;
        }
        self.wait = Wait::No;
        Some(front)
    }

    /// The kernel was asked, and has no datagram.
    pub fn kernel_was_empty(&mut self, now: Instant) {
        //= spec §10.9.1
        //# A receiver takes a record once as many datagrams of the flow have come by the kernel as were sent before it, or
        //# once it finds that the kernel has none, FLOW_ORDER_PATIENCE after it had found that first.
        self.wait = match self.wait {
            Wait::No if self.has_more() => Wait::Since(now),
            Wait::Since(since) if now.saturating_since(since) >= FLOW_ORDER_PATIENCE => Wait::Over,
            wait => wait,
        };
    }

    /// The datagram at the front, where nothing more comes by the kernel that is worth waiting for: the flow is over.
    pub fn front_at_end(&self) -> Option<Arrived> {
        self.arrived.front().map(|(front, _)| *front)
    }

    /// Takes the datagram at the front for good, after its bytes were copied.
    pub fn take(&mut self) {
        if let Some((_, end)) = self.arrived.pop_front() {
            self.status.taken += 1;
            self.status.done += 1;
            self.consumed = end;
        }
    }

    /// Whether datagrams wait in the ring, those included that may not be taken yet.
    pub fn has_more(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// How many wait there; none as long as the one at the front may not be taken.
    pub fn waiting(&self) -> usize {
        let is_due = |(front, _): &(Arrived, u64)| front.by_kernel <= self.came_by_kernel || self.wait == Wait::Over;
        self.arrived.front().filter(|front| is_due(front)).map_or(0, |_| self.arrived.len())
    }

    /// A datagram of the flow was received from the kernel.
    pub fn count_by_kernel(&mut self) {
        self.came_by_kernel += 1;
        self.wait = Wait::No;
    }

    /// From now on the ring is looked at before this end sleeps. Whether a new status is due.
    pub fn stay_awake(&mut self) -> bool {
        !self.closed && !core::mem::replace(&mut self.status.awake, true)
    }

    /// Whether it has said that it looks at the ring.
    pub fn is_awake(&self) -> bool {
        self.status.awake
    }

    /// A thread is about to sleep in the kernel. `false`: there are datagrams in the ring, which may be taken at once, and it
    /// must not sleep. Otherwise a new status is due, and it sleeps once that is posted.
    pub fn fall_asleep(&mut self) -> bool {
        if self.has_more() {
            self.wait = Wait::Over;
            return false;
        }
        if self.status.awake {
            self.status.awake = false;
            self.status.sleeps = self.status.sleeps.wrapping_add(1);
        }
        true
    }

    /// Whether so much was consumed that the sender should know.
    pub fn wants_report(&self) -> bool {
        self.consumed - self.reported >= u64::from(self.ring_len / 4)
    }

    /// The status, which is about to be written.
    pub fn report(&mut self) -> u64 {
        self.reported = self.consumed;
        self.status.encode()
    }

    /// Nothing more is taken into the ring.
    pub fn close(&mut self) {
        self.closed = true;
    }

    //= spec §10.8.8
    //# A receiver that takes no more from a flow skips what is in the ring, and begins a sleep that does not end.
    /// Nothing more is taken at all: the sender sends by the kernel what was not taken. A new status is due.
    pub fn give_back(&mut self) {
        self.closed = true;
        while let Some((_, end)) = self.arrived.pop_front() {
            self.status.done += 1;
            self.consumed = end;
        }
        // Also if it sleeps: a sender that knows this sleep has sent nothing since.
        self.status.awake = false;
        self.status.sleeps = self.status.sleeps.wrapping_add(1);
    }
}

/// Whether a datagram is a proof with this nonce.
pub fn is_flow_proof(bytes: &[u8], nonce: &Nonce) -> bool {
    flow_proof(bytes, nonce).is_some()
}

fn flow_proof(bytes: &[u8], nonce: &Nonce) -> Option<Record> {
    let record = Record::decode(bytes.try_into().ok()?).ok()?;
    (record.kind == RecordKind::Flow && record.token == *nonce).then_some(record)
}
