//! Sockets of the program: state the shim keeps beside the kernel's.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use netacc_device::{Anchor, AnchorError};
use netacc_driver::StreamCell;
use netacc_proto::Reason;
use parking_lot::Mutex;

use crate::epoll::Registration;
use crate::real;
use crate::runtime::{Inherited, Runtime};

/// A TCP connection of the program. Shared by all descriptors that were duplicated from one another.
pub struct Socket {
    /// The stream; `None` when this connection stays on TCP for good.
    pub stream: Option<Arc<StreamCell>>,
    /// Why it stays on TCP, if it does.
    pub reason: Reason,
    /// This end accepted the connection; the other one asks for promotion.
    pub accepted: bool,
    /// Why its stream is not on a link, once that was found out and counted; `Reason::None` before.
    noted: AtomicU16,
    /// A descriptor of it that is open.
    pub fd: AtomicI32,
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// O_NONBLOCK of the open file description.
    pub nonblocking: AtomicBool,
    /// SO_RCVTIMEO in microseconds; 0 for none.
    pub recv_timeout_us: AtomicI64,
    /// SO_SNDTIMEO in microseconds; 0 for none.
    pub send_timeout_us: AtomicI64,
    /// SO_LINGER with a zero time: close resets.
    pub abort_on_close: AtomicBool,
    /// SO_RCVLOWAT.
    pub low_water: AtomicI32,
    /// Send and receive calls so far: promotion begins after `NACC_PROMOTE_AFTER`.
    pub operations: AtomicU32,
    /// At which count of `operations` promotion is tried next; `u32::MAX` for never.
    pub promote_at: AtomicU32,
    /// The error of the stream has been reported: from now on end of stream and EPIPE.
    pub error_reported: AtomicBool,
    /// What ended a call that returned a number of bytes: for the next call. 0 for nothing.
    pub deferred_error: AtomicI32,
    /// Epoll instances that watch it.
    pub watchers: Mutex<Vec<Registration>>,
    inherited: OnceLock<Inherited>,
    /// For display: when it was made, in the order of the process.
    pub serial: u64,
}

/// A socket that is not connected (yet).
pub struct Listener {
    /// O_NONBLOCK.
    pub nonblocking: AtomicBool,
    /// `listen` was called.
    pub listening: AtomicBool,
    /// AF_INET or AF_INET6.
    pub domain: c_int,
    /// SO_RCVTIMEO and SO_SNDTIMEO, which an accepted socket does not inherit, but a connected one keeps.
    pub recv_timeout_us: AtomicI64,
    /// See `recv_timeout_us`.
    pub send_timeout_us: AtomicI64,
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// SO_LINGER with a zero time.
    pub abort_on_close: AtomicBool,
    /// Epoll instances that watch it, to be carried over when it becomes a connection.
    pub watchers: Mutex<Vec<Registration>>,
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

impl Socket {
    /// A connection on descriptor `fd`.
    pub fn new(
        fd: c_int,
        stream: Option<Arc<StreamCell>>,
        reason: Reason,
        nonblocking: bool,
        promote_at: u32,
    ) -> Socket {
        Socket {
            stream,
            reason,
            accepted: false,
            noted: AtomicU16::new(0),
            fd: AtomicI32::new(fd),
            descriptors: AtomicU32::new(1),
            nonblocking: AtomicBool::new(nonblocking),
            recv_timeout_us: AtomicI64::new(0),
            send_timeout_us: AtomicI64::new(0),
            abort_on_close: AtomicBool::new(false),
            low_water: AtomicI32::new(1),
            operations: AtomicU32::new(0),
            promote_at: AtomicU32::new(promote_at),
            error_reported: AtomicBool::new(false),
            deferred_error: AtomicI32::new(0),
            watchers: Mutex::new(Vec::new()),
            inherited: OnceLock::new(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Takes note of why the stream is not on a link, and counts it the first time.
    pub fn note_reason(&self, reason: Reason) {
        if self.noted.swap(reason as u16, Ordering::Relaxed) == 0 {
            if let Some(rt) = crate::runtime::get() {
                rt.count_reason(reason);
            }
        }
    }

    /// What was noted last.
    pub fn noted_reason(&self) -> Option<Reason> {
        let code = self.noted.load(Ordering::Relaxed);
        (code != 0).then(|| Reason::from_code(code))
    }

    /// Child of a fork: the stream was on a link of the parent, who must be asked for it.
    pub fn inherit(&self, number: u32, parent: &'static Runtime) {
        let _ = self.inherited.set(Inherited::new(number, parent));
    }

    /// Makes an inherited descriptor a plain socket before its first use here.
    #[inline]
    pub fn reclaim(&self) {
        if let Some(inherited) = self.inherited.get() {
            inherited.reclaim();
        }
    }

    /// The stream, after `reclaim`.
    pub fn reclaimed_stream(&self) -> Option<Arc<StreamCell>> {
        self.reclaim();
        self.stream.clone()
    }

    /// Takes the error that a call has left for the next one.
    pub fn take_deferred_error(&self) -> Option<c_int> {
        let error = self.deferred_error.swap(0, Ordering::Relaxed);
        (error != 0).then_some(error)
    }

    /// SO_RCVTIMEO.
    pub fn recv_timeout(&self) -> Option<Duration> {
        timeout(&self.recv_timeout_us)
    }

    /// SO_SNDTIMEO.
    pub fn send_timeout(&self) -> Option<Duration> {
        timeout(&self.send_timeout_us)
    }
}

impl Listener {
    /// A fresh socket.
    pub fn new(domain: c_int, nonblocking: bool) -> Listener {
        Listener {
            nonblocking: AtomicBool::new(nonblocking),
            listening: AtomicBool::new(false),
            domain,
            recv_timeout_us: AtomicI64::new(0),
            send_timeout_us: AtomicI64::new(0),
            descriptors: AtomicU32::new(1),
            abort_on_close: AtomicBool::new(false),
            watchers: Mutex::new(Vec::new()),
        }
    }
}

impl Listener {
    /// The same socket in a forked child, which shares no locks with the parent.
    pub fn duplicate(&self) -> Listener {
        let copy = Listener::new(self.domain, self.nonblocking.load(Ordering::Relaxed));
        copy.listening.store(self.listening.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.recv_timeout_us.store(self.recv_timeout_us.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.send_timeout_us.store(self.send_timeout_us.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.abort_on_close.store(self.abort_on_close.load(Ordering::Relaxed), Ordering::Relaxed);
        copy.descriptors.store(self.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        copy
    }
}

fn timeout(us: &AtomicI64) -> Option<Duration> {
    match us.load(Ordering::Relaxed) {
        n if n > 0 => Some(Duration::from_micros(n as u64)),
        _ => None,
    }
}

/// The kernel socket beneath a stream, for records and replay.
pub struct FdAnchor {
    fd: c_int,
    /// Close it when done: it is a duplicate kept for a closed socket.
    owned: bool,
}

impl FdAnchor {
    /// The application's own descriptor.
    pub fn borrowed(fd: c_int) -> FdAnchor {
        FdAnchor { fd, owned: false }
    }

    /// A duplicate that outlives the application's descriptor.
    pub fn duplicate(fd: c_int) -> Option<FdAnchor> {
        let fd = crate::runtime::duplicate_high(fd)?;
        Some(FdAnchor { fd, owned: true })
    }
}

impl Drop for FdAnchor {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the descriptor is ours.
            unsafe { real::close(self.fd) };
        }
    }
}

fn result(n: isize) -> Result<usize, AnchorError> {
    if n >= 0 {
        return Ok(n as usize);
    }
    let e = io::Error::last_os_error();
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Err(AnchorError::WouldBlock),
        _ => Err(AnchorError::Os(e)),
    }
}

impl Anchor for FdAnchor {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the slice is readable.
        result(unsafe { real::send(self.fd, bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        // SAFETY: the slice is writable.
        result(unsafe { real::recv(self.fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) })
    }

    fn try_peek(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        // SAFETY: the slice is writable.
        result(unsafe { real::recv(self.fd, buf.as_mut_ptr().cast(), buf.len(), flags) })
    }

    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        // SAFETY: no pointers.
        result(unsafe { real::shutdown(self.fd, libc::SHUT_WR) } as isize).map(|_| ())
    }

    fn abort(&mut self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the option value is a valid struct of that size.
        unsafe {
            real::setsockopt(
                self.fd,
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
    }
}
