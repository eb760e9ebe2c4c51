//! The accelerated processes of this host for `netacc exporter` and `netacc top`: their answers to `netacc_ss`, and the service
//! that each connection belongs to.

use std::collections::BTreeSet;

use netacc_config::stats::{Path, Snapshot, SocketStats};

use crate::ss::{accelerated, fetch, FetchError};

/// The sections that both commands need.
const SECTIONS: &str = "cnt,mem,qp,sock";

/// Every accelerated process that the user may query, by number. One that ends meanwhile, or gives no answer, is missing.
///
/// # Errors
/// The kernel's table of Unix sockets cannot be read.
pub(crate) fn snapshots() -> Result<Vec<Snapshot>, FetchError> {
    Ok(accelerated()?.into_iter().filter_map(|(pid, _)| fetch(pid, SECTIONS).ok()).collect())
}

/// The connections of a process, each with the port of its service.
pub(crate) fn connections(snapshot: &Snapshot) -> impl Iterator<Item = (u16, &SocketStats)> {
    let sockets = snapshot.sock.as_deref().unwrap_or_default();
    let listening: BTreeSet<u16> =
        sockets.iter().filter(|socket| socket.listening).filter_map(|socket| port_of(&socket.local)).collect();
    sockets.iter().filter(|socket| !socket.listening && !socket.remote.is_empty()).map(move |socket| {
        let own = port_of(&socket.local).filter(|port| listening.contains(port));
        (own.or_else(|| port_of(&socket.remote)).unwrap_or_default(), socket)
    })
}

pub(crate) fn port_of(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

/// A path in the form of labels and tables.
pub(crate) fn path_name(path: Path) -> &'static str {
    match path {
        Path::Link => "link",
        Path::Tcp => "tcp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a server's connections were counted under the ports of their clients.
    #[test]
    fn a_connection_belongs_to_the_port_of_its_service() {
        let socket = |local: &str, remote: &str, listening| SocketStats {
            local: local.into(),
            remote: remote.into(),
            listening,
            ..SocketStats::default()
        };
        let sock = vec![
            socket("0.0.0.0:6379", "", true),
            socket("10.0.0.1:6379", "10.0.0.2:50000", false),
            socket("[::1]:40000", "[::1]:5432", false),
            socket("10.0.0.1:40001", "", false),
        ];
        let snapshot = Snapshot { sock: Some(sock), ..Snapshot::default() };
        assert_eq!(connections(&snapshot).map(|(port, _)| port).collect::<Vec<_>>(), [6379, 5432]);
    }
}
