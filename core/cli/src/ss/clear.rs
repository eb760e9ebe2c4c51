//! `netacc_ss -c`: removes entries of crashed processes.
//!
//! netacc_ss's own sockets are abstract, so they leave nothing. Backends can leave entries.

use netacc_config::Config;

/// Clears, and returns a message about the removed entries.
pub(super) fn clear() -> String {
    // netacc_run reports the problems of the configuration.
    let (config, _) = Config::load();
    match netacc_registry::sweep(&config) {
        0 => "nothing left behind by processes that are gone\n".to_owned(),
        1 => "cleared 1 entry of a process that is gone\n".to_owned(),
        n => format!("cleared {n} entries of processes that are gone\n"),
    }
}
