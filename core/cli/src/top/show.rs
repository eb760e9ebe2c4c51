//! The tables as text. Text of a process reaches the terminal without control characters.

use crate::ss::{plain, Lines};

use super::rates::View;

pub(super) fn table(view: &View) -> String {
    if view.processes.is_empty() {
        return "no accelerated process that you may query\n".to_owned();
    }
    let heads = ["PID", "PROGRAM", "BACKEND", "ON LINK", "ON TCP", "LINK B/S", "TCP B/S", "STALLS/S"];
    let mut processes = Lines::new(heads, &[0, 3, 4, 5, 6, 7]);
    for one in &view.processes {
        processes.add([
            one.pid.to_string(),
            plain(&one.program).into(),
            plain(&one.backend).into(),
            one.on_link.to_string(),
            one.on_tcp.to_string(),
            scaled(one.link_bytes_per_s),
            scaled(one.tcp_bytes_per_s),
            one.stalls_per_s.to_string(),
        ]);
    }
    let heads = ["PID", "PROGRAM", "FD", "LOCAL", "REMOTE", "PATH", "REASON", "RX B/S", "TX B/S"];
    let mut connections = Lines::new(heads, &[0, 2, 7, 8]);
    for one in &view.connections {
        connections.add([
            one.pid.to_string(),
            plain(&one.program).into(),
            one.fd.to_string(),
            plain(&one.local).into(),
            plain(&one.remote).into(),
            one.path.to_owned(),
            plain(&one.reason).into(),
            scaled(one.rx_bytes_per_s),
            scaled(one.tx_bytes_per_s),
        ]);
    }
    format!("{}\n{}", processes.render(), connections.render())
}

/// A number with the largest prefix of 1000 that keeps it above 1.
fn scaled(number: u64) -> String {
    let scale = [("G", 1e9), ("M", 1e6), ("k", 1e3)].into_iter().find(|(_, factor)| number as f64 >= *factor);
    scale.map_or_else(|| number.to_string(), |(prefix, factor)| format!("{:.1}{prefix}", number as f64 / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 1_540_000, 23_400_000_000].map(scaled), ["0", "999", "1.0k", "1.5M", "23.4G"]);
    }
}
