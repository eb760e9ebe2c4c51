//! Receives on TCP that the kernel serves whole: it takes the bytes when they come.
//!
//! Any other receive that has to sleep there takes two system calls, because bytes may come that are not the program's: a marker,
//! if the connection is being promoted. So a promotion fails while a receive sleeps in the kernel that takes what comes, and is
//! tried again later (see [`take_asleep`](netacc_driver::StreamCell::take_asleep)). It should not have to: a receive is served
//! whole only if
//! * neither end will probably ask for a link soon, as the process's schedule and the last connections to the same service show;
//! * its thread has sent last, or has made the connection and nobody has sent. A thread that only receives may sleep for as long as
//!   others send.

use std::sync::atomic::{AtomicUsize, Ordering};

use netacc_driver::StreamCell;
use netacc_proto::Reason;

use super::Socket;
use crate::os::thread_variable;

/// A receive that is served whole is at least so many operations before the one at which this end asks for a link. One would be
/// enough, if a thread did not receive while another one sends.
const BEFORE_OWN: u32 = 2;
/// And before that at which the peer probably does. Its operations are more or fewer, where messages arrive in parts. Arbitrary.
const BEFORE_PEERS: u32 = 4;

/// A connection's state that decides whether the kernel serves its receives whole.
pub struct Whole {
    /// See [`Beginning::asked_at`](super::Beginning::asked_at).
    asked_at: u32,
    /// The thread that has sent last, or has made the connection.
    sender: AtomicUsize,
}

impl Whole {
    /// Of a connection that this thread has made. `asked_at`: see [`Beginning::asked_at`](super::Beginning::asked_at).
    #[inline]
    pub(super) fn new(asked_at: u32) -> Whole {
        Whole { asked_at, sender: AtomicUsize::new(this_thread()) }
    }

    /// This thread has sent.
    #[inline]
    pub fn record_sent(&self) {
        self.sender.store(this_thread(), Ordering::Relaxed);
    }
}

impl Socket {
    /// Whether the kernel is to serve this thread's next receive whole, if it is one that may sleep. Then its options have their
    /// effect there, too.
    #[inline]
    pub fn is_served_whole(&self, cell: &StreamCell) -> bool {
        self.whole.sender.load(Ordering::Relaxed) == this_thread()
            && !self.nonblocking.load(Ordering::Relaxed)
            && self.is_link_far(cell)
    }

    #[inline]
    fn is_link_far(&self, cell: &StreamCell) -> bool {
        let operations = self.operations.load(Ordering::Relaxed);
        let far = if self.accepted {
            operations.saturating_add(BEFORE_PEERS) < self.whole.asked_at
        } else {
            self.promotion.is_far(operations, BEFORE_OWN)
        };
        far || cell.is_pinned() || self.recorded_reason() == Some(Reason::PeerNotFound)
    }
}

fn this_thread() -> usize {
    thread_variable::part::<u8>(thread_variable::BATCH) as usize
}
