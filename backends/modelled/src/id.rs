//! The number of a host, and the address of its process.

use netacc_device::PeerAddress;

/// A host of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

impl HostId {
    /// The address at which its process accepts links.
    pub fn address(self) -> PeerAddress {
        PeerAddress([ADDRESS_MAGIC, u64::from(self.0), 0, 0])
    }

    /// The host at an address, if it is one of a cluster's. It may not exist.
    pub fn from_address(address: PeerAddress) -> Option<HostId> {
        match address.0 {
            [ADDRESS_MAGIC, id, 0, 0] => u32::try_from(id).ok().map(HostId),
            _ => None,
        }
    }
}

/// First word of every address of a cluster ("sim host" in ASCII), so that it is not mistaken for another backend's.
const ADDRESS_MAGIC: u64 = 0x7369_6d20_686f_7374;
