//! Who else holds a descriptor: what a process and those forked from it know of each other.
//!
//! One region of shared memory, made before the first fork and inherited by all descendants. It has a record for every
//! process of the family and one for every socket that more than one of them has held, with a list of those who do.
//! A process enters its child in the lists of all its sockets before it forks, and leaves a list when it closes its last
//! descriptor of the socket. A process that has ended without closing anything is recognised by its number and the
//! time of its start. So a list may name too many for a moment, but never too few: a socket is taken for held by one
//! process alone only if it is.
//!
//! A program that is started with `exec` keeps the number and the start of its process, and with them its place in the
//! lists; what it holds it may use unseen for as long as it lives.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use crate::runtime::now;

/// Most processes of a family at a time, and most sockets that are shared. Arbitrary: beyond, sockets stay on TCP. Pages
/// that are never touched cost nothing.
const PROCESSES: usize = 4096;
const SOCKETS: usize = 1 << 16;
/// Most holders of one socket. Arbitrary: beyond, it is taken for shared.
const HOLDERS: usize = 7;
/// A child that has not begun to live after this long never will: its fork has failed.
const BIRTH: Duration = Duration::from_secs(5);

#[repr(C)]
struct Process {
    /// 0: free. [`RESERVED`]: about to be forked. Read before `start`.
    pid: AtomicU32,
    /// Its start in the kernel's ticks since boot; of a child not yet born, when it was entered, in nanoseconds.
    start: AtomicU64,
}

/// No process has these numbers. [`CHANGING`]: the record is being written.
const RESERVED: u32 = u32::MAX;
const CHANGING: u32 = u32::MAX - 1;

#[repr(C)]
struct Shared {
    /// 0: free.
    used: AtomicU32,
    /// Index of a process, plus one.
    holders: [AtomicU32; HOLDERS],
}

#[repr(C)]
struct Region {
    processes: [Process; PROCESSES],
    sockets: [Shared; SOCKETS],
    /// Where the search for a free socket begins.
    next: AtomicU32,
}

static REGION: AtomicPtr<Region> = AtomicPtr::new(std::ptr::null_mut());
/// Index of this process, plus one; of its next child.
static SELF: AtomicU32 = AtomicU32::new(0);
static CHILD: AtomicU32 = AtomicU32::new(0);

/// A socket in the region, plus one. 0 for one that was never shared.
pub type Id = u32;

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
        // SAFETY: just mapped, and known to nobody.
        unsafe { libc::munmap(p.as_ptr().cast(), size_of::<Region>()) };
    }
    region()
}

impl Process {
    fn become_process(&self, pid: u32, start: u64) {
        self.pid.store(CHANGING, Release);
        self.start.store(start, Release);
        self.pid.store(pid, Release);
    }
}

impl Region {
    fn process(&self, number: u32) -> Option<&Process> {
        self.processes.get(number.checked_sub(1)? as usize)
    }

    fn socket(&self, id: Id) -> Option<&Shared> {
        self.sockets.get(id.checked_sub(1)? as usize)
    }

    /// Takes a free record of a process; its number.
    fn enter(&self, pid: u32, start: u64) -> Option<u32> {
        for (i, p) in self.processes.iter().enumerate() {
            let old = p.pid.load(Acquire);
            let free = old == 0 || !is_alive(old, p.start.load(Acquire));
            if free && p.pid.compare_exchange(old, CHANGING, AcqRel, Relaxed).is_ok() {
                p.become_process(pid, start);
                return Some(i as u32 + 1);
            }
        }
        None
    }

    fn lives(&self, number: u32) -> bool {
        self.process(number).is_some_and(|p| is_alive(p.pid.load(Acquire), p.start.load(Acquire)))
    }
}

fn is_alive(pid: u32, start: u64) -> bool {
    match pid {
        0 => false,
        CHANGING => true,
        RESERVED => now().as_nanos().saturating_sub(start) < BIRTH.as_nanos() as u64,
        pid => started(pid) == Some(start),
    }
}

/// When a process was started, in ticks since boot. `None` if there is none, or it has ended and is only waited for.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // proc(5): the state is field 3, the start field 22.
    (!matches!(state, "Z" | "X" | "x")).then(|| fields.nth(18)?.parse().ok())?
}

/// Before a fork: enters the child. `false` if it cannot be: whatever it inherits is then shared for good.
pub fn before_fork() -> bool {
    CHILD.store(0, Relaxed);
    let Some(region) = found() else { return false };
    if SELF.load(Relaxed) == 0 {
        let pid = std::process::id();
        let Some(number) = started(pid).and_then(|start| region.enter(pid, start)) else { return false };
        SELF.store(number, Relaxed);
    }
    let Some(child) = region.enter(RESERVED, now().as_nanos()) else { return false };
    CHILD.store(child, Relaxed);
    true
}

/// After a fork, in the child.
pub fn after_fork_child() {
    let number = CHILD.swap(0, Relaxed);
    SELF.store(number, Relaxed);
    if let Some(process) = region().and_then(|r| r.process(number)) {
        let pid = std::process::id();
        process.become_process(pid, started(pid).unwrap_or(0));
    }
}

/// Before a fork, after [`before_fork`]: the child will hold this socket too. Returns its place, `None` if there is none.
pub fn share(id: Id) -> Option<Id> {
    let region = region()?;
    let (me, child) = (SELF.load(Relaxed), CHILD.load(Relaxed));
    if child == 0 {
        return None;
    }
    let id = if region.socket(id).is_some() { id } else { place(region)? };
    let socket = region.socket(id)?;
    (join(region, socket, me) && join(region, socket, child)).then_some(id)
}

fn place(region: &Region) -> Option<Id> {
    for _ in 0..SOCKETS {
        let i = region.next.fetch_add(1, Relaxed) as usize % SOCKETS;
        let socket = &region.sockets[i];
        if socket.used.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
            socket.holders.iter().for_each(|h| h.store(0, Relaxed));
            return Some(i as u32 + 1);
        }
    }
    None
}

fn join(region: &Region, socket: &Shared, process: u32) -> bool {
    if socket.holders.iter().any(|h| h.load(Acquire) == process) {
        return true;
    }
    socket.holders.iter().any(|h| {
        let old = h.load(Acquire);
        (old == 0 || !region.lives(old)) && h.compare_exchange(old, process, AcqRel, Relaxed).is_ok()
    })
}

/// This process has closed its last descriptor of the socket.
pub fn leave(id: Id) {
    let Some((region, socket)) = region().and_then(|r| Some((r, r.socket(id)?))) else { return };
    let me = SELF.load(Relaxed);
    for holder in &socket.holders {
        let _ = holder.compare_exchange(me, 0, AcqRel, Relaxed);
    }
    if !socket.holders.iter().any(|h| region.lives(h.load(Acquire))) {
        socket.used.store(0, Release);
    }
}

/// Whether no other process of the family holds the socket.
pub fn holds_alone(id: Id) -> bool {
    let Some((region, socket)) = region().and_then(|r| Some((r, r.socket(id)?))) else { return false };
    let me = SELF.load(Relaxed);
    socket.holders.iter().all(|h| {
        let holder = h.load(Acquire);
        holder == 0 || holder == me || !region.lives(holder)
    })
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
        assert!(!holds_alone(kept), "the child holds it");
        assert!(holds_alone(left), "the child has closed it");
        // SAFETY: the child is ours.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        wait(pid);
        assert!(holds_alone(kept), "the child is dead");
        leave(kept);
        leave(left);
    }
}
