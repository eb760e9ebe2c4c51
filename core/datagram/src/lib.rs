//! The datagrams of one flow, from one socket to another, in memory that both processes map.
//!
//! The sockets stay the kernel's. A datagram takes the ring if the receiver is awake and there is room, and otherwise the
//! kernel's socket. So nothing here wakes a thread: a receiver that sleeps, in whatever call, sleeps in the kernel, and is
//! woken by a datagram of the kernel's. This needs three rules:
//!
//! 1. **Sleep.** A receiver that is about to sleep says so ([`Receiver::fall_asleep`]) and looks at the ring once more. A
//!    sender that finds it asleep after it has placed a record takes that record back ([`Sender::send`]), unless the
//!    receiver has it already, and sends the datagram by the kernel. So each datagram takes exactly one of the two ways,
//!    and none waits for a sleeper. Each sleep has a number. A sender that has sent a datagram by the kernel during a
//!    sleep has woken the receiver, and uses the ring until the next sleep begins: the rest of a burst to a sleeper.
//! 2. **From the kernel to the ring.** The sender counts the datagrams of the flow that went by the kernel, and each record
//!    has that count. The receiver counts those that have come, and takes a record once it has as many
//!    ([`Receiver::is_due`]). It counts those that the kernel has dropped as well ([`Receiver::kernel_dropped`]), and when it
//!    finds that the kernel has no datagram, all those have come or were dropped whose sends had ended before
//!    ([`Receiver::kernel_was_empty`]). Before that has happened once while no send went on, it takes no record, and says so. So that it happens,
//!    nothing goes by the kernel meanwhile to a receiver that is awake: what a full ring has no room for is dropped, as
//!    the kernel drops it then.
//! 3. **From the ring to the kernel.** A receiver is asleep only while its ring is empty. So a datagram that a sleeper gets
//!    from the kernel is behind all records. A receiver that is awake, and has found a datagram in the kernel, takes it
//!    only if no record is due then.
//!
//! With 2. and 3. the datagrams of a flow keep their order, unless the kernel drops some of them. A sender takes records back
//! ([`Sender::reclaim`]) and sends their datagrams by the kernel, where these would come too late or to the wrong process:
//! before a datagram that must take the kernel to a receiver that is new, and when the receiver has given its ring back
//! ([`Receiver::give_back`]), because other processes receive from its socket as well.
//!
//! # Memory
//!
//! Two regions, each written by the other end, as with a queue pair's WRITEs. Positions count bytes from the beginning of
//! the flow, and lie at *position mod capacity*.
//!
//! | region | of | word | meaning |
//! | --- | --- | --- | --- |
//! | inbox | the receiver | 0 | the position at which the next record begins |
//! | | | 8, 16 | the number of sends by the kernel that have begun, and that have ended, plus one; 0 before they are counted |
//! | | | 24 | the number of datagrams that were dropped because a new receiver's ring was full |
//! | | | 32 | 1 once the sender has ended the flow |
//! | | | 40 | the processor on which the sender ran at its latest send by the kernel, plus one; 0 if it is not known |
//! | | | 64 on | records: a word of header, the time if the receiver wants it, and bytes up to a multiple of 8 |
//! | outbox | the sender | 0 | the position up to which records are consumed, late by up to a quarter of the ring |
//! | | | 64 | [`State`] of the receiver in the lowest two bits, whether it is new, wants times, has given its ring back, and the number of its sleeps |
//!
//! Either end may write anything there at any time. Each checks the values that it reads, and a false one ends the flow.

#![expect(unsafe_code, reason = "copies between a program's buffers and shared memory")]

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{Receiver, Record};
pub use sender::{Reclaimed, Refusal, Sender};

/// Bytes of the sender's region.
pub const OUTBOX_LEN: usize = 128;
/// Bytes of the receiver's region for a ring of `capacity` bytes, a power of two.
pub const fn inbox_len(capacity: usize) -> usize {
    RECORDS + capacity
}

/// Where records begin in the inbox.
//= spec §10.2.3
//# The first regions are the *outbox* of the sender, of 128 bytes, which the receiver writes, and the *inbox* of
//# the receiver, which the sender writes.
const RECORDS: usize = 64;
const TAIL: usize = 0;
const BEGUN: usize = 8;
const ENDED: usize = 16;
const DROPPED: usize = 24;
const OVER: usize = 32;
const PROCESSOR: usize = 40;
const HEAD: usize = 0;
const STATUS: usize = 64;
/// Bytes of a record's header. Records are as long as a multiple of this.
const HEADER: u64 = 8;
/// Bytes of a record's time.
const TIME: u64 = 8;
/// Bytes of the longest datagram: UDP's over IPv4. A header has 16 bits for it.
const LONGEST: u64 = 65_507;

/// What a receiver says of itself.
//= spec §10.3.1
//# A receiver that is awake looks at the ring before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not looked at the ring yet, or several of its threads sleep: send by the kernel. The value of fresh memory.
    Asleep,
    /// It looks at the ring before it sleeps.
    Awake,
    /// It takes no more from the ring.
    Closed,
    /// One thread sleeps in the kernel: a datagram there wakes it, and it looks at the ring before it sleeps again.
    Dozing,
}

/// A [`State`], whether the receiver is new (it takes no record yet), wants times, and has given its ring back, and the number of
/// the sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status(u64);

impl Status {
    fn new(state: State, is_new: bool, wants_time: bool, sleeps: u64) -> Status {
        Status(state as u64 | u64::from(is_new) << 2 | u64::from(wants_time) << 3 | sleeps << 5)
    }

    fn given_back(self) -> Status {
        Status(self.0 | 16)
    }

    fn is_given_back(self) -> bool {
        self.0 & 16 != 0
    }

    fn is_new(self) -> bool {
        self.0 & 4 != 0
    }

    fn wants_time(self) -> bool {
        self.0 & 8 != 0
    }

    fn state(self) -> State {
        [State::Asleep, State::Awake, State::Closed, State::Dozing][self.0 as usize % 4]
    }
}

/// The capacity of a ring in an inbox of so many bytes; `None` if it is none.
fn capacity_of(inbox: usize) -> Option<u64> {
    let capacity = inbox.checked_sub(RECORDS)?;
    (capacity.is_power_of_two() && capacity >= 64).then_some(capacity as u64)
}

/// What an IP header would say of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
}

/// A record's header: length, [`Marks`], the kind, whether there is a time, and the lowest bits of the count of datagrams by
/// the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header(u64);

const KIND: u64 = 0x7f << 32;
/// A datagram that nobody has taken yet.
const READY: u64 = 1 << 32;
/// The receiver has taken it.
const TAKEN: u64 = 2 << 32;
/// The sender has taken it back.
const REVOKED: u64 = 3 << 32;
/// No datagram: the rest of the ring was too short for one.
const PADDING: u64 = 4 << 32;
/// The time precedes the datagram.
const TIMED: u64 = 1 << 39;
const BY_KERNEL_SHIFT: u32 = 40;
impl Header {
    fn new(kind: u64, len: u64) -> Header {
        Header(kind | len)
    }

    fn kind(self) -> u64 {
        self.0 & KIND
    }

    fn with_marks(self, marks: Marks) -> Header {
        Header(self.0 | u64::from(marks.ttl) << 16 | u64::from(marks.tos) << 24)
    }

    fn marks(self) -> Marks {
        Marks { ttl: (self.0 >> 16) as u8, tos: (self.0 >> 24) as u8 }
    }

    fn is_timed(self) -> bool {
        self.0 & TIMED != 0
    }

    fn len(self) -> u64 {
        self.0 & u64::from(u16::MAX)
    }

    /// Bytes before the datagram.
    fn prefix(self) -> u64 {
        HEADER + if self.is_timed() { TIME } else { 0 }
    }

    /// The lowest 24 bits of the count, in the highest of the word.
    fn by_kernel(self) -> u32 {
        (self.0 >> BY_KERNEL_SHIFT << 8) as u32
    }

    fn with_kind(self, kind: u64) -> Header {
        Header(self.0 & !KIND | kind)
    }

    /// Bytes of the whole record.
    fn extent(self) -> u64 {
        self.prefix() + self.len().next_multiple_of(HEADER)
    }
}
