//! `libudpdk`: the ten functions of [UDPDK](https://github.com/leoll2/UDPDK), so that programs which were written for it run
//! without DPDK. They are calls of `libnetacc-preload.so` on sockets of the kernel: the datagrams between two such
//! programs of a host take rings in shared memory, and all others the kernel.
//!
//! A program that runs under `netacc_run` has the library already. In any other, [`udpdk_init`] loads it: from the folder
//! of `libudpdk.so`, or where the dynamic loader looks for libraries. Without it the kernel carries everything.

#![expect(unsafe_code, reason = "an interface for C")]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::OnceLock;

use libc::{size_t, sockaddr, socklen_t, ssize_t};

const LIBRARY: &str = "libnetacc-preload.so";

type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
type Bind = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
type GetOption = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
type SetOption = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
type SendTo = unsafe extern "C" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
type ReceiveFrom = unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
type Close = unsafe extern "C" fn(c_int) -> c_int;

/// The calls that the functions below make.
struct Calls {
    socket: Socket,
    bind: Bind,
    getsockopt: GetOption,
    setsockopt: SetOption,
    sendto: SendTo,
    recvfrom: ReceiveFrom,
    close: Close,
}

/// The C library's names, which `libnetacc-preload.so` has replaced in a program under `netacc_run`.
const OF_PROGRAM: Calls = Calls {
    socket: libc::socket,
    bind: libc::bind,
    getsockopt: libc::getsockopt,
    setsockopt: libc::setsockopt,
    sendto: libc::sendto,
    recvfrom: libc::recvfrom,
    close: libc::close,
};

static CALLS: OnceLock<Calls> = OnceLock::new();
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// UDPDK has as many sockets.
const MOST: usize = 1024;
/// The open sockets; -1 where there is none. A signal handler reads them.
static OPEN: [AtomicI32; MOST] = [const { AtomicI32::new(-1) }; MOST];

fn calls() -> &'static Calls {
    CALLS.get_or_init(|| load().unwrap_or(OF_PROGRAM))
}

/// The library's functions, if it is not in the program already and can be loaded.
fn load() -> Option<Calls> {
    let beside = own_folder().map(|folder| folder.join(LIBRARY));
    let names = beside.iter().map(|path| path.as_os_str().as_bytes()).chain([LIBRARY.as_bytes()]);
    let names: Vec<CString> = names.filter_map(|name| CString::new(name).ok()).collect();
    // SAFETY: a C string.
    let of_program = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"socket".as_ptr()) };
    if file_of(of_program).is_some_and(|file| file.ends_with(LIBRARY)) {
        return None;
    }
    // SAFETY: C strings; the library is never unloaded.
    let library =
        names.iter().map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }).find(|p| !p.is_null())?;
    let find = |name: &CStr| {
        // SAFETY: a library, and a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    // SAFETY: the library exports these names of the C library, with its signatures.
    unsafe {
        Some(Calls {
            socket: std::mem::transmute::<*mut c_void, Socket>(find(c"socket")?),
            bind: OF_PROGRAM.bind,
            getsockopt: std::mem::transmute::<*mut c_void, GetOption>(find(c"getsockopt")?),
            setsockopt: std::mem::transmute::<*mut c_void, SetOption>(find(c"setsockopt")?),
            sendto: std::mem::transmute::<*mut c_void, SendTo>(find(c"sendto")?),
            recvfrom: std::mem::transmute::<*mut c_void, ReceiveFrom>(find(c"recvfrom")?),
            close: std::mem::transmute::<*mut c_void, Close>(find(c"close")?),
        })
    }
}

/// The folder of the file that this code is in.
fn own_folder() -> Option<&'static Path> {
    file_of(own_folder as *const c_void)?.parent()
}

/// The file from which the code at an address was loaded.
fn file_of(code: *const c_void) -> Option<&'static Path> {
    // SAFETY: all-zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address; the information is writable.
    let found = unsafe { libc::dladdr(code, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string that lives as long as that code.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// Prepares for the other functions. The arguments, which are DPDK's in UDPDK, are not used. Returns 0.
#[no_mangle]
pub extern "C" fn udpdk_init(_argc: c_int, _argv: *mut *mut c_char) -> c_int {
    calls();
    INTERRUPTED.store(false, Ordering::SeqCst);
    0
}

/// Ends calls that receive, now and until [`udpdk_cleanup`]: they fail with EINTR. For a signal handler.
#[no_mangle]
pub extern "C" fn udpdk_interrupt(_signal: c_int) {
    INTERRUPTED.store(true, Ordering::SeqCst);
    for fd in OPEN.iter().map(|fd| fd.load(Ordering::SeqCst)).filter(|fd| *fd >= 0) {
        // Wakes those that sleep. SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_RD) };
    }
}

/// Closes all sockets.
#[no_mangle]
pub extern "C" fn udpdk_cleanup() {
    for place in &OPEN {
        let fd = place.swap(-1, Ordering::SeqCst);
        if fd >= 0 {
            // SAFETY: no pointers.
            unsafe { (calls().close)(fd) };
        }
    }
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// `socket(2)`, for datagrams of IPv4 and IPv6.
#[no_mangle]
pub extern "C" fn udpdk_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { (calls().socket)(domain, kind, protocol) };
    let free = |place: &&AtomicI32| place.compare_exchange(-1, fd, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    if fd >= 0 && OPEN.iter().find(free).is_none() {
        // SAFETY: no pointers; the address of errno is this thread's.
        unsafe {
            (calls().close)(fd);
            *libc::__errno_location() = libc::EMFILE;
        }
        return -1;
    }
    fd
}

/// `bind(2)`.
///
/// # Safety
/// As `bind`.
#[no_mangle]
pub unsafe extern "C" fn udpdk_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: passed on.
    unsafe { (calls().bind)(fd, addr, len) }
}

/// `getsockopt(2)`.
///
/// # Safety
/// As `getsockopt`.
#[no_mangle]
pub unsafe extern "C" fn udpdk_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { (calls().getsockopt)(fd, level, name, value, len) }
}

/// `setsockopt(2)`.
///
/// # Safety
/// As `setsockopt`.
#[no_mangle]
pub unsafe extern "C" fn udpdk_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { (calls().setsockopt)(fd, level, name, value, len) }
}

/// `sendto(2)`.
///
/// # Safety
/// As `sendto`.
#[no_mangle]
pub unsafe extern "C" fn udpdk_sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { (calls().sendto)(fd, buf, len, flags, to, to_len) }
}

/// `recvfrom(2)`. Fails with EINTR after [`udpdk_interrupt`].
///
/// # Safety
/// As `recvfrom`.
#[no_mangle]
pub unsafe extern "C" fn udpdk_recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let interrupted = || INTERRUPTED.load(Ordering::SeqCst);
    if !interrupted() {
        // SAFETY: passed on.
        let received = unsafe { (calls().recvfrom)(fd, buf, len, flags, from, from_len) };
        if received > 0 || !interrupted() {
            return received;
        }
    }
    // SAFETY: the address is this thread's.
    unsafe { *libc::__errno_location() = libc::EINTR };
    -1
}

/// `close(2)`.
#[no_mangle]
pub extern "C" fn udpdk_close(fd: c_int) -> c_int {
    for place in &OPEN {
        let _ = place.compare_exchange(fd, -1, Ordering::SeqCst, Ordering::SeqCst);
    }
    // SAFETY: no pointers.
    unsafe { (calls().close)(fd) }
}
