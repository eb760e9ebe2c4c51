//! Memory of servers and clients.

use std::fs;

/// Bytes that a process has written, and its part of those that it shares with others: half of what two processes have
/// in common. Programs' and libraries' files do not count, and neither does the kernel's memory. 0 if it is gone.
pub(crate) fn of_process(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).map_or(0, |text| written(&text))
}

fn written(rollup: &str) -> u64 {
    let kib = |line: &str| {
        let value = line.strip_prefix("Pss_Anon:").or_else(|| line.strip_prefix("Pss_Shmem:"))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    rollup.lines().filter_map(kib).sum::<u64>() << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_do_not_count() {
        let rollup = "1000-2000 ---p 0 00:00 0 [rollup]\nRss: 90 kB\nPss: 60 kB\nPss_Dirty: 50 kB\nPss_Anon:  12 kB\n\
                      Pss_File: 40 kB\nPss_Shmem:   8 kB\nShared_Clean: 1 kB\n";
        assert_eq!(written(rollup), 20 << 10);
        assert_eq!(written(""), 0);
        assert_eq!(of_process(u32::MAX - 1), 0);
        assert!(of_process(std::process::id()) > 0);
    }
}
