//! Snapshots as text for people, and as JSON. Text from a process never reaches the terminal with a
//! control character in it; in JSON those are escaped anyway.

use std::borrow::Cow;

use netacc_config::stats::{Counters, DatagramSocketStats, Path, QueuePairStats, Snapshot, SocketStats};
use netacc_config::{render_lines, KEYS};

use super::list::{Process, State};
use super::table::{Cell, Lines};

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
    if snapshot.cfg.is_some() || !snapshot.problems.is_empty() {
        begin(&mut text, "configuration");
        text.push_str(&configuration(snapshot));
    }
    if let Some(counters) = &snapshot.cnt {
        section(&mut text, "counters", &counters_table(counters));
    }
    if let Some(reasons) = &snapshot.reasons {
        section(&mut text, "connections not accelerated, by reason", &counters_table(reasons));
    }
    if let Some(memory) = &snapshot.mem {
        section(&mut text, "memory", &counters_table(memory));
    }
    if let Some(links) = &snapshot.qp {
        section(&mut text, "queue pairs", &links_table(links));
    }
    if let Some(sockets) = &snapshot.sock {
        section(&mut text, "sockets", &sockets_table(sockets));
    }
    if let Some(sockets) = snapshot.udp.as_deref().filter(|sockets| !sockets.is_empty()) {
        section(&mut text, "UDP sockets, in datagrams", &datagrams_table(sockets));
    }
    text
}

fn begin(text: &mut String, title: &str) {
    for part in ["\n", title, "\n"] {
        text.push_str(part);
    }
}

fn section<const N: usize>(text: &mut String, title: &str, table: &Lines<N>) {
    begin(text, title);
    table.render_into(text);
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
        let pid = Cell::from(u64::from(process.pid));
        table.add(match &process.state {
            State::Answered { program, backend, sockets_link, sockets_tcp } => [
                pid,
                plain(program).into(),
                plain(backend).into(),
                (*sockets_link as u64).into(),
                (*sockets_tcp as u64).into(),
            ],
            State::Silent { error } => [pid, plain(error).into(), "".into(), "".into(), "".into()],
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
    lines.fold(String::new(), |text, line| text + &plain(&line) + "\n")
}

fn counters_table(counters: &Counters) -> Lines<2> {
    let mut table = Lines::new(["NAME", "VALUE"], &[1]);
    for (name, value) in counters {
        table.add([plain(name).into(), Cell::from(*value)]);
    }
    table
}

fn links_table(links: &[QueuePairStats]) -> Lines<9> {
    let heads = ["QP", "BACKEND", "STATE", "PEER", "STREAMS", "RX-MSGS", "RX-BYTES", "TX-MSGS", "TX-BYTES"];
    let mut table = Lines::new(heads, &[0, 4, 5, 6, 7, 8]);
    for link in links {
        table.add([
            link.qp.into(),
            plain(&link.backend).into(),
            plain(&link.state).into(),
            plain(&link.peer).into(),
            u64::from(link.streams).into(),
            link.rx_msgs.into(),
            link.rx_bytes.into(),
            link.tx_msgs.into(),
            Cell::from(link.tx_bytes),
        ]);
    }
    table
}

/// The rightmost four columns are messages and bytes over RDMA, as the original has them; the bytes over TCP, which has
/// no messages, come before them.
fn sockets_table(sockets: &[SocketStats]) -> Lines<13> {
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
            number(socket.fd),
            plain(&socket.local).into(),
            plain(&socket.remote).into(),
            plain(&socket.state).into(),
            path.into(),
            socket.qp.map_or(Cell::from(""), Cell::from),
            plain(&socket.reason).into(),
            socket.rx_bytes_tcp.into(),
            socket.tx_bytes_tcp.into(),
            socket.rx_msgs_link.into(),
            socket.rx_bytes_link.into(),
            socket.tx_msgs_link.into(),
            socket.tx_bytes_link.into(),
        ]);
    }
    table
}

fn datagrams_table(sockets: &[DatagramSocketStats]) -> Lines<11> {
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
            number(socket.fd),
            plain(&socket.local).into(),
            plain(&socket.remote).into(),
            socket.rings_in.into(),
            socket.rings_out.into(),
            plain(&socket.reason).into(),
            socket.rx_kernel.into(),
            socket.tx_kernel.into(),
            socket.rx_link.into(),
            socket.tx_link.into(),
            Cell::from(socket.dropped),
        ]);
    }
    table
}

/// A descriptor, which is negative only in an answer of another program.
fn number(fd: i32) -> Cell<'static> {
    u64::try_from(fd).map_or_else(|_| fd.to_string().into(), Cell::from)
}

/// Text of a process in a form that is safe for a terminal.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.into();
    }
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
            sockets_table(&sockets).render(),
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
