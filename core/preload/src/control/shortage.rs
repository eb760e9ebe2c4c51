//! Descriptors of the library are given back when the program runs short of them.
//!
//! A call of the program that fails with EMFILE would not fail on TCP if the library used one descriptor less. So
//! before the program sees that error the library gives back its own descriptors, in steps, and makes the call once
//! more:
//!
//! | step | descriptors | price |
//! | --- | --- | --- |
//! | 1 | wake descriptors of peers, one for each queue that this process has woken there | peers are woken through
//! their helpers, for good |
//! | 2 | those for waits with which no thread waits now | they are made again |
//! | 3 | those by which a forked child sends requests to its parents | inherited connections are
//! demoted now |
//! | 4 | all others | every connection is on TCP, for good; `netacc_ss` gets no answer |
//!
//! A process whose limit is below [`LEAST_LIMIT`], or that has little room left when it makes its first socket, begins
//! with no descriptor of the library, and stays on TCP. The library does not see descriptors that the C library opens
//! for itself (for name resolution, for example), or that `recvmsg` receives. It keeps a few descriptors free for
//! those: it gives back its own before an EMFILE occurs.
//!
//! The helper gives back, because its own descriptors are among them. A number that was given back belongs to the
//! program: no thread of the library may use it any more. Every use of a number that can be given back is therefore
//! within a [`Use`](uses::Use), and the helper waits until all uses that have begun are over.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use netacc_driver::Endpoint;
use netacc_proto::Reason;

use crate::os::clock::{self, now};
use crate::os::{errno, limits, real, uses};
use crate::runtime::inherited::{take_ways, ways_to_parents};
use crate::runtime::{get, protected_fds, Runtime};
use crate::table::{self, Entry};
use crate::wait;

/// The smallest limit with which the library opens descriptors of its own. It needs [`LEAST`], and takes no more than a
/// quarter of the limit before it has any link.
pub const LEAST_LIMIT: u64 = 4 * LEAST;

/// Descriptors of the library in a process with one epoll instance and links to one peer, at most; see
/// docs/explanation/decisions-shm.md.
pub const LEAST: u64 = 13;

/// The longest time that the helper takes to demote all connections. The same as at the end of a process.
const EFFORT: Duration = Duration::from_secs(1);
/// The longest time that a program waits for that. Longer, so that the wait does not end in the middle.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often the waiting thread checks.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// The library has its descriptors; a thread of the program has requested them; the helper has given them back.
const KEPT: u32 = 0;
const REQUESTED: u32 = 1;
const GIVEN: u32 = 2;

/// Numbers below this are not near the limit: the library has at most half of them, and a few.
static NEAR: AtomicI32 = AtomicI32::new(c_int::MAX);
/// So many are kept free for descriptors that the C library opens for itself. Arbitrary; resolving a name takes
/// two or three.
const SPARE: u64 = 4;

static STATE: AtomicU32 = AtomicU32::new(KEPT);

/// Makes a call of the program that opens a descriptor. Repeats it as long as it fails for lack of descriptors and the
/// library has one to give back. `failed`: whether a result is an error.
#[inline]
pub fn opening<R: Copy>(failed: impl Fn(R) -> bool, mut call: impl FnMut() -> R) -> R {
    loop {
        let result = call();
        if !failed(result) || errno::errno() != libc::EMFILE || !give_back() {
            return result;
        }
    }
}

/// As [`opening`], for calls that return a descriptor, or a negative number. Also gives back descriptors if the C
/// library would have too few.
#[inline]
pub fn opening_fd(call: impl FnMut() -> c_int) -> c_int {
    opening_fd_from(0, call)
}

/// As [`opening_fd`], for calls that give the lowest free number from `lowest` on.
#[inline]
pub fn opening_fd_from(lowest: c_int, call: impl FnMut() -> c_int) -> c_int {
    let fd = netacc_descriptors::lowest(lowest, || opening(|fd| fd < 0, call));
    if fd >= NEAR.load(Ordering::Relaxed) {
        keep_spare(fd);
    }
    fd
}

/// As [`opening_fd`], for calls that write the numbers of two descriptors to `pair` and return 0.
///
/// # Safety
/// As the call.
#[inline]
pub unsafe fn opening_pair(pair: *mut c_int, call: impl FnMut() -> c_int) -> c_int {
    // SAFETY: a call that succeeds has written the numbers.
    unsafe { netacc_descriptors::lowest_pair(pair.cast(), || opening(|rc| rc < 0, call)) }
}

/// The program has been given `fd`, the lowest free number. Keeps [`SPARE`] descriptors free as long as the library has any.
#[cold]
fn keep_spare(fd: c_int) {
    let is_short = || {
        let above = protected_fds().iter().filter(|own| **own > fd).count();
        let taken = fd as u64 + 1 + above as u64;
        taken + SPARE > limits::soft_limit()
    };
    while is_short() && give_back() {}
}

/// Begins to watch the numbers that the program is given. Called when the library opens its first descriptors.
pub(super) fn watch_from(limit: u64) {
    NEAR.store(c_int::try_from(limit / 4).unwrap_or(c_int::MAX), Ordering::Relaxed);
}

/// Gives back some descriptors. Returns whether more are free now than before. Keeps errno.
#[cold]
fn give_back() -> bool {
    // A child by a bare `clone`, which ran no handler, has nothing of its own.
    if crate::os::inside::is_inside() || get().is_some_and(|rt| rt.pid != std::process::id()) {
        return false;
    }
    let errno = errno::errno();
    let given = get().is_some_and(give_back_wakes)
        || get().is_some_and(|_| wait::give_back_unused())
        || give_back_ways()
        || get().is_some_and(give_back_all);
    errno::set_errno(errno);
    given
}

/// Step 1.
fn give_back_wakes(rt: &Runtime) -> bool {
    rt.give_back_of_backend.as_ref().is_some_and(|give_back| give_back(netacc_registry::GiveBack::Wakes) > 0)
}

/// Step 4: sends the request to the helper, and waits.
fn give_back_all(rt: &Runtime) -> bool {
    if !rt.helper.has_descriptors() || STATE.load(Ordering::SeqCst) == GIVEN {
        return false;
    }
    STATE.store(REQUESTED, Ordering::SeqCst);
    rt.helper.kick();
    let begun = now();
    let ts = clock::timespec(CHECK_INTERVAL);
    while STATE.load(Ordering::SeqCst) != GIVEN {
        if now().saturating_since(begun) > PATIENCE {
            return false;
        }
        // SAFETY: a valid time.
        unsafe { libc::nanosleep(&ts, std::ptr::null_mut()) };
    }
    true
}

/// The helper: closes all descriptors of the library, except those with which a thread waits.
fn close_all(rt: &Runtime) {
    if let Some(give_back) = &rt.give_back_of_backend {
        give_back(netacc_registry::GiveBack::All);
    }
    for (_, entry) in table::entries() {
        if let Entry::Epoll(epoll) = &*entry {
            epoll.give_back();
        }
    }
    // A fork that waits for this thread's work would delay the ends of the others.
    rt.helper.work.pause(|| rt.assistants.end());
    rt.assistants.give_back();
    rt.helper.give_back();
}

/// The helper: whether it is to be called again soon because connections are being demoted.
pub(super) fn advance(rt: &Runtime, endpoint: &Endpoint, begun: &mut Option<netacc_device::Instant>) -> bool {
    if STATE.load(Ordering::SeqCst) != REQUESTED {
        return false;
    }
    let since = *begun.get_or_insert_with(now);
    let late = now().saturating_since(since) > EFFORT;
    if !endpoint.leave_for_good(Reason::DescriptorLimit, now()) && !late {
        return true;
    }
    rt.release_all_children();
    close_all(rt);
    finish();
    false
}

fn finish() {
    NEAR.store(c_int::MAX, Ordering::Relaxed);
    uses::end();
    STATE.store(GIVEN, Ordering::SeqCst);
}

/// The helper of a process without an endpoint: whether it has given back its descriptors.
pub(super) fn advance_without_endpoint(rt: &Runtime) -> bool {
    if STATE.load(Ordering::SeqCst) == REQUESTED {
        close_all(rt);
        finish();
    }
    uses::is_over()
}

/// The child of a fork has made no request.
pub(super) fn after_fork_child() {
    STATE.store(KEPT, Ordering::SeqCst);
    uses::after_fork_child();
}

/// Whether the process has so few descriptors that the library is to take none.
pub(super) fn is_short() -> bool {
    let limit = limits::soft_limit();
    if limit < LEAST_LIMIT {
        return true;
    }
    // One of them is the folder's.
    let open = netacc_descriptors::read_names("/proc/self/fd").map_or(limit, |names| names.len() as u64);
    limit.saturating_sub(open) < 2 * LEAST
}

/// Requests all streams that the parents still have, then closes the descriptors to the parents. Returns
/// whether there were any.
fn give_back_ways() -> bool {
    if ways_to_parents().next().is_none() {
        return false;
    }
    for (_, entry) in table::entries() {
        if let Entry::Stream(sock) = &*entry {
            sock.reclaim();
        }
    }
    let ways = take_ways();
    let unused = uses::await_uses();
    for fd in ways.iter().filter(|_| unused) {
        // SAFETY: a descriptor of the library, by which no thread sends a request any more.
        unsafe { real::close(*fd) };
    }
    unused
}
