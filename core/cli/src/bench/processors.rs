//! The processors that this process may use, and threads that stay on one.

use std::time::Duration;

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;

/// In nanoseconds.
pub(super) fn ns(time: Duration) -> u64 {
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
