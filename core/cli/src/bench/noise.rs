//! `netacc bench noise`: what keeps processors from their work, by the "selfish detour" benchmark.
//!
//! A thread on each processor does nothing but read the clock. Where two readings are further apart than a threshold,
//! something else had the processor: a tick, an interrupt, another thread, the hypervisor. Source: P. Beckman, K. Iskra,
//! K. Yoshii, S. Coghlan, A. Nataraj, "Benchmarking the effects of operating system interference on extreme-scale
//! parallel machines", Cluster Computing 11 (2008); Linux' own tracer `osnoise` measures the same way.
//!
//! Before that, each thread copies within the first cache: how fast the processors are now. Where a core has two hardware threads, and
//! a virtual machine has one of them, a copy takes twice as long while another machine works on the other one. Nothing else here tells.
//!
//! And each processor passes a cache line to the next one and back. That tells how far apart they are: on a virtual machine whose two
//! processors are sometimes hardware threads of one core and sometimes not, this took 45 or 350 ns, for minutes at a time, and what two
//! processes do together on shared memory took up to 2.2 times as long where it took 350.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use serde_json::{json, Value};

use super::args::NoiseArgs;
use super::error::BenchError;
use super::machine::Machine;
use super::recording;
use super::report;
use super::rounds::progress_bar;
use crate::record::{Draft, RecordError, Table};

/// Detours that are kept of a processor: one each microsecond of 100 ms. More are a threshold that is too low.
const MOST_DETOURS: usize = 100_000;

/// Bytes of a copy that tells how fast a processor is: both buffers fit into the first cache.
const COPIED: usize = 16 * 1024;

/// How often such a copy is timed, and how many copies are timed together. Arbitrary: a millisecond in all.
const COPY_SAMPLES: usize = 401;
const COPIES: u64 = 20;

/// How often round trips of a cache line are timed, and how many are timed together. Arbitrary: two milliseconds where one takes 500 ns.
const TRANSFER_SAMPLES: usize = 21;
const TRANSFERS: u32 = 200;

/// Steps of the progress bar.
const STEPS: u32 = 20;

/// Runs `netacc bench noise`.
pub(crate) fn run(args: &NoiseArgs) -> Result<(), BenchError> {
    report::check_directory(&args.json)?;
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    let machine = Machine::here();
    let threshold = Duration::from_nanos(args.threshold_ns);
    let length = Duration::from_secs_f64(args.seconds);
    let processors = allowed().map_err(|errno| BenchError::io("sched_getaffinity")(errno.into()))?;
    let apart = transfers(&processors).map_err(|errno| BenchError::io("sched_setaffinity")(errno.into()))?;
    let together = Barrier::new(processors.len() + 1);
    let found = thread::scope(|scope| {
        let watch = |processor: usize| {
            let together = &together;
            scope.spawn(move || {
                let pinned = keep_on(Pid::from_raw(0), processor);
                together.wait();
                pinned.map(|()| watch(length, threshold))
            })
        };
        let threads: Vec<_> = processors.iter().map(|processor| watch(*processor)).collect();
        let progress = progress_bar(STEPS as usize, args.quiet);
        progress.set_message("reading the clock");
        together.wait();
        for _ in 0..STEPS {
            thread::sleep(length / STEPS);
            progress.inc(1);
        }
        progress.finish_and_clear();
        let join = |thread: thread::ScopedJoinHandle<'_, nix::Result<Watched>>| thread.join().expect("it cannot panic");
        threads.into_iter().map(join).collect::<nix::Result<Vec<_>>>()
    });
    let found = found.map_err(|errno| BenchError::io("sched_setaffinity")(errno.into()))?;
    if let Some((processor, _)) = processors.iter().zip(&found).find(|(_, watched)| watched.is_full) {
        let text =
            format!("--threshold-ns: processor {processor} has more than {MOST_DETOURS} detours; take a higher one");
        return Err(BenchError::Usage(text));
    }
    let of_processor = |((processor, watched), transfer): ((&usize, &Watched), &Option<u64>)| json!({"processor": processor, "seconds": watched.seconds, "reading_ns": watched.least_ns, "copy_ns": watched.copy_ns, "transfer_ns": transfer, "detours_ns": watched.detours});
    let each: Vec<Value> = processors.iter().zip(&found).zip(&apart).map(of_processor).collect();
    let params = json!({"seconds": args.seconds, "threshold_ns": args.threshold_ns});
    let object = json!({"bench": "noise", "params": &params, "machine": &machine, "processors": each});
    if let Some(draft) = draft {
        let mut header = recording::header("netacc bench noise", &machine, params);
        header.tables.push(detours(&draft, &processors, &found)?);
        recording::finish(draft, header, &object)?;
    }
    report::write_object(&object, &args.json)
}

/// The table of all detours.
fn detours(draft: &Draft, processors: &[usize], found: &[Watched]) -> Result<Table, RecordError> {
    let mut lines = draft.lines("detours.jsonl")?;
    for (processor, watched) in processors.iter().zip(found) {
        for (at_ns, length_ns) in &watched.detours {
            lines.add(&json!({"processor": processor, "at_ns": at_ns, "length_ns": length_ns}))?;
        }
    }
    Ok(lines.table("detours", "when each processor was taken from the reader of the clock, and for how long"))
}

/// A thread's view of its processor.
#[derive(Debug)]
struct Watched {
    seconds: f64,
    /// The least time between two readings.
    least_ns: u64,
    /// The median time of a copy of [`COPIED`] bytes.
    copy_ns: u64,
    /// When each detour began, and how long it was.
    detours: Vec<(u64, u64)>,
    /// There were more.
    is_full: bool,
}

/// Copies, and then reads the clock for so long.
fn watch(length: Duration, threshold: Duration) -> Watched {
    let copy_ns = median_copy_ns();
    let mut detours = Vec::with_capacity(1024);
    let start = Instant::now();
    let mut least = Duration::MAX;
    let mut last = start;
    while last - start < length && detours.len() < MOST_DETOURS {
        let now = Instant::now();
        let gap = now - last;
        least = least.min(gap);
        if gap > threshold {
            detours.push((ns(last - start), ns(gap)));
        }
        last = now;
    }
    Watched {
        seconds: (last - start).as_secs_f64(),
        least_ns: ns(least),
        copy_ns,
        is_full: detours.len() == MOST_DETOURS,
        detours,
    }
}

/// How long a copy takes within the first cache: the median.
fn median_copy_ns() -> u64 {
    let (from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
    let mut times: Vec<u64> = (0..COPY_SAMPLES)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..COPIES {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
            ns(begun.elapsed()) / COPIES
        })
        .collect();
    times.sort_unstable();
    times[COPY_SAMPLES / 2]
}

/// By processor, how long a cache line takes to the next one (from the last to the first) and back: the median. None of a single one.
fn transfers(processors: &[usize]) -> nix::Result<Vec<Option<u64>>> {
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

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The processors that this process may use.
pub(super) fn allowed() -> nix::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|processor| set.is_set(*processor).unwrap_or(false)).collect())
}

/// Keeps a thread on a processor; 0 for this one.
pub(super) fn keep_on(thread: Pid, processor: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    sched_setaffinity(thread, &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a detour is missed, or the time between readings counts as one.
    #[test]
    fn detours_are_gaps_above_the_threshold() {
        let all = watch(Duration::from_millis(5), Duration::ZERO);
        let spent: u64 = all.detours.iter().map(|(_, length)| length).sum();
        assert!(spent as f64 / 1e9 >= all.seconds * 0.999 || all.is_full, "without a threshold all time is detours");
        let in_order = all.detours.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0);
        assert!(in_order, "they do not overlap");
        let none = watch(Duration::from_millis(5), Duration::from_secs(60));
        assert!(none.detours.is_empty() && none.least_ns < 60_000_000_000 && none.copy_ns > 0);
    }

    /// Breaks if the two threads wait for each other's numbers in vain, or a processor is paired with itself.
    #[test]
    fn a_cache_line_goes_to_the_next_processor_and_back() {
        let processors = allowed().expect("the kernel tells");
        let found = transfers(&processors).expect("these processors are allowed");
        assert_eq!(found.len(), processors.len());
        assert!(found.iter().all(|each| each.is_some_and(|ns| ns > 0) || processors.len() == 1));
        assert_eq!(transfers(&processors[..1]), Ok(vec![None]));
    }
}
