//! The conformance suite on two devices of one process, both on one address: `verbs_conformance ADDRESS [PROFILE]`.
//!
//! For the lab: the tests build it here and run it inside. Prints a line of JSON for each check.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use netacc_device::conformance::{run, Fixture, Outcome, Side};
use netacc_device::{ConnectionManager, Device, Directory};
use netacc_verbs::{discover, VerbsConfig, VerbsDevice};

struct TwoDevices([Arc<VerbsDevice>; 2]);

impl Fixture for TwoDevices {
    fn device(&self, side: Side) -> Arc<dyn Device> {
        self.0[side as usize].clone()
    }

    fn connection_manager(&self, side: Side) -> Option<Arc<dyn ConnectionManager>> {
        Some(self.0[side as usize].clone())
    }

    fn directory(&self, _: Side) -> Option<Arc<dyn Directory>> {
        None
    }

    fn progress(&mut self) {
        self.0.iter().for_each(|device| device.progress());
        // A real device, and in the lab an emulated processor that it needs for itself.
        thread::sleep(Duration::from_millis(1));
    }

    fn patience(&self) -> usize {
        5000
    }

    fn quiet_rounds(&self) -> usize {
        20
    }

    fn channel_readable(&mut self, fd: RawFd) -> Option<bool> {
        Some(readable(fd))
    }
}

#[expect(unsafe_code, reason = "poll(2)")]
fn readable(fd: RawFd) -> bool {
    let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&raw mut watched, 1, 0) == 1 }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let address: IpAddr = match arguments.next().map(|text| text.parse()) {
        Some(Ok(address)) => address,
        _ => {
            eprintln!("usage: verbs_conformance ADDRESS [native|erdma|rxe|siw|mlx5|portable]");
            return ExitCode::from(2);
        }
    };
    let mut config = VerbsConfig::new(address);
    if let Some(name) = arguments.next() {
        match serde_json::from_value(name.into()) {
            Ok(profile) => config.profile = profile,
            Err(error) => {
                eprintln!("verbs_conformance: {error}");
                return ExitCode::from(2);
            }
        }
    }
    let opened = VerbsDevice::open(&config).and_then(|a| Ok([Arc::new(a), Arc::new(VerbsDevice::open(&config)?)]));
    let devices = match opened {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("verbs_conformance: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", serde_json::json!({ "devices": discover().ok() }));
    let limits = devices[0].limits();
    println!("{}", serde_json::json!({ "capabilities": devices[0].capabilities(), "limits": limits }));
    let report = run(&mut TwoDevices(devices));
    for check in &report.checks {
        let (outcome, reason) = match &check.outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Skipped(reason) => ("skipped", reason.as_str()),
            Outcome::Failed(reason) => ("failed", reason.as_str()),
        };
        println!("{}", serde_json::json!({ "check": check.name, "outcome": outcome, "reason": reason }));
    }
    if report.failed().next().is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
