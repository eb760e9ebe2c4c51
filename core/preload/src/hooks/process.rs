//! Processes, and standard I/O. See [`ops::process`](crate::ops::process) for what is interposed and what is not.

use std::ffi::{c_char, c_int, c_void};

use libc::{pid_t, FILE};
use netacc_proto::Reason;

use super::{hooks, stream_or};
use crate::ops::{process, stdio};
use crate::{real, runtime, stats, table};

type Strings = *const *const c_char;

extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Interposes `vfork`, which becomes `fork`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    // SAFETY: passed on.
    unsafe { real::fork() }
}

/// As [`vfork`].
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn __vfork() -> pid_t {
    // SAFETY: passed on.
    unsafe { real::fork() }
}

/// Interposes `_exit`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    runtime::end();
    stats::tell_at_exit();
    loop {
        // SAFETY: ends the process, as the C function does.
        unsafe { real::syscall(libc::SYS_exit_group, status.into(), 0, 0, 0, 0, 0) };
    }
}

/// Interposes `_Exit`, which is `_exit`.
///
/// # Safety
/// As the C function.
#[allow(non_snake_case, reason = "C's name")]
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: passed on.
    unsafe { _exit(status) }
}

hooks! {
    fn _Fork() -> pid_t {
        process::bare_fork()
    }

    fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
        let rc = real::daemon(no_chdir, no_close);
        if rc == 0 && no_close == 0 {
            process::after_daemon();
        }
        rc
    }

    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        runtime::leave();
        process::before_exec();
        let rc = real::execve(path, argv, envp);
        runtime::stay();
        rc
    }

    fn execv(path: *const c_char, argv: Strings) -> c_int {
        runtime::leave();
        process::before_exec();
        let rc = real::execv(path, argv);
        runtime::stay();
        rc
    }

    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        runtime::leave();
        process::before_exec();
        let rc = real::execvp(file, argv);
        runtime::stay();
        rc
    }

    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        runtime::leave();
        process::before_exec();
        let rc = real::execvpe(file, argv, envp);
        runtime::stay();
        rc
    }

    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        runtime::leave();
        process::before_exec();
        let rc = real::fexecve(fd, argv, envp);
        runtime::stay();
        rc
    }

    fn execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        runtime::leave();
        process::before_exec();
        let rc = real::execveat(dir, path, argv, envp, flags);
        runtime::stay();
        rc
    }

    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        process::before_exec();
        real::posix_spawn(pid, path, actions, attributes, argv, envp)
    }

    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        process::before_exec();
        real::posix_spawnp(pid, file, actions, attributes, argv, envp)
    }

    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int {
        if table::get(from).is_some() {
            process::surrender(from, Reason::Shared);
        }
        real::posix_spawn_file_actions_adddup2(actions, from, to)
    }

    fn system(command: *const c_char) -> c_int {
        process::before_exec();
        real::system(command)
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        process::before_exec();
        real::popen(command, mode)
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if table::get(fd).is_some() {
            process::surrender(fd, Reason::KernelOnly);
        }
        real::fdopen(fd, mode)
    }

    fn fclose(stream: *mut FILE) -> c_int {
        stdio::before_close(stream);
        real::fclose(stream)
    }

    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        stream_or!(fd, real::vdprintf(fd, format, arguments), |t| {
            stdio::print(t, |text| vasprintf(text, format, arguments))
        })
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        stream_or!(fd, real::__vdprintf_chk(fd, flag, format, arguments), |t| {
            stdio::print(t, |text| __vasprintf_chk(text, flag, format, arguments))
        })
    }
}
