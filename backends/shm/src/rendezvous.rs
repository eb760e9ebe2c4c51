//! The place where the processes of a user find each other: a directory with one table, and a listening socket for
//! each.
//!
//! Invariants:
//! * the directory is ours (owner, mode, no symbolic link), so no other user can put anything in it; with an explicit
//!   group, its members can. Where another user has taken its name, it has a later one;
//! * registering and leaving happen under the table's lock, held for microseconds; a lock that cannot be taken soon
//!   makes the backend unavailable, never a hang;
//! * the last process to leave removes file and directory; one that has opened the file meanwhile detects this and
//!   starts over;
//! * a process that is killed leaves its slot behind, and the last one the directory. The last process to leave frees
//!   the slots of the dead first. A process that creates a directory first removes those of other network namespaces,
//!   which may be gone with all their processes. It removes only those of its own user (or group), and only if all
//!   processes in the table have ended;
//! * processes of another pid namespace cannot be looked up. Each process therefore keeps a lock on the table, and one on
//!   its slot, which its mapping keeps without a descriptor, and which the kernel frees when it ends;
//! * an access to a hole of a file ends the process where its file system is full. So where others may fill that, the
//!   whole table has memory before it is used.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netacc_device::{DeviceError, PeerAddress};

use crate::config::ShmConfig;
use crate::folder;
use crate::map::FileMap;
use crate::names::{self, Names};
use crate::sys::{self, c_string, FileLock};
use crate::table::{Identity, Process, Table, TABLE_BYTES};

const TABLE: &std::ffi::CStr = c"table";
/// The folder of the directories.
const PARENT: &str = "/dev/shm";
/// Files of that folder that are searched for directories left behind. Other users can put any number there.
const MOST_SIBLINGS: usize = 4096;
/// In a smaller file system the table's memory is reserved. Arbitrary: far more than containers have in `/dev/shm`, and
/// less than any host.
const SMALL_BYTES: u64 = 1 << 30;
/// Attempts to take the lock, a fifth of a millisecond each, by a process that ends. Arbitrary.
const LEAVE_TRIES: u32 = 100;

/// This process's place in the rendezvous.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    pub table: Table,
    pub slot: u32,
    pub generation: u16,
    pub token: [u64; 2],
    /// Distinguishes addresses that mean something in this network namespace only; 0 in a table of one namespace.
    pub network: u64,
    pub names: Names,
    path: CString,
    /// The table's file, to distinguish it from one that has replaced it.
    file: FileId,
    left: AtomicBool,
}

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(file: &OwnedFd) -> io::Result<FileId> {
        let st = sys::fstat(file.as_raw_fd())?;
        Ok(FileId(st.st_dev, st.st_ino))
    }
}

impl Rendezvous {
    /// Opens the rendezvous of this user (or group), creates it where needed, and listens.
    pub(crate) fn join(config: &ShmConfig) -> Result<(Rendezvous, OwnedFd), DeviceError> {
        folder::check_identity(config.group)?;
        let path = directory(config)?;
        let token = sys::random().map_err(os("getrandom"))?;
        let pid_namespace = sys::namespace("pid").map_err(os("stat of /proc/self/ns/pid"))?;
        let network = match config.folder {
            Some(_) => sys::namespace("net").map_err(os("stat of /proc/self/ns/net"))?,
            None => 0,
        };
        let names = Names::new(&path, config, pid_namespace).map_err(unavailable("rendezvous directory"))?;
        if config.folder.is_some() {
            open_directory(&path, config.group)?;
        }
        // Listen first: a registered process is always reachable.
        let listener = names.listen(token, config.group).map_err(os("listen"))?;
        match register(config, &path, &names, token) {
            Ok(Registered { table, slot, generation, file }) => {
                let (path, left) = (c_string(&path), AtomicBool::new(false));
                Ok((Rendezvous { table, slot, generation, token, network, names, path, file, left }, listener))
            }
            Err(error) => {
                names.remove(token);
                if config.folder.is_some() {
                    // Only if it is empty.
                    let _ = sys::remove_directory(&c_string(&path));
                }
                Err(error)
            }
        }
    }

    /// The process behind an address, or `None` if it cannot be one of ours. One that is not in the table, or has left it,
    /// must be of this PID namespace.
    pub(crate) fn process(&self, a: PeerAddress) -> Option<Process> {
        let [slot, pid, t0, t1] = a.0;
        let (slot, pid, token) = (slot.try_into().ok()?, pid.try_into().ok()?, [t0, t1]);
        let known = self.table.process(slot).filter(|known| known.pid == pid && known.token == token);
        Some(known.unwrap_or(Process { slot, pid, pid_namespace: self.names.pid_namespace, token }))
    }

    /// No process finds this one any more.
    pub(crate) fn hide(&self) {
        self.names.remove(self.token);
        self.table.unregister(self.slot, self.generation);
    }

    /// Our own address.
    pub(crate) fn address(&self) -> PeerAddress {
        address(&Process {
            slot: self.slot,
            pid: sys::pid(),
            pid_namespace: self.names.pid_namespace,
            token: self.token,
        })
    }

    /// Leaves; the last process takes the files along. Allocates nothing, for a process may end in a signal handler.
    pub(crate) fn leave(&self) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        self.hide();
        for _ in 0..LEAVE_TRIES {
            let Ok(dir) = sys::open_directory(&self.path) else { return };
            let Ok(file) = sys::open_existing_in(dir.as_raw_fd(), TABLE) else { return };
            // A table that has replaced ours belongs to other processes.
            if !FileId::of(&file).is_ok_and(|id| id == self.file) {
                return;
            }
            match FileLock::attempt(file) {
                Ok(lock) => {
                    let swept = self.table.free_dead(|suspect| self.names.is_dead(lock.fd(), suspect));
                    if swept.live == 0 {
                        remove(&dir, &self.path);
                    }
                    return;
                }
                Err(_) => sys::pause(Duration::from_micros(200)),
            }
        }
    }
}

/// Removes table and directory. While the caller has the table's lock, no process registers; one that waits for the
/// lock sees the link count drop. If another process has put a new table there, the directory stays.
fn remove(dir: &OwnedFd, path: &std::ffi::CStr) {
    let _ = sys::unlink_in(dir.as_raw_fd(), TABLE);
    let _ = sys::remove_directory(path);
}

/// Removes what dead processes left behind, in the directory and in those beside it, and the directories if no process
/// is left. Returns the number of freed entries.
pub(crate) fn sweep(config: &ShmConfig) -> usize {
    let Ok(path) = &directory(config) else { return 0 };
    let names = sys::namespace("pid").and_then(|namespace| Names::new(path, config, namespace));
    let Ok(names) = names else { return 0 };
    let beside = sweep_siblings(path, config.group, &names);
    if !path.exists() {
        return beside;
    }
    let Ok(Opened { table, lock, .. }) = open_locked(path, config) else { return beside };
    let swept = table.free_dead(|suspect| names.is_dead(lock.fd(), suspect));
    let stale = table.free_stale(&sys::allocated(lock.fd()));
    if swept.live == 0 {
        if config.folder.is_some() {
            remove_sockets(path);
        }
        let path = c_string(path);
        if let Ok(dir) = sys::open_directory(&path) {
            remove(&dir, &path);
        }
    }
    beside + swept.freed + stale
}

/// Removes the sockets of processes that were killed before they had registered. No process is left, and none registers.
/// A process that listens at this moment and has not registered yet stays without peers.
fn remove_sockets(path: &Path) {
    use std::os::unix::fs::FileTypeExt;
    let _number = netacc_descriptors::borrow();
    let Ok(directory) = std::fs::read_dir(path) else { return };
    let entries = directory.take(MOST_SIBLINGS).flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.for_each(|socket| drop(std::fs::remove_file(socket.path())));
}

/// Removes the directories of other network namespaces in which no process is left. Returns the number of freed
/// entries. `names`: those of the processes in `own`, whose place the siblings share.
fn sweep_siblings(own: &Path, group: Option<u32>, names: &Names) -> usize {
    let Some(parent) = own.parent() else { return 0 };
    let prefix = prefix(group);
    let _number = netacc_descriptors::borrow();
    let Ok(folder) = std::fs::read_dir(parent) else { return 0 };
    let directories = folder.take(MOST_SIBLINGS).flatten().filter(|entry| {
        let name = entry.file_name();
        name.as_bytes().strip_prefix(prefix.as_bytes()).is_some_and(is_numbered)
    });
    let others = directories.map(|entry| entry.path()).filter(|path| path != own);
    others.map(|path| sweep_abandoned(&path, names)).sum()
}

/// Whether the end of a name is a namespace's number, which another one may follow: see [`folder::not_of_others`].
fn is_numbered(end: &[u8]) -> bool {
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    end.splitn(2, |byte| *byte == b'.').all(is_number)
}

/// Removes a directory of ours if no process in its table lives. Returns the number of freed entries.
fn sweep_abandoned(path: &Path, names: &Names) -> usize {
    let path = c_string(path);
    let is_ours = |fd| sys::fstat(fd).is_ok_and(|st| st.st_uid == sys::euid());
    let Ok(dir) = sys::open_directory(&path) else { return 0 };
    if !is_ours(dir.as_raw_fd()) {
        return 0;
    }
    let Ok(file) = sys::open_existing_in(dir.as_raw_fd(), TABLE) else {
        // The process that made it was killed before it made the table. Fails if one is being made at this moment.
        return usize::from(sys::remove_directory(&path).is_ok());
    };
    let Ok(lock) = FileLock::attempt(file).map_err(drop) else { return 0 };
    let Ok(st) = sys::fstat(lock.fd()) else { return 0 };
    let regular = st.st_mode & libc::S_IFMT == libc::S_IFREG && st.st_uid == sys::euid() && st.st_nlink != 0;
    if !regular || sys::is_in_use(lock.fd(), 0) && !all_dead(&lock, st.st_size as u64, names) {
        return 0;
    }
    remove(&dir, &path);
    1
}

/// Whether every process in the table that is in use has ended: it is used then by forked children, which have no part
/// in it.
fn all_dead(lock: &FileLock, bytes: u64, names: &Names) -> bool {
    if bytes < TABLE_BYTES as u64 {
        return false;
    }
    let Ok(map) = FileMap::new(lock.fd(), TABLE_BYTES) else { return false };
    let table = Table::new(map);
    table.check() && table.free_dead(|suspect| names.is_dead(lock.fd(), suspect)).live == 0
}

/// The directory of `config`.
fn directory(config: &ShmConfig) -> Result<PathBuf, DeviceError> {
    if let Some(path) = &config.directory {
        return Ok(path.clone());
    }
    if let Some(folder) = &config.folder {
        return folder::directory_in(folder, config.group);
    }
    let namespace = sys::namespace("net").map_err(os("stat of /proc/self/ns/net"))?;
    let first = PathBuf::from(format!("{PARENT}/{}{namespace}", prefix(config.group)));
    Ok(folder::not_of_others(&first, config.group))
}

/// The beginning of the names of the directories of this user, or of the group. The network namespace follows.
fn prefix(group: Option<u32>) -> String {
    format!("{}-", folder::name(group))
}

/// A process as an opaque address.
pub(crate) fn address(p: &Process) -> PeerAddress {
    PeerAddress([u64::from(p.slot), u64::from(p.pid), p.token[0], p.token[1]])
}

/// This process in the table.
struct Registered {
    table: Table,
    slot: u32,
    generation: u16,
    file: FileId,
}

/// Takes a slot of the table.
fn register(config: &ShmConfig, path: &Path, names: &Names, token: [u64; 2]) -> Result<Registered, DeviceError> {
    let me = Identity {
        pid: sys::pid(),
        start_time: sys::start_time(sys::pid()).unwrap_or(0),
        pid_namespace: names.pid_namespace,
        token,
    };
    let Opened { table, lock, created } = open_locked(path, config)?;
    let is_dead = |suspect| names.is_dead(lock.fd(), suspect);
    let (slot, generation) = table.register(me, is_dead).ok_or(DeviceError::Exhausted { what: "process slot" })?;
    // If the kernel cannot, dead processes of other pid namespaces count as living. A slot's lock may also be kept by a
    // forked child of the process that had the slot before.
    let _ = sys::mark_in_use(lock.fd());
    if names::lock_slot(lock.fd(), slot).is_ok() {
        table.record_lock(slot, generation);
    }
    let file = FileId::of(lock.file()).map_err(os("fstat"))?;
    drop(lock);
    if created && config.directory.is_none() && config.folder.is_none() {
        sweep_siblings(path, config.group, names);
    }
    Ok(Registered { table, slot, generation, file })
}

fn os(operation: &'static str) -> impl Fn(io::Error) -> DeviceError {
    move |source| DeviceError::Os { operation, source }
}

fn unavailable(what: &'static str) -> impl Fn(io::Error) -> DeviceError {
    move |source| DeviceError::Unavailable { what, source: Some(source) }
}

/// The table, locked.
struct Opened {
    table: Table,
    lock: FileLock,
    /// It was empty.
    created: bool,
}

/// Opens (or creates) directory and table; returns with the lock held by the descriptor.
fn open_locked(path: &Path, config: &ShmConfig) -> Result<Opened, DeviceError> {
    let group = config.group;
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
        let created = st.st_size == 0;
        if (st.st_size as usize) < TABLE_BYTES {
            let small =
                config.folder.is_some() || sys::file_system_bytes(lock.fd()).map_err(os("fstatfs"))? < SMALL_BYTES;
            if !small {
                sys::truncate(lock.fd(), TABLE_BYTES as u64).map_err(os("ftruncate"))?;
            } else if let Err(error) = sys::reserve(lock.fd(), TABLE_BYTES as u64) {
                if created {
                    remove(&dir, &c_string(path));
                }
                return Err(unavailable("memory for the rendezvous table")(error));
            }
        }
        let table = Table::new(FileMap::new(lock.fd(), TABLE_BYTES).map_err(os("mmap"))?);
        if !table.check() {
            return Err(DeviceError::Unavailable { what: "a rendezvous table of this version", source: None });
        }
        return Ok(Opened { table, lock, created });
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
    let dir = sys::open_directory(&c_string(path)).map_err(unavailable("rendezvous directory"))?;
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
