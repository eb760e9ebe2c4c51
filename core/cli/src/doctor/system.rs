//! The kernel, shared memory, and what a process may have.

use std::path::Path;

use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};

use super::{names, read, Check, Status};

/// From this one on the kernel copies pages under DMA at a fork: a child of a process with RDMA devices cannot harm it.
const COPIES_AT_FORK: (u32, u32) = (5, 12);

pub(super) fn checks(root: &Path) -> Vec<Check> {
    vec![kernel(root), architecture(), shared_memory(), locked_memory(has_rdma(root)), descriptors()]
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

/// What RDMA devices can pin. Shared memory needs none, so a small limit matters only where there is a device.
fn locked_memory(matters: bool) -> Check {
    let describe = |bytes| match bytes {
        RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("{} KiB", bytes / 1024),
    };
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
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
fn descriptors() -> Check {
    /// About what a server with a thousand connections needs. Arbitrary.
    const FEW: u64 = 4096;
    match getrlimit(Resource::RLIMIT_NOFILE) {
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
    }
}
