//! `netacc bench wake`: how long a sleeping thread takes until it runs, measured from the call that wakes it.
//!
//! Two threads wake each other in turn, each through an eventfd that the other one reads. The waker reads the clock before
//! its write, and the sleeper after its read has returned: so the time has both calls in it, the interrupt of an idle
//! processor, and the scheduler. No socket takes part.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde_json::json;

use super::args::WakeArgs;
use super::error::BenchError;
use super::machine::Machine;
use super::recording;
use super::report;
use crate::record::{Draft, Series};

/// Longer times count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Tells the other thread that no more is to come.
const OVER: u64 = 2;

/// Runs `netacc bench wake`.
pub(crate) fn run(args: &WakeArgs) -> Result<(), BenchError> {
    report::check_directory(&args.json)?;
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    let machine = Machine::here();
    let length = Duration::from_secs_f64(args.seconds);
    let found = measure(length).map_err(BenchError::io("waking threads"))?;
    let histogram: Vec<_> =
        found.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
    let params = json!({"seconds": args.seconds});
    let object = json!({"bench": "wake", "params": &params, "machine": machine, "histogram_ns": histogram});
    if let Some(draft) = draft {
        let run = recording::run_with(&draft, "wake", &histogram)?;
        let mut header = recording::header("netacc bench wake", &machine, params);
        header.series.push(Series { name: "wake".to_owned(), runs: vec![run], ..Series::default() });
        recording::finish(draft, header, &object)?;
    }
    report::write_object(&object, &args.json)
}

/// Each way in turn, for so long.
fn measure(length: Duration) -> io::Result<Histogram<u64>> {
    let flags = EfdFlags::EFD_CLOEXEC;
    let (there, back) = (EventFd::from_flags(flags)?, EventFd::from_flags(flags)?);
    let (start, woken_at) = (Instant::now(), AtomicU64::new(0));
    let clock = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    thread::scope(|scope| {
        let other = scope.spawn(|| -> io::Result<Histogram<u64>> {
            let mut found = empty();
            loop {
                if read(&there)? == OVER {
                    return Ok(found);
                }
                found.saturating_record(clock() - woken_at.load(Ordering::Acquire));
                woken_at.store(clock(), Ordering::Release);
                back.write(1)?;
            }
        });
        let mut found = empty();
        while start.elapsed() < length {
            woken_at.store(clock(), Ordering::Release);
            there.write(1)?;
            read(&back)?;
            found.saturating_record(clock() - woken_at.load(Ordering::Acquire));
        }
        there.write(OVER)?;
        found += other.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        Ok(found)
    })
}

fn read(from: &EventFd) -> io::Result<u64> {
    let mut count = [0; 8];
    nix::unistd::read(from.as_fd(), &mut count)?;
    Ok(u64::from_ne_bytes(count))
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if only one way is counted, or the threads do not end.
    #[test]
    fn both_ways_count() {
        let found = measure(Duration::from_millis(20)).expect("eventfds work");
        assert!(found.len() >= 2 && found.len().is_multiple_of(2), "{}", found.len());
    }
}
