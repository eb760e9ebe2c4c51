//! This machine's own SoftRoCE instead of a guest's: faster, where the kernel has it and the user may use it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use nix::unistd::geteuid;

use crate::error::LabError;
use crate::setup::{self, addresses, Impairment, Rdma};

/// Whether it can be used here; if not, the reason.
pub(crate) fn obstacle(rdma: Rdma) -> Option<String> {
    let (_, kind) = rdma.names()?;
    let module = rdma.module();
    if rdma == Rdma::Erdma {
        return Some("an emulated eRDMA function is a virtual machine's".into());
    }
    if !geteuid().is_root() {
        return Some("needs root".into());
    }
    if setup::run("modprobe", &["--dry-run", "--quiet", module]).is_err() {
        return Some(format!("this kernel has no {kind} ({module})"));
    }
    None
}

/// Makes an interface with an RDMA device, runs the command, and removes both again.
pub(crate) fn run(rdma: Rdma, argv: &[OsString]) -> Result<u8, LabError> {
    if let Some(why) = obstacle(rdma) {
        return Err(LabError::Missing { what: format!("--where host: {why}"), fix: "use --where vm".into() });
    }
    let devices = Devices::make(rdma)?;
    let [address, _] = addresses(1);
    let device = rdma.names().map_or("", |(device, _)| device);
    let status = Command::new(&argv[0])
        .args(&argv[1..])
        .env("NETACC_LAB_HOST", "1")
        .env("NETACC_LAB_HOSTS", "1")
        .env("NETACC_LAB_ADDRESS", &address)
        .env("NETACC_LAB_PEER", &address)
        .env("NETACC_LAB_DEVICE", device)
        .status();
    drop(devices);
    match status {
        Ok(status) => Ok(shell_status(status)),
        Err(error) => {
            let found = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            eprintln!("netacc lab: {}: {error}", argv[0].to_string_lossy());
            Ok(found)
        }
    }
}

/// A command's status as shells have it.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// The interface and the device. Drop removes them.
struct Devices(Rdma);

impl Devices {
    fn make(rdma: Rdma) -> Result<Devices, LabError> {
        setup::veth()?;
        // From here on there is something to remove.
        let devices = Devices(rdma);
        setup::interface(1, &Impairment::default())?;
        setup::rdma(rdma, None)?;
        Ok(devices)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        setup::remove(self.0);
    }
}
