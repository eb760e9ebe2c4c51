//! The log of the library.

use std::io::Write;

use netacc_config::Config;

/// Appends a line to the log, opened anew each time: the program may close any descriptor, and lines are rare.
pub(crate) fn append(config: &Config, line: &str) {
    let Some(path) = &config.log.path else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Ok(mut file) = file {
        let _ = netacc_registry::without_file_size_signal(|| writeln!(file, "[{}] {line}", std::process::id()));
    }
}
