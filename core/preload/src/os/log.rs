//! The log of the library.

use std::io::Write;

use netacc_config::{Config, LogLevel};

use super::real;

/// Appends a line to the log, if lines of its level are logged. A file is opened anew each time: the program may close any
/// descriptor, and lines are rare.
pub(crate) fn append(config: &Config, level: LogLevel, line: &str) {
    if level < config.log.effective_level() {
        return;
    }
    let line = format!("[{}] {line}\n", std::process::id());
    let Some(path) = &config.log.path else {
        // SAFETY: the bytes are readable.
        unsafe { real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        return;
    };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Ok(mut file) = file {
        let _ = netacc_registry::without_file_size_signal(|| file.write_all(line.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use netacc_config::LogConfig;

    use super::*;

    fn logged(level: LogLevel, debug: bool) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let log = LogConfig { level, path: Some(path.clone()), debug };
        let config = Config { log, ..Config::default() };
        append(&config, LogLevel::Debug, "a detail");
        append(&config, LogLevel::Warn, "a warning");
        append(&config, LogLevel::Error, "an error");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.replace(&format!("[{}] ", std::process::id()), "")
    }

    #[test]
    fn lines_below_the_level_are_left_out() {
        assert_eq!(logged(LogLevel::Warn, false), "a warning\nan error\n");
        assert_eq!(logged(LogLevel::Error, false), "an error\n");
        assert_eq!(logged(LogLevel::Fatal, false), "");
    }

    #[test]
    fn debug_mode_logs_details_whatever_the_level() {
        assert_eq!(logged(LogLevel::Error, true), "a detail\na warning\nan error\n");
    }
}
