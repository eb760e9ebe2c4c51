//! The machine on which the figures were measured.

use std::fs;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::busy;

/// The machine and the time: figures mean nothing without them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the first processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// When the run began, UTC.
    pub date: String,
    /// Load averages (1, 5, 15 minutes) before the run: above ~0.3, something else was running.
    pub loadavg: [f64; 3],
    /// Processors that other work kept busy just before the run; unknown in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_processors: Option<f64>,
}

impl Machine {
    /// This machine and its load, for which it watches the processors for a moment.
    pub fn here() -> Self {
        Machine { busy_processors: busy::busy_processors(), ..Machine::described() }
    }

    /// This machine's properties. Those that cannot be read stay empty.
    pub(crate) fn described() -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let mut loads = read("/proc/loadavg");
        loads.truncate(loads.find('/').unwrap_or(0));
        let mut loads = loads.split_whitespace().map(|load| load.parse().unwrap_or(0.0));
        Machine {
            cpu: cpu.map_or_else(|| std::env::consts::ARCH.into(), |(_, model)| model.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            loadavg: std::array::from_fn(|_| loads.next().unwrap_or(0.0)),
            busy_processors: None,
        }
    }
}
