//! The kinds of devices: facts about each, and the limits that a device can be narrowed to.
//!
//! A device's kind is found from its vendor; its attributes are queried wherever the device reports them. A [`Profile`]
//! other than the device's own narrows it: SoftRoCE under the profile of eRDMA refuses the same requests as eRDMA.

use serde::{Deserialize, Serialize};

/// The kind of device whose limits apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Its own.
    #[default]
    Native,
    /// Alibaba Cloud's elastic RDMA interface.
    Erdma,
    /// The kernel's SoftRoCE.
    Rxe,
    /// The kernel's soft-iWARP.
    Siw,
    /// NVIDIA ConnectX-4 and later.
    Mlx5,
    /// The properties that all of them have, and no payload inline: the least device there may be.
    Portable,
}

/// The facts about a kind of devices that matter to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// WRITE and SEND carry immediates. Without, a message is a WRITE and a SEND after it.
    pub immediate: bool,
    /// Largest inline payload to request.
    pub max_inline: u32,
    /// Scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Depth of a queue.
    pub max_queue_depth: u32,
    /// The connection manager supports IPv6.
    pub ipv6: bool,
    /// A message without a receive waits for one; otherwise it ends the connection.
    pub waits_for_receive: bool,
    /// Listening takes the kernel's TCP port of the same number.
    pub takes_tcp_port: bool,
    /// The side that accepted may not send before it has received.
    pub initiator_sends_first: bool,
    /// The device gives up unacknowledged packets within seconds, and the queue pair with them.
    pub notices_silence: bool,
    /// The call that connects returns when the peer's kernel has answered, or TCP has given up.
    pub connect_waits: bool,
}

impl Profile {
    /// All profiles that narrow.
    pub const ALL: [Profile; 5] = [Profile::Erdma, Profile::Rxe, Profile::Siw, Profile::Mlx5, Profile::Portable];

    /// The kind of a vendor's devices, from the id that `ibv_query_device` returns. `None`: unknown.
    pub fn of_vendor(vendor_id: u32) -> Option<Profile> {
        match vendor_id {
            0x1ded => Some(Profile::Erdma),
            0x00ff_ffff => Some(Profile::Rxe),
            0x0062_6d74 => Some(Profile::Siw),
            0x02c9 => Some(Profile::Mlx5),
            _ => None,
        }
    }

    /// Entries of a completion queue to make first and keep, because of a library's fault.
    ///
    /// Soft-iWARP's library takes the mapping key 0x90000 for "no key", although its driver gives that key out like any
    /// other: an object that is to be mapped there cannot be made, and the next attempt gets the same place. Keys are
    /// given out in pages from zero, so a first queue of more than 0x90 pages (of 32 bytes an entry) covers that one
    /// permanently.
    pub(crate) fn guard_entries(self) -> Option<u32> {
        (self == Profile::Siw).then_some(20_000)
    }

    /// The facts. [`Profile::Native`] has no limits of its own.
    pub fn limits(self) -> Limits {
        match self {
            Profile::Native => Limits::NONE,
            // One WQE takes at most 6 entries or 96 bytes; one entry a receive; IPv4 in the upstream driver. A missing
            // receive causes an asynchronous event, after which the queue pair is dead. It ends connections whose
            // passive side sends first, as RFC 5044 demands, which soft-iWARP accepts. The duration of its repetition
            // of unacknowledged packets is not documented.
            Profile::Erdma => Limits {
                max_inline: 96,
                max_send_sge: 6,
                max_recv_sge: 1,
                max_queue_depth: 8192,
                ipv6: false,
                waits_for_receive: false,
                takes_tcp_port: true,
                initiator_sends_first: true,
                notices_silence: false,
                ..Limits::NONE
            },
            Profile::Rxe => {
                Limits { max_inline: 512, max_send_sge: 32, max_recv_sge: 32, max_queue_depth: 16384, ..Limits::NONE }
            }
            // No immediates at all; a missing receive ends the connection; its listeners are kernel TCP sockets, and
            // its packets go through kernel TCP connections, which repeat them for a quarter of an hour. It connects
            // that socket in the very call.
            Profile::Siw => Limits {
                immediate: false,
                max_inline: 64,
                max_send_sge: 6,
                max_recv_sge: 6,
                max_queue_depth: 16384,
                waits_for_receive: false,
                takes_tcp_port: true,
                initiator_sends_first: true,
                notices_silence: false,
                connect_waits: true,
                ..Limits::NONE
            },
            Profile::Mlx5 => {
                Limits { max_inline: 828, max_send_sge: 30, max_recv_sge: 30, max_queue_depth: 16384, ..Limits::NONE }
            }
            Profile::Portable => Limits {
                immediate: false,
                max_inline: 0,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_queue_depth: 8192,
                ipv6: false,
                waits_for_receive: false,
                takes_tcp_port: true,
                initiator_sends_first: true,
                notices_silence: false,
                connect_waits: true,
            },
        }
    }
}

impl Limits {
    /// Only the device limits anything.
    pub const NONE: Limits = Limits {
        immediate: true,
        max_inline: 1024,
        max_send_sge: u32::MAX,
        max_recv_sge: u32::MAX,
        max_queue_depth: u32::MAX,
        ipv6: true,
        waits_for_receive: true,
        takes_tcp_port: false,
        initiator_sends_first: false,
        notices_silence: true,
        connect_waits: false,
    };

    /// The limits when both apply. Never wider than either.
    #[must_use]
    pub fn narrowed_by(self, other: Limits) -> Limits {
        Limits {
            immediate: self.immediate && other.immediate,
            max_inline: self.max_inline.min(other.max_inline),
            max_send_sge: self.max_send_sge.min(other.max_send_sge),
            max_recv_sge: self.max_recv_sge.min(other.max_recv_sge),
            max_queue_depth: self.max_queue_depth.min(other.max_queue_depth),
            ipv6: self.ipv6 && other.ipv6,
            waits_for_receive: self.waits_for_receive && other.waits_for_receive,
            takes_tcp_port: self.takes_tcp_port || other.takes_tcp_port,
            initiator_sends_first: self.initiator_sends_first || other.initiator_sends_first,
            notices_silence: self.notices_silence && other.notices_silence,
            connect_waits: self.connect_waits || other.connect_waits,
        }
    }

    /// The limits of a device of that kind, or of one whose vendor is unknown. InfiniBand and RoCE devices have
    /// immediates by their specification; iWARP ones may lack them.
    pub fn of(kind: Option<Profile>, iwarp: bool) -> Limits {
        let unknown = Limits {
            immediate: !iwarp,
            waits_for_receive: !iwarp,
            takes_tcp_port: iwarp,
            initiator_sends_first: iwarp,
            notices_silence: !iwarp,
            connect_waits: iwarp,
            ..Limits::NONE
        };
        kind.map_or(unknown, Profile::limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softroce_as_erdma_has_erdmas_limits() {
        let both = Profile::Rxe.limits().narrowed_by(Profile::Erdma.limits());
        assert_eq!((both.max_inline, both.max_recv_sge, both.max_send_sge), (96, 1, 6));
        assert!(both.immediate && !both.ipv6 && !both.waits_for_receive && both.takes_tcp_port);
        assert!(both.initiator_sends_first && !Profile::Rxe.limits().initiator_sends_first);
        assert!(!both.notices_silence && Profile::Rxe.limits().notices_silence && !both.connect_waits);
    }

    #[test]
    fn narrowing_never_widens_and_has_no_order() {
        for a in Profile::ALL.map(Profile::limits) {
            assert_eq!(a.narrowed_by(a), a);
            assert_eq!(a.narrowed_by(Limits::NONE).max_send_sge, a.max_send_sge);
            for b in Profile::ALL.map(Profile::limits) {
                let both = a.narrowed_by(b);
                assert_eq!(both, b.narrowed_by(a));
                assert!(both.max_inline <= a.max_inline && both.max_recv_sge <= a.max_recv_sge);
                assert!(!both.immediate || a.immediate);
                assert!(!both.waits_for_receive || a.waits_for_receive);
                assert!(both.initiator_sends_first || !a.initiator_sends_first);
                assert!(!both.notices_silence || a.notices_silence);
                assert!(both.connect_waits || !a.connect_waits);
            }
        }
    }

    /// Breaks if some device could do less than the portable one.
    #[test]
    fn portable_is_the_least() {
        let least = Profile::Portable.limits();
        assert_eq!(least.max_inline, 0);
        for other in Profile::ALL.map(Profile::limits) {
            assert_eq!(least.narrowed_by(other), least);
        }
    }

    #[test]
    fn listening_at_tcp_ports_follows_from_kind_or_else_from_transport() {
        let takes = |kind, iwarp| Limits::of(kind, iwarp).takes_tcp_port;
        assert!(takes(Some(Profile::Siw), true) && takes(Some(Profile::Erdma), true) && takes(None, true));
        assert!(!takes(Some(Profile::Rxe), false) && !takes(Some(Profile::Mlx5), false) && !takes(None, false));
    }

    #[test]
    fn vendors() {
        assert_eq!(Profile::of_vendor(0x1ded), Some(Profile::Erdma));
        assert_eq!(Profile::of_vendor(0), None);
    }
}
