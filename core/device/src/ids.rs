//! Handles as newtypes: a bare integer never identifies anything.

/// One end of a reliable connection, as the device numbers it. Unique among live queue pairs of one device. Devices
/// leave the highest bit zero: a wrapper that makes one device of two distinguishes their queue pairs by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub struct QueuePairId(pub u32);

/// A completion queue of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub struct CompletionQueueId(pub u32);

/// A connection attempt of a [`ConnectionManager`](crate::ConnectionManager), until it is established or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The key that lets a peer write into a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteKey(pub u32);

/// The caller's mark on a work request, returned in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub struct WorkRequestId(pub u64);

/// The address at which a process accepts links, as the backend defines it. Opaque to all other code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerAddress(pub [u64; 4]);
