//! Threads that connect, for devices whose driver waits for the peer's kernel in the very call (`Limits::connect_waits`).
//!
//! If a firewall drops the request, the call takes as long as TCP repeats it: two minutes. So each attempt has a thread
//! of its own, and the caller continues. Meanwhile the id belongs to the thread, because an id must not be destroyed
//! under a call. The connection manager handles the outcome under its lock, like events, and destroys there an id that
//! is not needed any more.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ffi::{with_signals_blocked, CmId, ConnectParameters, EventFd};
use crate::link::Link;

/// The number of attempts of a device that may be in progress. Arbitrary: a peer that does not answer is tried less and
/// less often.
const MAX_CONNECT_THREADS: usize = 16;

/// The name of such a thread.
pub const CONNECTING: &str = "netacc-dial";

/// A thread needs little: one system call.
const STACK_LEN: usize = 128 << 10;

/// Attempts of one device.
pub(crate) struct ConnectThreads {
    /// Invariant: signalled whenever `done` is not empty, and only then.
    event: EventFd,
    done: Mutex<Vec<ReturnedConnect>>,
    under_way: AtomicUsize,
}

/// An attempt whose call has returned.
pub(crate) struct ReturnedConnect {
    // Before the link, which has the completion queue of its queue pair.
    pub(crate) cm: CmId,
    pub(crate) link: Arc<Link>,
    /// Whether the request was sent.
    pub(crate) outcome: io::Result<()>,
}

impl ConnectThreads {
    /// No attempt is in progress.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub(crate) fn new() -> io::Result<Arc<ConnectThreads>> {
        Ok(Arc::new(ConnectThreads { event: EventFd::new()?, done: Mutex::default(), under_way: AtomicUsize::new(0) }))
    }

    /// Readable when there is something to [`take`](ConnectThreads::take).
    pub(crate) fn fd(&self) -> RawFd {
        self.event.fd()
    }

    /// Connects a link. The request carries `private_data`.
    ///
    /// # Errors
    /// Fails if too many are in progress, or no thread can be started; then the link has its id as before.
    pub(crate) fn begin(
        self: &Arc<Self>,
        link: &Arc<Link>,
        private_data: Vec<u8>,
        waits_for_receive: bool,
    ) -> io::Result<()> {
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECT_THREADS {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (connect_threads, called) = (Arc::clone(self), Arc::clone(link));
        let thread = std::thread::Builder::new().name(CONNECTING.into()).stack_size(STACK_LEN);
        let spawned = with_signals_blocked(|| {
            thread.spawn(move || connect_threads.connect(called, &private_data, waits_for_receive))
        });
        if spawned.is_err() {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
        }
        spawned.map(drop)
    }

    fn connect(&self, link: Arc<Link>, private_data: &[u8], waits_for_receive: bool) {
        // A statement of its own, because the lock must not be held during the code below.
        let cm = link.cm.lock().take();
        if let Some(cm) = cm {
            let outcome = cm.connect(&ConnectParameters { private_data, waits_for_receive });
            let mut done = self.done.lock();
            done.push(ReturnedConnect { cm, link, outcome });
            self.event.signal();
        }
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Attempts whose calls have returned since they were last taken.
    pub(crate) fn take(&self) -> Vec<ReturnedConnect> {
        let mut done = self.done.lock();
        if !done.is_empty() {
            self.event.clear();
        }
        std::mem::take(&mut *done)
    }
}
