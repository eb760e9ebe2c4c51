//! Fork. A link belongs to one process: the parent keeps it, and a child that uses an inherited descriptor asks the
//! parent to bring the stream back to the anchor, which both processes hold. The child then makes a stream of its own
//! of it, which may be promoted once no other process holds the descriptor (see [`family`]): a server that accepts,
//! forks, and closes in the parent, ends up accelerated in the child. A child that uses nothing costs nothing.

use std::ptr::NonNull;

use super::*;
use crate::family;
use crate::os::clock::{now, timespec};
use crate::os::confinement;
use crate::os::own;
use crate::os::uses;
use crate::os::{access, kept, lingering};
use crate::settling;
use crate::socket::Socket;

/// Streams with a number below this can be asked for by children.
const SLOTS: usize = 1 << 16;

/// A page set shared with all children: per stream number, whether a child wants it back.
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

    /// Changes a word in one step: a child may change it at the same time.
    fn update(&self, number: u32, change: impl Fn(u32) -> u32) {
        if let Some(word) = self.word(number) {
            let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |value| Some(change(value)));
        }
    }
}

/// In a word: a child wants the stream back; it is a plain socket now, or gone. Above them the use of the number: a
/// number is used for one stream after another.
const WANTED: u32 = 1;
const PLAIN: u32 = 2;
const USE: u32 = 4;

/// Descriptors by which a child asks its parents, the next one and those before: a child that closes everything, before
/// it starts a program, keeps them. 0: none. Arbitrary: longer lines of processes that all have used sockets before
/// they forked are not known.
static WAYS: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];

/// See [`WAYS`].
pub(super) fn ways_to_parents() -> impl Iterator<Item = c_int> {
    WAYS.iter().map(|way| way.load(Ordering::Relaxed)).filter(|fd| *fd > 0)
}

/// Closes the ways to parents, which are asked for all that they still have first. Whether there were any.
pub(super) fn give_back_ways() -> bool {
    if ways_to_parents().next().is_none() {
        return false;
    }
    for (_, entry) in table::entries() {
        if let Entry::Stream(sock) = &*entry {
            sock.reclaim();
        }
    }
    let ways: Vec<c_int> = WAYS.iter().map(|way| way.swap(0, Ordering::SeqCst)).filter(|fd| *fd > 0).collect();
    let unused = uses::await_uses();
    for fd in ways.iter().filter(|_| unused) {
        // SAFETY: a descriptor of the library, by which nobody is asked any more.
        unsafe { real::close(*fd) };
    }
    unused
}

thread_local! {
    /// The descriptors of the backend, and those that threads and epoll instances have for their waits, at the fork that this
    /// thread is about to do: locks may be held in the child.
    static FDS: Cell<BackendFds> = const { Cell::new(BackendFds { own: Vec::new(), libraries: Vec::new() }) };

    /// The runtime whose helper does not work until this thread has forked.
    static HELD_UP: Cell<Option<&'static Runtime>> = const { Cell::new(None) };
}

/// Before fork: nothing may be half done, and the child enters the family as one more holder of each socket.
pub fn before_fork() {
    if confinement::is_confined() {
        return;
    }
    let known = family::before_fork();
    let rt = get().and_then(|rt| Some((rt, rt.endpoint()?)));
    for (_, entry) in table::entries() {
        let Entry::Stream(sock) = &*entry else { continue };
        match family::share(sock.family.load(Ordering::Relaxed)).filter(|_| known) {
            Some(id) => {
                if sock.family.swap(id, Ordering::Relaxed) != id && sock.loans.count() > 0 {
                    family::lend(id);
                }
            }
            None => {
                sock.note_reason(Reason::Shared);
                sock.keep_on_kernel();
            }
        }
        let (Some(cell), Some((rt, endpoint))) = (&sock.stream, rt) else { continue };
        rt.share(cell);
        let mut guard = cell.lock(endpoint);
        // The child sees a plain socket there, and writes; the marker would come behind that.
        guard.withdraw();
        let promoting = matches!(guard.proto().phase(), netacc_proto::Phase::Promoting);
        drop(guard);
        if promoting {
            // The peer may be waiting for its application to read, for as long as it likes.
            settling::demote(endpoint, cell, Reason::Shared, settling::SETTLE_DEADLINE);
        }
    }
    // Before locks are taken that the helper's work may need, and after the last wait for the helper.
    HELD_UP.set(get().filter(|rt| rt.helper.work.hold_up()));
    lingering::before_fork();
    // Last: the helper may be in the middle of a call.
    netacc_registry::before_fork();
    FDS.set(get().map_or_else(BackendFds::default, |rt| {
        let mut fds = rt.backend_fds();
        let helpers = rt.helper.fds();
        fds.own.extend(own::list().into_iter().filter(|fd| !helpers.contains(fd)));
        fds
    }));
}

/// After fork, or one that has failed, in the parent.
pub fn after_fork_parent() {
    if let Some(rt) = HELD_UP.take() {
        rt.helper.work.go_on();
    }
    if confinement::is_confined() {
        return;
    }
    netacc_registry::after_fork();
    lingering::after_fork_parent();
}

/// After fork, in the child: the device, the links and the helper stay with the parent.
pub fn after_fork_child() {
    if confinement::is_confined() {
        return;
    }
    HELD_UP.set(None);
    own::after_fork_child();
    access::fault::after_fork_child();
    netacc_registry::after_fork();
    lingering::after_fork_child();
    family::after_fork_child();
    let former = STARTING.swap(Box::into_raw(Box::default()), Ordering::AcqRel);
    if former != (&raw const FIRST_STARTING).cast_mut() {
        kept::keep(former);
    }
    let Some(rt) = get() else { return };
    kept::keep(rt);
    RUNTIME.store(std::ptr::null_mut(), Ordering::Release);
    HELPER_ASLEEP.store(false, Ordering::SeqCst);
    queues::after_fork_child();
    wait::after_fork_child();
    exit::after_fork_child();
    shortage::after_fork_child();
    let mut done: Vec<(*const Entry, Arc<Entry>)> = Vec::new();
    for (fd, entry) in table::entries() {
        table::remove(fd);
        // Several descriptors may name one socket.
        let known = done.iter().find(|(old, _)| *old == Arc::as_ptr(&entry)).map(|(_, new)| new.clone());
        let new = known.unwrap_or_else(|| Arc::new(inherit(rt, fd, &entry)));
        if let Entry::Epoll(epoll) = &*new {
            epoll.named(fd);
        }
        done.push((Arc::as_ptr(&entry), new.clone()));
        // The parent's objects stay in memory: locks inside them may be held for ever.
        kept::keep(entry);
        table::insert(fd, new);
    }
    let BackendFds { own, libraries } = FDS.take();
    for fd in own {
        // SAFETY: a descriptor of the library, inherited and of no use here.
        unsafe { real::close(fd) };
    }
    // Libraries that the backend has loaded know these numbers, here too.
    // SAFETY: the path is a C string.
    let nothing = if libraries.is_empty() { -1 } else { unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_CLOEXEC) } };
    for fd in libraries {
        // SAFETY: as above.
        unsafe { real::dup3(nothing, fd, libc::O_CLOEXEC) };
    }
    if nothing >= 0 {
        // SAFETY: just opened.
        unsafe { real::close(nothing) };
    }
    if let Some(free) = WAYS.iter().find(|way| way.load(Ordering::Relaxed) == 0) {
        free.store(rt.helper.kick_fd(), Ordering::Relaxed);
    }
    for fd in rt.helper.fds() {
        if fd != rt.helper.kick_fd() {
            // SAFETY: as above. The kick descriptor stays: it is how the parent is asked.
            unsafe { real::close(fd) };
        }
    }
}

/// What the child has in place of the parent's entry. Takes no lock that another thread of the parent may hold.
fn inherit(rt: &'static Runtime, fd: c_int, entry: &Entry) -> Entry {
    match entry {
        Entry::Stream(sock) => {
            let fresh = Socket::inherited_from(sock, fd);
            let kernel = Readiness::KERNEL_RX | Readiness::KERNEL_TX;
            if let Some(cell) = sock.stream.as_ref().filter(|s| !s.readiness().contains(kernel)) {
                let word = rt.fork.word(cell.number()).map_or(0, |w| w.load(Ordering::SeqCst));
                fresh.inherit(Inherited::new(cell.number(), word & !(USE - 1), rt));
            } else if let Some(unused) = sock.inherited().filter(|i| !i.is_done()) {
                // The parent has not used it either: the link is still with whom the parent would ask.
                fresh.inherit(Inherited::new(unused.number, unused.idle, unused.parent));
            }
            Entry::Stream(fresh)
        }
        Entry::Idle(l) => Entry::Idle(l.duplicate()),
        Entry::Epoll(e) => Entry::Epoll(e.after_fork(fd)),
        Entry::Ring(ring) => Entry::Ring(ring.clone()),
    }
}

/// A way to ask the parent for an inherited stream.
pub struct Inherited {
    number: u32,
    /// The word when nobody wants it.
    idle: u32,
    parent: &'static Runtime,
    done: AtomicBool,
}

impl Inherited {
    fn new(number: u32, idle: u32, parent: &'static Runtime) -> Inherited {
        Inherited { number, idle, parent, done: AtomicBool::new(false) }
    }

    /// Whether the descriptor is known to be a plain socket.
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Waits until the descriptor is a plain socket; false if it will not be. Bounded: a parent that was killed cannot
    /// answer, and its stream is lost.
    pub fn reclaim(&self) -> bool {
        if self.is_done() {
            return true;
        }
        let mut told = true;
        if let Some(word) = self.parent.fork.word(self.number) {
            let wanted = self.idle | WANTED;
            let _ = word.compare_exchange(self.idle, wanted, Ordering::SeqCst, Ordering::SeqCst);
            self.parent.helper.kick();
            let parent = watch_process(self.parent.pid);
            let begun = now();
            while word.load(Ordering::SeqCst) == wanted {
                // Its last word may have come just before its end.
                let dead = parent.has_ended(Duration::from_micros(100)) && word.load(Ordering::SeqCst) == wanted;
                if dead || now().saturating_since(begun) > ANSWER_PATIENCE {
                    told = false;
                    break;
                }
            }
            // In vain.
            let _ = word.compare_exchange(wanted, self.idle, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.done.store(true, Ordering::Release);
        told
    }
}

/// How long a child waits for the answer of a parent that lives: its helper takes well under a millisecond. Arbitrary.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// A process that may end.
enum Watched {
    /// A descriptor that becomes readable then.
    By(c_int),
    Gone,
    /// The kernel cannot, or has no descriptor left.
    Unknown,
}

fn watch_process(pid: u32) -> Watched {
    // SAFETY: no pointers. The descriptor closes on exec.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) as c_int } {
        fd if fd >= 0 => Watched::By(fd),
        _ if crate::os::errno::errno() == libc::ESRCH => Watched::Gone,
        _ => Watched::Unknown,
    }
}

impl Watched {
    /// Waits so long for the end; whether it has come.
    fn has_ended(&self, patience: Duration) -> bool {
        let fd = match self {
            Watched::Gone => return true,
            Watched::By(fd) => *fd,
            // Passed over below.
            Watched::Unknown => -1,
        };
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, and a valid time.
        unsafe { real::ppoll(&mut p, 1, &timespec(patience), std::ptr::null()) > 0 }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Watched::By(fd) = self {
            // SAFETY: opened by `watch_process`.
            unsafe { real::close(*fd) };
        }
    }
}

impl Runtime {
    /// Another process is about to hold the stream's socket.
    pub fn share(&self, cell: &StreamCell) {
        if !cell.share() {
            self.fork.update(cell.number(), |word| (word & !(USE - 1)).wrapping_add(USE));
        }
    }

    /// Parent: brings back what children want; whether some have to wait. Called by the helper.
    pub(super) fn serve_children(&self) -> bool {
        let Some(endpoint) = self.endpoint() else { return false };
        let mut waiting = false;
        for cell in endpoint.streams().into_iter().filter(|c| c.is_shared()) {
            let Some(word) = self.fork.word(cell.number()) else { continue };
            if word.load(Ordering::SeqCst) & WANTED == 0 {
                continue;
            }
            // Nobody may have looked for what the peer has said on the link.
            cell.take_in(endpoint);
            let mut guard = cell.lock(endpoint);
            guard.demote(Reason::Shared);
            guard.progress_anchor(false);
            // One that has ended and is kept will not become plain: the child finds what the kernel knows of it.
            let settled = guard.proto().is_plain() && guard.has_replay(now()) || guard.is_kept();
            // Still locked: it must not be promoted in between.
            if settled {
                self.given_up(&cell);
            }
            waiting |= !settled;
        }
        waiting
    }

    /// Parent, about to end or to be replaced by another program, and then to answer nobody: children need not ask, whatever
    /// has become of the stream.
    pub fn tell_children(&self, cell: &Arc<StreamCell>) {
        let Some(endpoint) = self.endpoint().filter(|_| cell.is_shared()) else { return };
        // Locked, as above.
        let _guard = cell.lock(endpoint);
        self.given_up(cell);
    }

    /// [`tell_children`](Runtime::tell_children) of all streams.
    pub(super) fn tell_all_children(&self) {
        let Some(endpoint) = self.endpoint() else { return };
        endpoint.streams().iter().for_each(|cell| self.tell_children(cell));
    }

    /// Parent: the stream is a plain socket now, or closed here: children need not wait.
    pub fn given_up(&self, cell: &StreamCell) {
        if cell.is_shared() {
            self.fork.update(cell.number(), |word| word & !WANTED | PLAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a child waited for a thread of its parent that was making a runtime when the parent forked.
    #[test]
    fn a_child_can_start_although_its_parent_was_starting() {
        let held = starting().lock();
        // SAFETY: the child calls what a child calls, and leaves.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            after_fork_child();
            let free = starting().try_lock().is_some();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!free)) };
        }
        drop(held);
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child found the lock held");
    }
}
