//! Which processes hold a socket without being entered in the [`family`](crate::family): programs that this process has
//! started, what these start in turn, and processes that have sent the socket here. They need not have the library.
//!
//! A connection leaves its link before such a process gets its socket ([`lend`]), because that process may use it unseen.
//! It may be promoted again once none of them holds the socket. Only the kernel knows that, and it tells by
//! `/proc/<pid>/fd`. The helper thread searches there ([`Search`]) when a connection is due for promotion. The search
//! finds a holder or proves that there is none:
//!
//! * It lists the processes again until a list names no new one, because a holder may start another process and end
//!   before it is visited.
//! * A process whose descriptors may not be read counts as a holder if it may have got the socket: if it is younger than
//!   the loan, or if it is the process that has sent the socket.
//! * A search that cannot be completed proves nothing.
//!
//! A holder that was found is visited first the next time, so a program that keeps a socket costs one look at its
//! descriptors for each attempt. One search serves all connections that are due.
//!
//! Not seen: a socket that is on its way in a message to a third process.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use netacc_device::Instant;
use netacc_proto::Reason;
use parking_lot::Mutex;

use crate::family::{self, Others};
use crate::ops::io;
use crate::runtime::{self, now, Runtime};
use crate::socket::Socket;
use crate::table::{self, Entry};

/// Processes that are visited before the helper does something else. Arbitrary: one takes some tens of microseconds.
const SLICE: usize = 16;
/// Most lists of processes for one search. Arbitrary: beyond, processes start and end all the time.
const MAX_LISTS: u32 = 16;
/// The share of the helper's time that searches may take: one in so many.
const TIME_SHARE: u32 = 10;

/// Where a socket came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Another process, with this number; 0 if it is in a namespace that this one does not see.
    Process(u32),
    /// This program was started with it.
    Starter,
}

/// What a connection knows of its unseen holders.
#[derive(Default)]
pub struct Loans {
    /// How often the socket was given away since it was last known to be held by no unseen process.
    count: AtomicU32,
    /// When it was first given away, in the kernel's ticks since boot.
    since: AtomicU64,
    /// The process that has sent the socket; 0 if there is none.
    sender: AtomicU32,
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
            Sender::Process(pid) => self.sender.store(pid, Ordering::Relaxed),
            // Any process may have it: whoever has started this one may have got it in any way.
            Sender::Starter => self.since.store(0, Ordering::Relaxed),
        }
    }

    /// How often it was given away; 0 if no unseen process holds it.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// A forked child's copy. The child learns from the family of what is lent later.
    pub fn take_over(&self, from: &Loans) {
        self.count.store(from.count(), Ordering::Relaxed);
        self.since.store(from.since.load(Ordering::Relaxed), Ordering::Relaxed);
        self.sender.store(from.sender.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Asks the helper to search for holders.
    pub fn want_search(&self, rt: &Runtime) {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            rt.search_holders();
        }
    }

    /// Whether a process whose descriptors may not be read has to be taken for a holder.
    fn suspects(&self, pid: u32) -> bool {
        let sender = self.sender.load(Ordering::Relaxed);
        pid == sender || age_of(pid).is_none_or(|start| start >= self.since.load(Ordering::Relaxed))
    }
}

/// Brings connections back to the kernel because processes that do not enter themselves anywhere are about to get their
/// sockets. They may be promoted again once none of these processes holds the socket.
pub fn lend(entries: &[Arc<Entry>]) {
    let socks = || {
        entries.iter().filter_map(|entry| match &**entry {
            Entry::Stream(sock) => Some(sock),
            _ => None,
        })
    };
    let rt = runtime::get();
    for sock in socks() {
        sock.loans.add();
        family::lend(sock.family.load(Ordering::Relaxed));
        let (Some(cell), Some((rt, endpoint))) = (&sock.stream, rt.and_then(|rt| Some((rt, rt.endpoint()?)))) else {
            continue;
        };
        rt.share(cell);
        sock.promotion.begin_again(sock.operations.load(Ordering::Relaxed));
        // All begin before any is waited for: the peers answer at the same time.
        let mut guard = cell.lock(endpoint);
        if !guard.proto().is_plain() {
            guard.demote(Reason::Shared);
            guard.progress_anchor(false);
        }
    }
    for sock in socks() {
        io::bring_back(sock, Reason::Shared);
    }
}

/// Searches that connections have asked for. Only the helper looks inside.
#[derive(Default)]
pub(crate) struct Searches {
    asked: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Search>,
    not_before: Option<Instant>,
}

impl Searches {
    /// Some connection wants one.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    /// Whether one is to begin now.
    pub(crate) fn is_due(&self) -> bool {
        self.asked.load(Ordering::SeqCst) && self.state.lock().not_before.is_none_or(|at| at <= now())
    }

    /// The helper: does a part of what is to be done. When to come again.
    pub(crate) fn advance(&self) -> Option<Instant> {
        let begun = now();
        let mut state = self.state.lock();
        if state.current.is_none() {
            if !self.asked.load(Ordering::SeqCst) {
                return None;
            }
            if let Some(at) = state.not_before.filter(|at| *at > begun) {
                return Some(at);
            }
            self.asked.store(false, Ordering::SeqCst);
            state.current = Search::begin();
        }
        let search = state.current.as_mut()?;
        let done = search.advance();
        search.spent += now().saturating_since(begun);
        if !done {
            return Some(begun);
        }
        let spent = search.spent;
        state.current = None;
        state.not_before = Some(now() + spent * TIME_SHARE);
        None
    }
}

/// A connection whose holders are searched for, and what was known of them when the search began.
struct Wanted {
    entry: Weak<Entry>,
    loans: u32,
    shares: u32,
    unseen: family::Unseen,
}

/// One search through the processes, for the holders of several sockets.
struct Search {
    /// By the number of the socket. A socket whose holder was found is taken out.
    wanted: HashMap<u64, Wanted>,
    pending: Vec<u32>,
    visited: HashSet<u32>,
    lists: u32,
    spent: Duration,
}

impl Search {
    /// For all connections that want one. `None` if their known holders still have them, or if nothing can be seen.
    fn begin() -> Option<Search> {
        let mut wanted = HashMap::new();
        let mut known: HashMap<u32, Option<HashSet<u64>>> = HashMap::new();
        for (fd, entry) in table::entries() {
            let Entry::Stream(sock) = &*entry else { continue };
            if sock.fd.load(Ordering::Relaxed) != fd || !sock.loans.wanted.swap(false, Ordering::AcqRel) {
                continue;
            }
            let (Some(cell), Some(number)) = (&sock.stream, socket_number(fd)) else { continue };
            let one = Wanted {
                entry: Arc::downgrade(&entry),
                loans: sock.loans.count(),
                shares: cell.shares(),
                unseen: family::unseen(sock.family.load(Ordering::Relaxed)),
            };
            let holder = sock.loans.holder.load(Ordering::Relaxed);
            let held = match known.entry(holder).or_insert_with(|| sockets_of(holder).unwrap_or_default()) {
                Some(sockets) => sockets.contains(&number),
                None => age_of(holder).is_some() && sock.loans.suspects(holder),
            };
            if !held {
                wanted.insert(number, one);
            }
        }
        let visited = HashSet::from([std::process::id()]);
        let search = Search { wanted, pending: Vec::new(), visited, lists: 0, spent: Duration::ZERO };
        (!search.wanted.is_empty() && sees_processes()).then_some(search)
    }

    /// Visits some processes. Whether the search is over.
    fn advance(&mut self) -> bool {
        if self.pending.is_empty() {
            self.lists += 1;
            let Some(all) = processes() else { return true };
            self.pending = all.into_iter().filter(|pid| self.visited.insert(*pid)).collect();
            if self.pending.is_empty() {
                self.wanted.values().for_each(Wanted::note_alone);
                return true;
            }
            if self.lists > MAX_LISTS {
                return true;
            }
        }
        for pid in self.pending.split_off(self.pending.len().saturating_sub(SLICE)) {
            match sockets_of(pid) {
                Ok(Some(sockets)) => {
                    self.wanted.retain(|number, one| !sockets.contains(number) || one.note_holder(pid))
                }
                Ok(None) => self.wanted.retain(|_, one| !one.suspects(pid) || one.note_holder(pid)),
                // Not even this process's own descriptors may be what fails: it proves nothing.
                Err(_) => return true,
            }
        }
        self.wanted.is_empty()
    }
}

impl Wanted {
    fn with<T>(&self, look: impl FnOnce(&Socket) -> T) -> Option<T> {
        match self.entry.upgrade().as_deref() {
            Some(Entry::Stream(sock)) => Some(look(sock)),
            _ => None,
        }
    }

    fn suspects(&self, pid: u32) -> bool {
        self.with(|sock| sock.loans.suspects(pid)).unwrap_or(false)
    }

    /// `pid` holds the socket. Always false: it is not to be searched for any more.
    fn note_holder(&self, pid: u32) -> bool {
        self.with(|sock| sock.loans.holder.store(pid, Ordering::Relaxed));
        false
    }

    /// No unseen process holds the socket, unless it was given away after the search has begun.
    fn note_alone(&self) {
        self.with(|sock| {
            let id = sock.family.load(Ordering::Relaxed);
            family::expel(id, &self.unseen);
            sock.loans.holder.store(0, Ordering::Relaxed);
            let _ = sock.loans.count.compare_exchange(self.loans, 0, Ordering::AcqRel, Ordering::Relaxed);
            if id == 0 || family::others(id) == Others::Absent {
                sock.end_sharing(self.shares);
                sock.publish();
            }
        });
    }
}

/// The number of the socket behind a descriptor.
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
    for entry in std::fs::read_dir("/proc").ok()? {
        pids.extend(entry.ok()?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Some(pids)
}

/// The numbers of the sockets that a process holds. `Ok(None)`: they may not be read.
fn sockets_of(pid: u32) -> Result<Option<HashSet<u64>>, ErrorKind> {
    let entries = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => entries,
        Err(error) => return unreadable(pid, &error),
    };
    let mut numbers = HashSet::new();
    for entry in entries {
        let link = match entry {
            Ok(entry) => std::fs::read_link(entry.path()),
            Err(error) => return unreadable(pid, &error),
        };
        let Ok(link) = link else { continue };
        let number = link.to_str().and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']'));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    Ok(Some(numbers))
}

/// What it means that the descriptors of a process could not be read.
fn unreadable(pid: u32, error: &std::io::Error) -> Result<Option<HashSet<u64>>, ErrorKind> {
    match error.raw_os_error() {
        // It has ended, or is a thread of the kernel, which has no descriptors.
        Some(libc::ENOENT | libc::ESRCH) => Ok(Some(HashSet::new())),
        Some(libc::EACCES | libc::EPERM) if is_kernel_thread(pid) => Ok(Some(HashSet::new())),
        Some(libc::EACCES | libc::EPERM) => Ok(None),
        _ => Err(error.kind()),
    }
}

/// The fields of a process in proc(5) from the third on.
fn stat_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    Some(stat.rsplit_once(')')?.1.to_owned())
}

fn is_kernel_thread(pid: u32) -> bool {
    /// `PF_KTHREAD` in linux/sched.h.
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let flags = stat_of(pid).and_then(|stat| stat.split_ascii_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// When a process was started, in ticks since boot.
fn age_of(pid: u32) -> Option<u64> {
    stat_of(pid)?.split_ascii_whitespace().nth(19)?.parse().ok()
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
