//! The end of the process in good order: `exit`, `_exit`, and the replacement of the program. The kernel then closes
//! its sockets, whose peers read everything and the end of the stream. A link dies with its process, and its peers
//! would see a reset. So the streams on links are demoted to their anchors first, and the kernel does the rest.
//!
//! The helper does the work, because `_exit` may be called in a signal handler that has interrupted anything: the caller
//! only sets a word, makes an eventfd readable and sleeps. That is also why it waits for a bounded time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use netacc_driver::Endpoint;

use super::links;
use crate::os::clock::now;
use crate::os::confinement;
use crate::os::signals::{self, BlockedSignals};
use crate::runtime::{get, Runtime};

const REQUESTED: u32 = 1;
const DONE: u32 = 2;

/// The request to the helper, and its progress.
static LEAVING: AtomicU32 = AtomicU32::new(0);

/// How long a peer may delay an exit: a peer that does not answer, or one that reads too little, so that the bytes in
/// flight do not fit into the kernel's buffers. Arbitrary.
const PATIENCE: Duration = Duration::from_secs(1);
/// Until when a program that is replaced waits for its peers to answer, in nanoseconds of the monotonic clock.
static ANSWERS_UNTIL: AtomicU64 = AtomicU64::new(0);
/// How long. A peer answers at once, unless its application has something left to read first.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);
/// How often the exiting thread checks whether the helper is done. One or two checks are usually enough.
const CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// Demotes all streams before the program is replaced. Safe in a signal handler.
///
/// The sockets stay open, and the process that has them then does not answer an abandoned promotion. A peer that grants
/// it after that would wait for a marker that no process writes, so this process waits for the answer for a while, and
/// declines it. Bytes that come on the anchor of a failed stream until the anchor ends too are discarded.
pub fn leave() {
    if confinement::is_confined() {
        return;
    }
    ANSWERS_UNTIL.store((now() + ANSWER_PATIENCE).as_nanos(), Ordering::SeqCst);
    if request_demotion() {
        let ts = crate::os::clock::timespec(CHECK_INTERVAL);
        await_helper(|| {
            // SAFETY: a valid time.
            unsafe { libc::nanosleep(&ts, std::ptr::null_mut()) };
            true
        });
    }
}

/// As [`leave`], at the end of the process. The kernel closes a process's sockets when the program no longer runs, so
/// no signal handler of the program runs here. A signal that ends the process does so at once, and bytes that are left
/// are lost with the link.
pub fn end() {
    if request_demotion() {
        let blocked_signals = BlockedSignals::all();
        await_helper(|| !blocked_signals.take(CHECK_INTERVAL).is_some_and(signals::requests_end));
        while blocked_signals.take(Duration::ZERO).is_some() {}
    }
    // The library makes no system call in a confined process, which has left all its links before.
    let own = get().filter(|rt| !confinement::is_confined() && rt.pid == std::process::id());
    if let Some(leave) = own.and_then(|rt| rt.leave_backend.as_ref()) {
        leave();
    }
}

/// Sends the request to the helper, if there are streams to demote. Returns whether to wait for its answer.
fn request_demotion() -> bool {
    let Some(rt) = get().filter(|_| !confinement::is_confined()) else { return false };
    let linked = rt.endpoint().is_some_and(|e| e.counters().links_established.load(Ordering::Relaxed) > 0);
    // A child by a bare `clone`, which ran no handler, has no helper and demotes nothing.
    if !linked || std::process::id() != rt.pid || LEAVING.load(Ordering::SeqCst) == DONE {
        return false;
    }
    LEAVING.store(REQUESTED, Ordering::SeqCst);
    rt.helper.kick();
    true
}

/// Waits until the helper is done, [`PATIENCE`] is over, or `sleep`, which sleeps for [`CHECK_INTERVAL`], returns that the wait
/// is over.
fn await_helper(mut sleep: impl FnMut() -> bool) {
    let begun = now();
    while LEAVING.load(Ordering::SeqCst) != DONE && now().saturating_since(begun) < PATIENCE && sleep() {}
}

/// The program was not replaced after all.
pub fn stay() {
    if confinement::is_confined() {
        return;
    }
    ANSWERS_UNTIL.store(0, Ordering::SeqCst);
    let Some(endpoint) = get().and_then(Runtime::endpoint) else { return };
    if LEAVING.swap(0, Ordering::SeqCst) != 0 {
        endpoint.suspend_promotion(false);
    }
}

/// The helper: does as much of the request as it can. Returns whether it is to be called again soon.
pub(super) fn advance(endpoint: &Endpoint) -> bool {
    if LEAVING.load(Ordering::SeqCst) != REQUESTED {
        return false;
    }
    let owed = || now().as_nanos() < ANSWERS_UNTIL.load(Ordering::SeqCst) && endpoint.awaits_peers();
    let sent = get().is_none_or(|rt| links::leave(rt, endpoint));
    let done = endpoint.leave(now()) && sent && !owed();
    if done {
        if let Some(rt) = get() {
            rt.release_all_children();
        }
        LEAVING.store(DONE, Ordering::SeqCst);
    }
    !done
}

/// The child of a fork has made no request, and its only thread is its first.
pub(super) fn after_fork_child() {
    LEAVING.store(0, Ordering::SeqCst);
    ANSWERS_UNTIL.store(0, Ordering::SeqCst);
    FIRST_THREAD_GONE.store(false, Ordering::SeqCst);
}

/// The first thread of the process has called `pthread_exit`, and the process continues in other threads.
static FIRST_THREAD_GONE: AtomicBool = AtomicBool::new(false);

/// How often the helper checks whether any thread of the program is left, once the first has ended. Arbitrary.
const LAST_THREAD_CHECK: Duration = Duration::from_millis(20);

/// A thread is about to end. A process ends with its last thread, but the helper is a thread too. So once the first
/// thread has ended, which is rare, the helper checks whether it is the last one.
pub fn thread_exits() {
    if confinement::is_confined() {
        return;
    }
    // SAFETY: no arguments.
    if unsafe { libc::gettid() == libc::getpid() } {
        FIRST_THREAD_GONE.store(true, Ordering::SeqCst);
        if let Some(rt) = get() {
            rt.helper.kick();
        }
    }
}

/// The helper: ends the process if no thread of the program is left. Returns when to check again.
pub(super) fn after_last_thread(endpoint: Option<&Endpoint>) -> Option<Duration> {
    if !FIRST_THREAD_GONE.load(Ordering::SeqCst) {
        return None;
    }
    if is_alone() {
        let begun = now();
        while endpoint.is_some_and(|e| !e.leave(now())) && now().saturating_since(begun) < PATIENCE {
            std::thread::sleep(CHECK_INTERVAL);
        }
        if let Some(rt) = get() {
            rt.release_all_children();
            // The program's exit handlers run in this thread, and may fork.
            rt.helper.work.end();
        }
        LEAVING.store(DONE, Ordering::SeqCst);
        // As the C library does in the last thread.
        std::process::exit(0);
    }
    Some(LAST_THREAD_CHECK)
}

/// Whether only threads of the library are left besides the first, which has ended: the calling one, its assistants, and the
/// threads that connect links.
fn is_alone() -> bool {
    let Ok(tasks) = netacc_descriptors::read_names("/proc/self/task") else { return false };
    let first = std::process::id();
    let assistants = get().map_or(0, |rt| rt.assistants.running());
    let connects = |task: &std::ffi::OsString| {
        netacc_descriptors::read_text(Path::new("/proc/self/task").join(task).join("comm"))
            .is_ok_and(|name| name.trim_end() == netacc_registry::CONNECTING)
    };
    let stat = netacc_descriptors::read_text(format!("/proc/self/task/{first}/stat")).unwrap_or_default();
    let gone = stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'));
    gone && tasks.iter().filter(|task| !connects(task)).count() == 2 + assistants
}
