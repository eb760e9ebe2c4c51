//! The limits of a process on locked memory and descriptors.

use nix::errno::Errno;
use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};

use crate::health::{Check, Status};

/// `has_device`: the kernel has an RDMA device.
pub(super) fn checks(has_device: bool) -> [Check; 2] {
    [locked_memory(has_device, getrlimit(Resource::RLIMIT_MEMLOCK)), descriptors(getrlimit(Resource::RLIMIT_NOFILE))]
}

/// A limit of this process, and how far it may be raised.
type Limit = Result<(u64, u64), Errno>;

/// Memory that RDMA devices can pin. Shared memory needs none, so a small limit matters only where there is a device.
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
    /// About the number that a server with a thousand connections needs. Arbitrary.
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
    fn locked_memory_matters_where_there_is_a_device() {
        let little = Ok((64 << 10, RLIM_INFINITY));
        let check = locked_memory(true, little);
        assert_eq!((check.status, check.finding.starts_with("64 KiB (hard limit unlimited)")), (Status::Warn, true));
        assert!(check.fix.as_deref().is_some_and(|fix| fix.contains("ulimit -l unlimited")), "{check:?}");
        assert_eq!(locked_memory(false, little).status, Status::Ok);
        assert_eq!(locked_memory(true, Ok((RLIM_INFINITY, RLIM_INFINITY))).status, Status::Ok);
        assert_eq!(locked_memory(true, Err(Errno::EPERM)).status, Status::Warn);
    }

    #[test]
    fn few_descriptors_are_reported_with_the_number_of_links() {
        let few = descriptors(Ok((1024, 1 << 20)));
        assert_eq!((few.status, few.finding.contains("links to other hosts at a time: 120")), (Status::Warn, true));
        assert!(few.fix.as_deref().is_some_and(|fix| fix.contains("ulimit -n")), "{few:?}");
        assert!(descriptors(Ok((20, 20))).finding.ends_with("at a time: 0"));
        let enough = descriptors(Ok((4096, 4096)));
        assert_eq!((enough.status, enough.fix), (Status::Ok, None));
        assert_eq!(descriptors(Err(Errno::EPERM)).status, Status::Warn);
    }
}
