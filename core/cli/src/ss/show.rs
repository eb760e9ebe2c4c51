//! Snapshots as text for people, and as JSON. Text from a process never reaches the terminal with a
//! control character in it; in JSON those are escaped anyway.

use netacc_config::stats::{Counters, DatagramSocketStats, Path, QueuePairStats, Snapshot, SocketStats};
use netacc_config::{render_lines, KEYS};

use super::list::{Process, State};
use super::table::Lines;

/// All parts of the snapshot.
pub(super) fn snapshot(snapshot: &Snapshot, json: bool) -> String {
    if json {
        return to_json(snapshot);
    }
    let mut text = format!("process {} ({}), ", snapshot.pid, plain(&snapshot.program));
    match snapshot.refused.as_str() {
        "" => text += &format!("backend {}\n", plain(&snapshot.backend)),
        refused => text += &format!("all on TCP: {}\n", plain(refused)),
    }
    let mut section = |title: &str, body: String| {
        text += &format!("\n{title}\n{body}");
    };
    if snapshot.cfg.is_some() || !snapshot.problems.is_empty() {
        section("configuration", configuration(snapshot));
    }
    if let Some(counters) = &snapshot.cnt {
        section("counters", counters_table(counters));
    }
    if let Some(reasons) = &snapshot.reasons {
        section("connections not accelerated, by reason", counters_table(reasons));
    }
    if let Some(memory) = &snapshot.mem {
        section("memory", counters_table(memory));
    }
    if let Some(links) = &snapshot.qp {
        section("queue pairs", links_table(links));
    }
    if let Some(sockets) = &snapshot.sock {
        section("sockets", sockets_table(sockets));
    }
    if let Some(sockets) = snapshot.udp.as_deref().filter(|sockets| !sockets.is_empty()) {
        section("UDP sockets, in datagrams", datagrams_table(sockets));
    }
    text
}

/// The accelerated processes.
pub(super) fn list(processes: &[Process], json: bool) -> String {
    if json {
        return to_json(&processes);
    }
    if processes.is_empty() {
        return "no accelerated process that you may query\n".to_owned();
    }
    let mut table = Lines::new(["PID", "PROGRAM", "BACKEND", "ON LINK", "ON TCP"], &[0, 3, 4]);
    for process in processes {
        let pid = process.pid.to_string();
        table.add(match &process.state {
            State::Answered { program, backend, sockets_link, sockets_tcp } => {
                [pid, plain(program), plain(backend), sockets_link.to_string(), sockets_tcp.to_string()]
            }
            State::Silent { error } => [pid, plain(error), String::new(), String::new(), String::new()],
        });
    }
    table.render()
}

fn to_json(value: &impl serde::Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("plain data with text keys");
    text.push('\n');
    text
}

/// In the file's own format and order; unknown keys come last.
fn configuration(snapshot: &Snapshot) -> String {
    let mut values = snapshot.cfg.clone().unwrap_or_default();
    let known: Vec<_> = KEYS.iter().filter_map(|key| values.remove_entry(key.name)).collect();
    let values: Vec<_> = known.into_iter().chain(values).collect();
    let lines = render_lines(values.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let problems = snapshot.problems.iter().map(|problem| format!("# {problem}"));
    let lines = lines.into_iter().chain(problems);
    lines.map(|line| plain(&line) + "\n").collect()
}

fn counters_table(counters: &Counters) -> String {
    let mut table = Lines::new(["NAME", "VALUE"], &[1]);
    for (name, value) in counters {
        table.add([plain(name), value.to_string()]);
    }
    table.render()
}

fn links_table(links: &[QueuePairStats]) -> String {
    let heads = ["QP", "BACKEND", "STATE", "PEER", "STREAMS", "RX-MSGS", "RX-BYTES", "TX-MSGS", "TX-BYTES"];
    let mut table = Lines::new(heads, &[0, 4, 5, 6, 7, 8]);
    for link in links {
        table.add([
            link.qp.to_string(),
            plain(&link.backend),
            plain(&link.state),
            plain(&link.peer),
            link.streams.to_string(),
            link.rx_msgs.to_string(),
            link.rx_bytes.to_string(),
            link.tx_msgs.to_string(),
            link.tx_bytes.to_string(),
        ]);
    }
    table.render()
}

/// The rightmost four columns are messages and bytes over RDMA, as the original has them; the bytes over TCP, which has
/// no messages, come before them.
fn sockets_table(sockets: &[SocketStats]) -> String {
    let heads = [
        "FD", "LOCAL", "REMOTE", "STATE", "PATH", "QP", "REASON", "RX-TCP", "TX-TCP", "RX-MSGS", "RX-BYTES", "TX-MSGS",
        "TX-BYTES",
    ];
    let mut table = Lines::new(heads, &[0, 5, 7, 8, 9, 10, 11, 12]);
    for socket in sockets {
        let path = match socket.path {
            Path::Link => "link",
            Path::Tcp => "tcp",
        };
        table.add([
            socket.fd.to_string(),
            plain(&socket.local),
            plain(&socket.remote),
            plain(&socket.state),
            path.to_owned(),
            socket.qp.map_or(String::new(), |qp| qp.to_string()),
            plain(&socket.reason),
            socket.rx_bytes_tcp.to_string(),
            socket.tx_bytes_tcp.to_string(),
            socket.rx_msgs_link.to_string(),
            socket.rx_bytes_link.to_string(),
            socket.tx_msgs_link.to_string(),
            socket.tx_bytes_link.to_string(),
        ]);
    }
    table.render()
}

fn datagrams_table(sockets: &[DatagramSocketStats]) -> String {
    let heads = [
        "FD",
        "LOCAL",
        "REMOTE",
        "RINGS-IN",
        "RINGS-OUT",
        "REASON",
        "RX-KERNEL",
        "TX-KERNEL",
        "RX-RING",
        "TX-RING",
        "DROPPED",
    ];
    let mut table = Lines::new(heads, &[0, 3, 4, 6, 7, 8, 9, 10]);
    for socket in sockets {
        table.add([
            socket.fd.to_string(),
            plain(&socket.local),
            plain(&socket.remote),
            socket.rings_in.to_string(),
            socket.rings_out.to_string(),
            plain(&socket.reason),
            socket.rx_kernel.to_string(),
            socket.tx_kernel.to_string(),
            socket.rx_link.to_string(),
            socket.tx_link.to_string(),
            socket.dropped.to_string(),
        ]);
    }
    table.render()
}

/// Text of a process in a form that is safe for a terminal.
pub(crate) fn plain(text: &str) -> String {
    let unsafe_here = |c: char| {
        // Control characters, and those that change the direction of writing.
        c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if unsafe_here(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use netacc_config::ConfigValue;

    use super::*;

    #[test]
    fn sockets_end_in_messages_and_bytes_both_ways() {
        let sockets = vec![
            SocketStats {
                fd: 8,
                local: "127.0.0.1:6379".into(),
                remote: "127.0.0.1:40000".into(),
                path: Path::Link,
                state: "open".into(),
                rx_bytes_link: 2048,
                tx_bytes_link: 20,
                rx_msgs_link: 4,
                tx_msgs_link: 5,
                qp: Some(1),
                ..SocketStats::default()
            },
            SocketStats {
                fd: 10,
                local: "[::1]:80".into(),
                reason: "peer\x1b[31m\n".into(),
                rx_bytes_tcp: 7,
                ..SocketStats::default()
            },
        ];
        assert_eq!(
            sockets_table(&sockets),
            "FD  LOCAL           REMOTE           STATE  PATH  QP  REASON      RX-TCP  TX-TCP  RX-MSGS  RX-BYTES  TX-MSGS  TX-BYTES\n \
             8  127.0.0.1:6379  127.0.0.1:40000  open   link   1  -                0       0        4      2048        5        20\n\
             10  [::1]:80        -                -      tcp    -  peer?[31m?       7       0        0         0        0         0\n"
        );
    }

    #[test]
    fn the_configuration_is_the_file_in_its_own_order() {
        let cfg = netacc_config::Config::default();
        let mut values: std::collections::BTreeMap<_, _> =
            cfg.values().map(|(name, value)| (name.to_owned(), value)).collect();
        values.insert("NACC_AFTER_US".into(), ConfigValue::Int(1));
        let snapshot = Snapshot { cfg: Some(values), problems: vec!["f:1: bad".into()], ..Snapshot::default() };
        let mut expected = cfg.to_lines();
        expected.extend(["NACC_AFTER_US=1".into(), "# f:1: bad".into()]);
        assert_eq!(configuration(&snapshot).lines().collect::<Vec<_>>(), expected);
    }
}
