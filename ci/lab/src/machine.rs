//! One QEMU.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};

use crate::client::Session;
use crate::emulator::Emulator;
use crate::error::LabError;
use crate::guest::{port_name, writable_tag, GuestConfig, ROOT_TAG};
use crate::initramfs;
use crate::provision::{module_order, Kernel};
use crate::qemu::{escaped, export, qemu, socket, spawn, Hardware};
use crate::setup::Rdma;
use crate::state::{HostFiles, PORTS};

/// The modules that lead to the root file system.
const ROOT_MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// How long QEMU may take to end once it has closed a port.
const END_TIME: Duration = Duration::from_secs(5);

/// A machine that this process started.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) files: HostFiles,
    child: Child,
}

impl Machine {
    /// Starts it; [`wait_until_ready`](Machine::wait_until_ready) next.
    pub(crate) fn start(
        kernel: &Kernel,
        emulator: &Emulator,
        hardware: &Hardware,
        files: HostFiles,
        mut config: GuestConfig,
        peer: Option<&HostFiles>,
    ) -> Result<Machine, LabError> {
        let modules = module_order(kernel, &ROOT_MODULES)?;
        config.modules = modules.len();
        let text =
            serde_json::to_vec(&config).map_err(|error| LabError::io("the guest's configuration")(error.into()))?;
        initramfs::write(&files.initramfs(), &config.program, &modules, &text)?;
        let mut command = qemu(kernel, emulator, hardware, &files.initramfs(), &files.console(), "init");
        command.arg("-chardev").arg(socket("qmp", &files.monitor())).args(["-mon", "chardev=qmp,mode=control"]);
        command.args(["-device", "virtio-serial-pci,max_ports=16"]);
        for port in 0..PORTS {
            let name = port_name(port);
            command.arg("-chardev").arg(socket(&format!("p{port}"), &files.port(port)));
            command.args(["-device", &format!("virtserialport,chardev=p{port},name={name},nr={}", port + 1)]);
        }
        export(&mut command, ROOT_TAG, Path::new("/"), ",readonly=on");
        for (position, folder) in config.writable.iter().enumerate() {
            export(&mut command, &writable_tag(position), folder, "");
        }
        let with_function = config.rdma == Rdma::Erdma;
        let ends = match peer {
            Some(peer) => Some(format!(
                "dgram,id=net0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                escaped(&files.link()),
                escaped(&peer.link())
            )),
            // A card with nothing at the other end: the driver needs one with the function's address.
            None => with_function.then(|| "hubport,id=net0,hubid=0".into()),
        };
        if let Some(ends) = ends {
            command.args(["-netdev", &ends]);
            // No network boot.
            let card = format!("virtio-net-pci,netdev=net0,mac={},romfile=", mac(files.host));
            command.args(["-device", &card]);
        }
        if with_function {
            // Below a port of its own, as on a machine with hot plugging.
            command.args(["-device", "pcie-root-port,id=function-port,slot=1"]);
            let socket = serde_json::json!({"type": "unix", "path": files.function()});
            let function = serde_json::json!({"driver": "vfio-user-pci", "bus": "function-port", "socket": socket});
            command.args(["-device", &function.to_string()]);
        }
        let complaints = files.complaints();
        command.stderr(File::create(&complaints).map_err(LabError::file(&complaints))?);
        let child = spawn(&mut command, hardware)?;
        Ok(Machine { files, child })
    }

    /// Waits until commands can run, or until it is certain that they never will.
    pub(crate) fn wait_until_ready(&mut self, deadline: Instant) -> Result<(), LabError> {
        let host = self.files.host;
        let (files, child) = (self.files.clone(), &mut self.child);
        let problem = |why: &str| LabError::Machine { host, why: why.into(), console: files.console_tail() };
        let mut hopeless = || {
            if !matches!(child.try_wait(), Ok(None)) {
                return Some(problem("the machine went off while it came up"));
            }
            (Instant::now() >= deadline).then(|| problem("it did not come up in time (--boot-timeout)"))
        };
        // QEMU makes its sockets within milliseconds of its start.
        let session = loop {
            match Session::open(&files) {
                Ok(session) => break session,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            if let Some(reason) = hopeless() {
                return Err(reason);
            }
        };
        match session.report(&mut hopeless) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(problem(&why)),
            Err(error) => {
                // A machine that goes off closes its ports before QEMU has ended, which may write a core dump.
                let end = Instant::now() + END_TIME;
                while Instant::now() < end {
                    if let Some(reason) = hopeless() {
                        return Err(reason);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error)
            }
        }
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets it run on without this process.
    pub(crate) fn release(self) {
        drop(self.child);
    }

    /// Switches it off in order, or not, if that takes too long.
    pub(crate) fn switch_off(&mut self, grace: Duration) {
        // If it does not obey, the caller can only do the same.
        let _ = Session::open(&self.files).and_then(|session| session.power_off(grace));
        self.kill();
    }
}

/// The address of a host's Ethernet card, and of its eRDMA function: by it the driver finds the card.
pub(crate) fn mac(host: u8) -> String {
    format!("52:54:00:99:00:0{host}")
}

/// Switches off a machine that another process started. True when it is off.
pub(crate) fn switch_off(files: &HostFiles, grace: Duration) -> bool {
    if Session::open(files).and_then(|session| session.power_off(grace)).is_err() {
        quit(files);
    }
    gone_by(files, Instant::now() + grace)
}

/// Waits until all children of this process have ended, or until that has taken too long.
pub(crate) fn await_children(grace: Duration) {
    let deadline = Instant::now() + grace;
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            if Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends QEMU at once.
pub(crate) fn quit(files: &HostFiles) {
    // The monitor has to be greeted before it obeys, and hangs up when it has obeyed.
    if let Ok(mut monitor) = UnixStream::connect(files.monitor()) {
        let _ = monitor.write_all(b"{\"execute\":\"qmp_capabilities\"}{\"execute\":\"quit\"}");
        let _ = monitor.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = monitor.read_to_end(&mut Vec::new());
    }
}

fn gone_by(files: &HostFiles, deadline: Instant) -> bool {
    while files.is_alive() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
