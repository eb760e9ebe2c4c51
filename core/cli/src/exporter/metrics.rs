//! Snapshots as OpenMetrics. The names and labels are an interface: dashboards refer to them.

use std::fmt;

use netacc_config::stats::Snapshot;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::processes::{connections, path_name};

pub(super) type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge>;

/// All metrics, of which each process has its own series.
#[derive(Default)]
struct Metrics {
    processes: Gauges,
    bytes: Counters,
    messages: Counters,
    events: Counters,
    fallbacks: Counters,
    connections: Gauges,
    connection_bytes: Gauges,
    links: Gauges,
    memory: Gauges,
    answers: Family<Labels, Gauge<f64, std::sync::atomic::AtomicU64>>,
}

/// One page, with `more` metrics.
///
/// # Errors
/// Writing to memory does not fail; the encoder's type has errors all the same.
pub(super) fn encode(snapshots: &[Snapshot], more: impl FnOnce(&mut Registry)) -> Result<String, fmt::Error> {
    let metrics = Metrics::default();
    for snapshot in snapshots {
        metrics.add(snapshot);
    }
    let mut registry = metrics.registered();
    more(&mut registry);
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

impl Metrics {
    fn registered(&self) -> Registry {
        let mut registry = Registry::with_prefix("netacc");
        let r = &mut registry;
        r.register("process", "An accelerated process; always 1", self.processes.clone());
        r.register_with_unit("transferred", "Bytes of connections, by path", Unit::Bytes, self.bytes.clone());
        r.register("messages", "Messages on links", self.messages.clone());
        r.register("events", "Counters of the library, as netacc_ss -s cnt shows them", self.events.clone());
        r.register("fallbacks", "Connections that were not accelerated, by reason", self.fallbacks.clone());
        r.register("connections", "Open connections, by service, path and reason", self.connections.clone());
        let help = "Bytes so far of the connections that are open";
        r.register_with_unit("connection", help, Unit::Bytes, self.connection_bytes.clone());
        r.register("links", "Links, by device and state", self.links.clone());
        r.register("memory", "Memory and its limits, as netacc_ss -s mem shows them", self.memory.clone());
        let help = "Median time in which a service answers";
        r.register_with_unit("answer", help, Unit::Seconds, self.answers.clone());
        registry
    }

    fn add(&self, snapshot: &Snapshot) {
        let own = |more: &[(&'static str, &str)]| labels(snapshot, more);
        let about = own(&[("backend", &snapshot.backend), ("refused", &snapshot.refused)]);
        self.processes.get_or_create(&about).set(1);
        for (name, count) in snapshot.cnt.iter().flatten() {
            match moved(name) {
                Some(("bytes", direction, path)) => {
                    let labels = own(&[("direction", direction), ("path", path)]);
                    self.bytes.get_or_create(&labels).inc_by(*count);
                }
                Some((_, direction, _)) => {
                    self.messages.get_or_create(&own(&[("direction", direction)])).inc_by(*count);
                }
                None => {
                    self.events.get_or_create(&own(&[("event", name)])).inc_by(*count);
                }
            }
        }
        for (reason, count) in snapshot.reasons.iter().flatten() {
            self.fallbacks.get_or_create(&own(&[("reason", reason)])).inc_by(*count);
        }
        for (kind, value) in snapshot.mem.iter().flatten() {
            self.memory.get_or_create(&own(&[("kind", kind)])).set(i64::try_from(*value).unwrap_or(i64::MAX));
        }
        for link in snapshot.qp.iter().flatten() {
            self.links.get_or_create(&own(&[("backend", &link.backend), ("state", &link.state)])).inc();
        }
        self.add_connections(snapshot);
    }

    fn add_connections(&self, snapshot: &Snapshot) {
        let own = |more: &[(&'static str, &str)]| labels(snapshot, more);
        for (port, socket) in connections(snapshot) {
            let port = port.to_string();
            let path = path_name(socket.path);
            let labels = own(&[("port", &port), ("path", path), ("reason", &socket.reason)]);
            self.connections.get_or_create(&labels).inc();
            let moved = [
                ("tx", "link", socket.tx_bytes_link),
                ("rx", "link", socket.rx_bytes_link),
                ("tx", "tcp", socket.tx_bytes_tcp),
                ("rx", "tcp", socket.rx_bytes_tcp),
            ];
            for (direction, path, bytes) in moved {
                let labels = own(&[("port", &port), ("path", path), ("direction", direction)]);
                self.connection_bytes.get_or_create(&labels).inc_by(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            for (path, answer) in [("link", socket.answer_ns_link), ("tcp", socket.answer_ns_tcp)] {
                let Some(answer) = answer else { continue };
                self.answers.get_or_create(&own(&[("port", &port), ("path", path)])).set(answer as f64 / 1e9);
            }
        }
    }
}

/// The labels of a process, and more.
fn labels(snapshot: &Snapshot, more: &[(&'static str, &str)]) -> Labels {
    let process = [("pid", snapshot.pid.to_string()), ("program", snapshot.program.clone())];
    process.into_iter().chain(more.iter().map(|(name, value)| (*name, (*value).to_owned()))).collect()
}

/// What a counter such as `rx_bytes_link` counts: bytes or messages, the direction, the path.
fn moved(name: &str) -> Option<(&str, &str, &str)> {
    let mut parts = name.split('_');
    let (direction, what, path) = (parts.next()?, parts.next()?, parts.next()?);
    let known = matches!(direction, "rx" | "tx") && matches!(what, "bytes" | "msgs") && matches!(path, "link" | "tcp");
    (known && parts.next().is_none()).then_some((what, direction, path))
}

#[cfg(test)]
mod tests {
    use netacc_config::stats::SocketStats;

    use super::*;

    #[test]
    fn counters_and_connections_have_labels() {
        let socket = SocketStats {
            local: "1.1.1.1:5000".into(),
            remote: "1.1.1.2:80".into(),
            reason: "shared \"x\"\n".into(),
            tx_bytes_tcp: 7,
            answer_ns_tcp: Some(1_500_000),
            ..SocketStats::default()
        };
        let cnt = [("rx_bytes_link", 5), ("tx_msgs_link", 6), ("links_failed", 2)];
        let snapshot = Snapshot {
            pid: 9,
            program: "p".into(),
            cnt: Some(cnt.map(|(name, count)| (name.to_owned(), count)).into()),
            sock: Some(vec![socket.clone(), socket]),
            ..Snapshot::default()
        };
        let page = encode(&[snapshot], |_| {}).expect("memory");
        for line in [
            r#"netacc_transferred_bytes_total{pid="9",program="p",direction="rx",path="link"} 5"#,
            r#"netacc_messages_total{pid="9",program="p",direction="tx"} 6"#,
            r#"netacc_events_total{pid="9",program="p",event="links_failed"} 2"#,
            r#"netacc_connections{pid="9",program="p",port="80",path="tcp",reason="shared \"x\"\n"} 2"#,
            r#"netacc_connection_bytes{pid="9",program="p",port="80",path="tcp",direction="tx"} 14"#,
            r#"netacc_answer_seconds{pid="9",program="p",port="80",path="tcp"} 0.0015"#,
        ] {
            assert!(page.lines().any(|got| got == line), "{line}\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
    }
}
