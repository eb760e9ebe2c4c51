//! Variadic functions. Stable Rust cannot define them, so the bodies are in `variadic.c`; but only names defined in Rust
//! are exported from a Rust cdylib. Hence jumps, which leave every register and the stack as the caller set them up. The way
//! back from C is by names of our own, which are exported too for want of another way to link them.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};

use super::process::of_program;

macro_rules! jumps {
    ($($name:ident => $body:ident),* $(,)?) => {
        extern "C" {
            $(fn $body();)*
        }

        $(
            #[doc = concat!("Interposes `", stringify!($name), "`.\n\n# Safety\nAs the C function, whose signature this is not.")]
            #[cfg_attr(not(test), no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!("jmp {body}", body = sym $body);
                #[cfg(target_arch = "aarch64")]
                naked_asm!("b {body}", body = sym $body);
            }
        )*
    };
}

jumps! {
    execl => netacc_execl,
    execlp => netacc_execlp,
    execle => netacc_execle,
    dprintf => netacc_dprintf,
    __dprintf_chk => netacc_dprintf_chk,
}

macro_rules! for_c {
    ($(fn $name:ident = $hook:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($hook), "` of the program, for `variadic.c`.\n\n# Safety\nAs the C function.")]
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: passed on.
            unsafe { of_program::$hook($($arg),*) }
        }
    )*};
}

for_c! {
    fn netacc_execv = execv(path: *const c_char, argv: *const *const c_char);
    fn netacc_execvp = execvp(file: *const c_char, argv: *const *const c_char);
    fn netacc_execve = execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char);
    fn netacc_vdprintf = vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void);
    fn netacc_vdprintf_chk = __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void);
}
