//! Descriptor numbers in a process that the library shares with a program.
//!
//! POSIX gives a program the lowest free number, and programs rely on it: a daemon closes 0, 1, 2 and opens `/dev/null`
//! three times. So the library keeps its own descriptors at [high numbers](raise). The kernel makes each of them at the
//! lowest free number, however, which the library therefore *borrows* for some microseconds ([`borrow`]). If another
//! thread of the program opens a descriptor meanwhile, it gets too high a number. If it closes or replaces the borrowed
//! number, it hits the library's descriptor. Invariants:
//!
//! * [`lowest`] makes a call that opens a descriptor, and gives the result the number that it would have without borrowers.
//! * [`change`] makes a call that closes or replaces a number, while no number is borrowed.
//! * No thread waits for longer than [`PATIENCE`]: a borrower or a call may be interrupted by a signal handler for
//!   ever. Then the number may be too high.
//! * There is no lock that a forked child could find held: a child calls [`after_fork_child`].
//!
//! A number may still be too high where the library does not lower it: regular files, because closing a copy would
//! release the program's locks on the file; streams of the C library (`fopen`, `opendir`, `tmpfile`), and calls by
//! number; descriptors that `recvmsg` receives.
//!
//! System calls are made by rustix, which calls the kernel and not the C library: an interposed function does not see them, and
//! errno stays.

#![expect(unsafe_code, reason = "a number of the program's is no owned descriptor")]

use std::cell::Cell;
use std::ffi::{c_int, OsString};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::{self, FdFlags};

/// How long a call waits for borrowers, and a borrower for calls. Borrowing mostly takes microseconds. Arbitrary.
const PATIENCE: Duration = Duration::from_millis(50);

/// The lower half counts the threads that borrow a number now, the upper half how often one has begun to.
static BORROWERS: AtomicU64 = AtomicU64::new(0);
const BEGUN: u64 = 1 << 32;

/// Calls that close or replace numbers, or wait to do so. While there is one, no thread begins to borrow.
static CHANGES: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How many [`Borrowed`] this thread has. Needs no initialisation and no destructor, so that a signal handler may
    /// read it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, its thread may have descriptors of the library's at the lowest free numbers.
#[must_use = "the number is borrowed only while this lives"]
pub struct Borrowed(());

/// Begins to borrow numbers: call it before a descriptor is made, and drop the result after the descriptor was
/// [raised](raise) or closed. Borrowing twice is the same as once.
pub fn borrow() -> Borrowed {
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    if depth == 0 {
        begin();
    }
    Borrowed(())
}

fn begin() {
    let mut wait = Wait::default();
    loop {
        BORROWERS.fetch_add(BEGUN + 1, Ordering::SeqCst);
        if CHANGES.load(Ordering::SeqCst) == 0 || wait.is_over() {
            return;
        }
        BORROWERS.fetch_sub(1, Ordering::SeqCst);
        wait.until(|| CHANGES.load(Ordering::SeqCst) == 0);
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        if depth == 0 {
            BORROWERS.fetch_sub(1, Ordering::SeqCst);
        }
        DEPTH.set(depth);
    }
}

/// The text of a file, of /proc for the most part.
///
/// # Errors
/// As `read_to_string`.
pub fn read_text(path: impl AsRef<Path>) -> std::io::Result<String> {
    let _number = borrow();
    std::fs::read_to_string(path)
}

/// The names in a folder.
///
/// # Errors
/// As `read_dir`, also of a later part of the folder.
pub fn read_names(path: impl AsRef<Path>) -> std::io::Result<Vec<OsString>> {
    let _number = borrow();
    std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Makes a call of the program that closes or replaces a number, while no other thread borrows one.
pub fn change<R>(call: impl FnOnce() -> R) -> R {
    let _one = Change::begin();
    call()
}

/// A call that closes or replaces numbers, until it returns. Also if its thread is cancelled in it: `close` is a cancellation
/// point.
struct Change(());

impl Change {
    fn begin() -> Change {
        CHANGES.fetch_add(1, Ordering::SeqCst);
        let one = Change(());
        // No thread begins to borrow from here on.
        await_borrowers();
        one
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        CHANGES.fetch_sub(1, Ordering::SeqCst);
    }
}

#[inline]
fn await_borrowers() {
    if are_borrowed() {
        Wait::default().until(|| !are_borrowed());
    }
}

/// Makes a call of the program that opens a descriptor at the lowest free number from `from` on, and returns it, or a negative
/// number.
#[inline]
pub fn lowest(from: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let opening = Opening::begin();
    let fd = call();
    opening.lower(fd, from)
}

/// As [`lowest`] from 0 on, for calls that open two descriptors and write their numbers to `pair`. Returns what `call` returns:
/// 0 if it has opened them.
///
/// # Safety
/// If `call` returns 0, `pair` can be read and written, and is null or holds the two numbers.
pub unsafe fn lowest_pair(pair: *mut [c_int; 2], call: impl FnOnce() -> c_int) -> c_int {
    let opening = Opening::begin();
    let result = call();
    if result == 0 && opening.is_disturbed() {
        // SAFETY: as the caller promises.
        unsafe { *pair = lower_pair(*pair) };
    }
    result
}

/// A call that opens descriptors, from before it to its result.
#[derive(Clone, Copy)]
struct Opening {
    /// [`BORROWERS`] at the beginning.
    before: u64,
}

impl Opening {
    #[inline]
    fn begin() -> Opening {
        if are_borrowed() {
            // The number of a regular file cannot be lowered.
            change(|| ());
        }
        Opening { before: BORROWERS.load(Ordering::SeqCst) }
    }

    /// Whether a number was borrowed by another thread meanwhile.
    #[inline]
    fn is_disturbed(self) -> bool {
        let now = BORROWERS.load(Ordering::SeqCst);
        (now != self.before || now as u32 != 0) && DEPTH.get() == 0
    }

    #[inline]
    fn lower(self, fd: c_int, from: c_int) -> c_int {
        if fd > from && self.is_disturbed() {
            return lower(fd, from);
        }
        fd
    }
}

/// Moves `fd`, which is not published yet, to the lowest free number from `from` on.
#[cold]
fn lower(fd: c_int, from: c_int) -> c_int {
    // Closing a copy would release the program's locks on a regular file; see fcntl_locking(2).
    if is_regular_file(fd) {
        return fd;
    }
    change(|| {
        let Some(free) = copy(fd, from) else { return fd };
        close(free.max(fd));
        free.min(fd)
    })
}

/// Moves two descriptors, which are not published yet, to the two lowest free numbers, the first one to the lower.
#[cold]
fn lower_pair(pair: [c_int; 2]) -> [c_int; 2] {
    change(|| {
        let (Some(first), Some(second)) = (raised_copy(pair[0]), raised_copy(pair[1])) else { return pair };
        let flags = io::fcntl_getfd(borrowed(pair[0])).unwrap_or(FdFlags::empty());
        pair.into_iter().for_each(close);
        // There is room: two were closed.
        [first, second].map(|high| copy_with(high.as_raw_fd(), 0, flags).unwrap_or_else(|| high.into_raw_fd()))
    })
}

/// Another number for `fd`, from `from` on, which is closed on exec if `fd` is.
fn copy(fd: c_int, from: c_int) -> Option<c_int> {
    copy_with(fd, from, io::fcntl_getfd(borrowed(fd)).ok()?)
}

fn copy_with(fd: c_int, from: c_int, flags: FdFlags) -> Option<c_int> {
    let new = io::fcntl_dupfd_cloexec(borrowed(fd), from).ok()?;
    if !flags.contains(FdFlags::CLOEXEC) {
        let _ = io::fcntl_setfd(&new, flags);
    }
    Some(new.into_raw_fd())
}

fn is_regular_file(fd: c_int) -> bool {
    rustix::fs::fstat(borrowed(fd)).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
}

fn close(fd: c_int) {
    // SAFETY: the callers' own descriptor, which they do not use again.
    unsafe { io::close(fd) };
}

fn borrowed<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: used for one system call, and at worst that fails.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether other threads borrow numbers now. A thread that borrows one itself does not wait for others.
#[inline]
fn are_borrowed() -> bool {
    BORROWERS.load(Ordering::SeqCst) as u32 != 0 && DEPTH.get() == 0
}

/// In a forked child: only the calling thread is there, which borrows nothing.
pub fn after_fork_child() {
    BORROWERS.fetch_and(!(BEGUN - 1), Ordering::SeqCst);
    CHANGES.store(0, Ordering::SeqCst);
}

/// Waiting for other threads, which ends after [`PATIENCE`] in all.
#[derive(Default)]
struct Wait {
    deadline: Option<Instant>,
}

impl Wait {
    fn until(&mut self, is_done: impl Fn() -> bool) {
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
        while !is_done() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Moves a descriptor that was just made to a high number, closed on exec. If there is no free high number, it keeps
/// its number.
pub fn raise(fd: OwnedFd) -> OwnedFd {
    raised_copy(fd.as_raw_fd()).unwrap_or(fd)
}

/// Another number for `fd`, a high one, closed on exec.
pub fn raised_copy(fd: c_int) -> Option<OwnedFd> {
    high_numbers().find_map(|from| io::fcntl_dupfd_cloexec(borrowed(fd), from).ok())
}

/// The places to search for a free number, the best first. If there are few numbers, at the very end, so that the
/// program's numbers, which grow from below, have all the remaining room.
fn high_numbers() -> impl Iterator<Item = c_int> {
    /// The kernel's table grows to the highest number in use and fork copies it: this bounds both, and few programs hold as
    /// many. Arbitrary.
    const HIGHEST: u64 = 16_384;
    /// Below this a program needs all numbers but the last. Arbitrary.
    const FEW: c_int = 2048;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let end = limit.map_or(HIGHEST, |limit| limit.min(HIGHEST)) as c_int;
    let near_the_end = (1..).map(move |n| end - 8 * n).take_while(move |from| end < FEW && *from >= 3);
    let far = [end - 512, end / 2, end / 4].into_iter().filter(move |_| end >= FEW);
    far.chain(near_the_end).chain([3])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a call that unwinds kept borrowers waiting for ever after.
    #[test]
    fn a_call_that_unwinds_is_over() {
        let unwound = std::panic::catch_unwind(|| change(|| panic!("as if it was cancelled")));
        assert!(unwound.is_err());
        assert_eq!(CHANGES.load(Ordering::SeqCst), 0);
    }
}
