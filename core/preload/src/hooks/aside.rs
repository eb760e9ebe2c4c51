//! Calls other than the socket calls that read, write, take or end connections. See [`ops::aside`](crate::ops::aside).

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{aiocb, sigevent, FILE};

use super::hooks;
use crate::control::exit;
use crate::ops::{aside, connection, stdio};
use crate::os::aio;
use crate::os::real;

hooks! {
    fn aio_read(operation: *mut aiocb) -> c_int {
        aside::before_aio(operation);
        real::aio_read(operation)
    }

    fn aio_read64(operation: *mut aiocb) -> c_int {
        aside::before_aio(operation);
        real::aio_read64(operation)
    }

    fn aio_write(operation: *mut aiocb) -> c_int {
        aside::before_aio(operation);
        real::aio_write(operation)
    }

    fn aio_write64(operation: *mut aiocb) -> c_int {
        aside::before_aio(operation);
        real::aio_write64(operation)
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        aside::before_list(list, count);
        real::lio_listio(mode, list, count, event)
    }

    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        aside::before_list(list, count);
        real::lio_listio64(mode, list, count, event)
    }

    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        stdio::before_close(stream);
        real::freopen(path, mode, stream)
    }

    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        stdio::before_close(stream);
        real::freopen64(path, mode, stream)
    }

    fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int {
        aside::before_taking(pidfd, target);
        // By number, as `close_range`.
        let fd = real::syscall(libc::SYS_pidfd_getfd, pidfd.into(), target.into(), flags.into(), 0, 0, 0) as c_int;
        connection::received(fd, aside::sender(pidfd));
        fd
    }

    fn io_submit(context: c_ulong, count: c_long, list: *const *const aio::Iocb) -> c_int {
        aside::before_submit(count, list);
        real::io_submit(context, count, list)
    }

    fn pthread_exit(value: *mut c_void) -> () {
        exit::thread_exits();
        real::pthread_exit(value)
    }
}
