//! The memory in which a traced process leaves its events for `netacc trace`: one layout for the library, which writes,
//! and the tool, which reads.
//!
//! The tool makes the memory ([`BYTES`]), and passes it to the process with the request `TRACE`. It begins with a page of
//! words ([`WINDOW`], ...), followed by [`EVENTS`] places of [`EVENT_WORDS`] words. Event number *n* lies in place *n* modulo
//! [`EVENTS`]; its first word is *n* + 1 once the others are written, so a reader recognises an event that was
//! overwritten, or is being written.
//!
//! Neither side trusts the words of the other: numbers are reduced to places before use, and what does not decode is left
//! out.

use std::sync::atomic::{AtomicU64, Ordering};

/// Word 0 of the memory: the layout, with its version in the lowest byte.
pub const MAGIC: u64 = 0x6e65_7461_6363_7401;
/// The word that names the clock: [`CLOCK_MONOTONIC`] or [`CLOCK_TSC`].
pub const CLOCK: usize = 1;
/// The word with the time at which recording ends; 0 while nothing is recorded. So a tool that dies leaves nothing
/// switched on for longer than one window.
pub const WINDOW: usize = 2;
/// The word with the number of the next event.
pub const HEAD: usize = 3;
/// Where the places begin.
pub const FIRST_EVENT: usize = 512;
/// The number of places.
pub const EVENTS: usize = 1 << 18;
/// The words of a place.
pub const EVENT_WORDS: usize = 6;
/// The words of the memory.
pub const WORDS: usize = FIRST_EVENT + EVENTS * EVENT_WORDS;
/// The length of the memory, in bytes.
pub const BYTES: usize = WORDS * 8;

/// Times are of CLOCK_MONOTONIC, in nanoseconds.
pub const CLOCK_MONOTONIC: u64 = 0;
/// Times are ticks of the processor's time stamp counter.
pub const CLOCK_TSC: u64 = 1;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Point {
    /// Room on the link is claimed, and the copy begins. The position is that of the first byte.
    Claimed = 1,
    /// The bytes are copied to the link's ring.
    Copied = 2,
    /// The message is posted.
    Posted = 3,
    /// The bytes are held back, because the program corked them or because the queue has no room.
    Held = 4,
    /// There is no credit for more.
    Stalled = 5,
    /// The receiver has handled the message's completion.
    Arrived = 6,
    /// The receiving program has the bytes.
    Read = 7,
    /// The kernel has taken the bytes.
    AnchorSent = 8,
    /// The receiving program has the bytes, from the kernel.
    AnchorRead = 9,
    /// The program has called to send. The amount is the length of its buffers.
    Send = 10,
    /// The program has called to receive.
    Recv = 11,
    /// The program has called to wait, or its receive waits.
    Wait = 12,
    /// That call returns.
    Reported = 13,
    /// The thread goes to sleep in the kernel.
    Asleep = 14,
    /// It runs again.
    Woken = 15,
}

impl Point {
    const ALL: [Point; 15] = [
        Point::Claimed,
        Point::Copied,
        Point::Posted,
        Point::Held,
        Point::Stalled,
        Point::Arrived,
        Point::Read,
        Point::AnchorSent,
        Point::AnchorRead,
        Point::Send,
        Point::Recv,
        Point::Wait,
        Point::Reported,
        Point::Asleep,
        Point::Woken,
    ];

    fn decode(code: u8) -> Option<Point> {
        Point::ALL.into_iter().find(|point| *point as u8 == code)
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time, by the clock of the memory.
    pub time: u64,
    /// What happened.
    pub point: Point,
    /// The thread, by its number in the kernel.
    pub thread: u32,
    /// The connection; 0 for an event of a thread alone. Both ends compute the same number: [`connection`].
    pub connection: u64,
    /// The end of the connection: true where its own address and port are the smaller ones.
    pub lower: bool,
    /// The port of this end.
    pub local_port: u16,
    /// The port of the other end.
    pub remote_port: u16,
    /// Bytes of the direction up to here, on the path of the event.
    pub position: u64,
    /// A length, in bytes.
    pub amount: u32,
    /// With events of a connection's bytes: this end has opened it.
    pub opener: bool,
    /// Why the connection is on its anchor: the code of the reason, with events of anchors.
    pub reason: u16,
}

impl Event {
    /// The words of the place behind the first one.
    pub fn encode(&self) -> [u64; EVENT_WORDS - 1] {
        let ports = u64::from(self.local_port) << 32 | u64::from(self.remote_port) << 48;
        let kind = u64::from(self.point as u8) << 48 | u64::from(self.lower) << 56 | u64::from(self.opener) << 57;
        [
            self.time,
            self.position,
            self.connection,
            u64::from(self.thread) | ports,
            u64::from(self.amount) | u64::from(self.reason) << 32 | kind,
        ]
    }

    /// The event of such words; `None` if they are of none.
    pub fn decode(words: &[u64; EVENT_WORDS - 1]) -> Option<Event> {
        let [time, position, connection, thread, kind] = *words;
        Some(Event {
            time,
            point: Point::decode((kind >> 48) as u8)?,
            thread: thread as u32,
            connection,
            lower: kind >> 56 & 1 != 0,
            local_port: (thread >> 32) as u16,
            remote_port: (thread >> 48) as u16,
            position,
            amount: kind as u32,
            opener: kind >> 57 & 1 != 0,
            reason: (kind >> 32) as u16,
        })
    }
}

/// The number of the connection between two addresses, in any order: FNV-1a over the smaller one and the larger one.
pub fn connection(lower: &[u8], higher: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let hash = lower.iter().chain(higher).fold(BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    hash.max(1)
}

/// The memory, as either side has it mapped.
#[derive(Clone, Copy)]
pub struct TraceMemory<'a>(&'a [AtomicU64]);

impl<'a> TraceMemory<'a> {
    /// `None`: too few words.
    pub fn new(words: &'a [AtomicU64]) -> Option<TraceMemory<'a>> {
        (words.len() >= WORDS).then_some(TraceMemory(words))
    }

    /// A word of the first page; see the constants.
    pub fn word(&self, index: usize) -> &'a AtomicU64 {
        &self.0[index % FIRST_EVENT]
    }

    /// Writes an event.
    #[inline]
    pub fn push(&self, event: &Event) {
        let number = self.word(HEAD).fetch_add(1, Ordering::Relaxed);
        let place = self.place(number);
        // A reader that sees any of the new words must not find the old number.
        place[0].store(0, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        for (to, word) in place[1..].iter().zip(event.encode()) {
            to.store(word, Ordering::Relaxed);
        }
        place[0].store(number.wrapping_add(1), Ordering::Release);
    }

    /// Event `number`: `None` if it is not whole, any more or yet.
    pub fn read(&self, number: u64) -> Option<Event> {
        let place = self.place(number);
        if place[0].load(Ordering::Acquire) != number.wrapping_add(1) {
            return None;
        }
        let mut words = [0; EVENT_WORDS - 1];
        for (word, from) in words.iter_mut().zip(&place[1..]) {
            *word = from.load(Ordering::Relaxed);
        }
        std::sync::atomic::fence(Ordering::Acquire);
        (place[0].load(Ordering::Relaxed) == number.wrapping_add(1)).then(|| Event::decode(&words)).flatten()
    }

    fn place(&self, number: u64) -> &'a [AtomicU64] {
        let at = FIRST_EVENT + (number % EVENTS as u64) as usize * EVENT_WORDS;
        &self.0[at..at + EVENT_WORDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn event(time: u64) -> Event {
        Event {
            time,
            point: Point::Posted,
            thread: 7,
            connection: 9,
            lower: true,
            local_port: 65535,
            remote_port: 1,
            position: u64::MAX,
            amount: u32::MAX,
            opener: true,
            reason: 12,
        }
    }

    #[test]
    fn events_are_read_until_they_are_overwritten() {
        let words = memory();
        let memory = TraceMemory::new(&words).expect("long enough");
        for time in 0..EVENTS as u64 + 1 {
            memory.push(&event(time));
        }
        assert_eq!(memory.read(0), None);
        assert_eq!(memory.read(1), Some(event(1)));
        assert_eq!(memory.read(EVENTS as u64), Some(event(EVENTS as u64)));
        assert_eq!(memory.read(EVENTS as u64 + 1), None);
        assert!(TraceMemory::new(&words[1..]).is_none());
    }

    #[test]
    fn any_number_of_the_next_event_stays_within_the_memory() {
        let words = memory();
        let memory = TraceMemory::new(&words).expect("long enough");
        memory.word(HEAD).store(u64::MAX - 1, Ordering::Relaxed);
        memory.push(&event(1));
        assert_eq!(memory.read(u64::MAX - 1), Some(event(1)));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(words in any::<[u64; EVENT_WORDS - 1]>()) {
            if let Some(event) = Event::decode(&words) {
                prop_assert_eq!(Event::decode(&event.encode()), Some(event));
            }
        }
    }
}
