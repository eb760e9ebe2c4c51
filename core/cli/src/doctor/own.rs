//! Our own files, and the configuration.

use std::path::PathBuf;

use netacc_config::{read_secret, Config, Problem};
use netacc_registry::{Check, Status};

use crate::bench::Tools;

pub(super) fn files(tools: &Tools) -> Vec<Check> {
    let file = |name: &str, found: &Option<PathBuf>| match found {
        Some(file) => Check::ok(name, file.display().to_string()),
        None => Check::not(Status::Fail, name, "not found beside netacc", "make build, or make install"),
    };
    vec![
        file("netacc_run", &tools.netacc_run),
        file("netacc_ss", &tools.netacc_ss),
        file("libnetacc-preload.so", &tools.preload),
        loader(tools),
    ]
}

/// Static programs only need it.
fn loader(tools: &Tools) -> Check {
    const NAME: &str = "netacc-loader";
    let place = tools.preload.as_ref().and_then(|library| library.parent());
    match place.map(|place| place.join(NAME)).filter(|path| path.is_file()) {
        Some(path) => Check::ok(NAME, path.display().to_string()),
        None => {
            let finding = "not beside libnetacc-preload.so: static programs stay on TCP";
            Check::not(Status::Warn, NAME, finding, "make build, or make install")
        }
    }
}

pub(super) fn configuration(config: &Config, problems: &[Problem]) -> Vec<Check> {
    let mut checks: Vec<Check> = problems
        .iter()
        .map(|problem| Check::not(Status::Warn, "configuration", problem.to_string(), "correct that line or variable"))
        .collect();
    if !config.acceleration_allowed() {
        let fix = "NACC_ENABLE_RDMA_DEFAULT=1, NACC_CONNECT_RDMA_PERCENT above 0, NACC_BACKEND other than none";
        checks.push(Check::not(Status::Fail, "configuration", "switches acceleration off", fix));
    } else if problems.is_empty() {
        checks.push(Check::ok("configuration", format!("NACC_BACKEND={}", config.backend)));
    }
    if let Some(path) = &config.links.key_file {
        checks.push(match read_secret(path, nix::unistd::geteuid().as_raw()) {
            Ok(secret) => Check::ok("pre-shared key", format!("{}: {} bytes", path.display(), secret.len())),
            Err(error) => Check::not(
                Status::Fail,
                "pre-shared key",
                format!("{}: {error}; nothing is accelerated", path.display()),
                format!("(umask 077; head -c 32 /dev/urandom | base64 >{}), the same on all hosts", path.display()),
            ),
        });
    }
    checks
}
