//! Sockets of the program: the library's state beside the kernel's.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use netacc_driver::{PromotionSchedule, StreamCell};
use netacc_proto::Reason;
use parking_lot::Mutex;

use crate::anchor::dissolve;
use crate::answers::Answers;
use crate::asking::Timed;
use crate::crowds::Member;
use crate::datagram::Datagram;
use crate::family::{self, Others};
use crate::holders::{socket_number, Loans, Sender};
use crate::instance::Instance;
use crate::os::addresses;
use crate::ring::Ring;
use crate::runtime::{self, Inherited, Runtime};
use crate::watchers::Watchers;
use crate::{probes, switching};

mod callers;
mod notices;
mod options;
mod shared;
mod sleeps;
mod whole;

pub use callers::{Callers, Place};
pub use options::{
    int, keep_as_reported, keep_queue_reports, kernel_only, needs_kernel, read_all_from_kernel, read_from_kernel,
    Options,
};

use notices::Notices;
pub use sleeps::Sleeps;
use whole::Whole;

/// How long leaving a link may take whose ring has become too long. Arbitrary: a live peer answers in well under a
/// millisecond.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// A TCP connection of the program. Shared by all descriptors that were duplicated from one another.
pub struct Socket {
    /// The stream; `None` when this connection stays on TCP for good.
    pub stream: Option<Arc<StreamCell>>,
    /// The reason why it stays on TCP, if it does.
    pub reason: Reason,
    /// This end accepted the connection; the opener asks for promotion.
    pub accepted: bool,
    /// The reason why its stream is not on a link, once that was found and counted; `Reason::None` before.
    recorded: AtomicU16,
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
    /// The notifications of MSG_ZEROCOPY.
    notices: Notices,
    /// Send and receive calls so far: promotion begins after `NACC_PROMOTE_AFTER`.
    pub operations: AtomicU32,
    /// The count of `operations` at which promotion is tried next.
    pub promotion: PromotionSchedule,
    /// Its place among this process's connections to the same service; `None` where it has none.
    pub crowd: Option<Member>,
    /// The measurements that decide whether its link is worthwhile; `None` where they are not needed.
    pub answers: Option<Box<Answers>>,
    /// The error that ended a call which returned a number of bytes: for the next call. 0 for none.
    pub deferred_error: AtomicI32,
    /// Its life is timed, to choose when the next ones to the same service ask for links; `None` if not.
    pub timed: Option<Timed>,
    /// Receives of the kernel that are to sleep before they look for bytes.
    pub sleeps: Sleeps,
    /// Receives that the kernel serves whole.
    pub whole: Whole,
    /// Epoll instances that watch it.
    pub watchers: Watchers,
    /// Descriptors that the program has closed although epoll instances watch them, and the duplicates that are watched now.
    pub outliving: Mutex<Vec<(c_int, c_int)>>,
    /// Its place in the family, see [`family`]; 0 if no other process ever held it.
    pub family: AtomicU32,
    /// Processes that may hold it without being entered in the family.
    pub loans: Loans,
    inherited: OnceLock<Inherited>,
    /// The number of the kernel's socket, once it was read; 0 before.
    number: AtomicU64,
    /// It came from another process, and may have a stream of its own here once it is used.
    adoptable: AtomicBool,
    /// The entry that has taken its place in the table, with a stream.
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
    /// The address that it listens at, if it is only one.
    address: Mutex<Option<SocketAddr>>,
    /// It is a socket of MPTCP, as the program has requested, or as the kernel has it once it listens. A connection that is accepted here is plain TCP if its peer speaks only that.
    pub multipath: AtomicBool,
    /// Options, which accepted connections inherit.
    pub options: Options,
    /// An option was set that only the kernel can honour.
    pub kernel_only: AtomicBool,
    /// O_ASYNC, which only the kernel can honour, and which is not inherited.
    pub signals_io: AtomicBool,
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// Epoll instances that watch it, to be carried over when it becomes a connection.
    pub watchers: Watchers,
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// How a connection begins.
pub struct Beginning {
    /// See [`Socket::stream`].
    pub stream: Option<Arc<StreamCell>>,
    /// See [`Socket::reason`].
    pub reason: Reason,
    /// See [`Socket::accepted`].
    pub accepted: bool,
    /// The operation at which promotion is tried first.
    pub promote_at: u32,
    /// See [`Socket::crowd`].
    pub crowd: Option<Member>,
    /// See [`Socket::answers`].
    pub answers: Option<Box<Answers>>,
    /// See [`Socket::timed`].
    pub timed: Option<Timed>,
    /// See [`Socket::sleeps`].
    pub sleeps: Sleeps,
    /// The operation at which the peer probably asks for a link, if this end has accepted the connection; 0 if that is not known.
    pub asked_at: u32,
}

impl Beginning {
    /// With this stream, if there is one. Otherwise the connection stays on TCP for good, and `reason` is why.
    #[inline]
    pub fn new(stream: Option<Arc<StreamCell>>, reason: Reason, promote_at: u32) -> Beginning {
        let sleeps = Sleeps::default();
        Beginning {
            stream,
            reason,
            accepted: false,
            promote_at,
            crowd: None,
            answers: None,
            timed: None,
            sleeps,
            asked_at: 0,
        }
    }

    /// On TCP for good.
    #[inline]
    pub fn in_kernel(reason: Reason) -> Beginning {
        Beginning::new(None, reason, PromotionSchedule::NEVER)
    }
}

impl Socket {
    /// A connection on descriptor `fd`.
    // Always: made where it is to be, because each connection takes one.
    #[inline(always)]
    pub fn new(fd: c_int, beginning: Beginning, nonblocking: bool) -> Socket {
        let Beginning { stream, reason, accepted, promote_at, crowd, answers, timed, sleeps, asked_at } = beginning;
        Socket {
            stream,
            reason,
            accepted,
            recorded: AtomicU16::new(0),
            fd: AtomicI32::new(fd),
            descriptors: AtomicU32::new(1),
            callers: Callers::default(),
            nonblocking: AtomicBool::new(nonblocking),
            options: Options::default(),
            notices: Notices::default(),
            operations: AtomicU32::new(0),
            promotion: PromotionSchedule::new(promote_at),
            crowd,
            answers,
            timed,
            deferred_error: AtomicI32::new(0),
            sleeps,
            whole: Whole::new(asked_at),
            watchers: Watchers::default(),
            outliving: Mutex::new(Vec::new()),
            family: AtomicU32::new(0),
            loans: Loans::default(),
            inherited: OnceLock::new(),
            number: AtomicU64::new(0),
            adoptable: AtomicBool::new(false),
            adopted: OnceLock::new(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Whether a thread in `poll` or an epoll instance watches it.
    #[inline]
    pub fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Records the reason why the stream is not on a link, and counts it the first time.
    pub fn record_reason(&self, reason: Reason) {
        if self.recorded.swap(reason as u16, Ordering::Relaxed) == 0 {
            let fd = self.stream.as_ref().map(|stream| stream.tag().load(Ordering::Relaxed));
            probes::kept(fd.and_then(|fd| c_int::try_from(fd).ok()).unwrap_or(-1), reason);
            if let Some(rt) = crate::runtime::get() {
                rt.count_reason(reason);
            }
        }
    }

    /// The stream has come back from its link: after some use it may go onto one again.
    pub fn record_return(&self, cell: &StreamCell) {
        if !cell.is_pinned() && !self.accepted {
            self.promotion.record_return(self.operations.load(Ordering::Relaxed));
        }
    }

    /// The reason that was recorded last.
    pub fn recorded_reason(&self) -> Option<Reason> {
        let code = self.recorded.load(Ordering::Relaxed);
        (code != 0).then(|| Reason::from_code(code))
    }

    /// The same connection with another stream: everything that the program has set is carried over.
    fn carried_over(&self, fd: c_int, stream: Option<Arc<StreamCell>>, reason: Reason, promote_at: u32) -> Socket {
        let beginning = Beginning { accepted: self.accepted, ..Beginning::new(stream, reason, promote_at) };
        let new = Socket::new(fd, beginning, self.nonblocking.load(Ordering::Relaxed));
        new.options.take_over(&self.options);
        new.apply_options();
        new.notices.go_on_from(&self.notices);
        new.descriptors.store(self.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        new.deferred_error.store(self.deferred_error.load(Ordering::Relaxed), Ordering::Relaxed);
        new.family.store(self.family.load(Ordering::Relaxed), Ordering::Relaxed);
        new.loans.take_over(&self.loans);
        new
    }

    /// A connection that came from a process of another family, with its socket in the state in which that process left
    /// it.
    pub fn received(fd: c_int, accepted: bool, sender: Sender) -> Socket {
        let beginning = Beginning { accepted, ..Beginning::in_kernel(Reason::Inherited) };
        let new = Socket::new(fd, beginning, false);
        new.read_nonblocking();
        read_from_kernel(&new.options, fd);
        keep_as_reported(&new.options, fd, libc::SO_RCVLOWAT);
        new.loans.add_received(sender);
        new.adoptable.store(true, Ordering::Relaxed);
        new
    }

    /// The number of the kernel's socket.
    pub fn number(&self) -> Option<u64> {
        match self.number.load(Ordering::Relaxed) {
            0 => {
                let number = socket_number(self.fd.load(Ordering::Relaxed))?;
                self.number.store(number, Ordering::Relaxed);
                Some(number)
            }
            number => Some(number),
        }
    }

    /// Whether it was given away, or came from another process, so that it may arrive again.
    pub fn may_come_again(&self) -> bool {
        self.loans.count() > 0
            || self.reason == Reason::Inherited
            || self.stream.as_ref().is_some_and(|c| c.is_pinned())
    }

    /// Child of a fork: its copy of the parent's socket. A plain one until it is used. Takes no lock.
    pub fn inherited_from(parent: &Socket, fd: c_int) -> Socket {
        let new = parent.carried_over(fd, None, Reason::Shared, u32::MAX);
        let adoptable = match &parent.stream {
            Some(cell) => !cell.is_pinned(),
            None => parent.adoptable.load(Ordering::Relaxed),
        };
        new.adoptable.store(adoptable, Ordering::Relaxed);
        new
    }

    /// Child of a fork: the stream was on a link of the parent, which the child must request it from.
    pub fn inherit(&self, inherited: Inherited) {
        let _ = self.inherited.set(inherited);
    }

    /// The value that [`inherit`](Socket::inherit) has set.
    pub fn inherited(&self) -> Option<&Inherited> {
        self.inherited.get()
    }

    /// For a socket that came from another process, at its first use: the connection's entry from now on, with the
    /// stream that `make` creates from the descriptor. `None`: it stays as it is.
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

    /// Whether no call that moves its bytes has to come to the library, now or later: nothing is accelerated in this
    /// process, and the socket is not one that another process has shared with it.
    ///
    /// Where there are links, a write in the kernel is announced to the readers of links: see
    /// [`in_kernel`](runtime::in_kernel). A forked child may get a device that its parent does not have, so before it has
    /// a runtime nothing is certain.
    fn is_kernels_alone(&self) -> bool {
        self.stream.is_none()
            && !self.adoptable.load(Ordering::Acquire)
            && self.inherited.get().is_none()
            && runtime::get().is_some_and(|rt| rt.endpoint().is_none())
    }

    /// Keeps the connection off links for good.
    pub fn keep_on_kernel(&self) {
        self.adoptable.store(false, Ordering::Release);
        self.promotion.end();
        if let Some(cell) = &self.stream {
            cell.pin();
        }
    }

    /// Whether this process alone holds it. If so, its stream is not shared any more.
    pub fn holds_alone(&self) -> bool {
        let Some(cell) = &self.stream else { return false };
        let seen = cell.shares();
        if seen > 0 && self.others() == Others::Absent {
            self.end_sharing(seen);
        }
        !cell.is_shared()
    }

    /// The other processes that may hold a shared socket.
    pub fn others(&self) -> Others {
        match (self.family.load(Ordering::Relaxed), self.loans.count()) {
            (0, 0) => Others::Entered,
            (0, _) => Others::Unseen,
            (id, 0) => family::others(id),
            (id, _) => match family::others(id) {
                Others::Entered => Others::Entered,
                Others::Absent | Others::Unseen => Others::Unseen,
            },
        }
    }

    /// This process alone holds the socket, as was found after [`StreamCell::shares`] returned `seen`. Without effect
    /// if it was given away since: another thread may fork meanwhile.
    pub fn end_sharing(&self, seen: u32) {
        if let Some(cell) = &self.stream {
            self.read_what_others_set(cell);
            cell.unshare(seen);
        }
    }

    /// Lets the peer find the connection, if this side has accepted it: the opener asks for promotion.
    pub fn publish(&self) {
        if let (true, Some(cell), Some(endpoint)) =
            (self.accepted, &self.stream, runtime::get().and_then(Runtime::endpoint))
        {
            endpoint.publish(cell);
        }
    }

    /// Lets the helper find out whether any process holds the socket unseen, if nothing else prevents promotion.
    pub fn search_holders(&self) {
        if let (Others::Unseen, Some(rt)) = (self.others(), runtime::get()) {
            self.loans.want_search(rt);
        }
    }

    /// Makes an inherited descriptor a plain socket before its first use here.
    #[inline]
    pub fn reclaim(&self) {
        if self.inherited.get().is_some_and(|inherited| !inherited.reclaim()) {
            self.reset();
        }
    }

    /// Ends the connection with a reset, for this side too: the bytes on the link of a killed parent are lost, and its
    /// peer now writes records on the anchor that are about this link.
    #[cold]
    fn reset(&self) {
        dissolve(self.fd.load(Ordering::Relaxed));
    }

    /// The stream, after `reclaim`.
    pub fn reclaimed_stream(&self) -> Option<Arc<StreamCell>> {
        self.reclaim();
        self.stream.clone()
    }

    /// SO_RCVLOWAT and SO_RCVBUF apply on a link too.
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
            switching::demote(endpoint, cell, Reason::KernelOnly, LEAVE_PATIENCE);
        }
    }

    /// SO_RCVLOWAT has been set, perhaps to its old value: that, too, wakes waiting threads if there are bytes.
    pub fn apply_low_water(&self) {
        if let Some((cell, endpoint)) = self.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint)) {
            cell.lock(endpoint)
                .change(|stream| stream.set_low_water(self.options.low_water.load(Ordering::Relaxed).max(1) as u32));
        }
    }

    /// Calls `call` with the stream locked, so that nothing else changes it.
    pub fn while_locked<T>(&self, call: impl FnOnce() -> T) -> T {
        let guard = self.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint));
        let guard = guard.map(|(cell, endpoint)| cell.lock(endpoint));
        let result = call();
        drop(guard);
        result
    }

    /// Sends corked bytes.
    pub fn push_corked(&self) {
        if let Some((cell, endpoint)) = self.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint)) {
            cell.lock(endpoint).change(|stream| stream.push_corked());
        }
    }

    /// A send with MSG_ZEROCOPY is complete.
    #[cold]
    pub fn record_zero_copy(&self) {
        match &self.stream {
            Some(cell) => {
                self.notices.add();
                self.publish_notices(cell);
                let now = cell.readiness();
                for watcher in self.watchers.lock().iter() {
                    watcher.ready(now, true);
                }
            }
            None => self.notices.pass_over(),
        }
    }

    /// The sends with MSG_ZEROCOPY, first and last, that have not been reported.
    #[cold]
    pub fn take_notices(&self) -> Option<(u32, u32)> {
        let taken = self.notices.take();
        if let Some(cell) = &self.stream {
            self.publish_notices(cell);
        }
        taken
    }

    /// Keeps readiness in step. The last thread to change the notices is also the last one here, and sees their final
    /// state.
    fn publish_notices(&self, cell: &StreamCell) {
        let _one = self.watchers.lock();
        cell.set_notice(self.notices.pending());
    }

    /// A receive looked for bytes, and has to sleep for them.
    pub fn expect_sleeps(&self) {
        self.sleeps.expect();
        // Its request at most came before its first receive.
        if self.operations.load(Ordering::Relaxed) <= 1 {
            Sleeps::expect_of_new(self.accepted);
        }
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
            address: Mutex::default(),
            multipath: AtomicBool::new(false),
            options: Options::default(),
            kernel_only: AtomicBool::new(false),
            signals_io: AtomicBool::new(false),
            descriptors: AtomicU32::new(1),
            watchers: Watchers::default(),
        }
    }

    /// It listens from now on: connections that it accepts have its address, if it has one.
    pub fn find_address(&self, fd: c_int) {
        let of_one = |address: &SocketAddr| !address.ip().is_unspecified();
        *self.address.lock() = addresses::local(fd).map(addresses::canonical).filter(of_one);
    }

    /// The address that it listens at; `None` if there may be several.
    pub fn address(&self) -> Option<SocketAddr> {
        *self.address.lock()
    }

    /// The same socket in a forked child, which shares no locks with the parent.
    pub fn duplicate(&self) -> Listener {
        let copy = Listener::new(self.domain, self.nonblocking.load(Ordering::Relaxed));
        copy.listening.store(self.listening.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.multipath.store(self.multipath.load(Ordering::Relaxed), Ordering::Relaxed);
        // A thread of the parent may hold the lock. Then the kernel is asked for each connection.
        *copy.address.lock() = self.address.try_lock().and_then(|address| *address);
        copy.options.take_over(&self.options);
        copy.kernel_only.store(self.kernel_only.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.signals_io.store(self.signals_io.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.descriptors.store(self.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        copy
    }

    /// The entry of a connection that was dissolved, or never established.
    pub fn once_connected(sock: &Socket, domain: c_int) -> Listener {
        let new = Listener::new(domain, sock.nonblocking.load(Ordering::Relaxed));
        new.options.take_over(&sock.options);
        let pinned = sock.stream.as_ref().is_some_and(|cell| cell.is_pinned());
        new.kernel_only.store(pinned, Ordering::Relaxed);
        new.descriptors.store(sock.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        new
    }

    /// Gives a connection those of this socket's options that it inherits in the kernel.
    pub fn pass_on(&self, sock: &Socket) {
        sock.options.take_over(&self.options);
        if self.multipath.load(Ordering::Relaxed) {
            // Connections inherit only some options of an MPTCP socket, and which ones depends on the version of the
            // kernel.
            read_all_from_kernel(&sock.options, sock.fd.load(Ordering::Relaxed));
        }
        sock.apply_options();
        if self.kernel_only.load(Ordering::Relaxed) {
            sock.keep_on_kernel();
            sock.record_reason(Reason::KernelOnly);
        }
    }
}

/// A descriptor of ours. With a tag of its own, which each call checks: the compiler would encode it in a field.
#[repr(u8)]
#[expect(clippy::large_enum_variant, reason = "most entries are connections, and one that is not mostly becomes one")]
pub enum Entry {
    /// A TCP connection.
    Stream(Socket),
    /// A TCP socket that is not (yet) connected: just created, bound or listening.
    Idle(Listener),
    /// A UDP socket.
    Datagram(Arc<Datagram>),
    /// An epoll instance.
    Epoll(Box<dyn Instance>),
    /// An io_uring whose submissions are seen.
    Ring(Ring),
}

impl Entry {
    /// An entry that is made where it is to be. `Arc::new` would copy it there, and each connection takes one or two.
    #[inline(always)]
    pub fn in_place(make: impl FnOnce() -> Entry) -> Arc<Entry> {
        Arc::new_cyclic(|_| make())
    }

    /// Whether the library moves its bytes, or may do so later. Does not change as long as it is in the table.
    pub fn is_moved(&self) -> bool {
        match self {
            Entry::Stream(sock) => !sock.is_kernels_alone(),
            _ => true,
        }
    }
}
