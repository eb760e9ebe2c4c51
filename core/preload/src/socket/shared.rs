//! Options that another holder of a socket may have set: O_NONBLOCK belongs to the open file description, and options belong to the
//! socket. The library keeps copies of them, so a call that one of them matters to asks the kernel while there may be such
//! a holder, and once there is none any more all of them are read.
//!
//! Not read are SO_RCVBUF, because the kernel does not show whether it was set, and TCP_CORK as long as the stream is
//! on a link: bytes that are corked leave a little later, as without it.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use netacc_driver::StreamCell;
use netacc_proto::RxSource;

use super::options::{keep_as_reported, keep_queue_reports, needs_kernel, read_from_kernel};
use super::Socket;
use crate::os::real;
use crate::runtime::{self, Runtime};

impl Socket {
    /// O_NONBLOCK, for a call that would have to wait. It belongs to the open file description. Another process, or a
    /// descriptor that came back in a message, may share that and have set it.
    pub fn is_nonblocking(&self) -> bool {
        if self.shares_description() {
            self.read_nonblocking();
        }
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Whether no call waits, because O_NONBLOCK is set and this process alone could take it back.
    #[inline]
    pub fn never_waits(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed) && !self.shares_description()
    }

    /// SO_RCVTIMEO, for a call that is about to wait. It belongs to the socket: see
    /// [`is_nonblocking`](Socket::is_nonblocking).
    pub fn recv_timeout(&self) -> Option<Duration> {
        self.read_if_shared(libc::SO_RCVTIMEO);
        self.options.recv_timeout()
    }

    /// SO_SNDTIMEO, likewise.
    pub fn send_timeout(&self) -> Option<Duration> {
        self.read_if_shared(libc::SO_SNDTIMEO);
        self.options.send_timeout()
    }

    /// SO_RCVLOWAT, for a call that begins to receive `cell`, likewise.
    #[inline]
    pub fn low_water(&self, cell: &Arc<StreamCell>) -> u32 {
        if self.shares_description() {
            self.read_low_water(cell);
        }
        cell.low_water()
    }

    /// The kernel's SO_RCVLOWAT, as long as it is the program's: while a record may come, the library sets another one. A
    /// process that sets it takes the stream off its link first.
    #[cold]
    #[inline(never)]
    fn read_low_water(&self, cell: &Arc<StreamCell>) {
        let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) else { return };
        let mut guard = cell.lock(endpoint);
        if !matches!(guard.rx_source(), RxSource::Anchor(_)) {
            return;
        }
        keep_as_reported(&self.options, self.fd.load(Ordering::Relaxed), libc::SO_RCVLOWAT);
        let bytes = self.options.low_water.load(Ordering::Relaxed).max(1) as u32;
        if bytes != cell.low_water() {
            guard.change(|stream| stream.set_low_water(bytes));
        }
    }

    /// SO_ZEROCOPY, for a send with MSG_ZEROCOPY, likewise.
    pub fn is_zero_copy(&self) -> bool {
        self.read_if_shared(libc::SO_ZEROCOPY);
        self.options.zero_copy.load(Ordering::Relaxed)
    }

    /// TCP_INQ, for a message that was received, likewise.
    pub fn reports_queue(&self) -> bool {
        if self.shares_description() {
            keep_queue_reports(&self.options, self.fd.load(Ordering::Relaxed));
        }
        self.options.reports_queue.load(Ordering::Relaxed)
    }

    /// Keeps the connection on the kernel path if another process has set an option that only the kernel can honour.
    pub fn find_needs(&self) {
        if self.stream.as_ref().is_some_and(|cell| cell.is_shared() && !cell.is_pinned())
            && needs_kernel(self.fd.load(Ordering::Relaxed))
        {
            self.keep_on_kernel();
        }
    }

    fn read_if_shared(&self, option: c_int) {
        if self.shares_description() {
            keep_as_reported(&self.options, self.fd.load(Ordering::Relaxed), option);
        }
    }

    /// Whether another process may have changed the open file description.
    #[inline]
    pub fn shares_description(&self) -> bool {
        self.stream.as_ref().is_some_and(|cell| cell.is_shared() || cell.is_pinned())
    }

    /// Whether closing `fd` is to reset the connection. Another process that holds or held the socket may have set
    /// that.
    pub fn aborts_on_close(&self, fd: c_int) -> bool {
        let aborts = self.options.abort_on_close.load(Ordering::Relaxed);
        if aborts || self.family.load(Ordering::Relaxed) == 0 {
            return aborts;
        }
        let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
        let mut len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: a writable struct, and its length.
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut linger).cast(), &mut len) };
        linger.l_onoff != 0 && linger.l_linger == 0
    }

    /// Everything that the processes which held the socket besides may have set.
    pub(super) fn read_what_others_set(&self, cell: &Arc<StreamCell>) {
        let fd = self.fd.load(Ordering::Relaxed);
        self.read_nonblocking();
        read_from_kernel(&self.options, fd);
        self.read_low_water(cell);
        if needs_kernel(fd) {
            self.keep_on_kernel();
        }
    }

    pub(super) fn read_nonblocking(&self) {
        // SAFETY: no pointers.
        let flags = unsafe { real::fcntl(self.fd.load(Ordering::Relaxed), libc::F_GETFL, 0) };
        if flags >= 0 {
            self.nonblocking.store(flags & libc::O_NONBLOCK != 0, Ordering::Relaxed);
        }
    }
}
