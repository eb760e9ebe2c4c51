//! The tables of simulated devices, shared by the devices in memory ([`loopback`](crate::loopback)) and those on
//! modelled NICs (`backends/modelled`).

mod completion_queues;
mod numbers;
mod regions;
mod streams;

pub use completion_queues::CompletionQueues;
pub use numbers::{NumberHasher, NumberMap};
pub use regions::Regions;
pub use streams::StreamTable;

use crate::{Capabilities, CmError};

/// The number of requests and receives that the queues of a queue pair take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepths {
    /// Requests.
    pub send: u32,
    /// Receives.
    pub recv: u32,
}

impl QueueDepths {
    /// The depths that the device has.
    pub fn of(capabilities: &Capabilities) -> QueueDepths {
        QueueDepths { send: capabilities.max_send_wr, recv: capabilities.max_recv_wr }
    }

    /// These depths, limited to the device's.
    pub fn within(self, capabilities: &Capabilities) -> QueueDepths {
        let all = QueueDepths::of(capabilities);
        QueueDepths { send: self.send.min(all.send), recv: self.recv.min(all.recv) }
    }
}

/// The reason why a process refuses connections.
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
