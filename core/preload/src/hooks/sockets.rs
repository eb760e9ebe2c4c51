//! Making, connecting, ending and configuring sockets.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use super::{entry_or, hooks};
use crate::control::shortage;
use crate::ops::{connection, ending, options, state};
use crate::os::{confinement, real};

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = shortage::opening_fd(|| real::socket(domain, kind, protocol));
        if fd >= 0 {
            connection::socket(domain, kind, protocol, fd);
        }
        fd
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        entry_or!(fd, real::listen(fd, backlog), |entry| connection::listen(entry, fd, backlog))
    }

    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if confinement::is_confined() {
            return real::accept(fd, addr, len);
        }
        accept4(fd, addr, len, 0)
    }

    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        entry_or!(fd, connection::accept_unknown(fd, addr, len, flags), |entry| connection::accept4(entry, fd, addr, len, flags))
    }

    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        entry_or!(fd, real::connect(fd, addr, len), |entry| connection::connect(entry, fd, addr, len))
    }

    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        connect(fd, addr, len)
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        entry_or!(fd, real::shutdown(fd, how), |entry| ending::shutdown(entry, fd, how))
    }

    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        entry_or!(fd, real::getpeername(fd, addr, len), |entry| state::getpeername(entry, fd, addr, len))
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        entry_or!(fd, real::getsockopt(fd, level, name, value, len), |entry| {
            options::getsockopt(entry, fd, level, name, value, len)
        })
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        entry_or!(fd, real::setsockopt(fd, level, name, value, len), |entry| {
            options::setsockopt(entry, fd, level, name, value, len)
        })
    }
}
