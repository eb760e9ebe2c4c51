//! The other holders of a socket: shared records of a process and its forked descendants.
//!
//! One region of shared memory, made before the first fork and inherited by all descendants. It has a record for every
//! process of the family and one for every socket that more than one of them has held, with a list of the holders. A
//! process enters its child in the lists of all its sockets before it forks, and leaves a list when it closes its last
//! descriptor of the socket. A process that has ended without closing anything is recognised by its number and the time
//! of its start. So a list may name too many holders for a moment, but never too few: a socket that the list shows with
//! one holder has only that one.
//!
//! A program that is started with `exec` has no access to the region, and neither do the programs that it starts. So a
//! socket that such a program is given is marked as lent, and a process that runs another program is marked as
//! replaced. Then the lists do not name all holders, and [`holders`](crate::holders) searches for the others.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::time::Duration;

use crate::os::clock::now;

mod region;

pub use region::{Id, Others, Unseen};
use region::{Member, Region, RESERVED, UNWATCHABLE};

/// A child that has not started after this long never will: its fork has failed.
const BIRTH: Duration = Duration::from_secs(5);

static REGION: AtomicPtr<Region> = AtomicPtr::new(std::ptr::null_mut());
/// This process.
static SELF: AtomicU64 = AtomicU64::new(0);
/// This process is in a namespace of process numbers of its own, where it cannot see whether the others live.
static SECLUDED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The child that this thread is about to fork. Several threads may fork at once.
    static CHILD: Cell<Member> = const { Cell::new(0) };
}

fn region() -> Option<&'static Region> {
    // SAFETY: null, or a mapping that is never removed and holds atomics only, for which zeros are valid.
    unsafe { REGION.load(Acquire).as_ref() }
}

/// Makes the region, if there is none. Before the first fork.
fn found() -> Option<&'static Region> {
    if let Some(region) = region() {
        return Some(region);
    }
    // SAFETY: a fresh anonymous mapping.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Region>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return None;
    }
    let p = NonNull::new(p.cast::<Region>())?;
    if REGION.compare_exchange(std::ptr::null_mut(), p.as_ptr(), AcqRel, Acquire).is_err() {
        // SAFETY: just mapped, and not published.
        unsafe { libc::munmap(p.as_ptr().cast(), size_of::<Region>()) };
    }
    region()
}

fn is_alive(pid: u32, start: u64) -> bool {
    match pid {
        RESERVED => now().as_nanos().saturating_sub(start) < BIRTH.as_nanos() as u64,
        pid => started(pid) == Some(start),
    }
}

/// When a process was started, in ticks since boot. `None` if there is none, or it has ended and is only waited for.
fn started(pid: u32) -> Option<u64> {
    let stat = netacc_descriptors::read_text(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any characters.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // proc(5): the state is field 3, the start field 22.
    (!matches!(state, "Z" | "X" | "x")).then(|| fields.nth(18)?.parse().ok())?
}

/// Before a fork: enters the child. `false` if that is impossible: all sockets that it inherits are then shared for
/// good.
pub fn before_fork() -> bool {
    CHILD.set(0);
    let Some(region) = found() else { return false };
    if SELF.load(Relaxed) == 0 {
        let pid = std::process::id();
        let Some(me) = started(pid).and_then(|start| region.enter(pid, start, &is_alive)) else { return false };
        if SELF.compare_exchange(0, me, AcqRel, Relaxed).is_err() {
            // Another thread that forks too was faster.
            region.withdraw(me);
        }
    }
    let Some(child) = region.enter(RESERVED, now().as_nanos(), &is_alive) else { return false };
    CHILD.set(child);
    true
}

/// After a fork, in the child.
pub fn after_fork_child() {
    let pid = std::process::id();
    let child = CHILD.replace(0);
    // The first process of a namespace. The others use another number for it, and it does not see them.
    if pid == 1 {
        SECLUDED.store(true, Relaxed);
    }
    let secluded = SECLUDED.load(Relaxed);
    let (number, start) = if secluded { (UNWATCHABLE, 0) } else { (pid, started(pid).unwrap_or(0)) };
    let born = region().is_some_and(|r| r.born(child, number, start));
    // A process that took so long that its record was given to another never counts as a sole holder.
    SELF.store(if born { child } else { 0 }, Relaxed);
}

/// Before a fork, after [`before_fork`]: the child will hold this socket too. Returns its place, or `None` if there is
/// no free one.
pub fn share(id: Id) -> Option<Id> {
    let child = CHILD.get();
    region().filter(|_| child != 0)?.share(id, SELF.load(Relaxed), child, &is_alive)
}

/// This process has closed its last descriptor of the socket.
pub fn leave(id: Id) {
    if let Some(region) = region() {
        region.leave(id, SELF.load(Relaxed), &is_alive);
    }
}

/// The other processes that may hold the socket. One without a place in the family has no holder that is entered there.
pub fn others(id: Id) -> Others {
    let me = SELF.load(Relaxed);
    match region().filter(|_| me != 0) {
        _ if id == 0 => Others::Absent,
        _ if SECLUDED.load(Relaxed) => Others::Entered,
        Some(region) => region.others(id, me, &is_alive),
        None => Others::Entered,
    }
}

/// A program without access to the region is about to be started with the socket.
pub fn lend(id: Id) {
    if let Some(region) = region() {
        region.lend(id);
    }
}

/// The socket stays in the kernel in each process that holds it, for the reason `why`, which is not 0 and has no meaning here. The
/// first reason stays.
pub fn keep(id: Id, why: u32) {
    if let Some(region) = region() {
        region.keep(id, why);
    }
}

/// Why the socket stays in the kernel in each process that holds it; 0 if it does not.
pub fn kept(id: Id) -> u32 {
    region().map_or(0, |region| region.kept(id))
}

/// This process is about to run another program, or with `false` continues after an attempt that has failed.
pub fn set_replaced(replaced: bool) {
    if let (Some(region), me @ 1..) = (region(), SELF.load(Relaxed)) {
        region.set_replaced(me, replaced);
    }
}

/// The processes that may hold the socket unseen now.
pub fn unseen(id: Id) -> Unseen {
    region().map_or_else(Unseen::default, |region| region.unseen(id))
}

/// None of the processes in `unseen` holds the socket any more.
pub fn expel(id: Id, unseen: &Unseen) {
    if let Some(region) = region() {
        region.expel(id, unseen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for a child; its exit status.
    fn wait(pid: libc::pid_t) -> i32 {
        let mut status = 0;
        // SAFETY: a child of this test.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        status
    }

    #[test]
    fn a_socket_is_held_alone_once_the_others_have_closed_it_or_ended() {
        assert!(before_fork());
        let (kept, left) = (share(0).expect("there is room"), share(0).expect("there is room"));
        let mut pipe = [0; 2];
        // SAFETY: two writable ints; the child only makes system calls and ends.
        let pid = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            libc::fork()
        };
        let mut byte = 0u8;
        if pid == 0 {
            after_fork_child();
            leave(left);
            // SAFETY: one byte each way; the parent's end is closed last.
            unsafe {
                libc::close(pipe[0]);
                libc::write(pipe[1], [1u8].as_ptr().cast(), 1);
                libc::pause();
                libc::_exit(0);
            }
        }
        // SAFETY: one writable byte.
        assert_eq!(unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) }, 1);
        assert_eq!(others(kept), Others::Entered, "the child holds it");
        assert_eq!(others(left), Others::Absent, "the child has closed it");
        // SAFETY: the child is ours.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        wait(pid);
        assert_eq!(others(kept), Others::Absent, "the child is dead");
        leave(kept);
        leave(left);
    }
}
