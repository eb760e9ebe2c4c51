//! The sockets of a process, one by one.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use netacc_config::stats::{DatagramSocketStats, Path, SocketStats, Text};
use netacc_driver::Endpoint;
use netacc_proto::{Phase, Reason};

use super::peer;
use crate::answers::Answers;
use crate::datagram::Datagram;
use crate::os::real;
use crate::socket::Socket;
use crate::table::{self, Entry};

/// The sockets of TCP and those of UDP, each in the order of descriptors: of several that share a socket, the lowest.
pub(super) fn all(endpoint: Option<&Endpoint>) -> (Vec<SocketStats>, Vec<DatagramSocketStats>) {
    let mut seen: Vec<Arc<Entry>> = Vec::new();
    let mut sockets = Vec::with_capacity(table::end() as usize);
    let mut datagrams = Datagrams::default();
    for fd in 0..end_of_descriptors() {
        let Some(entry) = table::get_full(fd) else {
            sockets.extend(unknown(fd));
            continue;
        };
        let (shared, stats) = match &*entry {
            Entry::Stream(sock) => (sock.descriptors.load(Ordering::Relaxed) > 1, connected(fd, sock, endpoint)),
            Entry::Idle(listener) => {
                let listening = listener.listening.load(Ordering::Relaxed);
                let state = if listening { "listening" } else { "unconnected" };
                let local = peer::name(fd, real::getsockname);
                let stats = SocketStats { fd, local, listening, state: state.into(), ..SocketStats::default() };
                (listener.descriptors.load(Ordering::Relaxed) > 1, stats)
            }
            Entry::Datagram(socket) => {
                datagrams.add(fd, socket);
                continue;
            }
            Entry::Epoll(_) | Entry::Ring(_) => continue,
        };
        if shared {
            if seen.iter().any(|other| Arc::ptr_eq(other, &entry)) {
                continue;
            }
            seen.push(entry);
        }
        sockets.push(stats);
    }
    let datagrams = datagrams.iter().map(|(fd, socket)| datagram(fd, socket)).collect();
    (sockets, datagrams)
}

/// UDP sockets, each once, with the descriptor that came first.
#[derive(Default)]
pub(super) struct Datagrams(Vec<(RawFd, Arc<Datagram>)>);

impl Datagrams {
    pub(super) fn add(&mut self, fd: RawFd, socket: &Arc<Datagram>) {
        if !self.0.iter().any(|(_, known)| Arc::ptr_eq(known, socket)) {
            self.0.push((fd, socket.clone()));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RawFd, &Datagram)> {
        self.0.iter().map(|(fd, socket)| (*fd, &**socket))
    }
}

fn datagram(fd: RawFd, socket: &Datagram) -> DatagramSocketStats {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counts = socket.counts();
    let rings_in = socket.incoming().rings() as u64;
    let (rings_out, refused) = {
        let outgoing = socket.outgoing();
        (outgoing.rings() as u64, outgoing.refused())
    };
    let why = refused.filter(|_| rings_in + rings_out == 0).map(Reason::as_str);
    DatagramSocketStats {
        fd,
        local: peer::name(fd, real::getsockname).to_string(),
        remote: peer::name(fd, real::getpeername).to_string(),
        rings_in,
        rings_out,
        reason: socket.sharing().state().reason().or(why).unwrap_or_default().into(),
        rx_link: count(&counts.rx_link),
        tx_link: count(&counts.tx_link),
        rx_kernel: count(&counts.rx_kernel),
        tx_kernel: count(&counts.tx_kernel),
        dropped: count(&counts.dropped),
    }
}

/// A TCP socket that the library has not seen being created: the program was started with it, and has not accepted from
/// it.
fn unknown(fd: RawFd) -> Option<SocketStats> {
    peer::is_tcp(fd).then_some(())?;
    let remote = peer::name(fd, real::getpeername);
    let listening = remote.is_empty() && peer::listens(fd);
    let state = match (remote.is_empty(), listening) {
        (false, _) => "plain",
        (true, true) => "listening",
        (true, false) => "unconnected",
    };
    let (rx_bytes_tcp, tx_bytes_tcp) = if remote.is_empty() { (0, 0) } else { peer::kernel_bytes(fd) };
    Some(SocketStats {
        fd,
        local: peer::name(fd, real::getsockname),
        reason: if remote.is_empty() { Text::default() } else { Reason::Inherited.as_str().into() },
        remote,
        listening,
        state: state.into(),
        rx_bytes_tcp,
        tx_bytes_tcp,
        ..SocketStats::default()
    })
}

/// A number above those of all descriptors of the process. It may have 20,000, and the kernel needs 44 ms to list them in
/// /proc/self/fd for the first time. To ask for each number takes a millisecond.
fn end_of_descriptors() -> RawFd {
    let status = netacc_descriptors::read_text("/proc/thread-self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    size.unwrap_or(0).max(table::end())
}

fn connected(fd: RawFd, sock: &Socket, endpoint: Option<&Endpoint>) -> SocketStats {
    let Some((cell, endpoint)) = sock.stream.as_ref().zip(endpoint) else {
        // Only the kernel has counted.
        let (rx_bytes_tcp, tx_bytes_tcp) = peer::kernel_bytes(fd);
        return SocketStats {
            fd,
            local: peer::name(fd, real::getsockname),
            remote: peer::name(fd, real::getpeername),
            reason: sock.reason.as_str().into(),
            state: "plain".into(),
            rx_bytes_tcp,
            tx_bytes_tcp,
            ..SocketStats::default()
        };
    };
    let guard = cell.lock(endpoint);
    let (c, phase, reason) = (guard.counters(), guard.proto().phase(), guard.proto().reason());
    let failed = guard.proto().failure().is_some();
    let qp = guard.link().map(|link| link.qp().0.into());
    drop(guard);
    cell.find_local();
    let linked = phase == Phase::Linked;
    let (answer_ns_tcp, answer_ns_link) = sock.answers.as_deref().map_or((None, None), Answers::medians_ns);
    let (bulk_bytes_per_s_tcp, bulk_bytes_per_s_link) =
        sock.answers.as_deref().map_or((None, None), Answers::bulk_bytes_per_s);
    let state = match phase {
        _ if failed => "failed",
        Phase::Plain => "plain",
        Phase::Promoting => "promoting",
        Phase::Linked => "linked",
        Phase::Resuming => "demoting",
    };
    SocketStats {
        fd,
        local: cell.tuple().local.into(),
        remote: cell.tuple().remote.into(),
        path: if linked { Path::Link } else { Path::Tcp },
        reason: if linked { Text::default() } else { specific_reason(sock, reason).as_str().into() },
        state: state.into(),
        rx_bytes_link: c.rx_bytes_link,
        tx_bytes_link: c.tx_bytes_link,
        rx_msgs_link: c.rx_msgs_link,
        tx_msgs_link: c.tx_msgs_link,
        rx_bytes_tcp: c.rx_bytes_tcp,
        tx_bytes_tcp: c.tx_bytes_tcp,
        qp,
        answer_ns_tcp,
        answer_ns_link,
        bulk_bytes_per_s_tcp,
        bulk_bytes_per_s_link,
        listening: false,
    }
}

/// The socket of a stream that was never promoted has a more specific reason than the stream.
fn specific_reason(sock: &Socket, reason: Reason) -> Reason {
    match reason {
        Reason::NotYet => sock.recorded_reason().unwrap_or(reason),
        known => known,
    }
}
