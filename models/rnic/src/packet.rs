//! Packets between modelled NICs: a header of plain values and a length. Payload is virtual.
//!
//! Sizes on the wire are those of RoCEv2 over Ethernet, all of the frame counted, as it occupies the link:
//! preamble and inter-frame gap (20 bytes), Ethernet header and check sequence (18), IPv4 (20), UDP (8), BTH (12),
//! ICRC (4); RETH (16), AETH (4) and ImmDt (4) where the packet has them (InfiniBand Architecture Specification,
//! volume 1, chapter 9 and annex A17). An iWARP device differs by a few bytes a packet.
//!
//! Packet sequence numbers are 64 bits wide and never wrap; the 24 bits of the real header bound only what may be in
//! flight, and every window here is far below that.

use netacc_device::{QueuePairId, RemoteKey};

use crate::telemetry::{Telemetry, TELEMETRY_BYTES};

/// A NIC on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Bytes of every frame on the link beside what its kind adds.
const FRAME_BYTES: u32 = 20 + 18 + 20 + 8 + 12 + 4;
/// Remote address, key and length, in the first packet of a WRITE; with selective repeat in each, as a packet that comes
/// out of order must be placeable by itself (IRN, SIGCOMM 2018, section 5.3).
const RETH_BYTES: u32 = 16;
/// A UDP datagram's frame without its payload.
const DATAGRAM_BYTES: u32 = 20 + 18 + 20 + 8;
const AETH_BYTES: u32 = 4;
const IMMEDIATE_BYTES: u32 = 4;
/// A congestion notification has 16 reserved bytes (RoCEv2 annex, A17.9.3).
const NOTIFICATION_BYTES: u32 = 16;
/// A connection manager's datagram: a MAD of 256 bytes with its DETH.
const CONTROL_BYTES: u32 = 256 + 8;
/// The smallest Ethernet frame, with preamble and gap.
const MIN_FRAME_BYTES: u32 = 84;

/// One packet. Plain and small, so that simulators may copy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender.
    pub src: NodeId,
    /// The destination.
    pub dst: NodeId,
    /// The queue pair that sent it. For a network that spreads flows over paths.
    pub src_qp: QueuePairId,
    /// The queue pair it is for. Meaningless in control datagrams.
    pub dst_qp: QueuePairId,
    /// All of the frame, as it occupies a link, in bytes.
    pub wire_bytes: u32,
    /// Congestion Experienced: set by a switch.
    pub congestion: bool,
    /// The telemetry that switches have added to data on its way. An acknowledgement brings it back.
    pub telemetry: Option<Telemetry>,
    /// The content.
    pub body: Body,
}

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A piece of a message.
    Data {
        /// Its sequence number.
        psn: u64,
        /// The responder shall acknowledge at once.
        ack_request: bool,
        /// The piece.
        segment: Segment,
    },
    /// Everything below `expected` has arrived.
    Ack {
        /// The next sequence number.
        expected: u64,
    },
    /// Everything below `expected` has arrived, and something is wrong.
    Nak {
        /// The next sequence number: the one that is missing, or refused.
        expected: u64,
        /// The reason.
        reason: NakReason,
    },
    /// Packets of this queue pair met congestion.
    CongestionNotification,
    /// A datagram of the connection manager, repeated until it is acknowledged.
    Control {
        /// Numbered by the sender, from 1.
        sequence: u64,
        /// The content.
        content: Control,
    },
    /// Acknowledges a control datagram.
    ControlAck {
        /// Its number.
        sequence: u64,
    },
    /// A UDP datagram of programs, which no queue pair takes: the NIC passes it on.
    Datagram(Datagram),
}

/// A UDP datagram of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Numbered by the client of its flow; an answer has the number of its request.
    pub number: u64,
    /// Bytes of payload.
    pub bytes: u32,
    /// Part of the payload: bytes of the answer that its program wants, or 0.
    pub wanted: u32,
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of the message, from 0.
    pub message: u64,
    /// The operation of the message.
    pub verb: Verb,
    /// First byte of the piece within the message.
    pub offset: u32,
    /// Bytes of the piece.
    pub len: u32,
    /// Whether it is the message's last piece.
    pub last: bool,
}

/// The operation of a message at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE; with an immediate it consumes a receive.
    Write {
        /// Key of the region.
        rkey: RemoteKey,
        /// Where the *message* begins, as the region counts.
        remote: u64,
        /// The immediate.
        imm: Option<u32>,
    },
    /// SEND into a posted receive.
    Send {
        /// The immediate.
        imm: Option<u32>,
    },
}

impl Verb {
    /// Whether a receive is consumed.
    pub fn consumes_receive(&self) -> bool {
        !matches!(self, Verb::Write { imm: None, .. })
    }

    /// The immediate it carries.
    pub fn imm(&self) -> Option<u32> {
        match self {
            Verb::Write { imm, .. } | Verb::Send { imm } => *imm,
        }
    }
}

/// The reason for which a responder refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakReason {
    /// A packet came out of order; with selective repeat, which.
    Sequence {
        /// The packet that did arrive, and is kept.
        kept: Option<u64>,
    },
    /// No receive is posted: try again after that many nanoseconds.
    NotReady {
        /// The pause, in nanoseconds.
        pause_ns: u64,
    },
    /// The region or its bounds do not permit it, or the receive is too short.
    Access,
}

/// The content of a control datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender's end of a connection has ended: a DREQ of RoCE's connection manager, or iWARP's TERMINATE.
    Disconnect {
        /// The end that receives the datagram.
        qp: QueuePairId,
        /// The end that is gone.
        from: QueuePairId,
    },
    /// A message of the NICs' users; the model carries it.
    User {
        /// Its meaning is theirs.
        token: u64,
    },
}

impl Packet {
    /// A UDP datagram. A network that spreads flows over paths keeps those of a flow together.
    pub fn datagram(src: NodeId, dst: NodeId, flow: QueuePairId, datagram: Datagram) -> Packet {
        Packet::new((src, flow), (dst, flow), Body::Datagram(datagram), false)
    }

    /// A packet of that content. `every_packet_placeable`: selective repeat.
    pub(crate) fn new(from: (NodeId, QueuePairId), to: (NodeId, QueuePairId), body: Body, placeable: bool) -> Packet {
        let extra = match &body {
            Body::Data { segment, .. } => {
                let reth = match segment.verb {
                    Verb::Write { .. } if placeable || segment.offset == 0 => RETH_BYTES,
                    _ => 0,
                };
                let imm = if segment.last && segment.verb.imm().is_some() { IMMEDIATE_BYTES } else { 0 };
                // Payload is padded to words.
                reth + imm + segment.len.next_multiple_of(4)
            }
            Body::Ack { .. } | Body::Nak { .. } => AETH_BYTES,
            Body::CongestionNotification => NOTIFICATION_BYTES,
            Body::Control { .. } | Body::ControlAck { .. } => CONTROL_BYTES,
            Body::Datagram(datagram) => datagram.bytes,
        };
        let frame = if matches!(body, Body::Datagram(_)) { DATAGRAM_BYTES } else { FRAME_BYTES };
        let wire_bytes = (frame + extra).max(MIN_FRAME_BYTES);
        Packet {
            src: from.0,
            src_qp: from.1,
            dst: to.0,
            dst_qp: to.1,
            wire_bytes,
            congestion: false,
            telemetry: None,
            body,
        }
    }

    /// With room for telemetry, if there is any.
    pub(crate) fn with_telemetry(self, telemetry: Option<Telemetry>) -> Packet {
        let more = if telemetry.is_some() { TELEMETRY_BYTES } else { 0 };
        Packet { telemetry, wire_bytes: self.wire_bytes + more, ..self }
    }
}

/// A packet as nine words, for simulators that carry it without knowing its kinds.
pub type Words = [u64; 9];

impl Packet {
    /// As words, without telemetry. [`from_words`](Packet::from_words) is the inverse.
    pub fn to_words(&self) -> Words {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let mut w = [0; 9];
        w[0] = pair(self.src.0, self.dst.0);
        w[1] = pair(self.src_qp.0, self.dst_qp.0);
        let mut kind = 0;
        let mut flags = u8::from(self.congestion);
        match self.body {
            Body::Data { psn, ack_request, segment } => {
                flags |= u8::from(ack_request) << 1 | u8::from(segment.last) << 2;
                flags |= u8::from(segment.verb.imm().is_some()) << 3;
                w[3] = psn;
                w[4] = segment.message;
                w[5] = pair(segment.offset, segment.len);
                w[6] = u64::from(segment.verb.imm().unwrap_or(0));
                if let Verb::Write { rkey, remote, .. } = segment.verb {
                    flags |= 1 << 4;
                    w[7] = u64::from(rkey.0);
                    w[8] = remote;
                }
            }
            Body::Ack { expected } => (kind, w[3]) = (1, expected),
            Body::Nak { expected, reason } => {
                w[3] = expected;
                kind = match reason {
                    NakReason::Sequence { kept: None } => 2,
                    NakReason::Sequence { kept: Some(psn) } => {
                        w[4] = psn;
                        3
                    }
                    NakReason::NotReady { pause_ns } => {
                        w[4] = pause_ns;
                        4
                    }
                    NakReason::Access => 5,
                };
            }
            Body::CongestionNotification => kind = 6,
            Body::Control { sequence, content: Control::Disconnect { qp, from } } => {
                (kind, w[3], w[4]) = (7, sequence, pair(qp.0, from.0));
            }
            Body::Control { sequence, content: Control::User { token } } => (kind, w[3], w[4]) = (8, sequence, token),
            Body::ControlAck { sequence } => (kind, w[3]) = (9, sequence),
            Body::Datagram(Datagram { number, bytes, wanted }) => {
                (kind, w[3], w[4]) = (10, number, pair(bytes, wanted))
            }
        }
        w[2] = pair(self.wire_bytes, u32::from(flags) << 8 | kind);
        w
    }

    /// From words; `None` if they are no packet.
    pub fn from_words(w: &Words) -> Option<Packet> {
        let (high, low) = (|x: u64| (x >> 32) as u32, |x: u64| x as u32);
        let flags = low(w[2]) >> 8;
        let bit = |n: u32| flags >> n & 1 == 1;
        let body = match w[2] as u8 {
            0 => {
                let imm = bit(3).then_some(low(w[6]));
                let verb = if bit(4) {
                    Verb::Write { rkey: RemoteKey(low(w[7])), remote: w[8], imm }
                } else {
                    Verb::Send { imm }
                };
                let segment = Segment { message: w[4], verb, offset: high(w[5]), len: low(w[5]), last: bit(2) };
                Body::Data { psn: w[3], ack_request: bit(1), segment }
            }
            1 => Body::Ack { expected: w[3] },
            2 => Body::Nak { expected: w[3], reason: NakReason::Sequence { kept: None } },
            3 => Body::Nak { expected: w[3], reason: NakReason::Sequence { kept: Some(w[4]) } },
            4 => Body::Nak { expected: w[3], reason: NakReason::NotReady { pause_ns: w[4] } },
            5 => Body::Nak { expected: w[3], reason: NakReason::Access },
            6 => Body::CongestionNotification,
            7 => {
                let content = Control::Disconnect { qp: QueuePairId(high(w[4])), from: QueuePairId(low(w[4])) };
                Body::Control { sequence: w[3], content }
            }
            8 => Body::Control { sequence: w[3], content: Control::User { token: w[4] } },
            9 => Body::ControlAck { sequence: w[3] },
            10 => Body::Datagram(Datagram { number: w[3], bytes: high(w[4]), wanted: low(w[4]) }),
            _ => return None,
        };
        Some(Packet {
            src: NodeId(high(w[0])),
            dst: NodeId(low(w[0])),
            src_qp: QueuePairId(high(w[1])),
            dst_qp: QueuePairId(low(w[1])),
            wire_bytes: high(w[2]),
            congestion: bit(0),
            telemetry: None,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_kind() -> Vec<Body> {
        let segment = |verb, last| Segment { message: 7, verb, offset: 4096, len: 1000, last };
        let write = |imm| Verb::Write { rkey: RemoteKey(9), remote: 1 << 40, imm };
        let (qp, from) = (QueuePairId(3), QueuePairId(u32::MAX));
        vec![
            Body::Data { psn: u64::MAX, ack_request: true, segment: segment(write(Some(u32::MAX)), true) },
            Body::Data { psn: 5, ack_request: false, segment: segment(write(None), false) },
            Body::Data { psn: 5, ack_request: false, segment: segment(Verb::Send { imm: Some(0) }, true) },
            Body::Data { psn: 5, ack_request: true, segment: segment(Verb::Send { imm: None }, false) },
            Body::Ack { expected: 1 << 50 },
            Body::Nak { expected: 1, reason: NakReason::Sequence { kept: None } },
            Body::Nak { expected: 1, reason: NakReason::Sequence { kept: Some(3) } },
            Body::Nak { expected: 1, reason: NakReason::NotReady { pause_ns: 10_000 } },
            Body::Nak { expected: 1, reason: NakReason::Access },
            Body::CongestionNotification,
            Body::Control { sequence: 2, content: Control::Disconnect { qp, from } },
            Body::Control { sequence: 2, content: Control::User { token: u64::MAX } },
            Body::ControlAck { sequence: 2 },
            Body::Datagram(Datagram { number: 1 << 40, bytes: 1472, wanted: u32::MAX }),
        ]
    }

    // Breaks if a kind or a field is lost on the way through a simulator that carries words.
    #[test]
    fn words_are_the_packet() {
        for body in each_kind() {
            for congestion in [false, true] {
                let ends = ((NodeId(1), QueuePairId(2)), (NodeId(3), QueuePairId(4)));
                let packet = Packet { congestion, ..Packet::new(ends.0, ends.1, body, false) };
                assert_eq!(Packet::from_words(&packet.to_words()), Some(packet));
            }
        }
        assert_eq!(Packet::from_words(&[u64::MAX; 9]), None);
    }

    // Breaks if a header is counted twice or not at all: the figures are sums of the specification's.
    #[test]
    fn wire_sizes() {
        let ends = ((NodeId(0), QueuePairId(0)), (NodeId(1), QueuePairId(0)));
        let size = |body, placeable| Packet::new(ends.0, ends.1, body, placeable).wire_bytes;
        let data = |verb, offset, len, last| Body::Data {
            psn: 0,
            ack_request: false,
            segment: Segment { message: 0, verb, offset, len, last },
        };
        let write = |imm| Verb::Write { rkey: RemoteKey(0), remote: 0, imm };
        assert_eq!(size(data(write(Some(1)), 0, 1024, true), false), 82 + 16 + 4 + 1024);
        assert_eq!(size(data(write(None), 1024, 1024, false), false), 82 + 1024);
        assert_eq!(size(data(write(None), 1024, 1024, false), true), 82 + 16 + 1024);
        assert_eq!(size(data(Verb::Send { imm: None }, 0, 1, true), false), 86);
        assert_eq!(size(data(Verb::Send { imm: None }, 0, 0, true), false), 84);
        assert_eq!(size(Body::Ack { expected: 0 }, false), 86);
        let datagram = |bytes| Body::Datagram(Datagram { number: 0, bytes, wanted: 0 });
        assert_eq!(size(datagram(1472), false), 20 + 18 + 1500);
        assert_eq!(size(datagram(1), false), 84);
    }
}
