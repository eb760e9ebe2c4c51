//! The environment of programs that are started: some programs pass on only certain variables, and the programs that
//! they start would run without the library.
//!
//! An environment that lacks `LD_PRELOAD` gets the library, and the variables that configure it, as this process was started
//! with them. An environment that has `LD_PRELOAD` is the program's own choice and stays as it is, also if the value is empty
//! or names other libraries. `NACC_KEEP_PRELOAD=0` leaves all environments as they are. The dynamic loader ignores
//! `LD_PRELOAD` in programs that gain privileges.
//!
//! `exec` may be called in a signal handler, and between fork and exec in a process of several threads, so nothing here
//! allocates unless an environment has to be changed before this process has read its configuration.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, CStr};
use std::sync::atomic::{AtomicUsize, Ordering};

use netacc_config::Config;
use netacc_loader::{DESCRIPTOR_VARIABLE, PROGRAM_VARIABLE, REPORT_VARIABLE};

use crate::os::inside;
use crate::runtime;

/// An environment or a list of arguments: strings, then null.
pub type Strings = *const *const c_char;

const PRELOAD: &[u8] = b"LD_PRELOAD";
/// The prefix of the variables that configure the library.
const PREFIXES: [&[u8]; 2] = [b"NACC_", b"NETACC_"];
/// Strings of an environment that fit on the stack. Arbitrary; longer ones get memory from the kernel.
const ON_STACK: usize = 256;

/// Variables that take more than this are not passed on. Arbitrary: settings are short, and so are most paths.
const ROOM: usize = 8 << 10;

/// The library's variables that this process was started with: strings that end with a zero byte, one after the other.
/// The first is `LD_PRELOAD`, with the library alone. Static memory, so that a process that opens no socket allocates
/// nothing.
struct Kept {
    text: UnsafeCell<[u8; ROOM]>,
    /// The used part. 0 until [`fill`](Kept::fill) has succeeded.
    len: AtomicUsize,
}

// SAFETY: `fill` is called while there is only one thread, and the text does not change later.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept { text: UnsafeCell::new([0; ROOM]), len: AtomicUsize::new(0) };

impl Kept {
    /// Keeps `parts`, which together are strings, if they fit.
    ///
    /// # Safety
    /// No other thread exists, or none uses it before the call returns.
    unsafe fn fill<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) {
        // SAFETY: the caller's promise.
        let text = unsafe { &mut *self.text.get() };
        let mut len = 0;
        for part in parts {
            let Some(place) = text.get_mut(len..len + part.len()) else { return };
            place.copy_from_slice(part);
            len += part.len();
        }
        self.len.store(len, Ordering::Release);
    }

    fn strings(&self) -> impl Iterator<Item = &CStr> {
        let len = self.len.load(Ordering::Acquire);
        // SAFETY: nothing changes it once there is a length.
        let text: &[u8] = unsafe { std::slice::from_raw_parts(self.text.get().cast(), len) };
        text.split_inclusive(|byte| *byte == 0).filter_map(|string| CStr::from_bytes_with_nul(string).ok())
    }

    fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }
}

/// When the library is loaded, from the file `own_path`: copies the variables for started programs, because programs
/// overwrite the memory of their initial environment.
#[inline]
pub fn remember(own_path: &CStr) {
    extern "C" {
        static environ: Strings;
    }
    // SAFETY: the C library's variable; nothing else runs yet.
    let strings = || unsafe { strings(environ) };
    let preloaded = strings().find_map(|s| s.to_bytes().strip_prefix(PRELOAD)?.strip_prefix(b"="));
    let Some(library) = preloaded.and_then(|list| entry_of(list, own_path.to_bytes())) else { return };
    let ours = strings().filter(|s| PREFIXES.iter().any(|prefix| s.to_bytes().starts_with(prefix)) && !is_loaders(s));
    let parts = [PRELOAD, b"=", library, b"\0"].into_iter().chain(ours.map(CStr::to_bytes_with_nul));
    // SAFETY: nothing else runs yet.
    unsafe { KEPT.fill(parts) };
}

/// Whether the variable is for `netacc-loader`, which runs this process's program: another program is not that one.
fn is_loaders(variable: &CStr) -> bool {
    let own = [PROGRAM_VARIABLE, REPORT_VARIABLE, DESCRIPTOR_VARIABLE];
    own.iter().any(|name| name_of(variable) == name.as_bytes())
}

/// The entry of a list of libraries that has the file name of `path`.
#[inline]
fn entry_of<'a>(list: &'a [u8], path: &[u8]) -> Option<&'a [u8]> {
    fn file(path: &[u8]) -> Option<&[u8]> {
        path.rsplit(|b| *b == b'/').next()
    }
    list.split(|b| matches!(b, b' ' | b':')).find(|entry| !entry.is_empty() && file(entry) == file(path))
}

/// # Safety
/// `list` is null, or a list of strings that ends with null and lives as long as the result is used.
unsafe fn strings<'a>(list: Strings) -> impl Iterator<Item = &'a CStr> {
    let mut next = list;
    std::iter::from_fn(move || {
        // SAFETY: the caller's promise; nothing is read after the null.
        unsafe {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let string = CStr::from_ptr(*next);
            next = next.add(1);
            Some(string)
        }
    })
}

fn name_of(string: &CStr) -> &[u8] {
    string.to_bytes().split(|b| *b == b'=').next().unwrap_or_default()
}

/// Makes a call that starts a program, with the environment that the program is to have in place of `envp`.
///
/// # Safety
/// `envp` is null, or a list of strings that ends with null.
pub unsafe fn with(envp: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let given = || unsafe { strings(envp) };
    if KEPT.is_empty() || given().any(|s| name_of(s) == PRELOAD) || !keeps() {
        return call(envp);
    }
    // SAFETY: the caller's promise.
    unsafe { with_added(envp, || KEPT.strings().filter(|k| !given().any(|s| name_of(s) == name_of(k))), call) }
}

/// Makes a call with further strings in the environment. A function of its own, so that its callers need little stack if
/// nothing is added: children of `clone` have small stacks.
///
/// # Safety
/// As for [`with`].
#[inline(never)]
pub unsafe fn with_added<'a, I: Iterator<Item = &'a CStr>>(
    envp: Strings,
    added: impl Fn() -> I,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let given = || unsafe { strings(envp) };
    let all = || given().chain(added()).map(CStr::as_ptr).chain([std::ptr::null()]);
    let count = all().count();
    let mut on_stack = [std::ptr::null(); ON_STACK];
    if let Some(list) = on_stack.get_mut(..count) {
        list.iter_mut().zip(all()).for_each(|(to, string)| *to = string);
        return call(on_stack.as_ptr());
    }
    let len = count * size_of::<*const c_char>();
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return call(envp);
    }
    let list = p.cast::<*const c_char>();
    // SAFETY: there is room for so many.
    all().enumerate().for_each(|(i, string)| unsafe { list.add(i).write(string) });
    let rc = call(list.cast_const());
    let saved = crate::os::errno::errno();
    // SAFETY: mapped above, and the call has returned.
    unsafe { libc::munmap(p, len) };
    crate::os::errno::set_errno(saved);
    rc
}

/// The library's file, as this process was started with it; empty if that is not known.
pub fn library_path() -> &'static [u8] {
    let preload = KEPT.strings().next().map(CStr::to_bytes).unwrap_or_default();
    preload.strip_prefix(PRELOAD).and_then(|rest| rest.strip_prefix(b"=")).unwrap_or_default()
}

/// Whether a program with this environment has the library.
///
/// # Safety
/// As for [`with`].
pub unsafe fn has_library(envp: Strings) -> bool {
    let own = library_path();
    // SAFETY: the caller's promise.
    let mut lists = unsafe { strings(envp) }.filter_map(|s| s.to_bytes().strip_prefix(PRELOAD)?.strip_prefix(b"="));
    !own.is_empty() && lists.any(|list| list.split(|b| matches!(b, b' ' | b':')).any(|entry| entry == own))
}

/// Whether the environment has a variable of this name.
///
/// # Safety
/// As for [`with`].
pub unsafe fn has(envp: Strings, name: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { strings(envp) }.any(|s| name_of(s) == name)
}

/// NACC_KEEP_PRELOAD.
fn keeps() -> bool {
    let saved = crate::os::errno::errno();
    let keeps = match runtime::get() {
        Some(rt) => rt.config.keep_preload,
        None => {
            let _library = inside::Inside::enter();
            Config::load().0.keep_preload
        }
    };
    crate::os::errno::set_errno(saved);
    keeps
}

#[cfg(test)]
mod tests {
    use std::sync::Once;

    use super::*;

    #[test]
    fn the_library_is_found_in_a_list() {
        let path = b"/usr/lib/libnetacc-preload.so";
        assert_eq!(entry_of(path, path), Some(&path[..]));
        assert_eq!(entry_of(b"liba.so:/x/libnetacc-preload.so b.so", path), Some(&b"/x/libnetacc-preload.so"[..]));
        assert_eq!(entry_of(b"liba.so libnetacc-preload.so.1", path), None);
        assert_eq!(entry_of(b"", path), None);
    }

    /// The environment of a program that is started with `given`, if this process had been started
    /// with these variables.
    fn environment(given: &[&CStr]) -> Vec<String> {
        static FILLED: Once = Once::new();
        let kept = [c"LD_PRELOAD=/lib/ours.so", c"NACC_BACKEND=shm", c"NETACC_TOLD=1"];
        // SAFETY: tests use it after this only.
        FILLED.call_once(|| unsafe { KEPT.fill(kept.iter().map(|s| s.to_bytes_with_nul())) });
        let mut list: Vec<*const c_char> = given.iter().map(|s| s.as_ptr()).collect();
        list.push(std::ptr::null());
        let mut seen = Vec::new();
        let check = |envp| {
            // SAFETY: made by `with`, or above.
            seen.extend(unsafe { strings(envp) }.map(|s| s.to_string_lossy().into_owned()));
            7
        };
        // SAFETY: the list ends with null.
        assert_eq!(unsafe { with(list.as_ptr(), check) }, 7);
        seen
    }

    #[test]
    fn an_environment_without_the_library_gets_it() {
        let own = ["LD_PRELOAD=/lib/ours.so", "NACC_BACKEND=shm", "NETACC_TOLD=1"];
        assert_eq!(environment(&[]), own);
        assert_eq!(environment(&[c"A=b", c"NACC_BACKEND=none"]), ["A=b", "NACC_BACKEND=none", own[0], own[2]]);
        let many = vec![c"A=b"; 1000];
        let seen = environment(&many);
        assert_eq!((seen.len(), &seen[1000..]), (1003, &own.map(String::from)[..]));
    }

    #[test]
    fn variables_that_do_not_fit_are_not_kept() {
        let kept = Kept { text: UnsafeCell::new([0; ROOM]), len: AtomicUsize::new(0) };
        // SAFETY: of this thread alone.
        unsafe { kept.fill([b"A=b\0".as_slice(), &[0; ROOM]].into_iter()) };
        assert!(kept.is_empty() && kept.strings().next().is_none());
    }

    #[test]
    fn a_choice_of_the_program_stays() {
        assert_eq!(environment(&[c"LD_PRELOAD=", c"A=b"]), ["LD_PRELOAD=", "A=b"]);
        assert_eq!(environment(&[c"LD_PRELOAD=/lib/other.so"]), ["LD_PRELOAD=/lib/other.so"]);
    }
}
