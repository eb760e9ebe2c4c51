//! Processes, and standard I/O. See [`ops::process`](crate::ops::process) for what is interposed and what is not.

use std::ffi::{c_char, c_int, c_void};

use libc::{pid_t, FILE};
use netacc_proto::Reason;

use super::{hooks, stream_or};
use crate::control::exit;
use crate::ops::clone::Clone;
use crate::ops::{process, spawn_actions, static_programs, stdio};
use crate::os::real;
use crate::{leaving, stats, table, vfork};

type Strings = *const *const c_char;

extern "C" {
    static environ: Strings;
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Interposes `_exit`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    if !vfork::is_child() {
        exit::end();
        stats::report_at_exit();
    }
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

/// `execvpe`.
///
/// # Safety
/// As the C function.
unsafe fn exec_found(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe {
        process::exec(envp, |envp| {
            let exec = |path, envp| real::execve(path, argv, envp);
            static_programs::start_found(file, envp, false, exec, |envp| real::execvpe(file, argv, envp))
        })
    }
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

    fn clone(work: Option<real::Work>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: *mut c_void, tls: *mut c_void, child_tid: *mut c_void) -> c_int {
        Clone { stack, flags, parent_tid, tls, child_tid }.call(work, argument)
    }

    fn __clone(work: Option<real::Work>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: *mut c_void, tls: *mut c_void, child_tid: *mut c_void) -> c_int {
        Clone { stack, flags, parent_tid, tls, child_tid }.call(work, argument)
    }

    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        process::exec(envp, |envp| static_programs::start(path, envp, false, |path, envp| real::execve(path, argv, envp)))
    }

    fn execv(path: *const c_char, argv: Strings) -> c_int {
        process::exec(environ, |envp| static_programs::start(path, envp, false, |path, envp| real::execve(path, argv, envp)))
    }

    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        exec_found(file, argv, environ)
    }

    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        exec_found(file, argv, envp)
    }

    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        process::exec(envp, |envp| {
            let exec = |path, envp| real::execve(path, argv, envp);
            let program = (fd, c"".as_ptr(), libc::AT_EMPTY_PATH);
            static_programs::start_at(program, envp, exec, |envp| real::fexecve(fd, argv, envp))
        })
    }

    fn execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        process::exec(envp, |envp| {
            let exec = |path, envp| real::execve(path, argv, envp);
            let otherwise = |envp| real::execveat(dir, path, argv, envp, flags);
            static_programs::start_at((dir, path, flags), envp, exec, otherwise)
        })
    }

    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        process::spawn(actions, envp, |envp| {
            let spawn = |path, envp| real::posix_spawn(pid, path, actions, attributes, argv, envp);
            static_programs::start(path, envp, true, spawn)
        })
    }

    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        process::spawn(actions, envp, |envp| {
            let spawn = |path, envp| real::posix_spawn(pid, path, actions, attributes, argv, envp);
            let search = |envp| real::posix_spawnp(pid, file, actions, attributes, argv, envp);
            static_programs::start_found(file, envp, true, spawn, search)
        })
    }

    fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int {
        spawn_actions::forget(actions);
        real::posix_spawn_file_actions_init(actions)
    }

    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int {
        spawn_actions::forget(actions);
        real::posix_spawn_file_actions_destroy(actions)
    }

    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int {
        if !spawn_actions::record_copy(actions, from) {
            leaving::surrender(from, Reason::Shared);
        }
        real::posix_spawn_file_actions_adddup2(actions, from, to)
    }

    fn system(command: *const c_char) -> c_int {
        process::before_start(&[]);
        real::system(command)
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        process::before_start(&[]);
        real::popen(command, mode)
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if table::get(fd).is_some() {
            leaving::surrender(fd, Reason::KernelOnly);
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
