//! The pre-shared key: each end of a link proves, before the link carries a stream, that it has the same key. SPEC
//! §2.5.
//!
//! Invariants: a proof covers both ends' nonces, which are fresh for each link, the role of each end, and the addresses
//! of both ends. So the proof of another link, or of the other end, proves nothing. Proofs are compared in constant
//! time. The key is never printed.

use core::fmt;

use hmac::digest::generic_array::GenericArray;
use hmac::{Hmac, Mac};
use netacc_device::PeerAddress;
use sha2::Sha256;

use crate::wire::{Hello, Nonce, ProofBytes};

/// A key that all processes which may share links have.
#[derive(Clone)]
pub struct PreSharedKey(Hmac<Sha256>);

impl PreSharedKey {
    /// The fewest bytes of a key. Any process that requests a link receives a proof, against which it could guess a
    /// shorter key.
    pub const MIN_LEN: usize = 16;

    /// `None`: too short.
    pub fn new(bytes: &[u8]) -> Option<PreSharedKey> {
        let mac = Hmac::new_from_slice(bytes).ok()?;
        (bytes.len() >= Self::MIN_LEN).then_some(PreSharedKey(mac))
    }
}

impl fmt::Debug for PreSharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreSharedKey")
    }
}

/// The data with which one end of one link proves itself.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The key.
    pub key: PreSharedKey,
    /// Our nonce, fresh for this link.
    pub nonce: Nonce,
    /// The ends of the link by names that both use, ours first.
    pub ends: [PeerAddress; 2],
}

/// The side that a proof belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Connecting = 1,
    Accepting = 2,
}

/// The data that is proven: the HELLOs of a link, and its ends, the connecting side's first.
pub(crate) struct Transcript {
    pub(crate) hellos: [Hello; 2],
    pub(crate) ends: [PeerAddress; 2],
}

impl Transcript {
    fn mac(&self, key: &PreSharedKey, side: Side) -> Hmac<Sha256> {
        //= spec §2.5.2
        //# A proof is HMAC-SHA-256, under the key, of: the 16 bytes "netacc link v1" and two zeros; one byte, 1 for the
        //# connecting side's proof and 2 for the accepting side's; the names of the connecting and of the accepting end,
        //# 32 bytes each; the first 28 bytes of the connecting side's HELLO, and of the accepting side's.
        let mut mac = key.0.clone();
        mac.update(b"netacc link v1\0\0");
        mac.update(&[side as u8]);
        for word in self.ends.iter().flat_map(|end| end.0) {
            mac.update(&word.to_le_bytes());
        }
        for hello in self.hellos {
            mac.update(&hello.proven_bytes());
        }
        mac
    }

    /// The proof of one side.
    pub(crate) fn prove(&self, key: &PreSharedKey, side: Side) -> ProofBytes {
        self.mac(key, side).finalize().into_bytes().into()
    }

    /// Whether `proof` is the proof of `side`.
    pub(crate) fn verify(&self, key: &PreSharedKey, side: Side, proof: &ProofBytes) -> bool {
        self.mac(key, side).verify(GenericArray::from_slice(proof)).is_ok()
    }
}
