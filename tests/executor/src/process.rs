//! The objects of operations: the descriptors of one process of a program, by slot, and the process's world.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::sys::Fd;
use crate::world::World;

/// A slot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) fd: Fd,
    /// Connection and side, once it has one.
    pub(crate) end: Option<(u32, u8)>,
    pub(crate) cloexec: bool,
}

/// A descriptor of an epoll instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Instance {
    pub(crate) fd: Fd,
    /// The slot in which the instance was created: the same for all its descriptors.
    pub(crate) of: u32,
}

/// The slots that an epoll instance watches, each with the slot that names the same socket or instance now: another one, once
/// the slot under which it was added is closed.
pub(crate) type Members = BTreeMap<u32, u32>;

/// A process's descriptors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Slots {
    pub(crate) sockets: BTreeMap<u32, Slot>,
    pub(crate) epolls: BTreeMap<u32, Instance>,
    /// By the slot in which an instance was created.
    pub(crate) members: BTreeMap<u32, Members>,
}

impl Slots {
    /// The descriptor in a slot, of either kind.
    pub(crate) fn descriptor(&self, s: u32) -> Option<Fd> {
        self.sockets.get(&s).map(|slot| slot.fd).or_else(|| self.epolls.get(&s).map(|instance| instance.fd))
    }

    /// The `closed` descriptor, in slot `s`, does not name its socket any more. Another name of that socket replaces
    /// it.
    pub(crate) fn unname(&mut self, s: u32, closed: &Slot) {
        let same = |(other, slot): (&u32, &Slot)| (*other != s && slot.end == closed.end).then_some(*other);
        let other = closed.end.and_then(|_| self.sockets.iter().find_map(same));
        self.rename(s, other);
    }

    /// The same for a descriptor of an epoll instance, which is taken out already.
    pub(crate) fn unname_instance(&mut self, s: u32, closed: &Instance) {
        let other = self.epolls.iter().find(|(_, instance)| instance.of == closed.of).map(|(other, _)| *other);
        self.rename(s, other);
    }

    fn rename(&mut self, s: u32, other: Option<u32>) {
        for members in self.members.values_mut() {
            match other {
                Some(other) => members.values_mut().filter(|name| **name == s).for_each(|name| *name = other),
                None => members.retain(|_, name| *name != s),
            }
        }
    }
}

/// One process of a program.
pub(crate) struct Process {
    pub(crate) ledger: &'static Ledger,
    pub(crate) number: u8,
    pub(crate) host: u8,
    pub(crate) world: World,
    pub(crate) slots: Mutex<Slots>,
}

impl Process {
    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slot(&self, s: u32) -> Option<Slot> {
        self.slots().sockets.get(&s).cloned()
    }
}
