//! The kernel's socket beneath a stream: its records, its byte counts and its end.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;

use netacc_device::{Anchor, AnchorError, AnchorPosition, Shown};
use netacc_driver::{AnchorEvent, LazyAnchor};

use crate::os::poll;
use crate::os::sockopt::{get_int, set_int, SIOCOUTQNSD};
use crate::os::{addresses, lingering, real};
use crate::runtime::in_kernel;

/// The kernel socket beneath a stream, for records and replay.
pub(crate) struct FdAnchor {
    fd: c_int,
    /// Close it when done: it is a duplicate kept for a closed socket.
    owned: bool,
}

impl FdAnchor {
    /// The application's own descriptor.
    pub(crate) fn borrowed(fd: c_int) -> FdAnchor {
        FdAnchor { fd, owned: false }
    }

    /// The same, made when the stream first uses it.
    pub(crate) fn borrowed_later(fd: c_int) -> LazyAnchor {
        LazyAnchor::new(fd, |fd| Box::new(FdAnchor::borrowed(fd)))
    }

    /// A duplicate that outlives the application's descriptor.
    pub(crate) fn duplicate(fd: c_int) -> Option<FdAnchor> {
        Some(FdAnchor { fd: lingering::duplicate(fd)?, owned: true })
    }
}

impl FdAnchor {
    /// Whether the peer has ended its direction, for an anchor of which `poll` reports POLLRDHUP: it does so also for a
    /// direction that this side has shut down.
    fn has_received_fin(&self) -> bool {
        TcpInfo::of(self.fd).is_some_and(|info| FIN_RECEIVED.contains(&info.state))
    }
}

impl Drop for FdAnchor {
    fn drop(&mut self) {
        if self.owned {
            lingering::close(self.fd);
        }
    }
}

/// How often the kernel's counts are read again if they change meanwhile. Arbitrary.
const POSITION_TRIES: u32 = 8;

/// The kernel's counts for a connection. See `struct tcp_info` in linux/tcp.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    state: u8,
    bytes_acked: u64,
    pub(crate) bytes_received: u64,
    notsent_bytes: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
}

/// `TCP_ESTABLISHED` in linux/tcp_states.h.
const ESTABLISHED: u8 = 1;
/// `TCP_CLOSE`.
const CLOSED: u8 = 7;
/// `TCP_TIME_WAIT`, `TCP_CLOSE`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`: the peer has ended its direction.
const FIN_RECEIVED: [u8; 5] = [6, CLOSED, 8, 9, 11];

impl TcpInfo {
    pub(crate) fn of(fd: c_int) -> Option<TcpInfo> {
        let mut bytes = [0u8; 256];
        let mut len = bytes.len() as libc::socklen_t;
        // SAFETY: the buffer has `len` writable bytes.
        let rc =
            unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &mut len) };
        let wide = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        // Linux 4.19 and later. An older kernel's struct ends before this field: `len` is shorter.
        if rc != 0 || len < 216 {
            return None;
        }
        Some(TcpInfo {
            state: bytes[0],
            bytes_acked: wide(120)?,
            bytes_received: wide(128)?,
            notsent_bytes: wide(144)? as u32,
            bytes_sent: wide(200)?,
            bytes_retrans: wide(208)?,
        })
    }

    /// Bytes handed to the connection, sent or not.
    pub(crate) fn written(self) -> Option<u64> {
        (self.bytes_sent + u64::from(self.notsent_bytes)).checked_sub(self.bytes_retrans)
    }

    /// Whether the acknowledged bytes include this side's SYN, so that this side is the one that connected.
    fn counts_own_syn(self, unacknowledged: u64) -> Option<bool> {
        match (self.bytes_acked + unacknowledged).checked_sub(self.written()?)? {
            _ if self.state != ESTABLISHED => None,
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// The kernel counts written bytes in two ways, and one of them includes the SYN of the side that connected. If the
    /// two disagree (because a packet was lost on the way to the device, for example), the position is unknown. It is
    /// also unknown once a direction has ended, because the kernel counts a FIN too.
    fn position(self, unread: u64, unacknowledged: u64) -> Option<AnchorPosition> {
        if self.state != ESTABLISHED {
            return None;
        }
        self.counts_own_syn(unacknowledged)?;
        let read = self.bytes_received.checked_sub(unread)?;
        Some(AnchorPosition { written: self.written()?, read })
    }

    /// Whether the connection is established and has carried the bytes that this process has counted, of which `unread`
    /// more have arrived. Two counts that agree need no third one to confirm them.
    fn agrees(self, counted: AnchorPosition, unread: u64) -> bool {
        self.state == ESTABLISHED
            && self.written() == Some(counted.written)
            && self.bytes_received == counted.read + unread
    }
}

/// The number of bytes in a queue of the kernel's.
fn queued(fd: c_int, request: libc::c_ulong) -> Option<u64> {
    let mut n: c_int = 0;
    // SAFETY: both requests write an int.
    let rc = unsafe { real::ioctl(fd, request, (&raw mut n).cast()) };
    (rc == 0).then_some(u64::try_from(n).ok()?)
}

fn has_read_hang_up(fd: c_int) -> bool {
    poll::ready_events(fd, libc::POLLRDHUP) != 0
}

/// The socket's side of an established connection, according to the kernel's counts: `Some(true)` for the side that
/// connected. `None`: the counts do not show it.
pub(crate) fn has_connected(fd: c_int) -> Option<bool> {
    (0..POSITION_TRIES).find_map(|_| {
        let before = TcpInfo::of(fd)?;
        let unacknowledged = queued(fd, libc::TIOCOUTQ)?;
        (TcpInfo::of(fd)? == before).then(|| before.counts_own_syn(unacknowledged)).flatten()
    })
}

/// Ends a connection with a reset, for both sides. The descriptor then refers to an unconnected socket.
pub(crate) fn dissolve(fd: c_int) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: a valid address, and its length.
    unsafe { real::connect(fd, &raw const nowhere, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

/// The result of `poll` for a descriptor with no requested events: POLLERR, POLLHUP, POLLNVAL.
fn polled(fd: c_int) -> i16 {
    poll::ready_events(fd, 0)
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
    fn local_address(&self) -> Option<SocketAddr> {
        addresses::local(self.fd)
    }

    fn is_plain_tcp(&self) -> bool {
        get_int(self.fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
    }

    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the slice is readable.
        result(in_kernel(|| unsafe { real::send(self.fd, bytes.as_ptr().cast(), bytes.len(), flags) }))
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

    fn position(&self) -> Option<AnchorPosition> {
        // Another holder may have shut down reading. The state of the connection does not show that.
        if has_read_hang_up(self.fd) {
            return None;
        }
        // The counts are not read atomically: retry until nothing has moved between the reads.
        (0..POSITION_TRIES).find_map(|_| {
            let before = TcpInfo::of(self.fd)?;
            let (unread, unacknowledged) = (queued(self.fd, libc::FIONREAD)?, queued(self.fd, libc::TIOCOUTQ)?);
            (TcpInfo::of(self.fd)? == before).then(|| before.position(unread, unacknowledged)).flatten()
        })
    }

    /// In this order: bytes that arrive between the two calls make the sum too large. So counts that agree are those of one
    /// moment.
    fn is_at(&self, counted: AnchorPosition) -> bool {
        let unread = queued(self.fd, libc::FIONREAD);
        unread.zip(TcpInfo::of(self.fd)).is_some_and(|(unread, info)| info.agrees(counted, unread))
    }

    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        // SAFETY: no pointers.
        result(in_kernel(|| unsafe { real::shutdown(self.fd, libc::SHUT_WR) }) as isize).map(|_| ())
    }

    fn shutdown_read(&mut self) -> Result<(), AnchorError> {
        // SAFETY: no pointers.
        result(unsafe { real::shutdown(self.fd, libc::SHUT_RD) } as isize).map(|_| ())
    }

    fn is_broken(&self) -> bool {
        polled(self.fd) & libc::POLLERR != 0 && queued(self.fd, libc::FIONREAD) == Some(0)
    }

    fn is_over(&self) -> bool {
        // `poll` also reports POLLHUP for a connection that this side has shut down both ways.
        polled(self.fd) & libc::POLLHUP != 0 && TcpInfo::of(self.fd).is_none_or(|info| info.state == CLOSED)
    }

    fn is_ended(&self) -> bool {
        has_read_hang_up(self.fd) && self.has_received_fin()
    }

    fn shown(&self, low_water: u32) -> Shown {
        // With a higher mark the kernel does not report every byte.
        let reports_bytes = low_water <= 1;
        if !reports_bytes && self.unread() > 0 {
            return Shown { unread: true, hung_up: has_read_hang_up(self.fd), ..Shown::default() };
        }
        let events = poll::ready_events(self.fd, libc::POLLRDHUP | if reports_bytes { libc::POLLIN } else { 0 });
        match events {
            0 => Shown::default(),
            libc::POLLIN => Shown { unread: true, ..Shown::default() },
            // The end comes behind the unread bytes.
            _ if self.unread() > 0 => Shown { unread: true, hung_up: true, ..Shown::default() },
            _ => Shown {
                ended: self.has_received_fin(),
                broken: events & libc::POLLERR != 0,
                hung_up: true,
                unread: false,
            },
        }
    }

    fn has_fin(&self, read: u64) -> Option<bool> {
        let info = TcpInfo::of(self.fd)?;
        if info.state != CLOSED {
            return Some(FIN_RECEIVED.contains(&info.state));
        }
        // The kernel counts a FIN as a received byte, which is never unread.
        match info.bytes_received.checked_sub(read + self.unread())? {
            n @ (0 | 1) => Some(n == 1),
            _ => None,
        }
    }

    fn unread(&self) -> u64 {
        queued(self.fd, libc::FIONREAD).unwrap_or(0)
    }

    fn clear_error(&mut self) {
        let (mut error, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: an int, and its length.
        unsafe { real::getsockopt(self.fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut len) };
    }

    fn push(&mut self) {
        if queued(self.fd, SIOCOUTQNSD) == Some(0) {
            return;
        }
        let tcp = libc::IPPROTO_TCP;
        let before = get_int(self.fd, tcp, libc::TCP_NODELAY);
        if before == Some(1) && get_int(self.fd, tcp, libc::TCP_CORK) != Some(1) {
            return;
        }
        // Setting TCP_NODELAY makes the kernel send all it has: bytes that wait for an acknowledgement, and even corked
        // ones. No thread sets either option meanwhile: see `setsockopt`.
        set_int(self.fd, tcp, libc::TCP_NODELAY, 1);
        if before == Some(0) {
            set_int(self.fd, tcp, libc::TCP_NODELAY, 0);
        }
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

    fn reset(&mut self) {
        dissolve(self.fd);
    }

    fn set_low_water(&mut self, bytes: u32) {
        set_int(self.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, c_int::try_from(bytes).unwrap_or(c_int::MAX));
    }
}

/// The meaning of the kernel's events for an anchor.
pub(crate) fn anchor_event(events: u32) -> AnchorEvent {
    if events & libc::EPOLLERR as u32 != 0 {
        AnchorEvent::Failed
    } else if events & libc::EPOLLRDHUP as u32 != 0 {
        AnchorEvent::Ended
    } else {
        AnchorEvent::Readable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_kernel_reports_the_progress_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut far, _) = listener.accept().expect("connected");
        let position = |s: &TcpStream| FdAnchor::borrowed(s.as_raw_fd()).position().map(|p| (p.written, p.read));
        assert_eq!((position(&near), position(&far)), (Some((0, 0)), Some((0, 0))));
        let sides = |near: &TcpStream, far: &TcpStream| [near, far].map(|s| has_connected(s.as_raw_fd()));
        assert_eq!(sides(&near, &far), [Some(true), Some(false)]);
        near.write_all(&[7; 5000]).expect("room");
        far.read_exact(&mut [0; 3000]).expect("it is there");
        assert_eq!((position(&near), position(&far)), (Some((5000, 0)), Some((0, 3000))));
        let is_at =
            |s: &TcpStream, written, read| FdAnchor::borrowed(s.as_raw_fd()).is_at(AnchorPosition { written, read });
        assert!(is_at(&near, 5000, 0) && is_at(&far, 0, 3000));
        // Bytes that were moved unseen, in either direction.
        assert!(!is_at(&near, 4999, 0) && !is_at(&far, 0, 2999) && !is_at(&far, 0, 5000) && !is_at(&far, 1, 3000));
        far.set_nonblocking(true).expect("possible");
        let mut written = 0;
        while let Ok(n) = far.write(&[9; 100_000]) {
            written += n as u64;
        }
        near.read_exact(&mut [0; 12_345]).expect("it is there");
        assert_eq!((position(&near), position(&far)), (Some((5000, 12_345)), Some((written, 3000))));
        assert_eq!(sides(&near, &far), [Some(true), Some(false)]);
        near.shutdown(Shutdown::Write).expect("connected");
        far.set_nonblocking(false).expect("possible");
        assert_eq!(far.read_to_end(&mut Vec::new()).expect("an end"), 2000);
        assert_eq!((position(&near), position(&far)), (None, None));
    }

    #[test]
    fn a_local_shutdown_is_not_the_peers_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (far, _) = listener.accept().expect("connected");
        let anchor = FdAnchor::borrowed(near.as_raw_fd());
        assert_eq!((anchor.is_ended(), anchor.is_over()), (false, false));
        near.shutdown(Shutdown::Both).expect("connected");
        assert_eq!((anchor.is_ended(), anchor.is_over()), (false, false));
        far.shutdown(Shutdown::Write).expect("connected");
        assert_eq!((anchor.is_ended(), anchor.is_over()), (true, true));
    }

    #[test]
    fn a_reset_differs_from_one_after_the_peers_end() {
        let pair = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            (near, listener.accept().expect("connected").0)
        };
        let reset = |s: TcpStream| FdAnchor::borrowed(s.as_raw_fd()).abort();
        for unread in [0, 7] {
            let (mut near, mut far) = pair();
            let anchor = FdAnchor::borrowed(near.as_raw_fd());
            far.write_all(&[1; 10]).expect("room");
            near.read_exact(&mut vec![0; 10 - unread]).expect("it is there");
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(false));
            reset(far);
            assert!(anchor.is_over());
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(false));

            let (mut near, mut far) = pair();
            let anchor = FdAnchor::borrowed(near.as_raw_fd());
            far.write_all(&[1; 10]).expect("room");
            near.read_exact(&mut vec![0; 10 - unread]).expect("it is there");
            far.shutdown(Shutdown::Write).expect("connected");
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(true));
            reset(far);
            assert!(anchor.is_over());
            assert_eq!(anchor.has_fin(10 - unread as u64), Some(true));
        }
    }

    #[test]
    fn the_next_event_shows_without_being_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut far, _) = listener.accept().expect("connected");
        let mut anchor = FdAnchor::borrowed(near.as_raw_fd());
        let bytes = Shown { unread: true, ..Shown::default() };
        let shown = |anchor: &FdAnchor| [1, 100].map(|low_water| anchor.shown(low_water));
        assert_eq!(shown(&anchor), [Shown::default(); 2]);
        far.write_all(&[7; 10]).expect("room");
        assert_eq!(shown(&anchor), [bytes; 2]);
        // The kernel does not report so few any more.
        anchor.set_low_water(100);
        assert_eq!(anchor.shown(100), bytes);
        anchor.set_low_water(1);
        far.shutdown(Shutdown::Write).expect("connected");
        assert_eq!(shown(&anchor), [Shown { hung_up: true, ..bytes }; 2], "the end comes behind them");
        anchor.set_low_water(100);
        assert_eq!(anchor.shown(100), Shown { hung_up: true, ..bytes });
        anchor.set_low_water(1);
        near.read_exact(&mut [0; 10]).expect("it is there");
        assert_eq!(shown(&anchor), [Shown { unread: false, ended: true, broken: false, hung_up: true }; 2]);
        FdAnchor::borrowed(far.as_raw_fd()).abort();
        near.write_all(&[1]).expect("connected");
        drop(far);
        assert!(shown(&anchor).iter().all(|shown| shown.ended && shown.broken && !shown.unread && shown.hung_up));
    }

    #[test]
    fn a_listeners_address_is_that_of_what_it_accepts() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (far, _) = listener.accept().expect("connected");
        let address = |s: &TcpStream| FdAnchor::borrowed(s.as_raw_fd()).local_address();
        assert_eq!(address(&far), listener.local_addr().ok());
        assert_eq!(address(&near), far.peer_addr().ok());
        assert!(FdAnchor::borrowed(near.as_raw_fd()).is_plain_tcp());
    }

    #[test]
    fn inconsistent_counts_are_no_position() {
        let info = |bytes_acked, bytes_sent| TcpInfo {
            state: ESTABLISHED,
            bytes_acked,
            bytes_received: 10,
            notsent_bytes: 5,
            bytes_sent,
            bytes_retrans: 20,
        };
        assert_eq!(info(101, 120).position(3, 5), Some(AnchorPosition { written: 105, read: 7 }));
        assert_eq!(info(100, 120).position(3, 5), Some(AnchorPosition { written: 105, read: 7 }));
        assert_eq!(info(99, 120).position(3, 5), None);
        assert_eq!(info(110, 120).position(3, 5), None);
        assert_eq!(info(100, 120).position(11, 5), None);
    }
}
