//! Control messages: what the kernel says of a datagram, and what a program asks for when it sends one.
//!
//! Those of a datagram in a ring are the kernel's own words: the messages that came with an earlier datagram of the same
//! flow, whose two addresses are the same. So interface numbers and the order of messages are right as well. What differs
//! between datagrams of a flow is written anew: the time to live, the type of service, times, and the count of those dropped.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netacc_datagram::Marks;

use crate::os::sockopt::{SO_TIMESTAMPING_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMP_NEW};

/// Bytes of a message's header: a length of 8 bytes, the level and the type. Messages begin at multiples of 8.
const HEADER: usize = size_of::<libc::cmsghdr>();
/// The longest control messages that are looked at: more than all kinds together.
pub const MOST: usize = 384;
/// Bytes of the message that counts datagrams that were dropped, with what it is padded to.
const COUNT: usize = HEADER + 8;

/// The control messages of the datagrams of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    bytes: [u8; MOST],
    len: usize,
    destination: Option<IpAddr>,
}

/// The values of control messages that differ between the datagrams of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    /// Of the IP header.
    pub marks: Marks,
    /// When it was sent, in nanoseconds since 1970.
    pub time: u64,
    /// How many datagrams were dropped before it, if that is to be said.
    pub dropped: Option<u32>,
}

/// What the control messages of a call that sends ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Something that a ring can serve.
    Usual(Asked),
    /// Something else, or nothing that the kernel accepts, with the length of datagrams as in [`Asked`].
    Other(Option<u16>),
}

/// The requests in the control messages of one datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The address from which it is to come.
    pub source: Option<IpAddr>,
    /// For one that goes to an IPv4 address: time to live and type of service.
    v4: Header,
    /// For one that goes to an IPv6 address: hop limit and traffic class.
    v6: Header,
    /// The length of the datagrams into which the bytes are to be split.
    pub segment: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    ttl: Option<u8>,
    tos: Option<u8>,
}

impl Asked {
    /// The marks of a datagram to an address of that family, of a socket with the given ones. `None` if it asks for those of
    /// the other family: the kernel judges.
    pub fn marks(&self, is_v4: bool, usual: Marks) -> Option<Marks> {
        let (own, other) = if is_v4 { (self.v4, self.v6) } else { (self.v6, self.v4) };
        let marks = Marks { ttl: own.ttl.unwrap_or(usual.ttl), tos: own.tos.unwrap_or(usual.tos) };
        (other == Header::default()).then_some(marks)
    }
}

#[derive(Clone, Copy)]
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

/// What the kernel says with a message.
enum Said {
    /// The address to which the datagram was sent.
    Destination(IpAddr),
    /// Something that is written anew for each datagram.
    Value,
    /// Something that not all datagrams have, and those in rings never or from elsewhere.
    Occasional,
    Unknown,
}

/// The number of datagrams that a message of `UDP_GRO` says were joined, of so many bytes.
pub fn joined(control: &[u8], bytes: usize) -> Option<u64> {
    let message = messages(control).flatten().find(|m| (m.level, m.kind) == (libc::SOL_UDP, libc::UDP_GRO))?;
    let segment = i32::from_ne_bytes(message.data.get(..4)?.try_into().ok()?);
    let segment = usize::try_from(segment).ok().filter(|segment| *segment > 0)?;
    Some(bytes.div_ceil(segment) as u64)
}

/// Adds to the number of datagrams that the kernel says it has dropped. Returns the length of all messages: the kernel says
/// nothing if it has dropped none, and `control` may have room behind the first `len` bytes.
pub fn add_dropped(control: &mut [u8], len: usize, more: u32) -> usize {
    let mut at = 0;
    let count = messages(&control[..len]).flatten().find_map(|message| {
        let is_it = (message.level, message.kind) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
        let place = at + HEADER;
        at += (HEADER + message.data.len()).next_multiple_of(8);
        is_it.then(|| message.data.try_into().ok().map(|count| (place, u32::from_ne_bytes(count))))?
    });
    if let Some((place, count)) = count {
        control[place..place + 4].copy_from_slice(&count.wrapping_add(more).to_ne_bytes());
        return len;
    }
    let mut writer = Writer { to: control, len: len.next_multiple_of(8), is_cut: false };
    if writer.to.len() < writer.len + COUNT {
        return len;
    }
    writer.put(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &more.to_ne_bytes());
    writer.len
}

/// Writes messages for a send by the kernel of one datagram: its marks, with whether IPv4 carries it, and that it is not to be
/// split. Returns their length.
pub(super) fn request(marks: Option<(bool, Marks)>, is_never_split: bool, to: &mut [u8]) -> usize {
    let mut writer = Writer { to, len: 0, is_cut: false };
    if let Some((is_v4, marks)) = marks {
        let (level, ttl, tos) = match is_v4 {
            true => (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS),
            false => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS),
        };
        writer.put(level, ttl, &c_int::from(marks.ttl).to_ne_bytes());
        writer.put(level, tos, &c_int::from(marks.tos).to_ne_bytes());
    }
    if is_never_split {
        writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, &0u16.to_ne_bytes());
    }
    writer.len
}

impl Message<'_> {
    fn said(&self) -> Said {
        let destination = match (self.level, self.kind) {
            // The last field of an `in_pktinfo`, or the first of an `in6_pktinfo`.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => self.data.get(8..12).and_then(v4),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => self.data.get(..16).and_then(v6),
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) | (libc::SOL_UDP, libc::UDP_GRO) => return Said::Occasional,
            _ => return if self.value(&NO_VALUES).is_some() { Said::Value } else { Said::Unknown },
        };
        destination.map_or(Said::Unknown, Said::Destination)
    }

    /// The bytes of the message for a datagram with these values, if they depend on them.
    fn value(&self, values: &Values) -> Option<Value> {
        let (seconds, nanos) = (values.time / 1_000_000_000, values.time % 1_000_000_000);
        let value = match (self.level, self.kind) {
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT | libc::IPV6_TCLASS) => {
                let is_class = self.kind == libc::IPV6_TCLASS && self.level == libc::IPPROTO_IPV6;
                Value::of_int(if is_class { values.marks.tos } else { values.marks.ttl }.into())
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => Value::of(&[values.marks.tos]),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMP | SO_TIMESTAMP_NEW) => Value::of_time(seconds, nanos / 1000, 16),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS | SO_TIMESTAMPNS_NEW) => Value::of_time(seconds, nanos, 16),
            // The first of three times is the software's; the others have to be empty.
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW)
                if self.data.len() == 48 && self.data[16..].iter().all(|byte| *byte == 0) =>
            {
                Value::of_time(seconds, nanos, 48)
            }
            _ => return None,
        };
        (value.len == self.data.len()).then_some(value)
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

    /// A number of the header that the program asks for, as the kernel accepts it.
    fn number(&self) -> Option<u8> {
        let number = match <[u8; 4]>::try_from(self.data) {
            Ok(int) => u8::try_from(i32::from_ne_bytes(int)).ok()?,
            // The kernel takes a byte for the type of service alone.
            Err(_) if (self.level, self.kind, self.data.len()) == (libc::IPPROTO_IP, libc::IP_TOS, 1) => self.data[0],
            Err(_) => return None,
        };
        Some(number)
    }
}

const NO_VALUES: Values = Values { marks: Marks { ttl: 0, tos: 0 }, time: 0, dropped: None };

/// The data of a message.
struct Value {
    bytes: [u8; 48],
    len: usize,
}

impl Value {
    fn of(data: &[u8]) -> Value {
        let mut bytes = [0; 48];
        bytes[..data.len()].copy_from_slice(data);
        Value { bytes, len: data.len() }
    }

    fn of_int(int: i32) -> Value {
        Value::of(&int.to_ne_bytes())
    }

    fn of_time(seconds: u64, fraction: u64, len: usize) -> Value {
        let mut value = Value::of(&seconds.to_ne_bytes());
        value.bytes[8..16].copy_from_slice(&fraction.to_ne_bytes());
        value.len = len;
        value
    }
}

/// Writes messages into a buffer, cut as the kernel cuts them.
struct Writer<'a> {
    to: &'a mut [u8],
    len: usize,
    is_cut: bool,
}

impl Writer<'_> {
    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let left = self.to.len() - self.len;
        if left < HEADER {
            self.is_cut = true;
            return;
        }
        let len = (HEADER + data.len()).min(left);
        self.is_cut |= len < HEADER + data.len();
        let place = &mut self.to[self.len..];
        place[..8].copy_from_slice(&len.to_ne_bytes());
        place[8..12].copy_from_slice(&level.to_ne_bytes());
        place[12..HEADER].copy_from_slice(&kind.to_ne_bytes());
        place[HEADER..len].copy_from_slice(&data[..len - HEADER]);
        let end = len.next_multiple_of(8).min(left);
        place[len..end].fill(0);
        self.len += end;
    }
}

impl Messages {
    /// Of the control messages that the kernel has written. `None` if there are any of an unknown kind.
    pub fn of_kernel(control: &[u8]) -> Option<Messages> {
        let mut known = Messages { bytes: [0; MOST], len: 0, destination: None };
        let mut writer = Writer { to: &mut known.bytes, len: 0, is_cut: false };
        for message in messages(control) {
            let message = message?;
            match message.said() {
                Said::Destination(destination) => known.destination = Some(destination),
                Said::Value => {}
                Said::Occasional => continue,
                Said::Unknown => return None,
            }
            // Messages with values that the receiver writes anew are left out, so that the same messages are equal.
            let value = message.value(&NO_VALUES);
            writer.put(message.level, message.kind, value.as_ref().map_or(message.data, |v| &v.bytes[..v.len]));
        }
        let (len, is_cut) = (writer.len, writer.is_cut);
        known.len = len;
        (!is_cut).then_some(known)
    }

    /// The address to which the datagrams are sent, if the messages say so.
    pub fn destination(&self) -> Option<IpAddr> {
        self.destination
    }

    /// Whether they have the times of `SO_TIMESTAMPING`.
    pub fn have_times(&self) -> bool {
        let is_it = |kind| matches!(kind, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW);
        messages(&self.bytes[..self.len]).flatten().any(|m| m.level == libc::SOL_SOCKET && is_it(m.kind))
    }

    /// Writes the messages of a datagram for a program with so much room, cut as the kernel cuts them. Returns their length,
    /// and whether they are cut.
    pub fn write(&self, values: &Values, to: &mut [u8]) -> (usize, bool) {
        let mut writer = Writer { to, len: 0, is_cut: false };
        // The kernel says nothing if it has dropped none, and else so after the times.
        let mut dropped = values.dropped.filter(|count| *count > 0);
        for message in messages(&self.bytes[..self.len]).flatten() {
            if message.level != libc::SOL_SOCKET {
                if let Some(count) = dropped.take() {
                    writer.put(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &count.to_ne_bytes());
                }
            }
            let value = message.value(values);
            writer.put(message.level, message.kind, value.as_ref().map_or(message.data, |v| &v.bytes[..v.len]));
        }
        if let Some(count) = dropped {
            writer.put(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &count.to_ne_bytes());
        }
        (writer.len, writer.is_cut)
    }
}

impl Control {
    /// Nothing.
    pub const NOTHING: Control = Control::Usual(Asked {
        source: None,
        v4: Header { ttl: None, tos: None },
        v6: Header { ttl: None, tos: None },
        segment: None,
    });

    /// Of the control messages of a program.
    pub fn of_program(control: &[u8]) -> Control {
        let mut asked = Asked::default();
        let mut is_usual = true;
        for message in messages(control) {
            is_usual &= message.and_then(|message| asked.add(&message)).is_some();
        }
        if is_usual {
            Control::Usual(asked)
        } else {
            Control::Other(asked.segment)
        }
    }
}

impl Asked {
    /// Adds a message; `None` if the kernel must judge it. Each may be there once.
    fn add(&mut self, message: &Message<'_>) -> Option<()> {
        let place = match (message.level, message.kind) {
            (libc::IPPROTO_IP, libc::IP_TTL) => &mut self.v4.ttl,
            (libc::IPPROTO_IP, libc::IP_TOS) => &mut self.v4.tos,
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => &mut self.v6.ttl,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => &mut self.v6.tos,
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                let segment = u16::from_ne_bytes(message.data.try_into().ok()?);
                return self.segment.replace(segment).is_none().then_some(());
            }
            _ => {
                let source = message.source()?;
                return self.source.replace(source).is_none().then_some(());
            }
        };
        let is_lifetime = matches!(message.kind, libc::IP_TTL | libc::IPV6_HOPLIMIT);
        let number = message.number().filter(|number| !is_lifetime || *number > 0)?;
        place.replace(number).is_none().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: Values = Values { marks: Marks { ttl: 9, tos: 8 }, time: 5_000_000_123, dropped: Some(0) };

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

    fn int(level: i32, kind: i32, value: i32) -> Vec<u8> {
        message(level, kind, &value.to_ne_bytes())
    }

    fn written(known: &Messages, values: &Values, room: usize) -> (Vec<u8>, bool) {
        let mut to = vec![0xee; room];
        let (len, is_cut) = known.write(values, &mut to);
        (to[..len].to_vec(), is_cut)
    }

    #[test]
    fn destinations_are_the_kernels() {
        let destination = |control: &[u8]| Messages::of_kernel(control).map(|known| known.destination());
        let address = |text: &str| Some(Some(text.parse().unwrap()));
        assert_eq!(destination(&of_v4(1)), address("127.0.0.2"));
        assert_eq!(destination(&of_v6()), address("127.0.0.3"));
        assert_eq!(destination(&[of_v6(), of_v4(1)].concat()), address("127.0.0.2"));
        assert_eq!(destination(&[]), Some(None));
        let unknown = message(libc::IPPROTO_IP, libc::IP_OPTIONS, &[1]);
        assert_eq!(destination(&[of_v4(1), unknown].concat()), None);
        assert_eq!(destination(&of_v4(1)[..24]), None);
    }

    #[test]
    fn what_differs_between_datagrams_is_written_anew() {
        let (ttl, tos) = (int(libc::IPPROTO_IP, libc::IP_TTL, 64), message(libc::IPPROTO_IP, libc::IP_TOS, &[0]));
        let first = |kind, time: [u64; 2], len| {
            let mut data: Vec<u8> = time.into_iter().flat_map(u64::to_ne_bytes).collect();
            data.resize(len, 0);
            message(libc::SOL_SOCKET, kind, &data)
        };
        let times = |seconds, nanos| {
            let all = [(libc::SO_TIMESTAMP, nanos / 1000, 16), (libc::SO_TIMESTAMPING, nanos, 48)];
            all.map(|(kind, fraction, len)| first(kind, [seconds, fraction], len)).concat()
        };
        let known = Messages::of_kernel(&[times(1, 2000), of_v4(1), ttl, tos].concat()).unwrap();
        let (ttl, tos) = (int(libc::IPPROTO_IP, libc::IP_TTL, 9), message(libc::IPPROTO_IP, libc::IP_TOS, &[8]));
        let rest = [of_v4(1), ttl, tos].concat();
        assert_eq!(written(&known, &VALUES, MOST), ([times(5, 123), rest.clone()].concat(), false));
        let count = int(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 7);
        let values = Values { dropped: Some(7), ..VALUES };
        assert_eq!(written(&known, &values, MOST), ([times(5, 123), count, rest].concat(), false));
        let six = |hops, class| {
            [int(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, hops), int(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class)]
                .concat()
        };
        let known = Messages::of_kernel(&six(64, 0)).unwrap();
        assert_eq!(written(&known, &VALUES, MOST), (six(9, 8), false));
        let mut hardware = first(libc::SO_TIMESTAMPING, [1, 1], 48);
        hardware[HEADER + 40] = 1;
        assert_eq!(Messages::of_kernel(&hardware), None, "a ring has no such time");
    }

    #[test]
    fn the_counts_of_the_kernel_and_of_rings_are_one() {
        let mut control = [int(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 3), of_v4(1)].concat();
        let len = control.len();
        assert_eq!(add_dropped(&mut control, len, 4), len);
        assert_eq!(control, [int(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 7), of_v4(1)].concat());
        let mut control = [of_v4(1), vec![0; COUNT]].concat();
        let len = control.len();
        assert_eq!(add_dropped(&mut control, len - COUNT, 4), len);
        assert_eq!(control, [of_v4(1), int(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 4)].concat());
        let len = of_v4(1).len();
        assert_eq!(add_dropped(&mut control[..len + 8], len, 4), len, "no room");
    }

    //= spec §10.2.5
    //= type=test
    //# A receiver for which the kernel joins datagrams (`UDP_GRO`) counts each of them.
    #[test]
    fn joined_datagrams_are_counted() {
        let control = [of_v4(1), int(libc::SOL_UDP, libc::UDP_GRO, 100)].concat();
        assert_eq!(joined(&control, 250), Some(3));
        assert_eq!(joined(&of_v4(1), 250), None);
        assert_eq!(joined(&int(libc::SOL_UDP, libc::UDP_GRO, 0), 250), None);
    }

    #[test]
    fn what_a_program_asks_for_is_what_the_kernel_would_accept() {
        let asked = |control: &[u8]| match Control::of_program(control) {
            Control::Usual(asked) => Some(asked),
            Control::Other(_) => None,
        };
        let source = |text: &str| Some(Asked { source: Some(text.parse().unwrap()), ..Asked::default() });
        assert_eq!(Control::of_program(&[]), Control::NOTHING);
        assert_eq!(asked(&of_v4(0)), source("127.0.0.1"));
        assert_eq!(asked(&of_v6()), source("127.0.0.3"));
        let ttl = |value| int(libc::IPPROTO_IP, libc::IP_TTL, value);
        let others = [
            of_v4(1),
            [of_v4(0), of_v4(0)].concat(),
            ttl(0),
            ttl(256),
            ttl(-1),
            message(libc::IPPROTO_IP, libc::IP_TTL, &[9]),
            [ttl(1), ttl(2)].concat(),
            message(libc::SOL_UDP, libc::UDP_SEGMENT, &[9]),
        ];
        assert!(others.iter().all(|control| Control::of_program(control) == Control::Other(None)));
        // No length that a program writes is believed.
        for len in [0, 1, 15, 16, 17, 1000, usize::MAX] {
            let mut bytes = of_v4(0);
            bytes[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Control::of_program(&bytes), Control::Other(None), "{len}");
        }
        let usual = Marks { ttl: 64, tos: 4 };
        let both = asked(&[ttl(9), message(libc::IPPROTO_IP, libc::IP_TOS, &[8])].concat()).unwrap();
        assert_eq!(both.marks(true, usual), Some(Marks { ttl: 9, tos: 8 }));
        assert_eq!(both.marks(false, usual), None, "the kernel ignores them, or does not");
        let six = asked(&int(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 12)).unwrap();
        assert_eq!(six.marks(false, usual), Some(Marks { ttl: 64, tos: 12 }));
        let split = asked(&message(libc::SOL_UDP, libc::UDP_SEGMENT, &100u16.to_ne_bytes())).unwrap();
        assert_eq!(split.segment, Some(100));
    }

    #[test]
    fn what_has_no_room_is_cut() {
        let known = Messages::of_kernel(&of_v4(1)).unwrap();
        assert_eq!(written(&known, &VALUES, 100), (of_v4(1), false));
        assert_eq!(written(&known, &VALUES, 28), (of_v4(1)[..28].to_vec(), false));
        assert_eq!(written(&known, &VALUES, 15), (Vec::new(), true));
        let (cut, is_cut) = written(&known, &VALUES, 24);
        assert_eq!((cut.len(), cut[0], is_cut), (24, 24, true));
        let both = Messages::of_kernel(&[of_v6(), of_v4(1)].concat()).unwrap();
        assert_eq!(written(&both, &VALUES, 40), (of_v6(), true));
    }
}
