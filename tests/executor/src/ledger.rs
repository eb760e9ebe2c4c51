//! What all processes of a program share: how far each direction has come, where listeners are, who is busy with what.
//!
//! A memory file, inherited through fork and exec. Everything in it is atomic; the order of the steps makes it exact.

use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use netacc_program::{MAX_CONNECTIONS, MAX_PROCESSES};

use crate::sys::{self, Fd};

/// One direction of a connection, named by its writer.
#[derive(Default)]
pub(crate) struct Direction {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// What the kernel's TCP says that it delivered.
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
    /// By process: the step it is at, plus one.
    pub(crate) at: [AtomicU32; MAX_PROCESSES],
    /// Goes up whenever anybody gets anywhere.
    pub(crate) progress: AtomicU64,
    /// A step of this program has waited in vain.
    pub(crate) in_vain: AtomicU32,
}

impl Ledger {
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
