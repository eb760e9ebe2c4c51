//! A driver and a provider in memory of their own, with which the tests use the device.

use std::ops::Range;
use std::time::Duration;

use netacc_device::Instant;
use netacc_erdma::{Driver, Fabric, GuestMemory, Interrupts, OutsideMemory, Settings};

const MEMORY_BASE: u64 = 0x10_0000;
const MEMORY_BYTES: usize = 8 << 20;
const PAGE: u64 = 4096;

/// Entries of the command queue, in blocks.
const COMMAND_DEPTH: u32 = 16;
const EVENT_DEPTH: u32 = 8;

/// The memory and the interrupts of a guest.
pub(crate) struct Machine {
    memory: Vec<u8>,
    pub(crate) interrupts: Vec<u16>,
}

impl Machine {
    fn range(address: u64, len: usize) -> Result<Range<usize>, OutsideMemory> {
        let at = address.checked_sub(MEMORY_BASE).and_then(|at| usize::try_from(at).ok());
        let range = at.and_then(|at| Some(at..at.checked_add(len)?)).filter(|range| range.end <= MEMORY_BYTES);
        range.ok_or(OutsideMemory { address, len: len as u64 })
    }
}

impl GuestMemory for Machine {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), OutsideMemory> {
        into.copy_from_slice(&self.memory[Machine::range(address, into.len())?]);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), OutsideMemory> {
        self.memory[Machine::range(address, bytes.len())?].copy_from_slice(bytes);
        Ok(())
    }

    fn publish(&mut self, address: u64, entry: &[u8]) -> Result<(), OutsideMemory> {
        self.write(address, entry)
    }

    fn update(&mut self, address: u64, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, OutsideMemory> {
        assert_eq!(address % 8, 0);
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        let old = u64::from_le_bytes(bytes);
        self.write(address, &change(old).to_le_bytes())?;
        Ok(old)
    }
}

impl Interrupts for Machine {
    fn raise(&mut self, vector: u16) {
        self.interrupts.push(vector);
    }
}

/// A completion, decoded as the provider does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cqe {
    pub(crate) receive: bool,
    pub(crate) opcode: u8,
    pub(crate) status: u8,
    pub(crate) index: u32,
    pub(crate) qpn: u32,
    pub(crate) extra: [u8; 4],
    pub(crate) len: u32,
}

/// A completion queue, for its user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cq {
    pub(crate) cqn: u32,
    base: u64,
    depth: u32,
    consumed: u32,
}

/// A queue pair, for its user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) function: usize,
    pub(crate) qpn: u32,
    pub(crate) cookie: u32,
    send_base: u64,
    send_depth: u32,
    pub(crate) send_posted: u16,
    receive_base: u64,
    receive_depth: u32,
    pub(crate) receive_posted: u16,
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    pub(crate) key: u32,
    /// Its address in the process that registered it.
    pub(crate) va: u64,
    pub(crate) physical: u64,
}

#[derive(Clone, Debug)]
struct Guest {
    free: u64,
    commands: u64,
    command_completions: u64,
    posted: u16,
    completed: u32,
    events: u64,
    events_consumed: u16,
    async_events: u64,
    async_consumed: u16,
}

/// All rights: atomics, local read and write, remote read and write.
pub(crate) const ALL: u32 = 0b11111;
pub(crate) const LOCAL_READ: u32 = 1 << 1;
pub(crate) const LOCAL_WRITE: u32 = 1 << 2;
pub(crate) const REMOTE_READ: u32 = 1 << 3;
pub(crate) const REMOTE_WRITE: u32 = 1 << 4;
pub(crate) const ATOMIC: u32 = 1;

/// The protection domain of all objects, unless a test uses another.
pub(crate) const DOMAIN: u32 = 3;

pub(crate) struct Lab {
    pub(crate) fabric: Fabric<Machine>,
    pub(crate) now: Instant,
    guests: Vec<Guest>,
    next_number: u32,
}

/// A command that is being composed.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    kind: (u8, u8),
    bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn new(module: u8, number: u8) -> Request {
        Request { kind: (module, number), bytes: vec![0; 64] }
    }

    /// The format of a later driver.
    pub(crate) fn long(mut self) -> Request {
        self.bytes.resize(128, 0);
        self
    }

    pub(crate) fn u32(mut self, at: usize, value: u32) -> Request {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, at: usize, value: u64) -> Request {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }
}

impl Lab {
    /// Functions whose driver has not begun.
    pub(crate) fn new(functions: usize) -> Lab {
        let mut fabric = Fabric::default();
        let mut guests = Vec::new();
        for index in 0..functions {
            let machine = Machine { memory: vec![0; MEMORY_BYTES], interrupts: Vec::new() };
            fabric.add(machine, [0x52, 0x54, 0, 0x99, 0, index as u8], Driver::Alibaba);
            let mut free = MEMORY_BASE;
            let mut take = |bytes: u64| {
                free += bytes.next_multiple_of(PAGE);
                free - bytes.next_multiple_of(PAGE)
            };
            guests.push(Guest {
                commands: take(u64::from(COMMAND_DEPTH) * 32),
                command_completions: take(u64::from(COMMAND_DEPTH) * 32),
                events: take(u64::from(EVENT_DEPTH) * 16),
                async_events: take(u64::from(EVENT_DEPTH) * 16),
                posted: 0,
                completed: 0,
                events_consumed: 0,
                async_consumed: 0,
                free,
            });
        }
        Lab { fabric, now: Instant::ZERO, guests, next_number: 1 }
    }

    /// Functions whose driver has taken them, with event queue 1 on vector 1.
    pub(crate) fn started(functions: usize) -> Lab {
        let mut lab = Lab::new(functions);
        for function in 0..functions {
            lab.start(function);
            let events = lab.guests[function].events;
            let (status, _) = lab.command(function, create_eq(events, 1, 1, EVENT_DEPTH.trailing_zeros()));
            assert_eq!(status, 0);
        }
        lab
    }

    /// Two functions with a connected pair of queue pairs, each with a completion queue.
    pub(crate) fn connected() -> (Lab, [Qp; 2], [Cq; 2]) {
        let mut lab = Lab::started(2);
        let cqs = [0, 1].map(|function| lab.create_cq(function, 6));
        let mut qps = [0, 1].map(|function| lab.create_qp(function, cqs[function].cqn, DOMAIN));
        lab.connect(&mut qps);
        (lab, qps, cqs)
    }

    pub(crate) fn start(&mut self, function: usize) {
        let guest = self.guests[function].clone();
        let command_events = self.allocate(function, u64::from(EVENT_DEPTH) * 16);
        for (at, value) in [
            (0x20, guest.commands),
            (0x28, guest.command_completions),
            (0x38, command_events),
            (0x40, guest.async_events),
        ] {
            self.write32(function, at, value as u32);
            self.write32(function, at + 4, (value >> 32) as u32);
        }
        for (at, value) in [(0x30, COMMAND_DEPTH), (0x34, EVENT_DEPTH), (0x48, EVENT_DEPTH), (0x10, 2)] {
            self.write32(function, at, value);
        }
        assert_eq!(self.read32(function, 0x14), 2, "INIT is done");
    }

    /// The driver forgets its state of the device.
    pub(crate) fn forget(&mut self, function: usize) {
        let fresh = Lab::new(1).guests.remove(0);
        let free = self.guests[function].free;
        self.guests[function] = Guest { free, ..fresh };
        self.fabric.host_mut(function).memory[..4 * PAGE as usize].fill(0);
    }

    pub(crate) fn write32(&mut self, function: usize, at: u64, value: u32) {
        self.fabric.write(function, at, &value.to_le_bytes());
        self.run();
    }

    pub(crate) fn read32(&self, function: usize, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.fabric.read(function, at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn doorbell(&mut self, function: usize, at: u64, value: u64) {
        self.fabric.write(function, at, &value.to_le_bytes());
        self.run();
    }

    /// Lets the fabric do all work that takes no time.
    pub(crate) fn run(&mut self) {
        self.fabric.run(self.now);
        while self.fabric.next_deadline().is_some_and(|at| at <= self.now) {
            self.fabric.run(self.now);
        }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.fabric.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.fabric.run(self.now);
        }
        self.now = end;
    }

    pub(crate) fn set(&mut self, function: usize, change: impl FnOnce(&mut Settings)) {
        self.fabric.change(self.now, function, change);
        self.run();
    }

    pub(crate) fn interrupts(&mut self, function: usize) -> Vec<u16> {
        std::mem::take(&mut self.fabric.host_mut(function).interrupts)
    }

    /// Whole pages.
    pub(crate) fn allocate(&mut self, function: usize, bytes: u64) -> u64 {
        let guest = &mut self.guests[function];
        let at = guest.free;
        guest.free += bytes.next_multiple_of(PAGE);
        assert!(guest.free <= MEMORY_BASE + MEMORY_BYTES as u64, "the guest has no memory left");
        at
    }

    pub(crate) fn poke(&mut self, function: usize, at: u64, bytes: &[u8]) {
        self.fabric.host_mut(function).write(at, bytes).expect("the guest's own memory");
    }

    pub(crate) fn peek(&mut self, function: usize, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fabric.host_mut(function).read(at, &mut bytes).expect("the guest's own memory");
        bytes
    }

    /// Posts a command.
    pub(crate) fn post_command(&mut self, function: usize, request: &Request) {
        let blocks = (request.bytes.len() / 32) as u16;
        let guest = &mut self.guests[function];
        let (at, posted) = (guest.posted, guest.posted.wrapping_add(blocks));
        guest.posted = posted;
        let base = guest.commands;
        let (module, number) = request.kind;
        let header =
            u64::from(blocks - 1) << 52 | u64::from(module) << 24 | u64::from(number) << 16 | u64::from(posted);
        let mut bytes = request.bytes.clone();
        bytes[..8].copy_from_slice(&header.to_le_bytes());
        for (block, content) in bytes.chunks(32).enumerate() {
            let index = u64::from(u32::from(at.wrapping_add(block as u16)) % COMMAND_DEPTH);
            self.poke(function, base + index * 32, content);
        }
        self.doorbell(function, 0x200, u64::from(posted));
    }

    /// The completion of a command: status and results.
    pub(crate) fn poll_command(&mut self, function: usize) -> Option<(u8, [u32; 4])> {
        let Guest { command_completions, completed, .. } = self.guests[function];
        let entry = self.peek(function, command_completions + u64::from(completed % COMMAND_DEPTH) * 32, 32);
        let word = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        if (word(0) >> 31 == 1) == (completed & COMMAND_DEPTH != 0) {
            return None;
        }
        assert_eq!(word(0) >> 8 & 0xff, 2, "of the command queue");
        self.guests[function].completed += 1;
        Some((word(0) as u8, [word(8), word(12), word(16), word(20)]))
    }

    /// Executes a command.
    pub(crate) fn command(&mut self, function: usize, request: Request) -> (u8, [u32; 4]) {
        self.post_command(function, &request);
        self.poll_command(function).expect("an answer at once")
    }

    pub(crate) fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    pub(crate) fn create_cq(&mut self, function: usize, log_depth: u32) -> Cq {
        let (cqn, base) = (self.number(), self.allocate(function, 32 << log_depth));
        assert_eq!(self.command(function, create_cq(cqn, base, log_depth, 1)).0, 0);
        Cq { cqn, base, depth: 1 << log_depth, consumed: 0 }
    }

    /// With 16 blocks to send and 8 receives.
    pub(crate) fn create_qp(&mut self, function: usize, cqn: u32, domain: u32) -> Qp {
        let qpn = self.number();
        let (send_base, receive_base) = (self.allocate(function, 16 * 32), self.allocate(function, 8 * 32));
        let (status, results) = self.command(function, create_qp(qpn, cqn, domain, send_base, receive_base));
        assert_eq!(status, 0);
        let cookie = results[0];
        Qp {
            function,
            qpn,
            cookie,
            send_base,
            send_depth: 16,
            send_posted: 0,
            receive_base,
            receive_depth: 8,
            receive_posted: 0,
        }
    }

    pub(crate) fn connect(&mut self, qps: &mut [Qp; 2]) {
        let ports = [self.number(), self.number()];
        for (own, other) in [(0, 1), (1, 0)] {
            let (qp, cookie) = (qps[own], qps[other].cookie);
            let request = modify_to_rts(qp.qpn, cookie, (own as u32, ports[own]), (other as u32, ports[other]));
            assert_eq!(self.command(qp.function, request).0, 0);
        }
    }

    pub(crate) fn stop(&mut self, qp: &Qp) {
        assert_eq!(self.command(qp.function, modify(qp.qpn, 3)).0, 0);
    }

    /// Registers memory whose addresses differ from the physical ones, in pages that are not in order.
    pub(crate) fn register(&mut self, function: usize, bytes: u64, rights: u32, domain: u32) -> Mr {
        let pages = bytes.div_ceil(PAGE);
        let physical = self.allocate(function, pages * PAGE);
        let index = self.number();
        let va = 0x7f00_0000_0000;
        let table = self.allocate(function, pages * 8);
        let list: Vec<u8> = (0..pages).flat_map(|page| (physical + page * PAGE).to_le_bytes()).collect();
        self.poke(function, table, &list);
        let request = reg_mr(index, rights, domain).u64(16, va).u32(24, bytes as u32).u64(32, table);
        let request = request.u32(28, 12 << 27 | 1 << 20 | pages as u32);
        assert_eq!(self.command(function, request).0, 0);
        Mr { key: index << 8, va, physical }
    }

    /// Writes a request into the queue, and rings.
    pub(crate) fn post_send(&mut self, qp: &mut Qp, request: &[u8]) {
        self.write_request(qp, request);
        self.ring_send(qp);
    }

    /// Writes a request into the queue: blocks of 32 bytes, whose header lacks queue pair and number of blocks.
    pub(crate) fn write_request(&mut self, qp: &mut Qp, request: &[u8]) {
        let blocks = (request.len() / 32) as u16;
        let mut bytes = request.to_vec();
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let header = header | u64::from(qp.qpn) << 32 | u64::from(blocks - 1) << 52;
        bytes[..8].copy_from_slice(&header.to_le_bytes());
        self.write_raw(qp, &bytes);
    }

    pub(crate) fn write_raw(&mut self, qp: &mut Qp, bytes: &[u8]) {
        for block in bytes.chunks(32) {
            let at = qp.send_base + u64::from(u32::from(qp.send_posted) % qp.send_depth) * 32;
            self.poke(qp.function, at, block);
            qp.send_posted = qp.send_posted.wrapping_add(1);
        }
    }

    pub(crate) fn ring_send(&mut self, qp: &Qp) {
        self.doorbell(qp.function, 0x1000 + 95 * 4096, u64::from(qp.qpn) << 32 | u64::from(qp.send_posted));
    }

    pub(crate) fn post_receive(&mut self, qp: &mut Qp, address: u64, len: u32, key: u32) {
        let at = qp.receive_base + u64::from(u32::from(qp.receive_posted) % qp.receive_depth) * 32;
        qp.receive_posted = qp.receive_posted.wrapping_add(1);
        let mut entry = [0; 32];
        entry[..2].copy_from_slice(&qp.receive_posted.to_le_bytes());
        entry[4..8].copy_from_slice(&qp.qpn.to_le_bytes());
        entry[16..24].copy_from_slice(&address.to_le_bytes());
        entry[24..28].copy_from_slice(&len.to_le_bytes());
        entry[28..32].copy_from_slice(&key.to_le_bytes());
        self.poke(qp.function, at, &entry);
        let doorbell = u64::from_le_bytes(entry[..8].try_into().expect("eight bytes"));
        self.doorbell(qp.function, 0x61000, doorbell);
    }

    pub(crate) fn poll(&mut self, function: usize, cq: &mut Cq) -> Option<Cqe> {
        let entry = self.peek(function, cq.base + u64::from(cq.consumed % cq.depth) * 32, 32);
        let word = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        if (word(0) >> 31 == 1) == (cq.consumed & cq.depth != 0) {
            return None;
        }
        cq.consumed = cq.consumed.wrapping_add(1);
        let header = word(0);
        Some(Cqe {
            receive: header >> 8 & 0xff == 1,
            opcode: (header >> 16) as u8,
            status: header as u8,
            index: word(4),
            qpn: word(8),
            extra: entry[12..16].try_into().expect("four bytes"),
            len: word(16),
        })
    }

    /// All completions.
    pub(crate) fn drain(&mut self, function: usize, cq: &mut Cq) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll(function, cq)).collect()
    }

    pub(crate) fn arm(&mut self, function: usize, cq: &Cq, solicited: bool) {
        let value = u64::from(cq.cqn) << 32 | 1 << 31 | u64::from(solicited) << 30 | u64::from(cq.consumed & 0xff_ffff);
        self.doorbell(function, 0x79000, value);
    }

    /// Takes events of completion queues, without a doorbell.
    pub(crate) fn events(&mut self, function: usize) -> Vec<u32> {
        let Guest { events, mut events_consumed, .. } = self.guests[function];
        let taken = self.take_events(function, events, &mut events_consumed);
        self.guests[function].events_consumed = events_consumed;
        taken.into_iter().map(|words| words[0] & 0xf_ffff).collect()
    }

    /// Rings the doorbell of event queue 1.
    pub(crate) fn ring_events(&mut self, function: usize) {
        let consumed = self.guests[function].events_consumed;
        self.doorbell(function, 0x108, 1 << 31 | u64::from(consumed));
    }

    /// Takes asynchronous events: kind and number. Rings the doorbell.
    pub(crate) fn async_events(&mut self, function: usize) -> Vec<(u32, u32)> {
        let Guest { async_events, mut async_consumed, .. } = self.guests[function];
        let taken = self.take_events(function, async_events, &mut async_consumed);
        self.guests[function].async_consumed = async_consumed;
        self.doorbell(function, 0x50, 1 << 31 | u64::from(async_consumed));
        taken.into_iter().map(|words| (words[0] >> 16 & 0xff, words[1])).collect()
    }

    fn take_events(&mut self, function: usize, base: u64, consumed: &mut u16) -> Vec<[u32; 2]> {
        let mut taken = Vec::new();
        loop {
            let entry = self.peek(function, base + u64::from(u32::from(*consumed) % EVENT_DEPTH) * 16, 8);
            let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
            if (word(0) >> 31 == 1) == (u32::from(*consumed) & EVENT_DEPTH != 0) {
                return taken;
            }
            taken.push([word(0), word(4)]);
            *consumed = consumed.wrapping_add(1);
        }
    }
}

pub(crate) fn create_eq(base: u64, eqn: u8, vector: u8, log_depth: u32) -> Request {
    let word = u32::from(vector) | u32::from(eqn) << 8 | log_depth << 16 | 1 << 24;
    Request::new(1, 0).u64(8, base).u32(16, word)
}

/// In one piece of memory.
pub(crate) fn create_cq(cqn: u32, base: u64, log_depth: u32, eqn: u32) -> Request {
    let pages = Request::new(0, 4).u32(8, log_depth << 24 | cqn).u32(12, base as u32).u32(16, (base >> 32) as u32);
    pages.u32(20, 1 << 16 | 1 << 15 | eqn)
}

/// 16 blocks and 8 receives, each in one page without a table.
pub(crate) fn create_qp(qpn: u32, cqn: u32, domain: u32, send: u64, receive: u64) -> Request {
    let request = Request::new(0, 1).u32(8, 4 << 20 | qpn).u32(12, 3 << 20 | domain).u32(16, cqn).u32(20, cqn);
    request.u64(24, send).u64(32, receive).u32(40, 1 << 1).u32(44, 1 << 1)
}

pub(crate) fn modify(qpn: u32, state: u32) -> Request {
    Request::new(0, 3).u32(8, state << 24 | qpn)
}

pub(crate) fn modify_to_rts(qpn: u32, cookie: u32, local: (u32, u32), remote: (u32, u32)) -> Request {
    let request = modify(qpn, 2).u32(12, cookie).u32(16, remote.0).u32(20, local.0);
    request.u32(24, local.1 & 0xffff | remote.1 << 16)
}

/// Without its memory.
pub(crate) fn reg_mr(index: u32, rights: u32, domain: u32) -> Request {
    Request::new(0, 8).u32(8, 1 << 31 | index).u32(12, domain << 12 | rights << 1)
}

/// Requests, as the provider writes them.
pub(crate) mod sqe {
    use super::Mr;

    pub(crate) const SIGNALED: u64 = 1 << 22;
    pub(crate) const SOLICITED: u64 = 1 << 23;
    pub(crate) const FENCE: u64 = 1 << 24;
    pub(crate) const INLINE: u64 = 1 << 25;

    /// A piece: address, length, key.
    pub(crate) type Piece = (u64, u32, u32);

    pub(crate) fn pad(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes
    }

    fn pieces(bytes: &mut Vec<u8>, pieces: &[Piece]) {
        for (address, len, key) in pieces {
            bytes.extend(address.to_le_bytes());
            bytes.extend(len.to_le_bytes());
            bytes.extend(key.to_le_bytes());
        }
    }

    fn header(opcode: u64, flags: u64, count: usize) -> Vec<u8> {
        (opcode << 27 | flags | (count as u64) << 56).to_le_bytes().to_vec()
    }

    /// `extra`: immediate or key.
    pub(crate) fn send(opcode: u64, flags: u64, extra: [u8; 4], list: &[Piece]) -> Vec<u8> {
        let mut bytes = header(opcode, flags | SIGNALED, list.len());
        bytes.extend(extra);
        bytes.extend([0; 4]);
        pieces(&mut bytes, list);
        pad(bytes)
    }

    pub(crate) fn send_inline(flags: u64, data: &[u8]) -> Vec<u8> {
        let mut bytes = header(2, flags | SIGNALED | INLINE, data.len());
        bytes.extend([0; 8]);
        bytes.extend(data);
        pad(bytes)
    }

    pub(crate) fn write(opcode: u64, flags: u64, imm: [u8; 4], to: (u64, u32), list: &[Piece]) -> Vec<u8> {
        let mut bytes = header(opcode, flags | SIGNALED, list.len());
        bytes.extend(imm);
        bytes.extend([0; 4]);
        bytes.extend(to.1.to_le_bytes());
        bytes.extend(to.0.to_le_bytes());
        bytes.extend([0; 4]);
        pieces(&mut bytes, list);
        pad(bytes)
    }

    pub(crate) fn read(flags: u64, from: (u64, u32), to: Piece) -> Vec<u8> {
        let mut bytes = header(1, flags | SIGNALED, 1);
        bytes.extend([0; 4]);
        bytes.extend(to.1.to_le_bytes());
        bytes.extend(to.2.to_le_bytes());
        bytes.extend(to.0.to_le_bytes());
        bytes.extend([0; 4]);
        pieces(&mut bytes, &[(from.0, to.1, from.1)]);
        pad(bytes)
    }

    pub(crate) fn atomic(opcode: u64, operand: u64, compare: u64, at: (u64, u32), to: Piece) -> Vec<u8> {
        let mut bytes = header(opcode, SIGNALED, 0);
        bytes.extend([0; 8]);
        bytes.extend(operand.to_le_bytes());
        bytes.extend(compare.to_le_bytes());
        pieces(&mut bytes, &[(at.0, 8, at.1), to]);
        pad(bytes)
    }

    /// The whole of the first bytes of a region.
    pub(crate) fn of(mr: &Mr, len: u32) -> Piece {
        (mr.va, len, mr.key)
    }
}
