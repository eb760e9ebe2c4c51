//! The processes that hold a socket without being entered in the [`family`](crate::family): programs that this process
//! has started, programs that these start in turn, and processes that have sent the socket here. They need not have the
//! library.
//!
//! A connection leaves its link before such a process gets its socket ([`lend`](crate::leaving::lend)), because that
//! process may use it unseen. It may be promoted again once none of them holds the socket. A UDP socket leaves its rings and
//! comes back likewise ([`Sharing`](crate::datagram::Sharing)). Only the kernel has that information, and shows it in
//! `/proc/<pid>/fd`. The helper thread searches there (`search`) when a connection is due for promotion, or a UDP socket has
//! moved some datagrams. The search finds a holder or proves that there is none:
//!
//! * It lists the processes again until a list names no new one, because a holder may start another process and end
//!   before it is visited.
//! * A process whose descriptors may not be read, because it is another user's or has gained privileges, counts as a
//!   holder if it may have got the socket. It may have if it is the sender; or if it is younger than the loan, and
//!   descends from this process or the sender, or is in the session of one of them. If this program was started with
//!   the socket, its ancestors and all processes in its session may have got it.
//! * A search that cannot be completed proves nothing.
//!
//! A holder that was found is visited first the next time, so a program that keeps a socket costs one search of
//! its descriptors for each attempt. One search serves all connections that are due. The helper does other work in
//! between, also while it reads the descriptors of one process that has many. Each descriptor of a process that may be
//! read costs about six microseconds, so a connection comes back later beside processes with thousands of them: after
//! 0.1 s or more where there are 16,000.
//!
//! Not seen: a socket that is on its way in a message to a third process; a program that has gained privileges and left
//! both its parent and its session.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::runtime::Runtime;

pub(crate) mod search;
mod visit;

/// The origin of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Another process, with this number; 0 if it is in a namespace that this one does not see.
    Process(u32),
    /// This program was started with it.
    Starter,
}

/// A socket's information on its unseen holders.
#[derive(Default)]
pub struct Loans {
    /// How often the socket was given away since it was last known to be held by no unseen process.
    count: AtomicU32,
    /// When it was first given away, in the kernel's ticks since boot.
    since: AtomicU64,
    /// The process that has sent the socket, and its session; 0 if there is none.
    sender: AtomicU32,
    sender_session: AtomicU32,
    /// The process that a search has found to hold it; 0 if there is none.
    holder: AtomicU32,
    /// A search is wanted.
    wanted: AtomicBool,
}

impl Loans {
    /// The socket is about to be given to a process that does not enter itself anywhere.
    pub fn add(&self) {
        if self.count.fetch_add(1, Ordering::AcqRel) == 0 {
            self.since.store(ticks_since_boot(), Ordering::Relaxed);
        }
    }

    /// The socket came from another process, which may hold it still.
    pub fn add_received(&self, sender: Sender) {
        self.add();
        match sender {
            Sender::Process(pid) => {
                let session = Relations::of(pid).map_or(0, |sender| sender.session);
                self.sender_session.store(session, Ordering::Relaxed);
                self.sender.store(pid, Ordering::Relaxed);
            }
            // Any process may have it: the process that started this one may have got it in any way.
            Sender::Starter => self.since.store(0, Ordering::Relaxed),
        }
    }

    /// How often it was given away; 0 if no unseen process holds it.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// A forked child's copy. The child sees later loans in the family's records.
    pub fn take_over(&self, from: &Loans) {
        self.count.store(from.count(), Ordering::Relaxed);
        self.since.store(from.since.load(Ordering::Relaxed), Ordering::Relaxed);
        self.sender.store(from.sender.load(Ordering::Relaxed), Ordering::Relaxed);
        self.sender_session.store(from.sender_session.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Asks the helper to search for holders.
    pub fn want_search(&self, rt: &Runtime) {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            rt.search_holders();
        }
    }

    /// Whether a search is wanted; from now on none is.
    fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// The process that a search has found to hold it.
    fn holder(&self) -> Option<u32> {
        Some(self.holder.load(Ordering::Relaxed)).filter(|holder| *holder != 0)
    }

    fn record_holder(&self, pid: u32) {
        self.holder.store(pid, Ordering::Relaxed);
    }

    /// No unseen process holds it, unless it was given away since [`count`](Loans::count) returned `seen`.
    fn end(&self, seen: u32) {
        self.holder.store(0, Ordering::Relaxed);
        let _ = self.count.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether a process whose descriptors may not be read has to be taken for a holder; see the module.
    fn suspects(&self, pid: u32) -> bool {
        let sender = self.sender.load(Ordering::Relaxed);
        let Some(process) = Relations::of(pid) else { return false };
        if pid == sender {
            return true;
        }
        let own = std::process::id();
        let own_session = Relations::of(own).map(|own| own.session);
        let senders_session = (sender != 0).then(|| self.sender_session.load(Ordering::Relaxed));
        let same_session = [own_session, senders_session].contains(&Some(process.session));
        match self.since.load(Ordering::Relaxed) {
            0 => same_session || ancestors(own).any(|ancestor| ancestor == pid),
            since => {
                let descends = || ancestors(pid).any(|ancestor| ancestor == own || ancestor == sender);
                process.start >= since && (same_session || descends())
            }
        }
    }
}

/// The number of the socket behind a descriptor.
#[inline]
pub fn socket_number(fd: c_int) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the struct is writable.
    let rc = unsafe { libc::fstat(fd, stat.as_mut_ptr()) };
    // SAFETY: all-zero is valid, too.
    let stat = unsafe { stat.assume_init() };
    (rc == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// Whether `/proc` is there, and names processes as this one names itself.
fn sees_processes() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|own| own.to_str() == Some(&std::process::id().to_string()))
}

/// All processes; `None` if they cannot be listed.
fn processes() -> Option<Vec<u32>> {
    let mut pids = Vec::new();
    for name in netacc_descriptors::read_names("/proc").ok()? {
        pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Some(pids)
}

/// The public information of the kernel about a process; see proc(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Relations {
    /// One letter.
    state: u8,
    parent: u32,
    /// 0 if it was made outside this process's PID namespace. Two such sessions may be the same.
    session: u32,
    flags: u64,
    threads: u32,
    /// When it was started, in ticks since boot.
    start: u64,
}

impl Relations {
    fn of(pid: u32) -> Option<Relations> {
        Relations::parse(&netacc_descriptors::read_text(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Relations> {
        // The name, in parentheses, may contain any characters. The third field follows it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        Some(Relations {
            state: *field(3)?.as_bytes().first()?,
            parent: field(4)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start: field(22)?.parse().ok()?,
        })
    }

    /// It is a thread of the kernel; or all its threads have ended, and its parent has not waited for it.
    fn has_no_descriptors(&self) -> bool {
        /// `PF_KTHREAD` in linux/sched.h.
        const KERNEL_THREAD: u64 = 0x0020_0000;
        let has_ended = matches!(self.state, b'Z' | b'X') && self.threads <= 1;
        has_ended || self.flags & KERNEL_THREAD != 0
    }
}

/// The parent of a process, the parent of that, and so on.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    /// Arbitrary: no tree of processes is as deep.
    const MOST: usize = 256;
    let parent = |pid: &u32| Relations::of(*pid).map(|process| process.parent).filter(|parent| *parent != 0);
    std::iter::successors(parent(&pid), parent).take(MOST)
}

fn ticks_since_boot() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is writable; no pointers.
    let per_second = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut ts);
        libc::sysconf(libc::_SC_CLK_TCK).max(1) as u64
    };
    ts.tv_sec as u64 * per_second + ts.tv_nsec as u64 * per_second / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_are_read_whatever_the_name_is() {
        let stat = "7 (a) b (c)) S 3 7 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";
        let relations = Relations { state: b'S', parent: 3, session: 5, flags: 4_194_560, threads: 1, start: 12345 };
        assert_eq!(Relations::parse(stat), Some(relations));
        for bad in ["", "7 (a", "7 (a)", "7 (a) S 3 7 5", "7 (a) S x 7 5 0 -1 0 1 0 0 0 0 0 0 0 20 0 1 0 1 1"] {
            assert_eq!(Relations::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn own_process_and_ancestors_are_found() {
        let own = std::process::id();
        assert!(sees_processes());
        assert!(processes().is_some_and(|all| all.contains(&own)));
        // SAFETY: no arguments.
        let parent = unsafe { libc::getppid() } as u32;
        assert_eq!(ancestors(own).next(), Some(parent));
    }

    // Breaks if a zombie kept its socket from links until it is waited for, or one whose other threads live did not.
    #[test]
    fn an_ended_process_holds_nothing() {
        let child = std::process::Command::new("/bin/true").spawn().expect("a child").id();
        // SAFETY: the struct is writable, and the child is this test's; it is left to be waited for.
        let waited = unsafe {
            let mut info = std::mem::zeroed();
            libc::waitid(libc::P_PID, child, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        let zombie = Relations::of(child).expect("it is there still");
        assert!(waited == 0 && zombie.has_no_descriptors());
        assert!(!Relations { threads: 2, ..zombie }.has_no_descriptors());
        assert!(!Relations { state: b'S', ..zombie }.has_no_descriptors());
        // SAFETY: as above.
        assert_eq!(unsafe { libc::waitpid(child as libc::pid_t, std::ptr::null_mut(), 0) }, child as libc::pid_t);
    }

    #[test]
    fn a_process_is_suspected_if_it_may_have_got_the_socket() {
        let own = std::process::id();
        // SAFETY: no arguments.
        let parent = unsafe { libc::getppid() } as u32;
        let lent = Loans::default();
        lent.add();
        assert!(!lent.suspects(parent), "it is older");
        lent.since.store(1, Ordering::Relaxed);
        assert!(lent.suspects(own), "its session is ours");
        let sent = Loans::default();
        sent.add_received(Sender::Process(parent));
        assert!(sent.suspects(parent));
        let inherited = Loans::default();
        inherited.add_received(Sender::Starter);
        assert!(inherited.suspects(parent));
        assert!(!inherited.suspects(u32::MAX - 1), "there is no such process");
    }
}
