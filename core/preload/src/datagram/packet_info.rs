//! Control messages that say to which address a datagram was sent (`IP_PKTINFO`, `IPV6_PKTINFO`), or from which one to send it.
//!
//! Those of a datagram in a ring are the kernel's own words: the messages that came with an earlier datagram of the same
//! flow, whose two addresses are the same. So interface numbers are right as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a message's header: a length of 8 bytes, the level and the type. Messages begin at multiples of 8.
const HEADER: usize = size_of::<libc::cmsghdr>();
/// The longest control messages that are looked at: more than both kinds together.
pub const MOST: usize = 128;

/// The control messages of a datagram, which name its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    bytes: [u8; MOST],
    len: usize,
    destination: IpAddr,
}

/// What the control messages of a call that sends ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// There are none.
    Nothing,
    /// The datagram is to come from this address.
    From(IpAddr),
    /// Something else.
    Other,
}

struct Message<'a> {
    level: i32,
    kind: i32,
    data: &'a [u8],
}

/// The messages in a buffer; `None` at one that does not fit in it.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = Option<Message<'_>>> {
    std::iter::from_fn(move || {
        let (header, _) = rest.split_at_checked(HEADER)?;
        let (len, kind) = header.split_at(8);
        let len = usize::from_ne_bytes(len.try_into().expect("8 bytes"));
        let word = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().expect("4 bytes"));
        let message =
            rest.get(HEADER..len).map(|data| Message { level: word(&kind[..4]), kind: word(&kind[4..]), data });
        let next = len.max(HEADER).checked_next_multiple_of(8);
        rest = next.and_then(|next| rest.get(next..)).unwrap_or_default();
        Some(message)
    })
}

fn v4(bytes: &[u8]) -> Option<IpAddr> {
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into())
}

fn v6(bytes: &[u8]) -> Option<IpAddr> {
    Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical())
}

impl Message<'_> {
    /// The destination that the kernel names: the last field of an `in_pktinfo`, or the first of an `in6_pktinfo`.
    fn destination(&self) -> Option<IpAddr> {
        match (self.level, self.kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => v4(self.data.get(8..12)?),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => v6(self.data.get(..16)?),
            _ => None,
        }
    }

    /// The source that the program asks for, unless it asks for an interface as well.
    fn source(&self) -> Option<IpAddr> {
        let (interface, source) = match (self.level, self.kind, self.data.len()) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12) => (&self.data[..4], v4(&self.data[4..8])?),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20) => (&self.data[16..], v6(&self.data[..16])?),
            _ => return None,
        };
        interface.iter().all(|byte| *byte == 0).then_some(source)
    }
}

impl PacketInfo {
    /// Of the control messages that the kernel has written. `None` if there are none, or others as well.
    pub fn of_kernel(control: &[u8]) -> Option<PacketInfo> {
        let mut destination = None;
        for message in messages(control) {
            destination = Some(message?.destination()?);
        }
        let mut bytes = [0; MOST];
        bytes.get_mut(..control.len())?.copy_from_slice(control);
        Some(PacketInfo { bytes, len: control.len(), destination: destination? })
    }

    /// The address to which the datagrams are sent.
    pub fn destination(&self) -> IpAddr {
        self.destination
    }

    /// The messages for a program that has room for so many bytes, cut as the kernel cuts them; and whether they are cut.
    pub fn cut(&self, room: usize) -> (Vec<u8>, bool) {
        let mut cut = Vec::new();
        for message in messages(&self.bytes[..self.len]).flatten() {
            let left = room.saturating_sub(cut.len());
            if left < HEADER {
                return (cut, true);
            }
            let len = HEADER + message.data.len();
            cut.extend(len.min(left).to_ne_bytes());
            cut.extend(message.level.to_ne_bytes());
            cut.extend(message.kind.to_ne_bytes());
            cut.extend(&message.data[..len.min(left) - HEADER]);
            if len > left {
                return (cut, true);
            }
            cut.resize(cut.len().next_multiple_of(8).min(room), 0);
        }
        (cut, false)
    }
}

impl Control {
    /// Of the control messages of a program.
    pub fn of_program(control: &[u8]) -> Control {
        let mut asked = Control::Nothing;
        for message in messages(control) {
            let source = message.and_then(|message| message.source());
            asked = match (asked, source) {
                (Control::Nothing, Some(source)) => Control::From(source),
                _ => return Control::Other,
            };
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from((HEADER + data.len()).to_ne_bytes());
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn of_v4(interface: u8) -> Vec<u8> {
        message(libc::IPPROTO_IP, libc::IP_PKTINFO, &[interface, 0, 0, 0, 127, 0, 0, 1, 127, 0, 0, 2])
    }

    fn of_v6() -> Vec<u8> {
        let mut data = [0; 20];
        data[10..16].copy_from_slice(&[255, 255, 127, 0, 0, 3]);
        message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data)
    }

    #[test]
    fn destinations_are_the_kernels() {
        let destination = |control: &[u8]| PacketInfo::of_kernel(control).map(|info| info.destination().to_string());
        assert_eq!(destination(&of_v4(1)), Some("127.0.0.2".into()));
        assert_eq!(destination(&of_v6()), Some("127.0.0.3".into()));
        assert_eq!(destination(&[of_v6(), of_v4(1)].concat()), Some("127.0.0.2".into()));
        assert_eq!(destination(&[]), None);
        let ttl = message(libc::IPPROTO_IP, libc::IP_TTL, &[64, 0, 0, 0]);
        assert_eq!(destination(&[of_v4(1), ttl].concat()), None);
        assert_eq!(destination(&of_v4(1)[..24]), None);
    }

    #[test]
    fn sources_are_those_that_a_program_asks_for() {
        assert_eq!(Control::of_program(&[]), Control::Nothing);
        assert_eq!(Control::of_program(&of_v4(0)), Control::From("127.0.0.1".parse().unwrap()));
        assert_eq!(Control::of_program(&of_v6()), Control::From("127.0.0.3".parse().unwrap()));
        let others = [of_v4(1), [of_v4(0), of_v4(0)].concat(), message(0, libc::IP_TTL, &[9, 0, 0, 0])];
        assert!(others.iter().all(|control| Control::of_program(control) == Control::Other));
        // No length that a program writes is believed.
        for len in [0, 1, 15, 16, 17, 1000, usize::MAX] {
            let mut bytes = of_v4(0);
            bytes[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Control::of_program(&bytes), Control::Other, "{len}");
        }
    }

    #[test]
    fn what_has_no_room_is_cut() {
        let info = PacketInfo::of_kernel(&of_v4(1)).unwrap();
        assert_eq!(info.cut(100), (of_v4(1), false));
        assert_eq!(info.cut(28), (of_v4(1)[..28].to_vec(), false));
        assert_eq!(info.cut(15), (Vec::new(), true));
        let (cut, is_cut) = info.cut(24);
        assert_eq!((cut.len(), cut[0], is_cut), (24, 24, true));
        let both = PacketInfo::of_kernel(&[of_v6(), of_v4(1)].concat()).unwrap();
        assert_eq!(both.cut(40), (of_v6(), true));
    }
}
