//! The choice between KVM and software emulation, by booting a kernel.
//!
//! The presence of /dev/kvm is not enough: on virtual machines it may be of a kind on which no distribution's kernel
//! boots.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::accel::{Accel, AccelChoice};
use crate::emulator::Emulator;
use crate::error::{output, LabError};
use crate::guest::PROBE_ANSWER;
use crate::initramfs;
use crate::provision::{Kernel, Provision};
use crate::qemu::{own_program, qemu, spawn, Hardware};

/// With hardware support, a kernel that has not reached its first process by then never will.
const PROBE_TIME: Duration = Duration::from_secs(20);

/// Resolves the choice, and keeps the result until the next boot of this machine.
pub(crate) fn choose(
    choice: AccelChoice,
    provision: &Provision,
    kernel: &Kernel,
    emulator: &Emulator,
) -> Result<Accel, LabError> {
    match choice {
        AccelChoice::Kvm => return Ok(Accel::Kvm),
        AccelChoice::Tcg => return Ok(Accel::Tcg),
        AccelChoice::Counted => return Ok(Accel::Counted),
        AccelChoice::Auto => {}
    }
    if fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let qemu = output(emulator.command().arg("--version"))?;
    let situation = format!("{}\n{}\n{}", boot.trim(), String::from_utf8_lossy(&qemu).trim(), kernel.version);
    // Labs with either QEMU may follow each other, so both results are kept.
    let path = provision.cache.join(match emulator {
        Emulator::Installed => "accel.json",
        Emulator::Unpacked(_) => "accel-unpacked.json",
    });
    let cached = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Cached>(&text).ok());
    if let Some(cached) = cached.filter(|cached| cached.situation == situation) {
        return Ok(cached.accel);
    }
    provision.report("trying KVM (once; the result is kept)");
    let accel = if boots(kernel, emulator)? { Accel::Kvm } else { Accel::Tcg };
    provision.report(if accel == Accel::Kvm {
        "KVM works"
    } else {
        "KVM does not boot this kernel: software emulation"
    });
    let text = serde_json::to_vec(&Cached { situation, accel }).map_err(|error| LabError::file(&path)(error.into()))?;
    if let Err(error) = fs::write(&path, text) {
        provision.report(&format!("KVM is tried again next time: {}: {error}", path.display()));
    }
    Ok(accel)
}

#[derive(Serialize, Deserialize)]
struct Cached {
    situation: String,
    accel: Accel,
}

fn boots(kernel: &Kernel, emulator: &Emulator) -> Result<bool, LabError> {
    let folder = tempfile::tempdir().map_err(LabError::io("a temporary folder"))?;
    let console = folder.path().join("console");
    boot(kernel, emulator, folder.path(), &console)?;
    Ok(answered(&console))
}

/// Boots `kernel` with KVM to a process that only reports this.
fn boot(kernel: &Kernel, emulator: &Emulator, folder: &Path, console: &Path) -> Result<(), LabError> {
    let initial = folder.join("initramfs");
    let program = own_program()?;
    initramfs::write(&initial, &program, &[], b"{}")?;
    let hardware =
        Hardware { accel: Accel::Kvm, cpus: 1, memory_mib: 256, shared_memory: false, real_time: false, tied: true };
    let mut child = spawn(&mut qemu(kernel, emulator, &hardware, &initial, console, "probe"), &hardware)?;
    let deadline = Instant::now() + PROBE_TIME;
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    Ok(())
}

fn answered(console: &Path) -> bool {
    fs::read(console).is_ok_and(|text| String::from_utf8_lossy(&text).contains(PROBE_ANSWER))
}
