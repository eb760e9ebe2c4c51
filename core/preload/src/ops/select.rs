//! `select` in terms of `poll`, for sets that hold a descriptor of ours. As in the kernel: bits that are not ready are
//! cleared, the count is of bits, an error leaves the sets alone.

use std::ffi::{c_int, c_ulong};
use std::time::Duration;

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use netacc_device::Instant;

use crate::ops::readiness::{is_mask, time_limit};
use crate::os::clock::now;
use crate::os::deferral::Busy;
use crate::os::errno::{errno, fail, set_errno};
use crate::os::{access, actions};
use crate::wait;

const WORD_BITS: usize = c_ulong::BITS as usize;
const IN_SET: i16 = libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLIN | libc::POLLHUP | libc::POLLERR;
const OUT_SET: i16 = libc::POLLWRBAND | libc::POLLWRNORM | libc::POLLOUT | libc::POLLERR;
const EX_SET: i16 = libc::POLLPRI;

/// The three sets of a call. Null sets are empty.
#[derive(Clone, Copy)]
pub struct Sets {
    words: [*mut c_ulong; 3],
    /// One more than the highest descriptor.
    limit: usize,
}

impl Sets {
    /// # Safety
    /// The mapped part of `limit` bits in each set is the caller's to read and write.
    pub unsafe fn new(limit: usize, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set) -> Sets {
        Sets { words: [read, write, except].map(|set| set.cast::<c_ulong>()), limit }
    }

    /// Bytes of each set.
    fn len(&self) -> usize {
        self.limit.div_ceil(WORD_BITS) * size_of::<c_ulong>()
    }

    fn are_readable(&self) -> bool {
        self.words.iter().all(|set| set.is_null() || access::readable(*set, self.len()) == self.len())
    }

    fn are_writable(&self) -> bool {
        // SAFETY: the promise of `new`.
        self.words.iter().all(|set| set.is_null() || unsafe { access::writable(*set, self.len()) } == self.len())
    }

    fn word(&self, set: usize, i: usize) -> c_ulong {
        let words = self.words[set];
        if words.is_null() {
            return 0;
        }
        // SAFETY: found to be readable, and callers stay below the limit.
        unsafe { words.add(i).read_unaligned() }
    }

    /// The requested events of each descriptor in any set, lowest first.
    fn interests(&self) -> impl Iterator<Item = pollfd> + '_ {
        (0..self.limit.div_ceil(WORD_BITS)).flat_map(move |i| {
            let [r, w, e] = [0, 1, 2].map(|set| self.word(set, i));
            let bits = (self.limit - i * WORD_BITS).min(WORD_BITS);
            (0..bits).filter_map(move |bit| {
                let mask = 1 << bit;
                let mut events = 0;
                for (set, wanted) in [
                    (r, libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND),
                    (w, libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND),
                    (e, EX_SET),
                ] {
                    if set & mask != 0 {
                        events |= wanted;
                    }
                }
                (events != 0).then_some(pollfd { fd: (i * WORD_BITS + bit) as c_int, events, revents: 0 })
            })
        })
    }

    /// Clears what is not ready; returns how many bits are.
    fn write_back(&self, fds: &[pollfd]) -> c_int {
        let mut count = 0;
        for (set, ready) in self.words.into_iter().zip([IN_SET, OUT_SET, EX_SET]) {
            if set.is_null() {
                continue;
            }
            let mut rest = fds;
            for i in 0..self.limit.div_ceil(WORD_BITS) {
                // SAFETY: found to be writable.
                let word = unsafe { set.add(i).read_unaligned() };
                let mut keep = 0;
                while let Some((p, after)) = rest.split_first().filter(|(p, _)| number(p) / WORD_BITS == i) {
                    rest = after;
                    if p.fd >= 0 && p.revents & ready != 0 {
                        keep |= word & (1 << (number(p) % WORD_BITS));
                    }
                }
                count += keep.count_ones() as c_int;
                // SAFETY: as above.
                unsafe { set.add(i).write_unaligned(keep) };
            }
        }
        count
    }
}

/// A timeval as `select` takes it: microseconds may exceed a second.
fn from_timeval(tv: &timeval) -> Option<Duration> {
    let (seconds, micros) = (u64::try_from(tv.tv_sec).ok()?, u64::try_from(tv.tv_usec).ok()?);
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
}

/// `select`, or `None` if no descriptor is ours, or an argument is wrong: the caller makes the kernel's call.
///
/// # Safety
/// As the C function.
pub unsafe fn select(sets: Sets, timeout: *mut timeval) -> Option<c_int> {
    let _busy = Busy::enter();
    let fds = ours(&sets)?;
    let limit = if timeout.is_null() {
        None
    } else {
        // SAFETY: any bytes are a time.
        Some(from_timeval(&unsafe { access::read(timeout) }?)?)
    };
    let begun = now();
    let n = wait_for(&sets, fds, limit, std::ptr::null());
    if let Some(left) = time_left(limit, begun) {
        let left = timeval { tv_sec: left.as_secs() as libc::time_t, tv_usec: left.subsec_micros().into() };
        // SAFETY: as the C function. If the time cannot be written, the kernel lets the call succeed all the same.
        unsafe { access::write(timeout, left) };
    }
    Some(n)
}

/// `pselect`, or `None` as of [`select`].
///
/// # Safety
/// As the C function.
pub unsafe fn pselect(sets: Sets, timeout: *const timespec, mask: *const sigset_t) -> Option<c_int> {
    let _busy = Busy::enter();
    let fds = ours(&sets)?;
    let limit = time_limit(timeout).ok()?;
    is_mask(mask).then(|| wait_for(&sets, fds, limit, mask))
}

/// The time left, as Linux writes it back. Nothing if the call had no time limit.
fn time_left(limit: Option<Duration>, begun: Instant) -> Option<Duration> {
    let limit = limit.filter(|limit| !limit.is_zero())?;
    Some(limit.saturating_sub(now().saturating_since(begun)))
}

/// Makes a call in the way of the system call of the same name, which writes back how much of the time is left.
///
/// # Safety
/// As the system call.
pub unsafe fn writing_time_left(timeout: *mut timespec, call: impl FnOnce() -> Option<c_int>) -> Option<c_int> {
    let limit = time_limit(timeout).ok()?;
    let begun = now();
    let n = call()?;
    if let Some(left) = time_left(limit, begun) {
        let saved = errno();
        // SAFETY: as the system call.
        unsafe { access::write(timeout, crate::os::clock::timespec(left)) };
        set_errno(saved);
    }
    Some(n)
}

fn ours(sets: &Sets) -> Option<Vec<pollfd>> {
    if !actions::is_installed() || !sets.are_readable() {
        return None;
    }
    // First without allocating, for the descriptors of programs that have none of ours.
    if !sets.interests().any(|p| crate::table::get(p.fd).is_some()) {
        return None;
    }
    let fds: Vec<pollfd> = sets.interests().collect();
    wait::any_ours(&fds).then_some(fds)
}

fn wait_for(sets: &Sets, mut fds: Vec<pollfd>, limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    let begun = now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(now().saturating_since(begun)));
        let n = wait::poll(wait::Call::Another, &mut fds, left, mask);
        if n < 0 {
            return -1;
        }
        if fds.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
            return fail(libc::EBADF) as c_int;
        }
        if n == 0 || fds.iter().any(counts) {
            // The kernel, too, finds this error only when it is about to write.
            if !sets.are_writable() {
                return fail(libc::EFAULT) as c_int;
            }
            return sets.write_back(&fds);
        }
        // Hang-ups and errors that no set requests, and which will not go away: the descriptor is left out.
        for p in fds.iter_mut().filter(|p| p.revents != 0) {
            p.fd = !p.fd;
        }
    }
}

/// The descriptor, also of an interest that is left out (see `wait_for`).
fn number(p: &pollfd) -> usize {
    (if p.fd < 0 { !p.fd } else { p.fd }) as usize
}

/// Whether a set reports what `poll` found.
fn counts(p: &pollfd) -> bool {
    let mut ready = 0;
    for (events, set) in [(libc::POLLIN, IN_SET), (libc::POLLOUT, OUT_SET), (libc::POLLPRI, EX_SET)] {
        if p.events & events != 0 {
            ready |= set;
        }
    }
    p.revents & ready != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_become_interests_and_back() {
        let mut read = [0 as c_ulong; 2];
        let mut write = [0 as c_ulong; 2];
        read[0] = 1 << 3 | 1 << 63;
        read[1] = 1 << 1 | 1 << 40;
        write[0] = 1 << 3;
        // SAFETY: both sets have 128 bits.
        let sets = unsafe { Sets::new(70, read.as_mut_ptr().cast(), write.as_mut_ptr().cast(), std::ptr::null_mut()) };
        let mut fds: Vec<pollfd> = sets.interests().collect();
        assert_eq!(fds.iter().map(|p| p.fd).collect::<Vec<_>>(), [3, 63, 65]);
        assert_eq!(fds[0].events & (libc::POLLIN | libc::POLLOUT), libc::POLLIN | libc::POLLOUT);
        fds[0].revents = libc::POLLIN;
        fds[2].revents = libc::POLLHUP;
        assert_eq!(sets.write_back(&fds), 2);
        assert_eq!((read, write), ([1 << 3, 1 << 1], [0, 0]));
    }

    #[test]
    fn a_hang_up_does_not_end_a_wait_for_urgent_data() {
        let p = |events, revents| pollfd { fd: 0, events, revents };
        assert!(!counts(&p(libc::POLLPRI, libc::POLLHUP)));
        assert!(counts(&p(libc::POLLIN, libc::POLLHUP)));
        assert!(!counts(&p(libc::POLLOUT, libc::POLLHUP)));
        assert!(counts(&p(libc::POLLOUT, libc::POLLERR)));
    }

    #[test]
    fn microseconds_may_exceed_a_second() {
        let tv = timeval { tv_sec: 1, tv_usec: 2_000_000 };
        assert_eq!(from_timeval(&tv), Some(Duration::from_secs(3)));
    }
}
