//! The number of streams that share a link.

use std::sync::atomic::{AtomicU8, Ordering};

use netacc_device::Capabilities;

/// How streams to one peer are distributed over links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A new link is made once all have this many streams (`NACC_SOR_CONN_PER_QP`).
    UpTo(u16),
    /// Each stream has a link of its own until there are some links to its peer. Further streams share these.
    Automatic {
        /// Links through which each side reaches the other's memory ([`Capabilities::peer_memory`]).
        mapped: Spread,
        /// Links of devices that move the bytes.
        posted: Spread,
    },
}

/// The numbers of automatic sharing on one kind of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Links with one stream each, at least 1.
    pub dedicated: u16,
    /// Streams on a link.
    pub most: u16,
}

impl Sharing {
    /// The meaning of `NACC_SOR_CONN_PER_QP=0`.
    ///
    /// Arbitrary. A mapped link takes some tens of kilobytes; one that many threads wait on needs the helper thread to wake
    /// them. A posted link takes a queue pair and registrations, which cost a device about a millisecond, and each wait
    /// polls it: the few connections of a pool have links of their own, a hundred clients share. The streams of a posted
    /// link also share its message credit, so it takes as many as were measured.
    pub const AUTOMATIC: Sharing =
        Sharing::Automatic { mapped: Spread { dedicated: 256, most: 1024 }, posted: Spread { dedicated: 8, most: 32 } };

    /// From a setting: the number of streams that may share a link, or 0 for [`AUTOMATIC`](Sharing::AUTOMATIC).
    pub fn from_setting(streams_per_link: u16) -> Sharing {
        match streams_per_link {
            0 => Sharing::AUTOMATIC,
            most => Sharing::UpTo(most),
        }
    }

    /// The distribution over links with these capabilities. `None`: no link has been made yet. Then as few are planned as on
    /// a device.
    pub(super) fn distribution(self, caps: Option<&Capabilities>, order: MessageOrder) -> Distribution {
        match self {
            Sharing::UpTo(0 | 1) => Distribution::Apart,
            Sharing::UpTo(most) => Distribution::Filled(most),
            Sharing::Automatic { mapped, .. } if caps.is_some_and(|caps| caps.peer_memory) => {
                Distribution::Spread(mapped)
            }
            Sharing::Automatic { posted, .. } => match order {
                MessageOrder::Kept => Distribution::Spread(posted),
                MessageOrder::Broken => Distribution::Apart,
            },
        }
    }
}

/// How the streams of one peer are distributed, as far as its links are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    /// Each stream has a link of its own.
    Apart,
    /// A link takes so many streams before the next one is made.
    Filled(u16),
    Spread(Spread),
}

impl Distribution {
    /// Streams that this side admits on a link.
    pub(super) fn most(self) -> u16 {
        match self {
            Distribution::Apart => 1,
            Distribution::Filled(most) | Distribution::Spread(Spread { most, .. }) => most,
        }
    }

    /// The distribution where the peer admits so many streams on a link.
    pub(super) fn at_most(self, peer: u16) -> Distribution {
        match self {
            _ if peer == 1 => Distribution::Apart,
            Distribution::Apart => Distribution::Apart,
            Distribution::Filled(most) => Distribution::Filled(most.min(peer)),
            Distribution::Spread(spread) => Distribution::Spread(Spread { most: spread.most.min(peer), ..spread }),
        }
    }

    /// The number of streams that a link made now will carry, given the number of links to the peer.
    pub(super) fn planned(self, links: usize) -> usize {
        match self {
            Distribution::Spread(Spread { dedicated, .. }) if links < usize::from(dedicated) => 1,
            _ => usize::from(self.most()),
        }
    }

    /// Whether a stream goes onto a link that others use, given the number of links to the peer.
    pub(super) fn shares(self, links: usize) -> bool {
        match self {
            Distribution::Apart => false,
            Distribution::Filled(_) => true,
            Distribution::Spread(Spread { dedicated, .. }) => links >= usize::from(dedicated),
        }
    }

    /// Whether the next stream goes onto the next link, rather than onto the same one while that has room.
    pub(super) fn spreads(self) -> bool {
        matches!(self, Distribution::Spread(_))
    }
}

/// Whether a device executes the messages of its links once, and in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageOrder {
    Kept,
    /// A link has ended because of a message out of turn. SoftRoCE executes messages twice under load, where several streams
    /// have some under way, and seldom where one has.
    Broken,
}

/// The [`MessageOrder`] that was seen so far. It is never kept again, because nothing shows that a device has got better.
#[derive(Debug)]
pub(super) struct SeenOrder(AtomicU8);

impl Default for SeenOrder {
    fn default() -> SeenOrder {
        SeenOrder(AtomicU8::new(MessageOrder::Kept as u8))
    }
}

impl SeenOrder {
    pub(super) fn get(&self) -> MessageOrder {
        match self.0.load(Ordering::Relaxed) {
            kept if kept == MessageOrder::Kept as u8 => MessageOrder::Kept,
            _ => MessageOrder::Broken,
        }
    }

    /// A message has come out of turn. Returns whether it is the first.
    pub(super) fn break_off(&self) -> bool {
        self.0.swap(MessageOrder::Broken as u8, Ordering::Relaxed) == MessageOrder::Kept as u8
    }
}
