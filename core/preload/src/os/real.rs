//! The next definition of each interposed function: the C library's, or another preloaded library's.
//!
//! Resolved with `dlsym(RTLD_NEXT)` at first use and kept in an atomic. With an older C library, `lookup` does it. A program
//! that was linked with an older version of some functions gets those (`versions`). Functions of liburing and libaio are also
//! found if only a module of the program has loaded these. A name that does not exist (an older C library) gives ENOSYS.
//! Inside the library every socket call goes through here, never through `libc::` names, which would come back to our
//! own hooks.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    aiocb, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off64_t, off_t, pid_t, pollfd, sigevent, sighandler_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, DIR, FILE,
};

use linux_raw_sys::io_uring::io_uring_params;

use crate::os::aio::Iocb;
use crate::os::liburing::IoUring;
use crate::os::{lookup, versions};

/// Libraries whose functions are interposed although the program need not be linked with them.
const LOADED_LATER: [&CStr; 4] = [c"liburing.so.2", c"liburing.so.1", c"libaio.so.1", c"libaio.so.1t64"];

/// The function that a child of `clone` runs.
pub type Work = unsafe extern "C" fn(*mut c_void) -> c_int;

/// One symbol, resolved lazily.
pub struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    /// A symbol by name.
    pub const fn new(name: &'static CStr) -> Symbol {
        Symbol { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if no library defines it.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let p = self.address.load(Ordering::Relaxed);
        if p.is_null() {
            self.resolve()
        } else {
            p
        }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let mut p = versions::older(self.name);
        if p.is_null() && lookup::is_needed() {
            p = lookup::next(self.name);
        }
        if p.is_null() {
            // SAFETY: the name is a C string; RTLD_NEXT is valid in a shared object.
            p = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        }
        if p.is_null() {
            p = self.resolve_later();
        }
        self.address.store(p, Ordering::Relaxed);
        p
    }

    /// A module that a program loads may load libraries that only this module sees. Its calls arrive here all the same.
    #[cold]
    fn resolve_later(&self) -> *mut c_void {
        let found = LOADED_LATER.iter().find_map(|library| {
            // SAFETY: C strings; nothing is loaded that is not loaded already.
            unsafe {
                let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                let symbol = (!handle.is_null()).then(|| libc::dlsym(handle, self.name.as_ptr()));
                symbol.filter(|p| !p.is_null())
            }
        });
        found.unwrap_or(std::ptr::null_mut())
    }
}

/// The result of a function that does not exist, besides ENOSYS.
trait Absent {
    const ABSENT: Self;
}

impl Absent for () {
    const ABSENT: () = ();
}

impl Absent for c_int {
    const ABSENT: c_int = -1;
}

impl Absent for c_long {
    const ABSENT: c_long = -1;
}

impl Absent for ssize_t {
    const ABSENT: ssize_t = -1;
}

/// `SIG_ERR`.
impl Absent for sighandler_t {
    const ABSENT: sighandler_t = libc::SIG_ERR;
}

impl<T> Absent for *mut T {
    const ABSENT: *mut T = std::ptr::null_mut();
}

/// Whether the real `send`, `recv` and `syscall` are the C library's own, and not another preloaded library's.
pub(super) fn sends_by_c_library() -> bool {
    let own = object_of(libc::gnu_get_libc_version as *const c_void);
    let all = [&symbols::send, &symbols::recv, &symbols::syscall];
    !own.is_null() && all.iter().all(|symbol| object_of(symbol.address()) == own)
}

/// The address of the object that has this function; null if there is none.
fn object_of(function: *const c_void) -> *const c_void {
    // SAFETY: all-zero is a valid description of nothing.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the description is writable; any address may be asked for.
    match unsafe { libc::dladdr(function, &mut found) } {
        0 => std::ptr::null(),
        _ => found.dli_fbase,
    }
}

macro_rules! real {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        #[allow(non_upper_case_globals, reason = "C's names")]
        mod symbols {
            use super::{CStr, Symbol};

            $(
                pub(super) static $name: Symbol = {
                    const NAME: &str = concat!(stringify!($name), "\0");
                    match CStr::from_bytes_with_nul(NAME.as_bytes()) {
                        Ok(name) => Symbol::new(name),
                        Err(_) => panic!("name with a nul byte"),
                    }
                };
            )*
        }

        /// Resolves every function now: later it may need system calls that are not permitted.
        pub fn resolve_all() {
            $(symbols::$name.address();)*
        }

        $(
            /// The real function of this name.
            ///
            /// # Safety
            /// As the C function.
            #[inline]
            #[allow(non_snake_case, reason = "C's names")]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                let p = symbols::$name.address();
                if p.is_null() {
                    crate::os::errno::set_errno(libc::ENOSYS);
                    return <$ret as Absent>::ABSENT;
                }
                // SAFETY: the C library defines this name with this signature.
                // C-unwind: a thread cancelled inside unwinds through here.
                let f: unsafe extern "C-unwind" fn($($ty),*) -> $ret = unsafe { std::mem::transmute(p) };
                // SAFETY: passed on to the caller.
                unsafe { f($($arg),*) }
            }
        )*
    };
}

real! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn creat(path: *const c_char, mode: c_uint) -> c_int;
    fn creat64(path: *const c_char, mode: c_uint) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn opendir(path: *const c_char) -> *mut DIR;
    fn pipe(fds: *mut c_int) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn eventfd(count: c_uint, flags: c_int) -> c_int;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn tmpfile() -> *mut FILE;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t;
    fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn __close(fd: c_int) -> c_int;
    fn __dup2(from: c_int, to: c_int) -> c_int;
    fn __fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int;
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
    fn __select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sendfile64(out: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    fn splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int;
    fn fcntl64(fd: c_int, cmd: c_int, arg: c_long) -> c_int;
    fn ioctl(fd: c_int, request: libc::c_ulong, arg: *mut c_void) -> c_int;
    fn _Fork() -> pid_t;
    fn daemon(no_chdir: c_int, no_close: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int;
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int;
    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int;
    fn clone(work: Option<Work>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: *mut c_void, tls: *mut c_void, child_tid: *mut c_void) -> c_int;
    fn __clone(work: Option<Work>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: *mut c_void, tls: *mut c_void, child_tid: *mut c_void) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn fclose(stream: *mut FILE) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn aio_read(operation: *mut aiocb) -> c_int;
    fn aio_read64(operation: *mut aiocb) -> c_int;
    fn aio_write(operation: *mut aiocb) -> c_int;
    fn aio_write64(operation: *mut aiocb) -> c_int;
    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int;
    fn io_uring_setup(entries: c_uint, parameters: *mut io_uring_params) -> c_int;
    fn io_uring_queue_init(entries: c_uint, ring: *mut IoUring, flags: c_uint) -> c_int;
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut IoUring, parameters: *mut io_uring_params) -> c_int;
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut IoUring, parameters: *mut io_uring_params, buffer: *mut c_void, len: size_t) -> c_int;
    fn io_uring_queue_exit(ring: *mut IoUring) -> ();
    fn io_uring_close_ring_fd(ring: *mut IoUring) -> c_int;
    fn io_uring_resize_rings(ring: *mut IoUring, parameters: *mut io_uring_params) -> c_int;
    fn io_uring_submit(ring: *mut IoUring) -> c_int;
    fn io_uring_submit_and_wait(ring: *mut IoUring, count: c_uint) -> c_int;
    fn io_uring_submit_and_get_events(ring: *mut IoUring) -> c_int;
    fn io_uring_submit_and_wait_timeout(ring: *mut IoUring, completion: *mut c_void, count: c_uint, timeout: *mut c_void, mask: *mut sigset_t) -> c_int;
    fn io_uring_submit_and_wait_min_timeout(ring: *mut IoUring, completion: *mut c_void, count: c_uint, timeout: *mut c_void, least: c_uint, mask: *mut sigset_t) -> c_int;
    fn io_uring_submit_and_wait_reg(ring: *mut IoUring, completion: *mut c_void, count: c_uint, index: c_int) -> c_int;
    fn io_uring_wait_cqes(ring: *mut IoUring, completion: *mut c_void, count: c_uint, timeout: *mut c_void, mask: *mut sigset_t) -> c_int;
    fn io_uring_wait_cqe_timeout(ring: *mut IoUring, completion: *mut c_void, timeout: *mut c_void) -> c_int;
    fn io_uring_enter(fd: c_uint, submits: c_uint, count: c_uint, flags: c_uint, mask: *mut sigset_t) -> c_int;
    fn io_uring_enter2(fd: c_uint, submits: c_uint, count: c_uint, flags: c_uint, argument: *mut c_void, len: size_t) -> c_int;
    fn io_uring_register(fd: c_uint, kind: c_uint, argument: *const c_void, count: c_uint) -> c_int;
    fn io_uring_register_files(ring: *mut IoUring, files: *const c_int, count: c_uint) -> c_int;
    fn io_uring_register_files_tags(ring: *mut IoUring, files: *const c_int, tags: *const c_ulong, count: c_uint) -> c_int;
    fn io_uring_register_files_update(ring: *mut IoUring, offset: c_uint, files: *const c_int, count: c_uint) -> c_int;
    fn io_uring_register_files_update_tag(ring: *mut IoUring, offset: c_uint, files: *const c_int, tags: *const c_ulong, count: c_uint) -> c_int;
    fn io_submit(context: c_ulong, count: c_long, list: *const *const Iocb) -> c_int;
    fn pthread_exit(value: *mut c_void) -> ();
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
    fn __chk_fail() -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t;
    fn sigignore(signal: c_int) -> c_int;
    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
}
