//! Encoding: immediates, control messages in the link region, records on the anchor. SPEC §3.
//!
//! Decoders take hostile bytes and return [`WireError`]; they never panic.
//= spec §1.3
//# All integers are little-endian. Reserved bits and bytes are zero.

use device::RemoteKey;
use netacc_device as device;

/// Protocol version, in HELLO. Links between different versions are refused.
pub const VERSION: u16 = 4;
/// Bytes of one control slot.
pub const CONTROL_SLOT_LEN: usize = 128;
/// Control slots at each end of a link.
pub const CONTROL_SLOTS: usize = 16;
//= spec §2.2
//# a credit block of 64 bytes, whose word 0 is the credit word (§5.2) and whose word 1 describes the bytes held back
//# (§5.1.5), then the ring.
/// Bytes at the start of a link region and of a stream region that hold credit words.
pub const CREDIT_BLOCK_LEN: usize = 64;
//= spec §5.1.5
//# Where the peer's memory is mapped it writes the position after the bytes held back into word 1 of the credit block,
//# with the highest bit set if the message will carry REWIND
/// The place in the credit block where a sender writes the position after the bytes that it holds back.
pub const CORKED_WORD: usize = 8;
/// Set in that word if the message would carry REWIND.
pub const CORKED_REWIND: u64 = 1 << 63;
//= spec §2.1
//# Each end's connection manager gives the other a first region, the *link region*, of LINK_REGION_LEN = 2112 bytes:
/// Bytes of a link's first region: credit block, then the control slots.
pub const LINK_REGION_LEN: usize = CREDIT_BLOCK_LEN + CONTROL_SLOTS * CONTROL_SLOT_LEN;
/// Messages that may be sent before the peer's HELLO.
pub const INITIAL_MESSAGE_CREDIT: u32 = 8;
/// Bytes of a record on the anchor.
pub const RECORD_LEN: usize = 48;
/// Bytes at its beginning that are the same in all records: with fewer bytes, only time distinguishes application bytes
/// from a record.
pub const MAGIC_LEN: usize = 8;
const MAGIC: [u8; MAGIC_LEN] = [0xA7, 0x9D, b'n', b'a', b'c', b'c', 0xE1, 0x1A];

/// Malformed input from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than its type needs.
    Short,
    /// Unknown type, or a field out of range.
    Malformed(&'static str),
}

/// Sixteen unpredictable bytes.
pub type Nonce = [u8; 16];

/// The proof that its sender has the pre-shared key.
pub type ProofBytes = [u8; 32];

/// The kind of a message on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageKind {
    /// Stream bytes, already placed in the ring.
    Data = 0,
    /// A control message, in the next control slot.
    Control = 1,
    /// The sender's direction of the stream ends here.
    Fin = 2,
    /// The stream is aborted.
    Reset = 3,
    /// The sender is out of byte credit and requests a message when there is some.
    CreditWant = 4,
    /// The receiver has consumed: read the credit word.
    CreditGive = 5,
    /// The sender's marker is on the anchor: its direction has switched.
    Switched = 6,
    /// A RESUME record is on the anchor, or soon will be.
    Demote = 7,
    /// The sender does not use this stream slot any more.
    Close = 8,
    /// The sender is out of message credit on the link.
    LinkWant = 9,
    /// Read the link's credit word.
    LinkGive = 10,
    /// The sender's application has shut down reading.
    ReadShut = 11,
    /// A datagram, already placed in the ring of its flow.
    Datagram = 12,
    /// The receiver of a flow has written its status: read it.
    Status = 13,
    /// The sender's direction has switched, and its marker is put off.
    Unmarked = 14,
}

impl MessageKind {
    fn from_bits(bits: u32) -> Option<MessageKind> {
        use MessageKind::*;
        const ALL: [MessageKind; 15] = [
            Data, Control, Fin, Reset, CreditWant, CreditGive, Switched, Demote, Close, LinkWant, LinkGive, ReadShut,
            Datagram, Status, Unmarked,
        ];
        ALL.get(bits as usize).copied()
    }
}

//= spec §3.1.1
//# A *message* consumes one receive of the peer and carries a 32-bit immediate.
/// The 32-bit immediate of every message: kind in bits 31..28, REWIND in bit 27, the receiver's stream slot in bits 15..0. Bits
/// 26..16 are for [`number_message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The kind of the message.
    pub kind: MessageKind,
    /// DATA only: the bytes begin at offset 0 of the ring.
    pub rewind: bool,
    /// The receiver's slot for the stream; 0 where the message is about the link.
    pub slot: u16,
}

impl Immediate {
    /// A message of `kind` for the receiver's `slot`.
    pub fn new(kind: MessageKind, slot: u16) -> Immediate {
        Immediate { kind, rewind: false, slot }
    }

    /// To the wire.
    #[inline]
    pub fn encode(self) -> u32 {
        (self.kind as u32) << 28 | u32::from(self.rewind) << 27 | u32::from(self.slot)
    }

    /// From the wire.
    #[inline]
    pub fn decode(bits: u32) -> Result<Immediate, WireError> {
        //= spec §3.1.2
        //# Reserved bits set, or an unknown kind, is a violation.
        if bits & 0x07FF_0000 != 0 {
            return Err(WireError::Malformed("reserved bits in immediate"));
        }
        let kind = MessageKind::from_bits(bits >> 28).ok_or(WireError::Malformed("message kind"))?;
        Ok(Immediate { kind, rewind: bits & (1 << 27) != 0, slot: bits as u16 })
    }
}

/// The bits of an immediate that number the message: see [`number_message`].
pub const NUMBER_BITS: u32 = 0x07FF_0000;

fn number_bits(before: u64) -> u32 {
    (before as u32) << 16 & NUMBER_BITS
}

//= spec §3.1.3
//# Where the peer's memory is not mapped, each side numbers its messages on the link, from 0 and modulo 2048, in the order in
//# which it posts them.
/// Numbers a message that comes after so many others on its link.
#[inline]
pub fn number_message(immediate: u32, before: u64) -> u32 {
    immediate | number_bits(before)
}

/// The immediate of a message without its number, if it is the next one after so many others on its link.
#[inline]
pub fn next_message(immediate: u32, before: u64) -> Option<u32> {
    (immediate & NUMBER_BITS == number_bits(before)).then_some(immediate & !NUMBER_BITS)
}

/// The place of a stream's ring at the end that receives into it: its region, credit block first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingDescriptor {
    /// Key of the region.
    pub rkey: RemoteKey,
    /// Its base address, as the device defines it.
    pub base: u64,
    /// Bytes of the ring alone: a power of two. The region has `CREDIT_BLOCK_LEN` more.
    pub ring_len: u32,
}

/// A TCP connection as the sender of the message sees it, in wire form (IPv4 as mapped IPv6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireTuple {
    /// Local address and port.
    pub local: ([u8; 16], u16),
    /// Remote address and port.
    pub remote: ([u8; 16], u16),
}

/// Whether the markers of a promotion are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Markers {
    /// Always.
    #[default]
    Written,
    /// Only where the link dies before the acceptor has answered: UNMARKED counts as the marker.
    PutOff,
}

/// Requests the promotion of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    /// The opener's slot for the stream.
    pub slot: u16,
    /// The anchor, as the opener sees it.
    pub tuple: WireTuple,
    /// The acceptor's stream number, from the directory: a hint.
    pub hint: u32,
    /// The opener's pledge: the next bytes on the anchor after this position are a marker, or the pledge is void.
    pub pledge: u64,
    /// Proof: the acceptor's marker must carry it.
    pub nonce: Nonce,
    /// The opener's ring.
    pub ring: RingDescriptor,
}

/// Answers OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accept {
    /// The opener's slot, from OPEN.
    pub peer_slot: u16,
    /// The acceptor's slot.
    pub slot: u16,
    /// The acceptor's pledge.
    pub pledge: u64,
    /// Proof: the opener's marker must carry it.
    pub nonce: Nonce,
    /// The acceptor's ring.
    pub ring: RingDescriptor,
    /// Whether the opener may put its marker off, and the acceptor would then do so too.
    pub markers: Markers,
}

/// Declines OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refuse {
    /// The opener's slot, from OPEN.
    pub peer_slot: u16,
    /// The reason: a [`Reason`](crate::Reason) code.
    pub reason: u16,
    /// The port to connect to instead, on the acceptor's host, or 0.
    pub redirect_port: u16,
}

/// Requests a flow of datagrams to a socket of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowRequest {
    /// The sender's slot for the flow.
    pub slot: u16,
    /// Where the datagrams come from (`local`), and where they go.
    pub addresses: WireTuple,
    /// Proof: the kernel must bring the sender's library a record with it from the destination.
    pub nonce: Nonce,
    /// The sender's region: the receiver writes its status into the credit block. The receiver's ring has the same length.
    pub ring: RingDescriptor,
    /// The UDP port of the sender's library, at the source's address: proofs go there.
    pub proof_port: u16,
}

/// Grants a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowGrant {
    /// The sender's slot, from the request.
    pub peer_slot: u16,
    /// The receiver's slot.
    pub slot: u16,
    /// Proof: the kernel must bring the receiver's library a record with it from the source.
    pub nonce: Nonce,
    /// The receiver's ring.
    pub ring: RingDescriptor,
    /// The UDP port of the receiver's library, at the destination's address: proofs go there.
    pub proof_port: u16,
}

/// First message of each side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Protocol version.
    pub version: u16,
    /// Receives the sender keeps posted: the message credit of its peer.
    pub receive_depth: u32,
    /// Streams the sender admits on the link.
    pub max_streams: u16,
    /// Present if the sender has a pre-shared key.
    pub credential: Option<Credential>,
    /// Whether the sender accepts flows of datagrams. The proofs do not cover it.
    pub datagrams: bool,
}

/// A side's part in proving the pre-shared key, in HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credential {
    /// Fresh for the link.
    pub nonce: Nonce,
    /// The accepting side's proof; zeros in the connecting side's HELLO, because that side has no nonce of its peer
    /// yet.
    pub proof: ProofBytes,
}

impl Hello {
    /// The part of HELLO that the proofs cover: everything before the proof.
    pub(crate) fn proven_bytes(&self) -> [u8; PROVEN_LEN] {
        let mut bytes = [0; PROVEN_LEN];
        bytes.copy_from_slice(&ControlMessage::Hello(*self).encode()[..PROVEN_LEN]);
        bytes
    }
}

/// Bytes of HELLO before its proof.
const PROVEN_LEN: usize = 28;
/// Where HELLO says whether there are flows of datagrams: behind the proof.
const HELLO_DATAGRAMS: usize = 60;

/// The payload of a CONTROL message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlMessage {
    /// First message of each side.
    Hello(Hello),
    /// Requests promotion.
    Open(Open),
    /// Grants it.
    Accept(Accept),
    /// Declines it, or with [`NO_SLOT`] the whole link.
    Refuse(Refuse),
    /// The connecting side's proof that it has the pre-shared key.
    Proof(ProofBytes),
    /// Requests a flow of datagrams.
    Flow(FlowRequest),
    /// Grants it.
    Grant(FlowGrant),
}

/// In REFUSE in place of the opener's slot: the link itself is refused. No slot has this number.
pub const NO_SLOT: u16 = u16::MAX;

impl ControlMessage {
    /// To the wire: a whole slot.
    pub fn encode(&self) -> [u8; CONTROL_SLOT_LEN] {
        //= spec §3.2.1
        //# Control messages are 128 bytes; unused ones are zero. The first byte is the type.
        let mut out = [0; CONTROL_SLOT_LEN];
        let mut w = Writer { out: &mut out, at: 0 };
        match self {
            ControlMessage::Hello(h) => {
                w.put(&[1, 0]);
                w.put(&h.version.to_le_bytes());
                w.put(&h.receive_depth.to_le_bytes());
                w.put(&h.max_streams.to_le_bytes());
                w.put(&u16::from(h.credential.is_some()).to_le_bytes());
                if let Some(credential) = &h.credential {
                    w.put(&credential.nonce);
                    w.put(&credential.proof);
                }
                w.at = HELLO_DATAGRAMS;
                w.put(&[u8::from(h.datagrams)]);
            }
            ControlMessage::Open(o) => {
                w.put(&[2, 0]);
                w.put(&o.slot.to_le_bytes());
                w.put(&o.hint.to_le_bytes());
                w.tuple(&o.tuple);
                w.put(&o.pledge.to_le_bytes());
                w.put(&o.nonce);
                w.ring(&o.ring);
            }
            ControlMessage::Accept(a) => {
                w.put(&[3, 0]);
                w.put(&a.slot.to_le_bytes());
                w.put(&a.peer_slot.to_le_bytes());
                w.put(&a.pledge.to_le_bytes());
                w.put(&a.nonce);
                w.ring(&a.ring);
                w.markers(a.markers);
            }
            ControlMessage::Refuse(r) => {
                w.put(&[4, 0]);
                w.put(&r.peer_slot.to_le_bytes());
                w.put(&r.reason.to_le_bytes());
                w.put(&r.redirect_port.to_le_bytes());
            }
            ControlMessage::Proof(proof) => {
                w.put(&[5, 0]);
                w.put(proof);
            }
            ControlMessage::Flow(f) => {
                w.put(&[6, 0]);
                w.put(&f.slot.to_le_bytes());
                w.tuple(&f.addresses);
                w.put(&f.nonce);
                w.ring(&f.ring);
                w.put(&f.proof_port.to_le_bytes());
            }
            ControlMessage::Grant(g) => {
                w.put(&[7, 0]);
                w.put(&g.slot.to_le_bytes());
                w.put(&g.peer_slot.to_le_bytes());
                w.put(&g.nonce);
                w.ring(&g.ring);
                w.put(&g.proof_port.to_le_bytes());
            }
        }
        out
    }

    /// From the wire.
    pub fn decode(bytes: &[u8]) -> Result<ControlMessage, WireError> {
        //= spec §3.2.3
        //# An unknown type, a message shorter than its type, or a reserved byte that is not zero is malformed and ends the
        //# link.
        let mut r = Reader { bytes };
        let [kind, reserved] = r.take()?;
        if reserved != 0 {
            return Err(WireError::Malformed("reserved byte"));
        }
        Ok(match kind {
            1 => ControlMessage::Hello(Hello {
                version: r.u16()?,
                receive_depth: r.u32()?,
                max_streams: r.u16()?,
                credential: r.credential()?,
                datagrams: r.flag()?,
            }),
            2 => ControlMessage::Open(Open {
                slot: r.u16()?,
                hint: r.u32()?,
                tuple: r.tuple()?,
                pledge: r.u64()?,
                nonce: r.take()?,
                ring: r.ring()?,
            }),
            3 => ControlMessage::Accept(Accept {
                slot: r.u16()?,
                peer_slot: r.u16()?,
                pledge: r.u64()?,
                nonce: r.take()?,
                ring: r.ring()?,
                markers: r.markers()?,
            }),
            4 => ControlMessage::Refuse(Refuse { peer_slot: r.u16()?, reason: r.u16()?, redirect_port: r.u16()? }),
            5 => ControlMessage::Proof(r.take()?),
            6 => ControlMessage::Flow(FlowRequest {
                slot: r.u16()?,
                addresses: r.tuple()?,
                nonce: r.take()?,
                ring: r.ring()?,
                proof_port: r.u16()?,
            }),
            7 => ControlMessage::Grant(FlowGrant {
                slot: r.u16()?,
                peer_slot: r.u16()?,
                nonce: r.take()?,
                ring: r.ring()?,
                proof_port: r.u16()?,
            }),
            _ => return Err(WireError::Malformed("control type")),
        })
    }
}

/// The kind of a record on the anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// The direction switches to the link here. `position` is the pledge.
    Marker,
    /// The direction comes back to the anchor. `position` is the number of bytes that the writer of the record has
    /// consumed of the *other* direction.
    Resume,
    /// A datagram of its own: its sender has the socket at the address from which it comes. `position` is the number of
    /// datagrams that the sender of a flow has sent by the kernel; in the receiver's answer 0.
    Flow,
}

/// A record on the anchor: SPEC §3.3, and §10.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The kind.
    pub kind: RecordKind,
    /// See [`RecordKind`].
    pub position: u64,
    /// RESUME: the writer's own position, up to which its direction will be replayed. MARKER: 0.
    pub end: u64,
    /// The nonce of the side that reads it: proof that the writer took part in the OPEN/ACCEPT exchange.
    pub token: Nonce,
}

impl Record {
    /// To the wire.
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        //= spec §3.3.1
        //# A *record* on the anchor has 48 bytes:
        let mut out = [0; RECORD_LEN];
        let mut w = Writer { out: &mut out, at: 0 };
        w.put(&MAGIC);
        w.put(&self.token);
        w.put(&[match self.kind {
            RecordKind::Marker => 1,
            RecordKind::Resume => 2,
            RecordKind::Flow => 3,
        }]);
        w.put(&[0; 7]);
        w.put(&self.position.to_le_bytes());
        w.put(&self.end.to_le_bytes());
        out
    }

    /// From the wire.
    pub fn decode(bytes: &[u8; RECORD_LEN]) -> Result<Record, WireError> {
        let mut r = Reader { bytes };
        if r.take::<8>()? != MAGIC {
            return Err(WireError::Malformed("record magic"));
        }
        let token = r.take()?;
        let kind = match r.take::<8>()? {
            [1, 0, 0, 0, 0, 0, 0, 0] => RecordKind::Marker,
            [2, 0, 0, 0, 0, 0, 0, 0] => RecordKind::Resume,
            [3, 0, 0, 0, 0, 0, 0, 0] => RecordKind::Flow,
            _ => return Err(WireError::Malformed("record kind")),
        };
        Ok(Record { kind, token, position: r.u64()?, end: r.u64()? })
    }

    /// Whether `bytes` could be the beginning of a record that carries `token`.
    pub fn could_begin(bytes: &[u8], token: &Nonce) -> bool {
        let head = MAGIC.iter().chain(token.iter());
        bytes.iter().zip(head).all(|(a, b)| a == b)
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        // The largest message is checked against CONTROL_SLOT_LEN by a test.
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn tuple(&mut self, tuple: &WireTuple) {
        for (addr, port) in [tuple.local, tuple.remote] {
            self.put(&addr);
            self.put(&port.to_le_bytes());
        }
    }

    fn ring(&mut self, ring: &RingDescriptor) {
        self.put(&ring.rkey.0.to_le_bytes());
        self.put(&ring.base.to_le_bytes());
        self.put(&ring.ring_len.to_le_bytes());
    }

    fn markers(&mut self, markers: Markers) {
        self.put(&[u8::from(markers == Markers::PutOff)]);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.bytes.split_first_chunk::<N>().ok_or(WireError::Short)?;
        self.bytes = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.take().map(u64::from_le_bytes)
    }

    fn tuple(&mut self) -> Result<WireTuple, WireError> {
        Ok(WireTuple { local: (self.take()?, self.u16()?), remote: (self.take()?, self.u16()?) })
    }

    fn flag(&mut self) -> Result<bool, WireError> {
        match self.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(WireError::Malformed("flag")),
        }
    }

    fn markers(&mut self) -> Result<Markers, WireError> {
        Ok(if self.flag()? { Markers::PutOff } else { Markers::Written })
    }

    fn credential(&mut self) -> Result<Option<Credential>, WireError> {
        //= spec §2.5.1
        //# A side with a pre-shared key announces that in its HELLO: *key* is 1, and *nonce* fresh for the link.
        //# Without one all three fields are zero.
        let (has_key, credential) = (self.u16()?, Credential { nonce: self.take()?, proof: self.take()? });
        match has_key {
            0 if credential == (Credential { nonce: [0; 16], proof: [0; 32] }) => Ok(None),
            1 => Ok(Some(credential)),
            _ => Err(WireError::Malformed("key in HELLO")),
        }
    }

    fn ring(&mut self) -> Result<RingDescriptor, WireError> {
        let ring = RingDescriptor { rkey: RemoteKey(self.u32()?), base: self.u64()?, ring_len: self.u32()? };
        //= spec §3.2.4
        //# A ring length that is not a power of two between 4 KiB and 64 MiB is malformed.
        if !ring.ring_len.is_power_of_two() || !(4096..=64 << 20).contains(&ring.ring_len) {
            return Err(WireError::Malformed("ring length"));
        }
        Ok(ring)
    }
}
