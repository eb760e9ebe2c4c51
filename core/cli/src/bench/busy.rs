//! Other work beside a measurement: threads that compute, and the processors that other programs keep busy.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// Of the ticks in /proc (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// How long [`busy_processors`] watches. Arbitrary: enough clock ticks for a tenth of a processor.
const WATCH: Duration = Duration::from_millis(300);

/// How many processors are busy with other work right now, from /proc/stat; `None` if that cannot be read.
pub(crate) fn busy_processors() -> Option<f64> {
    let before = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    std::thread::sleep(WATCH);
    let after = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    Some(after.saturating_sub(before) as f64 / (TICKS_PER_S * WATCH.as_secs_f64()))
}

/// Counts what other programs do on the processors while this one and its descendants measure.
#[derive(Debug)]
pub(crate) struct Others {
    since: Instant,
    /// Ticks of programs, and those of this one with its descendants.
    ticks: Option<(u64, u64)>,
}

impl Others {
    pub(crate) fn watch() -> Others {
        Others { since: Instant::now(), ticks: ticks_now() }
    }

    /// How many processors others kept busy since then; `None` if that cannot be read.
    pub(crate) fn busy_processors(&self) -> Option<f64> {
        let ((all, own), (all_now, own_now)) = (self.ticks?, ticks_now()?);
        let others = all_now.saturating_sub(all).saturating_sub(own_now.saturating_sub(own));
        Some(others as f64 / (TICKS_PER_S * self.since.elapsed().as_secs_f64()).max(1.0))
    }
}

fn ticks_now() -> Option<(u64, u64)> {
    let processes = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // A process may end between the listing and the reading.
        Process::parse(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
    });
    let own = own_ticks(std::process::id(), &processes.collect::<Vec<_>>());
    Some((program_ticks(&fs::read_to_string("/proc/stat").ok()?)?, own))
}

/// A process in `/proc/PID/stat`, proc(5).
#[derive(Debug)]
struct Process {
    pid: u32,
    parent: u32,
    /// Its own, and those of its children that it has waited for.
    ticks: u64,
    /// It is a thread of the kernel that does the network's work, which is that of the measurement.
    is_softirq: bool,
}

impl Process {
    fn parse(pid: u32, stat: &str) -> Option<Process> {
        // The name is in parentheses, and may have some of its own.
        let (name, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Fields 14 to 17 are utime, stime, cutime and cstime; the first one here is field 3.
        let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some(Process { pid, parent: fields.get(1)?.parse().ok()?, ticks, is_softirq: name.contains("(ksoftirqd/") })
    }
}

/// The ticks of a process with all of its descendants, and of the kernel's threads that work for them.
fn own_ticks(root: u32, processes: &[Process]) -> u64 {
    let mut family = HashSet::from([root]);
    // A child may come before its parent in the list.
    while processes.iter().any(|each| family.contains(&each.parent) && family.insert(each.pid)) {}
    processes.iter().filter(|each| each.is_softirq || family.contains(&each.pid)).map(|each| each.ticks).sum()
}

/// Ticks of all processors in which programs ran or could have (user, nice, system, steal), proc(5). Interrupts are left
/// out: the kernel does much of TCP's work in them, and does not count that for any program.
fn program_ticks(stat: &str) -> Option<u64> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(str::parse::<u64>);
    let ticks = ticks.take(8).collect::<Result<Vec<_>, _>>().ok()?;
    Some(ticks.get(..3)?.iter().sum::<u64>() + ticks.get(7)?)
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

    /// Breaks if the load's own work counted as that of others, or that of others as its own.
    #[test]
    fn own_work_is_that_of_all_descendants() {
        let stat = |pid: u32, name: &str, parent: u32, ticks: u64| {
            let text = format!("{pid} ({name}) S {parent} 1 1 0 -1 4194304 0 0 0 0 {ticks} 1 2 3 20 0 1 0");
            Process::parse(pid, &text).expect("as the kernel writes it")
        };
        let processes = [
            stat(30, "a child's) S 9 child", 20, 1000),
            stat(10, "netacc", 5, 10),
            stat(20, "redis-server", 10, 100),
            stat(5, "shell", 1, 20_000),
            stat(7, "ksoftirqd/0", 2, 50_000),
        ];
        assert_eq!(own_ticks(10, &processes), 1000 + 10 + 100 + 50_000 + 4 * 6);
        assert_eq!(program_ticks("cpu  10 1 5 1000 100 2 3 4 50 60\n"), Some(10 + 1 + 5 + 4));
        assert!(Process::parse(1, "1 (x) S 1 2").is_none());
        let watch = Others::watch();
        let busy = watch.busy_processors().expect("this machine has /proc");
        assert!(busy >= 0.0 && busy.is_finite());
    }

    #[test]
    fn busy_loops_end_when_they_are_dropped() {
        let loops = BusyLoops::start(2);
        let stop = loops.stop.clone();
        drop(loops);
        assert_eq!(Arc::strong_count(&stop), 1, "both threads are gone");
    }
}
