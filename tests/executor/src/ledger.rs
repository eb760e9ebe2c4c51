//! The state that all processes of a program share: the bytes of each direction, the addresses of listeners, and the
//! step of each process.
//!
//! A memory file, inherited through fork and exec. Everything in it is atomic; the order of the steps makes it exact.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use netacc_program::{MAX_CONNECTIONS, MAX_PROCESSES};
use serde::{Deserialize, Serialize};

use crate::sys::{self, Fd};

/// One direction of a connection, named by its writer.
#[derive(Default)]
pub(crate) struct Direction {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// The bytes that the kernel's TCP has delivered, by its own count.
    pub(crate) kernel: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Listener {
    pub(crate) port: AtomicU16,
    pub(crate) host: AtomicU16,
    pub(crate) v6: AtomicU16,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) directions: [[Direction; 2]; MAX_CONNECTIONS],
    pub(crate) listeners: [Listener; MAX_CONNECTIONS],
    /// By process: the step that it executes, plus one.
    pub(crate) at: [AtomicU32; MAX_PROCESSES],
    /// Goes up whenever any process makes progress.
    pub(crate) progress: AtomicU64,
    /// A step of this program has timed out.
    pub(crate) in_vain: AtomicU32,
}

/// The part of a ledger that concerns other hosts. Within a program every number only grows, so of two different values
/// the larger is the newer one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Positions {
    /// By name: host, 1 for IPv6, port.
    listeners: BTreeMap<u32, (u16, u16, u16)>,
    /// By connection and writing side: sent, received.
    directions: BTreeMap<u32, [(u64, u64); 2]>,
    in_vain: bool,
}

impl Positions {
    /// Adds another's positions.
    pub(crate) fn merge(&mut self, other: &Positions) {
        self.in_vain |= other.in_vain;
        self.listeners.extend(&other.listeners);
        for (c, theirs) in &other.directions {
            let ours = self.directions.entry(*c).or_default();
            for (mine, their) in ours.iter_mut().zip(theirs) {
                *mine = (mine.0.max(their.0), mine.1.max(their.1));
            }
        }
    }
}

impl Ledger {
    /// The positions for other hosts.
    pub(crate) fn positions(&self) -> Positions {
        let of = |d: &Direction| (d.sent.load(Ordering::SeqCst), d.received.load(Ordering::SeqCst));
        let pairs = (0..).zip(self.directions.iter().map(|pair| [of(&pair[0]), of(&pair[1])]));
        let address = |l: &Listener| {
            let load = |n: &AtomicU16| n.load(Ordering::SeqCst);
            (load(&l.host), load(&l.v6), load(&l.port))
        };
        Positions {
            listeners: (0..).zip(self.listeners.iter().map(address)).filter(|(_, l)| l.2 != 0).collect(),
            directions: pairs.filter(|(_, pair)| *pair != [(0, 0); 2]).collect(),
            in_vain: self.in_vain.load(Ordering::SeqCst) != 0,
        }
    }

    /// Takes over the positions of other hosts.
    pub(crate) fn learn(&self, known: &Positions) {
        for (l, (host, v6, port)) in &known.listeners {
            let Some(listener) = self.listeners.get(*l as usize) else { continue };
            listener.host.store(*host, Ordering::SeqCst);
            listener.v6.store(*v6, Ordering::SeqCst);
            listener.port.store(*port, Ordering::SeqCst);
        }
        for (c, pair) in &known.directions {
            let Some(directions) = self.directions.get(*c as usize) else { continue };
            for (direction, (sent, received)) in directions.iter().zip(pair) {
                direction.sent.fetch_max(*sent, Ordering::SeqCst);
                direction.received.fetch_max(*received, Ordering::SeqCst);
            }
        }
        self.in_vain.fetch_max(u32::from(known.in_vain), Ordering::SeqCst);
    }

    pub(crate) fn create() -> io::Result<(Fd, &'static Ledger)> {
        let fd = sys::memory_file(size_of::<Ledger>())?;
        Ok((fd, Ledger::open(fd)?))
    }

    pub(crate) fn open(fd: Fd) -> io::Result<&'static Ledger> {
        sys::map_atomics::<Ledger>(fd)
    }

    pub(crate) fn clear(&self) {
        self.in_vain.store(0, Ordering::SeqCst);
        for d in self.directions.iter().flatten() {
            d.sent.store(0, Ordering::SeqCst);
            d.received.store(0, Ordering::SeqCst);
            d.kernel.store(0, Ordering::SeqCst);
        }
        self.listeners.iter().for_each(|l| l.port.store(0, Ordering::SeqCst));
        self.at.iter().for_each(|a| a.store(0, Ordering::SeqCst));
    }

    /// Received by programs, and by the kernel for them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |f: fn(&Direction) -> &AtomicU64| {
            self.directions.iter().flatten().map(|d| f(d).load(Ordering::SeqCst)).sum::<u64>()
        };
        (sum(|d| &d.received), sum(|d| &d.kernel))
    }
}
