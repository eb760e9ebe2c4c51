//! The backends of this build, as the commands see them: a command iterates, and names none.

use netacc_config::Config;
use netacc_shm::{ShmConfig, ShmDevice};

/// A backend, as the commands see it.
struct Entry {
    /// Removes what processes that are gone left behind; returns the number of entries.
    sweep: fn(&Config) -> usize,
}

const BACKENDS: [Entry; 2] = [
    Entry { sweep: sweep_shm },
    // The kernel frees what a process had of an RDMA device.
    Entry { sweep: |_| 0 },
];

/// Removes what processes that are gone left behind, of all backends; returns the number of entries.
///
/// Only this user's, and those of the group that the configuration names; but those of other network namespaces too,
/// where nobody is left. Other users' are theirs to clear.
pub fn sweep(config: &Config) -> usize {
    BACKENDS.iter().map(|backend| (backend.sweep)(config)).sum()
}

/// Sweeps the rendezvous of this user and of the configured group.
fn sweep_shm(config: &Config) -> usize {
    // A group that cannot be looked up cannot have been used either.
    let group = config.shm.group.as_ref().and_then(|group| group.resolve().ok().flatten());
    let own = ShmConfig::default();
    let shared = group.map(|gid| ShmConfig { group: Some(gid), ..ShmConfig::default() });
    std::iter::once(own).chain(shared).map(|config| ShmDevice::sweep(&config)).sum()
}
