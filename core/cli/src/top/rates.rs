//! The difference of two samples.

use std::collections::HashMap;
use std::time::Instant;

use netacc_config::stats::{Path, Snapshot, SocketStats};
use serde::Serialize;

use crate::processes::{connections, path_name};

/// All processes at one moment.
pub(super) struct Sample {
    pub(super) taken: Instant,
    pub(super) snapshots: Vec<Snapshot>,
}

/// What is shown.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct View {
    pub(super) processes: Vec<Process>,
    /// The busiest first.
    pub(super) connections: Vec<Connection>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) backend: String,
    /// Connections.
    pub(super) on_link: usize,
    pub(super) on_tcp: usize,
    pub(super) link_bytes_per_s: u64,
    pub(super) tcp_bytes_per_s: u64,
    /// How often a sender had to wait for its peer's credit.
    pub(super) stalls_per_s: u64,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Connection {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) fd: i32,
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) port: u16,
    pub(super) path: &'static str,
    pub(super) reason: String,
    pub(super) rx_bytes_per_s: u64,
    pub(super) tx_bytes_per_s: u64,
}

/// A connection, as long as it lives.
type Key<'a> = (u32, i32, &'a str, &'a str);

fn key(pid: u32, socket: &SocketStats) -> Key<'_> {
    (pid, socket.fd, &socket.local, &socket.remote)
}

impl View {
    /// What has changed since `before`, with at most `most` connections.
    pub(super) fn between(before: &Sample, now: &Sample, most: usize) -> View {
        let seconds = (now.taken - before.taken).as_secs_f64();
        let rate = |old: u64, new: u64| match seconds > 0.0 {
            true => (new.saturating_sub(old) as f64 / seconds).round() as u64,
            false => 0,
        };
        let old: HashMap<u32, &Snapshot> = before.snapshots.iter().map(|old| (old.pid, old)).collect();
        let processes = now.snapshots.iter().map(|new| process(old.get(&new.pid).copied().unwrap_or(new), new, &rate));
        let old: HashMap<Key<'_>, &SocketStats> = before
            .snapshots
            .iter()
            .flat_map(|old| connections(old).map(|(_, socket)| (key(old.pid, socket), socket)))
            .collect();
        let mut busiest: Vec<Connection> = now
            .snapshots
            .iter()
            .flat_map(|new| connections(new).map(move |(port, socket)| (new, port, socket)))
            .map(|(new, port, socket)| {
                connection(new, port, old.get(&key(new.pid, socket)).copied().unwrap_or(socket), socket, &rate)
            })
            .collect();
        busiest.sort_by_key(|one| (std::cmp::Reverse(one.rx_bytes_per_s + one.tx_bytes_per_s), one.pid, one.fd));
        busiest.truncate(most);
        View { processes: processes.collect(), connections: busiest }
    }
}

fn process(old: &Snapshot, new: &Snapshot, rate: &dyn Fn(u64, u64) -> u64) -> Process {
    let sum = |snapshot: &Snapshot, wanted: &dyn Fn(&str) -> bool| -> u64 {
        snapshot.cnt.iter().flatten().filter(|(name, _)| wanted(name)).map(|(_, count)| count).sum()
    };
    let of = |wanted: &dyn Fn(&str) -> bool| rate(sum(old, wanted), sum(new, wanted));
    let on = |path: Path| connections(new).filter(|(_, socket)| socket.path == path).count();
    Process {
        pid: new.pid,
        program: new.program.clone(),
        backend: new.backend.clone(),
        on_link: on(Path::Link),
        on_tcp: on(Path::Tcp),
        link_bytes_per_s: of(&|name| matches!(name, "rx_bytes_link" | "tx_bytes_link")),
        tcp_bytes_per_s: of(&|name| matches!(name, "rx_bytes_tcp" | "tx_bytes_tcp")),
        stalls_per_s: of(&|name| name.ends_with("_stalls")),
    }
}

fn connection(
    new: &Snapshot,
    port: u16,
    old: &SocketStats,
    socket: &SocketStats,
    rate: &dyn Fn(u64, u64) -> u64,
) -> Connection {
    let rx = |socket: &SocketStats| socket.rx_bytes_link + socket.rx_bytes_tcp;
    let tx = |socket: &SocketStats| socket.tx_bytes_link + socket.tx_bytes_tcp;
    Connection {
        pid: new.pid,
        program: new.program.clone(),
        fd: socket.fd,
        local: socket.local.to_string(),
        remote: socket.remote.to_string(),
        port,
        path: path_name(socket.path),
        reason: socket.reason.to_string(),
        rx_bytes_per_s: rate(rx(old), rx(socket)),
        tx_bytes_per_s: rate(tx(old), tx(socket)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(taken: Instant, bytes: u64, stalls: u64, remotes: &[&str]) -> Sample {
        let socket = |remote: &&str| SocketStats {
            local: "1.1.1.1:50000".into(),
            remote: (*remote).into(),
            path: Path::Link,
            rx_bytes_link: bytes,
            ..SocketStats::default()
        };
        let cnt = [("rx_bytes_link", bytes), ("byte_credit_stalls", stalls)];
        let snapshot = Snapshot {
            pid: 3,
            cnt: Some(cnt.map(|(name, count)| (name.to_owned(), count)).into()),
            sock: Some(remotes.iter().map(socket).collect()),
            ..Snapshot::default()
        };
        Sample { taken, snapshots: vec![snapshot] }
    }

    // Breaks if a connection that is new had all its bytes in its first rate.
    #[test]
    fn rates_are_differences_over_time() {
        let began = Instant::now();
        let before = sample(began, 1000, 1, &["1.1.1.2:80"]);
        let now = sample(began + Duration::from_secs(2), 5000, 9, &["1.1.1.3:80", "1.1.1.2:80"]);
        let view = View::between(&before, &now, 10);
        let process = &view.processes[0];
        assert_eq!((process.link_bytes_per_s, process.stalls_per_s, process.on_link), (2000, 4, 2));
        let rates: Vec<_> = view.connections.iter().map(|one| (one.remote.as_str(), one.rx_bytes_per_s)).collect();
        assert_eq!(rates, [("1.1.1.2:80", 2000), ("1.1.1.3:80", 0)]);
        assert_eq!(View::between(&before, &now, 1).connections.len(), 1);
    }
}
