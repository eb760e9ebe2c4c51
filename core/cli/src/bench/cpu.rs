//! Processor time of servers and clients.
//!
//! A server lives through many measurements, so its time is read from `/proc` before and after
//! each; a client is one process per measurement and is accounted for when it has been waited for
//! (redis-benchmark), or by itself around the measured loop (our own).

use std::fs;

use nix::sys::resource::{getrusage, Usage, UsageWho};

/// CPU seconds used so far by all threads of a process, threads that have ended included; 0 if it
/// is gone.
///
/// The scheduler's nanoseconds are taken where the kernel keeps them. They lack the threads that have ended, which
/// `stat` has, in ticks of 10 ms: the larger value is closer to the real one.
pub(crate) fn of_process(pid: u32) -> f64 {
    of_live_threads(pid).unwrap_or(0.0).max(of_stat(pid).unwrap_or(0.0))
}

/// How often the threads of a process have slept so far; 0 if it is gone.
pub(crate) fn sleeps_of_process(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let status = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    status.filter_map(|text| sleeps_in(&text)).sum()
}

/// The voluntary context switches in a thread's `status`, proc(5).
fn sleeps_in(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// How often the threads of this process have slept.
pub(crate) fn sleeps_of_self() -> u64 {
    let count = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.voluntary_context_switches());
    u64::try_from(count).unwrap_or(0)
}

/// CPU seconds of all children that have ended and have been waited for.
pub(crate) fn of_children() -> f64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |usage| seconds(&usage))
}

/// CPU seconds of this process.
pub(crate) fn of_self() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| seconds(&usage))
}

/// How often all children slept that have ended and have been waited for.
pub(crate) fn sleeps_of_children() -> u64 {
    let count = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.voluntary_context_switches());
    u64::try_from(count).unwrap_or(0)
}

fn seconds(usage: &Usage) -> f64 {
    let one = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    one(usage.user_time()) + one(usage.system_time())
}

fn of_live_threads(pid: u32) -> Option<f64> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else {
            continue;
        };
        nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(nanoseconds as f64 / 1e9)
}

fn of_stat(pid: u32) -> Option<f64> {
    /// USER_HZ: 100 on every common Linux architecture.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may contain spaces and parentheses; the other fields begin after the last parenthesis.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_the_voluntary_switches() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(sleeps_in(status), Some(12));
        assert_eq!(sleeps_in("Name:\tx\n"), None);
        let before = (sleeps_of_self(), sleeps_of_process(std::process::id()));
        // A thread that ends before it is waited for wakes this one, at most; a sleep is one for certain.
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(sleeps_of_self() > before.0 && sleeps_of_process(std::process::id()) > before.1);
    }

    #[test]
    fn own_time_grows_when_working() {
        let pid = std::process::id();
        let before = of_process(pid);
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 60 {
            std::hint::black_box(of_self());
        }
        assert!(of_process(pid) > before);
        assert_eq!(of_process(u32::MAX - 1), 0.0);
    }
}
