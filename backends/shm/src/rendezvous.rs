//! Where the processes of a user find each other: a directory with one table, and a listening socket for each.
//!
//! Invariants:
//! * the directory is ours (owner, mode, no symbolic link), so nobody else can put anything in it; with an explicit
//!   group, its members can;
//! * registering and leaving happen under the table's lock, held for microseconds; a lock that cannot be had soon
//!   makes the backend unavailable, never a hang;
//! * the last to leave removes file and directory; who opened the file meanwhile notices and starts over.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use netacc_device::{DeviceError, PeerAddress};

use crate::config::ShmConfig;
use crate::map::FileMap;
use crate::sys::{self, FileLock};
use crate::table::{Identity, Process, Table, TABLE_BYTES};

const TABLE: &std::ffi::CStr = c"table";

/// This process's place in the rendezvous.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    pub table: Table,
    pub slot: u32,
    pub generation: u16,
    pub token: [u64; 2],
    path: PathBuf,
    group: Option<u32>,
}

impl Rendezvous {
    /// Opens the rendezvous of this user (or group), creates it where needed, and listens.
    pub(crate) fn join(config: &ShmConfig) -> Result<(Rendezvous, OwnedFd), DeviceError> {
        let path = directory(config).map_err(os("stat of /proc/self/ns"))?;
        let token = sys::random().map_err(os("getrandom"))?;
        // Listen first: a registered process is always reachable.
        let listener = sys::listen(&socket_name(sys::pid(), token)).map_err(os("listen"))?;
        let me = Identity {
            pid: sys::pid(),
            start_time: sys::start_time(sys::pid()).unwrap_or(0),
            pid_namespace: sys::namespace("pid").map_err(os("stat of /proc/self/ns/pid"))?,
            token,
        };
        let (table, _lock) = open_locked(&path, config.group)?;
        let is_dead = |id: Identity| is_dead(id, me.pid_namespace);
        let (slot, generation) = table.register(me, is_dead).ok_or(DeviceError::Exhausted { what: "process slot" })?;
        Ok((Rendezvous { table, slot, generation, token, path, group: config.group }, listener))
    }

    /// Our own address.
    pub(crate) fn address(&self) -> PeerAddress {
        address(&Process { slot: self.slot, pid: sys::pid(), token: self.token })
    }

    /// Leaves; the last process takes the files along.
    pub(crate) fn leave(&self) {
        self.table.unregister(self.slot, self.generation);
        sweep(&self.path, self.group);
    }
}

/// Removes what dead processes left behind, and everything if nobody is left. Returns how many things it freed.
pub(crate) fn sweep(path: &Path, group: Option<u32>) -> usize {
    if !path.exists() {
        return 0;
    }
    let Ok(ns) = sys::namespace("pid") else { return 0 };
    let Ok((table, _lock)) = open_locked(path, group) else { return 0 };
    let (live, freed) = table.sweep(|id| is_dead(id, ns));
    if live == 0 {
        if let Ok(dir) = sys::open_directory(path) {
            // While we hold the lock nobody registers; who waits for it sees the link count drop.
            let _ = sys::unlink_in(dir.as_raw_fd(), TABLE);
        }
        // Fails if somebody put a new table there: then it stays.
        let _ = std::fs::remove_dir(path);
    }
    freed
}

/// The directory that `config` means.
pub(crate) fn directory(config: &ShmConfig) -> io::Result<PathBuf> {
    if let Some(path) = &config.directory {
        return Ok(path.clone());
    }
    let net = sys::namespace("net")?;
    Ok(match config.group {
        Some(gid) => format!("/dev/shm/netacc-g{gid}-{net}").into(),
        None => format!("/dev/shm/netacc-{}-{net}", sys::euid()).into(),
    })
}

/// The abstract name at which a process listens.
pub(crate) fn socket_name(pid: u32, token: [u64; 2]) -> String {
    format!("netacc-shm/{pid}/{:016x}{:016x}", token[0], token[1])
}

/// A process as an opaque address.
pub(crate) fn address(p: &Process) -> PeerAddress {
    PeerAddress([u64::from(p.slot), u64::from(p.pid), p.token[0], p.token[1]])
}

/// The process behind an address, or `None` if it cannot be one of ours.
pub(crate) fn process(a: PeerAddress) -> Option<Process> {
    let [slot, pid, t0, t1] = a.0;
    Some(Process { slot: slot.try_into().ok()?, pid: pid.try_into().ok()?, token: [t0, t1] })
}

/// A process of another pid namespace cannot be judged from here, so it counts as alive. A program that was replaced
/// by exec leaves a slot whose process lives on: nobody listens there any more.
fn is_dead(id: Identity, pid_namespace: u64) -> bool {
    if id.pid_namespace != pid_namespace {
        return false;
    }
    if sys::start_time(id.pid) != Some(id.start_time) {
        return true;
    }
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    id.pid == sys::pid() && sys::connect(&socket_name(id.pid, id.token)).is_err_and(refused)
}

fn os(operation: &'static str) -> impl Fn(io::Error) -> DeviceError {
    move |source| DeviceError::Os { operation, source }
}

fn unavailable(what: &'static str) -> impl Fn(io::Error) -> DeviceError {
    move |source| DeviceError::Unavailable { what, source: Some(source) }
}

/// Opens (or creates) directory and table; returns with the lock held by the descriptor.
fn open_locked(path: &Path, group: Option<u32>) -> Result<(Table, FileLock), DeviceError> {
    // Bounded: about a second, only ever waited for by a process that starts or ends.
    for _ in 0..1000 {
        let dir = open_directory(path, group)?;
        let fd = match sys::open_in(dir.as_raw_fd(), TABLE, 0o600) {
            Ok(fd) => fd,
            // Removed between the two calls by the last one to leave.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(unavailable("rendezvous table")(e)),
        };
        let Ok(lock) = FileLock::attempt(fd) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let st = sys::fstat(lock.fd()).map_err(os("fstat"))?;
        if st.st_nlink == 0 {
            continue;
        }
        if st.st_mode & libc::S_IFMT != libc::S_IFREG || (group.is_none() && st.st_uid != sys::euid()) {
            return Err(DeviceError::Unavailable { what: "a rendezvous table of our own", source: None });
        }
        if st.st_uid == sys::euid() {
            let mode = if group.is_some() { 0o660 } else { 0o600 };
            sys::restrict(lock.fd(), mode, group).map_err(os("fchmod"))?;
        }
        if (st.st_size as usize) < TABLE_BYTES {
            sys::truncate(lock.fd(), TABLE_BYTES as u64).map_err(os("ftruncate"))?;
        }
        let table = Table::new(FileMap::new(lock.fd(), TABLE_BYTES).map_err(os("mmap"))?);
        if !table.check() {
            return Err(DeviceError::Unavailable { what: "a rendezvous table of this version", source: None });
        }
        return Ok((table, lock));
    }
    Err(DeviceError::Unavailable { what: "lock on the rendezvous table", source: None })
}

fn open_directory(path: &Path, group: Option<u32>) -> Result<OwnedFd, DeviceError> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(unavailable("rendezvous directory")(e)),
    }
    let dir = sys::open_directory(path).map_err(unavailable("rendezvous directory"))?;
    let st = sys::fstat(dir.as_raw_fd()).map_err(os("fstat"))?;
    let ours = st.st_uid == sys::euid();
    if let (Some(gid), true) = (group, ours) {
        sys::restrict(dir.as_raw_fd(), 0o770, Some(gid)).map_err(os("fchown"))?;
        return Ok(dir);
    }
    let fits = match group {
        Some(gid) => st.st_gid == gid && st.st_mode & 0o7 == 0,
        None => ours && st.st_mode & 0o77 == 0,
    };
    if fits {
        Ok(dir)
    } else {
        Err(DeviceError::Unavailable { what: "a rendezvous directory of our own", source: None })
    }
}
