//! The first process: from the initial file system to the real root, and the end of the machine.

use std::ffi::CString;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use nix::kmod::{finit_module, ModuleInitFlags};
use nix::mount::{mount, MsFlags};
use nix::sys::reboot::{reboot, RebootMode};
use nix::sys::wait::{wait, WaitStatus};
use nix::unistd::{chdir, chroot, sync, Pid};

use super::{writable_tag, GuestConfig, PROBE_ANSWER, ROOT_TAG};
use crate::error::LabError;
use crate::initramfs::{CONFIG, MODULES};

/// The configuration's path for the agent.
pub(super) const AGENT_CONFIG: &str = "/run/netacc-lab.json";

pub(super) fn run() -> ! {
    only_first_process();
    match start() {
        Ok(agent) => collect_until(agent),
        // Only the console can show this error; the lab prints the console's last lines.
        Err(error) => println!("netacc-lab: {error}"),
    }
    switch_off()
}

pub(super) fn probe() -> ! {
    only_first_process();
    println!("{PROBE_ANSWER}");
    switch_off()
}

/// A user who types this command on a real machine must not have it switched off.
fn only_first_process() {
    if std::process::id() != 1 {
        eprintln!("netacc lab-guest: this is the first process of a lab's guest, and nothing else");
        std::process::exit(2);
    }
}

fn start() -> Result<Pid, LabError> {
    mount_at("dev", "/dev", "devtmpfs", MsFlags::empty(), None)?;
    mount_at("proc", "/proc", "proc", MsFlags::empty(), None)?;
    mount_at("sys", "/sys", "sysfs", MsFlags::empty(), None)?;
    let bytes = fs::read(CONFIG).map_err(LabError::file(Path::new(CONFIG)))?;
    let config: GuestConfig = serde_json::from_slice(&bytes)
        .map_err(|error| LabError::Io { operation: CONFIG.into(), source: error.into() })?;
    for position in 0..config.modules {
        load(&Path::new(MODULES).join(position.to_string()))?;
    }
    enter_root(&config)?;
    fs::write(AGENT_CONFIG, &bytes).map_err(LabError::file(Path::new(AGENT_CONFIG)))?;
    let agent = Command::new(&config.program)
        .args(["lab-guest", "agent"])
        .env_clear()
        .spawn()
        .map_err(LabError::file(&config.program))?;
    Ok(Pid::from_raw(agent.id() as i32))
}

fn load(module: &Path) -> Result<(), LabError> {
    let file = File::open(module).map_err(LabError::file(module))?;
    match finit_module(file, &CString::default(), ModuleInitFlags::empty()) {
        // Built into this kernel.
        Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
        Err(errno) => Err(LabError::io(format!("loading module {}", module.display()))(errno.into())),
    }
}

/// The machine's root below a layer in memory, so that programs can write wherever they usually do.
fn enter_root(config: &GuestConfig) -> Result<(), LabError> {
    let lower = Path::new("/lower");
    export(ROOT_TAG, lower, MsFlags::MS_RDONLY, "loose")?;
    mount_at("upper", "/upper", "tmpfs", MsFlags::empty(), Some("mode=755"))?;
    for folder in ["/upper/files", "/upper/work"] {
        fs::create_dir(folder).map_err(LabError::file(Path::new(folder)))?;
    }
    let layers = "lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work";
    mount_at("root", "/new", "overlay", MsFlags::empty(), Some(layers))?;
    for inner in ["/dev", "/proc", "/sys"] {
        mount_at(inner, &format!("/new{inner}"), "", MsFlags::MS_MOVE, None)?;
    }
    change_root("/new").map_err(|errno| LabError::io("changing the root")(errno.into()))?;
    for folder in ["/dev/pts", "/dev/shm"] {
        fs::create_dir_all(folder).map_err(LabError::file(Path::new(folder)))?;
    }
    mount_at("devpts", "/dev/pts", "devpts", MsFlags::empty(), Some("mode=620,ptmxmode=666"))?;
    mount_at("shm", "/dev/shm", "tmpfs", MsFlags::empty(), Some("mode=1777"))?;
    mount_at("run", "/run", "tmpfs", MsFlags::empty(), Some("mode=755"))?;
    for (position, folder) in config.writable.iter().enumerate() {
        // Files that both sides write are not cached.
        export(&writable_tag(position), folder, MsFlags::empty(), "mmap")?;
    }
    let version = config.module_tree.file_name().map(Path::new).unwrap_or(Path::new(""));
    let usual = Path::new("/lib/modules").join(version);
    if config.module_tree != usual {
        fs::create_dir_all(&usual).map_err(LabError::file(&usual))?;
        mount_at(&config.module_tree.to_string_lossy(), &usual.to_string_lossy(), "", MsFlags::MS_BIND, None)?;
    }
    Ok(())
}

fn change_root(to: &str) -> nix::Result<()> {
    chdir(to)?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
    chroot(".")?;
    chdir("/")
}

fn export(tag: &str, at: &Path, flags: MsFlags, cache: &str) -> Result<(), LabError> {
    let options = format!("trans=virtio,version=9p2000.L,msize=512000,cache={cache}");
    mount_at(tag, &at.to_string_lossy(), "9p", flags, Some(&options))
}

fn mount_at(what: &str, at: &str, kind: &str, flags: MsFlags, options: Option<&str>) -> Result<(), LabError> {
    mount(Some(what), at, Some(kind), flags, options)
        .map_err(|errno| LabError::io(format!("mounting {what} ({kind}) at {at}"))(errno.into()))
}

/// The first process inherits every orphan, and has to collect it.
fn collect_until(agent: Pid) {
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) if pid == agent => return,
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(_) => return,
        }
    }
}

fn switch_off() -> ! {
    sync();
    // QEMU runs with -no-reboot, so it ends here.
    let _ = reboot(RebootMode::RB_AUTOBOOT);
    // Only if the kernel refuses; the end of its first process ends it too.
    std::process::exit(1)
}
