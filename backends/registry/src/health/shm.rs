//! Shared memory: the kernel features that it needs, and the place where processes find each other.

use netacc_config::Config;
use netacc_shm::ShmDevice;
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{memfd_create, MFdFlags};

use super::{Check, Findings, Status};

pub(crate) fn examine(config: &Config) -> Findings {
    let place = if config.shm.folder.is_some() { folder(config) } else { rendezvous() };
    Findings { checks: vec![place], problems: problems() }
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

/// The folder that containers share: joins and leaves it.
fn folder(config: &Config) -> Check {
    let name = "NACC_SHM_DIR";
    let joined = crate::shm_config(config).and_then(|config| Ok(ShmDevice::open(config)?));
    match joined {
        Ok(_) => Check::ok(name, "usable"),
        Err(error) => {
            let fix = "a folder of this host of at most 64 bytes, of mode 700 or 1777, with 3 MB left; see \"Run in containers\"";
            Check::not(Status::Fail, name, error.to_string(), fix)
        }
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Breaks if the doctor found nothing wrong with a folder that the library refuses.
    #[test]
    fn a_folder_is_checked_as_the_library_checks_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::default();
        config.shm.folder = Some(folder.path().to_owned());
        let status = |mode| {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).expect("ours");
            examine(&config).checks.remove(0).status
        };
        assert_eq!([0o700, 0o1777, 0o777].map(status), [Status::Ok, Status::Ok, Status::Fail]);
    }
}
