//! How far apart processors are: the time in which a cache line goes from one to another and back.
//!
//! On a virtual machine whose two processors are hardware threads of one core for some minutes, and of distant cores for others, this took
//! 45 or 350 ns. Two processes on shared memory took up to 2.2 times as long for a message then, where it took 350, and nothing else tells.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use super::processors::{allowed, keep_on, ns};

/// How often round trips are timed, and how many are timed together. Arbitrary: two milliseconds where one takes 500 ns.
const TRANSFER_SAMPLES: u32 = 21;
const TRANSFERS: u32 = 200;

/// No sample begins after this time: where other threads want the same processors, one takes some of their time slices. Arbitrary.
const LONGEST: Duration = Duration::from_millis(50);

/// Tells the answering thread that no number follows.
const END: u32 = u32::MAX;

/// Times that differ by more are of processors that moved. Between hardware threads of a core, cores with a common cache, and others
/// they differ 3 to 8 times.
const APART: f64 = 1.5;

/// How long a cache line takes between the first two processors that this process may use, and back. `None`: there is one only.
pub(super) fn first_transfer_ns() -> Option<u64> {
    let processors = allowed().ok()?;
    transfer_ns(*processors.first()?, *processors.get(1)?).ok()
}

/// The warning that the processors moved between measurements, if they did.
pub(super) fn moved(transfers_ns: impl Iterator<Item = u64> + Clone) -> Option<String> {
    let (least, most) = (transfers_ns.clone().min()?, transfers_ns.max()?);
    (most as f64 > APART * least as f64).then(|| {
        format!(
            "the spread of figures is the machine's: its processors moved between rounds, and a cache line's round trip between them \
             took {least} to {most} ns (transfer_ns of each run)"
        )
    })
}

/// By processor, how long a cache line takes to the next one (from the last to the first) and back: the median. None of a single one.
pub(super) fn transfers_ns(processors: &[usize]) -> nix::Result<Vec<Option<u64>>> {
    let next = |at: usize| processors[(at + 1) % processors.len()];
    let several = processors.len() > 1;
    let of = |(at, processor): (usize, &usize)| several.then(|| transfer_ns(*processor, next(at))).transpose();
    processors.iter().enumerate().map(of).collect()
}

/// A word alone on its cache lines: processors fetch two together.
#[repr(align(128))]
struct Line(AtomicU32);

/// The median time of a cache line's round trip between two processors, each of which waits for the other one's number.
fn transfer_ns(one: usize, other: usize) -> nix::Result<u64> {
    let line = Line(AtomicU32::new(0));
    let both = Barrier::new(2);
    let wait_for = |number| loop {
        match line.0.load(Ordering::Acquire) {
            END => return false,
            seen if seen == number => return true,
            _ => spin_loop(),
        }
    };
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let pinned = keep_on(Pid::from_raw(0), other);
            both.wait();
            for number in (1..).step_by(2).take_while(|number| wait_for(*number)) {
                line.0.store(number + 1, Ordering::Release);
            }
            pinned
        });
        let asking = scope.spawn(|| {
            let pinned = keep_on(Pid::from_raw(0), one);
            both.wait();
            let mut times = Vec::new();
            let start = Instant::now();
            for sample in (0..TRANSFER_SAMPLES).take_while(|sample| *sample == 0 || start.elapsed() < LONGEST) {
                let begun = Instant::now();
                for trip in sample * TRANSFERS..(sample + 1) * TRANSFERS {
                    line.0.store(2 * trip + 1, Ordering::Release);
                    wait_for(2 * trip + 2);
                }
                times.push(ns(begun.elapsed()) / u64::from(TRANSFERS));
            }
            line.0.store(END, Ordering::Release);
            times.sort_unstable();
            pinned.map(|()| times[times.len() / 2])
        });
        answering.join().expect("it cannot panic")?;
        asking.join().expect("it cannot panic")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if the two threads wait for each other's numbers in vain, or a processor is paired with itself.
    #[test]
    fn a_cache_line_goes_to_the_next_processor_and_back() {
        let processors = allowed().expect("the kernel tells");
        let found = transfers_ns(&processors).expect("these processors are allowed");
        assert_eq!(found.len(), processors.len());
        assert!(found.iter().all(|each| each.is_some_and(|ns| ns > 0) || processors.len() == 1));
        assert_eq!(transfers_ns(&processors[..1]), Ok(vec![None]));
    }

    /// Breaks if moved processors go unsaid, or usual differences count.
    #[test]
    fn processors_have_moved_where_times_are_of_two_kinds() {
        assert_eq!(moved([45, 60, 41].into_iter()), None);
        assert_eq!(moved([].into_iter()), None);
        let found = moved([45, 352, 350].into_iter()).expect("two kinds");
        assert!(found.contains("took 45 to 352 ns"), "{found}");
    }
}
