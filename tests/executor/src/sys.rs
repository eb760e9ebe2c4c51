//! The system calls. Everything goes through the C library, as in any program, so that a preloaded library sees it. The
//! only exception is the read of the kernel's own counters, which no library may answer in the kernel's place.

#![expect(unsafe_code, reason = "system calls")]

use std::ffi::{c_int, c_void, CString};
use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use netacc_program::{BadAddress, LimitedCall, Misuse, Resource};

/// A descriptor's number. Programs of the test close and replace descriptors at will, so no value here owns one.
pub(crate) type Fd = c_int;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// SIGPIPEs so far.
static PIPES: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_pipe(_: c_int) {
    PIPES.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn on_interrupt(_: c_int) {}

/// From now on SIGPIPE is counted, children that end need no wait, and [`interrupt`] interrupts.
pub(crate) fn handle_signals() {
    for (signal, flags) in [(INTERRUPT, 0), (INTERRUPT_AND_RESTART, libc::SA_RESTART)] {
        // SAFETY: an action without handler, flags and mask is all zeroes.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = on_interrupt as *const () as libc::sighandler_t;
        action.sa_flags = flags;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
    // SAFETY: the handler only touches an atomic.
    unsafe { libc::signal(libc::SIGPIPE, on_pipe as *const () as libc::sighandler_t) };
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

const INTERRUPT: c_int = libc::SIGUSR1;
const INTERRUPT_AND_RESTART: c_int = libc::SIGUSR2;

/// The number of the calling thread.
pub(crate) fn thread() -> libc::pid_t {
    // SAFETY: no pointers.
    unsafe { libc::gettid() }
}

/// Sends a signal to a thread of this process: its handler has SA_RESTART or not.
pub(crate) fn interrupt(thread: libc::pid_t, restart: bool) {
    let signal = if restart { INTERRUPT_AND_RESTART } else { INTERRUPT };
    // SAFETY: no pointers. A thread that has ended is an error that does not matter.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
}

pub(crate) fn pipes() -> u32 {
    PIPES.load(Ordering::SeqCst)
}

pub(crate) fn packet_pair() -> io::Result<(Fd, Fd)> {
    let mut fds = [0; 2];
    // SAFETY: two numbers are written.
    check(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()) })?;
    Ok((fds[0], fds[1]))
}

pub(crate) fn close(fd: Fd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::close(fd) }).map(drop)
}

#[repr(align(8))]
struct Control([u8; 32]);

pub(crate) fn send_packet(fd: Fd, bytes: &[u8], beside: Option<Fd>) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
    let mut control = Control([0; 32]);
    // SAFETY: an empty message header is all zeroes.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    if let Some(beside) = beside {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the buffer is aligned and has room for a header and one descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(beside);
        }
    }
    // SAFETY: the header describes live memory.
    check_size(unsafe { libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL) }).map(drop)
}

pub(crate) fn receive_packet(fd: Fd, buffer: &mut [u8]) -> io::Result<(usize, Option<Fd>)> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; 32]);
    // SAFETY: an empty message header is all zeroes.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    loop {
        // SAFETY: the header describes live memory.
        match check_size(unsafe { libc::recvmsg(fd, &mut message, 0) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(n) => {
                // SAFETY: the kernel has filled the control buffer; a first header, if any, is whole.
                let beside = unsafe {
                    let header = libc::CMSG_FIRSTHDR(&message);
                    (!header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS)
                        .then(|| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())
                };
                return Ok((n, beside));
            }
        }
    }
}

pub(crate) fn memory_file(len: usize) -> io::Result<Fd> {
    // SAFETY: the name is a C string. Not close-on-exec: a worker that goes through exec keeps it.
    let fd = check(unsafe { libc::memfd_create(c"netacc-exec".as_ptr(), 0) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd, len as libc::off_t) })?;
    Ok(fd)
}

/// Maps a file that holds a `T`, which must be made of atomics only.
pub(crate) fn map_atomics<T: Sync>(fd: Fd) -> io::Result<&'static T> {
    // SAFETY: a new mapping of a file that is long enough.
    let p = unsafe {
        libc::mmap(std::ptr::null_mut(), size_of::<T>(), libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
    };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: page-aligned, zeroed, never unmapped, and atomics may be shared between processes.
    Ok(unsafe { &*p.cast::<T>() })
}

/// `fork`. `Ok(0)` in the child.
pub(crate) fn fork() -> io::Result<i32> {
    // SAFETY: workers fork only while their other threads hold no lock that the child needs.
    check(unsafe { libc::fork() })
}

pub(crate) fn execute(arguments: &[String]) -> io::Error {
    let path = c"/proc/self/exe";
    let arguments: Vec<CString> = arguments.iter().filter_map(|a| CString::new(a.as_str()).ok()).collect();
    let mut pointers: Vec<_> = arguments.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: a list of C strings that ends with null.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

pub(crate) fn quit() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

pub(crate) fn kill(pid: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Waits, for a bounded time, until a process that is about to end has closed its files; collects it if it is a child.
pub(crate) fn reap(pid: i32) {
    // SAFETY: no pointers.
    let file = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as Fd;
    if file >= 0 {
        let _ = poll(&mut [libc::pollfd { fd: file, events: libc::POLLIN, revents: 0 }], MOST_DYING_MS);
        let _ = close(file);
    }
    let mut status = 0;
    // SAFETY: one number is written.
    unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
}

/// Far longer than a process takes to end, however busy the machine is.
const MOST_DYING_MS: c_int = 20_000;

/// Orphans of our children become ours, so that none outlives this process undetected.
pub(crate) fn adopt_orphans() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// The process ends with its parent.
pub(crate) fn die_with_parent() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

// ---- sockets --------------------------------------------------------------------------------------------------------

pub(crate) fn socket(v6: bool, flags: c_int) -> io::Result<Fd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no pointers.
    check(unsafe { libc::socket(family, libc::SOCK_STREAM | flags, 0) })
}

fn raw(address: IpAddr, port: u16) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeroes is an address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let p = &raw mut storage;
    match address {
        IpAddr::V6(address) => {
            let mut a: libc::sockaddr_in6 = unsafe_zeroed();
            a.sin6_family = libc::AF_INET6 as _;
            a.sin6_port = port.to_be();
            a.sin6_addr.s6_addr = address.octets();
            // SAFETY: the storage is larger and aligned.
            unsafe { p.cast::<libc::sockaddr_in6>().write(a) };
            (storage, size_of::<libc::sockaddr_in6>() as _)
        }
        IpAddr::V4(address) => {
            let mut a: libc::sockaddr_in = unsafe_zeroed();
            a.sin_family = libc::AF_INET as _;
            a.sin_port = port.to_be();
            a.sin_addr.s_addr = u32::from(address).to_be();
            // SAFETY: the storage is larger and aligned.
            unsafe { p.cast::<libc::sockaddr_in>().write(a) };
            (storage, size_of::<libc::sockaddr_in>() as _)
        }
    }
}

fn unsafe_zeroed<T: Copy>() -> T {
    // SAFETY: used for plain C structs of numbers only.
    unsafe { zeroed() }
}

pub(crate) fn bind(fd: Fd, address: IpAddr, port: u16) -> io::Result<()> {
    let (a, len) = raw(address, port);
    // SAFETY: the address lives.
    check(unsafe { libc::bind(fd, (&raw const a).cast(), len) }).map(drop)
}

pub(crate) fn listen(fd: Fd, backlog: u32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd, backlog as c_int) }).map(drop)
}

pub(crate) fn local_port(fd: Fd) -> io::Result<(u16, bool)> {
    let mut a: libc::sockaddr_storage = unsafe_zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the storage lives and is as long as said.
    check(unsafe { libc::getsockname(fd, (&raw mut a).cast(), &mut len) })?;
    let v6 = c_int::from(a.ss_family) == libc::AF_INET6;
    // SAFETY: both kinds have the port at the same place.
    let port = unsafe { (*(&raw const a).cast::<libc::sockaddr_in>()).sin_port };
    Ok((u16::from_be(port), v6))
}

pub(crate) fn connect(fd: Fd, address: IpAddr, port: u16) -> io::Result<()> {
    let (a, len) = raw(address, port);
    // SAFETY: the address lives.
    check(unsafe { libc::connect(fd, (&raw const a).cast(), len) }).map(drop)
}

pub(crate) fn accept(fd: Fd, flags: c_int) -> io::Result<Fd> {
    // SAFETY: no address is wanted.
    check(unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) })
}

pub(crate) fn send(fd: Fd, bytes: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer lives.
    check_size(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

pub(crate) fn sendto(fd: Fd, bytes: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer lives; no address is given.
    check_size(unsafe { libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, std::ptr::null(), 0) })
}

pub(crate) fn write(fd: Fd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer lives.
    check_size(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

/// Cuts a buffer into pieces, one of them empty now and then.
fn pieces(base: *mut u8, len: usize, count: usize) -> Vec<libc::iovec> {
    let each = len / count;
    (0..count)
        .map(|i| {
            let from = each * i;
            let to = if i + 1 == count { len } else { from + each };
            libc::iovec { iov_base: base.wrapping_add(from).cast(), iov_len: to - from }
        })
        .collect()
}

pub(crate) fn writev(fd: Fd, bytes: &[u8]) -> io::Result<usize> {
    let iov = pieces(bytes.as_ptr().cast_mut(), bytes.len(), 3);
    // SAFETY: the pieces lie in the buffer, which is only read.
    check_size(unsafe { libc::writev(fd, iov.as_ptr(), iov.len() as c_int) })
}

pub(crate) fn sendmsg(fd: Fd, bytes: &[u8], flags: c_int) -> io::Result<usize> {
    let mut iov = pieces(bytes.as_ptr().cast_mut(), bytes.len(), 2);
    let mut message: libc::msghdr = unsafe_zeroed();
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len() as _;
    // SAFETY: the pieces lie in the buffer, which is only read.
    check_size(unsafe { libc::sendmsg(fd, &message, flags) })
}

pub(crate) fn recv(fd: Fd, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer lives.
    check_size(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) })
}

pub(crate) fn recvfrom(fd: Fd, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
    let none = std::ptr::null_mut();
    // SAFETY: the buffer lives; no address is wanted.
    check_size(unsafe {
        libc::recvfrom(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags, none, std::ptr::null_mut())
    })
}

pub(crate) fn read(fd: Fd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer lives.
    check_size(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) })
}

pub(crate) fn readv(fd: Fd, buffer: &mut [u8]) -> io::Result<usize> {
    let iov = pieces(buffer.as_mut_ptr(), buffer.len(), 3);
    // SAFETY: the pieces lie in the buffer.
    check_size(unsafe { libc::readv(fd, iov.as_ptr(), iov.len() as c_int) })
}

pub(crate) fn recvmsg(fd: Fd, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
    let mut iov = pieces(buffer.as_mut_ptr(), buffer.len(), 2);
    let mut message: libc::msghdr = unsafe_zeroed();
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len() as _;
    // SAFETY: the pieces lie in the buffer.
    check_size(unsafe { libc::recvmsg(fd, &mut message, flags) })
}

pub(crate) fn shutdown(fd: Fd, how: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::shutdown(fd, how) }).map(drop)
}

pub(crate) fn dup(fd: Fd) -> io::Result<Fd> {
    // SAFETY: no pointers.
    check(unsafe { libc::dup(fd) })
}

pub(crate) fn dup2(fd: Fd, onto: Fd) -> io::Result<Fd> {
    // SAFETY: no pointers.
    check(unsafe { libc::dup2(fd, onto) })
}

pub(crate) fn set_option<T>(fd: Fd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives and is as long as said.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const *value).cast(), len) }).map(drop)
}

pub(crate) fn get_option<T: Copy>(fd: Fd, level: c_int, name: c_int) -> io::Result<T> {
    let mut value: T = unsafe_zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives and is as long as said.
    check(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

/// `getpeername`, without the name.
pub(crate) fn has_peer_name(fd: Fd) -> io::Result<()> {
    let mut name: libc::sockaddr_storage = unsafe_zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the storage is large enough for any address.
    check(unsafe { libc::getpeername(fd, (&raw mut name).cast(), &mut len) }).map(drop)
}

pub(crate) fn set_nonblocking(fd: Fd, on: bool, by_ioctl: bool) -> io::Result<()> {
    if by_ioctl {
        let mut value = c_int::from(on);
        // SAFETY: one number is read.
        return check(unsafe { libc::ioctl(fd, libc::FIONBIO, &mut value) }).map(drop);
    }
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

pub(crate) fn is_nonblocking(fd: Fd) -> io::Result<bool> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_GETFL) }).map(|flags| flags & libc::O_NONBLOCK != 0)
}

pub(crate) fn unread(fd: Fd) -> io::Result<usize> {
    let mut value: c_int = 0;
    // SAFETY: one number is written.
    check(unsafe { libc::ioctl(fd, libc::FIONREAD, &mut value) })?;
    Ok(value as usize)
}

/// `SIOCOUTQ`: how many sent bytes the peer has not acknowledged.
pub(crate) fn unacknowledged(fd: Fd) -> io::Result<usize> {
    let mut value: c_int = 0;
    // SAFETY: the value is writable.
    check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &mut value) })?;
    Ok(value as usize)
}

pub(crate) fn poll(fds: &mut [libc::pollfd], timeout_ms: c_int) -> io::Result<usize> {
    // SAFETY: the list lives.
    check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) }).map(|n| n as usize)
}

/// `select` for the events that `poll` calls IN and OUT; the answer is in the `revents`.
pub(crate) fn select(fds: &mut [libc::pollfd], timeout_ms: c_int) -> io::Result<usize> {
    let mut reads: libc::fd_set = unsafe_zeroed();
    let mut writes: libc::fd_set = unsafe_zeroed();
    let top = fds.iter().map(|p| p.fd).max().unwrap_or(-1);
    if top >= libc::FD_SETSIZE as c_int {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for p in fds.iter() {
        // SAFETY: the number fits into the set.
        unsafe {
            if p.events & libc::POLLIN != 0 {
                libc::FD_SET(p.fd, &mut reads);
            }
            if p.events & libc::POLLOUT != 0 {
                libc::FD_SET(p.fd, &mut writes);
            }
        }
    }
    let ms = i64::from(timeout_ms.max(0));
    let mut timeout = libc::timeval { tv_sec: ms / 1000, tv_usec: (ms % 1000) * 1000 };
    // SAFETY: sets and timeout live.
    let n = check(unsafe { libc::select(top + 1, &mut reads, &mut writes, std::ptr::null_mut(), &mut timeout) })?;
    for p in fds.iter_mut() {
        p.revents = 0;
        // SAFETY: the number fits into the set.
        unsafe {
            if libc::FD_ISSET(p.fd, &reads) {
                p.revents |= libc::POLLIN;
            }
            if libc::FD_ISSET(p.fd, &writes) {
                p.revents |= libc::POLLOUT;
            }
        }
    }
    Ok(n as usize)
}

pub(crate) fn epoll_create() -> io::Result<Fd> {
    // SAFETY: no pointers.
    check(unsafe { libc::epoll_create1(0) })
}

pub(crate) fn epoll_ctl(epoll: Fd, action: c_int, fd: Fd, events: u32, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the event lives.
    check(unsafe { libc::epoll_ctl(epoll, action, fd, &mut event) }).map(drop)
}

/// `(data, events)` of each.
pub(crate) fn epoll_wait(epoll: Fd, max: usize, timeout_ms: c_int) -> io::Result<Vec<(u64, u32)>> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    // SAFETY: the list lives and is as long as said.
    let n = check(unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as c_int, timeout_ms) })?;
    Ok(events[..n as usize].iter().map(|e| (e.u64, e.events)).collect())
}

// ---- arguments that cannot be used ------------------------------------------------------------------------------------

/// An address of a kind.
pub(crate) fn bad_address(kind: BadAddress) -> *mut c_void {
    static RESERVED: OnceLock<usize> = OnceLock::new();
    match kind {
        BadAddress::Null => std::ptr::null_mut(),
        BadAddress::Low => 0x800 as *mut c_void,
        BadAddress::Beyond => (1usize << 63) as *mut c_void,
        BadAddress::Reserved => *RESERVED.get_or_init(|| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping, which nobody can use.
            unsafe { libc::mmap(std::ptr::null_mut(), 1 << 16, libc::PROT_NONE, flags, -1, 0) as usize }
        }) as *mut c_void,
    }
}

/// Makes a call in which `bad` replaces a valid argument.
pub(crate) fn misuse(fd: Fd, call: Misuse, bad: *mut c_void) -> io::Result<usize> {
    const LEN: usize = 100;
    let mut byte = 0u8;
    let good: *mut c_void = (&raw mut byte).cast();
    let element = |base, len| libc::iovec { iov_base: base, iov_len: len };
    let mut of_bad = [element(good, 1), element(bad, LEN)];
    let mut after_none = [element(good, 0), element(bad, LEN)];
    let header = |iov: &mut [libc::iovec]| {
        let mut message: libc::msghdr = unsafe_zeroed();
        message.msg_iov = iov.as_mut_ptr();
        message.msg_iovlen = iov.len() as _;
        message
    };
    let (wait, peek) = (libc::MSG_DONTWAIT, libc::MSG_DONTWAIT | libc::MSG_PEEK);
    let mut name: libc::sockaddr_storage = unsafe_zeroed();
    let name: *mut libc::sockaddr = (&raw mut name).cast();
    let mut negative = libc::socklen_t::MAX;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: valid arguments live, and have the given length. The kernel, or the library in its place, must detect the
    // invalid ones.
    check_size(unsafe {
        match call {
            Misuse::Send => libc::send(fd, bad, LEN, 0),
            Misuse::Write => libc::write(fd, bad, LEN),
            Misuse::WritevElement => libc::writev(fd, of_bad.as_ptr(), 2),
            Misuse::WritevVector => libc::writev(fd, bad.cast(), 2),
            Misuse::SendmsgHeader => libc::sendmsg(fd, bad.cast(), 0),
            Misuse::SendmsgElement => libc::sendmsg(fd, &header(&mut of_bad), 0),
            // Null is no name, and nothing is sent.
            Misuse::SendtoName => libc::sendto(fd, good, 0, 0, bad.cast(), 16),
            Misuse::SendtoLength => libc::sendto(fd, good, 1, 0, name, 1000),
            Misuse::Recv => libc::recv(fd, bad, LEN, wait),
            Misuse::Peek => libc::recv(fd, bad, LEN, peek),
            Misuse::Read => libc::read(fd, bad, LEN),
            Misuse::ReadvElement => libc::readv(fd, after_none.as_ptr(), 2),
            Misuse::ReadvVector => libc::readv(fd, bad.cast(), 2),
            Misuse::RecvmsgHeader => libc::recvmsg(fd, bad.cast(), wait),
            Misuse::RecvmsgElement => libc::recvmsg(fd, &mut header(&mut after_none), wait),
            Misuse::RecvfromLength => libc::recvfrom(fd, good, 1, peek, name, bad.cast()),
            Misuse::RecvfromNegative => libc::recvfrom(fd, good, 1, peek, name, &mut negative),
            Misuse::Fionread => libc::ioctl(fd, libc::FIONREAD, bad) as isize,
            Misuse::GetValue => libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, bad, &mut len) as isize,
            Misuse::SetValue => libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, bad, len) as isize,
            Misuse::Poll => libc::poll(bad.cast(), 1, 0) as isize,
            Misuse::Sendfile => sendfile_from(fd, bad.cast()),
        }
    })
}

/// Makes a call while the process's limit of a resource is used up. Open descriptors stay usable.
pub(crate) fn limited(fd: Fd, resource: Resource, call: LimitedCall) -> io::Result<usize> {
    let resource = match resource {
        Resource::Descriptors => libc::RLIMIT_NOFILE,
        Resource::FileSize => libc::RLIMIT_FSIZE,
    };
    let time = if call == LimitedCall::PeekBriefly { Some(receive_time(fd)?) } else { None };
    if time.is_some() {
        set_receive_time(fd, libc::timeval { tv_sec: 0, tv_usec: 1000 })?;
    }
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    check(unsafe { libc::getrlimit(resource, &mut before) })?;
    let none = libc::rlimit { rlim_cur: 0, ..before };
    // SAFETY: valid limits.
    check(unsafe { libc::setrlimit(resource, &none) })?;
    let result = while_limited(fd, call);
    // SAFETY: the limits that were in force.
    check(unsafe { libc::setrlimit(resource, &before) })?;
    if let Some(time) = time {
        set_receive_time(fd, time)?;
    }
    result
}

fn while_limited(fd: Fd, call: LimitedCall) -> io::Result<usize> {
    let mut byte = 0u8;
    let mut receive = |flags| {
        // SAFETY: one writable byte.
        check_size(unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, flags) })
    };
    match call {
        LimitedCall::Peek => receive(libc::MSG_DONTWAIT | libc::MSG_PEEK),
        LimitedCall::PeekBriefly => receive(libc::MSG_PEEK),
        LimitedCall::Poll => {
            let mut one = libc::pollfd { fd, events: 0, revents: 0 };
            // SAFETY: one valid pollfd.
            check(unsafe { libc::poll(&mut one, 1, 0) }).map(|_| 0)
        }
        LimitedCall::Select => {
            let mut sets: [libc::fd_set; 3] = [unsafe_zeroed(), unsafe_zeroed(), unsafe_zeroed()];
            let mut at_once = libc::timeval { tv_sec: 0, tv_usec: 0 };
            let [r, w, e] = &mut sets;
            // SAFETY: descriptors of programs are few, so that each set has room for this one.
            let n = unsafe {
                for set in [&mut *r, &mut *w, &mut *e] {
                    libc::FD_SET(fd, set);
                }
                libc::select(fd + 1, r, w, e, &mut at_once)
            };
            check(n).map(|_| 0)
        }
        LimitedCall::Dup | LimitedCall::Socket => {
            // SAFETY: no pointers; the new descriptor is closed.
            let new = unsafe {
                match call {
                    LimitedCall::Dup => libc::dup(fd),
                    _ => libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0),
                }
            };
            check(new)?;
            // SAFETY: just opened.
            check(unsafe { libc::close(new) }).map(|_| 0)
        }
    }
}

fn receive_time(fd: Fd) -> io::Result<libc::timeval> {
    let mut time: libc::timeval = unsafe_zeroed();
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: room for the value.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw mut time).cast(), &mut len) })?;
    Ok(time)
}

fn set_receive_time(fd: Fd, time: libc::timeval) -> io::Result<()> {
    let len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: a valid time of that length.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), len) })
        .map(|_| ())
}

/// # Safety
/// As `sendfile`, with an offset that may be bad. A null offset means none: then nothing is to be sent.
unsafe fn sendfile_from(fd: Fd, offset: *mut libc::off_t) -> isize {
    // SAFETY: the name is a C string; the kernel checks the offset.
    unsafe {
        let file = libc::memfd_create(c"netacc-exec".as_ptr(), libc::MFD_CLOEXEC);
        let n = libc::sendfile(fd, file, offset, 1);
        let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        libc::close(file);
        *libc::__errno_location() = error;
        n
    }
}

/// Bytes that the kernel's TCP has delivered on a connection, read without the C library.
pub(crate) fn kernel_received(fd: Fd) -> Option<u64> {
    /// The place of `tcpi_bytes_received` in `struct tcp_info`.
    const OFFSET: usize = 128;
    let mut info = [0u8; 192];
    let mut len = info.len() as libc::socklen_t;
    let result: isize;
    // SAFETY: getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len); both pointers live, and the length is right.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_getsockopt as isize => result,
            in("rdi") fd as isize,
            in("rsi") libc::IPPROTO_TCP as isize,
            in("rdx") libc::TCP_INFO as isize,
            in("r10") info.as_mut_ptr(),
            in("r8") &mut len,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") libc::SYS_getsockopt as isize,
            inlateout("x0") fd as isize => result,
            in("x1") libc::IPPROTO_TCP as isize,
            in("x2") libc::TCP_INFO as isize,
            in("x3") info.as_mut_ptr(),
            in("x4") &mut len,
            options(nostack)
        );
    }
    if result < 0 || (len as usize) < OFFSET + 8 {
        return None;
    }
    info[OFFSET..OFFSET + 8].try_into().ok().map(u64::from_ne_bytes)
}
