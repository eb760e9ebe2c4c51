//! The library's own polls of descriptors. The kernel refuses `poll` of more descriptors than RLIMIT_NOFILE allows
//! (EINVAL), and a program may lower that to 0 once it has the descriptors that it needs. `select` is not refused, so
//! the library uses that then.

use std::ffi::{c_int, c_long, c_ulong};
use std::mem::{size_of, MaybeUninit};
use std::sync::OnceLock;

use libc::{pollfd, sigset_t, timespec};

use super::errno::{errno, set_errno};
use super::{limits, real};

#[cfg(test)]
thread_local! {
    /// Calls of [`ready_events`] by this thread.
    pub(crate) static ASKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The result of `poll` for one descriptor now.
pub(crate) fn ready_events(fd: c_int, events: i16) -> i16 {
    #[cfg(test)]
    ASKED.set(ASKED.get() + 1);
    let mut one = [pollfd { fd, events, revents: 0 }];
    let now = timespec { tv_sec: 0, tv_nsec: 0 };
    wait(&mut one, &now, std::ptr::null());
    one[0].revents
}

/// `ppoll`, whatever RLIMIT_NOFILE is. `time` and `mask` are valid or null.
pub(crate) fn wait(fds: &mut [pollfd], time: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: a valid array; time and mask as the callers promise.
    let n = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, mask) };
    if n < 0 && errno() == libc::EINVAL && fds.len() as u64 > limits::soft_limit() {
        return wait_by_select(fds, time, mask);
    }
    n
}

/// Whether the kernel has `epoll_pwait2`: Linux since 5.11, but not in valgrind. Where it has not, a program that asks for
/// it must be told each time, also while the library could answer by itself.
pub(crate) fn has_epoll_pwait2() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let (saved, now) = (errno(), timespec { tv_sec: 0, tv_nsec: 0 });
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let (events, time) = ((&raw mut event) as c_long, (&raw const now) as c_long);
        // By number: an older C library does not have the function, but programs make the call. SAFETY: valid pointers.
        // There is no such descriptor.
        let n = unsafe { real::syscall(libc::SYS_epoll_pwait2, -1, events, 1, time, 0, 0) };
        let is_absent = n < 0 && errno() == libc::ENOSYS;
        set_errno(saved);
        !is_absent
    })
}

const BITS: usize = c_ulong::BITS as usize;

/// The three sets of `select`: readable, writable, exceptional.
struct Sets {
    words: [Vec<c_ulong>; 3],
    limit: usize,
}

/// The events of each set, as requested and as returned: POLLIN_SET, POLLOUT_SET, POLLEX_SET of fs/select.c, without
/// errors and hang-ups.
const EVENTS: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLRDHUP,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
    libc::POLLPRI,
];

impl Sets {
    fn of(fds: &[pollfd]) -> Sets {
        let limit = fds.iter().map(|p| p.fd + 1).max().map_or(0, |limit| limit.max(0) as usize);
        let words = EVENTS.map(|events| {
            let mut set = vec![0; limit.div_ceil(BITS)];
            for p in fds.iter().filter(|p| p.fd >= 0 && p.events & events != 0) {
                set[p.fd as usize / BITS] |= 1 << (p.fd as usize % BITS);
            }
            set
        });
        Sets { words, limit }
    }

    /// The events of the sets that a descriptor is in.
    fn events_of(&self, fd: c_int) -> i16 {
        let has = |set: &Vec<c_ulong>| set[fd as usize / BITS] & 1 << (fd as usize % BITS) != 0;
        self.words.iter().zip(EVENTS).filter(|(set, _)| has(set)).fold(0, |all, (_, events)| all | events)
    }
}

/// Waits by `pselect6`, and returns the result in the form of `poll`. It finds errors and hang-ups of connections only.
#[cold]
fn wait_by_select(fds: &mut [pollfd], time: *const timespec, mask: *const sigset_t) -> c_int {
    let is_known = |p: &mut pollfd| {
        let gone = p.fd >= 0 && !is_open(p.fd);
        p.revents = if gone { libc::POLLNVAL } else { over(p) };
        p.revents != 0
    };
    let known = fds.iter_mut().filter_map(|p| is_known(p).then_some(())).count();
    let open: Vec<pollfd> = fds.iter().filter(|p| p.revents & libc::POLLNVAL == 0).copied().collect();
    let mut sets = Sets::of(&open);
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // The kernel writes the rest of the time, which the callers keep.
    let mut left = match known {
        // SAFETY: valid or null, as the callers promise.
        0 => (!time.is_null()).then(|| unsafe { *time }),
        _ => Some(none),
    };
    let left = left.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let mask = [mask as usize, KERNEL_MASK_LEN];
    let mask = if mask[0] == 0 { std::ptr::null() } else { mask.as_ptr() };
    let [r, w, e] = sets.words.each_mut().map(|set| set.as_mut_ptr());
    // SAFETY: sets of that many bits, a time or null, a mask and its length or null.
    let n = unsafe {
        real::syscall(libc::SYS_pselect6, sets.limit as c_long, r as _, w as _, e as _, left as _, mask as _)
    };
    if n < 0 {
        return -1;
    }
    for p in fds.iter_mut().filter(|p| p.fd >= 0 && p.revents & libc::POLLNVAL == 0) {
        let requested = sets.events_of(p.fd) & p.events;
        // Only the state of a connection shows that.
        p.revents = requested & !libc::POLLRDHUP | over(p);
    }
    fds.iter().filter(|p| p.revents != 0).count() as c_int
}

/// Bytes of a signal mask in the kernel, which has fewer signals than the C library has room for.
pub(crate) const KERNEL_MASK_LEN: usize = 8;

fn is_open(fd: c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { real::fcntl(fd, libc::F_GETFD, 0) >= 0 }
}

/// The ended directions of a connection, in the form of tcp_poll in net/ipv4/tcp.c.
fn over(p: &pollfd) -> i16 {
    /// `enum` in linux/tcp_states.h.
    const CLOSE: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    const TIME_WAIT: u8 = 6;
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: room for so many bytes.
    let rc = unsafe { real::getsockopt(p.fd, libc::SOL_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len) };
    // SAFETY: all-zero is valid.
    let state = unsafe { info.assume_init() }.tcpi_state;
    match state {
        _ if p.fd < 0 || rc != 0 => 0,
        CLOSE => libc::POLLHUP | p.events & libc::POLLRDHUP,
        CLOSE_WAIT | LAST_ACK | CLOSING | TIME_WAIT => p.events & libc::POLLRDHUP,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// Breaks if the fallback returns anything else than `poll` of the same descriptors.
    #[test]
    fn select_agrees_with_poll() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connected = || {
            let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            (client, listener.accept().expect("it came").0)
        };
        let (idle, _idle_peer) = connected();
        let (mut writer, readable) = connected();
        writer.write_all(b"text").expect("room");
        let (ended_peer, ended) = connected();
        ended_peer.shutdown(std::net::Shutdown::Write).expect("connected");
        let (both_peer, both) = connected();
        drop(both_peer);
        both.shutdown(std::net::Shutdown::Write).expect("connected");
        let fds =
            [idle.as_raw_fd(), readable.as_raw_fd(), ended.as_raw_fd(), both.as_raw_fd(), listener.as_raw_fd(), 9999];
        // The sent bytes have arrived by now: on loopback a send returns after that.
        for events in [0, libc::POLLIN, libc::POLLOUT, libc::POLLIN | libc::POLLRDHUP, libc::POLLIN | libc::POLLOUT] {
            let all = fds.map(|fd| pollfd { fd, events, revents: 0 });
            let (mut by_poll, mut by_select) = (all, all);
            let now = timespec { tv_sec: 0, tv_nsec: 0 };
            let n = wait(&mut by_poll, &now, std::ptr::null());
            assert_eq!(wait_by_select(&mut by_select, &now, std::ptr::null()), n, "{events:#x}");
            assert_eq!(by_select.map(|p| p.revents), by_poll.map(|p| p.revents), "{events:#x}");
        }
    }
}
