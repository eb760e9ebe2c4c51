//! The pre-shared key: only a process that has it is admitted to a link.

use netacc_device::PeerAddress;
use netacc_proto::{
    Admission, ControlMessage, Credential, Hello, Link, LinkConfig, LinkError, PreSharedKey, ProofBytes, Reason,
    VERSION,
};
use proptest::prelude::*;

const CLIENT: PeerAddress = PeerAddress([0, 1, 4 << 16, 0]);
const SERVER: PeerAddress = PeerAddress([0, 2, 4 << 16, 0]);

/// One end of a link; `far` is the address at which it assumes its peer.
struct End {
    connector: bool,
    key: Option<&'static [u8]>,
    nonce: u8,
    near: PeerAddress,
    far: PeerAddress,
}

const KEY: &[u8] = b"sixteen bytes at least";
const OTHER: &[u8] = b"sixteen bytes at most?";

fn client(key: Option<&'static [u8]>) -> End {
    End { connector: true, key, nonce: 1, near: CLIENT, far: SERVER }
}

fn server(key: Option<&'static [u8]>) -> End {
    End { connector: false, key, nonce: 2, near: SERVER, far: CLIENT }
}

impl End {
    fn link(&self) -> Link {
        let config = LinkConfig {
            max_streams: 4,
            receive_depth: 16,
            credit_interval: 1,
            connector: self.connector,
            datagrams: false,
        };
        let key = self.key.map(|key| PreSharedKey::new(key).expect("long enough"));
        let admission = key.map(|key| Admission { key, nonce: [self.nonce; 16], ends: [self.near, self.far] });
        Link::new(config, admission)
    }
}

/// As it arrives: a field that does not survive its own encoding proves nothing.
fn over_the_wire(message: ControlMessage) -> ControlMessage {
    ControlMessage::decode(&message.encode()).expect("well-formed")
}

fn hello(message: ControlMessage) -> Hello {
    match over_the_wire(message) {
        ControlMessage::Hello(hello) => hello,
        other => panic!("not HELLO: {other:?}"),
    }
}

fn proof(message: ControlMessage) -> ProofBytes {
    match over_the_wire(message) {
        ControlMessage::Proof(proof) => proof,
        other => panic!("not PROOF: {other:?}"),
    }
}

/// Brings a link up. Returns each side's result.
fn set_up(client: &End, server: &End) -> (Result<Link, LinkError>, Result<Link, LinkError>) {
    let (mut near, mut far) = (client.link(), server.link());
    let answer = match far.handle_hello(&hello(near.hello())) {
        Ok(answer) => answer.expect("the accepting side answers"),
        Err(error) => return (Ok(near), Err(error)),
    };
    match near.handle_hello(&hello(answer)) {
        Ok(Some(message)) => {
            let verdict = far.handle_proof(&proof(message));
            (Ok(near), verdict.map(|()| far))
        }
        Ok(None) => (Ok(near), Ok(far)),
        Err(error) => (Err(error), Ok(far)),
    }
}

#[test]
fn ends_with_the_same_key_or_none_share_a_link() {
    //= spec §2.5.2
    //= type=test
    //# The accepting side's HELLO carries its *proof*; the connecting side verifies that, and sends its own in PROOF
    //# before anything else.
    for key in [None, Some(KEY)] {
        let (near, far) = set_up(&client(key), &server(key));
        assert!(near.expect("admitted").is_ready() && far.expect("admitted").is_ready(), "{key:?}");
    }
}

#[test]
fn a_link_with_a_key_on_one_side_only_is_refused() {
    //= spec §2.5.1
    //= type=test
    //# A link of which one side alone has a key is refused (§2.5.4).
    for keys in [(None, Some(KEY)), (Some(KEY), None)] {
        let (near, far) = set_up(&client(keys.0), &server(keys.1));
        assert!(matches!(far, Err(LinkError::Refused(Reason::KeyMissing))), "{keys:?}");
        assert!(!near.expect("received nothing").is_ready());
    }
    // The connecting side demands the same.
    let mut near = client(Some(KEY)).link();
    let mut stranger = server(None).link();
    let answer = stranger.handle_hello(&hello(client(None).link().hello())).expect("fine").expect("an answer");
    assert_eq!(near.handle_hello(&hello(answer)), Err(LinkError::Refused(Reason::KeyMissing)));
    assert!(!near.is_ready());
}

#[test]
fn another_key_is_refused_before_this_one_is_proven() {
    let (near, far) = set_up(&client(Some(KEY)), &server(Some(OTHER)));
    assert!(matches!(near, Err(LinkError::Refused(Reason::KeyMismatch))));
    assert!(!far.expect("received no proof").is_ready());
}

/// Breaks if a proof were valid for anything but the link that it was made for.
#[test]
fn a_proof_is_of_one_link_its_ends_and_its_side() {
    //= spec §2.5.2
    //= type=test
    //# A proof is HMAC-SHA-256, under the key, of: the 16 bytes "netacc link v1" and two zeros; one byte, 1 for the
    //# connecting side's proof and 2 for the accepting side's; the names of the connecting and of the accepting end,
    //# 32 bytes each; the first 28 bytes of the connecting side's HELLO, and of the accepting side's.
    let mut near = client(Some(KEY)).link();
    let mut far = server(Some(KEY)).link();
    let answer = hello(far.handle_hello(&hello(near.hello())).expect("fine").expect("an answer"));
    let proven = proof(near.handle_hello(&answer).expect("fine").expect("a proof"));

    // Replayed on another link: the nonces are others.
    for (near_nonce, far_nonce) in [(3, 2), (1, 3)] {
        let mut far = End { nonce: far_nonce, ..server(Some(KEY)) }.link();
        let near = End { nonce: near_nonce, ..client(Some(KEY)) }.link();
        far.handle_hello(&hello(near.hello())).expect("fine");
        assert_eq!(far.handle_proof(&proven), Err(LinkError::Refused(Reason::KeyMismatch)));
        assert!(!far.is_ready());
    }
    let mut near = End { nonce: 3, ..client(Some(KEY)) }.link();
    assert_eq!(near.handle_hello(&answer), Err(LinkError::Refused(Reason::KeyMismatch)));

    // Relayed by a process in between, which has the address that the connecting side connects to, and connects from
    // another address.
    let middle = PeerAddress([0, 3, 4 << 16, 0]);
    let relayed = set_up(&End { far: middle, ..client(Some(KEY)) }, &End { far: middle, ..server(Some(KEY)) });
    assert!(matches!(relayed.0, Err(LinkError::Refused(Reason::KeyMismatch))));

    // Sent back to the side that made it.
    let mut near = client(Some(KEY)).link();
    let own = hello(near.hello());
    assert_eq!(near.handle_hello(&own), Err(LinkError::Refused(Reason::KeyMismatch)));
    let mut far = server(Some(KEY)).link();
    let answer = hello(far.handle_hello(&hello(client(Some(KEY)).link().hello())).expect("fine").expect("an answer"));
    let own = answer.credential.expect("it has a key").proof;
    assert_eq!(far.handle_proof(&own), Err(LinkError::Refused(Reason::KeyMismatch)));

    // The sides' other fields of HELLO are proven too.
    let mut near = client(Some(KEY)).link();
    let forged = Hello { max_streams: 1, ..answer };
    assert_eq!(near.handle_hello(&forged), Err(LinkError::Refused(Reason::KeyMismatch)));
}

#[test]
fn a_proof_out_of_turn_is_a_violation() {
    //= spec §2.5.3
    //= type=test
    //# PROOF that is not expected is a violation, and ends the link.
    let violation = |link: &mut Link| matches!(link.handle_proof(&[0; 32]), Err(LinkError::Violation(_)));
    assert!(violation(&mut server(Some(KEY)).link()), "before HELLO");
    let (near, far) = set_up(&client(Some(KEY)), &server(Some(KEY)));
    assert!(violation(&mut far.expect("admitted")), "twice");
    assert!(violation(&mut near.expect("admitted")), "by the accepting side");
    let (_, far) = set_up(&client(None), &server(None));
    assert!(violation(&mut far.expect("admitted")), "without a key");
    let mut refused = server(Some(KEY)).link();
    refused.handle_hello(&hello(client(Some(KEY)).link().hello())).expect("fine");
    refused.refuse();
    assert!(violation(&mut refused), "on a link that was refused");
}

#[test]
fn a_side_without_a_key_shows_no_credential() {
    //= spec §2.5.1
    //= type=test
    //# A side with a pre-shared key announces that in its HELLO: *key* is 1, and *nonce* fresh for the link. Without
    //# one all three fields are zero.
    let bytes = client(None).link().hello().encode();
    assert!(bytes[10..].iter().all(|byte| *byte == 0));
    for (place, value) in [(10, 2), (11, 1), (12, 1), (27, 1), (28, 1), (59, 1)] {
        let mut bytes = bytes;
        bytes[place] = value;
        assert!(ControlMessage::decode(&bytes).is_err(), "byte {place} = {value}");
    }
    let bytes = client(Some(KEY)).link().hello().encode();
    assert_eq!((bytes[10], &bytes[12..28], &bytes[28..60]), (1, &[1; 16][..], &[0; 32][..]));
}

#[test]
fn a_key_is_not_short_and_not_printed() {
    assert!(PreSharedKey::new(&KEY[..15]).is_none() && PreSharedKey::new(&KEY[..16]).is_some());
    let key = PreSharedKey::new(KEY).expect("long enough");
    assert_eq!(format!("{key:?}"), "PreSharedKey");
}

proptest! {
    /// No message of a stranger admits it to a link.
    #[test]
    fn no_guess_is_admitted(nonce: [u8; 16], guess: [u8; 32], max_streams in 1u16.., receive_depth in 8u32..) {
        let credential = Some(Credential { nonce, proof: guess });
        let theirs = Hello { version: VERSION, receive_depth, max_streams, credential, datagrams: false };
        let mut near = client(Some(KEY)).link();
        prop_assert_eq!(near.handle_hello(&theirs), Err(LinkError::Refused(Reason::KeyMismatch)));
        let mut far = server(Some(KEY)).link();
        prop_assert!(far.handle_hello(&theirs).is_ok());
        prop_assert_eq!(far.handle_proof(&guess), Err(LinkError::Refused(Reason::KeyMismatch)));
        prop_assert!(!near.is_ready() && !far.is_ready());
    }

    /// Nor does a proof with one wrong bit.
    #[test]
    fn no_bit_may_be_wrong(bit in 0usize..256) {
        let (mut near, mut far) = (client(Some(KEY)).link(), server(Some(KEY)).link());
        let answer = hello(far.handle_hello(&hello(near.hello())).expect("fine").expect("an answer"));
        let mut proven = proof(near.handle_hello(&answer).expect("fine").expect("a proof"));
        proven[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(far.handle_proof(&proven), Err(LinkError::Refused(Reason::KeyMismatch)));
        let mut forged = answer;
        forged.credential.as_mut().expect("it has a key").proof[bit / 8] ^= 1 << (bit % 8);
        let mut near = client(Some(KEY)).link();
        prop_assert_eq!(near.handle_hello(&forged), Err(LinkError::Refused(Reason::KeyMismatch)));
    }
}
