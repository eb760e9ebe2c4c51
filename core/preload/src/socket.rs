//! Sockets of the program: state the shim keeps beside the kernel's.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use netacc_device::{Anchor, AnchorError, AnchorPosition};
use netacc_driver::{PromotionSchedule, StreamCell};
use netacc_proto::Reason;
use parking_lot::Mutex;

use crate::answers::Answers;
use crate::epoll::Registration;
use crate::ops::options::{get_int, read_from_kernel, set_int};
use crate::ops::waiting::Callers;
use crate::runtime::{self, Inherited, Runtime};
use crate::table::Entry;
use crate::{family, lingering, real, wait};

mod notices;
mod options;

use notices::Notices;
pub use options::{int, Options};

/// How long leaving a link may take whose ring has become too long. Arbitrary: a live peer answers in well under a
/// millisecond.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// A TCP connection of the program. Shared by all descriptors that were duplicated from one another.
pub struct Socket {
    /// The stream; `None` when this connection stays on TCP for good.
    pub stream: Option<Arc<StreamCell>>,
    /// Why it stays on TCP, if it does.
    pub reason: Reason,
    /// This end accepted the connection; the other one asks for promotion.
    pub accepted: bool,
    /// Why its stream is not on a link, once that was found out and counted; `Reason::None` before.
    noted: AtomicU16,
    /// A descriptor of it that is open.
    pub fd: AtomicI32,
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// Threads that wait in calls on it.
    pub callers: Callers,
    /// O_NONBLOCK of the open file description.
    pub nonblocking: AtomicBool,
    /// Options.
    pub options: Options,
    /// What MSG_ZEROCOPY has to tell.
    notices: Notices,
    /// Send and receive calls so far: promotion begins after `NACC_PROMOTE_AFTER`.
    pub operations: AtomicU32,
    /// At which count of `operations` promotion is tried next.
    pub promotion: PromotionSchedule,
    /// What tells whether its link is worth while; `None` where that is no question.
    pub answers: Option<Answers>,
    /// What ended a call that returned a number of bytes: for the next call. 0 for nothing.
    pub deferred_error: AtomicI32,
    /// Epoll instances that watch it.
    pub watchers: Mutex<Vec<Registration>>,
    /// Descriptors that the program has closed although epoll instances watch them, and the duplicates that are watched now.
    pub outliving: Mutex<Vec<(c_int, c_int)>>,
    /// Its place in the family, see [`family`]; 0 if no other process ever held it.
    pub family: AtomicU32,
    inherited: OnceLock<Inherited>,
    /// Child of a fork: it may have a stream of its own here once it is used.
    adoptable: AtomicBool,
    /// What has taken its place in the table, with a stream.
    adopted: OnceLock<Arc<Entry>>,
    /// For display: when it was made, in the order of the process.
    pub serial: u64,
}

/// A socket that is not connected (yet).
pub struct Listener {
    /// O_NONBLOCK.
    pub nonblocking: AtomicBool,
    /// `listen` was called.
    pub listening: AtomicBool,
    /// AF_INET or AF_INET6.
    pub domain: c_int,
    /// Options, which go over to what is accepted here.
    pub options: Options,
    /// An option was set that only the kernel can honour.
    pub kernel_only: AtomicBool,
    /// O_ASYNC, which only the kernel can honour, and which is not inherited.
    pub signals_io: AtomicBool,
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// Epoll instances that watch it, to be carried over when it becomes a connection.
    pub watchers: Mutex<Vec<Registration>>,
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

impl Socket {
    /// A connection on descriptor `fd`.
    pub fn new(
        fd: c_int,
        stream: Option<Arc<StreamCell>>,
        reason: Reason,
        nonblocking: bool,
        promote_at: u32,
    ) -> Socket {
        Socket {
            stream,
            reason,
            accepted: false,
            noted: AtomicU16::new(0),
            fd: AtomicI32::new(fd),
            descriptors: AtomicU32::new(1),
            callers: Callers::default(),
            nonblocking: AtomicBool::new(nonblocking),
            options: Options::default(),
            notices: Notices::default(),
            operations: AtomicU32::new(0),
            promotion: PromotionSchedule::new(promote_at),
            answers: None,
            deferred_error: AtomicI32::new(0),
            watchers: Mutex::new(Vec::new()),
            outliving: Mutex::new(Vec::new()),
            family: AtomicU32::new(0),
            inherited: OnceLock::new(),
            adoptable: AtomicBool::new(false),
            adopted: OnceLock::new(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Takes note of why the stream is not on a link, and counts it the first time.
    pub fn note_reason(&self, reason: Reason) {
        if self.noted.swap(reason as u16, Ordering::Relaxed) == 0 {
            if let Some(rt) = crate::runtime::get() {
                rt.count_reason(reason);
            }
        }
    }

    /// What was noted last.
    pub fn noted_reason(&self) -> Option<Reason> {
        let code = self.noted.load(Ordering::Relaxed);
        (code != 0).then(|| Reason::from_code(code))
    }

    /// The same connection with another stream: everything that the program has set is carried over.
    fn carried_over(&self, fd: c_int, stream: Option<Arc<StreamCell>>, reason: Reason, promote_at: u32) -> Socket {
        let mut new = Socket::new(fd, stream, reason, self.nonblocking.load(Ordering::Relaxed), promote_at);
        new.accepted = self.accepted;
        new.options.take_over(&self.options);
        new.apply_options();
        new.notices.go_on_from(&self.notices);
        new.descriptors.store(self.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        new.deferred_error.store(self.deferred_error.load(Ordering::Relaxed), Ordering::Relaxed);
        new.family.store(self.family.load(Ordering::Relaxed), Ordering::Relaxed);
        new
    }

    /// Child of a fork: what it has of the parent's socket. A plain one until it is used. Takes no lock.
    pub fn inherited_from(parent: &Socket, fd: c_int) -> Socket {
        let new = parent.carried_over(fd, None, Reason::Shared, u32::MAX);
        let adoptable = match &parent.stream {
            Some(cell) => !cell.is_pinned(),
            None => parent.adoptable.load(Ordering::Relaxed),
        };
        new.adoptable.store(adoptable, Ordering::Relaxed);
        new
    }

    /// Child of a fork: the stream was on a link of the parent, who must be asked for it.
    pub fn inherit(&self, inherited: Inherited) {
        let _ = self.inherited.set(inherited);
    }

    /// What [`inherit`](Socket::inherit) said.
    pub fn inherited(&self) -> Option<&Inherited> {
        self.inherited.get()
    }

    /// Child of a fork, at its first use: what stands for the connection from now on, with the stream that `make`
    /// makes of the descriptor. `None`: it stays as it is.
    pub fn adopt(
        &self,
        make: impl FnOnce(c_int, &dyn Fn(Arc<StreamCell>, u32) -> Socket) -> Option<Arc<Entry>>,
    ) -> Option<Arc<Entry>> {
        if !self.adoptable.load(Ordering::Acquire) {
            return None;
        }
        if let Some(entry) = self.adopted.get() {
            return Some(entry.clone());
        }
        // Not `OnceLock::get_or_init`: there may be nothing to adopt it with.
        let _one = self.watchers.lock();
        if self.adopted.get().is_none() {
            let fd = self.fd.load(Ordering::Relaxed);
            let with = |cell, promote_at| self.carried_over(fd, Some(cell), Reason::NotYet, promote_at);
            match make(fd, &with) {
                Some(entry) => drop(self.adopted.set(entry)),
                None => self.adoptable.store(false, Ordering::Release),
            }
        }
        self.adopted.get().cloned()
    }

    /// Keeps the connection off links for good.
    pub fn keep_on_kernel(&self) {
        self.adoptable.store(false, Ordering::Release);
        self.promotion.end();
        if let Some(cell) = &self.stream {
            cell.pin();
        }
    }

    /// Whether this process alone holds it. If so its stream is not shared any more.
    pub fn holds_alone(&self) -> bool {
        let Some(cell) = &self.stream else { return false };
        let seen = cell.shares();
        // Another thread may fork meanwhile.
        if seen > 0 && family::holds_alone(self.family.load(Ordering::Relaxed)) {
            self.ask_nonblocking();
            read_from_kernel(&self.options, self.fd.load(Ordering::Relaxed));
            cell.unshare(seen);
        }
        !cell.is_shared()
    }

    /// O_NONBLOCK, for a call that would have to wait. It belongs to the open file description: who else has that, in
    /// another process or under a descriptor that came back in a message, may have set it.
    pub fn is_nonblocking(&self) -> bool {
        if self.stream.as_ref().is_some_and(|cell| cell.is_shared() || cell.is_pinned()) {
            self.ask_nonblocking();
        }
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Whether closing `fd` is to reset the connection. Another process that holds or held the socket may have said so.
    pub fn aborts_on_close(&self, fd: c_int) -> bool {
        let said = self.options.abort_on_close.load(Ordering::Relaxed);
        if said || self.family.load(Ordering::Relaxed) == 0 {
            return said;
        }
        let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
        let mut len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: a writable struct, and its length.
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut linger).cast(), &mut len) };
        linger.l_onoff != 0 && linger.l_linger == 0
    }

    fn ask_nonblocking(&self) {
        // SAFETY: no pointers.
        let flags = unsafe { real::fcntl(self.fd.load(Ordering::Relaxed), libc::F_GETFL, 0) };
        if flags >= 0 {
            self.nonblocking.store(flags & libc::O_NONBLOCK != 0, Ordering::Relaxed);
        }
    }

    /// Makes an inherited descriptor a plain socket before its first use here.
    #[inline]
    pub fn reclaim(&self) {
        if self.inherited.get().is_some_and(|inherited| !inherited.reclaim()) {
            self.reset();
        }
    }

    /// Ends the connection with a reset, for this side too: what was on the link of a parent that was killed is lost, and what
    /// its peer writes on the anchor now is about that.
    #[cold]
    fn reset(&self) {
        dissolve(self.fd.load(Ordering::Relaxed));
    }

    /// The stream, after `reclaim`.
    pub fn reclaimed_stream(&self) -> Option<Arc<StreamCell>> {
        self.reclaim();
        self.stream.clone()
    }

    /// SO_RCVLOWAT and SO_RCVBUF hold on a link too.
    pub fn apply_options(&self) {
        let Some((cell, endpoint)) = self.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint)) else {
            return;
        };
        if self.options.low_water.load(Ordering::Relaxed).max(1) as u32 != cell.low_water() {
            self.apply_low_water();
        }
        let most = self.options.receive_buffer.load(Ordering::Relaxed);
        if most == u32::MAX {
            return;
        }
        cell.limit_ring(most);
        // A ring keeps its length as long as the stream is on its link. It comes back with a shorter one.
        let len = cell.lock(endpoint).proto().rx_ring_len();
        if len > cell.next_ring_len(endpoint.config().ring_len) {
            wait::demote(endpoint, cell, Reason::KernelOnly, LEAVE_PATIENCE);
        }
    }

    /// SO_RCVLOWAT has been set, perhaps to what it was: that, too, tells who waits of what is there.
    pub fn apply_low_water(&self) {
        if let Some((cell, endpoint)) = self.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint)) {
            cell.lock(endpoint).set_low_water(self.options.low_water.load(Ordering::Relaxed).max(1) as u32);
        }
    }

    /// Calls `call` while nothing happens to the stream.
    pub fn while_locked<T>(&self, call: impl FnOnce() -> T) -> T {
        let guard = self.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint));
        let guard = guard.map(|(cell, endpoint)| cell.lock(endpoint));
        let result = call();
        drop(guard);
        result
    }

    /// What TCP_CORK or MSG_MORE holds back goes out.
    pub fn push_held(&self) {
        if let Some((cell, endpoint)) = self.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint)) {
            cell.lock(endpoint).push_held();
        }
    }

    /// A send with MSG_ZEROCOPY is complete.
    #[cold]
    pub fn note_zero_copy(&self) {
        match &self.stream {
            Some(cell) => {
                self.notices.add();
                self.tell_notices(cell);
                let now = cell.readiness();
                for watcher in self.watchers.lock().iter() {
                    watcher.ready(now, true);
                }
            }
            None => self.notices.pass_over(),
        }
    }

    /// The sends with MSG_ZEROCOPY, first and last, that nobody has been told of.
    #[cold]
    pub fn take_notices(&self) -> Option<(u32, u32)> {
        let taken = self.notices.take();
        if let Some(cell) = &self.stream {
            self.tell_notices(cell);
        }
        taken
    }

    /// Keeps readiness in step. Whoever is last to change the notices is also last here, and sees them as they are.
    fn tell_notices(&self, cell: &StreamCell) {
        let _one = self.watchers.lock();
        cell.set_notice(self.notices.pending());
    }

    /// Takes the error that a call has left for the next one.
    pub fn take_deferred_error(&self) -> Option<c_int> {
        let error = self.deferred_error.swap(0, Ordering::Relaxed);
        (error != 0).then_some(error)
    }
}

impl Listener {
    /// A fresh socket.
    pub fn new(domain: c_int, nonblocking: bool) -> Listener {
        Listener {
            nonblocking: AtomicBool::new(nonblocking),
            listening: AtomicBool::new(false),
            domain,
            options: Options::default(),
            kernel_only: AtomicBool::new(false),
            signals_io: AtomicBool::new(false),
            descriptors: AtomicU32::new(1),
            watchers: Mutex::new(Vec::new()),
        }
    }

    /// The same socket in a forked child, which shares no locks with the parent.
    pub fn duplicate(&self) -> Listener {
        let copy = Listener::new(self.domain, self.nonblocking.load(Ordering::Relaxed));
        copy.listening.store(self.listening.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.options.take_over(&self.options);
        copy.kernel_only.store(self.kernel_only.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.signals_io.store(self.signals_io.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.descriptors.store(self.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        copy
    }

    /// What is left of a connection that was dissolved, or never came to be.
    pub fn once_connected(sock: &Socket, domain: c_int) -> Listener {
        let new = Listener::new(domain, sock.nonblocking.load(Ordering::Relaxed));
        new.options.take_over(&sock.options);
        let pinned = sock.stream.as_ref().is_some_and(|cell| cell.is_pinned());
        new.kernel_only.store(pinned, Ordering::Relaxed);
        new.descriptors.store(sock.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        new
    }

    /// Gives a connection what the kernel gives it of this socket's options.
    pub fn pass_on(&self, sock: &Socket) {
        sock.options.take_over(&self.options);
        sock.apply_options();
        if self.kernel_only.load(Ordering::Relaxed) {
            sock.keep_on_kernel();
            sock.note_reason(Reason::KernelOnly);
        }
    }
}

/// The kernel socket beneath a stream, for records and replay.
pub struct FdAnchor {
    fd: c_int,
    /// Close it when done: it is a duplicate kept for a closed socket.
    owned: bool,
}

impl FdAnchor {
    /// The application's own descriptor.
    pub fn borrowed(fd: c_int) -> FdAnchor {
        FdAnchor { fd, owned: false }
    }

    /// A duplicate that outlives the application's descriptor.
    pub fn duplicate(fd: c_int) -> Option<FdAnchor> {
        Some(FdAnchor { fd: lingering::duplicate(fd)?, owned: true })
    }
}

impl Drop for FdAnchor {
    fn drop(&mut self) {
        if self.owned {
            lingering::close(self.fd);
        }
    }
}

/// How often the kernel's counts are read in the hope of a quiet moment. Arbitrary.
const POSITION_TRIES: u32 = 8;

/// What the kernel has counted for a connection. See `struct tcp_info` in linux/tcp.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    state: u8,
    bytes_acked: u64,
    pub(crate) bytes_received: u64,
    notsent_bytes: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
}

/// `TCP_ESTABLISHED` in linux/tcp_states.h.
const ESTABLISHED: u8 = 1;
/// `TCP_CLOSE`.
const CLOSED: u8 = 7;
/// `TCP_TIME_WAIT`, `TCP_CLOSE`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`: the peer has ended its direction.
const FIN_RECEIVED: [u8; 5] = [6, CLOSED, 8, 9, 11];

impl TcpInfo {
    pub(crate) fn of(fd: c_int) -> Option<TcpInfo> {
        let mut bytes = [0u8; 256];
        let mut len = bytes.len() as libc::socklen_t;
        // SAFETY: the buffer has `len` writable bytes.
        let rc =
            unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &mut len) };
        let wide = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        // Linux 4.19 and later; what an older kernel does not have is beyond `len`.
        if rc != 0 || len < 216 {
            return None;
        }
        Some(TcpInfo {
            state: bytes[0],
            bytes_acked: wide(120)?,
            bytes_received: wide(128)?,
            notsent_bytes: wide(144)? as u32,
            bytes_sent: wide(200)?,
            bytes_retrans: wide(208)?,
        })
    }

    /// Bytes handed to the connection, sent or not.
    pub(crate) fn written(self) -> Option<u64> {
        (self.bytes_sent + u64::from(self.notsent_bytes)).checked_sub(self.bytes_retrans)
    }

    /// What was written is counted in two ways, of which one counts the SYN of the side that connected; if they do not
    /// agree (a packet that was lost on the way to the device, say) the position is not known. Nor is it once a direction
    /// has ended, because a FIN is counted too.
    fn position(self, unread: u64, unacknowledged: u64) -> Option<AnchorPosition> {
        if self.state != ESTABLISHED {
            return None;
        }
        let written = self.written()?;
        let syn = (self.bytes_acked + unacknowledged).checked_sub(written)?;
        let read = self.bytes_received.checked_sub(unread)?;
        (syn <= 1).then_some(AnchorPosition { written, read })
    }
}

fn queued(fd: c_int, request: libc::c_ulong) -> Option<u64> {
    let mut n: c_int = 0;
    // SAFETY: both requests write an int.
    let rc = unsafe { real::ioctl(fd, request, (&raw mut n).cast()) };
    (rc == 0).then_some(u64::try_from(n).ok()?)
}

fn says_read_hang_up(fd: c_int) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { real::poll(&mut p, 1, 0) > 0 }
}

/// Ends a connection with a reset, for both sides. The descriptor refers to a socket that is not connected then.
fn dissolve(fd: c_int) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: a valid address, and its length.
    unsafe { real::connect(fd, &raw const nowhere, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

/// What `poll` says of a descriptor, asked for nothing: POLLERR, POLLHUP, POLLNVAL.
fn polled(fd: c_int) -> i16 {
    let mut p = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { real::poll(&mut p, 1, 0) };
    p.revents
}

fn result(n: isize) -> Result<usize, AnchorError> {
    if n >= 0 {
        return Ok(n as usize);
    }
    let e = io::Error::last_os_error();
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Err(AnchorError::WouldBlock),
        _ => Err(AnchorError::Os(e)),
    }
}

impl Anchor for FdAnchor {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the slice is readable.
        result(unsafe { real::send(self.fd, bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        // SAFETY: the slice is writable.
        result(unsafe { real::recv(self.fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) })
    }

    fn try_peek(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        // SAFETY: the slice is writable.
        result(unsafe { real::recv(self.fd, buf.as_mut_ptr().cast(), buf.len(), flags) })
    }

    fn position(&self) -> Option<AnchorPosition> {
        // Another holder may have shut down reading, of which the state of the connection says nothing.
        if says_read_hang_up(self.fd) {
            return None;
        }
        // The counts are not taken at one moment: try until nothing has moved between them.
        (0..POSITION_TRIES).find_map(|_| {
            let before = TcpInfo::of(self.fd)?;
            let (unread, unacknowledged) = (queued(self.fd, libc::FIONREAD)?, queued(self.fd, libc::TIOCOUTQ)?);
            (TcpInfo::of(self.fd)? == before).then(|| before.position(unread, unacknowledged)).flatten()
        })
    }

    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        // SAFETY: no pointers.
        result(unsafe { real::shutdown(self.fd, libc::SHUT_WR) } as isize).map(|_| ())
    }

    fn shutdown_read(&mut self) -> Result<(), AnchorError> {
        // SAFETY: no pointers.
        result(unsafe { real::shutdown(self.fd, libc::SHUT_RD) } as isize).map(|_| ())
    }

    fn is_broken(&self) -> bool {
        polled(self.fd) & libc::POLLERR != 0 && queued(self.fd, libc::FIONREAD) == Some(0)
    }

    fn is_over(&self) -> bool {
        // POLLHUP alone is also said of a connection that this side has shut down both ways.
        polled(self.fd) & libc::POLLHUP != 0 && TcpInfo::of(self.fd).is_none_or(|info| info.state == CLOSED)
    }

    fn is_ended(&self) -> bool {
        // POLLRDHUP is also said of a direction that this side has shut down.
        says_read_hang_up(self.fd) && TcpInfo::of(self.fd).is_some_and(|info| FIN_RECEIVED.contains(&info.state))
    }

    fn has_fin(&self, read: u64) -> Option<bool> {
        let info = TcpInfo::of(self.fd)?;
        if info.state != CLOSED {
            return Some(FIN_RECEIVED.contains(&info.state));
        }
        // A FIN is counted as a byte received, and is never unread.
        match info.bytes_received.checked_sub(read + self.unread())? {
            n @ (0 | 1) => Some(n == 1),
            _ => None,
        }
    }

    fn unread(&self) -> u64 {
        queued(self.fd, libc::FIONREAD).unwrap_or(0)
    }

    fn clear_error(&mut self) {
        let (mut error, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: an int, and its length.
        unsafe { real::getsockopt(self.fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut len) };
    }

    fn push(&mut self) {
        let tcp = libc::IPPROTO_TCP;
        let before = get_int(self.fd, tcp, libc::TCP_NODELAY);
        if before == Some(1) && get_int(self.fd, tcp, libc::TCP_CORK) != Some(1) {
            return;
        }
        // The kernel sends what it holds when TCP_NODELAY is set: what waits for an acknowledgement, and even what is corked.
        // Nobody sets either meanwhile: see `setsockopt`.
        set_int(self.fd, tcp, libc::TCP_NODELAY, 1);
        if before == Some(0) {
            set_int(self.fd, tcp, libc::TCP_NODELAY, 0);
        }
    }

    fn abort(&mut self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the option value is a valid struct of that size.
        unsafe {
            real::setsockopt(
                self.fd,
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
    }

    fn reset(&mut self) {
        dissolve(self.fd);
    }

    fn set_low_water(&mut self, bytes: u32) {
        set_int(self.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, c_int::try_from(bytes).unwrap_or(c_int::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_kernel_tells_how_far_a_connection_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut far, _) = listener.accept().expect("connected");
        let position = |s: &TcpStream| FdAnchor::borrowed(s.as_raw_fd()).position().map(|p| (p.written, p.read));
        assert_eq!((position(&near), position(&far)), (Some((0, 0)), Some((0, 0))));
        near.write_all(&[7; 5000]).expect("room");
        far.read_exact(&mut [0; 3000]).expect("it is there");
        assert_eq!((position(&near), position(&far)), (Some((5000, 0)), Some((0, 3000))));
        far.set_nonblocking(true).expect("possible");
        let mut written = 0;
        while let Ok(n) = far.write(&[9; 100_000]) {
            written += n as u64;
        }
        near.read_exact(&mut [0; 12_345]).expect("it is there");
        assert_eq!((position(&near), position(&far)), (Some((5000, 12_345)), Some((written, 3000))));
        near.shutdown(Shutdown::Write).expect("connected");
        far.set_nonblocking(false).expect("possible");
        assert_eq!(far.read_to_end(&mut Vec::new()).expect("an end"), 2000);
        assert_eq!((position(&near), position(&far)), (None, None));
    }

    #[test]
    fn what_this_side_has_shut_down_is_not_the_peers_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (far, _) = listener.accept().expect("connected");
        let anchor = FdAnchor::borrowed(near.as_raw_fd());
        assert_eq!((anchor.is_ended(), anchor.is_over()), (false, false));
        near.shutdown(Shutdown::Both).expect("connected");
        assert_eq!((anchor.is_ended(), anchor.is_over()), (false, false));
        far.shutdown(Shutdown::Write).expect("connected");
        assert_eq!((anchor.is_ended(), anchor.is_over()), (true, true));
    }

    #[test]
    fn a_reset_is_told_from_one_after_the_peers_end() {
        let pair = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            (near, listener.accept().expect("connected").0)
        };
        let reset = |s: TcpStream| FdAnchor::borrowed(s.as_raw_fd()).abort();
        for unread in [0, 7] {
            let (mut near, mut far) = pair();
            let anchor = FdAnchor::borrowed(near.as_raw_fd());
            far.write_all(&[1; 10]).expect("room");
            near.read_exact(&mut vec![0; 10 - unread]).expect("it is there");
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(false));
            reset(far);
            assert!(anchor.is_over());
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(false));

            let (mut near, mut far) = pair();
            let anchor = FdAnchor::borrowed(near.as_raw_fd());
            far.write_all(&[1; 10]).expect("room");
            near.read_exact(&mut vec![0; 10 - unread]).expect("it is there");
            far.shutdown(Shutdown::Write).expect("connected");
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(true));
            reset(far);
            assert!(anchor.is_over());
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(true));
        }
    }

    #[test]
    fn counts_that_do_not_agree_are_no_position() {
        let info = |bytes_acked, bytes_sent| TcpInfo {
            state: ESTABLISHED,
            bytes_acked,
            bytes_received: 10,
            notsent_bytes: 5,
            bytes_sent,
            bytes_retrans: 20,
        };
        assert_eq!(info(101, 120).position(3, 5), Some(AnchorPosition { written: 105, read: 7 }));
        assert_eq!(info(100, 120).position(3, 5), Some(AnchorPosition { written: 105, read: 7 }));
        assert_eq!(info(99, 120).position(3, 5), None);
        assert_eq!(info(110, 120).position(3, 5), None);
        assert_eq!(info(100, 120).position(11, 5), None);
    }
}
