//! System calls, each behind a safe function. No policy.
//!
//! Every descriptor this crate keeps is close-on-exec and numbered high ([`new_high`]), because programs expect
//! `open()` and `socket()` to return the lowest free number.

#![expect(unsafe_code, reason = "this is the crate's system-call module")]

#[cfg(not(any(loom, miri)))]
use std::cell::Cell;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
#[cfg(not(any(loom, miri)))]
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(any(loom, miri)))]
use std::time::Duration;

use crate::limits::without_file_size_signal;
use crate::wire::MAX_PACKET;

/// Descriptors in one packet: segment and doorbell.
pub(crate) const MAX_PACKET_FDS: usize = 2;

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn owned(rc: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(rc)?;
    // SAFETY: the kernel just returned this descriptor to us; no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new descriptor at a high number.
fn new_high(make: impl FnOnce() -> libc::c_int) -> io::Result<OwnedFd> {
    let _number = netacc_descriptors::borrow();
    owned(make()).map(netacc_descriptors::raise)
}

/// This process, as the rendezvous identifies it.
pub(crate) fn pid() -> u32 {
    std::process::id()
}

/// Now, on the monotonic clock, which all processes of the host share.
pub(crate) fn now() -> netacc_device::Instant {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    netacc_device::Instant::from_nanos(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// Effective user.
pub(crate) fn euid() -> u32 {
    // SAFETY: cannot fail, touches no memory.
    unsafe { libc::geteuid() }
}

/// Whether two descriptors' worth of seals hold: the file cannot shrink, so touching its mapping cannot fault.
pub(crate) fn sealed_size(fd: RawFd) -> io::Result<u64> {
    // SAFETY: plain query of a descriptor.
    let seals = check(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) })?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(fstat(fd)?.st_size as u64)
}

pub(crate) fn fstat(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: plain output structure.
    let mut st: libc::stat = unsafe { zeroed() };
    // SAFETY: valid pointer.
    check(unsafe { libc::fstat(fd, &mut st) })?;
    Ok(st)
}

/// An anonymous file of `bytes`, sparse, that can be sealed.
pub(crate) fn memfd(name: &std::ffi::CStr, bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: valid C string.
    let fd = new_high(|| unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    truncate(fd.as_raw_fd(), bytes)?;
    Ok(fd)
}

/// Fixes the size permanently; with `read_only`, also refuses writable mappings from now on.
pub(crate) fn seal(fd: RawFd, read_only: bool) -> io::Result<()> {
    let mut seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    if read_only {
        seals |= libc::F_SEAL_FUTURE_WRITE;
    }
    // SAFETY: valid descriptor.
    check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }).map(drop)
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory involved.
    new_high(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Whether a received descriptor is an eventfd: writing to anything else could block or do harm.
pub(crate) fn is_eventfd(fd: RawFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|p| p.as_os_str() == "anon_inode:[eventfd]")
}

/// Adds one to an eventfd.
pub(crate) fn ring(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight readable bytes. A failure means that the counter is full: the reader is awake anyway.
    unsafe { libc::write(fd, one.as_ptr().cast(), 8) };
}

/// Sets an eventfd back to zero.
pub(crate) fn drain(fd: RawFd) {
    let mut word = [0u8; 8];
    // SAFETY: eight writable bytes.
    unsafe { libc::read(fd, word.as_mut_ptr().cast(), 8) };
}

#[cfg(not(any(loom, miri)))]
extern "C-unwind" {
    /// `sleep.c`. Unwinds if the thread is cancelled.
    fn netacc_shm_sleep(word: *const u32, seen: u32, timeout: *const libc::timespec) -> std::ffi::c_long;
}

/// Sleeps while `*word == seen`. `Err` carries the errno. A cancellation point: the stack may be unwound from here.
#[cfg(not(any(loom, miri)))]
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, timeout: Option<Duration>) -> Result<(), i32> {
    let ts = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: t.subsec_nanos() as libc::c_long,
    });
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word outlives the call; the kernel only compares it. Not private: the waker is another process.
    let rc = unsafe { netacc_shm_sleep(word.as_ptr(), seen, ts) };
    if rc < 0 {
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(())
    }
}

/// Wakes all threads that sleep on `word`.
#[cfg(not(any(loom, miri)))]
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the address is only used as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// `struct robust_list_head` in linux/futex.h.
#[repr(C)]
#[cfg(not(any(loom, miri)))]
struct RobustList {
    next: *const RobustList,
    futex_offset: libc::c_long,
    pending: *const RobustList,
}

/// Makes the kernel set `FUTEX_OWNER_DIED` in `word` when the calling thread ends, before it closes descriptors that
/// only its process has open. The thread holds no robust mutex, now or later; `word` stays mapped as long as it lives.
#[cfg(not(any(loom, miri)))]
pub(crate) fn announce_exit(word: &AtomicU32) -> io::Result<()> {
    thread_local! {
        /// Stored with the thread, because the kernel reads it at the thread's end. In the heap only the kernel would
        /// refer to it, and a leak checker would report it.
        static LIST: Cell<RobustList> =
            const { Cell::new(RobustList { next: std::ptr::null(), futex_offset: 0, pending: std::ptr::null() }) };
    }
    // The list is empty except for the lock that is "being taken": the kernel reads only the word of that. The list
    // itself lies in memory that no peer can write.
    let list = LIST.with(Cell::as_ptr).cast_const();
    let futex_offset = (word.as_ptr() as libc::c_long).wrapping_sub(list as libc::c_long);
    LIST.set(RobustList { next: list, futex_offset, pending: list });
    // SAFETY: no pointers.
    word.store(unsafe { libc::syscall(libc::SYS_gettid) } as u32, Ordering::SeqCst);
    // SAFETY: the list lives as long as the thread, and describes one valid word.
    match unsafe { libc::syscall(libc::SYS_set_robust_list, list, size_of::<RobustList>()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(any(loom, miri))]
pub(crate) fn announce_exit(_: &crate::sync::AtomicU32) -> io::Result<()> {
    Ok(())
}

/// An epoll instance.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: no memory involved.
    new_high(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// Adds `fd` (`add`), or changes the events that it is watched for. It is always watched for input.
pub(crate) fn epoll_set(ep: RawFd, add: bool, fd: RawFd, tag: u64, output: bool) -> io::Result<()> {
    let op = if add { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
    epoll_ctl(ep, op, fd, libc::EPOLLIN | if output { libc::EPOLLOUT } else { 0 }, tag)
}

/// Adds `fd`, to be reported once for each event. A connection that cannot be accepted because there is no descriptor
/// must not be reported all the time.
pub(crate) fn epoll_add_edge(ep: RawFd, fd: RawFd, tag: u64) -> io::Result<()> {
    epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLET, tag)
}

fn epoll_ctl(ep: RawFd, op: libc::c_int, fd: RawFd, events: libc::c_int, tag: u64) -> io::Result<()> {
    let mut ev = libc::epoll_event { events: events as u32, u64: tag };
    // SAFETY: valid pointer.
    check(unsafe { libc::epoll_ctl(ep, op, fd, &mut ev) }).map(drop)
}

/// Stops watching `fd`. Needed before closing it: a forked child may hold a copy of the same description.
pub(crate) fn epoll_remove(ep: RawFd, fd: RawFd) {
    // SAFETY: no memory involved.
    unsafe { libc::epoll_ctl(ep, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
}

/// The tags that are ready now, at most `out.len()` of them.
pub(crate) fn epoll_ready(ep: RawFd, out: &mut [u64; 32]) -> usize {
    // SAFETY: plain output array.
    let mut events: [libc::epoll_event; 32] = unsafe { zeroed() };
    // SAFETY: 32 valid entries.
    let n = unsafe { libc::epoll_wait(ep, events.as_mut_ptr(), 32, 0) }.max(0) as usize;
    for (tag, ev) in out.iter_mut().zip(&events[..n]) {
        *tag = ev.u64;
    }
    n
}

/// The address of a name: a path if it begins with a slash, otherwise an abstract one.
fn address(name: &Text) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: plain structure.
    let mut addr: libc::sockaddr_un = unsafe { zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = name.as_bytes();
    // A path is followed by a nul byte, an abstract name follows one.
    let start = usize::from(!name.starts_with(b"/"));
    for (to, from) in addr.sun_path[start..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len();
    (addr, len as libc::socklen_t)
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory involved.
    new_high(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// Listens on a name: an abstract one of this network namespace, or a path.
pub(crate) fn listen(name: &Text) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let (addr, len) = address(name);
    // SAFETY: `addr` is valid for `len` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&addr).cast(), len) })?;
    // SAFETY: no memory involved.
    check(unsafe { libc::listen(fd.as_raw_fd(), 4096) })?;
    Ok(fd)
}

/// Connects to a name; does not block.
pub(crate) fn connect(name: &Text) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let (addr, len) = address(name);
    // SAFETY: `addr` is valid for `len` bytes.
    check(unsafe { libc::connect(fd.as_raw_fd(), std::ptr::from_ref(&addr).cast(), len) })?;
    Ok(fd)
}

pub(crate) fn accept(fd: RawFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: null address is allowed.
    new_high(|| unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) })
}

/// Ends both directions, for every process that shares the socket.
pub(crate) fn shutdown(fd: RawFd) {
    // SAFETY: no memory involved.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Closes a descriptor that is kept as a number.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: callers own `fd` and forget it.
    unsafe { libc::close(fd) };
}

/// The process at the other end: number, effective user, groups.
pub(crate) struct Peer {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Reads the peer's credentials; `with_groups` also its supplementary groups.
pub(crate) fn peer(fd: RawFd, with_groups: bool) -> io::Result<Peer> {
    // SAFETY: plain output structure.
    let mut cred: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let out = std::ptr::from_mut(&mut cred).cast();
    // SAFETY: valid output of the given length.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, out, &mut len) })?;
    let mut groups = Vec::new();
    if with_groups {
        // Linux allows 65536 groups at most.
        groups.resize(65536, 0u32);
        let mut len = (groups.len() * 4) as libc::socklen_t;
        let out = groups.as_mut_ptr().cast();
        // SAFETY: valid output of the given length.
        let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, out, &mut len) };
        groups.truncate(if rc == 0 { len as usize / 4 } else { 0 });
    }
    Ok(Peer { pid: cred.pid as u32, uid: cred.uid, gid: cred.gid, groups })
}

/// Sends one packet with descriptors; does not block and raises no signal.
pub(crate) fn send(fd: RawFd, packet: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: plain structure.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        assert!(fds.len() <= MAX_PACKET_FDS, "callers send a bounded number of descriptors");
        let bytes = size_of_val(fds) as u32;
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: pure arithmetic; the first header lies in `control`, which is large enough (CONTROL_WORDS) and
        // aligned; the data area holds `fds`.
        unsafe {
            msg.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), bytes as usize);
        }
    }
    // SAFETY: `msg` and all it points to are valid for the call.
    let rc = unsafe { libc::sendmsg(fd, &msg, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Room for the header and `MAX_PACKET_FDS` descriptors, in 8-byte words.
const CONTROL_WORDS: usize = 16;
const _: () = assert!(CONTROL_WORDS * 8 >= 16 + 4 * MAX_PACKET_FDS + 8);

/// One received packet. Empty at end of stream.
pub(crate) struct Packet {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// All bytes fitted.
    pub whole: bool,
    /// Some descriptors are missing: there were too many, or this process may open no more.
    pub lacks_fds: bool,
}

/// Takes the next packet; does not block. Its descriptors are close-on-exec and have high numbers.
pub(crate) fn receive(fd: RawFd) -> io::Result<Packet> {
    let mut bytes = vec![0u8; MAX_PACKET];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: plain structure.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
    let _number = netacc_descriptors::borrow();
    // SAFETY: `msg` and all it points to are valid for the call.
    let n = unsafe { libc::recvmsg(fd, &mut msg, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(n as usize);
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote well-formed control messages into `control`; every descriptor in them is ours now.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&msg);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let received = (0..count).map(|i| OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                fds.extend(received.map(netacc_descriptors::raise));
            }
            header = libc::CMSG_NXTHDR(&msg, header);
        }
    }
    let has = |flag| msg.msg_flags & flag != 0;
    Ok(Packet { bytes, fds, whole: !has(libc::MSG_TRUNC), lacks_fds: has(libc::MSG_CTRUNC) })
}

/// Opens a directory without following a symbolic link. Allocates nothing.
pub(crate) fn open_directory(path: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: valid C string.
    new_high(|| unsafe { libc::open(path.as_ptr(), flags) })
}

/// Opens a file in an open directory, if there is one, without following a symbolic link. Allocates nothing.
pub(crate) fn open_existing_in(dir: RawFd, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: valid C string.
    new_high(|| unsafe { libc::openat(dir, name.as_ptr(), flags) })
}

/// Removes an empty directory. Allocates nothing.
pub(crate) fn remove_directory(path: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: valid C string.
    check(unsafe { libc::rmdir(path.as_ptr()) }).map(drop)
}

/// Opens or creates a file in an open directory, without following a symbolic link.
pub(crate) fn open_in(dir: RawFd, name: &std::ffi::CStr, mode: u32) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: valid C string.
    new_high(|| unsafe { libc::openat(dir, name.as_ptr(), flags, mode) })
}

/// Removes a file of an open directory.
pub(crate) fn unlink_in(dir: RawFd, name: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: valid C string.
    check(unsafe { libc::unlinkat(dir, name.as_ptr(), 0) }).map(drop)
}

/// Removes a file. Allocates nothing.
pub(crate) fn unlink(name: &Text) -> io::Result<()> {
    // SAFETY: valid C string.
    check(unsafe { libc::unlink(name.as_c_str().as_ptr()) }).map(drop)
}

/// Lets the members of a group connect to a socket that this process has bound to a path. A symbolic link that has
/// replaced it is not followed.
pub(crate) fn share_socket(path: &Text, group: u32) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: valid C string.
    let file = new_high(|| unsafe { libc::open(path.as_c_str().as_ptr(), flags) })?;
    let st = fstat(file.as_raw_fd())?;
    if st.st_mode & libc::S_IFMT != libc::S_IFSOCK || st.st_uid != euid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // SAFETY: valid C string; `u32::MAX` keeps the owner.
    check(unsafe { libc::fchownat(file.as_raw_fd(), c"".as_ptr(), u32::MAX, group, libc::AT_EMPTY_PATH) })?;
    let itself = Text::of(format_args!("/proc/self/fd/{}", file.as_raw_fd()));
    // SAFETY: valid C string.
    check(unsafe { libc::chmod(itself.as_c_str().as_ptr(), 0o660) }).map(drop)
}

/// A path for the kernel.
pub(crate) fn c_string(path: &std::path::Path) -> std::ffi::CString {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// The numbers by which the kernel shows users and groups that do not exist in this user namespace; `None` if all
/// exist in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmapped {
    pub user: Option<u32>,
    pub group: Option<u32>,
}

impl Unmapped {
    /// Of this process.
    pub(crate) fn read() -> Unmapped {
        let read = |file: &str| netacc_descriptors::read_text(file).unwrap_or_default();
        let number = |map: &str, file: &str| {
            // Where the kernel's number cannot be read, it is the usual one.
            (!maps_all(&read(map))).then(|| read(file).trim().parse().unwrap_or(65_534))
        };
        Unmapped {
            user: number("/proc/self/uid_map", "/proc/sys/kernel/overflowuid"),
            group: number("/proc/self/gid_map", "/proc/sys/kernel/overflowgid"),
        }
    }
}

/// Whether a map of a user namespace (lines of first number inside, first number outside, count) has every number. It
/// counts as one that has not if it cannot be read.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// The size of the file system of a file.
pub(crate) fn file_system_bytes(fd: RawFd) -> io::Result<u64> {
    // SAFETY: plain output structure.
    let mut st: libc::statfs = unsafe { zeroed() };
    // SAFETY: valid pointer.
    check(unsafe { libc::fstatfs(fd, &mut st) })?;
    // A file system without a limit has no blocks.
    let bytes = st.f_blocks.saturating_mul(st.f_bsize as u64);
    Ok(if bytes == 0 { u64::MAX } else { bytes })
}

/// Gives every part of a file memory, or fails if the file system has not so much.
pub(crate) fn reserve(fd: RawFd, bytes: u64) -> io::Result<()> {
    // SAFETY: no memory involved.
    without_file_size_signal(|| check(unsafe { libc::fallocate(fd, 0, 0, bytes as libc::off_t) })).map(drop)
}

/// Sets mode and group of a file we own, regardless of the umask.
pub(crate) fn restrict(fd: RawFd, mode: u32, group: Option<u32>) -> io::Result<()> {
    if let Some(gid) = group {
        // SAFETY: no memory involved; `u32::MAX` keeps the owner.
        check(unsafe { libc::fchown(fd, u32::MAX, gid) })?;
    }
    // SAFETY: no memory involved.
    check(unsafe { libc::fchmod(fd, mode) }).map(drop)
}

/// Sets a file's length. EFBIG, without a signal, where `RLIMIT_FSIZE` forbids it.
pub(crate) fn truncate(fd: RawFd, bytes: u64) -> io::Result<()> {
    // SAFETY: no memory involved.
    without_file_size_signal(|| check(unsafe { libc::ftruncate(fd, bytes as libc::off_t) })).map(drop)
}

/// A lock on a file against other openers.
#[derive(Debug)]
pub(crate) struct FileLock(OwnedFd);

impl FileLock {
    /// Locks, or gives the file back if another opener has it locked.
    pub(crate) fn attempt(fd: OwnedFd) -> Result<FileLock, OwnedFd> {
        // SAFETY: no memory involved.
        if unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            Ok(FileLock(fd))
        } else {
            Err(fd)
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough: a mapping made from the descriptor keeps the open file, and with it the lock.
        // SAFETY: no memory involved.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Sleeps for so long. Allocates nothing.
pub(crate) fn pause(time: std::time::Duration) {
    let ts = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: a valid time.
    unsafe { libc::nanosleep(&ts, std::ptr::null_mut()) };
}

/// Random bits for tokens.
pub(crate) fn random() -> io::Result<[u64; 2]> {
    let mut words = [0u64; 2];
    // SAFETY: 16 writable bytes.
    if unsafe { libc::getrandom(words.as_mut_ptr().cast(), 16, 0) } != 16 {
        return Err(io::Error::last_os_error());
    }
    Ok(words)
}

/// Text on the stack: for code that must not allocate, because a signal handler may have called `_exit`.
pub(crate) struct Text {
    bytes: [u8; Text::MOST],
    len: usize,
}

impl Text {
    const MOST: usize = 108;

    /// The text of `arguments`, cut off if it is too long. Ends in a nul byte that is not part of it.
    pub(crate) fn of(arguments: std::fmt::Arguments<'_>) -> Text {
        let mut text = Text { bytes: [0; Text::MOST], len: 0 };
        // Only a text that is too long is an error.
        let _ = std::fmt::Write::write_fmt(&mut text, arguments);
        text
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn as_c_str(&self) -> &std::ffi::CStr {
        std::ffi::CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        // The last byte stays nul.
        let n = s.len().min(Text::MOST - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        if n == s.len() {
            Ok(())
        } else {
            Err(std::fmt::Error)
        }
    }
}

/// The time at which a process started, in clock ticks since boot; `None` if it does not run (a zombie does not).
/// Allocates nothing.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    // The dot is for QEMU's user mode, which answers for its own process's /proc/PID/stat with another time.
    let path = Text::of(format_args!("/proc/./{pid}/stat"));
    let _number = netacc_descriptors::borrow();
    // SAFETY: a C string.
    let file = owned(unsafe { libc::open(path.as_c_str().as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }).ok()?;
    // The fields come within a few hundred bytes.
    let mut stat = [0u8; 1024];
    // SAFETY: the buffer is writable.
    let n = unsafe { libc::read(file.as_raw_fd(), stat.as_mut_ptr().cast(), stat.len()) };
    let stat = &stat[..usize::try_from(n).ok()?];
    // The command name may hold anything, so count from the last parenthesis: state is field 3, start time field 22.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Keeps a file marked as in use for as long as a process has it open; a mapping keeps it open, too. In contrast to
/// [`FileLock`], any number of processes may mark it.
pub(crate) fn mark_in_use(fd: RawFd) -> io::Result<()> {
    let mut lock = byte(libc::F_RDLCK, 0);
    // SAFETY: valid pointer.
    check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &mut lock) }).map(drop)
}

/// Keeps a byte of a file locked in the same way; fails if another process has it locked.
pub(crate) fn lock_byte(fd: RawFd, at: i64) -> io::Result<()> {
    let mut lock = byte(libc::F_WRLCK, at);
    // SAFETY: valid pointer.
    check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &mut lock) }).map(drop)
}

/// Whether a process has [marked](mark_in_use) a file that was opened again (byte 0), or [locked](lock_byte) the byte. If
/// that cannot be determined, it counts as locked.
pub(crate) fn is_in_use(fd: RawFd, at: i64) -> bool {
    let mut lock = byte(libc::F_WRLCK, at);
    // SAFETY: valid pointer.
    let rc = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut lock) };
    rc != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}

fn byte(kind: libc::c_int, at: i64) -> libc::flock {
    // SAFETY: plain structure; the process number must be 0 for locks of this kind.
    let mut lock: libc::flock = unsafe { zeroed() };
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (at, 1);
    lock
}

/// The parts of a file that have memory: a read elsewhere finds zeros, and would allocate memory.
pub(crate) fn allocated(fd: RawFd) -> Vec<std::ops::Range<u64>> {
    let seek = |at: u64, whence| {
        // SAFETY: no pointers.
        u64::try_from(unsafe { libc::lseek(fd, at as libc::off_t, whence) }).ok()
    };
    let parts = std::iter::successors(Some(0..0), |last: &std::ops::Range<u64>| {
        let start = seek(last.end, libc::SEEK_DATA)?;
        seek(start, libc::SEEK_HOLE).filter(|end| *end > start).map(|end| start..end)
    });
    parts.skip(1).collect()
}

/// The kernel's answer to a request about sockets: `request` is a whole message of NETLINK_SOCK_DIAG for one of them.
pub(crate) fn socket_of(request: &[u8]) -> io::Result<Vec<u8>> {
    const NETLINK_SOCK_DIAG: i32 = 4;
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory involved.
    let fd = new_high(|| unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG) })?;
    let mut answer = vec![0u8; 512];
    // The kernel answers before `send` returns, so that no thread waits. SAFETY: both buffers have the length that is
    // passed.
    let len = unsafe {
        if libc::send(fd.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::recv(fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    answer.truncate(usize::try_from(len).map_err(|_| io::Error::last_os_error())?);
    Ok(answer)
}

/// The inode of a namespace of this process (`net`, `pid`).
pub(crate) fn namespace(kind: &str) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata(format!("/proc/self/ns/{kind}"))?.ino())
}
