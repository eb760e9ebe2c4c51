//! The priority of a thread that answers `netacc_ss`.
//!
//! To describe 20,000 connections takes 16 ms of processor time, which other programs on a busy machine would spread over a
//! tenth of a second. The thread locks one stream after the other, and a thread of the program that needs the same one
//! would wait for the processor, too.

use netacc_descriptors::read_text;

/// The highest priority that is not real-time's.
const NICE: i32 = -20;

/// Lets this thread, which soon ends, run before others, if the process has the right to that. A filter of system calls may
/// end a process for such a call, so a process with a filter does without.
pub(super) fn take() {
    if is_unfiltered(&read_text("/proc/thread-self/status").unwrap_or_default()) {
        // SAFETY: no pointers. 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    }
}

fn is_unfiltered(status: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a sandbox ended the program because of a question to the library.
    #[test]
    fn only_a_process_that_surely_has_no_filter_makes_the_call() {
        let status = |seccomp: &str| is_unfiltered(&format!("Name:\tx\n{seccomp}Seccomp_filters:\t0\nThreads:\t1\n"));
        assert!(status("Seccomp:\t0\n"));
        assert!(!status("Seccomp:\t1\n") && !status("Seccomp:\t2\n") && !status(""));
        let own = read_text("/proc/thread-self/status").expect("procfs");
        assert!(own.contains("\nSeccomp:\t"), "{own}");
    }
}
