//! Finds the accelerated processes: those that listen for netacc_ss in this network namespace, and for root those in containers.

use std::collections::BTreeSet;

use netacc_config::stats::{Path, Snapshot};
use serde::Serialize;

use super::client::{fetch, owner, pid_namespace, FetchError};
use super::containers;

/// One accelerated process, or the reason why it gave no answer.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    #[serde(flatten)]
    pub(super) state: State,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum State {
    Answered {
        program: String,
        backend: String,
        /// Sockets on a link, and connected sockets that are not.
        sockets_link: usize,
        sockets_tcp: usize,
    },
    Silent {
        error: String,
    },
}

/// Every accelerated process that the user may query, by number.
///
/// # Errors
/// The kernel's table of Unix sockets cannot be read.
pub(super) fn list() -> Result<Vec<Process>, FetchError> {
    Ok(candidates()?.into_iter().filter_map(describe).collect())
}

/// Every accelerated process that the user may query, by number, with its name.
///
/// # Errors
/// The kernel's table of Unix sockets cannot be read.
pub fn accelerated() -> Result<Vec<(u32, String)>, FetchError> {
    Ok(candidates()?.into_iter().filter_map(|pid| Some((pid, fetch(pid, "mem").ok()?.program))).collect())
}

/// Numbers of processes that seem to be accelerated.
fn candidates() -> Result<BTreeSet<u32>, FetchError> {
    let table = std::fs::read("/proc/net/unix").map_err(FetchError::NoTable)?;
    let mut pids = listeners(&String::from_utf8_lossy(&table), pid_namespace());
    pids.append(&mut containers::listeners());
    Ok(pids)
}

/// Process numbers in the names of abstract sockets `netacc-ss/PID`, and `netacc-ss/PID/INODE` of a PID namespace.
fn listeners(table: &str, namespace: Option<u64>) -> BTreeSet<u32> {
    let names = table.lines().filter_map(|line| line.split_once("@netacc-ss/"));
    let pid = |name: &str| match name.split_once('/') {
        Some((pid, of)) => of.parse().is_ok_and(|of| Some(of) == namespace).then(|| pid.parse().ok()).flatten(),
        None => name.parse().ok(),
    };
    names.filter_map(|(_, name)| pid(name)).collect()
}

/// `None` for processes of other users, and those that have ended.
fn describe(pid: u32) -> Option<Process> {
    // A process that a user cannot see belongs to another user.
    owner(pid)?;
    let state = match fetch(pid, "sock") {
        Ok(snapshot) => answered(snapshot),
        Err(
            FetchError::NoSuchProcess(_)
            | FetchError::NotAccelerated(_)
            | FetchError::NotPermitted { .. }
            | FetchError::Impostor { .. },
        ) => return None,
        Err(error) => State::Silent { error: error.to_string() },
    };
    Some(Process { pid, state })
}

fn answered(snapshot: Snapshot) -> State {
    let sockets = snapshot.sock.unwrap_or_default();
    let count = |path| sockets.iter().filter(|s| s.path == path && !s.listening).count();
    State::Answered {
        sockets_link: count(Path::Link),
        sockets_tcp: count(Path::Tcp),
        program: snapshot.program,
        backend: snapshot.backend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_count_and_each_process_once() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18123 @netacc-ss/12\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 18124 @netacc-ss/12\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18125 @netacc-ss/7\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18126 @netacc-ss/x\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18131 @netacc-ss/5/4026531836\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18132 @netacc-ss/6/4026531837\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18127 @netacc-ss/99999999999\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18128 @netacc-shm/9\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18129 /run/x\n";
        assert_eq!(listeners(table, Some(4_026_531_836)).into_iter().collect::<Vec<_>>(), [5, 7, 12]);
    }
}
