//! A queue pair: its rings, its state, and the requests in flight.
//!
//! States: erdma_verbs.h, `enum erdma_qp_state`; transitions: erdma_qp.c, `erdma_modify_qp_internal`. A queue pair is made in
//! IDLE, connected once, and stopped once.

use std::collections::VecDeque;

use crate::pages::Ring;
use crate::status::Status;
use crate::wire::Message;
use crate::work::Segment;

/// The two ends of the TCP connection that the queue pair takes over, in the byte order of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) local: (u32, u16),
    pub(crate) remote: (u32, u16),
    /// The result of the peer's CREATE_QP, which the kernels exchange in the MPA handshake.
    pub(crate) peer_cookie: u32,
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Made, and perhaps given receives.
    Idle,
    /// Sends and receives, once its peer is there, too.
    Ready(Connection),
    /// Takes no requests and messages any more.
    Stopped,
}

/// The send queue.
///
/// Invariant: `fetched - oldest` is at most the depth, and so is `posted - oldest`; all of them modulo 2^16.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) ring: Ring,
    pub(crate) cqn: u32,
    /// One past the last block that the driver has written.
    pub(crate) posted: u16,
    /// The next block to fetch.
    pub(crate) fetched: u16,
    /// Fetched and not answered, the oldest first. Reported ones come before the others.
    pub(crate) pending: VecDeque<Pending>,
    /// Payload of all pending requests.
    pub(crate) pending_bytes: u64,
}

/// A request that was fetched.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Number of its message, if it has one.
    pub(crate) id: Option<u64>,
    /// Its first block.
    pub(crate) index: u16,
    pub(crate) opcode: u8,
    pub(crate) signaled: bool,
    pub(crate) len: u32,
    /// The place for an answer's data; if the flag is set, its region must not be used afterwards.
    pub(crate) sink: Option<(Segment, bool)>,
    /// Its success is reported when it is sent, not when it is answered.
    pub(crate) done_when_sent: bool,
    /// Its completion was written; the entry stays until the answer comes.
    pub(crate) reported: bool,
    /// Its result, while older ones are not done.
    pub(crate) outcome: Option<Status>,
}

/// The receive queue. Invariant: `posted - consumed` is at most the depth.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) ring: Ring,
    pub(crate) cqn: u32,
    pub(crate) posted: u16,
    pub(crate) consumed: u16,
    /// Messages that have arrived and wait, for a receive or because the direction is stalled.
    pub(crate) waiting: VecDeque<Message>,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) domain: u32,
    pub(crate) cookie: u32,
    pub(crate) state: State,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    /// Number of the next message.
    pub(crate) next_id: u64,
}

/// A doorbell rang for more entries than the queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

impl SendQueue {
    pub(crate) fn new(ring: Ring, cqn: u32) -> SendQueue {
        SendQueue { ring, cqn, posted: 0, fetched: 0, pending: VecDeque::new(), pending_bytes: 0 }
    }

    /// The oldest block whose completion was not written.
    fn oldest(&self) -> u16 {
        self.pending.iter().find(|pending| !pending.reported).map_or(self.fetched, |pending| pending.index)
    }

    /// The oldest request whose completion was not written.
    pub(crate) fn unreported(&mut self) -> Option<&mut Pending> {
        self.pending.iter_mut().find(|pending| !pending.reported)
    }

    pub(crate) fn post(&mut self, posted: u16) -> Result<(), Overrun> {
        let (new, old) = (posted.wrapping_sub(self.oldest()), self.posted.wrapping_sub(self.oldest()));
        if u32::from(new) > self.ring.depth() || new < old {
            return Err(Overrun);
        }
        self.posted = posted;
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.posted == self.fetched
    }

    /// Takes the oldest request if it is answered and reported.
    pub(crate) fn take_done(&mut self) -> Option<Pending> {
        self.pending.front().filter(|pending| pending.reported && pending.outcome.is_some())?;
        self.take_oldest()
    }

    pub(crate) fn take_oldest(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.pending_bytes -= u64::from(pending.len);
        Some(pending)
    }

    pub(crate) fn push(&mut self, pending: Pending) {
        self.pending_bytes += u64::from(pending.len);
        self.pending.push_back(pending);
    }
}

impl ReceiveQueue {
    pub(crate) fn new(ring: Ring, cqn: u32) -> ReceiveQueue {
        ReceiveQueue { ring, cqn, posted: 0, consumed: 0, waiting: VecDeque::new() }
    }

    pub(crate) fn post(&mut self, posted: u16) -> Result<(), Overrun> {
        let (new, old) = (posted.wrapping_sub(self.consumed), self.posted.wrapping_sub(self.consumed));
        if u32::from(new) > self.ring.depth() || new < old {
            return Err(Overrun);
        }
        self.posted = posted;
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted == self.consumed
    }
}

impl QueuePair {
    pub(crate) fn new(domain: u32, cookie: u32, send: SendQueue, receive: ReceiveQueue) -> QueuePair {
        QueuePair { domain, cookie, state: State::Idle, send, receive, next_id: 0 }
    }

    /// Entries of its lists of pages.
    pub(crate) fn pages(&self) -> usize {
        self.send.ring.pages() + self.receive.ring.pages()
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }
}
