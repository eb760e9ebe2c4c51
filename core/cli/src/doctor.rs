//! `netacc doctor`: which backends work on this machine, why the others do not, and how to fix that.
//!
//! It opens devices for a moment, and changes nothing. The registry of backends examines the machine.

mod own;
mod program;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use netacc_config::Config;
use netacc_registry::{examine, Availability, Check, Status};
use serde::Serialize;

use crate::bench::Tools;

/// Arguments of `netacc doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 if programs can be accelerated here by at least one backend; 1 if not; 2 for wrong arguments.")]
pub struct DoctorArgs {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The TCP port of a service that other hosts reach over RDMA: checks that its port for links is free (repeatable)
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<u16>,
    /// A program: how netacc_run will run it, and why
    program: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Whether programs can be accelerated here at all.
    ok: bool,
    version: &'static str,
    backends: Vec<BackendHealth>,
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct BackendHealth {
    name: &'static str,
    works: bool,
    problems: Vec<String>,
}

impl From<Availability> for BackendHealth {
    fn from(Availability { name, problems }: Availability) -> Self {
        BackendHealth { name, works: problems.is_empty(), problems }
    }
}

/// Prints the diagnosis. Succeeds if at least one backend works, our own files are complete, and the configuration does
/// not switch acceleration off.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let diagnosis = diagnose(&args.ports, args.program.as_deref());
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

fn diagnose(ports: &[u16], program: Option<&Path>) -> Diagnosis {
    let tools = Tools::find();
    let (config, problems) = Config::load();
    let mut checks = own::files(&tools);
    checks.extend(program.map(|program| program::examine(program, config.static_programs)));
    let configured = own::configuration(&config, &problems);
    let allowed = configured.iter().all(|check| check.status != Status::Fail);
    checks.extend(configured);
    let found = examine(&config, ports);
    checks.extend(found.checks);
    let backends: Vec<_> = found.backends.into_iter().map(BackendHealth::from).collect();
    let complete = tools.netacc_run.is_some() && tools.preload.is_some();
    let ok = complete && allowed && backends.iter().any(|backend| backend.works);
    Diagnosis { ok, version: env!("CARGO_PKG_VERSION"), backends, checks }
}

fn print(diagnosis: &Diagnosis) {
    println!("netacc-lab {}", diagnosis.version);
    println!("Backends:");
    for backend in &diagnosis.backends {
        let mark = if backend.works { "ok" } else { "--" };
        let text = if backend.works { "works".to_owned() } else { backend.problems.join("; ") };
        println!("  {mark} {:<24} {text}", backend.name);
    }
    println!("Findings:");
    for check in &diagnosis.checks {
        println!("  {} {:<24} {}", mark(check.status), check.name, check.finding);
        if let Some(fix) = &check.fix {
            println!("     {:<24} -> {fix}", "");
        }
    }
    println!(
        "{}",
        if diagnosis.ok { "Programs can be accelerated here." } else { "Programs stay on kernel TCP here." }
    );
}

fn mark(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Warn => " !",
        Status::Absent => "--",
        Status::Fail => "!!",
    }
}
