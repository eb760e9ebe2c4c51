//! KVM or software emulation: found out by booting.
//!
//! That /dev/kvm is there says little: on machines that are virtual themselves it may be of a kind that no
//! distribution's kernel boots on.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{output, LabError};
use crate::guest::PROBE_ANSWER;
use crate::machine;
use crate::provision::{Kernel, Provision, QEMU};

/// What runs the guests' instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Accel {
    Kvm,
    /// QEMU's translator: everywhere, and many times slower.
    Tcg,
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// KVM if a kernel truly boots on it
    Auto,
    /// KVM
    Kvm,
    /// Software emulation
    Tcg,
}

/// A kernel that has not reached its first process by then never will, on hardware.
const PROBE_TIME: Duration = Duration::from_secs(20);

/// Resolves the choice. What was found is kept until the next boot of this machine.
pub(crate) fn choose(choice: AccelChoice, provision: &Provision, kernel: &Kernel) -> Result<Accel, LabError> {
    match choice {
        AccelChoice::Kvm => return Ok(Accel::Kvm),
        AccelChoice::Tcg => return Ok(Accel::Tcg),
        AccelChoice::Auto => {}
    }
    if fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let qemu = output(std::process::Command::new(QEMU).arg("--version"))?;
    let situation = format!("{}\n{}\n{}", boot.trim(), String::from_utf8_lossy(&qemu).trim(), kernel.version);
    let path = provision.cache.join("accel.json");
    let known = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Known>(&text).ok());
    if let Some(known) = known.filter(|known| known.situation == situation) {
        return Ok(known.accel);
    }
    provision.say("trying KVM (once; the result is kept)");
    let accel = if boots(kernel)? { Accel::Kvm } else { Accel::Tcg };
    provision.say(if accel == Accel::Kvm { "KVM works" } else { "KVM does not boot this kernel: software emulation" });
    let text = serde_json::to_vec(&Known { situation, accel }).map_err(|error| LabError::file(&path)(error.into()))?;
    fs::write(&path, text).map_err(LabError::file(&path))?;
    Ok(accel)
}

#[derive(Serialize, Deserialize)]
struct Known {
    situation: String,
    accel: Accel,
}

fn boots(kernel: &Kernel) -> Result<bool, LabError> {
    let folder = tempfile::tempdir().map_err(LabError::io("a temporary folder"))?;
    let console = folder.path().join("console");
    machine::probe(kernel, folder.path(), &console, PROBE_TIME)?;
    Ok(answered(&console))
}

fn answered(console: &Path) -> bool {
    fs::read(console).is_ok_and(|text| String::from_utf8_lossy(&text).contains(PROBE_ANSWER))
}
