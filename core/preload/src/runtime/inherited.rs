//! Connections that a forked child has inherited, and that its parent has on a link: the child requests that the parent
//! demotes them to the anchor, which both processes hold.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_driver::StreamCell;
use netacc_proto::Reason;

use super::Runtime;
use crate::os::clock::{now, timespec};
use crate::os::errno::errno;
use crate::os::{own, poll, real};

/// Children can request streams with a number below this.
const SLOTS: usize = 1 << 16;

/// Pages shared with all children.
#[repr(C)]
struct Shared {
    /// Per stream number, whether a child requests the stream.
    words: [AtomicU32; SLOTS],
    /// How many requests there have been.
    made: AtomicU32,
}

/// The requests of this process's children.
pub(crate) struct Requests {
    shared: Option<NonNull<Shared>>,
    /// How many requests had been made when all of them were served.
    served: AtomicU32,
}

// SAFETY: only atomics are reached through the pointer, and the mapping is never removed.
unsafe impl Send for Requests {}
// SAFETY: as above.
unsafe impl Sync for Requests {}

impl Requests {
    pub(crate) fn new() -> Requests {
        // SAFETY: a fresh anonymous mapping.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let shared = (p != libc::MAP_FAILED).then(|| NonNull::new(p.cast())).flatten();
        Requests { shared, served: AtomicU32::new(0) }
    }

    fn shared(&self) -> Option<&Shared> {
        // SAFETY: the mapping is zeroed, live for ever, and holds atomics only.
        self.shared.map(|shared| unsafe { shared.as_ref() })
    }

    fn word(&self, number: u32) -> Option<&AtomicU32> {
        self.shared()?.words.get(number as usize)
    }

    /// How many requests there have been, if some of them may not have been served. Mostly there are none, and the parent's
    /// streams, of which there may be thousands, need not be searched for them.
    fn unserved(&self) -> Option<u32> {
        let made = self.shared()?.made.load(Ordering::SeqCst);
        (made != self.served.load(Ordering::Relaxed)).then_some(made)
    }

    /// So many requests have been served.
    fn end(&self, made: u32) {
        self.served.store(made, Ordering::Relaxed);
    }

    /// A child has made a request.
    fn count(&self) {
        if let Some(shared) = self.shared() {
            shared.made.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Changes a word in one step: a child may change it at the same time.
    fn update(&self, number: u32, change: impl Fn(u32) -> u32) {
        if let Some(word) = self.word(number) {
            let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |value| Some(change(value)));
        }
    }
}

/// In a word: a child requests the stream; it is a plain socket now, or gone. Above them the use of the number: a
/// number is used for one stream after another.
const WANTED: u32 = 1;
const PLAIN: u32 = 2;
const USE: u32 = 4;

/// Descriptors by which a child sends requests to its parents, the next one and those before: a child that closes
/// everything, before it starts a program, keeps them. 0: none. Arbitrary: no longer lines of processes are known that
/// all use sockets before they fork.
static WAYS: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];

/// See [`WAYS`].
pub(crate) fn ways_to_parents() -> impl Iterator<Item = c_int> {
    WAYS.iter().map(|way| way.load(Ordering::Relaxed)).filter(|fd| *fd > 0)
}

/// The child of a fork may also send requests to `fd`'s process: its parent.
pub(crate) fn add_way(fd: c_int) {
    if let Some(free) = WAYS.iter().find(|way| way.load(Ordering::Relaxed) == 0) {
        free.store(fd, Ordering::Relaxed);
    }
}

/// No requests are sent from now on: the caller closes the descriptors.
pub(crate) fn take_ways() -> Vec<c_int> {
    WAYS.iter().map(|way| way.swap(0, Ordering::SeqCst)).filter(|fd| *fd > 0).collect()
}

/// A way to request an inherited stream from the parent.
pub struct Inherited {
    number: u32,
    /// The word when no child requests it.
    idle: u32,
    parent: &'static Runtime,
    done: AtomicBool,
}

impl Inherited {
    /// The parent, whose runtime is `parent`, has `cell` on a link.
    pub(crate) fn of(cell: &StreamCell, parent: &'static Runtime) -> Inherited {
        let word = parent.child_requests.word(cell.number()).map_or(0, |word| word.load(Ordering::SeqCst));
        Inherited::new(cell.number(), word & !(USE - 1), parent)
    }

    /// The same for a child of this process, if this process has made no request yet: the child sends its request to
    /// the same process. `None`: the descriptor is known to be a plain socket.
    pub(crate) fn passed_on(&self) -> Option<Inherited> {
        (!self.is_done()).then(|| Inherited::new(self.number, self.idle, self.parent))
    }

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
        let mut answered = true;
        if let Some(word) = self.parent.child_requests.word(self.number) {
            let wanted = self.idle | WANTED;
            let _ = word.compare_exchange(self.idle, wanted, Ordering::SeqCst, Ordering::SeqCst);
            self.parent.child_requests.count();
            self.parent.helper.kick();
            let parent = watch_process(self.parent.pid);
            let begun = now();
            while word.load(Ordering::SeqCst) == wanted {
                // Its answer may have come just before its end.
                let dead = parent.has_ended(Duration::from_micros(100)) && word.load(Ordering::SeqCst) == wanted;
                if dead || now().saturating_since(begun) > ANSWER_PATIENCE {
                    answered = false;
                    break;
                }
            }
            // In vain.
            let _ = word.compare_exchange(wanted, self.idle, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.done.store(true, Ordering::Release);
        answered
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
    let mut is_gone = false;
    let fd = own::make_high(|| {
        // SAFETY: no pointers. The descriptor closes on exec.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) as c_int };
        is_gone = fd < 0 && errno() == libc::ESRCH;
        fd
    });
    match fd {
        Some(fd) => Watched::By(fd),
        None if is_gone => Watched::Gone,
        None => Watched::Unknown,
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
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        poll::wait(&mut fds, &timespec(patience), std::ptr::null()) > 0
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
            self.child_requests.update(cell.number(), |word| (word & !(USE - 1)).wrapping_add(USE));
        }
    }

    /// Parent: demotes the streams that children request. Returns whether some children have to wait. Called by the
    /// helper.
    pub(crate) fn serve_children(&self) -> bool {
        let Some((endpoint, made)) = self.endpoint().zip(self.child_requests.unserved()) else { return false };
        let mut waiting = false;
        for cell in endpoint.streams().into_iter().filter(|c| c.is_shared()) {
            let Some(word) = self.child_requests.word(cell.number()) else { continue };
            if word.load(Ordering::SeqCst) & WANTED == 0 {
                continue;
            }
            // The peer's messages on the link may not have been polled.
            cell.take_in(endpoint);
            let mut guard = cell.lock(endpoint);
            let given_back = guard.change(|stream| {
                stream.demote(Reason::Shared);
                stream.progress_anchor(false);
                // A stream that has ended and is kept will not become plain: the child uses the kernel's state.
                stream.proto().is_plain() && stream.has_replay(now()) || stream.is_kept()
            });
            // Still locked: it must not be promoted in between.
            if given_back {
                self.given_up(&cell);
            }
            waiting |= !given_back;
        }
        if !waiting {
            self.child_requests.end(made);
        }
        waiting
    }

    /// Parent, about to end or to be replaced by another program, after which it answers no requests: children need not
    /// send any, whatever the state of the stream.
    pub fn release_children(&self, cell: &Arc<StreamCell>) {
        let Some(endpoint) = self.endpoint().filter(|_| cell.is_shared()) else { return };
        // Locked, as above.
        let _guard = cell.lock(endpoint);
        self.given_up(cell);
    }

    /// [`release_children`](Runtime::release_children) of all streams.
    pub(crate) fn release_all_children(&self) {
        let Some(endpoint) = self.endpoint() else { return };
        endpoint.streams().iter().for_each(|cell| self.release_children(cell));
    }

    /// Parent: the stream is a plain socket now, or closed here: children need not wait.
    pub fn given_up(&self, cell: &StreamCell) {
        if cell.is_shared() {
            self.child_requests.update(cell.number(), |word| word & !WANTED | PLAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a child's request were missed that comes while the parent serves those before it, or if the parent searched
    /// its streams again although there was none.
    #[test]
    fn the_parent_searches_after_each_request() {
        let requests = Requests::new();
        assert_eq!(requests.unserved(), None);
        requests.count();
        let made = requests.unserved().expect("a request");
        requests.count();
        requests.end(made);
        let made = requests.unserved().expect("the second request");
        requests.end(made);
        assert_eq!(requests.unserved(), None);
    }
}
