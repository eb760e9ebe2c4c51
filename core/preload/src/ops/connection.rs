//! Making connections.
//!
//! A connection begins as plain TCP. Both ends only record it here: the acceptor publishes it, the opener looks it
//! up after a few operations. Nothing is sent, and no thread waits.
//!
//! A listener of MPTCP accepts from plain TCP peers, too, and the kernel then hands out a plain TCP socket, which is
//! like any other here. A connection of MPTCP stays in the kernel (`not-tcp`), also one that has fallen back to TCP
//! under a socket that is still MPTCP's. A program does not always get the protocol that it asks for, because the
//! kernel may be configured to make sockets of MPTCP instead (mptcpize, BPF). So the library asks the kernel, once for
//! each listener and for each `connect`.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::{sockaddr, socklen_t};
use netacc_device::FourTuple;
use netacc_driver::{Addresses, PromotionSchedule};
use netacc_proto::{Reason, Role};

use crate::anchor::{has_connected, FdAnchor};
use crate::answers::Answers;
use crate::asking::{Ask, Timed, FEW_CALLS};
use crate::control::{self, shortage};
use crate::crowds::Asks;
use crate::datagram::{self, Datagram};
use crate::holders::{socket_number, Sender};
use crate::ops::{descriptors, ending};
use crate::os::addresses::{self, canonical};
use crate::os::asleep::asleep;
use crate::os::clock::now;
use crate::os::errno::{errno, set_errno};
use crate::os::{access, confinement, inside, real, sockopt};
use crate::runtime::arrivals::Arrival;
use crate::runtime::Runtime;
use crate::socket::{self, Beginning, Listener, Sleeps, Socket};
use crate::table::{self, Entry};
use crate::{family, runtime, sandbox, watched};

/// After `socket`: records TCP and UDP sockets. `fd` is the result of the call.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int, fd: c_int) {
    if inside::is_inside() || confinement::leaves_new_sockets() {
        return;
    }
    let internet = matches!(domain, libc::AF_INET | libc::AF_INET6);
    if fd >= 0 && internet && kind & 0xF == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP) {
        sandbox::before_first_socket();
        if !confinement::leaves_new_sockets() {
            table::insert(fd, Arc::new(Entry::Datagram(Arc::default())));
        }
        return;
    }
    let stream = kind & 0xF == libc::SOCK_STREAM;
    let tcp = matches!(protocol, 0 | libc::IPPROTO_TCP | libc::IPPROTO_MPTCP);
    if fd >= 0 && stream && tcp && internet {
        sandbox::before_first_socket();
        if confinement::leaves_new_sockets() {
            return;
        }
        let new = Entry::in_place(|| Entry::Idle(Listener::new(domain, kind & libc::SOCK_NONBLOCK != 0)));
        if let Entry::Idle(listener) = &*new {
            listener.multipath.store(protocol == libc::IPPROTO_MPTCP, Ordering::Relaxed);
        }
        table::insert(fd, new);
    } else if fd >= 0 {
        // The number may have been ours before, and was then closed unseen.
        table::remove(fd);
    }
}

/// `listen`.
pub fn listen(entry: &Arc<Entry>, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: no pointers.
    let rc = unsafe { real::listen(fd, backlog) };
    if let (0, Entry::Idle(l)) = (rc, &**entry) {
        l.listening.store(true, Ordering::Relaxed);
        l.multipath.store(protocol(fd) == Some(libc::IPPROTO_MPTCP), Ordering::Relaxed);
        l.find_address(fd);
        // Now, and not at the first accept, because peers may look this listener up at once.
        control::start();
    }
    rc
}

/// `accept4`.
///
/// # Safety
/// As the C function.
pub unsafe fn accept4(entry: &Arc<Entry>, fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let Entry::Idle(listener) = &**entry else {
        return shortage::opening_fd(|| {
            // SAFETY: passed on.
            asleep(|| unsafe { real::accept4(fd, addr, len, flags) })
        });
    };
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut storage_len = size_of::<libc::sockaddr_storage>() as socklen_t;
    let new = shortage::opening_fd(|| {
        // SAFETY: the storage is large enough for any address.
        asleep(|| unsafe { real::accept4(fd, storage.as_mut_ptr().cast(), &mut storage_len, flags) })
    });
    if new < 0 {
        return new;
    }
    // SAFETY: as the C function; filled in by accept4.
    let written = addr.is_null() || unsafe { name_peer((storage.as_ptr(), storage_len), addr, len) };
    if !written {
        let saved = errno();
        // The kernel ends a connection whose address it cannot report. SAFETY: just accepted, and not published.
        unsafe { real::close(new) };
        set_errno(saved);
        return -1;
    }
    let saved = errno();
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    // SAFETY: filled in by accept4.
    let peer = unsafe { addresses::read(storage.as_ptr()) };
    if !confinement::leaves_new_sockets() {
        let beginning = match listener.multipath.load(Ordering::Relaxed) && !is_tcp(new) {
            true => not_tcp(),
            false => begin(new, Role::Acceptor, peer, Local::of_accepted(listener)),
        };
        let made = connection(new, beginning, nonblocking);
        if let Entry::Stream(sock) = &*made {
            listener.pass_on(sock);
        }
        table::insert(new, made);
    }
    set_errno(saved);
    new
}

/// Gives the program the peer's address. Returns whether that could be written; if not, errno has the reason.
///
/// # Safety
/// As `accept4`; the name has as many bytes as it says.
unsafe fn name_peer(
    (name, name_len): (*const libc::sockaddr_storage, socklen_t),
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> bool {
    // SAFETY: any bytes are a length.
    let Some(room) = (unsafe { access::read(len) }) else {
        set_errno(libc::EFAULT);
        return false;
    };
    if (room as c_int) < 0 {
        set_errno(libc::EINVAL);
        return false;
    }
    let n = room.min(name_len) as usize;
    // SAFETY: as the C function; `n` bytes of the name, to where they are found to be writable.
    unsafe {
        let there = access::writable(addr.cast::<u8>(), n) == n;
        if there {
            std::ptr::copy_nonoverlapping(name.cast::<u8>(), addr.cast::<u8>(), n);
        }
        if !there || !access::write(len, name_len) {
            set_errno(libc::EFAULT);
            return false;
        }
    }
    true
}

/// `accept4` of a descriptor that has no entry: a listener that this program was started with, or was sent.
///
/// # Safety
/// As the C function.
pub unsafe fn accept_unknown(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    if !inside::is_inside() && received(fd, Sender::Starter) {
        if let Some(entry) = table::get_full(fd) {
            // SAFETY: passed on.
            return unsafe { accept4(&entry, fd, addr, len, flags) };
        }
    }
    shortage::opening_fd(|| {
        // SAFETY: passed on.
        unsafe { real::accept4(fd, addr, len, flags) }
    })
}

/// A descriptor that came from another process, or from another program in this one. Records it if it is a socket of
/// TCP, MPTCP or UDP: a listener to accept from it, a connection to promote it once no other process holds it, a UDP socket to
/// make flows for it then. Returns whether it is such a socket. Keeps errno.
pub fn received(fd: c_int, sender: Sender) -> bool {
    if fd >= 0 {
        sandbox::before_first_socket();
    }
    if confinement::leaves_new_sockets() {
        return false;
    }
    let saved = errno();
    let protocol = protocol(fd);
    let multipath = protocol == Some(libc::IPPROTO_MPTCP);
    let udp = is_udp(fd, protocol);
    let known = udp || multipath || protocol == Some(libc::IPPROTO_TCP);
    if known {
        // The number's earlier file, if any, was closed unseen.
        ending::forget(fd);
        let made = || match udp {
            true => Entry::Datagram(Arc::new(Datagram::received(sender))),
            false => from_elsewhere(fd, sender, multipath),
        };
        match twin(fd) {
            Some(entry) => descriptors::share(entry, fd),
            None => drop(table::insert(fd, Arc::new(made()))),
        }
    }
    set_errno(saved);
    known
}

/// Whether it is a UDP socket, given its protocol. Raw sockets can have that protocol, too.
fn is_udp(fd: c_int, protocol: Option<c_int>) -> bool {
    protocol == Some(libc::IPPROTO_UDP)
        && sockopt::get_int(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_DGRAM)
}

/// The entry for a socket of TCP, or of MPTCP if `multipath`, that came from another process.
fn from_elsewhere(fd: c_int, sender: Sender, multipath: bool) -> Entry {
    // SAFETY: no pointers.
    let nonblocking = unsafe { real::fcntl(fd, libc::F_GETFL, 0) } & libc::O_NONBLOCK != 0;
    if addresses::peer(fd).is_none() {
        let domain = sockopt::get_int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(libc::AF_INET);
        let listener = Listener::new(domain, nonblocking);
        let listening = sockopt::get_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1);
        listener.listening.store(listening, Ordering::Relaxed);
        listener.multipath.store(multipath, Ordering::Relaxed);
        listener.find_address(fd);
        socket::read_from_kernel(&listener.options, fd);
        socket::keep_as_reported(&listener.options, fd, libc::SO_RCVLOWAT);
        listener.kernel_only.store(socket::needs_kernel(fd), Ordering::Relaxed);
        return Entry::Idle(listener);
    }
    if multipath {
        return Entry::Stream(Socket::new(fd, not_tcp(), nonblocking));
    }
    if let Sender::Process(_) = sender {
        control::start().count_reason(Reason::Inherited);
    }
    let accepted = has_connected(fd) == Some(false);
    let sock = Socket::received(fd, accepted, sender);
    // If the sender is in another namespace, this process cannot see whether it holds the socket.
    if sender == Sender::Process(0) || has_connected(fd).is_none() || socket::needs_kernel(fd) {
        sock.keep_on_kernel();
    }
    Entry::Stream(sock)
}

/// When the library is loaded: the connections and UDP sockets that the program was started with. Standard input, output and
/// error are left alone, because the C library reads and writes them unseen. But for a UDP socket without a peer, as inetd gives
/// to a server that is to wait: the C library could not write to it.
pub fn receive_from_starter() {
    let standard = [0, 1, 2].map(socket_number);
    for fd in 0..HIGHEST_INHERITED {
        let number = if fd < 3 { standard[fd as usize] } else { socket_number(fd) };
        if number.is_some() {
            receive_socket(fd, standard.contains(&number));
        }
    }
}

/// Most programs are started with no socket.
#[cold]
#[inline(never)]
fn receive_socket(fd: c_int, is_standard: bool) {
    let takes = match addresses::peer(fd) {
        Some(_) => !is_standard,
        None => is_udp(fd, protocol(fd)),
    };
    if takes {
        received(fd, Sender::Starter);
    }
}

/// Descriptors above this are not checked when the library is loaded. Arbitrary: each costs a system call, and programs
/// are given low ones.
const HIGHEST_INHERITED: c_int = 64;

/// The existing entry for the socket of `fd`, which was given away or has come before. Its stream may have bytes that
/// the kernel's socket does not have, such as those that were unread on a link whose peer is gone; and a UDP socket its rings.
fn twin(fd: c_int) -> Option<Arc<Entry>> {
    let wanted = socket_number(fd)?;
    let is_twin = |other: c_int, entry: &Entry| match entry {
        Entry::Stream(sock) => sock.may_come_again() && sock.number() == Some(wanted),
        Entry::Datagram(_) => socket_number(other) == Some(wanted),
        _ => false,
    };
    table::entries().find(|(other, entry)| is_twin(*other, entry)).map(|(_, entry)| entry)
}

/// `connect`.
///
/// # Safety
/// As the C function.
pub unsafe fn connect(entry: &Arc<Entry>, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if dissolves(addr, len) {
        // Before the kernel does so: it resets the connection, and a stream on a link must end first.
        retire(entry, fd);
        if let Entry::Datagram(socket) = &**entry {
            // SAFETY: passed on.
            let rc = unsafe { real::connect(fd, addr, len) };
            end_flows(socket, fd);
            return rc;
        }
        // SAFETY: passed on.
        return unsafe { real::connect(fd, addr, len) };
    }
    // SAFETY: passed on.
    let rc = runtime::in_kernel(|| asleep(|| unsafe { real::connect(fd, addr, len) }));
    let saved = errno();
    if rc == 0 || matches!(saved, libc::EINPROGRESS | libc::EISCONN | libc::EINTR) {
        // SAFETY: the kernel has just accepted the address.
        let peer = unsafe { addresses::of_program(addr, len) };
        match &**entry {
            Entry::Idle(listener) if peer.is_some() => {
                let local = if rc == 0 { Local::of_connected(listener) } else { Local::InKernel };
                become_connection(entry, listener, fd, peer, local);
            }
            Entry::Stream(sock) if rc == 0 || saved != libc::EISCONN => connect_again(entry, sock, fd, peer),
            Entry::Datagram(socket) => end_flows(socket, fd),
            _ => {}
        }
    }
    set_errno(saved);
    rc
}

/// A datagram socket was connected anew, or is not any more: other datagrams come, and they go elsewhere.
fn end_flows(socket: &Datagram, fd: c_int) {
    let saved = errno();
    socket.incoming().set_peer(datagram::peer_address(fd));
    socket.end_flows(fd, runtime::get().and_then(Runtime::endpoint));
    set_errno(saved);
}

/// Whether a `connect` to this address dissolves a connection: the kernel must be able to read it.
fn dissolves(addr: *const sockaddr, len: socklen_t) -> bool {
    let lengths = size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>();
    lengths.contains(&(len as usize))
        && access::is_readable(addr.cast::<u8>(), len as usize)
        // SAFETY: readable, and long enough.
        && c_int::from(unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() }) == libc::AF_UNSPEC
}

/// A `connect` of a socket that is a connection already: it completes a `connect` in progress, or is a new attempt
/// after a failed one. Then it is another connection, with other addresses.
fn connect_again(entry: &Arc<Entry>, sock: &Socket, fd: c_int, peer: Option<SocketAddr>) {
    let (Some(remote), Some(local)) = (peer, addresses::local(fd)) else { return };
    let now = FourTuple { local: canonical(local), remote: canonical(remote) };
    // The local address of a connection that was in progress is known.
    if sock.stream.as_ref().is_some_and(|cell| cell.has_local() && cell.tuple() == now) {
        return;
    }
    if let Some(idle) = retire(entry, fd) {
        if let Entry::Idle(listener) = &*idle {
            become_connection(&idle, listener, fd, peer, Local::InKernel);
        }
    }
}

/// Ends a connection whose descriptor stays open: its stream ends, and the socket is unconnected again. Returns
/// its new entry.
fn retire(entry: &Arc<Entry>, fd: c_int) -> Option<Arc<Entry>> {
    let Entry::Stream(sock) = &**entry else { return None };
    let domain = match addresses::local(fd)? {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let idle = Arc::new(Entry::Idle(Listener::once_connected(sock, domain)));
    if let Entry::Idle(listener) = &*idle {
        *listener.watchers.lock() = watched::release(std::mem::take(&mut *sock.watchers.lock()));
    }
    // The kernel sends the peer a reset, so the stream ends with one; the option itself is not changed.
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut len = size_of_val(&linger) as socklen_t;
    // SAFETY: the value has that many writable bytes.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut linger).cast(), &mut len) };
    sock.options.abort_on_close.store(true, Ordering::Relaxed);
    ending::close_stream(sock, fd);
    // SAFETY: the value has that many bytes.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len) };
    family::leave(sock.family.load(Ordering::Relaxed));
    replace_everywhere(entry, &idle);
    Some(idle)
}

/// All descriptors of `old` name `new` from now on.
fn replace_everywhere(old: &Arc<Entry>, new: &Arc<Entry>) {
    for (fd, entry) in table::entries() {
        if Arc::ptr_eq(&entry, old) {
            table::insert(fd, new.clone());
        }
    }
}

/// A socket whose `connect` has succeeded, or is in progress: from now on it has a stream. Before it is established
/// its data calls fail in the kernel as they should, because a stream begins on the kernel path.
fn become_connection(entry: &Arc<Entry>, listener: &Listener, fd: c_int, peer: Option<SocketAddr>, local: Local) {
    let nonblocking = listener.nonblocking.load(Ordering::Relaxed);
    let beginning = match local {
        Local::InKernel if !is_tcp(fd) => not_tcp(),
        _ => begin(fd, Role::Opener, peer, local),
    };
    if listener.signals_io.load(Ordering::Relaxed) {
        listener.kernel_only.store(true, Ordering::Relaxed);
    }
    let new = connection(fd, beginning, nonblocking);
    if let Entry::Stream(sock) = &*new {
        listener.pass_on(sock);
        sock.descriptors.store(listener.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        if !listener.watchers.is_empty() {
            let watchers = std::mem::take(&mut *listener.watchers.lock());
            watched::carry_over(watchers, fd, sock);
        }
    }
    if listener.descriptors.load(Ordering::Relaxed) > 1 {
        replace_everywhere(entry, &new);
    }
    table::insert(fd, new.clone());
    if let Entry::Stream(sock) = &*new {
        ask_with_crowd(sock);
    }
}

/// A connection that was just made asks for its link at once if it is one of many.
fn ask_with_crowd(sock: &Socket) {
    let Some(crowd) = sock.crowd.as_ref().filter(|crowd| crowd.is_of_many()) else { return };
    let (Some(cell), Some(rt)) = (&sock.stream, runtime::get()) else { return };
    let tuple = cell.tuple();
    let service = tuple.remote;
    // Elsewhere an attempt that comes before the peer's program has accepted the connection fails.
    let shows_accepted = rt.endpoint().is_some_and(|endpoint| endpoint.directory().shows_accepted(&tuple));
    if !shows_accepted || cell.is_pinned() || cell.is_shared() || rt.lifetimes.are_short(&service) {
        return;
    }
    match crowd.asks() {
        Asks::Later => {}
        Asks::Now => rt.request_new(Arrival::Stream(cell.clone())),
        Asks::WithAll => rt.request_new(Arrival::All(service)),
    }
}

/// Makes a stream of a connection that came from another process at its first use, so that it may be promoted once no
/// other process holds it. Returns its new entry, or `None` if it stays a plain socket.
pub fn adopt(entry: &Arc<Entry>, sock: &Socket) -> Option<Arc<Entry>> {
    let saved = errno();
    // Not a duplicate that happens to be used first: only the socket's own descriptor is replaced when it is closed.
    let adopted = sock.adopt(|fd, with_stream| {
        let rt = control::start();
        let endpoint = rt.endpoint().filter(|_| !runtime::is_kept_on_kernel())?;
        let tuple = FourTuple { local: canonical(addresses::local(fd)?), remote: canonical(addresses::peer(fd)?) };
        if !endpoint.directory().serves(&tuple) || !draw(rt.config.promotion.percent, &tuple) {
            return None;
        }
        let role = if sock.accepted { Role::Acceptor } else { Role::Opener };
        let cell = endpoint.adopt(role, tuple, FdAnchor::borrowed_later(fd));
        cell.tag().store(fd as u32, Ordering::Relaxed);
        // Until the family's records show otherwise; and the bytes that the anchor has carried must
        // be read from the kernel.
        cell.share();
        let promote_at = if sock.accepted { 1 } else { first_try(rt, &tuple).0 };
        let mut sock = with_stream(cell, promote_at);
        sock.answers = answers(rt, role, &tuple);
        let new = Arc::new(Entry::Stream(sock));
        replace_everywhere(entry, &new);
        Some(new)
    });
    if let Some(new) = &adopted {
        follow(new);
    }
    set_errno(saved);
    adopted
}

/// Interests in a connection that were made before it had a stream go with it.
fn follow(new: &Arc<Entry>) {
    let Entry::Stream(sock) = &**new else { return };
    for (fd, _) in table::entries().filter(|(_, e)| Arc::ptr_eq(e, new)) {
        for (_, e) in table::entries() {
            if let Entry::Epoll(epoll) = &*e {
                watched::attach(&epoll.subscriber(), fd, sock);
            }
        }
    }
}

/// The protocol of a socket, as the kernel has it.
fn protocol(fd: c_int) -> Option<c_int> {
    sockopt::get_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)
}

fn is_tcp(fd: c_int) -> bool {
    protocol(fd) == Some(libc::IPPROTO_TCP)
}

/// A connection of another protocol than TCP, which stays in the kernel.
fn not_tcp() -> Beginning {
    control::start().count_reason(Reason::NotTcp);
    Beginning::in_kernel(Reason::NotTcp)
}

/// The entry of a connection that begins now.
#[inline(never)]
fn connection(fd: c_int, beginning: Beginning, nonblocking: bool) -> Arc<Entry> {
    let tcp_first = beginning.stream.is_some() && beginning.promote_at == PromotionSchedule::NEVER;
    let new = Entry::in_place(|| Entry::Stream(Socket::new(fd, beginning, nonblocking)));
    if let (true, Entry::Stream(sock)) = (tcp_first, &*new) {
        sock.record_reason(Reason::TcpFirst);
    }
    new
}

/// Where the local address of a new connection comes from.
#[derive(Clone, Copy, Debug)]
enum Local {
    /// From the kernel, at once.
    InKernel,
    /// It is the listener's, as far as known.
    Listener(SocketAddr),
    /// From the kernel, when it is needed, if the connection is to the loopback. Until then the socket's protocol is taken to
    /// be the one that the program has requested.
    Later,
}

impl Local {
    fn of_accepted(listener: &Listener) -> Local {
        listener.address().map_or(Local::InKernel, Local::Listener)
    }

    /// Of a socket that is connected, and not only about to be.
    fn of_connected(socket: &Listener) -> Local {
        if socket.multipath.load(Ordering::Relaxed) {
            Local::InKernel
        } else {
            Local::Later
        }
    }

    /// The addresses of a connection. The kernel is asked now if the choice of the connections that may be promoted depends
    /// on the port.
    fn addresses(self, fd: c_int, remote: SocketAddr, all: bool) -> Option<Addresses> {
        match self {
            Local::Listener(local) => Some(Addresses::Likely(FourTuple { local, remote })),
            Local::Later if all && remote.ip().is_loopback() => Some(Addresses::To(remote)),
            _ => Some(Addresses::Known(FourTuple { local: canonical(addresses::local(fd)?), remote })),
        }
    }
}

fn begin(fd: c_int, role: Role, peer: Option<SocketAddr>, local: Local) -> Beginning {
    let rt = control::start();
    let stay = |reason| {
        rt.count_reason(reason);
        Beginning::in_kernel(reason)
    };
    let Some(endpoint) = rt.endpoint() else { return Beginning::in_kernel(rt.refused_for) };
    if runtime::is_kept_on_kernel() {
        return stay(Reason::UnseenIo);
    }
    if confinement::leaves_new_sockets() {
        return stay(Reason::Sandboxed);
    }
    let Some(remote) = peer else { return stay(Reason::NotTcp) };
    let percent = rt.config.promotion.percent;
    let Some(addresses) = local.addresses(fd, canonical(remote), percent >= 100) else { return stay(Reason::NotTcp) };
    let tuple = addresses.tuple();
    if !endpoint.directory().serves(&tuple) {
        return stay(Reason::OtherHost);
    }
    if !draw(percent, &tuple) {
        return stay(Reason::Percent);
    }
    let cell = endpoint.adopt(role, addresses, FdAnchor::borrowed_later(fd));
    cell.tag().store(fd as u32, Ordering::Relaxed);
    let accepted = role == Role::Acceptor;
    if accepted {
        endpoint.publish(&cell);
    }
    let (promote_at, timed) = if accepted { (PATIENCE, None) } else { first_try(rt, &tuple) };
    Beginning {
        stream: Some(cell),
        reason: Reason::NotYet,
        accepted,
        promote_at,
        crowd: (!accepted && rt.config.promotion.admits_crowds()).then(|| rt.crowds.join(&tuple.remote)),
        answers: answers(rt, role, &tuple),
        timed,
        sleeps: Sleeps::of_new(accepted),
        asked_at: if accepted { rt.served.first_try(&tuple.local, 0) } else { 0 },
    }
}

/// The measurements of a connection, on the side that decides about its promotion.
fn answers(rt: &runtime::Runtime, role: Role, tuple: &FourTuple) -> Option<Box<Answers>> {
    (role == Role::Opener).then(|| rt.services.answers(tuple)).flatten().map(Box::new)
}

/// The operation at which promotion is tried, of a connection that this process has opened. Never, if connections are
/// to begin on TCP until `netacc promote` is run. A user who wants links at once gets them at once. A connection that is probably short
/// is timed, if it may be long enough for a link.
fn first_try(rt: &runtime::Runtime, tuple: &FourTuple) -> (u32, Option<Timed>) {
    let promotion = &rt.config.promotion;
    let service = &tuple.remote;
    match promotion.threshold() {
        _ if promotion.tcp_first => (PromotionSchedule::NEVER, None),
        0 => (1, None),
        least if least <= FEW_CALLS && rt.lifetimes.are_short_but_not_below(service, FEW_CALLS) => {
            let timed = rt.asking.begin(service, now());
            match timed.as_ref().map(Timed::ask) {
                Some(Ask::Early) => (least, timed),
                _ => (rt.lifetimes.first_try(service, least), timed),
            }
        }
        least => (rt.lifetimes.first_try(service, least), None),
    }
}

/// After so many operations an accepted connection whose peer has not asked for promotion is counted as one whose
/// peer is not accelerated. Arbitrary: more than an opener waits that expects a short connection.
pub const PATIENCE: u32 = 48;

/// Whether this connection is among the `percent` that may be promoted. Both ends draw alike.
fn draw(percent: u32, tuple: &FourTuple) -> bool {
    let ports = [tuple.local.port(), tuple.remote.port()];
    let key = u32::from(ports[0].max(ports[1])) << 16 | u32::from(ports[0].min(ports[1]));
    // Fibonacci hashing: spreads consecutive ports evenly.
    let spread = key.wrapping_mul(2_654_435_769) >> 16;
    spread * 100 / 65_536 < percent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_draw_alike_and_near_the_percentage() {
        let tuple = |a: u16, b: u16| FourTuple {
            local: SocketAddr::from(([127, 0, 0, 1], a)),
            remote: SocketAddr::from(([127, 0, 0, 1], b)),
        };
        let mut drawn = 0;
        for port in 30000..40000 {
            let t = tuple(port, 6379);
            assert_eq!(draw(30, &t), draw(30, &t.reversed()));
            assert!(draw(100, &t) && !draw(0, &t));
            drawn += i32::from(draw(30, &t));
        }
        assert!((2500..3500).contains(&drawn), "{drawn}");
    }
}
