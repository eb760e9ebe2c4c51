//! Static programs that this process starts: `netacc-loader`, which lies beside the library, runs them in their place, because
//! nothing can be preloaded into them. Their headers decide; the loader then decides whether the program can be changed, and
//! otherwise starts it plainly.
//!
//! Started plainly from here: programs that gain privileges, or are not executable for this user; programs without
//! the library in their environment; tools of valgrind, which are static programs and run the real one; all of them with
//! `NACC_STATIC=0`. As in [`environment`], nothing allocates.

use std::ffi::{c_char, c_int, CStr};
use std::fmt;
use std::io::Write;

use netacc_config::Config;
use netacc_loader::{DESCRIPTOR_VARIABLE, PROGRAM_VARIABLE};

use crate::ops::environment::{self, Strings};
use crate::os::errno::{errno, set_errno};
use crate::os::inside::Inside;
use crate::runtime;

const LOADER: &[u8] = b"netacc-loader";
const VALGRIND: &[u8] = b"VALGRIND_LAUNCHER";
/// As the kernel's limit, with the end.
const PATH: usize = libc::PATH_MAX as usize;

/// Makes a call that starts the program at `path`, or the loader in its place. `is_spawned`: another directory may be
/// current by then, so relative paths are started plainly.
///
/// # Safety
/// `path` is a C string, `envp` null or a list of strings that ends with null.
pub unsafe fn start(
    path: *const c_char,
    envp: Strings,
    is_spawned: bool,
    call: impl FnOnce(*const c_char, Strings) -> c_int,
) -> c_int {
    let saved = errno();
    // SAFETY: the caller's promise.
    let wanted =
        !path.is_null() && unsafe { (!is_spawned || *path == b'/' as c_char) && is_static(path) && is_allowed(envp) };
    set_errno(saved);
    if wanted {
        // SAFETY: the caller's promise.
        unsafe {
            let path = CStr::from_ptr(path);
            start_loader(Program { file: path, name: path, fd: None }, envp, call)
        }
    } else {
        call(path, envp)
    }
}

/// As [`start`] for a program that is searched as a shell does; `otherwise` makes the call for those that are not static.
///
/// # Safety
/// As for [`start`].
pub unsafe fn start_found(
    file: *const c_char,
    envp: Strings,
    is_spawned: bool,
    call: impl FnOnce(*const c_char, Strings) -> c_int,
    otherwise: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let saved = errno();
    let mut buffer = [0u8; PATH];
    // SAFETY: the caller's promise.
    let found = (!file.is_null()).then(|| unsafe { search(CStr::from_ptr(file), &mut buffer) }).flatten();
    set_errno(saved);
    // SAFETY: the caller's promise.
    let wanted = found.filter(|path| unsafe { is_static(path.as_ptr()) && is_allowed(envp) });
    set_errno(saved);
    match wanted {
        // SAFETY: the caller's promise.
        Some(path) => unsafe { start(path.as_ptr(), envp, is_spawned, call) },
        None => otherwise(envp),
    }
}

/// As [`start`] for `execveat`: the program is at `path`, from the directory `dir`; or it is the file `dir` itself
/// (`AT_EMPTY_PATH`), which may have no path. The loader gets a descriptor of the file. `otherwise` makes the call for programs
/// that are not static.
///
/// # Safety
/// As for [`start`].
pub unsafe fn start_at(
    (dir, path, flags): (c_int, *const c_char, c_int),
    envp: Strings,
    call: impl FnOnce(*const c_char, Strings) -> c_int,
    otherwise: impl FnOnce(Strings) -> c_int,
) -> c_int {
    if path.is_null() {
        return otherwise(envp);
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let is_from_here = dir == libc::AT_FDCWD || path.to_bytes().starts_with(b"/");
    if is_from_here && flags == 0 {
        // SAFETY: the caller's promise.
        return unsafe { start(path.as_ptr(), envp, false, call) };
    }
    let saved = errno();
    let fd = open_at(dir, path, flags);
    let (mut file, mut name) = ([0; PATH], [0; PATH]);
    let file = format(format_args!("/proc/self/fd/{fd}"), &mut file);
    // As the kernel names it.
    let name = match path.to_bytes() {
        b"" => format(format_args!("/dev/fd/{dir}"), &mut name),
        _ if is_from_here => Some(path),
        rest => {
            let mut place = [0; 32];
            let place = format(format_args!("/dev/fd/{dir}/"), &mut place);
            place.and_then(|place| join(&[place.to_bytes(), rest], &mut name))
        }
    };
    // SAFETY: a C string; the caller's promise.
    let wanted = file.zip(name).filter(|(file, _)| fd >= 0 && unsafe { is_static(file.as_ptr()) && is_allowed(envp) });
    set_errno(saved);
    let result = match wanted {
        // SAFETY: the caller's promise.
        Some((file, name)) => unsafe { start_loader(Program { file, name, fd: Some(fd) }, envp, call) },
        None => otherwise(envp),
    };
    let saved = errno();
    if fd >= 0 {
        // SAFETY: opened above.
        unsafe { libc::close(fd) };
    }
    set_errno(saved);
    result
}

/// A descriptor of the program's file that the next program gets, too; negative if there is none.
fn open_at(dir: c_int, path: &CStr, flags: c_int) -> c_int {
    if path.is_empty() {
        let has_file = flags & libc::AT_EMPTY_PATH != 0;
        // SAFETY: no pointers.
        return if has_file { unsafe { libc::fcntl(dir, libc::F_DUPFD, 0) } } else { -1 };
    }
    let follow = if flags & libc::AT_SYMLINK_NOFOLLOW == 0 { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: a C string.
    unsafe { libc::openat(dir, path.as_ptr(), libc::O_PATH | follow) }
}

/// The text as a C string, without allocation; `None`: it does not fit.
fn format<'a>(text: fmt::Arguments<'_>, buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let room = buffer.len();
    let mut rest = &mut buffer[..];
    rest.write_fmt(text).ok()?;
    rest.write_all(b"\0").ok()?;
    let len = room - rest.len();
    CStr::from_bytes_with_nul(&buffer[..len]).ok()
}

/// The file that the C library would take, if it is in a directory of `PATH` or named by its path.
fn search<'a>(file: &CStr, buffer: &'a mut [u8; PATH]) -> Option<&'a CStr> {
    let name = file.to_bytes();
    if name.contains(&b'/') {
        return join(&[name], buffer);
    }
    // SAFETY: a C string; the C library reads the same variable.
    let list = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: null, or a C string that stays unless the program changes its environment meanwhile.
    let list = if list.is_null() { c"/bin:/usr/bin" } else { unsafe { CStr::from_ptr(list) } };
    let place = list.to_bytes().split(|byte| *byte == b':').find(|place| {
        let mut candidate = [0; PATH];
        let path = join(&[place, b"/", name], &mut candidate);
        // SAFETY: a C string.
        path.is_some_and(|path| unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0)
    })?;
    join(&[place, b"/", name], buffer)
}

/// The parts one after the other, as a C string; `None`: they do not fit.
fn join<'a>(parts: &[&[u8]], buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let mut len = 0;
    for part in parts.iter().copied().chain([&b"\0"[..]]) {
        buffer.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    CStr::from_bytes_with_nul(&buffer[..len]).ok()
}

/// Whether the file is a static program that this user may run, and that gains nothing by it.
///
/// # Safety
/// `path` is a C string.
unsafe fn is_static(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK) };
    if fd < 0 {
        return false;
    }
    // SAFETY: the caller's promise.
    let runs = runs_plainly(fd) && unsafe { libc::access(path, libc::X_OK) } == 0;
    let read = |bytes: &mut [u8], at: u64| {
        // SAFETY: writable to its length.
        let got = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), at as libc::off_t) };
        got == bytes.len() as isize
    };
    let is_static = runs && netacc_loader::is_static(read);
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    is_static
}

/// Whether the file is regular, and gives its user no privileges.
fn runs_plainly(fd: c_int) -> bool {
    // SAFETY: all-zero is a valid status.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is writable.
    if unsafe { libc::fstat(fd, &mut status) } != 0 || status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return false;
    }
    // SAFETY: a C string; asks for the length alone.
    let capabilities = unsafe { libc::fgetxattr(fd, c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    status.st_mode & (libc::S_ISUID | libc::S_ISGID) == 0 && capabilities < 0
}

/// Whether the environment has the library, and static programs are to have it.
///
/// # Safety
/// As for [`start`].
unsafe fn is_allowed(envp: Strings) -> bool {
    // SAFETY: the caller's promise.
    let has = unsafe { environment::has_library(envp) && !environment::has(envp, VALGRIND) };
    has && match runtime::get() {
        Some(rt) => rt.config.static_programs,
        None => {
            let _library = Inside::enter();
            Config::load().0.static_programs
        }
    }
}

/// A static program, for the loader.
#[derive(Clone, Copy)]
struct Program<'a> {
    file: &'a CStr,
    /// As the program gets it.
    name: &'a CStr,
    /// A descriptor of the file, if its path is not for the loader to open.
    fd: Option<c_int>,
}

/// # Safety
/// As for [`start`]; the environment has the library.
#[inline(never)]
unsafe fn start_loader(
    program: Program<'_>,
    envp: Strings,
    call: impl FnOnce(*const c_char, Strings) -> c_int,
) -> c_int {
    let (mut place, mut variable, mut number) = ([0u8; PATH], [0u8; PATH + 64], [0u8; 64]);
    let directory = environment::library_path().rsplitn(2, |byte| *byte == b'/').nth(1);
    let loader = directory.and_then(|directory| join(&[directory, b"/", LOADER], &mut place));
    let variable = join(&[PROGRAM_VARIABLE.as_bytes(), b"=", program.name.to_bytes()], &mut variable);
    let number = program.fd.and_then(|fd| format(format_args!("{DESCRIPTOR_VARIABLE}={fd}"), &mut number));
    // SAFETY: a C string.
    let exists = |loader: &&CStr| unsafe { libc::access(loader.as_ptr(), libc::X_OK) } == 0;
    match (loader.filter(exists), variable) {
        (Some(loader), Some(variable)) => {
            let added = || std::iter::once(variable).chain(number);
            // SAFETY: the caller's promise.
            unsafe { environment::with_added(envp, added, |envp| call(loader.as_ptr(), envp)) }
        }
        _ => call(program.file.as_ptr(), envp),
    }
}
