//! Other work beside a measurement: threads that compute, and what others leave of the processors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that compute without a pause until this is dropped (`--busy`).
pub(crate) struct BusyLoops {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyLoops {
    pub(crate) fn start(count: u32) -> BusyLoops {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..count).map(|_| std::thread::spawn(spin(stop.clone()))).collect();
        BusyLoops { stop, threads }
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

/// How long [`busy_processors`] watches. Arbitrary: enough clock ticks for a tenth of a processor.
const WATCH: Duration = Duration::from_millis(300);

/// How many processors are busy with other work right now, from /proc/stat; `None` if that cannot be read.
pub(crate) fn busy_processors() -> Option<f64> {
    let before = busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    std::thread::sleep(WATCH);
    let after = busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    // A tick is a hundredth of a second in /proc (USER_HZ).
    Some(after.saturating_sub(before) as f64 / (100.0 * WATCH.as_secs_f64()))
}

/// Ticks of all processors that were not idle: the first line without its fields 4 (idle) and 5 (iowait), proc(5).
fn busy_ticks(stat: &str) -> Option<u64> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(str::parse::<u64>);
    // Guests' time (fields 9 and 10) is part of user time.
    let ticks = ticks.take(8).collect::<Result<Vec<_>, _>>().ok()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(ticks.iter().sum::<u64>() - idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() {
        let stat = "cpu  10 1 5 1000 100 2 3 4 50 60\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_ticks(stat), Some(10 + 1 + 5 + 2 + 3 + 4));
        assert_eq!(busy_ticks("intr 1 2 3"), None);
        assert_eq!(busy_ticks("cpu  1 2"), None);
    }

    #[test]
    fn busy_loops_end_when_they_are_dropped() {
        let loops = BusyLoops::start(2);
        let stop = loops.stop.clone();
        drop(loops);
        assert_eq!(Arc::strong_count(&stop), 1, "both threads are gone");
    }
}
