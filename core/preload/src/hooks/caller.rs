//! Finds the caller of a hook: the program or this library.
//!
//! The standard library, and the other libraries that are linked into this one, call the C library by the names that
//! are interposed here. So their calls arrive at our own hooks, but must go to the real functions. A hook recognises
//! them by its return address: two loads and a comparison, safe at any time in any thread.
//!
//! A call in tail position returns to its caller's caller. Inside the library that is library code as well, as long
//! as no hook ends in one: every hook has something to drop.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The start of this library's code in memory.
pub static START: AtomicUsize = AtomicUsize::new(0);
/// The length of the code. 0 until [`find_library`] has run, so that every caller is the program.
pub static LEN: AtomicUsize = AtomicUsize::new(0);

/// The body of a naked function: jumps to the first function, or to the second if this library is the caller. Keeps all
/// registers that carry arguments.
macro_rules! dispatch {
    ($program:path, $library:path) => {{
        #[cfg(target_arch = "x86_64")]
        std::arch::naked_asm!(
            "mov r11, qword ptr [rsp]",
            "sub r11, qword ptr [rip + {start}]",
            "cmp r11, qword ptr [rip + {len}]",
            "jb {library}",
            "jmp {program}",
            start = sym $crate::hooks::caller::START,
            len = sym $crate::hooks::caller::LEN,
            library = sym $library,
            program = sym $program,
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::naked_asm!(
            "adrp x16, {start}",
            "ldr x16, [x16, :lo12:{start}]",
            "sub x16, x30, x16",
            "adrp x17, {len}",
            "ldr x17, [x17, :lo12:{len}]",
            "cmp x16, x17",
            "b.lo 2f",
            "b {program}",
            "2:",
            "b {library}",
            start = sym $crate::hooks::caller::START,
            len = sym $crate::hooks::caller::LEN,
            library = sym $library,
            program = sym $program,
        );
    }};
}

pub(crate) use dispatch;

/// Finds out where this library is in memory. Returns the path of its file.
pub fn find_library() -> Option<&'static CStr> {
    let mut search = Search { address: find_library as *const () as usize, path: null() };
    // SAFETY: the callback is called at once, and only with the pointer passed here.
    unsafe { libc::dl_iterate_phdr(Some(module), (&raw mut search).cast()) };
    // SAFETY: the loader keeps the path as long as the library is loaded.
    (!search.path.is_null()).then(|| unsafe { CStr::from_ptr(search.path) })
}

struct Search {
    /// An address in the library's code.
    address: usize,
    /// The path of the library's file; null until found.
    path: *const c_char,
}

/// Records the executable segment that contains the address in `data`, a [`Search`]; 1 ends the walk.
unsafe extern "C" fn module(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: valid for the call; `data` is the search in `find_library`.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    for i in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: the loader's table has that many headers.
        let header = unsafe { &*info.dlpi_phdr.add(i) };
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let len = header.p_memsz as usize;
        let code = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        if code && search.address.wrapping_sub(start) < len {
            START.store(start, Ordering::Relaxed);
            LEN.store(len, Ordering::Release);
            search.path = info.dlpi_name;
            return 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C-unwind" fn program(n: c_int) -> c_int {
        n + 1
    }

    unsafe extern "C-unwind" fn library(n: c_int) -> c_int {
        n + 2
    }

    #[unsafe(naked)]
    unsafe extern "C-unwind" fn hook(n: c_int) -> c_int {
        dispatch!(program, library)
    }

    #[test]
    fn calls_of_the_library_are_distinguished_from_others() {
        // SAFETY: the functions have no preconditions.
        let call = || unsafe { std::hint::black_box(hook as unsafe extern "C-unwind" fn(c_int) -> c_int)(40) };
        assert_eq!(call(), 41, "not found yet: everybody is the program");
        find_library();
        assert_eq!(call(), 42);
        let (start, len) = (START.load(Ordering::Relaxed), LEN.load(Ordering::Relaxed));
        START.store(start + len, Ordering::Relaxed);
        assert_eq!(call(), 41, "the code is elsewhere");
    }
}
