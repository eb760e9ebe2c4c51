#![expect(unsafe_code, reason = "machines are tied to their lab's life between fork and exec")]
//! The command line of QEMU, and its start.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::accel::Accel;
use crate::emulator::Emulator;
use crate::error::LabError;
use crate::initramfs;
use crate::provision::{Kernel, QEMU};

/// The hardware of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Hardware {
    pub(crate) accel: Accel,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// Another process reads and writes the memory: the one with the functions.
    pub(crate) shared_memory: bool,
    /// Packets are carried at real-time priority.
    pub(crate) real_time: bool,
    /// End the machine when this process ends, however it ends.
    pub(crate) tied: bool,
}

/// The program that a guest runs: this one.
pub(crate) fn own_program() -> Result<PathBuf, LabError> {
    std::env::current_exe().map_err(LabError::io("finding this program"))
}

/// The command line of a machine, without its devices. `role`: what the first process of the guest does.
pub(crate) fn qemu(
    kernel: &Kernel,
    emulator: &Emulator,
    hardware: &Hardware,
    initial: &Path,
    console: &Path,
    role: &str,
) -> Command {
    let mut command = emulator.command();
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    if hardware.shared_memory {
        let memory = format!("memory-backend-memfd,id=ram,size={}M,share=on", hardware.memory_mib);
        command.args(["-machine", "q35,memory-backend=ram", "-object", &memory]);
    } else {
        command.args(["-machine", "q35"]);
    }
    command.args(match hardware.accel {
        Accel::Kvm => ["-accel", "kvm", "-cpu", "host"],
        Accel::Tcg | Accel::Counted => ["-accel", "tcg", "-cpu", "max"],
    });
    if hardware.accel == Accel::Counted {
        // 2^3 ns an instruction, about what emulation reaches on an idle machine: idle hosts still wait in real time.
        command.args(["-icount", "shift=3"]);
    }
    command.args(["-smp", &processors(hardware.cpus), "-m", &hardware.memory_mib.to_string()]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initial);
    // Mitigations would protect nothing here, and are slow in emulation.
    let line = format!(
        "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on rdinit={} -- lab-guest {role}",
        initramfs::INIT
    );
    command.args(["-append", &line]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The processors of a machine, and room for one more that is never added. QEMU assumes that no other thread reads the
/// memory of a machine with at most one processor, and translates its locked instructions and barriers into plain ones.
/// But a thread of QEMU reads the queues of the virtual Ethernet. Then a kick or an interrupt is lost from time to
/// time, and the network stops. (QEMU 7.2, accel/tcg/tcg-accel-ops-mttcg.c: `tcg_cpu_init_cflags(cpu, max_cpus > 1)`;
/// the part of it that later versions repaired is in `tcg_gen_mb`.)
fn processors(count: u32) -> String {
    format!("{count},maxcpus={}", count.saturating_add(1))
}

/// Starts a machine.
pub(crate) fn spawn(command: &mut Command, hardware: &Hardware) -> Result<Child, LabError> {
    spawn_apart(command, hardware.real_time, hardware.tied).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if hardware.real_time => {
            LabError::Usage("--real-time: not permitted; it needs CAP_SYS_NICE, or RLIMIT_RTPRIO of 1".into())
        }
        _ => LabError::io(QEMU)(error),
    })
}

/// Starts a process of a lab. `tied`: it ends when this thread's process ends, however that ends.
pub(crate) fn spawn_apart(command: &mut Command, real_time: bool, tied: bool) -> io::Result<Child> {
    // Ctrl-C must reach only the lab, which ends its processes itself.
    command.process_group(0);
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
    command.spawn()
}

/// Lets this thread run as soon as it wakes up, and those that it starts like any other.
///
/// QEMU's first thread carries the packets. If a guest polls, the thread of its processor never sleeps. On a machine
/// with no more processors than guests, the scheduler then lets the first thread wait until the other's time slice is
/// over. That adds milliseconds to a round trip of half a millisecond.
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

/// A unix socket that QEMU listens on, as an option of QEMU's.
pub(crate) fn socket(id: &str, path: &Path) -> String {
    format!("socket,id={id},path={},server=on,wait=off", escaped(path))
}

/// Gives the machine a folder of ours over 9p.
pub(crate) fn export(command: &mut Command, tag: &str, folder: &Path, options: &str) {
    let device = format!("local,id={tag},path={},security_model=none,multidevs=remap{options}", escaped(folder));
    command.args(["-fsdev", &device, "-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
}

/// A path within an option of QEMU's.
pub(crate) fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
