#![expect(unsafe_code, reason = "machines are tied to their lab's life between fork and exec")]
//! One QEMU.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};

use crate::accel::Accel;
use crate::client::{Session, PORTS};
use crate::error::LabError;
use crate::guest::{port_name, writable_tag, GuestConfig, ROOT_TAG};
use crate::initramfs;
use crate::provision::{module_order, Kernel, QEMU};
use crate::state::HostFiles;

/// What leads to the root file system.
const ROOT_MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// What a machine is made of.
#[derive(Clone, Debug)]
pub(crate) struct Hardware {
    pub(crate) accel: Accel,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// Packets are carried at real-time priority.
    pub(crate) real_time: bool,
    /// End the machine when this process ends, however it ends.
    pub(crate) tied: bool,
}

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
        let mut command = qemu(kernel, hardware, &files.initramfs(), &files.console(), "init");
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
        if let Some(peer) = peer {
            let ends = format!(
                "dgram,id=net0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                escaped(&files.link()),
                escaped(&peer.link())
            );
            command.args(["-netdev", &ends]);
            command.args(["-device", &format!("virtio-net-pci,netdev=net0,mac=52:54:00:99:00:0{}", files.host)]);
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
            Err(error) => Err(hopeless().unwrap_or(error)),
        }
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets it go on without this process.
    pub(crate) fn release(self) {
        drop(self.child);
    }

    /// Switches it off in order, or not, if that takes too long.
    pub(crate) fn switch_off(&mut self, grace: Duration) {
        // If it does not obey there is nothing left to do but the same.
        let _ = Session::open(&self.files).and_then(|session| session.power_off(grace));
        self.kill();
    }
}

/// Switches off a machine that another process started. True when it is off.
pub(crate) fn switch_off(files: &HostFiles, grace: Duration) -> bool {
    if Session::open(files).and_then(|session| session.power_off(grace)).is_err() {
        quit(files);
    }
    gone_by(files, Instant::now() + grace)
}

/// Waits until all that this process has started has ended, or until that has taken too long.
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

/// Boots `kernel` with KVM to a process that only says so, for at most `time`.
pub(crate) fn probe(kernel: &Kernel, folder: &Path, console: &Path, time: Duration) -> Result<(), LabError> {
    let initial = folder.join("initramfs");
    let program = own_program()?;
    initramfs::write(&initial, &program, &[], b"{}")?;
    let hardware = Hardware { accel: Accel::Kvm, cpus: 1, memory_mib: 256, real_time: false, tied: true };
    let mut child = spawn(&mut qemu(kernel, &hardware, &initial, console, "probe"), &hardware)?;
    let deadline = Instant::now() + time;
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    Ok(())
}

/// The program that a guest runs: this one.
pub(crate) fn own_program() -> Result<PathBuf, LabError> {
    std::env::current_exe().map_err(LabError::io("finding this program"))
}

fn qemu(kernel: &Kernel, hardware: &Hardware, initial: &Path, console: &Path, role: &str) -> Command {
    let mut command = Command::new(QEMU);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35"]);
    command.args(match hardware.accel {
        Accel::Kvm => ["-accel", "kvm", "-cpu", "host"],
        Accel::Tcg => ["-accel", "tcg", "-cpu", "max"],
    });
    command.args(["-smp", &processors(hardware.cpus), "-m", &hardware.memory_mib.to_string()]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initial);
    // Mitigations would guard nothing here, and are dear in emulation.
    let line = format!(
        "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on rdinit={} -- lab-guest {role}",
        initramfs::INIT
    );
    command.args(["-append", &line]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The processors of a machine, and room for one more that never comes. QEMU takes a machine that can have but one for one
/// whose memory nobody else looks at, and translates its locked instructions and barriers into plain ones; but a thread of
/// QEMU's looks at the queues of the virtual Ethernet. There a kick or an interrupt is lost then, now and then, and with it
/// the network. (QEMU 7.2, accel/tcg/tcg-accel-ops-mttcg.c: `tcg_cpu_init_cflags(cpu, max_cpus > 1)`; the part of it that
/// later versions repaired is in `tcg_gen_mb`.)
fn processors(count: u32) -> String {
    format!("{count},maxcpus={}", count.saturating_add(1))
}

fn spawn(command: &mut Command, hardware: &Hardware) -> Result<Child, LabError> {
    // Ctrl-C is for the lab, which ends its machines itself.
    command.process_group(0);
    let (real_time, tied) = (hardware.real_time, hardware.tied);
    // SAFETY: system calls that touch no other memory, as is allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if real_time {
                favour_main_loop()?;
            }
            if tied {
                set_pdeathsig(Signal::SIGKILL)?;
            }
            Ok(())
        });
    }
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if real_time => {
            LabError::Usage("--real-time: not permitted; it needs CAP_SYS_NICE, or RLIMIT_RTPRIO of 1".into())
        }
        _ => LabError::io(QEMU)(error),
    })
}

/// Lets this thread run as soon as it wakes up, and those that it starts like any other.
///
/// QEMU's first thread carries the packets. A guest that polls has its processor's thread run without an end, and where
/// there are no more processors than guests the scheduler leaves the first one waiting until the other's slice is over:
/// milliseconds in a round trip of half a one.
fn favour_main_loop() -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_FIFO as u32,
        sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
        sched_nice: 0,
        sched_priority: 1,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the attributes are valid for the call.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn socket(id: &str, path: &Path) -> String {
    format!("socket,id={id},path={},server=on,wait=off", escaped(path))
}

fn export(command: &mut Command, tag: &str, folder: &Path, options: &str) {
    let device = format!("local,id={tag},path={},security_model=none,multidevs=remap{options}", escaped(folder));
    command.args(["-fsdev", &device, "-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
}

/// A path within an option of QEMU's.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
