//! Whether links for a service can be accepted at the port where its peers connect.

use std::net::{Ipv4Addr, TcpListener};

use netacc_device::DeviceError;
use netacc_verbs::Found;

use crate::health::{Check, Status};
use crate::remote::PORT_OFFSET;

/// The kind of port at which a process accepts links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listening {
    /// There is no device.
    Nobody,
    /// Ports of the connection manager, which TCP does not see (InfiniBand, RoCE).
    ConnectionManager,
    /// The kernel's TCP ports (iWARP).
    Tcp,
}

impl Listening {
    /// If there are several devices, any of them may be used; an unknown device may be of either kind.
    pub(super) fn of(known: &Result<Vec<Found>, DeviceError>) -> Listening {
        match known {
            Ok(devices) if devices.iter().all(|device| !device.limits().takes_tcp_port) => {
                if devices.is_empty() {
                    Listening::Nobody
                } else {
                    Listening::ConnectionManager
                }
            }
            _ => Listening::Tcp,
        }
    }
}

/// Whether links for a service can be accepted where its peers connect.
pub(super) fn check(tcp: u16, listening: Listening) -> Check {
    let name = format!("TCP port {tcp}");
    let Some(port) = tcp.checked_add(PORT_OFFSET) else {
        let fix = format!("a port up to {}: connections to this one stay on TCP", u16::MAX - PORT_OFFSET);
        return Check::not(Status::Fail, name, format!("{tcp} + {PORT_OFFSET} is no port"), fix);
    };
    match listening {
        Listening::Nobody => {
            let finding = format!("no RDMA device would accept its links, which belong at port {port}");
            Check::not(Status::Absent, name, finding, "only if other hosts are to reach it over RDMA: see above")
        }
        Listening::ConnectionManager => Check::ok(
            name,
            format!(
                "its links are accepted at port {port} of the RDMA connection manager, whichever process has the TCP \
                 port of that number; over RoCE all of them go to UDP port 4791, which firewalls must let pass"
            ),
        ),
        Listening::Tcp => match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            Ok(_) => Check::ok(
                name,
                format!("its links are accepted at TCP port {port}, which is free; firewalls must let it pass"),
            ),
            Err(error) => Check::not(
                Status::Warn,
                name,
                format!("its links are accepted at TCP port {port}: {error}"),
                format!(
                    "end what has it (ss -tlnp sport = {port}), unless that is the service; \
                     reserve it: sysctl net.ipv4.ip_local_reserved_ports={port}"
                ),
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    fn known(iwarp: bool) -> Found {
        Found { name: "x0".into(), iwarp, profile: None, attributes: Err(Errno::EACCES as i32) }
    }

    #[test]
    fn a_device_listens_at_tcp_ports_or_at_others() {
        assert_eq!(Listening::of(&Ok(Vec::new())), Listening::Nobody);
        assert_eq!(Listening::of(&Ok(vec![known(false)])), Listening::ConnectionManager);
        assert_eq!(Listening::of(&Ok(vec![known(false), known(true)])), Listening::Tcp);
        let unknown = Err(DeviceError::Unavailable { what: "libraries", source: None });
        assert_eq!(Listening::of(&unknown), Listening::Tcp);
    }

    /// Breaks if a service were reported to have no links over RoCE for a TCP port that is taken.
    #[test]
    fn a_service_has_a_port_for_links_or_a_reason_why_not() {
        assert_eq!(check(45_536, Listening::Tcp).status, Status::Fail);
        assert_eq!(check(45_536, Listening::ConnectionManager).status, Status::Fail);
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("some port is free");
        let port = taken.local_addr().expect("bound").port();
        let tcp = port.checked_sub(PORT_OFFSET).expect("the kernel's own ports begin above");
        assert_eq!(check(tcp, Listening::Tcp).status, Status::Warn, "{port} is taken");
        let roce = check(tcp, Listening::ConnectionManager);
        assert_eq!(roce.status, Status::Ok, "{port} is TCP's");
        assert!(roce.finding.contains("UDP port 4791"), "{}", roce.finding);
        assert_eq!(check(tcp, Listening::Nobody).status, Status::Absent);
        drop(taken);
        assert_eq!(check(tcp, Listening::Tcp).status, Status::Ok, "{port} is free");
    }
}
