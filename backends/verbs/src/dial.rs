//! Connecting on devices whose driver waits for the peer's kernel in the very call (`Limits::connect_waits`).
//!
//! Where a firewall drops the request that call takes as long as TCP repeats it, two minutes: so it is made by a thread of
//! its own, for each attempt, and who connects goes on. Meanwhile the id is the thread's alone: an id must not be destroyed
//! under a call. What came of it is taken in under the manager's lock, like events, as is the end of an id that nobody
//! wants any more.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ffi::{with_signals_blocked, Bell, CmId, ConnectParameters};
use crate::link::Link;

/// Attempts that may be under way so, of a device. Arbitrary: who is not there is left alone for longer each time.
const MAX_DIALS: usize = 16;

/// What such a thread is called.
pub const CONNECTING: &str = "netacc-dial";

/// A thread needs little: one system call.
const STACK_LEN: usize = 128 << 10;

/// Attempts of one device.
pub(crate) struct Dials {
    /// Invariant: rung whenever `done` has something, and only then.
    bell: Bell,
    done: Mutex<Vec<Dialed>>,
    under_way: AtomicUsize,
}

/// An attempt whose call has returned.
pub(crate) struct Dialed {
    // Before the link, which has the completion queue of its queue pair.
    pub(crate) cm: CmId,
    pub(crate) link: Arc<Link>,
    /// Whether the request is on its way.
    pub(crate) outcome: io::Result<()>,
}

impl Dials {
    /// None under way.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn new() -> io::Result<Arc<Dials>> {
        Ok(Arc::new(Dials { bell: Bell::new()?, done: Mutex::default(), under_way: AtomicUsize::new(0) }))
    }

    /// Readable when there is something to [`take`](Dials::take).
    pub(crate) fn fd(&self) -> RawFd {
        self.bell.fd()
    }

    /// Connects a link with what is told to the peer.
    ///
    /// # Errors
    /// Too many are under way, or there can be no thread; then the link has its id as before.
    pub(crate) fn begin(self: &Arc<Self>, link: &Arc<Link>, told: Vec<u8>, waits_for_receive: bool) -> io::Result<()> {
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= MAX_DIALS {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (dials, called) = (Arc::clone(self), Arc::clone(link));
        let thread = std::thread::Builder::new().name(CONNECTING.into()).stack_size(STACK_LEN);
        let spawned = with_signals_blocked(|| thread.spawn(move || dials.dial(called, &told, waits_for_receive)));
        if spawned.is_err() {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
        }
        spawned.map(drop)
    }

    fn dial(&self, link: Arc<Link>, told: &[u8], waits_for_receive: bool) {
        // Not in the head of what follows, which takes its time.
        let cm = link.cm.lock().take();
        if let Some(cm) = cm {
            let outcome = cm.connect(&ConnectParameters { private_data: told, waits_for_receive });
            let mut done = self.done.lock();
            done.push(Dialed { cm, link, outcome });
            self.bell.ring();
        }
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Attempts whose calls have returned since they were last taken.
    pub(crate) fn take(&self) -> Vec<Dialed> {
        let mut done = self.done.lock();
        if !done.is_empty() {
            self.bell.clear();
        }
        std::mem::take(&mut *done)
    }
}
