//! Names of devices, links and their ends.

use crate::{PeerAddress, QueuePairId};

/// A device of a fabric: a simulated process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The address of its connection manager.
    pub fn address(self) -> PeerAddress {
        PeerAddress([ADDRESS_MAGIC, u64::from(self.0), 0, 0])
    }

    /// The device at an address, if it is one of a fabric's. It may not exist.
    pub fn from_address(address: PeerAddress) -> Option<DeviceId> {
        match address.0 {
            [ADDRESS_MAGIC, id, 0, 0] => u32::try_from(id).ok().map(DeviceId),
            _ => None,
        }
    }
}

/// First word of every address of a fabric ("loopback" in ASCII), so that it is not mistaken for another backend's.
const ADDRESS_MAGIC: u64 = 0x6c6f_6f70_6261_636b;

/// One end of a link, named from outside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePairEnd {
    /// The device it is on.
    pub device: DeviceId,
    /// Its number there.
    pub qp: QueuePairId,
}

/// A link: two connected queue pairs. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkId(pub(super) u32);

/// One end of a link, from inside the fabric. Side 0 is the one that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) link: LinkId,
    pub(super) side: usize,
}

impl Place {
    pub(super) fn peer(self) -> Place {
        Place { link: self.link, side: 1 - self.side }
    }
}
