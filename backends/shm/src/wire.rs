//! Messages on a pair's socket: control path only. One message per packet, fixed little-endian layout.
//!
//! Packets keep their order and their boundaries (SOCK_SEQPACKET), so a message is complete or refused.

use std::net::{IpAddr, Ipv6Addr};

use netacc_device::{RemoteKey, RemoteRegion, MAX_PRIVATE_DATA};

/// Largest packet.
pub(crate) const MAX_PACKET: usize = 128;

const MAGIC: u32 = 0x6e61_6363;
const VERSION: u32 = 4;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// First packet of the connecting side. Descriptor: its doorbell page.
    Hello { slot: u32, token: [u64; 2], segment_bytes: u64 },
    /// The answer. Descriptors: segment, its doorbell page.
    Welcome { segment_bytes: u64 },
    /// Requests a queue pair at index `qp`; the sender's half of it is ready, with `region` as its first.
    Request { qp: u16, region: RemoteRegion, private_data: Vec<u8> },
    /// The queue pair exists on both sides; `region` is the sender's first.
    Accept { qp: u16, region: RemoteRegion },
    /// It does not.
    Reject { qp: u16 },
    /// The sender has destroyed its end and will not touch the index again.
    Close { qp: u16 },
    /// Descriptor: the wake descriptor of a completion queue of the sender's. Answers a `Wake` that requested it.
    WakeFd { cq: u8 },
    /// Wakes the threads that sleep on a completion queue of the receiver's, for a sender that has no wake descriptor
    /// of it. `wants_fd`: the sender requests one.
    Wake { cq: u8, wants_fd: bool },
    /// Requests that the receiver opens a UDP socket at an address, or closes it, for the unspecified address.
    Probe { address: IpAddr },
    /// The port of that socket; 0: it cannot be opened.
    Probing { address: IpAddr, port: u16 },
    /// A datagram that has come there.
    Probed { nonce: [u64; 2] },
}

impl Message {
    /// The packet.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut p = Vec::with_capacity(MAX_PACKET);
        match self {
            Message::Hello { slot, token, segment_bytes } => {
                p.extend([1, 0, 0, 0]);
                p.extend(MAGIC.to_le_bytes());
                p.extend(VERSION.to_le_bytes());
                p.extend(slot.to_le_bytes());
                p.extend(token[0].to_le_bytes());
                p.extend(token[1].to_le_bytes());
                p.extend(segment_bytes.to_le_bytes());
            }
            Message::Welcome { segment_bytes } => {
                p.extend([2, 0, 0, 0]);
                p.extend(segment_bytes.to_le_bytes());
            }
            Message::Request { qp, region, private_data } => {
                debug_assert!(private_data.len() <= MAX_PRIVATE_DATA);
                put_head(&mut p, 3, private_data.len() as u8, *qp);
                put_region(&mut p, region);
                p.extend(private_data);
            }
            Message::Accept { qp, region } => {
                put_head(&mut p, 4, 0, *qp);
                put_region(&mut p, region);
            }
            Message::Reject { qp } => put_head(&mut p, 5, 0, *qp),
            Message::Close { qp } => put_head(&mut p, 6, 0, *qp),
            Message::WakeFd { cq } => p.extend([7, *cq, 0, 0]),
            Message::Wake { cq, wants_fd } => p.extend([8, *cq, u8::from(*wants_fd), 0]),
            Message::Probe { address } => {
                p.extend([9, 0, 0, 0]);
                p.extend(octets(*address));
            }
            Message::Probing { address, port } => {
                put_head(&mut p, 10, 0, *port);
                p.extend(octets(*address));
            }
            Message::Probed { nonce } => {
                p.extend([11, 0, 0, 0]);
                nonce.iter().for_each(|word| p.extend(word.to_le_bytes()));
            }
        }
        p
    }

    /// The message in a packet, or `None` for anything else: the peer is then cut off.
    pub(crate) fn decode(p: &[u8]) -> Option<Message> {
        let u16_at = |at: usize| Some(u16::from_le_bytes(p.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(p.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(p.get(at..at + 8)?.try_into().ok()?));
        let region = || Some(RemoteRegion { rkey: RemoteKey(u32_at(4)?), len: u32_at(8)?, base: u64_at(12)? });
        let byte = *p.get(1)?;
        let exact = |len: usize| (p.len() == len).then_some(());
        match p[0] {
            1 => {
                exact(40)?;
                (u32_at(4)? == MAGIC && u32_at(8)? == VERSION).then_some(())?;
                Some(Message::Hello {
                    slot: u32_at(12)?,
                    token: [u64_at(16)?, u64_at(24)?],
                    segment_bytes: u64_at(32)?,
                })
            }
            2 => {
                exact(12)?;
                Some(Message::Welcome { segment_bytes: u64_at(4)? })
            }
            3 => {
                (usize::from(byte) <= MAX_PRIVATE_DATA).then_some(())?;
                exact(20 + usize::from(byte))?;
                Some(Message::Request { qp: u16_at(2)?, region: region()?, private_data: p[20..].to_vec() })
            }
            4 => exact(20).and(Some(Message::Accept { qp: u16_at(2)?, region: region()? })),
            5 => exact(4).and(Some(Message::Reject { qp: u16_at(2)? })),
            6 => exact(4).and(Some(Message::Close { qp: u16_at(2)? })),
            7 => exact(4).and(Some(Message::WakeFd { cq: byte })),
            8 => exact(4).and(Some(Message::Wake { cq: byte, wants_fd: p[2] != 0 })),
            9 => exact(20).and(Some(Message::Probe { address: address_at(p, 4)? })),
            10 => exact(20).and(Some(Message::Probing { address: address_at(p, 4)?, port: u16_at(2)? })),
            11 => exact(20).and(Some(Message::Probed { nonce: [u64_at(4)?, u64_at(12)?] })),
            _ => None,
        }
    }
}

/// IPv4 as IPv4-mapped IPv6.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address_at(p: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = p.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).to_canonical())
}

fn put_head(p: &mut Vec<u8>, kind: u8, byte: u8, qp: u16) {
    p.extend([kind, byte]);
    p.extend(qp.to_le_bytes());
}

fn put_region(p: &mut Vec<u8>, region: &RemoteRegion) {
    p.extend(region.rkey.0.to_le_bytes());
    p.extend(region.len.to_le_bytes());
    p.extend(region.base.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trip() {
        let region = RemoteRegion { rkey: RemoteKey(77), len: 4096, base: 1 << 40 };
        for m in [
            Message::Hello { slot: 7, token: [1, u64::MAX], segment_bytes: 1 << 30 },
            Message::Welcome { segment_bytes: 1 << 26 },
            Message::Request { qp: 4095, region, private_data: vec![9; MAX_PRIVATE_DATA] },
            Message::Accept { qp: 0x1234, region },
            Message::Reject { qp: 2 },
            Message::Close { qp: 3 },
            Message::WakeFd { cq: 7 },
            Message::Wake { cq: 6, wants_fd: true },
            Message::Wake { cq: 0, wants_fd: false },
            Message::Probe { address: [10, 0, 0, 1].into() },
            Message::Probing { address: [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(), port: 54321 },
            Message::Probed { nonce: [1, u64::MAX] },
        ] {
            let p = m.encode();
            assert!(p.len() <= MAX_PACKET);
            assert_eq!(Message::decode(&p), Some(m));
        }
    }

    proptest! {
        /// Any bytes decode to nothing or to a message that encodes to the same bytes, up to ignored padding.
        #[test]
        fn garbage(p in prop::collection::vec(any::<u8>(), 0..MAX_PACKET)) {
            if let Some(m) = Message::decode(&p) {
                prop_assert_eq!(m.encode().len(), p.len());
            }
        }
    }
}
