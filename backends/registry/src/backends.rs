//! The backends of this build, for the commands: a command iterates over them, and names none.

use std::path::Path;

use netacc_config::Config;
use netacc_shm::{ShmConfig, ShmDevice};

use crate::health::{machine, shm, verbs, Check, Findings};

/// A backend, for the commands.
struct Entry {
    /// Its name, as `NACC_BACKEND` takes it.
    name: &'static str,
    /// The problems that keep it from connecting two processes of this host; does not open it. `None`: it connects only
    /// hosts.
    problems_within_host: Option<fn() -> Vec<String>>,
    /// Checks its requirements below a root folder, and opens it for a moment. The numbers are TCP ports of services
    /// that other hosts are to reach.
    examine: fn(&Path, &Config, &[u16]) -> Findings,
    /// Removes what dead processes left behind; returns the number of entries.
    sweep: fn(&Config) -> usize,
}

/// In the order in which `netacc doctor` prints them.
const BACKENDS: [Entry; 2] = [
    Entry {
        name: "shm",
        problems_within_host: Some(shm::problems),
        examine: |_, config, _| shm::examine(config),
        sweep: sweep_shm,
    },
    Entry {
        name: "verbs",
        problems_within_host: None,
        examine: verbs::examine,
        // The kernel frees a dead process's objects on an RDMA device.
        sweep: |_| 0,
    },
];

/// A backend, and whether it can be used on this machine.
#[derive(Clone, Debug)]
pub struct Availability {
    /// Its name, as `NACC_BACKEND` takes it.
    pub name: &'static str,
    /// The reasons why it cannot be used here; empty when it can.
    pub problems: Vec<String>,
}

/// The backends that connect two processes of one host, each with the problems that keep it from working here. Opens
/// none.
pub fn within_host() -> Vec<Availability> {
    let availability =
        |backend: &Entry| Some(Availability { name: backend.name, problems: backend.problems_within_host?() });
    BACKENDS.iter().filter_map(availability).collect()
}

/// The result of [`examine`].
#[derive(Debug)]
pub struct Examination {
    /// All backends.
    pub backends: Vec<Availability>,
    /// The machine's checks, then each backend's.
    pub checks: Vec<Check>,
}

/// Checks the machine, and each backend on it. Loads RDMA libraries and opens devices, if the kernel has any.
///
/// `ports`: TCP ports of services that other hosts are to reach through a backend.
pub fn examine(config: &Config, ports: &[u16]) -> Examination {
    let root = Path::new("/");
    let mut examination = Examination { backends: Vec::new(), checks: machine::checks(root) };
    for backend in &BACKENDS {
        let found = (backend.examine)(root, config, ports);
        examination.backends.push(Availability { name: backend.name, problems: found.problems });
        examination.checks.extend(found.checks);
    }
    examination
}

/// Removes what dead processes left behind, of all backends; returns the number of entries.
///
/// It clears entries of this user and of the group that the configuration names, also of network namespaces in which no
/// process is left. Other users clear theirs.
pub fn sweep(config: &Config) -> usize {
    BACKENDS.iter().map(|backend| (backend.sweep)(config)).sum()
}

/// Sweeps the rendezvous of this user and of the configured group.
fn sweep_shm(config: &Config) -> usize {
    // A group that cannot be looked up cannot have been used either.
    let group = config.shm.group.as_ref().and_then(|group| group.resolve().ok().flatten());
    let groups = [None].into_iter().chain(group.map(Some));
    let folders = [None].into_iter().chain(config.shm.folder.clone().map(Some));
    let of = |group, folder| ShmDevice::sweep(&ShmConfig { group, folder, ..ShmConfig::default() });
    folders.map(|folder| groups.clone().map(|group| of(group, folder.clone())).sum::<usize>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a command offered a name that `NACC_BACKEND` does not take, or left a backend out.
    #[test]
    fn each_backend_is_examined_and_can_be_chosen_by_name() {
        let known: Vec<_> = BACKENDS.iter().map(|backend| backend.name).collect();
        for name in &known {
            let backend: netacc_config::Backend = name.parse().expect("NACC_BACKEND takes it");
            assert!(!matches!(backend, netacc_config::Backend::Auto | netacc_config::Backend::None), "{name}");
        }
        let all: Vec<_> = examine(&Config::default(), &[]).backends.iter().map(|backend| backend.name).collect();
        assert_eq!(all, known);
    }
}
