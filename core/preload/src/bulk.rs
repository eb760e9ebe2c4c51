//! The throughput of streams in one direction, measured at the program's own calls. [`PathChoice`] compares it, because
//! such streams have no answers to time.
//!
//! A sample is the time of one [`CHUNK`] in the middle of many. It includes the program's own pace, as the time of an
//! answer includes the service's. Where that pace limits the stream, both paths take the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::{Path, PathChoice, Verdict};

/// Bytes of one sample. Arbitrary: short enough for sixteen samples to come soon, and as long as thirty calls.
const CHUNK: u64 = 256 << 10;
/// Bytes of a run before its first sample: the kernel's buffers accept so many at once, by default (`tcp_wmem`).
const SKIP: u64 = 4 << 20;
/// From so many bytes in one direction on, the stream's promotion waits for the samples of its run.
const WORTH: u64 = 64 << 10;
/// From so many bytes on, its stream waits no longer: twice as many as sixteen samples need.
const ENOUGH: u64 = SKIP + 32 * CHUNK;
/// Fewer bytes the other way do not end a run: acknowledgements of the program's own.
const LITTLE: u64 = 1 << 10;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Sent by this side.
    Out = 1,
    /// Received.
    In = 2,
}

/// Bytes of one connection in one direction, by one path, with at most a few in the other direction. Threads may
/// disturb one another's samples, so the median is used.
#[derive(Debug, Default)]
pub struct Run {
    /// Way and path; 0 before the first.
    kind: AtomicU64,
    bytes: AtomicU64,
    /// When the last chunk was whole, in nanoseconds; 0 if none was.
    since: AtomicU64,
}

impl Run {
    /// Records that so many bytes have gone this way, by this path. Returns whether the stream is to leave its link.
    #[inline]
    pub fn record(&self, choice: &PathChoice, (way, path): (Way, Path), len: usize, now: impl Fn() -> Instant) -> bool {
        let (len, kind) = (len as u64, way as u64 | u64::from(path == Path::Link) << 2);
        let known = self.kind.load(Ordering::Relaxed);
        if known != kind {
            if known & 4 != kind & 4 || len > LITTLE {
                self.begin(kind, len);
            }
            return false;
        }
        let before = self.bytes.load(Ordering::Relaxed);
        let after = before.saturating_add(len);
        self.bytes.store(after, Ordering::Relaxed);
        if after < SKIP || before / CHUNK == after / CHUNK {
            return false;
        }
        let now = now();
        let since = self.since.swap(now.as_nanos(), Ordering::Relaxed);
        if since == 0 {
            return false;
        }
        let chunks = (after / CHUNK - before / CHUNK) as u32;
        let took: Duration = now.saturating_since(Instant::from_nanos(since)) / chunks;
        choice.record(path, took, now)
    }

    /// The verdict on the stream's promotion. A stream that is not in a long run may be promoted.
    pub fn judge(&self, choice: &PathChoice, now: Instant) -> Verdict {
        match self.bytes.load(Ordering::Relaxed) {
            bytes if bytes < WORTH => Verdict::Promote,
            bytes => choice.judge(if bytes < ENOUGH { 0 } else { u32::MAX }, now),
        }
    }

    #[cold]
    fn begin(&self, kind: u64, len: u64) {
        self.kind.store(kind, Ordering::Relaxed);
        self.bytes.store(len, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }
}

/// The throughput of a chunk that takes so long.
pub fn bytes_per_s(took: Duration) -> u64 {
    (u128::from(CHUNK) * 1_000_000_000 / took.as_nanos().max(1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A connection whose bytes take so long on each path.
    struct Bench {
        run: Run,
        choice: PathChoice,
        now: Cell<u64>,
    }

    const ANCHOR: Path = Path::Anchor;
    const LINK: Path = Path::Link;

    impl Bench {
        fn new() -> Bench {
            Bench { run: Run::default(), choice: PathChoice::default(), now: Cell::new(1_000_000) }
        }

        /// So many bytes, in calls of 16 KiB that take so many nanoseconds each. Returns whether the link is to be left.
        fn go(&self, way: Way, path: Path, bytes: u64, ns: u64) -> bool {
            const CALL: usize = 16 << 10;
            (0..bytes / CALL as u64).any(|_| {
                self.now.set(self.now.get() + ns);
                self.run.record(&self.choice, (way, path), CALL, || Instant::from_nanos(self.now.get()))
            })
        }

        fn judge(&self) -> Verdict {
            self.run.judge(&self.choice, Instant::from_nanos(self.now.get()))
        }

        /// After it has been on the anchor long enough, its calls taking so long there.
        fn measured(way: Way, ns: u64) -> Bench {
            let bench = Bench::new();
            bench.go(way, ANCHOR, SKIP + 20 * CHUNK, ns);
            assert_eq!(bench.judge(), Verdict::Promote);
            bench
        }
    }

    #[test]
    fn a_stream_in_one_direction_is_measured_before_it_is_promoted() {
        let bench = Bench::new();
        bench.go(Way::Out, ANCHOR, WORTH / 2, 100);
        assert_eq!(bench.judge(), Verdict::Promote, "that is nothing yet");
        bench.go(Way::Out, ANCHOR, SKIP, 100);
        assert_eq!(bench.judge(), Verdict::Measure);
        bench.go(Way::Out, ANCHOR, 20 * CHUNK, 100);
        assert_eq!(bench.judge(), Verdict::Promote);
    }

    #[test]
    fn a_link_that_carries_less_is_left_and_one_that_carries_as_much_is_not() {
        for way in [Way::Out, Way::In] {
            assert!(!Bench::measured(way, 1000).go(way, LINK, SKIP + 100 * CHUNK, 1100), "{way:?}");
            let bench = Bench::measured(way, 1000);
            assert!(bench.go(way, LINK, SKIP + 20 * CHUNK, 2000), "{way:?}");
            assert_eq!(bench.judge(), Verdict::Stay);
            bench.go(way, ANCHOR, SKIP + 20 * CHUNK, 1000);
            assert_eq!(bench.judge(), Verdict::Stay, "as it was: the anchor's are known again");
        }
    }

    #[test]
    fn a_chunk_of_a_millisecond_is_a_quarter_of_a_gigabyte_a_second() {
        assert_eq!(bytes_per_s(Duration::from_millis(1)), 262_144_000);
        assert!(bytes_per_s(Duration::ZERO) > 0);
    }

    // Breaks if the bytes that fill the kernel's buffers count: no link is as fast as these buffers.
    #[test]
    fn bytes_absorbed_by_buffers_are_no_sample() {
        let bench = Bench::new();
        bench.go(Way::Out, ANCHOR, SKIP - CHUNK, 1);
        bench.go(Way::Out, ANCHOR, 20 * CHUNK, 1000);
        assert_eq!(bench.judge(), Verdict::Promote);
        assert!(!bench.go(Way::Out, LINK, SKIP + 100 * CHUNK, 1000));
    }

    #[test]
    fn a_little_in_the_other_direction_is_no_end_and_more_is() {
        let bench = Bench::new();
        let back = |len| bench.run.record(&bench.choice, (Way::In, ANCHOR), len, || unreachable!("no clock for that"));
        bench.go(Way::Out, ANCHOR, SKIP, 100);
        assert!(!back(LITTLE as usize));
        assert_eq!(bench.judge(), Verdict::Measure);
        assert!(!back(LITTLE as usize + 1));
        assert_eq!(bench.judge(), Verdict::Promote, "its bytes are counted anew");
    }

    #[test]
    fn a_connection_without_samples_is_promoted_all_the_same() {
        let bench = Bench::new();
        // Each takes longer than any that counts.
        bench.go(Way::Out, ANCHOR, ENOUGH, 1_000_000_000);
        assert_eq!(bench.judge(), Verdict::Promote);
    }
}
