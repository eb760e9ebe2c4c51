//! The base of the tests across processes: a device with one completion queue, connecting, and helper processes.
//!
//! A helper is this test binary again, running the ignored test `helper` with a role in its environment. Helpers
//! are found through the device's own directory, and every wait ends after [`PATIENCE`].

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(unsafe_code, reason = "poll(2) and raw sockets")]
#![allow(unreachable_pub, reason = "a module of test binaries")]

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netacc_device::{
    Armed, CmEvent, Completion, CompletionEvents, CompletionQueueId, ConnectionManager, Device, Directory, FourTuple,
    Operation, Payload, PeerAddress, PostError, QueuePairId, Region, RemoteRegion, WorkCompletion, WorkRequest,
    WorkRequestId,
};
use netacc_shm::{ShmConfig, ShmDevice};

/// No wait is longer than this.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a connection's first region.
pub const REGION: usize = 16 << 10;

/// A device with a completion queue.
pub struct Node {
    pub dev: Arc<ShmDevice>,
    pub cq: CompletionQueueId,
}

/// One end of a connection.
pub struct Conn {
    pub qp: QueuePairId,
    pub local: Region,
    pub remote: RemoteRegion,
}

pub fn config(dir: &Path) -> ShmConfig {
    ShmConfig { directory: Some(dir.to_owned()), ..ShmConfig::default() }
}

/// The tuple that a helper with number `n` publishes, as it sees it.
pub fn tuple(n: u16) -> FourTuple {
    let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
    FourTuple { local: addr(1000 + n), remote: addr(9) }
}

/// Calls `step` until it returns something.
pub fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    let mut rounds = 0u32;
    loop {
        if let Some(t) = step() {
            return t;
        }
        rounds += 1;
        if rounds.is_multiple_of(64) {
            assert!(Instant::now() < end, "gave up waiting for {what}");
            std::thread::yield_now();
        }
    }
}

pub fn poll_fd(fd: RawFd, patience: Duration) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut p, 1, patience.as_millis() as i32) > 0 }
}

/// Limits the descriptors of this process.
pub fn set_descriptor_limit(count: u64) {
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: the struct is readable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

impl Node {
    pub fn open(dir: &Path) -> Node {
        Node::with(config(dir))
    }

    pub fn with(config: ShmConfig) -> Node {
        let dev = ShmDevice::open(config).expect("device");
        let cq = dev.create_cq().expect("completion queue");
        Node { dev, cq }
    }

    /// The address of helper `n`, once it is there.
    pub fn find(&self, n: u16) -> PeerAddress {
        until("a helper", || self.dev.lookup(&tuple(n).reversed())).0
    }

    pub fn event(&self, what: &str) -> CmEvent {
        until(what, || self.dev.poll_event())
    }

    pub fn connect(&self, peer: PeerAddress) -> Conn {
        let id = self.dev.connect(peer, self.cq, REGION, b"hello").expect("connect");
        match self.event("an established connection") {
            CmEvent::Established { id: got, qp, local, remote, .. } if got == id => self.conn(qp, local, remote),
            other => panic!("expected a connection, got {other:?}"),
        }
    }

    /// Accepts one connection, if one is requested.
    pub fn try_accept(&self) -> Option<Conn> {
        match self.dev.poll_event()? {
            CmEvent::Request { id, .. } => {
                // The peer may be gone already.
                let _ = self.dev.accept(id, self.cq, REGION);
                None
            }
            CmEvent::Established { qp, local, remote, .. } => Some(self.conn(qp, local, remote)),
            _ => None,
        }
    }

    pub fn accept(&self) -> Conn {
        until("a request", || self.try_accept())
    }

    fn conn(&self, qp: QueuePairId, local: Region, remote: RemoteRegion) -> Conn {
        self.dev.post_recv(qp, 64).expect("fresh queue pair");
        Conn { qp, local, remote }
    }

    pub fn try_send(&self, c: &Conn, imm: u32, at: u64, bytes: &[u8]) -> Result<(), PostError> {
        let operation = Operation::Write { rkey: c.remote.rkey, offset: c.remote.base + at, imm: Some(imm) };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::Inline(bytes), signaled: false };
        self.dev.post_send(c.qp, &[wr]).map(drop)
    }

    pub fn send(&self, c: &Conn, imm: u32, at: u64, bytes: &[u8]) {
        until("room to send", || match self.try_send(c, imm, at, bytes) {
            Ok(()) => Some(()),
            Err(PostError::QueueFull) => None,
            Err(e) => panic!("post_send: {e}"),
        });
    }

    /// The next completion, and a receive posted in its place.
    pub fn try_recv(&self, qp: QueuePairId) -> Option<Completion> {
        let mut wc = [EMPTY];
        (self.dev.poll_qp(qp, &mut wc) == 1).then(|| {
            if matches!(wc[0].completion, Completion::Receive { .. }) {
                // Fails on a dead queue pair.
                let _ = self.dev.post_recv(qp, 1);
            }
            wc[0].completion
        })
    }

    pub fn recv(&self, qp: QueuePairId) -> Completion {
        until("a completion", || {
            self.dev.poll_event();
            self.try_recv(qp)
        })
    }

    /// Sleeps until the channel is readable, like a program whose helper thread serves the connection manager: a peer
    /// that does not have the channel's descriptor yet wakes it that way. Panics after [`PATIENCE`] without an event.
    fn sleep(&self) {
        let channel = self.dev.channel_fd(self.cq).expect("channel");
        let ready = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = [ready(channel, libc::POLLIN), ready(self.dev.event_fds()[0], libc::POLLIN)];
        while fds[0].revents == 0 {
            let patience = PATIENCE.as_millis() as libc::c_int;
            // SAFETY: two valid entries.
            let n = unsafe { libc::poll(fds.as_mut_ptr(), 2, patience) };
            assert!(n > 0, "lost wake-up on the channel");
            self.dev.poll_event();
        }
    }

    /// As [`recv`](Node::recv), sleeping on the channel in between.
    pub fn recv_asleep(&self, qp: QueuePairId) -> Completion {
        let mut ready = [qp; 4];
        loop {
            if let Some(c) = self.try_recv(qp) {
                return c;
            }
            if self.dev.arm(self.cq) == Armed::Sleep {
                self.sleep();
            }
            self.dev.disarm(self.cq);
            self.dev.drain(self.cq);
            self.dev.pending(self.cq, &mut ready);
        }
    }

    /// As [`recv`](Node::recv), sleeping in `wait_qp`.
    pub fn recv_waiting(&self, qp: QueuePairId) -> Completion {
        loop {
            let seen = self.dev.qp_sequence(qp);
            if let Some(c) = self.try_recv(qp) {
                return c;
            }
            let woken = self.dev.wait_qp(qp, seen, Some(PATIENCE));
            assert_ne!(woken, netacc_device::Wait::TimedOut, "lost wake-up in wait_qp");
        }
    }
}

pub const EMPTY: WorkCompletion = WorkCompletion {
    qp: QueuePairId(0),
    status: netacc_device::CompletionStatus::Success,
    completion: Completion::Disconnected,
};

/// A rendezvous directory of one test, removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        let path = PathBuf::from(format!("/dev/shm/netacc-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The words of the emulator by which this binary runs, where the kernel does not run it by itself.
pub fn emulator() -> Vec<String> {
    let words = std::env::var("NETACC_TEST_RUNNER").unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// A command that runs a test binary.
pub fn binary(path: &Path) -> Command {
    let mut words = emulator().into_iter().chain([path.to_str().expect("a path in UTF-8").to_owned()]);
    let mut command = Command::new(words.next().expect("the path, if nothing else"));
    command.args(words);
    command
}

/// A helper process, killed at the end.
pub struct Helper(pub Child);

impl Helper {
    pub const ARGUMENTS: [&str; 6] = ["--exact", "helper", "--ignored", "--nocapture", "--test-threads=1", "-q"];

    pub fn command(dir: &Path, role: &str, n: u16) -> Command {
        let mut c = binary(&std::env::current_exe().expect("own path"));
        c.args(Helper::ARGUMENTS);
        c.env("SHM_ROLE", role).env("SHM_DIR", dir).env("SHM_N", n.to_string());
        c.stdout(std::process::Stdio::null());
        c
    }

    pub fn start(dir: &Path, role: &str, n: u16) -> Helper {
        Helper(Helper::command(dir, role, n).spawn().expect("helper"))
    }

    /// Waits for a successful end.
    pub fn finish(mut self) {
        let status = until("a helper's end", || self.0.try_wait().expect("wait"));
        assert!(status.success(), "helper failed: {status}");
    }

    pub fn kill(mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The role, directory and number of this helper.
pub fn role() -> (String, PathBuf, u16) {
    let var = |name| std::env::var(name).expect("started as a helper");
    (var("SHM_ROLE"), var("SHM_DIR").into(), var("SHM_N").parse().expect("a number"))
}

/// Open descriptors of this process.
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// A raw packet socket to the address of a device; `None` if it is refused at once.
pub fn raw_socket(peer: PeerAddress) -> Option<RawFd> {
    // The place of its table follows.
    let beginning = format!("netacc-shm/{}/{:016x}{:016x}/", peer.0[1], peer.0[2], peer.0[3]);
    let names = std::fs::read_to_string("/proc/net/unix").expect("proc");
    let mut names = names.split_ascii_whitespace().filter_map(|word| word.strip_prefix('@'));
    let name = names.find(|name| name.starts_with(&beginning))?;
    // SAFETY: plain system calls on valid memory.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut addr: libc::sockaddr_un = std::mem::zeroed();
        addr.sun_family = libc::AF_UNIX as _;
        for (to, from) in addr.sun_path[1..].iter_mut().zip(name.bytes()) {
            *to = from as _;
        }
        let len = (2 + 1 + name.len()) as u32;
        (libc::connect(fd, std::ptr::from_ref(&addr).cast(), len) == 0).then_some(fd)
    }
}

pub fn raw_send(fd: RawFd, bytes: &[u8]) {
    // SAFETY: valid bytes.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
}

/// Whether the other side has closed.
pub fn raw_closed(fd: RawFd) -> bool {
    let mut byte = [0u8; 256];
    // SAFETY: valid buffer.
    let n = unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 256, libc::MSG_DONTWAIT) };
    n == 0 || (n < 0 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock)
}

pub fn raw_close(fd: RawFd) {
    // SAFETY: callers close what `raw_socket` gave them.
    unsafe { libc::close(fd) };
}

pub fn fd_is_open(fd: RawFd) -> bool {
    // SAFETY: no memory involved.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Runs `f` in a forked child; returns its wait status, 0 if `f` was true. `f` must not allocate or lock.
pub fn forked(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only runs `f` and leaves without unwinding or destructors.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(i32::from(!f()));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}
