//! The kernel, shared memory, and what a process may have.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};

use super::{names, read, Check, Status};

/// From this one on the kernel copies pages under DMA at a fork: a child of a process with RDMA devices cannot harm it.
const COPIES_AT_FORK: (u32, u32) = (5, 12);

pub(super) fn checks(root: &Path) -> Vec<Check> {
    let locked = locked_memory(has_rdma(root), getrlimit(Resource::RLIMIT_MEMLOCK));
    vec![kernel(root), architecture(), shared_memory(), locked, descriptors(getrlimit(Resource::RLIMIT_NOFILE))]
}

/// Whether the kernel has an RDMA device.
fn has_rdma(root: &Path) -> bool {
    !names(&root.join("sys/class/infiniband")).is_empty()
}

fn kernel(root: &Path) -> Check {
    let release = read(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= COPIES_AT_FORK => Check::ok("kernel", release),
        _ => Check::not(
            Status::Warn,
            "kernel",
            format!("'{release}': before 5.12, programs that fork must not use RDMA devices"),
            "a newer kernel, or NACC_BACKEND=shm for programs that fork",
        ),
    }
}

fn architecture() -> Check {
    match nix::sys::utsname::uname() {
        Ok(name) => Check::ok("architecture", name.machine().to_string_lossy().into_owned()),
        Err(errno) => Check::not(Status::Warn, "architecture", errno.desc(), "report this"),
    }
}

fn shared_memory() -> Check {
    match tempfile::tempfile_in("/dev/shm") {
        Ok(_) => Check::ok("/dev/shm", "writable"),
        Err(error) => {
            let fix = "mount -t tmpfs tmpfs /dev/shm; processes of one host find each other there";
            Check::not(Status::Fail, "/dev/shm", error.to_string(), fix)
        }
    }
}

/// A limit of this process, and how far it may be raised.
type Limit = Result<(u64, u64), Errno>;

/// What RDMA devices can pin. Shared memory needs none, so a small limit matters only where there is a device.
fn locked_memory(matters: bool, limit: Limit) -> Check {
    let describe = |bytes| match bytes {
        RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("{} KiB", bytes / 1024),
    };
    match limit {
        Ok((RLIM_INFINITY, _)) => Check::ok("locked memory", "unlimited"),
        Ok((soft, hard)) => {
            let finding = format!("{} (hard limit {}); shared memory needs none", describe(soft), describe(hard));
            if !matters {
                return Check::ok("locked memory", finding);
            }
            let fix =
                "ulimit -l unlimited; for a service LimitMEMLOCK=infinity; else connections beyond it stay on TCP";
            Check::not(Status::Warn, "locked memory", finding, fix)
        }
        Err(errno) => Check::not(Status::Warn, "locked memory", errno.desc(), "report this"),
    }
}

/// Links to other hosts take a quarter of them at most, about two each.
fn descriptors(limit: Limit) -> Check {
    /// About what a server with a thousand connections needs. Arbitrary.
    const FEW: u64 = 4096;
    match limit {
        Ok((soft, hard)) => {
            let links = (soft / 4).saturating_sub(16) / 2;
            let finding = format!("{soft} (hard limit {hard}): links to other hosts at a time: {links}");
            if soft >= FEW {
                return Check::ok("descriptors", finding);
            }
            let fix = "ulimit -n 65536, or several connections to a link: NACC_SOR_CONN_PER_QP";
            Check::not(Status::Warn, "descriptors", finding, fix)
        }
        Err(errno) => Check::not(Status::Warn, "descriptors", errno.desc(), "report this"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_told() {
        for (release, status) in [
            ("6.1.0-50-amd64", Status::Ok),
            ("5.12.3", Status::Ok),
            ("5.10.134-19.al8", Status::Warn),
            ("4.19", Status::Warn),
            ("", Status::Warn),
            ("nonsense", Status::Warn),
        ] {
            let root = tempfile::tempdir().expect("a folder");
            let folder = root.path().join("proc/sys/kernel");
            std::fs::create_dir_all(&folder).expect("made");
            std::fs::write(folder.join("osrelease"), release).expect("written");
            assert_eq!(kernel(root.path()).status, status, "{release:?}");
        }
    }

    #[test]
    fn locked_memory_matters_where_there_is_a_device() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(!has_rdma(root.path()));
        std::fs::create_dir_all(root.path().join("sys/class/infiniband/rxe0")).expect("made");
        assert!(has_rdma(root.path()));
        let little = Ok((64 << 10, RLIM_INFINITY));
        let check = locked_memory(true, little);
        assert_eq!((check.status, check.finding.starts_with("64 KiB (hard limit unlimited)")), (Status::Warn, true));
        assert!(check.fix.as_deref().is_some_and(|fix| fix.contains("ulimit -l unlimited")), "{check:?}");
        assert_eq!(locked_memory(false, little).status, Status::Ok);
        assert_eq!(locked_memory(true, Ok((RLIM_INFINITY, RLIM_INFINITY))).status, Status::Ok);
        assert_eq!(locked_memory(true, Err(Errno::EPERM)).status, Status::Warn);
    }

    #[test]
    fn few_descriptors_are_told_with_the_links_that_they_are_enough_for() {
        let few = descriptors(Ok((1024, 1 << 20)));
        assert_eq!((few.status, few.finding.contains("links to other hosts at a time: 120")), (Status::Warn, true));
        assert!(few.fix.as_deref().is_some_and(|fix| fix.contains("ulimit -n")), "{few:?}");
        assert!(descriptors(Ok((20, 20))).finding.ends_with("at a time: 0"));
        let enough = descriptors(Ok((4096, 4096)));
        assert_eq!((enough.status, enough.fix), (Status::Ok, None));
        assert_eq!(descriptors(Err(Errno::EPERM)).status, Status::Warn);
    }
}
