//! Fork and exec. A link belongs to one process: the parent keeps it, and a child that uses an inherited descriptor
//! asks the parent to bring the stream back to the anchor, which both processes hold.

use std::ptr::NonNull;

use super::*;
use crate::socket::Socket;

/// Counts forks in this line of processes; entries made before the last one are inherited.
pub static FORK_GENERATION: AtomicU32 = AtomicU32::new(0);

/// Streams with a number below this can be asked for by children.
const SLOTS: usize = 1 << 16;

/// A page set shared with all children: per stream, whether it is on a link, and whether a child wants it back.
pub(super) struct Shared {
    words: Option<NonNull<[AtomicU32; SLOTS]>>,
}

// SAFETY: only atomics are reached through the pointer, and the mapping is never removed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new() -> Shared {
        // SAFETY: a fresh anonymous mapping.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<[AtomicU32; SLOTS]>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        Shared { words: (p != libc::MAP_FAILED).then(|| NonNull::new(p.cast())).flatten() }
    }

    fn word(&self, number: u32) -> Option<&AtomicU32> {
        // SAFETY: the mapping is zeroed, live for ever, and holds atomics only.
        self.words.and_then(|w| unsafe { w.as_ref() }.get(number as usize))
    }
}

/// What a child wrote into a stream's word: bring it back.
const WANTED: u32 = 1;
/// What the parent answers: it is a plain socket now.
const PLAIN: u32 = 2;

/// Before fork: nothing may be half done, and what is linked now may be shared from now on.
pub fn before_fork() {
    let Some(endpoint) = get().and_then(Runtime::endpoint) else { return };
    for cell in endpoint.streams() {
        cell.mark_shared();
        let guard = cell.lock(endpoint);
        let promoting = matches!(guard.proto().phase(), netacc_proto::Phase::Promoting);
        drop(guard);
        if promoting {
            wait::until_settled(endpoint, &cell);
        }
    }
}

/// After fork, in the parent.
pub fn after_fork_parent() {}

/// After fork, in the child: the device, the links and the helper stay with the parent.
pub fn after_fork_child() {
    FORK_GENERATION.fetch_add(1, Ordering::Relaxed);
    let Some(rt) = get() else { return };
    RUNTIME.store(std::ptr::null_mut(), Ordering::Release);
    HELPER_ASLEEP.store(false, Ordering::SeqCst);
    if STARTING.is_locked() {
        // SAFETY: held by another thread of the parent, which does not exist here.
        unsafe { STARTING.force_unlock() };
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    for (fd, entry) in table::entries(limit.rlim_cur.min(table::MAX_FDS as u64) as c_int) {
        table::remove(fd);
        let replacement = match &*entry {
            Entry::Stream(sock) => {
                let linked = sock
                    .stream
                    .as_ref()
                    .is_some_and(|s| !s.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX));
                let fresh = Socket::new(fd, None, Reason::Shared, sock.nonblocking.load(Ordering::Relaxed), u32::MAX);
                if linked {
                    if let Some(cell) = &sock.stream {
                        fresh.inherit(cell.number(), rt);
                    }
                }
                Entry::Stream(fresh)
            }
            Entry::Idle(l) => Entry::Idle(l.duplicate()),
            Entry::Epoll(e) => Entry::Epoll(e.after_fork()),
        };
        // The parent's objects stay in memory: locks inside them may be held for ever.
        std::mem::forget(entry);
        table::insert(fd, Arc::new(replacement));
    }
    for fd in rt.device_fds() {
        // SAFETY: a descriptor of the library, inherited and of no use here.
        unsafe { real::close(fd) };
    }
    for fd in rt.helper.fds() {
        if fd != rt.helper.kick_fd() {
            // SAFETY: as above. The kick descriptor stays: it is how the parent is asked.
            unsafe { real::close(fd) };
        }
    }
}

/// A way to ask the parent for an inherited stream.
pub struct Inherited {
    number: u32,
    parent: &'static Runtime,
    done: AtomicBool,
}

impl Inherited {
    pub(crate) fn new(number: u32, parent: &'static Runtime) -> Inherited {
        Inherited { number, parent, done: AtomicBool::new(false) }
    }

    /// Waits until the descriptor is a plain socket. Bounded: a dead parent cannot answer, and its stream is lost.
    pub fn reclaim(&self) {
        if self.done.load(Ordering::Acquire) {
            return;
        }
        if let Some(word) = self.parent.fork.word(self.number) {
            word.store(WANTED, Ordering::SeqCst);
            kick(self.parent.helper.kick_fd());
            // 5 s: arbitrary; the parent's helper answers in well under a millisecond if it lives.
            for _ in 0..50_000 {
                if word.load(Ordering::SeqCst) == PLAIN {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        self.done.store(true, Ordering::Release);
    }
}

impl Runtime {
    /// Parent: brings back what children want. Called by the helper.
    pub(super) fn serve_children(&self) {
        let Some(endpoint) = self.endpoint() else { return };
        for cell in endpoint.streams().into_iter().filter(|c| c.is_shared()) {
            let Some(word) = self.fork.word(cell.number()) else { continue };
            if word.load(Ordering::SeqCst) == WANTED {
                let mut guard = cell.lock(endpoint);
                guard.demote(Reason::Shared);
                guard.progress_anchor(false);
                if guard.proto().is_plain() {
                    word.store(PLAIN, Ordering::SeqCst);
                }
            }
        }
    }
}

/// Before exec: what survives it must be a plain socket.
pub fn before_exec() {
    let Some(endpoint) = get().and_then(Runtime::endpoint) else { return };
    for cell in endpoint.streams() {
        let fd = cell.tag().load(Ordering::Relaxed);
        if fd == NO_FD {
            continue;
        }
        // SAFETY: no pointers.
        let flags = unsafe { real::fcntl(fd as c_int, libc::F_GETFD, 0) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            wait::demote(endpoint, &cell, Reason::Shared, DEMOTE_DEADLINE);
        }
    }
}

/// How long exec waits for a peer to answer. Arbitrary: a live peer's helper answers in well under a millisecond.
const DEMOTE_DEADLINE: Duration = Duration::from_secs(2);
