//! `netacc doctor`: which backends work here, and why not the others.
//!
//! It looks at the machine and at our own files; it starts nothing and changes nothing.

use std::process::ExitCode;

use clap::Args;
use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use serde::Serialize;

use crate::bench::{available_backends, Tools};

/// Arguments of `netacc doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Can programs be accelerated here at all?
    ok: bool,
    backends: Vec<BackendHealth>,
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct BackendHealth {
    name: &'static str,
    works: bool,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
}

/// Prints the diagnosis. Succeeds if at least one backend works and our own files are complete.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let diagnosis = diagnose();
    if args.json {
        let json = serde_json::to_string_pretty(&diagnosis).expect("plain data");
        println!("{json}");
    } else {
        print(&diagnosis);
    }
    if diagnosis.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn diagnose() -> Diagnosis {
    let tools = Tools::find();
    let file = |name, found: &Option<std::path::PathBuf>| Check {
        name,
        ok: found.is_some(),
        detail: match found {
            Some(file) => file.display().to_string(),
            None => "not found beside netacc: make build".into(),
        },
    };
    let checks = vec![
        file("netacc_run", &tools.netacc_run),
        file("netacc_ss", &tools.netacc_ss),
        file("libnetacc-preload.so", &tools.preload),
        shared_memory_dir(),
        locked_memory(),
    ];
    let backends: Vec<_> = available_backends()
        .into_iter()
        .map(|backend| BackendHealth {
            name: backend.name,
            works: backend.problems.is_empty(),
            problems: backend.problems,
        })
        .collect();
    let complete = tools.netacc_run.is_some() && tools.preload.is_some();
    Diagnosis { ok: complete && backends.iter().any(|backend| backend.works), backends, checks }
}

fn shared_memory_dir() -> Check {
    let writable = tempfile::tempfile_in("/dev/shm");
    Check {
        name: "/dev/shm",
        ok: writable.is_ok(),
        detail: writable.map_or_else(|error| error.to_string(), |_| "writable".into()),
    }
}

/// What RDMA devices can pin. Shared memory needs none, so a small limit is told but breaks
/// nothing.
fn locked_memory() -> Check {
    let describe = |bytes| match bytes {
        RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("{} KiB", bytes / 1024),
    };
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, hard)) => {
            let ok = soft == RLIM_INFINITY;
            let advice = if ok { "" } else { "; for RDMA devices: ulimit -l unlimited (shared memory needs none)" };
            let detail = format!("{} (hard limit {}){advice}", describe(soft), describe(hard));
            Check { name: "locked memory", ok, detail }
        }
        Err(errno) => Check { name: "locked memory", ok: false, detail: errno.desc().into() },
    }
}

fn print(diagnosis: &Diagnosis) {
    println!("Backends:");
    for backend in &diagnosis.backends {
        let problems = backend.problems.join("; ");
        println!("  {} {:<22} {}", mark(backend.works), backend.name, if backend.works { "works" } else { &problems });
    }
    println!("Parts:");
    for check in &diagnosis.checks {
        println!("  {} {:<22} {}", mark(check.ok), check.name, check.detail);
    }
    println!(
        "{}",
        if diagnosis.ok { "Programs can be accelerated here." } else { "Programs stay on kernel TCP here." }
    );
}

fn mark(ok: bool) -> &'static str {
    if ok {
        "ok"
    } else {
        "--"
    }
}
