//! Calls that wait, and descriptors that are closed under them.
//!
//! In the kernel a call holds the open file: closing the last descriptor while another thread waits in a call ends
//! nothing yet. The call gets its event, or its timeout, and the connection ends when it returns. Likewise here: a
//! connection that is closed under such calls stays open under a duplicate until the last of them is over.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::ops::ending;
use crate::os::errno::{errno, set_errno};
use crate::socket::{Place, Socket};
use crate::table::{self, Entry};

/// A call that waits, until it is dropped: also if its thread is cancelled meanwhile.
pub struct Waiting<'a> {
    entry: &'a Arc<Entry>,
    sock: &'a Socket,
    place: Option<Place<'a>>,
}

impl<'a> Waiting<'a> {
    /// A call on `sock`, which was reached by `entry`, is about to wait.
    pub fn new(entry: &'a Arc<Entry>, sock: &'a Socket) -> Waiting<'a> {
        Waiting { entry, sock, place: sock.callers.enter() }
    }

    /// The descriptor with which a call on `fd` continues.
    pub fn descriptor(&self, fd: c_int) -> c_int {
        match table::get(fd).as_deref() {
            Some(entry) if Arc::ptr_eq(entry, self.entry) => fd,
            _ => self.sock.fd.load(Ordering::Acquire),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(place) = &self.place else { return };
        if let Some(kept) = self.sock.callers.leave(place) {
            let saved = errno();
            ending::end_kept(self.sock, kept);
            set_errno(saved);
        }
    }
}
