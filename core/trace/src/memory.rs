//! The memory in which a traced process leaves its events, and the clock of these events.

#![expect(unsafe_code, reason = "memory that two processes share, and the processor's counter")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netacc_config::trace::{self as layout, Event, TraceMemory};
use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use nix::time::{clock_gettime, ClockId};

/// The clock of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CLOCK_MONOTONIC.
    Monotonic,
    /// The time stamp counter, which a program reads without a call.
    Tsc,
}

impl Clock {
    /// The best clock here: the counter, where all processors have the same and it never stops.
    pub fn here() -> Clock {
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        match source {
            Ok(source) if cfg!(target_arch = "x86_64") && source.trim() == "tsc" => Clock::Tsc,
            _ => Clock::Monotonic,
        }
    }

    /// The time.
    pub fn now(self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self == Clock::Tsc {
            // SAFETY: every processor of this architecture has the instruction.
            return unsafe { std::arch::x86_64::_rdtsc() };
        }
        monotonic()
    }

    fn code(self) -> u64 {
        match self {
            Clock::Monotonic => layout::CLOCK_MONOTONIC,
            Clock::Tsc => layout::CLOCK_TSC,
        }
    }
}

fn monotonic() -> u64 {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has the clock"));
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A reading of the trace's clock beside CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    ticks: u64,
    nanoseconds: u64,
}

impl Reading {
    /// Now.
    pub fn take(clock: Clock) -> Reading {
        // The reading in between is the closest of several, so that an interruption does not spoil it.
        let one = || {
            let before = clock.now();
            let nanoseconds = monotonic();
            let after = clock.now();
            (after.wrapping_sub(before), Reading { ticks: before + after.wrapping_sub(before) / 2, nanoseconds })
        };
        let readings = (0..16).map(|_| one());
        readings.min_by_key(|(width, _)| *width).map_or_else(|| one().1, |(_, reading)| reading)
    }
}

/// The conversion of ticks into nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    origin: Reading,
    nanoseconds_per_tick: f64,
}

impl Scale {
    /// From two readings, as far apart as possible.
    pub fn between(first: Reading, last: Reading) -> Scale {
        let ticks = last.ticks.saturating_sub(first.ticks).max(1);
        let nanoseconds = last.nanoseconds.saturating_sub(first.nanoseconds).max(1);
        Scale { origin: first, nanoseconds_per_tick: nanoseconds as f64 / ticks as f64 }
    }

    /// The time in nanoseconds.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let since = ticks.wrapping_sub(self.origin.ticks).cast_signed() as f64;
        self.origin.nanoseconds.saturating_add_signed((since * self.nanoseconds_per_tick) as i64)
    }

    /// The ticks of so long a time.
    pub fn ticks(&self, time: Duration) -> u64 {
        (time.as_nanos() as f64 / self.nanoseconds_per_tick) as u64
    }
}

/// Memory for the events of one process.
pub struct EventMemory {
    file: File,
    start: NonNull<c_void>,
    clock: Clock,
    /// The number of the next event to read.
    next: u64,
}

/// The events that were read, and how many were overwritten before that.
#[derive(Debug, Default)]
pub struct Drained {
    /// In the order in which they were begun, which is nearly that of their times.
    pub events: Vec<Event>,
    /// Events that were lost.
    pub lost: u64,
}

impl EventMemory {
    /// New memory, which cannot shrink.
    ///
    /// # Errors
    /// The system has no memory, or forbids so large a file.
    pub fn new(clock: Clock) -> io::Result<EventMemory> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"netacc-trace", flags)?);
        file.set_len(layout::BYTES as u64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals))?;
        let length = NonZeroUsize::new(layout::BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // Its pages are there before the process writes: an event must not take a fault.
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping of a file that cannot shrink.
        let start = unsafe { mmap(None, length, rights, flags, &file, 0) }?;
        let memory = EventMemory { file, start, clock, next: 0 };
        memory.words().word(0).store(layout::MAGIC, Ordering::Relaxed);
        memory.words().word(layout::CLOCK).store(clock.code(), Ordering::Relaxed);
        Ok(memory)
    }

    /// The descriptor to pass to the process.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn words(&self) -> TraceMemory<'_> {
        // SAFETY: mapped for as long as `self` lives, and the words are atomic.
        let words = unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), layout::WORDS) };
        TraceMemory::new(words).expect("mapped as a whole")
    }

    /// The process records events for so many ticks from now.
    pub fn open(&self, ticks: u64) {
        let end = self.clock.now().saturating_add(ticks).max(1);
        self.words().word(layout::WINDOW).store(end, Ordering::Relaxed);
    }

    /// It records no more.
    pub fn close(&self) {
        self.words().word(layout::WINDOW).store(0, Ordering::Relaxed);
    }

    /// Takes the events since the last time.
    pub fn drain(&mut self) -> Drained {
        let head = self.words().word(layout::HEAD).load(Ordering::Acquire);
        let mut drained = Drained::default();
        // A process may write any number there.
        let count = head.wrapping_sub(self.next);
        if count > layout::EVENTS as u64 {
            drained.lost = count - layout::EVENTS as u64;
            self.next = head.wrapping_sub(layout::EVENTS as u64);
        }
        while self.next != head {
            match self.words().read(self.next) {
                Some(event) => drained.events.push(event),
                None => drained.lost += 1,
            }
            self.next = self.next.wrapping_add(1);
        }
        drained
    }
}

impl Drop for EventMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference to it is left.
        let _ = unsafe { munmap(self.start, layout::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_config::trace::Point;

    fn event(time: u64) -> Event {
        Event {
            time,
            point: Point::Send,
            thread: 1,
            connection: 1,
            lower: true,
            local_port: 1,
            remote_port: 2,
            position: 0,
            amount: 0,
            opener: false,
            reason: 0,
        }
    }

    #[test]
    fn events_are_taken_once_and_losses_are_counted() {
        let mut memory = EventMemory::new(Clock::Monotonic).expect("memory");
        memory.words().push(&event(1));
        memory.words().push(&event(2));
        assert_eq!(memory.drain().events, [event(1), event(2)]);
        assert!(memory.drain().events.is_empty());
        for time in 0..layout::EVENTS as u64 + 3 {
            memory.words().push(&event(time));
        }
        let drained = memory.drain();
        assert_eq!((drained.events.len(), drained.lost), (layout::EVENTS, 3));
        // Whatever a process writes there, reading ends.
        memory.words().word(layout::HEAD).store(u64::MAX / 2, Ordering::Relaxed);
        assert!(memory.drain().lost > 0);
    }

    #[test]
    fn ticks_become_nanoseconds() {
        let first = Reading { ticks: 1000, nanoseconds: 5000 };
        let scale = Scale::between(first, Reading { ticks: 3000, nanoseconds: 6000 });
        assert_eq!((scale.nanoseconds(2000), scale.nanoseconds(0)), (5500, 4500));
        assert_eq!(scale.ticks(Duration::from_nanos(10)), 20);
    }
}
