//! How far apart processors are: the time in which a cache line goes from one to another and back.
//!
//! On a virtual machine whose two processors are hardware threads of one core for some minutes, and of distant cores for others, this took
//! 45 or 350 ns. Two processes on shared memory took up to 2.2 times as long for a message then, where it took 350, and nothing else tells.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use nix::unistd::Pid;

use super::processors::{keep_on, ns};

/// How often round trips are timed, and how many are timed together. Arbitrary: two milliseconds where one takes 500 ns.
const TRANSFER_SAMPLES: usize = 21;
const TRANSFERS: u32 = 200;

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
    let round_trips = TRANSFER_SAMPLES as u32 * TRANSFERS;
    let wait_for = |number| {
        while line.0.load(Ordering::Acquire) != number {
            spin_loop();
        }
    };
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let pinned = keep_on(Pid::from_raw(0), other);
            both.wait();
            for trip in 0..round_trips {
                wait_for(2 * trip + 1);
                line.0.store(2 * trip + 2, Ordering::Release);
            }
            pinned
        });
        let asking = scope.spawn(|| {
            let pinned = keep_on(Pid::from_raw(0), one);
            both.wait();
            let mut times = Vec::with_capacity(TRANSFER_SAMPLES);
            for sample in 0..TRANSFER_SAMPLES as u32 {
                let begun = Instant::now();
                for trip in sample * TRANSFERS..(sample + 1) * TRANSFERS {
                    line.0.store(2 * trip + 1, Ordering::Release);
                    wait_for(2 * trip + 2);
                }
                times.push(ns(begun.elapsed()) / u64::from(TRANSFERS));
            }
            times.sort_unstable();
            pinned.map(|()| times[TRANSFER_SAMPLES / 2])
        });
        answering.join().expect("it cannot panic")?;
        asking.join().expect("it cannot panic")
    })
}

#[cfg(test)]
mod tests {
    use super::super::processors::allowed;
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
}
