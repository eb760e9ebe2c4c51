//! Events for `netacc trace`: in memory that the tool has passed to the process, while it has a window open.
//!
//! Without a trace, an event is one branch that is not taken. With one, events outside a window cost a call and two
//! loads. Any thread records, also in signal handlers: nothing here locks, allocates or calls the kernel, except to learn a
//! thread's number once.
//!
//! Invariants:
//! * [`MEMORY`], once set, is the address of [`layout::BYTES`] mapped bytes for as long as the process lives. A later trace, and
//!   the end of one, map other memory there.
//! * The process that has begun a trace keeps it until it ends it or has gone. Otherwise an exporter that traces now and then
//!   would take the events of a user's trace.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr::{null_mut, slice_from_raw_parts};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use libc::{iovec, pid_t};
use netacc_config::trace::{self as layout, Event, Point, TraceMemory};
use netacc_device::FourTuple;
use netacc_driver::{Mark, Marked, StreamCell};
use netacc_proto::Role;

use crate::os::clock::now;
use crate::os::errno::{errno, set_errno};

/// A trace runs.
static RUNNING: AtomicBool = AtomicBool::new(false);
static MEMORY: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// The process that has begun the trace. 0 if this one cannot see it, as in another container.
static TRACER: AtomicI32 = AtomicI32::new(0);
/// A thread begins or ends a trace. Not a lock, which a forked child might find held for ever.
static CHANGING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The number of this thread; 0 until it is needed.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Why a trace does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// This process has a trace that it keeps.
    Taken(pid_t),
    /// An error of `errno`.
    Error(c_int),
}

/// Begins a trace for the process `tracer` in its memory: `fd` is a memory file that cannot shrink. An error if that is not
/// so, or it cannot be mapped.
pub(crate) fn begin(fd: c_int, tracer: pid_t) -> Result<(), Refusal> {
    let _one = Changing::try_begin().ok_or(Refusal::Error(libc::EBUSY))?;
    if let Some(other) = running_for().filter(|other| *other != tracer && lives(*other)) {
        return Err(Refusal::Taken(other));
    }
    // SAFETY: no pointers.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    // SAFETY: all-zero is a valid struct.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is writable.
    let known = unsafe { libc::fstat(fd, &mut status) } == 0;
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || !known || status.st_size < layout::BYTES as i64 {
        return Err(Refusal::Error(libc::EINVAL));
    }
    map(Some(fd)).map_err(Refusal::Error)?;
    TRACER.store(tracer, Ordering::Release);
    RUNNING.store(true, Ordering::Release);
    Ok(())
}

/// Ends the trace of the process `tracer`, if there is one, and returns its memory. Whether no trace runs then.
pub(crate) fn end(tracer: pid_t) -> bool {
    let Some(_one) = Changing::try_begin() else { return false };
    if running_for().is_some_and(|other| other != tracer) {
        return false;
    }
    RUNNING.store(false, Ordering::Release);
    give_back();
    true
}

/// The process that has begun the trace that runs.
fn running_for() -> Option<pid_t> {
    RUNNING.load(Ordering::Acquire).then(|| TRACER.load(Ordering::Acquire))
}

/// Whether the process is there. One that has ended is, until its parent has waited for it.
fn lives(pid: pid_t) -> bool {
    // SAFETY: no pointers; signal 0 is never delivered. 0 would name this process's group.
    pid > 0 && (unsafe { libc::kill(pid, 0) } == 0 || errno() == libc::EPERM)
}

/// In a forked child: the trace is its parent's.
pub(crate) fn after_fork_child() {
    THREAD.set(0);
    RUNNING.store(false, Ordering::Release);
    CHANGING.store(false, Ordering::Release);
}

/// Returns the memory, where the process may call what that takes.
pub(crate) fn give_back() {
    if !MEMORY.load(Ordering::Acquire).is_null() {
        // Otherwise it stays, and nothing is recorded there.
        let _ = map(None);
    }
}

/// A thread begins or ends a trace, until this is dropped.
struct Changing;

impl Changing {
    fn try_begin() -> Option<Changing> {
        (!CHANGING.swap(true, Ordering::Acquire)).then_some(Changing)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.store(false, Ordering::Release);
    }
}

/// Maps the tool's memory, or empty memory, where the last one was.
fn map(fd: Option<c_int>) -> Result<(), c_int> {
    let old = MEMORY.load(Ordering::Acquire);
    let place = if old.is_null() { 0 } else { libc::MAP_FIXED };
    let kind = match fd {
        // An event must not take a fault.
        Some(_) => libc::MAP_SHARED | libc::MAP_POPULATE,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, or in place of the old one, which is of the same length and holds nothing but words.
    let new = unsafe { libc::mmap(old, layout::BYTES, rights, kind | place, fd.unwrap_or(-1), 0) };
    if new == libc::MAP_FAILED {
        return Err(errno());
    }
    MEMORY.store(new, Ordering::Release);
    Ok(())
}

/// Whether a trace runs.
#[inline]
pub(crate) fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed)
}

/// Whether events are recorded now: a trace runs, and has a window open.
// Always: each short call has it.
#[inline(always)]
pub(crate) fn is_recording() -> bool {
    is_running() && Window::open().is_some()
}

/// The program calls to move bytes.
#[inline]
pub(crate) fn call(point: Point, stream: &StreamCell, iov: &[iovec]) {
    if is_running() {
        record_call(point, stream, iov);
    }
}

#[cold]
#[inline(never)]
fn record_call(point: Point, stream: &StreamCell, iov: &[iovec]) {
    if let Some(window) = Window::open() {
        stream.find_local();
        let len = iov.iter().fold(0usize, |len, part| len.saturating_add(part.iov_len));
        let amount = len.min(u32::MAX as usize) as u32;
        window.record(point, End::of(stream), Place { amount, ..Place::default() });
    }
}

/// The driver's mark.
pub(crate) fn mark(stream: &StreamCell, marked: &Marked) {
    let Some(window) = Window::open() else { return };
    let point = match marked.mark {
        Mark::Claimed => Point::Claimed,
        Mark::Copied => Point::Copied,
        Mark::Posted => Point::Posted,
        Mark::Held => Point::Held,
        Mark::Stalled => Point::Stalled,
        Mark::Arrived => Point::Arrived,
        Mark::Read => Point::Read,
        Mark::AnchorSent { .. } => Point::AnchorSent,
        Mark::AnchorRead { .. } => Point::AnchorRead,
    };
    let place = Place {
        position: marked.position,
        amount: 0,
        reason: marked.reason as u16,
        opener: marked.role == Role::Opener,
    };
    window.record(point, End::of(stream), place);
}

/// Marks a part of a thread's time: `begin` now, and `end` when the result is dropped.
#[inline]
fn part(begin: Point, end: Point) -> Part {
    if is_running() {
        record_part(begin);
    }
    Part(end)
}

#[cold]
#[inline(never)]
fn record_part(point: Point) {
    if let Some(window) = Window::open() {
        window.record(point, End::default(), Place::default());
    }
}

/// The thread's call waits, until the result is dropped.
#[inline]
pub(crate) fn waits() -> Part {
    part(Point::Wait, Point::Reported)
}

/// The thread sleeps in the kernel, until the result is dropped.
#[inline]
pub(crate) fn sleeps() -> Part {
    part(Point::Asleep, Point::Woken)
}

/// See [`waits`] and [`sleeps`].
#[must_use]
pub(crate) struct Part(Point);

impl Drop for Part {
    #[inline]
    fn drop(&mut self) {
        if is_running() {
            record_part(self.0);
        }
    }
}

/// Where in the stream an event is.
#[derive(Clone, Copy, Default)]
struct Place {
    position: u64,
    amount: u32,
    reason: u16,
    opener: bool,
}

/// A window that is open.
struct Window {
    memory: TraceMemory<'static>,
    now: u64,
}

impl Window {
    /// `None`: the tool wants no events now.
    #[inline]
    fn open() -> Option<Window> {
        let words = MEMORY.load(Ordering::Acquire).cast::<AtomicU64>();
        if words.is_null() {
            return None;
        }
        // SAFETY: see `MEMORY`. The words are atomic, because the tool writes some of them at any time.
        let memory = TraceMemory::new(unsafe { &*slice_from_raw_parts(words, layout::WORDS) })?;
        let end = memory.word(layout::WINDOW).load(Ordering::Relaxed);
        if end == 0 {
            return None;
        }
        let now = time(memory.word(layout::CLOCK).load(Ordering::Relaxed));
        (now <= end).then_some(Window { memory, now })
    }

    fn record(&self, point: Point, end: End, place: Place) {
        self.memory.push(&Event {
            time: self.now,
            point,
            thread: thread(),
            connection: end.connection,
            lower: end.lower,
            local_port: end.local_port,
            remote_port: end.remote_port,
            position: place.position,
            amount: place.amount,
            reason: place.reason,
            opener: place.opener,
        });
    }
}

/// The time, by the clock that the tool has chosen.
#[inline]
fn time(clock: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if clock == layout::CLOCK_TSC {
        // SAFETY: every processor of this architecture has the instruction.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    let _ = clock;
    now().as_nanos()
}

fn thread() -> u32 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            let saved = errno();
            // SAFETY: no arguments.
            thread.set(unsafe { libc::gettid() } as u32);
            set_errno(saved);
        }
        thread.get()
    })
}

/// One end of a connection.
#[derive(Clone, Copy, Default)]
struct End {
    connection: u64,
    lower: bool,
    local_port: u16,
    remote_port: u16,
}

impl End {
    fn of(stream: &StreamCell) -> End {
        let (connection, lower) = stream.name(name);
        let tuple = stream.tuple();
        End { connection, lower, local_port: tuple.local.port(), remote_port: tuple.remote.port() }
    }
}

/// The number of a connection, and whether its local end is the lower one.
#[cold]
fn name(tuple: FourTuple) -> (u64, bool) {
    let (local, remote) = (bytes(tuple.local), bytes(tuple.remote));
    let lower = local <= remote;
    let connection = if lower { layout::connection(&local, &remote) } else { layout::connection(&remote, &local) };
    (connection, lower)
}

fn bytes(address: SocketAddr) -> [u8; 18] {
    let mut bytes = [0; 18];
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_file(seals: c_int, len: usize) -> c_int {
        // SAFETY: the name is a C string; the other calls have no pointers.
        unsafe {
            let fd = libc::memfd_create(c"trace".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, len as i64), 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
            fd
        }
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let invalid = Err(Refusal::Error(libc::EINVAL));
        assert_eq!(begin(memory_file(0, layout::BYTES), 0), invalid);
        assert_eq!(begin(memory_file(libc::F_SEAL_SHRINK, layout::BYTES - 1), 0), invalid);
        assert_eq!(begin(-1, 0), invalid);
    }

    #[test]
    fn both_ends_name_a_connection_alike() {
        let tuple = FourTuple {
            local: "127.0.0.1:80".parse().expect("an address"),
            remote: "[::ffff:127.0.0.1]:4000".parse().expect("an address"),
        };
        let ((one, one_is_lower), (other, other_is_lower)) = (name(tuple), name(tuple.reversed()));
        assert_eq!(one, other);
        assert_ne!(one, 0);
        assert_ne!(one_is_lower, other_is_lower);
    }
}
