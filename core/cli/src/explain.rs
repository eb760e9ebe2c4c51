//! `netacc explain`: why a connection is where it is, in words, and what would change it.
//!
//! The answer is that of the process. If the other end is an accelerated process of this host that the user may query, its
//! reason is told as well: the end that refuses knows more than the end that asked.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use netacc_config::stats::{Path, Snapshot, SocketStats};
use netacc_proto::Reason;
use serde::Serialize;

use crate::processes::port_of;
use crate::ss::{accelerated, fetch, FetchError};

/// Exit status if the process has no such connection.
const NO_CONNECTION: u8 = 6;

/// Why connections of a running process are on a link or on TCP, and what would change it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netacc explain -p PID               all connections, those with the same explanation once
  netacc explain -p PID 12            that of descriptor 12
  netacc explain -p PID :6379         those with this port at either end

Exit status: 0 explained; 1 no such process; 2 wrong usage; 3 the process is not accelerated; 4 not permitted; 5 it sent no
answer, or an invalid one; 6 it has no such connection")]
pub struct ExplainArgs {
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: u32,

    /// A descriptor, or a port after a colon
    #[arg(value_name = "FD|:PORT", value_parser = which)]
    which: Option<Which>,

    /// One JSON document instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Descriptor(i32),
    Port(u16),
}

fn which(text: &str) -> Result<Which, String> {
    let wrong = |_| format!("{text} is neither a descriptor nor a port after a colon");
    match text.strip_prefix(':') {
        Some(port) => port.parse().map(Which::Port).map_err(wrong),
        None => text.parse().map(Which::Descriptor).map_err(wrong),
    }
}

impl Which {
    fn is(self, socket: &SocketStats) -> bool {
        match self {
            Which::Descriptor(fd) => socket.fd == fd,
            Which::Port(port) => {
                [&socket.local, &socket.remote].into_iter().any(|address| port_of(address) == Some(port))
            }
        }
    }
}

/// The explanation of some connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Explanation {
    /// Their descriptors.
    descriptors: Vec<i32>,
    /// The addresses of the first one: its own and the peer's.
    example: [String; 2],
    /// `link` or `tcp`.
    path: &'static str,
    /// The reason code; empty on a link.
    reason: String,
    /// The reason, in words.
    why: String,
    /// What would change it.
    change: &'static str,
    /// The process at the other end, if it is accelerated and may be queried, and its own reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<Peer>,
    /// Bytes over links, and over TCP.
    bytes: [u64; 2],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Peer {
    pid: u32,
    program: String,
    reason: String,
    why: &'static str,
}

/// `netacc explain`.
pub fn run(args: &ExplainArgs) -> ExitCode {
    match explain(args) {
        Ok(explanations) if explanations.is_empty() => {
            eprintln!("netacc explain: process {} has no such connection", args.pid);
            ExitCode::from(NO_CONNECTION)
        }
        Ok(explanations) => {
            let text = match args.json {
                true => serde_json::to_string_pretty(&explanations).unwrap_or_default() + "\n",
                false => explanations.iter().map(render).collect(),
            };
            // The reader may have gone.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("netacc explain: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn explain(args: &ExplainArgs) -> Result<Vec<Explanation>, FetchError> {
    let process = fetch(args.pid, "sock,qp,cnt")?;
    let others = others(args.pid);
    let sockets = process.sock.iter().flatten().filter(|socket| !socket.remote.is_empty());
    let wanted = sockets.filter(|socket| args.which.is_none_or(|which| which.is(socket)));
    let mut explanations: Vec<Explanation> = Vec::new();
    for socket in wanted {
        let new = Explanation::of(socket, &process, &others);
        let same = explanations.iter_mut().find(|old| old.is_alike(&new));
        match same {
            Some(old) => {
                old.descriptors.push(socket.fd);
                old.bytes = [old.bytes[0] + new.bytes[0], old.bytes[1] + new.bytes[1]];
            }
            None => explanations.push(new),
        }
    }
    Ok(explanations)
}

/// The other accelerated processes of this host, as far as they answer.
fn others(pid: u32) -> Vec<Snapshot> {
    let found = accelerated().unwrap_or_default().into_iter().map(|(other, _)| other).filter(|other| *other != pid);
    found.filter_map(|other| fetch(other, "sock").ok()).collect()
}

impl Explanation {
    fn of(socket: &SocketStats, process: &Snapshot, others: &[Snapshot]) -> Explanation {
        let reason = reason_of(&socket.reason);
        let (path, why, change) = match socket.path {
            Path::Link => ("link", on_link(socket, process), ON_LINK),
            Path::Tcp => ("tcp", reason.description().to_owned(), advice(reason)),
        };
        Explanation {
            descriptors: vec![socket.fd],
            example: [socket.local.to_string(), socket.remote.to_string()],
            path,
            reason: if path == "link" { String::new() } else { reason.as_str().to_owned() },
            why,
            change,
            peer: (path == "tcp").then(|| peer(socket, others)).flatten(),
            bytes: [socket.rx_bytes_link + socket.tx_bytes_link, socket.rx_bytes_tcp + socket.tx_bytes_tcp],
        }
    }

    fn is_alike(&self, other: &Explanation) -> bool {
        (self.path, &self.reason, &self.why, &self.peer) == (other.path, &other.reason, &other.why, &other.peer)
    }
}

fn device<'a>(socket: &SocketStats, process: &'a Snapshot) -> &'a str {
    let links = process.qp.as_deref().unwrap_or_default();
    let link = links.iter().find(|link| Some(link.qp) == socket.qp);
    link.map_or(process.backend.as_str(), |link| link.backend.as_str())
}

fn on_link(socket: &SocketStats, process: &Snapshot) -> String {
    let device = device(socket, process);
    let stopped = process.cnt.as_ref().and_then(|counters| counters.get("sharing_stopped"));
    let sharing = if stopped.is_some_and(|count| *count > 0) { SHARING_STOPPED } else { "" };
    format!("It is on a link of {device}.{sharing}")
}

/// The process that has the other end, and its reason.
fn peer(socket: &SocketStats, others: &[Snapshot]) -> Option<Peer> {
    let ends = |other: &&SocketStats| (&other.local, &other.remote) == (&socket.remote, &socket.local);
    others.iter().find_map(|other| {
        let end = other.sock.iter().flatten().find(ends)?;
        let reason = reason_of(&end.reason);
        Some(Peer {
            pid: other.pid,
            program: other.program.clone(),
            reason: reason.as_str().to_owned(),
            why: reason.description(),
        })
    })
}

fn reason_of(text: &str) -> Reason {
    Reason::ALL.iter().copied().find(|reason| reason.as_str() == text).unwrap_or(Reason::Unknown)
}

fn render(explanation: &Explanation) -> String {
    let Explanation { descriptors, example: [local, remote], path, reason, why, change, peer, bytes } = explanation;
    const SHOWN: usize = 8;
    let mut fds: Vec<String> = descriptors.iter().take(SHOWN).map(ToString::to_string).collect();
    if descriptors.len() > SHOWN {
        fds.push(format!("and {} more", descriptors.len() - SHOWN));
    }
    let code = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let mut text = format!("{} connections on {path}{code}: descriptors {}\n", descriptors.len(), fds.join(", "));
    text += &format!("  for example {local} to {remote}\n  why:    {why}\n  change: {change}\n");
    if let Some(Peer { pid, program, reason, why }) = peer {
        text += &format!("  the other end, {program} ({pid}), says {reason}: {why}\n");
    }
    text += &format!("  so far: {} bytes over links, {} over TCP\n\n", bytes[0], bytes[1]);
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

const SHARING_STOPPED: &str = " New links of RDMA devices are not shared any more, because a message came out of turn.";
const ON_LINK: &str = "`netacc demote` takes it off the link, also under load.";

/// What would bring a connection with this reason onto a link.
fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::NotYet => "Wait: after a few more reads or writes it asks for a link (NACC_PROMOTE_AFTER).",
        Reason::Opening | Reason::PeerBusy => "Wait: the answer usually takes less than a second.",
        Reason::Disabled => "NACC_ENABLE_RDMA_DEFAULT=1, and a NACC_BACKEND that is not none: `netacc_ss -p PID -s cfg` shows the settings.",
        Reason::NoBackend | Reason::DeviceAbsent => "`netacc doctor` says which device is missing, and how to get it.",
        Reason::OtherHost => "Between hosts an RDMA device is needed at both ends: `netacc doctor` on both.",
        Reason::PeerNotFound => "Start the other program with netacc_run as well.",
        Reason::UnknownStream | Reason::HeldElsewhere => "The process that has the other end must run the library, and not the one that answered.",
        Reason::NotAdmitted | Reason::PeerOtherUser => "Run both as the same user, or in the same NACC_SHM_GROUP.",
        Reason::PledgeVoided => "Wait: it tries again. A program that writes without reading may need several tries.",
        Reason::MemoryLimit => "More memory: `ulimit -l` for RDMA devices, /dev/shm for shared memory, or a smaller NACC_RING_SIZE.",
        Reason::Exhausted => "Fewer connections, or several on a link (NACC_SOR_CONN_PER_QP); devices have limits, which `netacc doctor` shows.",
        Reason::LinkFailed => "It comes back by itself when the device or the network does. `netacc doctor` checks both.",
        Reason::Shared => "It is accelerated once one process alone has the descriptor: close it in the parent or in the child.",
        Reason::KernelOnly => "The program used a call that only the kernel has (out-of-band data, for example). Such a connection stays on TCP.",
        Reason::Requested => "`netacc promote -p PID` lets it back.",
        Reason::PeerRequest => "`netacc promote` for the process at the other end, if it was demoted; its own reason says more.",
        Reason::DirectoryFull => "Fewer connections between accelerated processes of this host.",
        Reason::Percent => "NACC_CONNECT_RDMA_PERCENT=100.",
        Reason::Inherited => "Start the program that opened it with netacc_run; connections of descriptors 0 to 2 stay on TCP.",
        Reason::NotTcp => "Nothing: only TCP is accelerated.",
        Reason::Violation => "Use the same version of the library at both ends; if it is, this is a fault worth reporting.",
        Reason::Closing => "Nothing: it is about to end.",
        Reason::UnseenIo => "The program moves bytes in a way that the library does not see (a raw system call, or an io_uring). NACC_POLICY says what happens then.",
        Reason::PeerIdle => "It comes back when the peer's program reads again.",
        Reason::NoLinkPort => "Let the server listen on a port below 45536.",
        Reason::KeyMissing | Reason::KeyMismatch => "The same NACC_PSK_FILE at both ends.",
        Reason::TcpFirst => "`netacc promote -p PID`, or NACC_CONN_TCP_FIRST=0.",
        Reason::LinkSlower => "Nothing: TCP is faster for it. NACC_PATH_CHOICE=link pins the link.",
        Reason::LinkPortTaken => "Free the TCP port plus 20000 on the server's host, and restart the server.",
        Reason::DescriptorLimit => "A higher `ulimit -n`, and a restart.",
        Reason::ThreadLimit => "A higher `ulimit -u`, and a restart.",
        Reason::Sandboxed => "A filter that permits the calls of links: see \"Programs that confine themselves\" in the documentation.",
        Reason::PeerNotAccepted => "Wait until the server's program accepts it.",
        Reason::PeerKeepsTcp => "The other end's reason says more: `netacc explain` there.",
        Reason::PeerApart => "A common /dev/shm or NACC_SHM_DIR, and the same NACC_SHM_GROUP at both ends.",
        Reason::GroupAddress | Reason::SameReceiver | Reason::HostOption => "Nothing: the kernel carries such datagrams.",
        Reason::SourceUnknown => "Nothing: it tries again after more datagrams.",
        Reason::PeerElsewhere => "In another container of this host: the same NACC_SHM_DIR at both ends, and the container's own address instead of a published port. On another host: an RDMA device at both ends.",
        _ => "Use the same version of netacc and of the library.",
    }
}

#[cfg(test)]
mod tests {
    use netacc_config::stats::QueuePairStats;

    use super::*;

    fn socket(fd: i32, path: Path, reason: &str) -> SocketStats {
        SocketStats {
            fd,
            local: format!("127.0.0.1:{}", 1000 + fd).into(),
            remote: "127.0.0.1:80".into(),
            path,
            reason: reason.into(),
            tx_bytes_tcp: 7,
            qp: Some(5),
            ..SocketStats::default()
        }
    }

    // Breaks if a new reason code has no advice.
    #[test]
    fn every_reason_has_advice_of_its_own() {
        let unknown = advice(Reason::Unknown);
        let without = Reason::ALL.iter().filter(|reason| !matches!(reason, Reason::None | Reason::Unknown));
        let without: Vec<_> = without.filter(|reason| advice(**reason) == unknown).collect();
        assert!(without.is_empty(), "{without:?}");
    }

    // Breaks if advice names a key that does not exist.
    #[test]
    fn advice_names_keys_that_there_are() {
        for reason in Reason::ALL {
            let words = advice(*reason).split(|c: char| !c.is_ascii_uppercase() && c != '_');
            for key in words.filter(|word| word.starts_with("NACC_")) {
                assert!(netacc_config::find_key(key).is_some(), "{key} for {reason}");
            }
        }
    }

    #[test]
    fn what_is_named_is_found() {
        assert_eq!(which("12"), Ok(Which::Descriptor(12)));
        assert_eq!(which(":80"), Ok(Which::Port(80)));
        assert!(which(":").is_err() && which("x").is_err() && which(":70000").is_err());
        let connection = socket(3, Path::Tcp, "not-yet");
        assert!(
            Which::Port(80).is(&connection)
                && Which::Port(1003).is(&connection)
                && Which::Descriptor(3).is(&connection)
        );
        assert!(!Which::Port(81).is(&connection) && !Which::Descriptor(80).is(&connection));
    }

    #[test]
    fn the_other_end_tells_its_reason_too() {
        let here = socket(3, Path::Tcp, "peer-keeps-tcp");
        let there =
            SocketStats { local: here.remote.clone(), remote: here.local.clone(), ..socket(9, Path::Tcp, "shared") };
        let other = Snapshot { pid: 42, program: "server".into(), sock: Some(vec![there]), ..Snapshot::default() };
        let explained = Explanation::of(&here, &Snapshot::default(), &[other]);
        let peer = explained.peer.as_ref().expect("it is there");
        assert_eq!((peer.pid, peer.reason.as_str()), (42, "shared"));
        let text = render(&explained);
        assert!(text.contains("on tcp (peer-keeps-tcp)") && text.contains("server (42), says shared"), "{text}");
    }

    #[test]
    fn a_process_that_shares_no_more_links_says_why() {
        let explained = |stopped| {
            let cnt = Some([("sharing_stopped".to_owned(), stopped)].into());
            Explanation::of(&socket(3, Path::Link, ""), &Snapshot { cnt, ..Snapshot::default() }, &[]).why
        };
        assert!(!explained(0).contains("shared") && explained(1).contains("not shared any more"));
    }

    #[test]
    fn a_link_names_its_device() {
        let link = QueuePairStats { qp: 5, backend: "rxe0".into(), ..QueuePairStats::default() };
        let process = Snapshot { qp: Some(vec![link]), backend: "shm".into(), ..Snapshot::default() };
        let explained = Explanation::of(&socket(3, Path::Link, ""), &process, &[]);
        assert_eq!(
            (explained.path, explained.reason.as_str(), explained.why.as_str()),
            ("link", "", "It is on a link of rxe0.")
        );
    }
}
