//! Where processes listen, and which of them live.
//!
//! Without a shared folder a process listens at an abstract name, which belongs to its network namespace. In a shared
//! folder it listens at a file in the directory that has the table, because the others are in other namespaces.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use crate::sys::{self, Text};
use crate::table::{Identity, Process, Suspect};

/// The first byte of a slot's lock in the table's file; byte 0 marks the file as in use.
const FIRST_LOCK: i64 = 1;

/// The addresses of a table's processes, as this process reaches them.
#[derive(Debug)]
pub(crate) struct Names {
    /// The directory of the sockets, in a shared folder.
    directory: Option<PathBuf>,
    /// Our own PID namespace.
    pub pid_namespace: u64,
}

impl Names {
    pub(crate) fn new(directory: Option<&Path>, pid_namespace: u64) -> Names {
        Names { directory: directory.map(Path::to_owned), pid_namespace }
    }

    fn of(&self, pid: u32, token: [u64; 2]) -> Text {
        match &self.directory {
            // The table's reader alone can form either name, so half of the token is enough.
            Some(directory) => Text::of(format_args!("{}/{:016x}", directory.display(), token[0])),
            None => Text::of(format_args!("netacc-shm/{pid}/{:016x}{:016x}", token[0], token[1])),
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
