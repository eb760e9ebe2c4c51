//! A link: two connected queue pairs, and the work in flight between them.
//!
//! Work goes `outbound` (posted) -> `unacked` (placed at the peer) -> completion (acknowledged). Each arrow is one
//! delivery. A dead link has its unfinished work in `flushed`, except that a sender whose placement is delivery keeps
//! it: the bytes that it posted are the peer's already.

use std::collections::VecDeque;

use super::id::DeviceId;
use crate::{Memory, Operation, QueuePairId, RemoteKey, RemoteRegion, WorkCompletion, WorkRequestId};

/// The life of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Connected, as far as the end has been informed.
    Alive,
    /// Failed by its own process; `Disconnected` may still be in flight.
    Failed,
    /// `Disconnected` was reported.
    Dead,
    /// Given back, or its process is gone.
    Destroyed,
}

/// The place of the bytes of a request while it is in flight.
pub(super) enum Source {
    Inline(Vec<u8>),
    Region {
        rkey: RemoteKey,
        memory: Memory,
        offset: usize,
        len: u32,
    },
    InPlace {
        len: u32,
    },
    /// Copied when posted, because placement is delivery.
    Placed {
        len: u32,
    },
}

impl Source {
    pub(super) fn len(&self) -> u32 {
        match self {
            Source::Inline(bytes) => bytes.len() as u32,
            Source::Region { len, .. } | Source::InPlace { len } | Source::Placed { len } => *len,
        }
    }
}

pub(super) struct Request {
    pub(super) id: WorkRequestId,
    pub(super) operation: Operation,
    pub(super) source: Source,
    pub(super) signaled: bool,
    /// Slots that its completion frees.
    pub(super) releases: u32,
    /// Its completion was already reported (the sender is dead, but the message lives on).
    pub(super) resolved: bool,
}

impl Request {
    pub(super) fn consumes_receive(&self) -> bool {
        consumes_receive(&self.operation)
    }
}

pub(super) fn consumes_receive(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { imm: Some(_), .. } | Operation::Send { .. })
}

/// A completion, and the send slots that polling it frees.
pub(super) struct Entry {
    pub(super) wc: WorkCompletion,
    pub(super) releases: u32,
}

/// One queue pair. Invariants: `promised <= receives`; `receives + receive completions <= receive depth`;
/// `completions.len() <= send depth + receive depth + 1`.
pub(super) struct End {
    pub(super) device: DeviceId,
    pub(super) qp: QueuePairId,
    /// The memory of its receives for bytes.
    pub(super) into: Option<RemoteRegion>,
    pub(super) life: Life,
    /// A message of the peer has arrived.
    pub(super) has_received: bool,
    /// Posted, not consumed.
    pub(super) receives: u32,
    /// Of those, the number set aside for messages in flight ([`QueueFull`](super::NoReceive::QueueFull)).
    pub(super) promised: u32,
    /// Receive slots in use: posted, or consumed with the completion not yet polled.
    pub(super) receive_slots: u32,
    pub(super) send_slots: u32,
    /// Unsignaled requests since the last signaled one.
    pub(super) unsignaled: u32,
    pub(super) outbound: VecDeque<Request>,
    pub(super) unacked: VecDeque<Request>,
    pub(super) flushed: VecDeque<Request>,
    pub(super) completions: VecDeque<Entry>,
    /// A `Disconnected` is in flight; `true` if even immediate delivery withholds it.
    pub(super) disconnect: Option<bool>,
}

impl End {
    pub(super) fn new(device: DeviceId, qp: QueuePairId) -> End {
        End {
            device,
            qp,
            into: None,
            life: Life::Alive,
            has_received: false,
            receives: 0,
            promised: 0,
            receive_slots: 0,
            send_slots: 0,
            unsignaled: 0,
            outbound: VecDeque::new(),
            unacked: VecDeque::new(),
            flushed: VecDeque::new(),
            completions: VecDeque::new(),
            disconnect: None,
        }
    }

    pub(super) fn listens(&self) -> bool {
        matches!(self.life, Life::Alive | Life::Failed)
    }
}

pub(super) struct Link {
    pub(super) ends: [End; 2],
    pub(super) dead: bool,
    /// Nothing reaches an end any more, not even an error.
    pub(super) silent: bool,
}

/// The end on `side`, and the other one.
pub(super) fn sides(link: &mut Link, side: usize) -> [&mut End; 2] {
    let [first, second] = &mut link.ends;
    if side == 0 {
        [first, second]
    } else {
        [second, first]
    }
}
