//! The tables of simulated devices, which those in memory ([`loopback`](crate::loopback)) and those on modelled NICs
//! (`models/host`) share.

mod completion_queues;
mod regions;
mod streams;

pub use completion_queues::CompletionQueues;
pub use regions::Regions;
pub use streams::StreamTable;

use crate::{Capabilities, CmError};

/// How many requests and receives the queues of a queue pair take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepths {
    /// Requests.
    pub send: u32,
    /// Receives.
    pub recv: u32,
}

impl QueueDepths {
    /// What the device has.
    pub fn of(capabilities: &Capabilities) -> QueueDepths {
        QueueDepths { send: capabilities.max_send_wr, recv: capabilities.max_recv_wr }
    }

    /// These, where the device has as much.
    pub fn within(self, capabilities: &Capabilities) -> QueueDepths {
        let all = QueueDepths::of(capabilities);
        QueueDepths { send: self.send.min(all.send), recv: self.recv.min(all.recv) }
    }
}

/// Why a process refuses to be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// [`CmError::Unreachable`].
    Unreachable,
    /// [`CmError::NotAdmitted`].
    NotAdmitted,
    /// [`CmError::Exhausted`].
    Exhausted,
}

impl From<Refusal> for CmError {
    fn from(refusal: Refusal) -> CmError {
        match refusal {
            Refusal::Unreachable => CmError::Unreachable,
            Refusal::NotAdmitted => CmError::NotAdmitted,
            Refusal::Exhausted => CmError::Exhausted("queue pairs"),
        }
    }
}
