//! The number of streams that share a link.

use netacc_device::Capabilities;

/// How streams to one peer are distributed over links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A new link is made once all have this many streams (`NACC_SOR_CONN_PER_QP`).
    UpTo(u16),
    /// Each stream has a link of its own until there are `dedicated` links to its peer. On shared memory further streams
    /// share these, up to `most` on each.
    Automatic {
        /// Links with one stream each.
        dedicated: u16,
        /// Streams on a link.
        most: u16,
    },
}

impl Sharing {
    /// The meaning of `NACC_SOR_CONN_PER_QP=0`. Arbitrary: a link takes some tens of kilobytes, and a device has at
    /// least a thousand queue pairs; a link that many threads wait on needs the helper thread to wake them.
    pub const AUTOMATIC: Sharing = Sharing::Automatic { dedicated: 256, most: 1024 };

    /// From a setting: the number of streams that may share a link, or 0 for [`AUTOMATIC`](Sharing::AUTOMATIC).
    pub fn from_setting(streams_per_link: u16) -> Sharing {
        match streams_per_link {
            0 => Sharing::AUTOMATIC,
            most => Sharing::UpTo(most),
        }
    }

    /// Streams that this side admits on a link.
    pub fn most(self) -> u16 {
        match self {
            Sharing::UpTo(most) | Sharing::Automatic { most, .. } => most,
        }
    }

    /// The number of streams that a link made now will carry, given the number of links to the peer.
    pub(super) fn planned(self, links: usize) -> usize {
        match self {
            Sharing::UpTo(most) => usize::from(most.max(1)),
            Sharing::Automatic { dedicated, .. } if links < usize::from(dedicated) => 1,
            Sharing::Automatic { most, .. } => usize::from(most),
        }
    }

    /// Whether a stream goes onto a link that others use, given the number of links to the peer.
    pub(super) fn shares(self, links: usize) -> bool {
        match self {
            Sharing::UpTo(most) => most > 1,
            Sharing::Automatic { dedicated, .. } => links >= usize::from(dedicated),
        }
    }

    /// Whether a link with so many streams may take another one. Only links on shared memory are shared automatically:
    /// SoftRoCE executes messages twice, under load, where several streams have some under way, and that ends the link.
    pub(super) fn permits(self, caps: &Capabilities, streams: u16) -> bool {
        match self {
            Sharing::UpTo(_) => true,
            Sharing::Automatic { .. } => caps.peer_memory || streams == 0,
        }
    }

    /// Whether the next stream goes onto the next link, rather than onto the same one while that has room.
    pub(super) fn spreads(self) -> bool {
        matches!(self, Sharing::Automatic { .. })
    }
}
