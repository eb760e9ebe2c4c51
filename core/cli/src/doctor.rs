//! `netacc doctor`: what this machine can do, what stands in the way, and what to do about it.
//!
//! It looks, opens each RDMA device for a moment, and changes nothing.

mod own;
mod rdma;
mod system;

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use netacc_config::Config;
use serde::Serialize;

use crate::bench::{available_backends, Tools};

/// Arguments of `netacc doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 if programs can be accelerated here by at least one backend; 1 if not; 2 for wrong arguments.")]
pub struct DoctorArgs {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The TCP port of a service that other hosts are to reach over RDMA: is its port for links free? (repeatable)
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<u16>,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Can programs be accelerated here at all?
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

/// What came of looking at one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Warn,
    /// It is not there, which only matters to who wants what needs it.
    Absent,
    /// Something that is wanted does not work.
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    /// What was looked at.
    name: String,
    status: Status,
    /// What was found.
    finding: String,
    /// What to do; nothing where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: impl Into<String>, finding: impl Into<String>) -> Check {
        Check { name: name.into(), status: Status::Ok, finding: finding.into(), fix: None }
    }

    fn not(status: Status, name: impl Into<String>, finding: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { name: name.into(), status, finding: finding.into(), fix: Some(fix.into()) }
    }
}

/// Prints the diagnosis. Succeeds if at least one backend works, our own files are complete, and the configuration does
/// not say that nothing is to be accelerated.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let diagnosis = diagnose(&args.ports);
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

fn diagnose(ports: &[u16]) -> Diagnosis {
    let root = Path::new("/");
    let tools = Tools::find();
    let (config, problems) = Config::load();
    let mut checks = own::files(&tools);
    let configured = own::configuration(&config, &problems);
    let allowed = configured.iter().all(|check| check.status != Status::Fail);
    checks.extend(configured);
    checks.extend(system::checks(root));
    let (rdma, devices_work) = rdma::checks(root, &config, ports);
    let rdma_problems: Vec<String> = rdma
        .iter()
        .filter(|check| matches!(check.status, Status::Absent | Status::Fail) && !check.name.starts_with("TCP port"))
        .map(|check| format!("{}: {}", check.name, check.finding))
        .collect();
    checks.extend(rdma);
    let mut backends: Vec<_> = available_backends()
        .into_iter()
        .map(|backend| BackendHealth {
            name: backend.name,
            works: backend.problems.is_empty(),
            problems: backend.problems,
        })
        .collect();
    let problems = if devices_work { Vec::new() } else { rdma_problems };
    backends.push(BackendHealth { name: "verbs", works: devices_work, problems });
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

/// A file of the machine, without the spaces around it.
fn read(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The names in a folder, in order; none where there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
