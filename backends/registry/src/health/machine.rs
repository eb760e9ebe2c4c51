//! The kernel and the processor.

use std::path::Path;

use super::{read, Check, Status};

/// From this version on the kernel copies pages under DMA at a fork: a child of a process with RDMA devices cannot harm
/// it.
const COPIES_AT_FORK: (u32, u32) = (5, 12);

pub(crate) fn checks(root: &Path) -> Vec<Check> {
    vec![kernel(root), architecture()]
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

#[cfg(test)]
mod tests {
    use super::super::machine_of;
    use super::*;

    #[test]
    fn an_old_kernel_is_reported() {
        for (release, status) in [
            ("6.1.0-50-amd64", Status::Ok),
            ("5.12.3", Status::Ok),
            ("5.10.134-19.al8", Status::Warn),
            ("4.19", Status::Warn),
            ("", Status::Warn),
            ("nonsense", Status::Warn),
        ] {
            let root = machine_of(&[("proc/sys/kernel/osrelease", release)]);
            assert_eq!(kernel(root.path()).status, status, "{release:?}");
        }
    }
}
