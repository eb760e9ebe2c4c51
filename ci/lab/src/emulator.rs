//! The QEMU that runs the machines: this machine's own, or a newer one in the cache.
//!
//! An eRDMA function reaches a machine over vfio-user, which QEMU has from 10.1 on. If the installed one is older, the
//! packages of a later Debian are unpacked into the cache and run with their own loader and libraries. None of them is
//! installed, and apt checks its downloads against the archive's signatures as always. Only its lists, its record of
//! installed packages and its sources are different ones, in a folder of their own.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{find_program, output, LabError};
use crate::provision::{Provision, QEMU};

/// The device through which QEMU uses a function of another process.
const VFIO_USER: &str = "vfio-user-pci";

/// The first version with it. Used in messages only, because QEMU is queried for the device itself.
const FIRST_VERSION: &str = "10.1";

/// The suites whose packages have it. They need a later C library than the previous release has. The first of the two
/// suites provides it.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const PACKAGE: &str = "qemu-system-x86";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const ARCHIVE: &str = "http://deb.debian.org/debian";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// How to start a QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Emulator {
    /// The QEMU in PATH.
    Installed,
    /// A QEMU below this folder, with all files that it needs.
    Unpacked(PathBuf),
}

impl Emulator {
    /// A QEMU that can use the functions of another process.
    ///
    /// # Errors
    /// The installed one cannot, and no other is available.
    pub(crate) fn with_vfio_user(provision: &Provision) -> Result<Emulator, LabError> {
        let unpacked = Emulator::Unpacked(provision.cache.join("qemu"));
        for known in [Emulator::Installed, unpacked.clone()] {
            if known.has_vfio_user() {
                return Ok(known);
            }
        }
        fetch(provision)?;
        if unpacked.has_vfio_user() {
            return Ok(unpacked);
        }
        Err(LabError::Missing {
            what: format!("{} was unpacked into {unpacked:?}, and has no {VFIO_USER}", SUITES[1]),
            fix: format!("install QEMU {FIRST_VERSION} or later"),
        })
    }

    /// Its command line, without options of the machine.
    pub(crate) fn command(&self) -> Command {
        let Emulator::Unpacked(root) = self else {
            return Command::new(QEMU);
        };
        let libraries = root.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        let mut path = OsString::from(&libraries);
        path.push(":");
        path.push(libraries.join("pulseaudio"));
        command.arg("--library-path").arg(path).arg(root.join("usr/bin").join(QEMU));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(data));
        }
        // Without this, QEMU would load the files of the installed one.
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }

    /// The path of its program.
    pub(crate) fn program(&self) -> PathBuf {
        match self {
            Emulator::Installed => find_program(QEMU).unwrap_or_else(|| QEMU.into()),
            Emulator::Unpacked(root) => root.join("usr/bin").join(QEMU),
        }
    }

    /// QEMU exits with success whether or not it has the device.
    fn has_vfio_user(&self) -> bool {
        let listing = self.command().args(["-device", &format!("{VFIO_USER},help")]).output();
        listing.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).contains(&format!("{VFIO_USER} options")))
    }
}

fn fetch(provision: &Provision) -> Result<(), LabError> {
    if !provision.may_install() || find_program("apt-get").is_none() {
        return Err(LabError::Missing {
            what: format!("eRDMA functions need a QEMU with {VFIO_USER} ({FIRST_VERSION} or later); this one has none"),
            fix: "install one, or run 'netacc lab setup --rdma erdma' on a Debian machine with a network".into(),
        });
    }
    let place = provision.cache.join("qemu");
    let parts = provision.cache.join("download-qemu");
    for folder in [&parts, &place] {
        let _ = fs::remove_dir_all(folder);
    }
    let apt = Apt::in_folder(&parts.join("apt"))?;
    provision.report(&format!("downloading QEMU of Debian {} (38 MB, not installed)", SUITES[1]));
    apt.run(&["update", "-qq"])?;
    apt.run(&["install", "-qq", "-y", "--download-only", "-t", SUITES[1], PACKAGE])?;
    let root = parts.join("root");
    for package in apt.downloaded()? {
        output(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root))?;
    }
    // Moved into place in one step: a process that is killed before leaves no folder that looks complete.
    fs::rename(&root, &place).map_err(LabError::file(&place))?;
    let _ = fs::remove_dir_all(&parts);
    Ok(())
}

/// An apt-get with lists, sources and state of its own, in which nothing is installed.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn in_folder(folder: &Path) -> Result<Apt, LabError> {
        for part in ["lists/partial", "archives/partial", "none"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(LabError::file(&path))?;
        }
        let archive = archive();
        let sources: String =
            SUITES.iter().map(|suite| format!("deb [signed-by={KEYRING}] {archive} {suite} main\n")).collect();
        let folder_text = folder.display();
        let configuration = format!(
            "Dir::State \"{folder_text}\";\nDir::State::status \"{folder_text}/status\";\nDir::Cache \"{folder_text}\";\n\
             Dir::Etc::sourcelist \"{folder_text}/sources.list\";\nDir::Etc::sourceparts \"{folder_text}/none\";\n\
             Dir::Etc::preferences \"{folder_text}/none/preferences\";\nDir::Etc::preferencesparts \"{folder_text}/none\";\n\
             APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n"
        );
        for (name, text) in [("sources.list", sources.as_str()), ("status", ""), ("apt.conf", &configuration)] {
            let path = folder.join(name);
            fs::write(&path, text).map_err(LabError::file(&path))?;
        }
        Ok(Apt { folder: folder.to_owned() })
    }

    fn run(&self, arguments: &[&str]) -> Result<(), LabError> {
        let mut apt = Command::new("apt-get");
        apt.args(arguments).env("APT_CONFIG", self.folder.join("apt.conf")).stdin(Stdio::null());
        output(&mut apt).map(drop)
    }

    fn downloaded(&self) -> Result<Vec<PathBuf>, LabError> {
        let folder = self.folder.join("archives");
        let files = fs::read_dir(&folder).map_err(LabError::file(&folder))?;
        let packages = files.flatten().map(|entry| entry.path());
        Ok(packages.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect())
    }
}

/// The archive of Debian that this machine uses.
fn archive() -> String {
    let listing = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"])
        .output();
    let listed = listing.map(|answer| String::from_utf8_lossy(&answer.stdout).into_owned()).unwrap_or_default();
    listed.lines().next().map_or_else(|| ARCHIVE.into(), str::to_owned)
}
