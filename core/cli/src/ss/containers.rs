//! Processes of other network or PID namespaces, as those in containers are. Root of the host reaches all of them.
//!
//! The name of a process's socket means something in its network namespace, and has the number that the process has in its PID
//! namespace. So a thread enters the network namespace, takes the process's user as its own, because the library answers no
//! other, and connects. The thread stays in the user namespace of the host, so that nothing in the container
//! gets at it. It takes a file of a container for no more than a hint: the kernel says which process listens, and the caller checks
//! that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sched::{setns, CloneFlags};
use nix::unistd::geteuid;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

/// A table of Unix sockets is read up to this length: a container may have any number of sockets.
const TABLE_LIMIT: u64 = 64 << 20;

/// Inodes of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Namespaces {
    net: u64,
    pid: u64,
}

impl Namespaces {
    /// Those of a process, as it is named in /proc. `None` if it has ended, or may not be examined.
    fn of(process: &str) -> Option<Namespaces> {
        let inode =
            |kind| std::fs::metadata(format!("/proc/{process}/ns/{kind}")).ok().map(|namespace| namespace.ino());
        Some(Namespaces { net: inode("net")?, pid: inode("pid")? })
    }
}

/// A process of other namespaces than this one.
pub(super) struct Contained {
    pid: u32,
    namespaces: Namespaces,
    has_own_network: bool,
    status: Status,
}

/// What /proc/PID/status says.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    /// The number in its own PID namespace.
    inner: u32,
    /// Its effective user, by the number that it has here.
    user: u32,
}

impl Status {
    fn parse(text: &str) -> Option<Status> {
        let words = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::split_ascii_whitespace);
        let inner = words("NSpid:")?.next_back()?.parse().ok()?;
        let user = words("Uid:")?.nth(1)?.parse().ok()?;
        Some(Status { inner, user })
    }
}

impl Contained {
    /// `None` if the process is in this one's namespaces, has ended, or may not be examined.
    pub(super) fn find(pid: u32) -> Option<Contained> {
        let own = Namespaces::of("self")?;
        Contained::beside(own, pid)
    }

    fn beside(own: Namespaces, pid: u32) -> Option<Contained> {
        let namespaces = Namespaces::of(&pid.to_string()).filter(|namespaces| *namespaces != own)?;
        let status = Status::parse(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?;
        Some(Contained { pid, namespaces, has_own_network: namespaces.net != own.net, status })
    }

    /// The names that its socket may have, the more specific one first.
    fn names(&self) -> [String; 2] {
        let (inner, namespace) = (self.status.inner, self.namespaces.pid);
        [format!("netacc-ss/{inner}/{namespace}"), format!("netacc-ss/{inner}")]
    }

    /// Calls `connect` with each name in the process's network namespace, and as its user, until one succeeds.
    pub(super) fn reach(&self, connect: impl Fn(&str) -> Result<OwnedFd, Errno> + Sync) -> Result<OwnedFd, Errno> {
        let network = match self.has_own_network {
            true => Some(File::open(format!("/proc/{}/ns/net", self.pid)).map_err(errno)?),
            false => None,
        };
        let there = || {
            if let Some(network) = network {
                setns(network, CloneFlags::CLONE_NEWNET)?;
            }
            if geteuid().is_root() {
                // Of this thread only, which ends here.
                let user = Uid::from_raw(self.status.user);
                set_thread_res_uid(None, user, None).map_err(|error| Errno::from_raw(error.raw_os_error()))?;
            }
            let [specific, plain] = self.names();
            connect(&specific).or_else(|_| connect(&plain))
        };
        std::thread::scope(|scope| scope.spawn(there).join()).unwrap_or(Err(Errno::ECONNREFUSED))
    }
}

fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The numbers of processes in other namespaces that seem to be accelerated, for root.
pub(super) fn listeners() -> BTreeSet<u32> {
    let (Some(own), true) = (Namespaces::of("self"), geteuid().is_root()) else { return BTreeSet::new() };
    let Ok(processes) = std::fs::read_dir("/proc") else { return BTreeSet::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // By network namespace.
    let mut names: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for process in pids.filter_map(|pid| Contained::beside(own, pid)) {
        let names = names.entry(process.namespaces.net).or_insert_with(|| names_in(&table(process.pid)));
        if process.names().iter().any(|name| names.contains(name)) {
            found.insert(process.pid);
        }
    }
    found
}

/// The table of Unix sockets of a process's network namespace; empty if it cannot be read.
fn table(pid: u32) -> String {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/net/unix"));
    let _ = file.and_then(|file| file.take(TABLE_LIMIT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The names of sockets of accelerated processes.
fn names_in(table: &str) -> BTreeSet<String> {
    let names = table.lines().filter_map(|line| line.split_once(" @"));
    names.map(|(_, name)| name).filter(|name| name.starts_with("netacc-ss/")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_has_the_inner_number_and_the_effective_user() {
        let text = "Name:\tsh\nUid:\t1000\t1001\t1002\t1003\nNSpid:\t4711\t12\t1\n";
        assert_eq!(Status::parse(text), Some(Status { inner: 1, user: 1001 }));
        // A name has no line breaks that are not escaped, so no program can write such lines.
        for bad in ["", "Uid:\t0\nNSpid:\t1\n", "Uid:\t0\t0\n", "Uid:\t0\tx\nNSpid:\t1\n"] {
            assert_eq!(Status::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_is_not_in_a_container_of_its_own() {
        assert!(Contained::find(std::process::id()).is_none());
        assert!(!listeners().contains(&std::process::id()));
    }

    #[test]
    fn other_sockets_do_not_count() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18123 @netacc-ss/1/4026531836\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18126 @netacc-shm/9\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18129 /run/@netacc-ss/2\n";
        assert_eq!(names_in(table), BTreeSet::from(["netacc-ss/1/4026531836".to_owned()]));
    }
}
