//! Options of sockets: every option goes to the kernel's socket, and the library keeps its own copy of those
//! that it needs in step.
//!
//! Options that only the kernel can honour take the connection off its link for good, before they are set.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::socklen_t;
use netacc_proto::Reason;

use crate::control::flows;
use crate::datagram::KernelOnly;
use crate::ops::io::{self, Outgoing};
use crate::ops::message::Target;
use crate::ops::{datagram, descriptors, state};
use crate::os::errno::fail;
use crate::os::sockopt::SIOCOUTQNSD;
use crate::os::{access, real};
use crate::runtime::{self, Runtime};
use crate::socket::{int, keep_as_reported, kernel_only, Socket};
use crate::table::Entry;

/// Whether setting `value` switches the option off, which needs no further action.
fn switches_off(level: c_int, name: c_int, value: &[u8]) -> bool {
    if level == libc::SOL_SOCKET && name == libc::SO_MAX_PACING_RATE {
        return value.iter().all(|b| *b == 0xFF);
    }
    if level == libc::SOL_SOCKET && name == libc::SO_PEEK_OFF {
        return value.iter().all(|b| *b == 0xFF);
    }
    value.len() >= size_of::<c_int>() && value[..size_of::<c_int>()].iter().all(|b| *b == 0)
}

/// The longest value that the library reads: a `timeval`.
const MOST_OF_VALUE: usize = 16;

/// `setsockopt`.
///
/// # Safety
/// As the C function.
pub unsafe fn setsockopt(
    entry: &Arc<Entry>,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // The part that the library reads: the kernel may read less than the given length.
    let room = if (len as c_int) < 0 { 0 } else { (len as usize).min(MOST_OF_VALUE) };
    let mut copy = [0u8; MOST_OF_VALUE];
    let there = access::readable(value.cast::<u8>(), room);
    // SAFETY: readable, and no longer than the copy.
    unsafe { std::ptr::copy_nonoverlapping(value.cast::<u8>(), copy.as_mut_ptr(), there) };
    let bytes = &copy[..there];
    match &**entry {
        Entry::Datagram(socket) if datagram::is_kernels(level, name, bytes) && !switches_off(level, name, bytes) => {
            let shares_port = (level, name) == (libc::SOL_SOCKET, libc::SO_REUSEPORT);
            flows::withdraw_for_all(socket, fd, if shares_port { KernelOnly::ReusePort } else { KernelOnly::Option });
        }
        Entry::Datagram(_) => {}
        _ if kernel_only(level, name) && !switches_off(level, name, bytes) => leave_link(entry, fd),
        _ => {}
    }
    if let (Entry::Stream(sock), libc::SOL_SOCKET, libc::SO_RCVLOWAT) = (&**entry, level, name) {
        // A parent that has the stream on a link would not be woken for the record that ends its demotion.
        sock.reclaim();
    }
    let set = || {
        // SAFETY: as the C function.
        unsafe { real::setsockopt(fd, level, name, value, len) }
    };
    let rc = match &**entry {
        Entry::Stream(sock) if level == libc::IPPROTO_TCP && matches!(name, libc::TCP_CORK | libc::TCP_NODELAY) => {
            // Not while a record is pushed out: see `FdAnchor::push`.
            sock.while_locked(set)
        }
        _ => set(),
    };
    if let (Entry::Datagram(socket), 0) = (&**entry, rc) {
        datagram::record_option(socket, fd, level, name, bytes);
    }
    match (rc, level) {
        (0, libc::SOL_SOCKET) => record_option(entry, fd, name, bytes),
        (0, libc::IPPROTO_TCP) => record_tcp_option(entry, name, bytes),
        _ => {}
    }
    rc
}

fn record_tcp_option(entry: &Arc<Entry>, name: c_int, bytes: &[u8]) {
    let options = match &**entry {
        Entry::Stream(s) => &s.options,
        Entry::Idle(l) => &l.options,
        Entry::Datagram(_) | Entry::Epoll(_) | Entry::Ring(_) => return,
    };
    let value = int(bytes, 0).unwrap_or(0);
    match name {
        libc::TCP_INQ => options.reports_queue.store(value == 1, Ordering::Relaxed),
        libc::TCP_CORK => options.cork.store(value != 0, Ordering::Relaxed),
        _ => {}
    }
    // Both send corked bytes, as tcp(7) documents for TCP_CORK; the kernel does so for TCP_NODELAY as well.
    let pushes = name == libc::TCP_CORK && value == 0 || name == libc::TCP_NODELAY && value != 0;
    if let (Entry::Stream(sock), true) = (&**entry, pushes) {
        sock.push_corked();
    }
}

/// The connection must be a plain socket from now on. A socket that is not connected yet remembers this.
fn leave_link(entry: &Arc<Entry>, fd: c_int) {
    match &**entry {
        // If the peer does not answer, the kernel's answer to the call stands all the same.
        Entry::Stream(sock) => drop((Target { entry, sock, fd }).to_kernel(Reason::KernelOnly)),
        Entry::Idle(listener) => listener.kernel_only.store(true, Ordering::Relaxed),
        Entry::Datagram(socket) => flows::withdraw_for_all(socket, fd, KernelOnly::Option),
        Entry::Epoll(_) | Entry::Ring(_) => {}
    }
}

/// O_ASYNC is switched on: signals come from the kernel's socket only.
fn signal_io(entry: &Arc<Entry>, fd: c_int) {
    match &**entry {
        Entry::Idle(listener) => listener.signals_io.store(true, Ordering::Relaxed),
        _ => leave_link(entry, fd),
    }
}

fn record_option(entry: &Arc<Entry>, fd: c_int, name: c_int, bytes: &[u8]) {
    let options = match &**entry {
        Entry::Stream(s) => &s.options,
        Entry::Idle(l) => &l.options,
        Entry::Datagram(_) | Entry::Epoll(_) | Entry::Ring(_) => return,
    };
    match name {
        // The kernel stores another value.
        libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => keep_as_reported(options, fd, libc::SO_RCVBUF),
        _ => options.keep(name, bytes),
    }
    match &**entry {
        Entry::Stream(sock) if name == libc::SO_RCVLOWAT => sock.apply_low_water(),
        Entry::Stream(sock) => sock.apply_options(),
        _ => {}
    }
}

/// `getsockopt`.
///
/// # Safety
/// As the C function.
pub unsafe fn getsockopt(
    entry: &Arc<Entry>,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if level == libc::IPPROTO_TCP && name == libc::TCP_ZEROCOPY_RECEIVE {
        leave_link(entry, fd);
    }
    // SAFETY: any bytes are a length.
    let room = unsafe { access::read(len) }.and_then(|room| usize::try_from(room as c_int).ok());
    let (true, Some(room)) = (level == libc::SOL_SOCKET, room) else {
        // SAFETY: as the C function.
        return unsafe { kernels_option(entry, (fd, level, name), value, len) };
    };
    if let (Entry::Stream(sock), libc::SO_ERROR) = (&**entry, name) {
        if let Some(error) = pending_error(sock) {
            // SAFETY: as the C function.
            return unsafe { write_int(error, (value, room), len) };
        }
    }
    if let (Entry::Stream(sock), libc::SO_RCVLOWAT) = (&**entry, name) {
        // While a record may come the kernel has another one.
        if sock.stream.as_ref().is_some_and(|cell| cell.low_water() > 1) && !io::on_kernel(sock) {
            // SAFETY: as the C function.
            return unsafe { write_int(sock.options.low_water.load(Ordering::Relaxed), (value, room), len) };
        }
    }
    // SAFETY: as the C function.
    unsafe { kernels_option(entry, (fd, level, name), value, len) }
}

/// An option as the kernel has it, with the link's additions.
///
/// # Safety
/// As `getsockopt`.
unsafe fn kernels_option(
    entry: &Arc<Entry>,
    (fd, level, name): (c_int, c_int, c_int),
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the C function.
    let rc = unsafe { real::getsockopt(fd, level, name, value, len) };
    if let (Entry::Stream(sock), 0, libc::IPPROTO_TCP, libc::TCP_INFO) = (&**entry, rc, level, name) {
        // SAFETY: the kernel has just written through both pointers, and the length is the number of bytes.
        let info = unsafe { std::slice::from_raw_parts_mut(value.cast::<u8>(), *len as usize) };
        add_link(sock, info);
        // The first byte of `struct tcp_info`.
        if let (Some(number), Some(field)) = (state::number_of(sock), info.first_mut()) {
            *field = number;
        }
    }
    rc
}

/// Adds to the kernel's TCP_INFO the bytes of the connection that a link has carried.
fn add_link(sock: &Socket, info: &mut [u8]) {
    // In `struct tcp_info`; a caller with an older one has given less room.
    const BYTES_ACKED: usize = 120;
    const BYTES_RECEIVED: usize = 128;
    const BYTES_SENT: usize = 200;
    let Some((cell, endpoint)) = sock.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint)) else { return };
    let guard = cell.lock(endpoint);
    let counters = guard.counters();
    let unread = if guard.link().is_some() { guard.proto().available() } else { 0 };
    drop(guard);
    let received = counters.rx_bytes_link + u64::from(unread);
    for (at, n) in
        [(BYTES_ACKED, counters.tx_bytes_link), (BYTES_RECEIVED, received), (BYTES_SENT, counters.tx_bytes_link)]
    {
        let Some(field) = info.get_mut(at..at + size_of::<u64>()) else { continue };
        let mut bytes = [0; size_of::<u64>()];
        bytes.copy_from_slice(field);
        field.copy_from_slice(&(u64::from_ne_bytes(bytes).wrapping_add(n)).to_ne_bytes());
    }
}

/// The error that SO_ERROR reports, once, 0 for none; `None`: ask the kernel.
fn pending_error(sock: &Socket) -> Option<c_int> {
    if let Some(error) = sock.take_deferred_error() {
        return Some(error);
    }
    sock.reclaim();
    let (cell, endpoint) = sock.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint))?;
    cell.take_in(endpoint);
    cell.lock(endpoint).change(|stream| {
        stream.take_in_replay();
        (!stream.kernel_is_accurate()).then(|| netacc_socket::take_error(stream).map_or(0, |error| error.0))
    })
}

/// Writes an integer as the kernel does: as much of it as there is room for.
///
/// # Safety
/// As `getsockopt`.
unsafe fn write_int(number: c_int, (value, room): (*mut c_void, usize), len: *mut socklen_t) -> c_int {
    let n = room.min(size_of::<c_int>());
    // SAFETY: as the C function; `n` bytes fit where they are found to be writable.
    unsafe {
        if access::writable(value, n) < n {
            return fail(libc::EFAULT) as c_int;
        }
        std::ptr::copy_nonoverlapping((&raw const number).cast::<u8>(), value.cast::<u8>(), n);
        if !access::write(len, n as socklen_t) {
            return fail(libc::EFAULT) as c_int;
        }
    }
    0
}

/// `fcntl`.
///
/// # Safety
/// As the C function.
pub unsafe fn fcntl(entry: &Arc<Entry>, fd: c_int, command: c_int, argument: c_long) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return descriptors::dup_from(fd, command, argument),
        libc::F_SETFL if argument as c_int & libc::O_ASYNC != 0 => signal_io(entry, fd),
        _ => {}
    }
    // SAFETY: as the C function.
    let rc = unsafe { real::fcntl(fd, command, argument) };
    if rc == 0 && command == libc::F_SETFL {
        set_nonblocking(entry, argument as c_int & libc::O_NONBLOCK != 0);
    }
    rc
}

fn set_nonblocking(entry: &Arc<Entry>, on: bool) {
    match &**entry {
        Entry::Stream(sock) => sock.nonblocking.store(on, Ordering::Relaxed),
        Entry::Idle(listener) => listener.nonblocking.store(on, Ordering::Relaxed),
        Entry::Datagram(_) | Entry::Epoll(_) | Entry::Ring(_) => {}
    }
}

/// `ioctl`.
///
/// # Safety
/// As the C function.
pub unsafe fn ioctl(entry: &Arc<Entry>, fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let number = argument.cast::<c_int>();
    if let (Entry::Stream(sock), false) = (&**entry, number.is_null()) {
        let answer = match request {
            libc::FIONREAD => io::readable_bytes(sock, fd),
            libc::TIOCOUTQ => io::outgoing_bytes(sock, Outgoing::Unacknowledged),
            SIOCOUTQNSD => io::outgoing_bytes(sock, Outgoing::Unsent),
            _ => None,
        };
        if let Some(n) = answer {
            // SAFETY: as the C function.
            let written = unsafe { access::write(number, n.min(c_int::MAX as usize) as c_int) };
            return if written { 0 } else { fail(libc::EFAULT) as c_int };
        }
    }
    if let (Entry::Datagram(socket), libc::FIONREAD) = (&**entry, request) {
        let next = if socket.is_linked() { socket.incoming().next_len() } else { None };
        if let Some(len) = next {
            // SAFETY: as the C function.
            return if unsafe { access::write(number, len as c_int) } { 0 } else { fail(libc::EFAULT) as c_int };
        }
    }
    // SAFETY: these requests take a pointer to an int.
    let on = || unsafe { access::read(number) }.is_some_and(|on| on != 0);
    if request == libc::FIOASYNC && on() {
        signal_io(entry, fd);
    }
    // SAFETY: as the C function.
    let rc = unsafe { real::ioctl(fd, request, argument) };
    if rc == 0 && request == libc::FIONBIO {
        set_nonblocking(entry, on());
    }
    rc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Listener;

    fn timeval(seconds: i64, micros: i64) -> Vec<u8> {
        [seconds.to_ne_bytes(), micros.to_ne_bytes()].concat()
    }

    #[test]
    fn only_switching_on_needs_the_kernel() {
        assert!(kernel_only(libc::SOL_SOCKET, libc::SO_TIMESTAMP));
        assert!(!kernel_only(libc::IPPROTO_IP, libc::SO_TIMESTAMP));
        assert!(!kernel_only(libc::IPPROTO_TCP, libc::TCP_NODELAY));
        assert!(switches_off(libc::SOL_SOCKET, libc::SO_TIMESTAMP, &0i32.to_ne_bytes()));
        assert!(!switches_off(libc::SOL_SOCKET, libc::SO_TIMESTAMP, &1i32.to_ne_bytes()));
        assert!(!switches_off(libc::IPPROTO_TCP, libc::TCP_ULP, b"tls"));
        assert!(switches_off(libc::SOL_SOCKET, libc::SO_PEEK_OFF, &(-1i32).to_ne_bytes()));
        assert!(switches_off(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &u32::MAX.to_ne_bytes()));
    }

    #[test]
    fn accepted_options_are_kept_in_step() {
        // SAFETY: no pointers.
        let fd = unsafe { real::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        assert!(fd >= 0);
        let entry = Arc::new(Entry::Idle(Listener::new(libc::AF_INET, false)));
        let Entry::Idle(listener) = &*entry else { unreachable!("just made") };
        let set = |name, bytes: &[u8]| {
            // SAFETY: the value has that many bytes.
            unsafe { setsockopt(&entry, fd, libc::SOL_SOCKET, name, bytes.as_ptr().cast(), bytes.len() as socklen_t) }
        };
        assert_eq!(set(libc::SO_RCVTIMEO, &timeval(1, 500)), 0);
        assert_eq!(listener.options.recv_timeout_us.load(Ordering::Relaxed), 1_000_500);
        assert_eq!(set(libc::SO_RCVTIMEO, &timeval(9, 1_000_000)), -1);
        assert_eq!(listener.options.recv_timeout_us.load(Ordering::Relaxed), 1_000_500);
        assert_eq!(set(libc::SO_LINGER, &[1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat()), 0);
        assert!(listener.options.abort_on_close.load(Ordering::Relaxed));
        assert_eq!(set(libc::SO_LINGER, &[1i32.to_ne_bytes(), 3i32.to_ne_bytes()].concat()), 0);
        assert!(!listener.options.abort_on_close.load(Ordering::Relaxed));
        let mut on: c_int = 1;
        // SAFETY: an int where one is expected.
        unsafe {
            assert_eq!(ioctl(&entry, fd, libc::FIONBIO, (&raw mut on).cast()), 0);
            assert!(listener.nonblocking.load(Ordering::Relaxed));
            assert_eq!(fcntl(&entry, fd, libc::F_SETFL, 0), 0);
            assert!(!listener.nonblocking.load(Ordering::Relaxed));
            real::close(fd);
        }
    }
}
