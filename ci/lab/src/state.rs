//! The labs of this user: a folder each, with the machines' sockets and consoles and a record of the machines.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::accel::Accel;
use crate::error::{last_lines, LabError};
use crate::setup::{ErdmaDriver, Rdma};

/// The virtual Ethernet joins two.
pub(crate) const MAX_HOSTS: u8 = 2;

/// How many commands can run in a guest at a time.
pub(crate) const PORTS: u8 = 8;

/// The record of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) kernel: String,
    pub(crate) accel: Accel,
    pub(crate) rdma: Rdma,
    /// The driver of eRDMA functions.
    pub(crate) driver: Option<ErdmaDriver>,
    pub(crate) hosts: Vec<HostRecord>,
    /// How long the machines took until commands could run.
    pub(crate) boot_ms: u64,
}

/// The record of one of its machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostRecord {
    pub(crate) host: u8,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) address6: String,
    pub(crate) console: PathBuf,
}

/// The folder of one lab.
#[derive(Clone, Debug)]
pub(crate) struct LabFolder {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl LabFolder {
    /// The folder of the lab `name`, which need not exist.
    ///
    /// # Errors
    /// The name is no file name, or the folder above cannot be used safely.
    pub(crate) fn of(name: &str) -> Result<LabFolder, LabError> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        // Names of unix sockets have 107 bytes at most.
        if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
            return Err(LabError::Usage(format!("'{name}': a lab's name is up to 32 letters, digits, - and _")));
        }
        Ok(LabFolder { name: name.to_owned(), path: private_root()?.join(name) })
    }

    /// All existing labs.
    pub(crate) fn all() -> Result<Vec<LabFolder>, LabError> {
        let root = private_root()?;
        let mut names: Vec<String> = fs::read_dir(&root)
            .map_err(LabError::file(&root))?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names.into_iter().map(|name| LabFolder { path: root.join(&name), name }).collect())
    }

    /// Makes the folder. Replaces one that a dead lab left.
    ///
    /// # Errors
    /// A lab of that name runs.
    pub(crate) fn create(&self) -> Result<(), LabError> {
        if self.is_alive() {
            return Err(LabError::Running(self.name.clone()));
        }
        self.remove();
        fs::create_dir(&self.path).map_err(LabError::file(&self.path))
    }

    /// Removes the folder of a lab that has ended. Files that cannot be removed do no harm.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }

    /// The files of a host.
    pub(crate) fn host(&self, host: u8) -> HostFiles {
        HostFiles { folder: self.path.clone(), host }
    }

    /// The control socket of the process with the eRDMA functions.
    pub(crate) fn control(&self) -> PathBuf {
        self.path.join("erdma.control")
    }

    /// The log of that process.
    pub(crate) fn functions_log(&self) -> PathBuf {
        self.path.join("erdma.log")
    }

    /// Whether a machine of this lab runs.
    pub(crate) fn is_alive(&self) -> bool {
        (1..=MAX_HOSTS).any(|host| self.host(host).is_alive())
    }

    pub(crate) fn write(&self, record: &Record) -> Result<(), LabError> {
        let path = self.record();
        let text = serde_json::to_vec_pretty(record).map_err(|error| LabError::file(&path)(error.into()))?;
        fs::write(&path, text).map_err(LabError::file(&path))
    }

    /// The record of a lab that runs.
    pub(crate) fn read(&self) -> Result<Record, LabError> {
        let path = self.record();
        if !self.is_alive() || !path.exists() {
            return Err(LabError::NotRunning(self.name.clone()));
        }
        let text = fs::read(&path).map_err(LabError::file(&path))?;
        serde_json::from_slice(&text).map_err(|error| LabError::file(&path)(error.into()))
    }

    fn record(&self) -> PathBuf {
        self.path.join("lab.json")
    }
}

/// The files of one machine.
#[derive(Clone, Debug)]
pub(crate) struct HostFiles {
    folder: PathBuf,
    pub(crate) host: u8,
}

impl HostFiles {
    fn file(&self, what: &str) -> PathBuf {
        self.folder.join(format!("h{}.{what}", self.host))
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.file("initramfs")
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.file("console")
    }

    /// QEMU's own output.
    pub(crate) fn complaints(&self) -> PathBuf {
        self.file("qemu")
    }

    pub(crate) fn monitor(&self) -> PathBuf {
        self.file("qmp")
    }

    pub(crate) fn link(&self) -> PathBuf {
        self.file("link")
    }

    /// The eRDMA function's socket, to which QEMU connects.
    pub(crate) fn function(&self) -> PathBuf {
        self.file("erdma")
    }

    pub(crate) fn port(&self, port: u8) -> PathBuf {
        self.file(&format!("p{port}"))
    }

    pub(crate) fn port_lock(&self, port: u8) -> PathBuf {
        self.file(&format!("p{port}.lock"))
    }

    /// Whether QEMU runs. Its monitor accepts connections as long as it does.
    pub(crate) fn is_alive(&self) -> bool {
        UnixStream::connect(self.monitor()).is_ok()
    }

    /// The last lines of the console, and of QEMU's own output.
    pub(crate) fn console_tail(&self) -> String {
        let mut text = fs::read(self.console()).unwrap_or_default();
        text.extend(fs::read(self.complaints()).unwrap_or_default());
        match last_lines(&text) {
            last if last.is_empty() => "(nothing on its console)".into(),
            last => format!("The end of its console:{last}"),
        }
    }
}

/// A folder that only this user can enter.
fn private_root() -> Result<PathBuf, LabError> {
    let uid = geteuid();
    let root = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => Path::new(&folder).join("netacc-lab"),
        _ => PathBuf::from(format!("/tmp/netacc-lab-{uid}")),
    };
    match DirBuilder::new().mode(0o700).create(&root) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(LabError::file(&root)(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&root).map_err(LabError::file(&root))?;
    if !found.is_dir() || found.uid() != uid.as_raw() || found.permissions().mode() & 0o077 != 0 {
        return Err(LabError::Missing {
            what: format!("{} belongs to another user, or other users can enter it", root.display()),
            fix: "set XDG_RUNTIME_DIR to a folder of your own".into(),
        });
    }
    Ok(root)
}
