//! The encodings: every message survives a round trip, and no bytes make a decoder panic.

use netacc_device::RemoteKey;
use netacc_proto::{
    next_message, number_message, Accept, ControlMessage, Credential, FlowGrant, FlowRequest, Hello, Immediate,
    Markers, MessageKind, Open, Record, RecordKind, Refuse, RingDescriptor, WireError, WireTuple, CONTROL_SLOT_LEN,
    CREDIT_BLOCK_LEN, LINK_REGION_LEN, RECORD_LEN,
};
use proptest::prelude::*;

const KINDS: [MessageKind; 15] = [
    MessageKind::Data,
    MessageKind::Control,
    MessageKind::Fin,
    MessageKind::Reset,
    MessageKind::CreditWant,
    MessageKind::CreditGive,
    MessageKind::Switched,
    MessageKind::Demote,
    MessageKind::Close,
    MessageKind::LinkWant,
    MessageKind::LinkGive,
    MessageKind::ReadShut,
    MessageKind::Datagram,
    MessageKind::Status,
    MessageKind::Unmarked,
];

fn immediates() -> impl Strategy<Value = Immediate> {
    (0..KINDS.len(), any::<bool>(), any::<u16>()).prop_map(|(kind, rewind, slot)| Immediate {
        kind: KINDS[kind],
        rewind,
        slot,
    })
}

fn rings() -> impl Strategy<Value = RingDescriptor> {
    (any::<u32>(), any::<u64>(), 12u32..=26).prop_map(|(rkey, base, log)| RingDescriptor {
        rkey: RemoteKey(rkey),
        base,
        ring_len: 1 << log,
    })
}

fn markers() -> impl Strategy<Value = Markers> {
    prop_oneof![Just(Markers::Written), Just(Markers::PutOff)]
}

fn controls() -> impl Strategy<Value = ControlMessage> {
    let tuple =
        (any::<([u8; 16], u16)>(), any::<([u8; 16], u16)>()).prop_map(|(local, remote)| WireTuple { local, remote });
    prop_oneof![
        (any::<(u16, u32, u16, bool)>(), prop::option::of(any::<([u8; 16], [u8; 32])>())).prop_map(
            |((version, receive_depth, max_streams, datagrams), credential)| {
                let credential = credential.map(|(nonce, proof)| Credential { nonce, proof });
                ControlMessage::Hello(Hello { version, receive_depth, max_streams, credential, datagrams })
            }
        ),
        (any::<(u16, u16)>(), tuple.clone(), any::<[u8; 16]>(), rings()).prop_map(
            |((slot, proof_port), addresses, nonce, ring)| {
                ControlMessage::Flow(FlowRequest { slot, addresses, nonce, ring, proof_port })
            }
        ),
        (any::<(u16, u16, u16)>(), any::<[u8; 16]>(), rings()).prop_map(
            |((peer_slot, slot, proof_port), nonce, ring)| {
                ControlMessage::Grant(FlowGrant { peer_slot, slot, nonce, ring, proof_port })
            }
        ),
        any::<[u8; 32]>().prop_map(ControlMessage::Proof),
        (any::<u16>(), tuple, any::<u32>(), any::<u64>(), any::<[u8; 16]>(), rings()).prop_map(
            |(slot, tuple, hint, pledge, nonce, ring)| ControlMessage::Open(Open {
                slot,
                tuple,
                hint,
                pledge,
                nonce,
                ring
            })
        ),
        (any::<u16>(), any::<u16>(), any::<u64>(), any::<[u8; 16]>(), rings(), markers()).prop_map(
            |(peer_slot, slot, pledge, nonce, ring, markers)| ControlMessage::Accept(Accept {
                peer_slot,
                slot,
                pledge,
                nonce,
                ring,
                markers
            })
        ),
        (any::<u16>(), any::<u16>(), any::<u16>()).prop_map(|(peer_slot, reason, redirect_port)| {
            ControlMessage::Refuse(Refuse { peer_slot, reason, redirect_port })
        }),
    ]
}

fn records() -> impl Strategy<Value = Record> {
    (0..3usize, any::<u64>(), any::<u64>(), any::<[u8; 16]>()).prop_map(|(kind, position, end, token)| {
        let kind = [RecordKind::Marker, RecordKind::Resume, RecordKind::Flow][kind];
        Record { kind, position, end, token }
    })
}

proptest! {
    //= spec §3.1.1
    //= type=test
    #[test]
    fn immediates_round_trip(imm in immediates()) {
        prop_assert_eq!(Immediate::decode(imm.encode()), Ok(imm));
    }

    //= spec §3.1.3
    //= type=test
    #[test]
    fn messages_are_numbered(imm in immediates(), before: u64, other: u64) {
        let bits = number_message(imm.encode(), before);
        prop_assert_eq!(next_message(bits, before).map(Immediate::decode), Some(Ok(imm)));
        prop_assert_eq!(next_message(bits, other).is_some(), before % 2048 == other % 2048);
        prop_assert!(next_message(bits, before.wrapping_add(1)).is_none() && next_message(bits, before.wrapping_sub(1)).is_none());
    }

    //= spec §3.2.1, §1.3
    //= type=test
    #[test]
    fn control_messages_round_trip(message in controls()) {
        prop_assert_eq!(ControlMessage::decode(&message.encode()), Ok(message));
    }

    //= spec §3.2.3
    //= type=test
    #[test]
    fn truncated_control_messages_are_short(message in controls(), len in 0usize..9) {
        prop_assert_eq!(ControlMessage::decode(&message.encode()[..len.min(5)]), Err(WireError::Short));
    }

    //= spec §3.3.1
    //= type=test
    #[test]
    fn records_round_trip_and_begin_with_their_own_beginning(record in records(), len in 0..=RECORD_LEN) {
        let bytes = record.encode();
        prop_assert_eq!(Record::decode(&bytes), Ok(record));
        prop_assert!(Record::could_begin(&bytes[..len], &record.token));
        let mut other = record.token;
        other[0] ^= 1;
        prop_assert_eq!(Record::could_begin(&bytes[..len], &other), len <= 8);
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bits in any::<u32>(), bytes in prop::collection::vec(any::<u8>(), 0..200), record in any::<[u8; RECORD_LEN]>()) {
        // A decoded immediate must encode to the same bits: the decoder adds no meaning.
        if let Ok(imm) = Immediate::decode(bits) {
            prop_assert_eq!(imm.encode(), bits);
        }
        let _ = ControlMessage::decode(&bytes);
        let _ = Record::decode(&record);
        let _ = Record::could_begin(&bytes, &[7; 16]);
    }

    /// As above, with types that exist, so that the fields are reached.
    #[test]
    fn no_fields_make_a_decoder_panic(kind in 0u8..8, bytes in prop::collection::vec(any::<u8>(), 0..150)) {
        let bytes: Vec<u8> = [kind, 0].into_iter().chain(bytes).collect();
        let _ = ControlMessage::decode(&bytes);
    }
}

#[test]
fn reserved_bits_and_unknown_kinds_are_refused() {
    //= spec §3.1.2
    //= type=test
    assert!(Immediate::decode(1 << 16).is_err());
    assert!(Immediate::decode(1 << 26).is_err());
    assert!((15..16).all(|kind: u32| Immediate::decode(kind << 28).is_err()));
    //= spec §3.2.3
    //= type=test
    assert!(ControlMessage::decode(&[0; CONTROL_SLOT_LEN]).is_err());
    assert!(ControlMessage::decode(&[9; CONTROL_SLOT_LEN]).is_err());
    assert!(ControlMessage::decode(&[4, 1, 0, 0, 0, 0]).is_err());
}

#[test]
fn ring_lengths_are_bounded() {
    //= spec §3.2.4
    //= type=test
    let refused = |ring_len| {
        let ring = RingDescriptor { rkey: RemoteKey(0), base: 0, ring_len };
        let accept = Accept { peer_slot: 0, slot: 0, pledge: 0, nonce: [0; 16], ring, markers: Markers::PutOff };
        ControlMessage::decode(&ControlMessage::Accept(accept).encode()).is_err()
    };
    assert!([0, 1, 2048, 4097, 12288, 128 << 20, u32::MAX].into_iter().all(refused));
    assert!(![4096, 8192, 64 << 20].into_iter().any(refused));
}

#[test]
fn regions_have_the_documented_layout() {
    //= spec §2.1, §2.2
    //= type=test
    assert_eq!((LINK_REGION_LEN, CREDIT_BLOCK_LEN, CONTROL_SLOT_LEN, RECORD_LEN), (2112, 64, 128, 48));
}
