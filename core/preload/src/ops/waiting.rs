//! Calls that wait, and descriptors that are closed under them.
//!
//! In the kernel a call holds the open file: who closes the last descriptor while another thread waits in a call ends
//! nothing yet. The call gets what it waits for, or its timeout, and the connection ends when it returns. So here: what is
//! closed under such a call lives on under a duplicate until the last of them is over.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::ops::ending;
use crate::os::errno::{errno, set_errno};
use crate::socket::Socket;
use crate::table::{self, Entry};

/// Threads at once that are known to wait on one connection: one for each direction, and some to spare. Under those beyond
/// that a connection ends when it is closed.
const MOST: usize = 4;

/// The threads that wait in calls on one connection. Without a lock: signal handlers may wait too.
#[derive(Default)]
pub struct Callers {
    /// What `pthread_self` says in each; 0 for none.
    threads: [AtomicUsize; MOST],
    /// The duplicate by which they go on once the program has closed its last descriptor, plus one; 0 before.
    kept: AtomicI32,
}

impl Callers {
    fn wait(&self) -> bool {
        self.threads.iter().any(|thread| thread.load(Ordering::SeqCst) != 0)
    }

    /// The program has closed its last descriptor. Whether another thread waits in a call. Calls of this thread are over: it
    /// has left them by a jump out of a signal handler, or closes in one what it waits for.
    pub fn wait_elsewhere(&self) -> bool {
        let this = this_thread();
        for thread in &self.threads {
            let _ = thread.compare_exchange(this, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
        self.wait()
    }

    /// The connection goes on as `kept`, which is open. Returns it if nobody waits any more: it is the caller's to close.
    pub fn go_on(&self, kept: c_int) -> Option<c_int> {
        self.kept.store(kept + 1, Ordering::SeqCst);
        self.take_kept()
    }

    /// The duplicate, to whom it is to close.
    fn take_kept(&self) -> Option<c_int> {
        if self.kept.load(Ordering::SeqCst) == 0 || self.wait() {
            return None;
        }
        let kept = self.kept.swap(0, Ordering::SeqCst);
        (kept > 0).then(|| kept - 1)
    }
}

fn this_thread() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}

/// A call that waits, until it is dropped: also if its thread is cancelled meanwhile.
pub struct Waiting<'a> {
    entry: &'a Arc<Entry>,
    sock: &'a Socket,
    slot: Option<&'a AtomicUsize>,
}

impl<'a> Waiting<'a> {
    /// A call on `sock`, which was reached by `entry`, is about to wait.
    pub fn new(entry: &'a Arc<Entry>, sock: &'a Socket) -> Waiting<'a> {
        let this = this_thread();
        let take = |slot: &&AtomicUsize| slot.compare_exchange(0, this, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        Waiting { entry, sock, slot: sock.callers.threads.iter().find(take) }
    }

    /// The descriptor by which the call goes on that came by `fd`.
    pub fn descriptor(&self, fd: c_int) -> c_int {
        match table::get(fd).as_deref() {
            Some(Some(entry)) if Arc::ptr_eq(entry, self.entry) => fd,
            _ => self.sock.fd.load(Ordering::Acquire),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let _ = slot.compare_exchange(this_thread(), 0, Ordering::SeqCst, Ordering::Relaxed);
        if let Some(kept) = self.sock.callers.take_kept() {
            let saved = errno();
            ending::end_kept(self.sock, kept);
            set_errno(saved);
        }
    }
}
