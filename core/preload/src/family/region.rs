//! The records of a family, in memory that its processes share. No system calls: the caller supplies which processes
//! are alive.
//!
//! Invariants:
//! * a record of a process is a seqlock: `start` belongs to `state` if `state` is the same before and after. Its
//!   incarnation changes whenever the record is taken, so a [`Member`] never means a process that came later;
//! * a list of holders never lacks one: a member is entered by a process that is in the list itself, before it can
//!   leave, and `joins` counts that, so that a reader that visits one entry after the other does not miss the pair;
//! * a socket is freed once, by the process that ends the use of its [`Id`].

use std::sync::atomic::Ordering::*;

use crate::os::sync::{fence, AtomicU32, AtomicU64};

/// Most processes of a family at a time, and most sockets that are shared. Arbitrary: beyond, sockets stay on TCP. Pages
/// that are never touched cost nothing.
const PROCESSES: usize = if cfg!(any(loom, miri)) { 4 } else { 4096 };
const SOCKETS: usize = if cfg!(any(loom, miri)) { 1 } else { 1 << 16 };
/// Most holders of one socket. Arbitrary: beyond, it is taken for shared.
const HOLDERS: usize = if cfg!(any(loom, miri)) { 3 } else { 7 };
/// The most attempts to read a record that changes meanwhile. Arbitrary: changes are as rare as forks. If all fail,
/// the socket counts as held.
const MAX_READS: usize = 16;

/// In place of a number, which no process has: about to be forked; the record is being written.
pub(super) const RESERVED: u32 = u32::MAX;
const CHANGING: u32 = u32::MAX - 1;
/// In place of the number of a process whose end cannot be seen: it lives until it leaves.
pub(super) const UNWATCHABLE: u32 = u32::MAX - 2;

#[repr(C)]
struct Process {
    /// Incarnation in the high half; in the low one the process's number, 0 for none.
    state: AtomicU64,
    /// Its start in the kernel's ticks since boot; of a child not yet born, when it was entered, in nanoseconds.
    start: AtomicU64,
    /// The [`Member`] that runs, or is about to run, another program, which enters itself nowhere.
    replaced: AtomicU64,
}

#[repr(C)]
struct Socket {
    /// Counts the uses in the upper bits; 1 in bit 0 while in use.
    state: AtomicU32,
    /// Counts the entered holders.
    joins: AtomicU32,
    /// Counts the programs that were started with the socket and enter themselves nowhere; 0 once none of them holds it.
    lent: AtomicU32,
    /// Why it stays in the kernel in each process that holds it; 0 if it does not.
    kept: AtomicU32,
    /// [`Member`]s, 0 for none.
    holders: [AtomicU64; HOLDERS],
}

/// See the module. All zeros is empty.
#[repr(C)]
pub(super) struct Region {
    processes: [Process; PROCESSES],
    sockets: [Socket; SOCKETS],
    /// Where the search for a free socket begins.
    next: AtomicU32,
}

/// A process: the incarnation of its record, and the record's index plus one. 0 for none.
pub(super) type Member = u64;

/// One use of a socket's record: a count that is never 0, and the record's index. 0 for a socket that was never shared.
pub type Id = u32;

/// The other processes that may hold a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// None.
    Absent,
    /// A process of the family that is entered as a holder.
    Entered,
    /// Programs that enter themselves nowhere, if any.
    Unseen,
}

/// The reason why a socket's other holders were [`Others::Unseen`] at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    lent: u32,
    replaced: [Member; HOLDERS],
}

/// Whether the process with this number, or [`RESERVED`], and this start is alive.
pub(super) type Alive<'a> = &'a dyn Fn(u32, u64) -> bool;

impl Process {
    /// Whether the process lives that has the record in this `state`.
    fn lives(&self, state: u64, alive: Alive) -> bool {
        match state as u32 {
            0 => false,
            CHANGING | UNWATCHABLE => true,
            number => {
                let start = self.start.load(Acquire);
                // If it has become something else meanwhile, these are words of both: it was there just now.
                self.state.load(Relaxed) != state || alive(number, start)
            }
        }
    }

    /// Goes from state `from` to one with this number and start. `false`: another process was faster.
    fn change(&self, from: u64, incarnation: u64, number: u32, start: u64) -> bool {
        let changing = incarnation << 32 | u64::from(CHANGING);
        if self.state.compare_exchange(from, changing, AcqRel, Relaxed).is_err() {
            return false;
        }
        // Release: a reader that sees the new value also sees that the record is changing.
        self.start.store(start, Release);
        self.state.store(incarnation << 32 | u64::from(number), Release);
        true
    }
}

impl Region {
    /// Enters a process, or with [`RESERVED`] one about to be forked.
    pub(super) fn enter(&self, number: u32, start: u64, alive: Alive) -> Option<Member> {
        self.processes.iter().enumerate().find_map(|(i, p)| {
            let state = p.state.load(Acquire);
            let incarnation = u64::from((state >> 32) as u32).wrapping_add(1) & 0xffff_ffff;
            let taken = !p.lives(state, alive) && p.change(state, incarnation, number, start);
            taken.then_some(incarnation << 32 | (i as u64 + 1))
        })
    }

    /// The process that was reserved a record has been born. `false`: too late, another has it.
    pub(super) fn born(&self, member: Member, number: u32, start: u64) -> bool {
        let incarnation = member >> 32;
        let reserved = incarnation << 32 | u64::from(RESERVED);
        self.process(member).is_some_and(|p| p.change(reserved, incarnation, number, start))
    }

    /// Removes a member that is not published yet.
    pub(super) fn withdraw(&self, member: Member) {
        if let Some(p) = self.process(member) {
            p.state.store(member >> 32 << 32, Release);
        }
    }

    fn process(&self, member: Member) -> Option<&Process> {
        self.processes.get((member as u32).checked_sub(1)? as usize)
    }

    fn lives(&self, member: Member, alive: Alive) -> bool {
        self.process(member).is_some_and(|p| {
            let state = p.state.load(Acquire);
            // Only what is dead is replaced.
            state >> 32 == member >> 32 && p.lives(state, alive)
        })
    }

    fn socket(&self, id: Id) -> Option<&Socket> {
        let socket = self.sockets.get(id as u16 as usize)?;
        (socket.state.load(Acquire) == id >> 16 << 1 | 1).then_some(socket)
    }

    /// A socket's record that is not in use.
    fn place(&self) -> Option<Id> {
        (0..SOCKETS).find_map(|_| {
            let i = self.next.fetch_add(1, Relaxed) as usize % SOCKETS;
            let socket = &self.sockets[i];
            let state = socket.state.load(Acquire);
            let count = u32::from((state >> 1) as u16).wrapping_add(1) & 0xffff;
            let count = count.max(1);
            let free = state & 1 == 0;
            if !free || socket.state.compare_exchange(state, count << 1 | 1, AcqRel, Relaxed).is_err() {
                return None;
            }
            socket.holders.iter().for_each(|h| h.store(0, Relaxed));
            socket.lent.store(0, Relaxed);
            socket.kept.store(0, Relaxed);
            Some(count << 16 | i as u32)
        })
    }

    /// Enters `me` and its child as holders of a socket, of a new record if it has none.
    pub(super) fn share(&self, id: Id, me: Member, child: Member, alive: Alive) -> Option<Id> {
        let id = if self.socket(id).is_some() { id } else { self.place()? };
        let socket = self.socket(id)?;
        (self.join(socket, me, alive) && self.join(socket, child, alive)).then_some(id)
    }

    fn join(&self, socket: &Socket, member: Member, alive: Alive) -> bool {
        if socket.holders.iter().any(|h| h.load(Acquire) == member) {
            return true;
        }
        let joined = socket.holders.iter().any(|h| {
            let old = h.load(Acquire);
            !self.lives(old, alive) && h.compare_exchange(old, member, AcqRel, Relaxed).is_ok()
        });
        // Before any process that was in the list can leave it.
        socket.joins.fetch_add(1, AcqRel);
        joined
    }

    /// Removes `me` from a socket's list, and gives the record back if no holder is left.
    pub(super) fn leave(&self, id: Id, me: Member, alive: Alive) {
        let Some(socket) = self.socket(id) else { return };
        for holder in &socket.holders {
            let _ = holder.compare_exchange(me, 0, AcqRel, Relaxed);
        }
        // If two holders leave at once, one of them sees that the other has left.
        fence(SeqCst);
        if self.held(socket, 0, alive) == Some(false) {
            let used = id >> 16 << 1 | 1;
            // Others may come to the same conclusion.
            let _ = socket.state.compare_exchange(used, used & !1, AcqRel, Relaxed);
        }
    }

    /// The processes besides `me` that may hold a socket.
    pub(super) fn others(&self, id: Id, me: Member, alive: Alive) -> Others {
        let Some(socket) = self.socket(id) else { return Others::Entered };
        for _ in 0..MAX_READS {
            let joins = socket.joins.load(Acquire);
            let mut others = if socket.lent.load(Acquire) > 0 { Others::Unseen } else { Others::Absent };
            for holder in socket.holders.iter().map(|h| h.load(Acquire)) {
                match holder != me && self.lives(holder, alive) {
                    true if self.is_replaced(holder) => others = Others::Unseen,
                    true => return Others::Entered,
                    false => {}
                }
            }
            // A holder may have entered another one in a place already visited, and left before its own was.
            if socket.joins.load(Acquire) == joins {
                return others;
            }
        }
        Others::Entered
    }

    /// A program is started with the socket that enters itself nowhere.
    pub(super) fn lend(&self, id: Id) {
        if let Some(socket) = self.socket(id) {
            socket.lent.fetch_add(1, AcqRel);
        }
    }

    /// The socket stays in the kernel in each process that holds it. The first reason stays.
    pub(super) fn keep(&self, id: Id, why: u32) {
        if let Some(socket) = self.socket(id) {
            let _ = socket.kept.compare_exchange(0, why, AcqRel, Relaxed);
        }
    }

    /// Why it does; 0 if it does not.
    pub(super) fn kept(&self, id: Id) -> u32 {
        self.socket(id).map_or(0, |socket| socket.kept.load(Acquire))
    }

    /// The process `me` is about to run another program, or with `false` continues after an attempt that has failed.
    pub(super) fn set_replaced(&self, me: Member, replaced: bool) {
        if let Some(process) = self.process(me) {
            process.replaced.store(if replaced { me } else { 0 }, Release);
        }
    }

    fn is_replaced(&self, member: Member) -> bool {
        self.process(member).is_some_and(|p| p.replaced.load(Acquire) == member)
    }

    /// The processes that may hold the socket unseen now.
    pub(super) fn unseen(&self, id: Id) -> Unseen {
        let Some(socket) = self.socket(id) else { return Unseen::default() };
        let mut unseen = Unseen { lent: socket.lent.load(Acquire), ..Unseen::default() };
        for (holder, replaced) in socket.holders.iter().zip(&mut unseen.replaced) {
            let holder = holder.load(Acquire);
            *replaced = if self.is_replaced(holder) { holder } else { 0 };
        }
        unseen
    }

    /// None of the processes in `unseen` holds the socket any more.
    pub(super) fn expel(&self, id: Id, unseen: &Unseen) {
        let Some(socket) = self.socket(id) else { return };
        for (holder, replaced) in socket.holders.iter().zip(unseen.replaced).filter(|(_, replaced)| *replaced != 0) {
            let _ = holder.compare_exchange(replaced, 0, AcqRel, Relaxed);
        }
        // Without effect if the socket was lent again meanwhile.
        let _ = socket.lent.compare_exchange(unseen.lent, 0, AcqRel, Relaxed);
    }

    /// Whether any process but `me` holds a socket. `None`: unknown.
    fn held(&self, socket: &Socket, me: Member, alive: Alive) -> Option<bool> {
        for _ in 0..MAX_READS {
            let joins = socket.joins.load(Acquire);
            let held = socket.holders.iter().any(|h| {
                let holder = h.load(Acquire);
                holder != me && self.lives(holder, alive)
            });
            // A holder may have entered another one in a place already visited, and left before its own was.
            if held || socket.joins.load(Acquire) == joins {
                return Some(held);
            }
        }
        None
    }
}

#[cfg(all(test, any(loom, miri)))]
mod models;
