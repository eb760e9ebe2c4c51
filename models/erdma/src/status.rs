//! Status codes of requests and commands.

/// The status of a completion (erdma_hw.h: `enum erdma_wc_status`). The provider maps it to a verbs status and a vendor error
/// (`map_cqe_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is done.
    Success,
    /// An error that has no status of its own.
    General,
    /// A receive is malformed.
    ReceiveFormat,
    /// At the responder there is no such key.
    RemoteKey,
    /// At the responder the range is not within the region, or the message is longer than the receive.
    RemoteBounds,
    /// At the responder the region does not permit it.
    RemoteRight,
    /// At the responder the region is of another protection domain.
    RemoteDomain,
    /// At the responder the range passes the end of the address space.
    RemoteWrap,
    /// A request is malformed.
    SendFormat,
    /// The responder takes no READ.
    ReadDepth,
    /// At the requester there is no such key.
    LocalKey,
    /// At the requester the range is not within the region.
    LocalBounds,
    /// At the requester the region does not permit it.
    LocalRight,
    /// At the requester the region is of another protection domain.
    LocalDomain,
    /// At the requester the range passes the end of the address space.
    LocalWrap,
    /// The queue pair failed before.
    Flushed,
    /// The peer did not acknowledge.
    RetryExceeded,
}

impl Status {
    /// Its number in a completion.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// The status of a command. The driver reads every value but 0 as EIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandStatus {
    Success,
    /// The device has no such command.
    Unsupported,
    /// A field has a value that the device does not take.
    Invalid,
    /// The object exists already, or does not exist.
    Object,
    /// The device's limit is reached.
    Exhausted,
    /// A setting requires it.
    Injected,
}

impl CommandStatus {
    pub(crate) fn code(self) -> u8 {
        self as u8
    }
}
