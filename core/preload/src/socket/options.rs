//! Options that the library needs. A connection inherits them from the socket that it was before, or from the listener
//! that accepted it, as in the kernel.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use libc::socklen_t;

use crate::os::real;
use crate::os::sockopt::{get_int, SO_TIMESTAMPING_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMP_NEW};

/// Their values.
pub struct Options {
    /// SO_RCVTIMEO in microseconds; 0 for none.
    pub recv_timeout_us: AtomicI64,
    /// SO_SNDTIMEO in microseconds; 0 for none.
    pub send_timeout_us: AtomicI64,
    /// SO_LINGER with a zero time: close resets.
    pub abort_on_close: AtomicBool,
    /// SO_RCVLOWAT.
    pub low_water: AtomicI32,
    /// SO_RCVBUF, as the kernel reports it; `u32::MAX` if it has not been set.
    pub receive_buffer: AtomicU32,
    /// TCP_INQ: messages carry the number of further bytes.
    pub reports_queue: AtomicBool,
    /// SO_ZEROCOPY.
    pub zero_copy: AtomicBool,
    /// TCP_CORK.
    pub cork: AtomicBool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            recv_timeout_us: AtomicI64::new(0),
            send_timeout_us: AtomicI64::new(0),
            abort_on_close: AtomicBool::new(false),
            low_water: AtomicI32::new(1),
            receive_buffer: AtomicU32::new(u32::MAX),
            reports_queue: AtomicBool::new(false),
            zero_copy: AtomicBool::new(false),
            cork: AtomicBool::new(false),
        }
    }
}

impl Options {
    /// Takes over what another socket has.
    pub fn take_over(&self, from: &Options) {
        self.recv_timeout_us.store(from.recv_timeout_us.load(Ordering::Relaxed), Ordering::Relaxed);
        self.send_timeout_us.store(from.send_timeout_us.load(Ordering::Relaxed), Ordering::Relaxed);
        self.abort_on_close.store(from.abort_on_close.load(Ordering::Relaxed), Ordering::Relaxed);
        self.low_water.store(from.low_water.load(Ordering::Relaxed), Ordering::Relaxed);
        self.receive_buffer.store(from.receive_buffer.load(Ordering::Relaxed), Ordering::Relaxed);
        self.reports_queue.store(from.reports_queue.load(Ordering::Relaxed), Ordering::Relaxed);
        self.zero_copy.store(from.zero_copy.load(Ordering::Relaxed), Ordering::Relaxed);
        self.cork.store(from.cork.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Keeps what the kernel has accepted for an option of SOL_SOCKET. SO_RCVBUF is `bytes` as the kernel reports it.
    pub fn keep(&self, name: c_int, bytes: &[u8]) {
        match name {
            libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => store_timeout(&self.recv_timeout_us, bytes),
            libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => store_timeout(&self.send_timeout_us, bytes),
            libc::SO_LINGER => {
                if let (Some(on), Some(time)) = (int(bytes, 0), int(bytes, size_of::<c_int>())) {
                    self.abort_on_close.store(on != 0 && time == 0, Ordering::Relaxed);
                }
            }
            libc::SO_RCVLOWAT => {
                if let Some(n) = int(bytes, 0) {
                    self.low_water.store(if n < 0 { c_int::MAX } else { n.max(1) }, Ordering::Relaxed);
                }
            }
            libc::SO_RCVBUF => {
                if let Some(n) = int(bytes, 0) {
                    self.receive_buffer.store(n.max(1) as u32, Ordering::Relaxed);
                }
            }
            libc::SO_ZEROCOPY => {
                if let Some(n) = int(bytes, 0) {
                    self.zero_copy.store(n != 0, Ordering::Relaxed);
                }
            }
            _ => {}
        }
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

// Values that the `libc` crate has for some targets only; the same on all that the library supports.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;

/// The integer at `at`.
pub fn int(bytes: &[u8], at: usize) -> Option<c_int> {
    let bytes = bytes.get(at..at + size_of::<c_int>())?;
    Some(c_int::from_ne_bytes(bytes.try_into().ok()?))
}

/// A timeval as microseconds; 0 is none. A negative time means not to wait at all: the shortest there is.
fn timeout_us(bytes: &[u8]) -> Option<i64> {
    let part = |at: usize| Some(i64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (seconds, micros) = (part(0)?, part(8)?);
    if seconds < 0 {
        return Some(1);
    }
    Some(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

fn store_timeout(to: &AtomicI64, bytes: &[u8]) {
    if let Some(us) = timeout_us(bytes) {
        to.store(us, Ordering::Relaxed);
    }
}

fn timeout(us: &AtomicI64) -> Option<Duration> {
    match us.load(Ordering::Relaxed) {
        n if n > 0 => Some(Duration::from_micros(n as u64)),
        _ => None,
    }
}

/// The kernel's value of an option of SOL_SOCKET.
pub fn keep_as_reported(options: &Options, fd: c_int, name: c_int) {
    let mut bytes = [0u8; 16];
    let mut len = bytes.len() as socklen_t;
    // SAFETY: the buffer has `len` writable bytes.
    if unsafe { real::getsockopt(fd, libc::SOL_SOCKET, name, bytes.as_mut_ptr().cast(), &mut len) } == 0 {
        options.keep(name, &bytes[..(len as usize).min(bytes.len())]);
    }
}

/// The kernel's TCP_INQ.
pub fn keep_queue_reports(options: &Options, fd: c_int) {
    let reports = get_int(fd, libc::IPPROTO_TCP, libc::TCP_INQ).is_some_and(|on| on != 0);
    options.reports_queue.store(reports, Ordering::Relaxed);
}

/// Options of a socket that another process has set, or may have, except for those of its buffers: the kernel does not
/// show whether SO_RCVBUF was set, and the library sets SO_RCVLOWAT as well.
pub fn read_from_kernel(options: &Options, fd: c_int) {
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_LINGER, libc::SO_ZEROCOPY] {
        keep_as_reported(options, fd, name);
    }
    options.cork.store(get_int(fd, libc::IPPROTO_TCP, libc::TCP_CORK).is_some_and(|on| on != 0), Ordering::Relaxed);
    keep_queue_reports(options, fd);
}

/// All options of a socket that has just been made, and whose buffers only the kernel and its listener have set.
pub fn read_all_from_kernel(options: &Options, fd: c_int) {
    read_from_kernel(options, fd);
    keep_as_reported(options, fd, libc::SO_RCVLOWAT);
    if options.receive_buffer.load(Ordering::Relaxed) != u32::MAX {
        keep_as_reported(options, fd, libc::SO_RCVBUF);
    }
}

// Missing in the `libc` crate. linux/tcp.h.
const TCP_TX_DELAY: c_int = 37;

/// Whether only the kernel can honour the option once it is not zero.
pub fn kernel_only(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_ATTACH_FILTER
                | libc::SO_ATTACH_BPF
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
                | SO_TIMESTAMP_NEW
                | SO_TIMESTAMPNS_NEW
                | SO_TIMESTAMPING_NEW
                | libc::SO_TXTIME
                | libc::SO_MAX_PACING_RATE
                | libc::SO_PEEK_OFF
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_ULP | libc::TCP_REPAIR | libc::TCP_MD5SIG | libc::TCP_ZEROCOPY_RECEIVE | TCP_TX_DELAY
        ),
        _ => false,
    }
}

/// Whether another process has set an option that only the kernel can honour, as far as the kernel shows it.
pub fn needs_kernel(fd: c_int) -> bool {
    let on = |name| get_int(fd, libc::SOL_SOCKET, name).is_some_and(|value| value != 0);
    // SAFETY: no pointers.
    let signals = || unsafe { real::fcntl(fd, libc::F_GETFL, 0) } & libc::O_ASYNC != 0;
    // The name of the protocol above TCP; empty if there is none.
    let mut name = [0u8; 16];
    let mut len = name.len() as socklen_t;
    // SAFETY: the buffer has `len` writable bytes.
    let rc = unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_ULP, name.as_mut_ptr().cast(), &raw mut len) };
    // A listener of MPTCP has MPTCP itself there.
    let above = rc == 0 && len > 0 && !name.starts_with(b"mptcp\0");
    above
        || [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS, libc::SO_TIMESTAMPING, libc::SO_TXTIME].into_iter().any(on)
        || get_int(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_some_and(|offset| offset >= 0)
        || get_int(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE).is_some_and(|rate| rate != -1)
        || signals()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeval(seconds: i64, micros: i64) -> Vec<u8> {
        [seconds.to_ne_bytes(), micros.to_ne_bytes()].concat()
    }

    #[test]
    fn timeouts_are_read_as_the_kernel_reads_them() {
        assert_eq!(timeout_us(&timeval(0, 0)), Some(0));
        assert_eq!(timeout_us(&timeval(2, 5)), Some(2_000_005));
        assert_eq!(timeout_us(&timeval(-1, 0)), Some(1));
        assert_eq!(timeout_us(&timeval(i64::MAX, 5)), Some(i64::MAX));
        assert_eq!(timeout_us(&[0; 8]), None);
    }

    #[test]
    fn everything_is_taken_over() {
        let from = Options::default();
        from.keep(libc::SO_RCVTIMEO, &timeval(1, 2));
        from.keep(libc::SO_SNDTIMEO, &timeval(3, 4));
        from.keep(libc::SO_LINGER, &[1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat());
        from.keep(libc::SO_RCVLOWAT, &(-1i32).to_ne_bytes());
        from.keep(libc::SO_RCVBUF, &16384i32.to_ne_bytes());
        from.keep(libc::SO_ZEROCOPY, &1i32.to_ne_bytes());
        from.reports_queue.store(true, Ordering::Relaxed);
        from.cork.store(true, Ordering::Relaxed);
        let to = Options::default();
        to.take_over(&from);
        assert_eq!(to.recv_timeout(), Some(Duration::from_micros(1_000_002)));
        assert_eq!(to.send_timeout(), Some(Duration::from_micros(3_000_004)));
        assert!(to.abort_on_close.load(Ordering::Relaxed));
        assert_eq!(to.low_water.load(Ordering::Relaxed), c_int::MAX);
        assert_eq!(to.receive_buffer.load(Ordering::Relaxed), 16384);
        assert!(
            to.zero_copy.load(Ordering::Relaxed)
                && to.cork.load(Ordering::Relaxed)
                && to.reports_queue.load(Ordering::Relaxed)
        );
    }
}
