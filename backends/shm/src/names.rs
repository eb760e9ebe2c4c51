//! Where processes listen, and which of them live.
//!
//! Without a shared folder a process listens at an abstract name, which belongs to its network namespace, and ends in
//! the [`Place`] of its table: so others see whether it could be in their table. In a shared folder it listens at a file
//! in the directory that has the table, because the others are in other namespaces.

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use crate::config::ShmConfig;
use crate::sys::{self, Text};
use crate::table::{Identity, Process, Suspect};

/// The first byte of a slot's lock in the table's file; byte 0 marks the file as in use.
const FIRST_LOCK: i64 = 1;

/// Where a table is that is in no shared folder: processes that join tables at different places are apart. It is known
/// before the table is opened, and stays the same when the table is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Device and inode of the folder that has the directory of the table.
    folder: (u64, u64),
    /// The group that shares the directory.
    group: Option<u32>,
}

impl Place {
    /// The place of the table in `directory`.
    pub(crate) fn of(directory: &Path, group: Option<u32>) -> io::Result<Place> {
        use std::os::unix::fs::MetadataExt;
        let folder = std::fs::metadata(directory.parent().unwrap_or(directory))?;
        Ok(Place { folder: (folder.dev(), folder.ino()), group })
    }
}

/// At most 44 bytes: less than what an abstract name has beside a process and its token.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.folder.0, self.folder.1)?;
        self.group.map_or(Ok(()), |group| write!(f, ".g{group}"))
    }
}

/// The addresses of a table's processes, as this process reaches them.
#[derive(Debug)]
pub(crate) struct Names {
    /// The directory of the sockets, in a shared folder.
    directory: Option<PathBuf>,
    place: Place,
    /// Our own PID namespace.
    pub pid_namespace: u64,
}

impl Names {
    /// Of the table in `directory`.
    pub(crate) fn new(directory: &Path, config: &ShmConfig, pid_namespace: u64) -> io::Result<Names> {
        let place = Place::of(directory, config.group)?;
        Ok(Names { directory: config.folder.is_some().then(|| directory.to_owned()), place, pid_namespace })
    }

    /// The place that the names of this table's processes end in; none in a shared folder.
    pub(crate) fn place(&self) -> Option<String> {
        self.directory.is_none().then(|| self.place.to_string())
    }

    fn of(&self, pid: u32, token: [u64; 2]) -> Text {
        match &self.directory {
            // The table's reader alone can form either name, so half of the token is enough.
            Some(directory) => Text::of(format_args!("{}/{:016x}", directory.display(), token[0])),
            None => Text::of(format_args!("netacc-shm/{pid}/{:016x}{:016x}/{}", token[0], token[1], self.place)),
        }
    }

    /// Listens at this process's own name, where the members of `group` can connect, too.
    pub(crate) fn listen(&self, token: [u64; 2], group: Option<u32>) -> io::Result<OwnedFd> {
        let name = self.of(sys::pid(), token);
        let listener = sys::listen(&name)?;
        if let (Some(gid), Some(_)) = (group, &self.directory) {
            sys::share_socket(&name, gid).inspect_err(|_| self.remove(token))?;
        }
        Ok(listener)
    }

    /// Connects to a process of the table.
    pub(crate) fn connect(&self, process: &Process) -> io::Result<OwnedFd> {
        sys::connect(&self.of(process.pid, process.token))
    }

    /// Removes the file of a process that does not listen any more. Allocates nothing.
    pub(crate) fn remove(&self, token: [u64; 2]) {
        if self.directory.is_some() {
            let _ = sys::unlink(&self.of(0, token));
        }
    }

    /// Whether the number of a socket's other end fits the process that the table names. The kernel translates numbers
    /// between PID namespaces, and has none for a process of a namespace that is not below this one: such a process is
    /// known by its user and its token alone, and only a shared folder admits it.
    pub(crate) fn fits(&self, pid: u32, process: &Process) -> bool {
        if process.pid_namespace == self.pid_namespace {
            pid == process.pid
        } else {
            self.directory.is_some()
        }
    }

    /// Whether a process of the table has ended. `file`: the table, opened anew by the caller. A process of another PID
    /// namespace cannot be looked up: it has ended when its lock is free, and counts as alive if it has no lock.
    /// Removes what the process has left in the folder. Allocates nothing.
    pub(crate) fn is_dead(&self, file: RawFd, suspect: Suspect) -> bool {
        let Suspect { slot, identity, locked } = suspect;
        let dead = if identity.pid_namespace == self.pid_namespace {
            self.has_ended(identity)
        } else {
            locked && !sys::is_in_use(file, lock_of(slot))
        };
        if dead {
            self.remove(identity.token);
        }
        dead
    }

    /// A program that was replaced by exec leaves a slot whose process lives on: no thread listens there any more.
    fn has_ended(&self, id: Identity) -> bool {
        if sys::start_time(id.pid) != Some(id.start_time) {
            return true;
        }
        let refused = |e: io::Error| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
        id.pid == sys::pid() && sys::connect(&self.of(id.pid, id.token)).is_err_and(refused)
    }
}

/// Locks a slot for this process; a mapping of `file` keeps the lock until the process has ended.
pub(crate) fn lock_slot(file: RawFd, slot: u32) -> io::Result<()> {
    sys::lock_byte(file, lock_of(slot))
}

fn lock_of(slot: u32) -> i64 {
    FIRST_LOCK + i64::from(slot)
}
