//! Searches for the processes that hold sockets unseen.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use netacc_device::Instant;

use super::visit::Visit;
use super::{processes, sees_processes, socket_number, Loans};
use crate::family::{self, Others};
use crate::os::clock::now;
use crate::table::{self, Entry};

/// Searches that sockets have requested. Only the helper has them.
pub(crate) struct Searches<'a> {
    /// A socket has requested a search.
    requested: &'a AtomicBool,
    current: Option<Search>,
    not_before: Option<Instant>,
}

impl Searches<'_> {
    /// None yet. Sockets that need one set `requested`.
    pub(crate) fn new(requested: &AtomicBool) -> Searches<'_> {
        Searches { requested, current: None, not_before: None }
    }

    /// Whether one is to begin now.
    pub(crate) fn is_due(&self) -> bool {
        self.requested.load(Ordering::SeqCst) && self.not_before.is_none_or(|at| at <= now())
    }

    /// The helper: does a part of the work. Returns when to call it again.
    pub(crate) fn advance(&mut self) -> Option<Instant> {
        let begun = now();
        if self.current.is_none() {
            if !self.requested.load(Ordering::SeqCst) {
                return None;
            }
            if let Some(at) = self.not_before.filter(|at| *at > begun) {
                return Some(at);
            }
            self.requested.store(false, Ordering::SeqCst);
            self.current = Search::begin();
        }
        let search = self.current.as_mut()?;
        let done = search.advance();
        search.spent += now().saturating_since(begun);
        if !done {
            return Some(begun);
        }
        let not_before = now() + search.spent * TIME_SHARE;
        self.current = None;
        self.not_before = Some(not_before);
        // A connection that made its request during the search kicked the helper too early, and does not kick it again.
        self.requested.load(Ordering::SeqCst).then_some(not_before)
    }
}

/// A socket whose holders are searched for, and its known holders when the search began.
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
    /// Processes to visit before the next list: at first those that an earlier search has found to hold one of the
    /// sockets.
    pending: Vec<u32>,
    visiting: Option<Visit>,
    visited: HashSet<u32>,
    lists: u32,
    spent: Duration,
}

impl Search {
    /// For all sockets that want one. `None` if there are none, or if nothing can be seen.
    fn begin() -> Option<Search> {
        let mut wanted = HashMap::new();
        let mut holders = HashSet::new();
        for (fd, entry) in table::entries() {
            let Some((loans, family)) = records(&entry).filter(|_| is_named_by(&entry, fd)) else { continue };
            let Some(number) = loans.take_wanted().then(|| socket_number(fd)).flatten() else { continue };
            holders.extend(loans.holder());
            let one = Wanted {
                entry: Arc::downgrade(&entry),
                loans: loans.count(),
                shares: shares(&entry),
                unseen: family::unseen(family),
            };
            wanted.insert(number, one);
        }
        let search = Search::of(wanted, holders);
        (!search.wanted.is_empty() && sees_processes()).then_some(search)
    }

    fn of(wanted: HashMap<u64, Wanted>, mut holders: HashSet<u32>) -> Search {
        let own = std::process::id();
        holders.remove(&own);
        let pending = holders.iter().copied().collect();
        holders.insert(own);
        Search { wanted, pending, visiting: None, visited: holders, lists: 0, spent: Duration::ZERO }
    }

    /// Does a part of the work. Returns whether the search is over.
    fn advance(&mut self) -> bool {
        let mut left = PART;
        while left > 0 {
            let going_on = match (self.visiting.take(), self.pending.pop()) {
                (Some(visit), next) => {
                    self.pending.extend(next);
                    left -= self.go_on_with(visit, left);
                    true
                }
                (None, Some(pid)) => {
                    left = left.saturating_sub(PROCESS);
                    self.begin_with(pid)
                }
                (None, None) => self.list_processes(),
            };
            if !going_on || self.wanted.is_empty() {
                return true;
            }
        }
        false
    }

    /// Reads at most so many descriptors of a process. Returns how many it has read, or 1 if there were none.
    fn go_on_with(&mut self, mut visit: Visit, most: usize) -> usize {
        let (pid, mut read) = (visit.pid, 0);
        for number in visit.by_ref().take(most) {
            read += 1;
            if let Some(one) = number.and_then(|number| self.wanted.remove(&number)) {
                one.record_holder(pid);
            }
        }
        if read == most {
            self.visiting = Some(visit);
        }
        read.max(1)
    }

    /// Begins to visit a process. Returns false if the search proves nothing any more.
    fn begin_with(&mut self, pid: u32) -> bool {
        match Visit::begin(pid) {
            Ok(Some(visit)) => self.visiting = Some(visit),
            Ok(None) => self.wanted.retain(|_, one| {
                let suspected = one.suspects(pid);
                if suspected {
                    one.record_holder(pid);
                }
                !suspected
            }),
            // If even this process's own descriptors cannot be read, the search proves nothing.
            Err(_) => return false,
        }
        true
    }

    /// Lists the processes that are still to be visited. Returns whether there are any.
    fn list_processes(&mut self) -> bool {
        self.lists += 1;
        let Some(all) = processes() else { return false };
        self.pending = all.into_iter().filter(|pid| self.visited.insert(*pid)).collect();
        if self.pending.is_empty() {
            self.wanted.values().for_each(Wanted::record_alone);
        }
        !self.pending.is_empty() && self.lists <= MAX_LISTS
    }
}

impl Wanted {
    fn with<T>(&self, read: impl FnOnce(&Entry, &Loans, family::Id) -> T) -> Option<T> {
        let entry = self.entry.upgrade()?;
        let (loans, family) = records(&entry)?;
        Some(read(&entry, loans, family))
    }

    fn suspects(&self, pid: u32) -> bool {
        self.with(|_, loans, _| loans.suspects(pid)).unwrap_or(false)
    }

    fn record_holder(&self, pid: u32) {
        self.with(|_, loans, _| loans.record_holder(pid));
    }

    /// No unseen process holds the socket, unless it was given away after the search has begun.
    fn record_alone(&self) {
        self.with(|entry, loans, id| {
            family::expel(id, &self.unseen);
            loans.end(self.loans);
            match entry {
                Entry::Stream(sock) if id == 0 || family::others(id) == Others::Absent => {
                    sock.end_sharing(self.shares);
                    sock.publish();
                    // Its earlier request without a result was long ago.
                    sock.promotion.begin_again(sock.operations.load(Ordering::Relaxed));
                }
                Entry::Datagram(socket) => socket.sharing().look_up_soon(),
                _ => {}
            }
        });
    }
}

/// The information on the holders of a socket that other processes may hold: those that are entered nowhere, and the record in the
/// family. `None` for what is no such socket.
fn records(entry: &Entry) -> Option<(&Loans, family::Id)> {
    match entry {
        Entry::Stream(sock) if sock.stream.is_some() => Some((&sock.loans, sock.family.load(Ordering::Relaxed))),
        Entry::Datagram(socket) => Some((socket.sharing().loans(), socket.sharing().family())),
        _ => None,
    }
}

/// Whether the socket is to be searched for by `fd`: several descriptors may name it.
fn is_named_by(entry: &Entry, fd: c_int) -> bool {
    !matches!(entry, Entry::Stream(sock) if sock.fd.load(Ordering::Relaxed) != fd)
}

/// How often a stream was shared. A datagram socket counts for itself.
fn shares(entry: &Entry) -> u32 {
    match entry {
        Entry::Stream(sock) => sock.stream.as_ref().map_or(0, |cell| cell.shares()),
        _ => 0,
    }
}

/// Descriptors that are read before the helper does something else. Arbitrary: one takes some microseconds.
const PART: usize = 512;

/// The time to list the descriptors of a process, in descriptors that are read meanwhile. About right for a process with few.
const PROCESS: usize = 8;

/// Most lists of processes for one search. Arbitrary: beyond, processes start and end all the time.
const MAX_LISTS: u32 = 16;

/// The share of the helper's time that searches may take: one in so many.
const TIME_SHARE: u32 = 10;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    // Breaks if the helper slept for good although a connection has requested a search that is not to begin yet.
    #[test]
    fn a_search_requested_during_another_is_not_lost() {
        let requested = AtomicBool::new(true);
        let mut searches = Searches::new(&requested);
        assert_eq!(searches.advance(), None, "no connection wants it");
        let search = Search { lists: MAX_LISTS, ..Search::of(HashMap::new(), HashSet::new()) };
        searches.current = Some(search);
        requested.store(true, Ordering::SeqCst);
        let next = (0..1000).find_map(|_| searches.advance().filter(|_| searches.current.is_none()));
        assert!(next.is_some_and(|at| Some(at) == searches.not_before));
    }

    // Breaks if the helper read all descriptors of a process with many before it did anything else; or if it forgot the
    // rest of them.
    #[test]
    fn a_process_with_many_descriptors_is_visited_in_parts() {
        let sockets: Vec<_> = (0..PART).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
        // This process itself is not searched, so a child has them.
        // SAFETY: the child calls only functions that a child of a process with threads may call, and never returns.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    libc::pause();
                    libc::_exit(0)
                }
                child => child as u32,
            }
        };
        let wanted = |socket: &std::net::UdpSocket| {
            let number = socket_number(socket.as_raw_fd()).expect("a socket");
            let unseen = family::unseen(0);
            (number, Wanted { entry: Weak::new(), loans: 0, shares: 0, unseen })
        };
        let wanted = sockets.iter().map(wanted).collect();
        let mut search = Search { pending: vec![child], ..Search::of(wanted, HashSet::new()) };
        let over = search.advance();
        let left = search.wanted.len();
        let found = !over && search.advance();
        // SAFETY: the child is this test's, and has not been waited for.
        unsafe {
            libc::kill(child as libc::pid_t, libc::SIGKILL);
            libc::waitpid(child as libc::pid_t, std::ptr::null_mut(), 0);
        }
        assert!(!over && left > 0 && left < PART, "{left} are left");
        assert!(found && search.wanted.is_empty());
    }
}
