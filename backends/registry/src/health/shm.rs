//! Shared memory: the kernel features that it needs, and the place where processes find each other.

use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{memfd_create, MFdFlags};

use super::{Check, Findings, Status};

pub(crate) fn examine() -> Findings {
    Findings { checks: vec![rendezvous()], problems: problems() }
}

/// The problems that keep two processes of this host from sharing memory.
pub(crate) fn problems() -> Vec<String> {
    let mut problems = Vec::new();
    // memfd needs no /dev/shm, but both live on the kernel's tmpfs: a sandbox without it has
    // neither.
    if let Err(errno) = memfd_create(c"netacc-probe", MFdFlags::MFD_CLOEXEC) {
        problems.push(format!("memfd_create: {}", errno.desc()));
    }
    if let Err(errno) = EventFd::new() {
        problems.push(format!("eventfd: {}", errno.desc()));
    }
    problems
}

fn rendezvous() -> Check {
    match tempfile::tempfile_in("/dev/shm") {
        Ok(_) => Check::ok("/dev/shm", "writable"),
        Err(error) => {
            let fix = "mount -t tmpfs tmpfs /dev/shm; processes of one host find each other there";
            Check::not(Status::Fail, "/dev/shm", error.to_string(), fix)
        }
    }
}
