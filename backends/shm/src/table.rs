//! The rendezvous table: finds the process that holds an end of a TCP connection. Lives in a file that every process of
//! the user maps; everything in it may be garbage.
//!
//! Invariants:
//! * processes register and leave under the file's lock; publishing and looking up take no lock and no system call;
//! * a tuple entry belongs to `(slot, generation)` in its `value`; it is stale, and free for the taking, once that
//!   slot's generation moved on. So crashed processes leave nothing that grows;
//! * an entry is taken, and given back, by a compare-and-swap on `value`: only its holder can, so no process takes back
//!   an entry that another has put in its place. It becomes visible when `key` is stored after it, and `key` stays when
//!   it is given back; a reader loads `key`, `value`, `key` again;
//! * a slot is a seqlock, whose count is the generation: words of different processes are rejected;
//! * all probing is bounded by [`WINDOW`], every index is checked, and a wrong answer is only ever a hint.
//!
//! A key has two windows: one in the first entries of the table, and one in all others, which is needed once the first is
//! full. So hundreds of connections take a few pages of the table, and not each a page of its own.

#![expect(unsafe_code, reason = "a view of shared memory as atomics")]

use std::ops::{Deref, Range};
use std::sync::atomic::{self, Ordering::*};

use crate::map::FileMap;
use crate::sync::{fence, AtomicU64};

/// Processes that may be registered at once.
pub(crate) const SLOTS: usize = if cfg!(any(loom, miri)) { 2 } else { 4096 };
const ENTRIES: usize = if cfg!(any(loom, miri)) { 2 } else { 1 << 17 };
/// The first entries, each of which is tried before others. Arbitrary: enough for some thousand connections.
const FIRST: usize = if cfg!(any(loom, miri)) { 1 } else { 1 << 13 };
/// Entries checked for one key in each of its windows: a few cache lines.
const WINDOW: usize = if cfg!(any(loom, miri)) { 2 } else { 16 };
/// The first page has the magic number and nothing else.
const PAD: usize = if cfg!(any(loom, miri)) { 0 } else { 511 };

const MAGIC: u64 = 0x6e65_7461_6363_0001;

/// A registered process.
#[repr(C, align(64))]
#[derive(Default)]
struct Slot {
    /// Generation in the high half (only ever counts up), 1 in the low half while registered.
    state: AtomicU64,
    pid: AtomicU64,
    start_time: AtomicU64,
    pid_namespace: AtomicU64,
    token: [AtomicU64; 2],
    /// Generation in the high half, port for links from other hosts in the low half.
    link_port: AtomicU64,
    /// Generation in the high half if that process keeps the slot's lock.
    locked: AtomicU64,
}

#[repr(C)]
#[derive(Default)]
struct Entry {
    key: AtomicU64,
    /// Stream in the high half, then 16 bits of slot, then 16 bits of the slot's generation; 0 when free.
    value: AtomicU64,
}

/// The table itself.
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub(crate) struct Layout {
    magic: AtomicU64,
    _pad: [atomic::AtomicU64; PAD],
    slots: [Slot; SLOTS],
    entries: [Entry; ENTRIES],
}

/// Bytes of the table's file. Sparse.
pub(crate) const TABLE_BYTES: usize = std::mem::size_of::<Layout>();

/// A process as the table shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub slot: u32,
    /// Its number in its own PID namespace.
    pub pid: u32,
    pub pid_namespace: u64,
    pub token: [u64; 2],
}

/// The identity of a registered process, for distinguishing the dead from the living.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub pid: u32,
    pub start_time: u64,
    pub pid_namespace: u64,
    pub token: [u64; 2],
}

/// A registered process whose life is in question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    pub slot: u32,
    pub identity: Identity,
    /// It keeps the slot's lock while it lives.
    pub locked: bool,
}

/// The result of [`Layout::free_dead`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub live: usize,
    pub freed: usize,
}

/// The mapped table.
#[derive(Debug)]
pub(crate) struct Table(FileMap);

impl Table {
    /// `map` has at least [`TABLE_BYTES`].
    pub(crate) fn new(map: FileMap) -> Table {
        Table(map)
    }
}

impl Deref for Table {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        // SAFETY: `Layout` is made of atomics only; the size is checked by `view`.
        unsafe { self.0.view() }
    }
}

impl Layout {
    /// An empty one, outside of any file.
    #[cfg(all(test, any(loom, miri)))]
    pub(crate) fn empty() -> Layout {
        Layout {
            magic: AtomicU64::new(0),
            _pad: [const { atomic::AtomicU64::new(0) }; PAD],
            slots: std::array::from_fn(|_| Slot::default()),
            entries: std::array::from_fn(|_| Entry::default()),
        }
    }

    /// Marks a fresh file as a table; `false` if it is something else. Under the lock.
    pub(crate) fn check(&self) -> bool {
        let magic = &self.magic;
        magic.compare_exchange(0, MAGIC, AcqRel, Acquire).map_or_else(|m| m == MAGIC, |_| true)
    }

    /// Takes a free slot, or one whose process `is_dead`; returns it with its generation. Under the lock.
    pub(crate) fn register(&self, me: Identity, is_dead: impl Fn(Suspect) -> bool) -> Option<(u32, u16)> {
        // A dead process's slot before a free one, so that crashes leave no more slots than necessary. Slots that were
        // never used come last: the search ends there.
        let slots = &self.slots;
        let used = slots.iter().position(|s| s.state.load(Acquire) == 0).unwrap_or(SLOTS);
        let taken = |s: &Slot| s.state.load(Acquire) as u32 != 0;
        let dead = (0..).zip(&slots[..used]).position(|(index, s)| taken(s) && is_dead(s.suspect(index)));
        let index = dead.or_else(|| slots.iter().position(|s| !taken(s)))?;
        let slot = &slots[index];
        let generation = next_generation(slot.state.load(Acquire));
        slot.state.store(u64::from(generation) << 32, Relaxed);
        fence(Release);
        slot.pid.store(u64::from(me.pid), Relaxed);
        slot.start_time.store(me.start_time, Relaxed);
        slot.pid_namespace.store(me.pid_namespace, Relaxed);
        slot.token[0].store(me.token[0], Relaxed);
        slot.token[1].store(me.token[1], Relaxed);
        slot.state.store(u64::from(generation) << 32 | 1, Release);
        Some((index as u32, generation))
    }

    /// Frees a slot that still is of `generation`. Its entries are stale from now on.
    pub(crate) fn unregister(&self, slot: u32, generation: u16) {
        if let Some(s) = self.slots.get(slot as usize) {
            let live = u64::from(generation) << 32 | 1;
            let _ = s.state.compare_exchange(live, u64::from(generation) << 32, AcqRel, Acquire);
        }
    }

    /// Frees the slots of dead processes; returns how many processes remain and how many slots were freed. Under the lock.
    /// Allocates nothing.
    pub(crate) fn free_dead(&self, is_dead: impl Fn(Suspect) -> bool) -> Swept {
        let mut swept = Swept::default();
        // Slots that were never used come last: reading them would allocate memory.
        for (index, s) in (0..).zip(self.slots.iter().take_while(|s| s.state.load(Acquire) != 0)) {
            let state = s.state.load(Acquire);
            if state as u32 == 0 {
                continue;
            }
            if is_dead(s.suspect(index)) {
                s.state.store(state >> 32 << 32, Release);
                swept.freed += 1;
            } else {
                swept.live += 1;
            }
        }
        swept
    }

    /// Frees every stale entry within these bytes of the table; returns their number.
    pub(crate) fn free_stale(&self, parts: &[Range<u64>]) -> usize {
        let begin = std::mem::offset_of!(Layout, entries) as u64;
        let size = std::mem::size_of::<Entry>() as u64;
        let index = |at: u64| usize::try_from(at.saturating_sub(begin).div_ceil(size)).unwrap_or(ENTRIES).min(ENTRIES);
        let entries =
            parts.iter().flat_map(|part| self.entries.get(index(part.start)..index(part.end)).into_iter().flatten());
        let stale = entries.filter(|e| {
            let value = e.value.load(Acquire);
            let stale = value != 0 && self.holder(value).is_none();
            stale && e.value.compare_exchange(value, 0, AcqRel, Acquire).is_ok()
        });
        stale.count()
    }

    /// The process in a slot, if there is one.
    pub(crate) fn process(&self, slot: u32) -> Option<Process> {
        let s = self.slots.get(slot as usize)?;
        let state = s.state.load(Acquire);
        if state as u32 == 0 {
            return None;
        }
        let identity = s.identity();
        fence(Acquire);
        // Otherwise another process has the slot now, and these are words of both.
        let unchanged = s.state.load(Relaxed) == state;
        let Identity { pid, pid_namespace, token, .. } = identity;
        (unchanged && pid != 0).then_some(Process { slot, pid, pid_namespace, token })
    }

    /// Records that the process of a slot keeps the slot's lock while it lives.
    pub(crate) fn record_lock(&self, slot: u32, generation: u16) {
        if let Some(s) = self.slots.get(slot as usize) {
            s.locked.store(u64::from(generation) << 32, Release);
        }
    }

    /// Records the port at which the process of a slot accepts links from other hosts.
    pub(crate) fn publish_link_port(&self, slot: u32, generation: u16, port: u16) {
        if let Some(s) = self.slots.get(slot as usize) {
            s.link_port.store(u64::from(generation) << 32 | u64::from(port), Release);
        }
    }

    /// The port that [`publish_link_port`](Layout::publish_link_port) recorded for a process that is still there. `None`:
    /// none, or 0.
    pub(crate) fn link_port(&self, process: Process) -> Option<u16> {
        let s = self.slots.get(process.slot as usize)?;
        let recorded = s.link_port.load(Acquire);
        let current = recorded >> 32 == s.state.load(Acquire) >> 32;
        u16::try_from(recorded as u32).ok().filter(|port| current && *port != 0)
    }

    /// Whether a process in another slot has recorded such a port.
    pub(crate) fn has_link_port_beside(&self, slot: u32) -> bool {
        // Slots that were never used come last: reading them would allocate memory.
        let used = self.slots.iter().take_while(|s| s.state.load(Acquire) != 0);
        let others = (0..).zip(used).map(|(other, _)| other).filter(|other| *other != slot);
        others.filter_map(|other| self.process(other)).any(|process| self.link_port(process).is_some())
    }

    /// Announces `key`; replaces an earlier announcement. `false` if its windows are full of live entries.
    pub(crate) fn publish(&self, key: u64, slot: u32, generation: u16, stream: u32) -> bool {
        let new = pack(slot, generation, stream);
        self.windows(key).any(|window| self.publish_in(window, key, new))
    }

    /// Announces `key` in one of its windows. A former announcement in the other one is found after it, or not at all.
    fn publish_in<'a>(&self, window: impl Iterator<Item = &'a Entry> + Clone, key: u64, new: u64) -> bool {
        let take = |e: &Entry, old: u64| {
            let taken = e.value.compare_exchange(old, new, AcqRel, Acquire).is_ok();
            if taken {
                e.key.store(key, Release);
            }
            taken
        };
        // The same connection again: its former holder is stale or handed it over.
        let replaces = |e: &Entry| {
            e.key.load(Acquire) == key && {
                let old = e.value.load(Acquire);
                old != 0 && take(e, old)
            }
        };
        if window.clone().any(replaces) {
            return true;
        }
        let mut free = window.clone().filter(|e| e.value.load(Acquire) == 0);
        if free.next().is_some_and(|e| take(e, 0)) {
            return true;
        }
        self.publish_in_stale(window, take)
    }

    /// All entries of a window are taken, or were taken meanwhile. Those of processes that are gone are free, too.
    #[cold]
    fn publish_in_stale<'a>(
        &self,
        mut window: impl Iterator<Item = &'a Entry>,
        take: impl Fn(&Entry, u64) -> bool,
    ) -> bool {
        window.any(|e| {
            let old = e.value.load(Acquire);
            (old == 0 || self.holder(old).is_none()) && take(e, old)
        })
    }

    /// Withdraws exactly the announcement that `publish` made with these arguments.
    pub(crate) fn withdraw(&self, key: u64, slot: u32, generation: u16, stream: u32) {
        let mine = pack(slot, generation, stream);
        for e in self.windows(key).flatten() {
            if e.key.load(Acquire) == key && e.value.compare_exchange(mine, 0, AcqRel, Acquire).is_ok() {
                return;
            }
        }
    }

    /// The process that announced `key`, and its stream.
    pub(crate) fn lookup(&self, key: u64) -> Option<(Process, u32)> {
        self.windows(key).flatten().find_map(|e| {
            if e.key.load(Acquire) != key {
                return None;
            }
            let value = e.value.load(Acquire);
            if e.key.load(Acquire) != key {
                return None;
            }
            Some((self.holder(value)?, (value >> 32) as u32))
        })
    }

    /// The registered process that a value belongs to; `None` if it is stale or invalid.
    fn holder(&self, value: u64) -> Option<Process> {
        let slot = (value >> 16) as u16;
        let s = self.slots.get(usize::from(slot))?;
        let generation = value as u16;
        let live = u64::from(generation) << 32 | 1;
        (generation != 0 && s.state.load(Acquire) == live).then_some(())?;
        self.process(u32::from(slot))
    }

    /// The windows of a key. They have no entry in common: otherwise some keys would have no second one.
    fn windows(&self, key: u64) -> impl Iterator<Item = impl Iterator<Item = &Entry> + Clone> {
        let hash = (key >> 47) as usize;
        let (first, others) = self.entries.split_at(FIRST);
        // By constants: a division by a number that is not known in advance takes as long as the rest of a probe.
        [(first, hash % FIRST), (others, hash % (ENTRIES - FIRST))].into_iter().map(|(entries, begin)| {
            let (before, from) = entries.split_at(begin);
            from.iter().chain(before).take(WINDOW)
        })
    }
}

impl Slot {
    fn suspect(&self, slot: u32) -> Suspect {
        let generation = self.state.load(Relaxed) >> 32;
        let locked = generation != 0 && self.locked.load(Relaxed) >> 32 == generation;
        Suspect { slot, identity: self.identity(), locked }
    }

    fn identity(&self) -> Identity {
        Identity {
            pid: u32::try_from(self.pid.load(Relaxed)).unwrap_or(0),
            start_time: self.start_time.load(Relaxed),
            pid_namespace: self.pid_namespace.load(Relaxed),
            token: [self.token[0].load(Relaxed), self.token[1].load(Relaxed)],
        }
    }
}

/// 16 bits, never 0, so that a packed value is never 0 either.
fn next_generation(state: u64) -> u16 {
    ((state >> 32) as u16).wrapping_add(1).max(1)
}

fn pack(slot: u32, generation: u16, stream: u32) -> u64 {
    u64::from(stream) << 32 | u64::from(slot as u16) << 16 | u64::from(generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table() -> Table {
        let t = Table::new(FileMap::anonymous(TABLE_BYTES));
        assert!(t.check());
        t
    }

    fn identity(pid: u32) -> Identity {
        Identity { pid, start_time: 1, pid_namespace: 1, token: [1, 2] }
    }

    #[test]
    fn publish_lookup_withdraw() {
        let t = table();
        let (slot, g) = t.register(identity(7), |_| false).unwrap();
        assert!(t.publish(99, slot, g, 5));
        assert_eq!(t.lookup(99), Some((Process { slot, pid: 7, pid_namespace: 1, token: [1, 2] }, 5)));
        t.withdraw(99, slot, g, 6);
        assert!(t.lookup(99).is_some(), "another stream's withdrawal is ignored");
        t.withdraw(99, slot, g, 5);
        assert_eq!(t.lookup(99), None);
    }

    #[test]
    fn the_port_for_links_goes_with_its_process() {
        let t = table();
        let (slot, g) = t.register(identity(7), |_| false).unwrap();
        let process = t.process(slot).unwrap();
        assert_eq!(t.link_port(process), None);
        t.publish_link_port(slot, g, 26379);
        assert_eq!(t.link_port(process), Some(26379));
        t.unregister(slot, g);
        let (again, h) = t.register(identity(8), |_| false).unwrap();
        assert_eq!(again, slot);
        assert_eq!(t.link_port(t.process(slot).unwrap()), None, "that of its predecessor");
        t.publish_link_port(slot, h, 0);
        assert_eq!(t.link_port(process), None);
    }

    /// Full windows refuse; a dead process's entries make room without a sweep.
    #[test]
    fn stale_entries_are_reused() {
        let t = table();
        let (a, ga) = t.register(identity(1), |_| false).unwrap();
        // Keys whose top 17 bits are equal share their windows.
        for k in 1..=2 * WINDOW as u64 {
            assert!(t.publish(k, a, ga, 0));
        }
        assert!(!t.publish(1000, a, ga, 0));
        let (b, gb) = t.register(identity(2), |_| false).unwrap();
        assert!(!t.publish(1000, b, gb, 0));
        assert_eq!(t.free_dead(|s| s.identity.pid == 1), Swept { live: 1, freed: 1 });
        assert!(t.publish(1000, b, gb, 3));
        assert_eq!(t.lookup(1000).map(|(p, s)| (p.pid, s)), Some((2, 3)));
        assert_eq!(t.lookup(1), None);
    }

    /// Breaks if connections took pages of the table while there is room in its first ones, or none could be announced beyond
    /// these.
    #[test]
    fn the_second_window_is_used_once_the_first_is_full() {
        let t = table();
        let (slot, generation) = t.register(identity(1), |_| false).unwrap();
        let key = |number: usize| ((FIRST + 5) as u64) << 47 | (number as u64 + 1);
        let used = |of: &[Entry]| of.iter().filter(|e| e.value.load(Relaxed) != 0).count();
        let all = (0..2 * WINDOW).filter(|n| {
            assert_eq!(used(&t.entries[..FIRST]), (*n).min(WINDOW));
            t.publish(key(*n), slot, generation, *n as u32)
        });
        assert_eq!(all.count(), 2 * WINDOW);
        assert!(!t.publish(key(2 * WINDOW), slot, generation, 0));
        for n in 0..2 * WINDOW {
            assert_eq!(t.lookup(key(n)).map(|(_, stream)| stream), Some(n as u32));
            t.withdraw(key(n), slot, generation, n as u32);
            assert_eq!(t.lookup(key(n)), None);
        }
    }

    /// Breaks if some keys had both windows in the first entries, which are full with some thousand connections.
    #[test]
    fn twenty_thousand_connections_fit() {
        let t = table();
        let (slot, generation) = t.register(identity(1), |_| false).unwrap();
        let mut x = 1u64;
        let mut key = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let refused = (0..20_000).filter(|n| !t.publish(key(), slot, generation, *n));
        assert_eq!(refused.count(), 0);
    }

    /// A slot is taken over only from a dead process, and that process's entries do not become the new one's.
    #[test]
    fn slots_are_reclaimed() {
        let t = table();
        for pid in 0..SLOTS as u32 {
            assert!(t.register(identity(pid), |_| false).is_some());
        }
        assert!(t.register(identity(9999), |_| false).is_none());
        assert!(t.publish(5, 17, 1, 1));
        let (slot, g) = t.register(identity(9999), |s| s.identity.pid == 17).unwrap();
        assert_eq!((slot, g), (17, 2));
        assert_eq!(t.lookup(5), None);
        t.unregister(17, 1);
        assert!(t.process(17).is_some(), "a late leaver does not evict its successor");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Nothing in the table can make any operation panic or loop.
        #[test]
        fn hostile_contents(seed in any::<u64>(), key in 1u64.., slot in any::<u32>()) {
            let t = table();
            let mut x = seed | 1;
            let mut next = || { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x };
            for e in t.windows(key).flatten() {
                e.key.store(if next() % 2 == 0 { key } else { next() }, Relaxed);
                e.value.store(if next() % 4 == 0 { 0 } else { next() }, Relaxed);
            }
            for s in t.slots.iter().take(64) {
                s.state.store(next(), Relaxed);
                s.pid.store(next(), Relaxed);
            }
            t.lookup(key);
            t.process(slot);
            t.publish(key, slot, 1, 2);
            t.withdraw(key, slot, 1, 2);
            t.unregister(slot, 1);
            t.free_dead(|s| s.identity.pid % 2 == 0);
            t.free_stale(&[0..TABLE_BYTES as u64, next()..next()]);
            t.register(identity(3), |_| false);
        }
    }
}
