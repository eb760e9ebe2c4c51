//! Proof that bytes went over the link, from the statistics of a process under the library.
//!
//! This is `netacc_ss`'s own protocol: the abstract Unix socket `netacc-ss/<pid>`, one line of
//! request, one JSON object until end of file. Nothing here fails a benchmark: no answer is
//! reported as no proof.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use netacc_config::stats::Snapshot;

/// Below this share of bytes on the link, a backend path's figures do not count as the backend's.
pub(crate) const ENOUGH: f64 = 0.9;

/// A larger answer is invalid.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// Payload bytes by the way they took, both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LinkBytes {
    /// Over the link.
    pub(crate) link: u64,
    /// Over the kernel's TCP connection.
    pub(crate) tcp: u64,
}

impl LinkBytes {
    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        LinkBytes { link: self.link + other.link, tcp: self.tcp + other.tcp }
    }

    /// The share that went over the link, of the counted bytes, or of the load's own count if that is higher: bytes
    /// that the library did not see did not go over the link. `None` without any bytes.
    pub(crate) fn share(self, expected: u64) -> Option<f64> {
        let all = (self.link + self.tcp).max(expected);
        (all > 0).then(|| self.link as f64 / all as f64)
    }
}

/// The statistics of one process at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Sample(Snapshot);

impl Sample {
    /// Requests the statistics of a process. `None` if it does not answer: it is not under the library, or it is gone.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Sample(query(pid)?))
    }

    /// The bytes since the process began, of open connections and closed ones: its counters have both.
    pub(crate) fn bytes(&self) -> LinkBytes {
        LinkBytes {
            link: self.count("rx_bytes_link") + self.count("tx_bytes_link"),
            tcp: self.count("rx_bytes_tcp") + self.count("tx_bytes_tcp"),
        }
    }

    fn count(&self, name: &str) -> u64 {
        self.0.cnt.as_ref().and_then(|cnt| cnt.get(name)).copied().unwrap_or(0)
    }

    /// The program's calls of `epoll_wait` since the process began.
    pub(crate) fn epoll_waits(&self) -> u64 {
        self.count("epoll_waits")
    }

    /// The same, since an earlier sample.
    pub(crate) fn epoll_waits_since(&self, earlier: &Self) -> u64 {
        self.epoll_waits().saturating_sub(earlier.epoll_waits())
    }

    /// Nanoseconds that threads have spun while they waited, since the process began.
    pub(crate) fn spun_ns(&self) -> u64 {
        self.count("spun_ns")
    }

    /// The same, since an earlier sample.
    pub(crate) fn spun_ns_since(&self, earlier: &Self) -> u64 {
        self.spun_ns().saturating_sub(earlier.spun_ns())
    }

    /// The statistics that a process wrote at its end, to the file that `NETACC_EXIT_STATS` names. `None` if there are none.
    pub(crate) fn at_exit(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        text.lines().last().and_then(|line| serde_json::from_str(line).ok()).map(Sample)
    }

    /// The datagrams since the process began, on links and by the kernel, both directions together.
    pub(crate) fn datagrams(&self) -> [u64; 2] {
        ["link", "kernel"]
            .map(|way| self.count(&format!("datagrams_sent_{way}")) + self.count(&format!("datagrams_received_{way}")))
    }

    /// The bytes since an earlier sample of the same process.
    pub(crate) fn bytes_since(&self, earlier: &Self) -> LinkBytes {
        let (now, then) = (self.bytes(), earlier.bytes());
        LinkBytes { link: now.link.saturating_sub(then.link), tcp: now.tcp.saturating_sub(then.tcp) }
    }

    /// The share of the open connections that are on links. `None` if there are no connections.
    pub(crate) fn linked(&self) -> Option<f64> {
        let connected: Vec<_> = self.0.sock.iter().flatten().filter(|sock| !sock.remote.is_empty()).collect();
        let linked = connected.iter().filter(|sock| sock.path == netacc_config::stats::Path::Link).count();
        (!connected.is_empty()).then(|| linked as f64 / connected.len() as f64)
    }

    /// The reasons why connections were not on the link: "3 peer-not-accelerated", or why there is no link at all.
    pub(crate) fn describe_reasons(&self) -> Vec<String> {
        let refused = Some(&self.0.refused).filter(|refused| !refused.is_empty()).cloned();
        let counted = self.0.reasons.iter().flatten().filter(|(_, count)| **count > 0);
        refused.into_iter().chain(counted.map(|(reason, count)| format!("{count} {reason}"))).collect()
    }
}

fn query(pid: u32) -> Option<Snapshot> {
    let address = SocketAddr::from_abstract_name(format!("netacc-ss/{pid}")).ok()?;
    let mut stream = UnixStream::connect_addr(&address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(b"GET all\n").ok()?;
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).ok()?;
    serde_json::from_slice(&answer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(json: serde_json::Value) -> Sample {
        Sample(serde_json::from_value(json).expect("a snapshot"))
    }

    /// Breaks if open connections were counted twice: the counters of the process include them already.
    #[test]
    fn the_counters_of_the_process_have_all_connections() {
        let before = sample(json!({
            "version": 1, "pid": 7,
            "cnt": {"rx_bytes_link": 10, "tx_bytes_link": 10, "rx_bytes_tcp": 5},
            "sock": [{"path": "link", "rx_bytes_link": 100, "tx_bytes_link": 1}],
        }));
        let after = sample(json!({
            "version": 1, "pid": 7,
            "cnt": {"rx_bytes_link": 200, "tx_bytes_link": 20, "rx_bytes_tcp": 5, "tx_bytes_tcp": 3},
            "sock": [{"path": "tcp", "tx_bytes_tcp": 4}],
        }));
        assert_eq!(after.bytes_since(&before), LinkBytes { link: 200, tcp: 3 });
    }

    #[test]
    fn bytes_that_were_not_counted_were_not_on_the_link() {
        let bytes = LinkBytes { link: 90, tcp: 10 };
        assert_eq!(bytes.share(0), Some(0.9));
        assert_eq!(bytes.share(180), Some(0.5));
        assert_eq!(LinkBytes::default().share(0), None);
    }

    #[test]
    fn reasons_are_counted_and_a_missing_process_has_no_sample() {
        let sample = sample(json!({"version": 1, "pid": 7, "refused": "off", "reasons": {"peer-silent": 3, "x": 0}}));
        assert_eq!(sample.describe_reasons(), ["off", "3 peer-silent"]);
        assert_eq!(sample.bytes(), LinkBytes::default());
        assert!(Sample::of(u32::MAX).is_none());
    }
}
