//! Options of datagram sockets: those that rings serve, and those that only the kernel can honour.

use std::ffi::c_int;

use crate::datagram::{wants, Datagram, KernelOnly};
use crate::os::sockopt::{SO_TIMESTAMPING_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMP_NEW};
use crate::os::{poll, real, sockopt};
use crate::runtime::{self, Runtime};
use crate::socket::{int, kernel_only};

// Values that the `libc` crate lacks, or has for some targets only; the same on all that the library supports.
const IP_RETOPTS: c_int = 7;
const IP_PASSSEC: c_int = 18;
const IPV6_2292PKTINFO: c_int = 2;
const IPV6_2292HOPLIMIT: c_int = 8;
const IPV6_RECVORIGDSTADDR: c_int = 74;
const IPV6_FLOWINFO: c_int = 11;
const IPV6_FLOWINFO_SEND: c_int = 33;
const IP_CHECKSUM: c_int = 23;
const UDP_ENCAP: c_int = 100;
const UDP_NO_CHECK6_TX: c_int = 101;
const UDP_NO_CHECK6_RX: c_int = 102;
/// `SOF_TIMESTAMPING_TX_HARDWARE`, `_SOFTWARE`, `_SCHED`, `_ACK` and `_COMPLETION`.
const TIMES_OF_SENDS: c_int = 1 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 18;

/// The options by which a program wants to know something of each datagram, and which of [`wants`] it is.
const WANTED: [(c_int, c_int, u16); 13] = [
    (libc::IPPROTO_IP, libc::IP_PKTINFO, wants::DESTINATION_V4),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, wants::DESTINATION_V6),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, wants::TTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, wants::TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, wants::HOP_LIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, wants::TRAFFIC_CLASS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, wants::TIME),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, wants::TIME),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW, wants::TIME),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, wants::TIME),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, wants::TIMES),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW, wants::TIMES),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, wants::DROPS),
];

/// What a program wants to know of each datagram that sets this option: one of [`wants`].
fn wanted(level: c_int, name: c_int) -> Option<u16> {
    WANTED.iter().find(|option| (option.0, option.1) == (level, name)).map(|option| option.2)
}

/// Reads from the kernel what a program that has held the socket may have set, among it what only the kernel can honour:
/// [`needs_kernel`] finds that.
pub fn read_options(socket: &Datagram, fd: c_int) {
    let value = |level, name| sockopt::get_int(fd, level, name).unwrap_or(0);
    let on = WANTED.iter().filter(|(level, name, _)| value(*level, *name) != 0);
    let wants = on.fold(0, |all, (_, _, bit)| all | bit);
    let joins = value(libc::SOL_UDP, libc::UDP_GRO) != 0;
    socket.set_options(wants, joins, value(libc::SOL_UDP, libc::UDP_SEGMENT) as u16);
}

/// Options of UDP that only the kernel can honour, and their values while they are off.
const KERNELS: [(c_int, c_int, c_int); 18] = [
    (libc::SOL_SOCKET, libc::SO_MARK, 0),
    (libc::SOL_SOCKET, libc::SO_TXTIME, 0),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, -1),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR, 0),
    (libc::IPPROTO_IP, IP_PASSSEC, 0),
    (libc::IPPROTO_IP, IP_CHECKSUM, 0),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, 0),
    (libc::IPPROTO_IP, IP_RETOPTS, 0),
    (libc::IPPROTO_IPV6, IPV6_2292PKTINFO, 0),
    (libc::IPPROTO_IPV6, IPV6_2292HOPLIMIT, 0),
    (libc::IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, 0),
    (libc::IPPROTO_IPV6, IPV6_FLOWINFO, 0),
    (libc::IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 0),
    (libc::SOL_UDP, libc::UDP_CORK, 0),
    (libc::SOL_UDP, UDP_NO_CHECK6_TX, 0),
    (libc::SOL_UDP, UDP_NO_CHECK6_RX, 0),
    (libc::SOL_UDP, UDP_ENCAP, 0),
];

/// Those whose values have another form: their lengths are 0 while they are off.
const KERNELS_BY_LENGTH: [(c_int, c_int); 3] = [
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::IPPROTO_IP, libc::IP_OPTIONS),
];

/// Why the socket has to stay in the kernel, because of what another process has done with it, as far as the kernel shows that.
pub fn needs_kernel(fd: c_int) -> Option<KernelOnly> {
    let is = |(level, name, off)| sockopt::get_int(fd, level, name).is_some_and(|value| value != off);
    let is_there = |(level, name)| sockopt::len(fd, level, name).is_none_or(|len| len > 0);
    let times = sockopt::get_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING).unwrap_or(0);
    // SAFETY: no pointers.
    let signals = || unsafe { real::fcntl(fd, libc::F_GETFL, 0) } & libc::O_ASYNC != 0;
    if is((libc::SOL_SOCKET, libc::SO_REUSEPORT, 0)) {
        Some(KernelOnly::ReusePort)
    } else if poll::ready_events(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0 {
        Some(KernelOnly::Ended)
    } else if KERNELS.into_iter().any(is)
        || KERNELS_BY_LENGTH.into_iter().any(is_there)
        || times & TIMES_OF_SENDS != 0
        || signals()
    {
        Some(KernelOnly::Option)
    } else {
        None
    }
}

/// Whether only the kernel can honour an option of UDP: rings carry no other control messages and no parts of datagrams, and
/// filters and groups of sockets are the kernel's.
pub fn is_kernels(level: c_int, name: c_int, value: &[u8]) -> bool {
    match (level, wanted(level, name)) {
        // The kernel puts the times of sends into a queue of its own.
        (_, Some(wants::TIMES)) => int(value, 0).is_none_or(|flags| flags & TIMES_OF_SENDS != 0),
        (_, Some(_)) => false,
        // Also those that this version does not know.
        (libc::SOL_UDP, None) => !matches!(name, libc::UDP_SEGMENT | libc::UDP_GRO),
        (libc::SOL_SOCKET, None) if name == libc::SO_REUSEPORT || kernel_only(level, name) => true,
        // This one cannot be read.
        (libc::IPPROTO_IPV6, None) if name == libc::IPV6_PKTINFO => true,
        _ => {
            KERNELS.iter().any(|option| (option.0, option.1) == (level, name))
                || KERNELS_BY_LENGTH.contains(&(level, name))
        }
    }
}

/// An option of a datagram socket was set.
pub fn record_option(socket: &Datagram, fd: c_int, level: c_int, name: c_int, value: &[u8]) {
    // A byte is enough for some of them.
    let on = value.iter().take(size_of::<c_int>()).any(|byte| *byte != 0);
    if let Some(bit) = wanted(level, name) {
        return socket.set_wants(bit, on, fd, runtime::get().and_then(Runtime::endpoint));
    }
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_TTL | libc::IP_TOS)
        | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS | libc::IPV6_TCLASS) => {
            let mut outgoing = socket.outgoing();
            outgoing.marks = sockopt::marks(fd);
        }
        (libc::SOL_UDP, libc::UDP_SEGMENT) => {
            let mut outgoing = socket.outgoing();
            outgoing.segment = sockopt::get_int(fd, level, name).map_or(0, |segment| segment as u16);
        }
        (libc::SOL_UDP, libc::UDP_GRO) => {
            socket.set_joins(on);
            if on {
                // Flows on links do not fit any more.
                socket.end_flows(fd, runtime::get().and_then(Runtime::endpoint));
            }
        }
        _ => {}
    }
}
