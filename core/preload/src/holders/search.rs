//! Searches for the processes that hold sockets unseen.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use netacc_device::Instant;

use super::{processes, sees_processes, socket_number, sockets_of};
use crate::family::{self, Others};
use crate::os::clock::now;
use crate::socket::Socket;
use crate::table::{self, Entry};

/// Searches that connections have requested. Only the helper has them.
pub(crate) struct Searches<'a> {
    /// A connection has requested a search.
    requested: &'a AtomicBool,
    current: Option<Search>,
    not_before: Option<Instant>,
}

impl Searches<'_> {
    /// None yet. Connections that need one set `requested`.
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

/// A connection whose holders are searched for, and its known holders when the search began.
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
                None => sock.loans.suspects(holder),
            };
            if !held {
                wanted.insert(number, one);
            }
        }
        let visited = HashSet::from([std::process::id()]);
        let search = Search { wanted, pending: Vec::new(), visited, lists: 0, spent: Duration::ZERO };
        (!search.wanted.is_empty() && sees_processes()).then_some(search)
    }

    /// Visits some processes. Returns whether the search is over.
    fn advance(&mut self) -> bool {
        if self.pending.is_empty() {
            self.lists += 1;
            let Some(all) = processes() else { return true };
            self.pending = all.into_iter().filter(|pid| self.visited.insert(*pid)).collect();
            if self.pending.is_empty() {
                self.wanted.values().for_each(Wanted::record_alone);
                return true;
            }
            if self.lists > MAX_LISTS {
                return true;
            }
        }
        for pid in self.pending.split_off(self.pending.len().saturating_sub(SLICE)) {
            match sockets_of(pid) {
                Ok(Some(sockets)) => {
                    self.wanted.retain(|number, one| !sockets.contains(number) || one.record_holder(pid))
                }
                Ok(None) => self.wanted.retain(|_, one| !one.suspects(pid) || one.record_holder(pid)),
                // If even this process's own descriptors cannot be read, the search proves nothing.
                Err(_) => return true,
            }
        }
        self.wanted.is_empty()
    }
}

impl Wanted {
    fn with<T>(&self, read: impl FnOnce(&Socket) -> T) -> Option<T> {
        match self.entry.upgrade().as_deref() {
            Some(Entry::Stream(sock)) => Some(read(sock)),
            _ => None,
        }
    }

    fn suspects(&self, pid: u32) -> bool {
        self.with(|sock| sock.loans.suspects(pid)).unwrap_or(false)
    }

    /// `pid` holds the socket. Always false: it is not to be searched for any more.
    fn record_holder(&self, pid: u32) -> bool {
        self.with(|sock| sock.loans.holder.store(pid, Ordering::Relaxed));
        false
    }

    /// No unseen process holds the socket, unless it was given away after the search has begun.
    fn record_alone(&self) {
        self.with(|sock| {
            let id = sock.family.load(Ordering::Relaxed);
            family::expel(id, &self.unseen);
            sock.loans.holder.store(0, Ordering::Relaxed);
            let _ = sock.loans.count.compare_exchange(self.loans, 0, Ordering::AcqRel, Ordering::Relaxed);
            if id == 0 || family::others(id) == Others::Absent {
                sock.end_sharing(self.shares);
                sock.publish();
                // Its earlier request without a result was long ago.
                sock.promotion.begin_again(sock.operations.load(Ordering::Relaxed));
            }
        });
    }
}

/// Processes that are visited before the helper does something else. Arbitrary: one takes some tens of microseconds.
const SLICE: usize = 16;

/// Most lists of processes for one search. Arbitrary: beyond, processes start and end all the time.
const MAX_LISTS: u32 = 16;

/// The share of the helper's time that searches may take: one in so many.
const TIME_SHARE: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if the helper slept for good although a connection has requested a search that is not to begin yet.
    #[test]
    fn a_search_requested_during_another_is_not_lost() {
        let requested = AtomicBool::new(true);
        let mut searches = Searches::new(&requested);
        assert_eq!(searches.advance(), None, "no connection wants it");
        let visited = HashSet::new();
        let empty =
            Search { wanted: HashMap::new(), pending: Vec::new(), visited, lists: MAX_LISTS, spent: Duration::ZERO };
        searches.current = Some(empty);
        requested.store(true, Ordering::SeqCst);
        let next = (0..1000).find_map(|_| searches.advance().filter(|_| searches.current.is_none()));
        assert!(next.is_some_and(|at| Some(at) == searches.not_before));
    }
}
