//! The addresses of a stream's connection. The kernel has the local one, for a system call that connections which stay on
//! TCP do not need.
//!
//! Invariant: before bytes leave the anchor, the kernel has confirmed both addresses. A stream with another connection's
//! addresses could be put onto a link with that connection's peer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use netacc_device::FourTuple;
use netacc_proto::{Reason, Role};

/// The addresses of a connection that is adopted.
#[derive(Clone, Copy, Debug)]
pub enum Addresses {
    /// As the kernel has them.
    Known(FourTuple),
    /// The local one is that of the listener, which is the connection's own unless the kernel was told to direct other
    /// addresses to the listener.
    Likely(FourTuple),
    /// The remote one, which is this host's own: the loopback. The local one is found when the stream is promoted.
    To(SocketAddr),
}

impl From<FourTuple> for Addresses {
    fn from(tuple: FourTuple) -> Addresses {
        Addresses::Known(tuple)
    }
}

impl Addresses {
    /// The addresses, the local one with port 0 if it is not known. It is as near as the true one.
    pub fn tuple(&self) -> FourTuple {
        match *self {
            Addresses::Known(tuple) | Addresses::Likely(tuple) => tuple,
            Addresses::To(remote) => unfound(remote),
        }
    }
}

#[inline]
fn unfound(remote: SocketAddr) -> FourTuple {
    FourTuple { local: SocketAddr::new(remote.ip(), 0), remote }
}

/// The addresses of a stream.
pub(super) struct Ends {
    remote: SocketAddr,
    local: LocalEnd,
    /// The kernel has them so.
    confirmed: AtomicBool,
}

/// The local address of a stream.
enum LocalEnd {
    /// The stream was adopted with it.
    Given(SocketAddr),
    /// The kernel has it. Empty until it is found.
    InKernel(OnceLock<SocketAddr>),
}

impl LocalEnd {
    #[inline]
    fn get(&self) -> Option<&SocketAddr> {
        match self {
            LocalEnd::Given(local) => Some(local),
            LocalEnd::InKernel(found) => found.get(),
        }
    }

    /// The kernel has this one. Returns the one that the stream has from now on: the first that it had.
    fn found(&self, local: SocketAddr) -> SocketAddr {
        match self {
            LocalEnd::Given(given) => *given,
            LocalEnd::InKernel(found) => *found.get_or_init(|| local),
        }
    }
}

impl Ends {
    #[inline(always)]
    pub(super) fn new(addresses: Addresses) -> Ends {
        let (remote, local) = match addresses {
            Addresses::Known(FourTuple { local, remote }) | Addresses::Likely(FourTuple { local, remote }) => {
                (remote, LocalEnd::Given(local))
            }
            Addresses::To(remote) => (remote, LocalEnd::InKernel(OnceLock::new())),
        };
        Ends { remote, local, confirmed: AtomicBool::new(matches!(addresses, Addresses::Known(_))) }
    }

    /// The addresses, the local one with port 0 as long as it is not found.
    #[inline]
    pub(super) fn tuple(&self) -> FourTuple {
        self.local.get().map_or_else(|| unfound(self.remote), |local| FourTuple { local: *local, remote: self.remote })
    }

    #[inline]
    pub(super) fn has_local(&self) -> bool {
        self.local.get().is_some()
    }

    /// The kernel has the local one so.
    pub(super) fn found(&self, local: SocketAddr) {
        self.local.found(local);
    }

    /// Confirms them by the kernel's. An error is the reason why the stream stays there.
    pub(super) fn confirm(
        &self,
        role: Role,
        is_plain_tcp: impl FnOnce() -> bool,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Result<(), Reason> {
        if self.confirmed.load(Ordering::Acquire) {
            return Ok(());
        }
        // The owner knows the protocol of connections that it has accepted.
        if role == Role::Opener && !is_plain_tcp() {
            return Err(Reason::NotTcp);
        }
        let found = local().ok_or(Reason::UnknownStream)?;
        if self.local.found(found) != found {
            return Err(Reason::UnknownStream);
        }
        self.confirmed.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5000);
    const REMOTE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 80);
    const ELSEWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2)), 5000);

    fn confirm(ends: &Ends, role: Role, protocol: bool, local: Option<SocketAddr>) -> Result<(), Reason> {
        ends.confirm(role, || protocol, || local)
    }

    /// Breaks if a stream could leave the kernel under another connection's addresses.
    #[test]
    fn an_address_that_the_kernel_does_not_have_is_not_confirmed() {
        let likely = Ends::new(Addresses::Likely(FourTuple { local: LOCAL, remote: REMOTE }));
        assert_eq!(confirm(&likely, Role::Acceptor, true, Some(ELSEWHERE)), Err(Reason::UnknownStream));
        assert_eq!(confirm(&likely, Role::Acceptor, true, None), Err(Reason::UnknownStream));
        assert_eq!(confirm(&likely, Role::Acceptor, true, Some(LOCAL)), Ok(()));
        let known = Ends::new(Addresses::Known(FourTuple { local: LOCAL, remote: REMOTE }));
        assert_eq!(confirm(&known, Role::Opener, false, None), Ok(()), "it is not asked for");
    }

    /// Breaks if a connection of MPTCP, which the kernel has made instead of TCP, could leave the kernel.
    #[test]
    fn the_protocol_of_an_opener_is_confirmed_with_its_address() {
        let to = Ends::new(Addresses::To(REMOTE));
        assert_eq!(confirm(&to, Role::Opener, false, Some(LOCAL)), Err(Reason::NotTcp));
        assert_eq!(to.local.get(), None);
        assert_eq!(confirm(&to, Role::Opener, true, Some(LOCAL)), Ok(()));
        assert_eq!(to.local.get(), Some(&LOCAL));
        assert_eq!(confirm(&to, Role::Opener, false, None), Ok(()), "once is enough");
    }
}
