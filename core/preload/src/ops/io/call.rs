//! A call that moves data: the environment in which `core/socket` decides, whether the call sends or receives.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::iovec;
use netacc_device::Instant;
use netacc_socket::{Connection, Errno, KernelError, Socket as Environment};

use super::kernel::is_broken;
use crate::ops::waiting::Waiting;
use crate::os::clock;
use crate::os::errno::errno;
use crate::runtime::Runtime;
use crate::socket::Socket;
use crate::table::Entry;

/// The connection that a call moves data of.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) rt: &'static Runtime,
    pub(super) entry: &'a Arc<Entry>,
    pub(super) sock: &'a Socket,
    pub(super) connection: Connection<'a>,
}

/// The direction of a call's data.
pub(super) trait Direction {
    /// SO_SNDTIMEO or SO_RCVTIMEO.
    fn timeout(sock: &Socket) -> Option<Duration>;
}

/// A call on a connection.
pub(super) struct Call<'a, D> {
    pub(super) target: Target<'a>,
    /// The descriptor that reaches the connection. It changes when another thread closes the one of the call.
    pub(super) fd: c_int,
    /// Invariant: readable memory where the call sends, writable memory where it receives, or memory that is found to
    /// be unmapped. The caller of `send` or `recv` promises that.
    pub(super) iov: &'a [iovec],
    /// Of the memory.
    pub(super) len: usize,
    pub(super) flags: c_int,
    /// The registration of this call with its socket, once it has had to wait.
    pub(super) waiting: Option<Waiting<'a>>,
    pub(super) direction: D,
}

impl<D: Direction> Environment for Call<'_, D> {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn is_nonblocking(&self) -> bool {
        self.target.sock.is_nonblocking()
    }

    fn timeout(&self) -> Option<Duration> {
        D::timeout(self.target.sock)
    }

    fn begin_wait(&mut self) {
        let Target { entry, sock, .. } = self.target;
        self.waiting.get_or_insert_with(|| Waiting::new(entry, sock));
        self.find_descriptor();
    }

    fn is_broken(&self) -> bool {
        is_broken(self.fd)
    }

    fn poll_link(&mut self) -> bool {
        self.target.connection.poll_link()
    }
}

impl<D> Call<'_, D> {
    /// The descriptor of a call that waits may be closed meanwhile.
    pub(super) fn find_descriptor(&mut self) {
        if let Some(waiting) = &self.waiting {
            self.fd = waiting.descriptor(self.fd);
        }
    }
}

/// The result of a call of the kernel's that moves bytes.
#[inline]
pub(super) fn kernel_result(n: isize) -> Result<usize, KernelError> {
    if n >= 0 {
        Ok(n as usize)
    } else {
        Err(KernelError::from(Errno(errno())))
    }
}
