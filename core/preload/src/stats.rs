//! The server for `netacc_ss` and `netacc demote`, on the abstract Unix socket `netacc-ss/<pid>`. If a process of another PID
//! namespace has that name, as in another container of a pod, it is `netacc-ss/<pid>/<inode of the PID namespace>`.
//!
//! A request is one line:
//!
//! * `DEMOTE` takes all connections off their links and `PROMOTE` lets them back. `SURRENDER` with the number of a
//!   descriptor takes that connection off for good, because another process takes the descriptor. The answer is a
//!   `netacc_config::stats::Switched`.
//! * `TRACE`, with the memory of `netacc_config::trace` as a passed descriptor, begins a trace, and `UNTRACE` ends it. The answer is a
//!   `netacc_config::stats::Traced`.
//! * `GET` with the names of sections (`all`, `cfg`, `cnt`, `mem`, `qp`, `sock`; separated by commas or spaces, `cnt`
//!   if there are none) is answered by one JSON document (`netacc_config::stats::Document`), up to end of file.
//!
//! Only the same user and root get answers. A short-lived thread answers each request, so that a client that reads
//! slowly stalls no other; there are never more than a few such threads.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_config::stats::{Counters, Document, Snapshot, VERSION};
use netacc_device::Instant;
use netacc_driver::{Endpoint, StreamCounters};
use netacc_proto::Reason;

use crate::leaving;
use crate::os::clock::now;
use crate::os::clock::timespec;
use crate::os::errno::errno;
use crate::os::{confinement, inside, own, poll, real};
use crate::runtime::{self, Runtime};
use crate::table::{self, Entry};

mod peer;
mod precedence;
mod sockets;
mod stand_in;
mod streams;
mod switch;
mod traced;

use sockets::Datagrams;
pub use stand_in::StandIn;
use streams::Streams;

/// Time for a client to send its request, and then to read the answer. Arbitrary: clients are local.
const PATIENCE: Duration = Duration::from_secs(2);
/// Requests answered at a time; further ones are rejected.
const MAX_SERVING: usize = 4;
/// A longer request is invalid.
const MAX_REQUEST: usize = 256;

static SERVING: AtomicUsize = AtomicUsize::new(0);

/// Opens the socket on which [`serve`] answers: non-blocking, close-on-exec, at a high number. `None` if that is
/// impossible: the process then serves no requests.
pub fn listen() -> Option<RawFd> {
    let fd = own::keep(new_socket)?;
    // SAFETY: no pointers.
    if (bind(fd, None) || bind(fd, pid_namespace())) && unsafe { real::listen(fd, 8) } == 0 {
        return Some(fd);
    }
    own::discard(fd);
    None
}

fn bind(fd: RawFd, namespace: Option<u64>) -> bool {
    let (address, len) = address(std::process::id(), namespace);
    // SAFETY: the address has `len` bytes.
    unsafe { real::bind(fd, (&raw const address).cast(), len) == 0 }
}

fn pid_namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

fn new_socket() -> RawFd {
    // SAFETY: no pointers.
    unsafe { real::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) }
}

fn address(pid: u32, namespace: Option<u64>) -> (libc::sockaddr_un, libc::socklen_t) {
    let name = match namespace {
        Some(namespace) => format!("\0netacc-ss/{pid}/{namespace}"),
        None => format!("\0netacc-ss/{pid}"),
    };
    // SAFETY: all-zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as std::ffi::c_char;
    }
    (address, (std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len()) as libc::socklen_t)
}

/// Takes one client. Called by the helper thread when the listener is readable; never blocks.
pub fn serve(listener: RawFd, runtime: &'static Runtime) {
    // SAFETY: no addresses are requested.
    let accepted = own::make_high(|| unsafe {
        real::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
    });
    let Some(fd) = accepted else { return };
    // SAFETY: a new descriptor with no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let (Some(process), Some(turn)) = (peer::trusted(fd), Turn::take()) else { return };
    let answer = move || {
        Client(socket).answer(runtime, process);
        drop(turn);
    };
    // Inherits the helper's signal mask: everything blocked. If there is no thread, there is no answer.
    let _ = std::thread::Builder::new().name("netacc-ss".into()).stack_size(256 << 10).spawn(answer);
}

/// Waits, for a bounded time, until no request is being answered.
pub fn await_answers() {
    let deadline = now() + PATIENCE;
    while SERVING.load(Ordering::Acquire) > 0 && now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One of the requests being answered.
struct Turn;

impl Turn {
    fn take() -> Option<Turn> {
        let take = |n| (n < MAX_SERVING).then_some(n + 1);
        SERVING.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).ok().map(|_| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        SERVING.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Client(OwnedFd);

impl Client {
    /// The client is of the `process`; 0 if this one cannot see it.
    fn answer(&self, runtime: &Runtime, process: libc::pid_t) {
        let mut passed = None;
        let answer = match self.request(now() + PATIENCE, &mut passed) {
            None => return,
            Some(Request::Trace) => serde_json::to_vec(&traced::begin(runtime, passed, process)),
            Some(Request::Untrace) => serde_json::to_vec(&traced::end(runtime, process)),
            Some(Request::Report(sections)) => {
                precedence::take();
                runtime.work(|| document(&Document::from(snapshot(runtime, sections))))
            }
            Some(Request::Demote) => serde_json::to_vec(&switch::demote(runtime)),
            Some(Request::Promote) => serde_json::to_vec(&switch::promote(runtime)),
            Some(Request::Surrender(fd)) => {
                leaving::surrender(fd, Reason::Shared);
                serde_json::to_vec(&switch::count(runtime.endpoint()))
            }
        };
        if let Ok(mut bytes) = answer {
            bytes.push(b'\n');
            self.send(&bytes, now() + PATIENCE);
        }
    }

    /// Reads the request, and the descriptor that comes with it.
    fn request(&self, deadline: Instant, passed: &mut Option<OwnedFd>) -> Option<Request> {
        let mut line = [0u8; MAX_REQUEST];
        let mut len = 0;
        while len < line.len() {
            let (n, fd) = peer::receive(self.0.as_raw_fd(), &mut line[len..]);
            *passed = passed.take().or(fd);
            match n {
                0 => return Request::parse(&line[..len]),
                n if n > 0 => len += n as usize,
                _ if !self.wait(libc::POLLIN, deadline) => return None,
                _ => {}
            }
            if let Some(end) = line[..len].iter().position(|b| *b == b'\n') {
                return Request::parse(&line[..end]);
            }
        }
        None
    }

    fn send(&self, mut bytes: &[u8], deadline: Instant) {
        while !bytes.is_empty() {
            // SAFETY: the bytes are readable.
            let n = unsafe { real::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
            if n >= 0 {
                bytes = &bytes[n as usize..];
            } else if !self.wait(libc::POLLOUT, deadline) {
                return;
            }
        }
    }

    /// After a call that failed: whether to try again.
    fn wait(&self, events: i16, deadline: Instant) -> bool {
        let again = matches!(errno(), libc::EAGAIN | libc::EINTR);
        let left = deadline.saturating_since(now());
        if !again || left.is_zero() {
            return false;
        }
        let mut fds = [libc::pollfd { fd: self.0.as_raw_fd(), events, revents: 0 }];
        poll::wait(&mut fds, &timespec(left), std::ptr::null()) != 0
    }
}

/// Sends another process the request to surrender a descriptor, and waits until it has done so, for a bounded time. A
/// process that does not answer has nothing on a link.
pub fn surrender_elsewhere(pid: u32, fd: RawFd) {
    let Some(socket) = own::make_high(new_socket) else { return };
    // SAFETY: a new descriptor with no other owner.
    let client = Client(unsafe { OwnedFd::from_raw_fd(socket) });
    let connect = |namespace| {
        let (address, len) = address(pid, namespace);
        // SAFETY: the address has `len` bytes.
        unsafe { real::connect(socket, (&raw const address).cast(), len) == 0 }
    };
    // The name with the namespace is there only if a process of another one has the other.
    if !connect(pid_namespace()) && !connect(None) {
        return;
    }
    client.send(format!("SURRENDER {fd}\n").as_bytes(), now() + PATIENCE);
    let deadline = now() + PATIENCE;
    let mut answer = [0u8; MAX_REQUEST];
    loop {
        // SAFETY: the buffer is writable.
        match unsafe { real::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0) } {
            0 => return,
            n if n < 0 && !client.wait(libc::POLLIN, deadline) => return,
            _ => {}
        }
    }
}

/// At exit: writes the counters, if the configuration requests it. Not safe in a signal handler that calls `_exit`, but
/// only if the configuration requests it. Processes that a signal ends write nothing.
pub fn report_at_exit() {
    if confinement::is_confined() {
        return;
    }
    let Some(rt) = runtime::get() else { return };
    let Some(path) = std::env::var_os(netacc_config::EXIT_STATS_VARIABLE) else { return };
    let _library = inside::Inside::enter();
    let Ok(mut line) = serde_json::to_vec(&snapshot(rt, Sections { cnt: true, ..Sections::default() })) else { return };
    line.push(b'\n');
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // In one write, so that lines of several processes do not mix. A failure cannot be reported.
    let _ = file.and_then(|mut file| netacc_registry::without_file_size_signal(|| file.write_all(&line)));
}

/// One line of a client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Report(Sections),
    Demote,
    Promote,
    Surrender(RawFd),
    Trace,
    Untrace,
}

impl Request {
    /// `None`: not a request.
    fn parse(line: &[u8]) -> Option<Request> {
        match line.trim_ascii() {
            b"DEMOTE" => Some(Request::Demote),
            b"PROMOTE" => Some(Request::Promote),
            b"TRACE" => Some(Request::Trace),
            b"UNTRACE" => Some(Request::Untrace),
            line if line.starts_with(b"SURRENDER ") => {
                let fd = std::str::from_utf8(&line["SURRENDER ".len()..]).ok()?.trim();
                fd.parse().ok().map(Request::Surrender)
            }
            _ => Sections::parse(line).map(Request::Report),
        }
    }
}

/// The requested sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sections {
    cfg: bool,
    cnt: bool,
    mem: bool,
    qp: bool,
    sock: bool,
}

impl Sections {
    /// `None`: not a request.
    fn parse(line: &[u8]) -> Option<Sections> {
        let line = std::str::from_utf8(line).ok()?.trim();
        let rest = line.strip_prefix("GET").filter(|rest| rest.is_empty() || rest.starts_with(' '))?;
        let mut s = Sections::default();
        for word in rest.split([' ', ',']).filter(|word| !word.is_empty()) {
            match word {
                "all" => s = Sections { cfg: true, cnt: true, mem: true, qp: true, sock: true },
                "cfg" => s.cfg = true,
                "cnt" => s.cnt = true,
                "mem" => s.mem = true,
                "qp" => s.qp = true,
                "sock" => s.sock = true,
                _ => return None,
            }
        }
        if s == Sections::default() {
            s.cnt = true;
        }
        Some(s)
    }
}

/// The memory is taken at once: to grow it would copy megabytes.
fn document(document: &Document) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(document.len_estimate());
    serde_json::to_writer(&mut bytes, document)?;
    Ok(bytes)
}

fn snapshot(rt: &Runtime, wanted: Sections) -> Snapshot {
    let endpoint = rt.endpoint();
    let mut snapshot = Snapshot {
        version: VERSION,
        pid: std::process::id(),
        program: netacc_descriptors::read_text("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
        backend: rt.backend.clone(),
        refused: rt.refused.clone(),
        ..Snapshot::default()
    };
    if wanted.cfg {
        snapshot.problems = rt.problems.iter().map(ToString::to_string).collect();
        snapshot.cfg = Some(rt.config.values().map(|(name, value)| (name.to_owned(), value)).collect());
    }
    let streams = match endpoint {
        Some(endpoint) if wanted.cnt || wanted.mem || wanted.qp => Streams::of(endpoint, wanted.qp),
        _ => Streams::default(),
    };
    if wanted.cnt {
        snapshot.cnt = Some(totals(rt, &streams));
        snapshot.reasons = Some(rt.counters().reasons());
    }
    if wanted.mem {
        snapshot.mem = Some(memory(endpoint, &streams));
    }
    if wanted.qp {
        snapshot.qp = Some(endpoint.map(|endpoint| streams.links(rt, endpoint)).unwrap_or_default());
    }
    if wanted.sock {
        let (sock, udp) = sockets::all(endpoint);
        (snapshot.sock, snapshot.udp) = (Some(sock), Some(udp));
    }
    snapshot
}

/// The process's counters; those of bytes and messages are of closed connections, so the live ones are added.
fn totals(rt: &Runtime, streams: &Streams) -> Counters {
    let mut all = rt.counters().snapshot();
    all.extend(rt.helper.done.counted(0));
    let assistants = rt.assistants.list().iter().zip(1..);
    all.extend(assistants.flat_map(|(assistant, number)| assistant.done.counted(number)));
    all.extend(rt.endpoint().map(|endpoint| ("copies_shared".to_owned(), endpoint.copies().offered())));
    all.extend(rt.spin.counted().map(|(name, count)| (name.to_owned(), count)));
    let mut open = streams.counters;
    let mut datagrams = Datagrams::default();
    // An instance may have several descriptors.
    let mut instances = BTreeMap::new();
    for (fd, entry) in table::entries() {
        match &*entry {
            Entry::Stream(sock) if sock.stream.is_none() && sock.fd.load(Ordering::Relaxed) == fd => {
                open += counted_by_kernel(fd);
            }
            Entry::Epoll(instance) => {
                instances.insert(Arc::as_ptr(&entry), instance.waits());
            }
            Entry::Datagram(socket) => datagrams.add(fd, socket),
            _ => {}
        }
    }
    let datagrams = rt.flows.counted(datagrams.iter().map(|(_, socket)| socket));
    all.extend(datagrams.into_iter().map(|(name, count)| (name.to_owned(), count)));
    for (name, n) in named(&open) {
        *all.entry(name.to_owned()).or_default() += n;
    }
    let ended = rt.ended_epoll_waits.load(Ordering::Relaxed);
    all.insert("epoll_waits".into(), ended + instances.values().sum::<u64>());
    all
}

/// Bytes of a connection that has no stream.
pub fn counted_by_kernel(fd: RawFd) -> StreamCounters {
    let (rx_bytes_tcp, tx_bytes_tcp) = peer::kernel_bytes(fd);
    StreamCounters { rx_bytes_tcp, tx_bytes_tcp, ..StreamCounters::default() }
}

fn named(c: &StreamCounters) -> [(&'static str, u64); 6] {
    [
        ("tx_bytes_link", c.tx_bytes_link),
        ("rx_bytes_link", c.rx_bytes_link),
        ("tx_msgs_link", c.tx_msgs_link),
        ("rx_msgs_link", c.rx_msgs_link),
        ("tx_bytes_tcp", c.tx_bytes_tcp),
        ("rx_bytes_tcp", c.rx_bytes_tcp),
    ]
}

fn memory(endpoint: Option<&Endpoint>, streams: &Streams) -> Counters {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    let mut mem = Counters::from([("locked_limit_bytes".to_owned(), limit.rlim_cur)]);
    if let Some(endpoint) = endpoint {
        mem.extend(streams.rings(endpoint.config().ring_len));
    }
    mem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_sections() {
        let cnt = Sections { cnt: true, ..Sections::default() };
        assert_eq!(Sections::parse(b"GET"), Some(cnt));
        assert_eq!(Sections::parse(b"GET cnt\r"), Some(cnt));
        assert_eq!(Sections::parse(b"GET mem,cnt"), Some(Sections { mem: true, ..cnt }));
        assert_eq!(Sections::parse(b"GET sock cnt"), Some(Sections { sock: true, ..cnt }));
        let all = Sections { cfg: true, cnt: true, mem: true, qp: true, sock: true };
        assert_eq!(Sections::parse(b"GET all"), Some(all));
        for bad in [&b""[..], b"GETALL", b"POST cnt", b"GET nonsense", b"GET \xFF"] {
            assert_eq!(Sections::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn requests_switch_paths_or_read_statistics() {
        assert_eq!(Request::parse(b"DEMOTE\r"), Some(Request::Demote));
        assert_eq!(Request::parse(b"PROMOTE"), Some(Request::Promote));
        assert_eq!(Request::parse(b"GET mem"), Sections::parse(b"GET mem").map(Request::Report));
        assert_eq!(Request::parse(b"DEMOTE all"), None);
        assert_eq!(Request::parse(b"SURRENDER 7\r"), Some(Request::Surrender(7)));
        for bad in [&b"SURRENDER"[..], b"SURRENDER ", b"SURRENDER 7 8", b"SURRENDER 99999999999"] {
            assert_eq!(Request::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_address_is_abstract_and_not_padded() {
        let (address, len) = address(42, None);
        assert_eq!(address.sun_path[0], 0);
        let name: Vec<u8> = address.sun_path[1..].iter().take(12).map(|c| *c as u8).collect();
        assert_eq!(name, b"netacc-ss/42");
        assert_eq!(len as usize, 2 + 13);
    }
}
