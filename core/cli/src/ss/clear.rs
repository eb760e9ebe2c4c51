//! `netacc_ss -c`: removes what crashed processes left behind.
//!
//! netacc_ss's own sockets are abstract, so they leave nothing; what can be left is in the rendezvous of the
//! shared-memory backend: this user's, and that of the group that the configuration names; of other network namespaces
//! too, where nobody is left. Other users' are theirs to clear.

use netacc_config::Config;
use netacc_shm::{ShmConfig, ShmDevice};

/// Clears, and says what was found.
pub(super) fn clear() -> String {
    // Its problems are not what was asked about, and netacc_run tells them.
    let (config, _) = Config::load();
    // A group that cannot be looked up cannot have been used either.
    let group = config.shm.group.and_then(|group| group.resolve().ok().flatten());
    let own = ShmConfig::default();
    let shared = group.map(|gid| ShmConfig { group: Some(gid), ..ShmConfig::default() });
    let freed: usize = std::iter::once(own).chain(shared).map(|c| ShmDevice::sweep(&c)).sum();
    match freed {
        0 => "nothing left behind by processes that are gone\n".to_owned(),
        1 => "cleared 1 entry of a process that is gone\n".to_owned(),
        n => format!("cleared {n} entries of processes that are gone\n"),
    }
}
