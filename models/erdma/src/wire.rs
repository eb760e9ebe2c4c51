//! The wire between queue pairs, and the messages that it carries.
//!
//! A wire delivers messages of one queue pair in order and at most once. It does not deal with rings, keys or memory:
//! the [`Fabric`](crate::Fabric) lets the receiving function handle delivered messages, and gives the wire its answer.
//! [`CopyWire`](copy::CopyWire) delivers at once; [`ModelledWire`](modelled::ModelledWire) has the transport of
//! `netacc-rnic`.

pub mod copy;
pub mod modelled;
pub(crate) mod switched;

use netacc_device::Instant;

use crate::status::Status;
pub use crate::work::{AtomicChange, SendExtra};

/// A queue pair of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// Index of the function.
    pub function: usize,
    /// Number of the queue pair there.
    pub qpn: u32,
}

/// A request in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number of the request, from 0 for each queue pair.
    pub id: u64,
    /// Its completion is solicited.
    pub solicited: bool,
    /// The operation.
    pub action: Action,
}

/// The operation of a message at its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// WRITE.
    Write {
        /// Key of the region.
        key: u32,
        /// First byte.
        address: u64,
        /// The immediate, as its four bytes are in a completion.
        imm: Option<[u8; 4]>,
        /// The bytes to write.
        data: Vec<u8>,
    },
    /// SEND.
    Send {
        /// The part beside the data.
        extra: SendExtra,
        /// The bytes for the receive.
        data: Vec<u8>,
    },
    /// READ.
    Read {
        /// Key of the region.
        key: u32,
        /// First byte.
        address: u64,
        /// Bytes.
        len: u32,
    },
    /// An atomic operation on eight bytes.
    Atomic {
        /// Key of the region.
        key: u32,
        /// The address.
        address: u64,
        /// The operation.
        change: AtomicChange,
    },
}

impl Message {
    /// Bytes of payload.
    pub fn len(&self) -> u32 {
        match &self.action {
            Action::Write { data, .. } | Action::Send { data, .. } => u32::try_from(data.len()).unwrap_or(u32::MAX),
            Action::Read { .. } | Action::Atomic { .. } => 0,
        }
    }

    /// Whether it has no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The answer to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// It is done; the bytes that were read.
    Data(Vec<u8>),
    /// The responder has ended the connection. The status is the request's.
    Terminated(Status),
}

/// An event of a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireEvent {
    /// A message has arrived.
    Delivered {
        /// The end.
        to: End,
        /// The message.
        message: Message,
    },
    /// An answer has arrived.
    Replied {
        /// The end.
        to: End,
        /// Number of the message.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// The wire has given up: retries are exhausted, or the peer's were.
    Failed {
        /// The end of the connection.
        end: End,
        /// The status of the oldest request.
        status: Status,
    },
}

impl WireEvent {
    /// The end that gets the event.
    pub fn end(&self) -> End {
        match self {
            WireEvent::Delivered { to, .. } | WireEvent::Replied { to, .. } => *to,
            WireEvent::Failed { end, .. } => *end,
        }
    }
}

/// See the module's documentation. After every call, drain [`poll`](Wire::poll).
pub trait Wire {
    /// Joins two ends.
    fn connect(&mut self, ends: [End; 2]);
    /// Parts two ends, and drops messages in flight between them.
    fn disconnect(&mut self, now: Instant, ends: [End; 2]);
    /// Takes a message. Precondition: `from` and `to` are connected.
    fn send(&mut self, now: Instant, from: End, to: End, message: Message);
    /// Takes the answer to a message that was delivered at `from`.
    fn reply(&mut self, now: Instant, from: End, to: End, id: u64, reply: Reply);
    /// The next event that is due now.
    fn poll(&mut self, now: Instant) -> Option<WireEvent>;
    /// The time of the next poll, if no other call comes before.
    fn next_deadline(&self) -> Option<Instant>;
}
