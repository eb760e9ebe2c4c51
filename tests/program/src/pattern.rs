//! The bytes that a direction of a connection carries: a function of the position, so that no byte need be stored, and
//! bytes that are lost, doubled or reordered are recognised where they are read.
//!
//! Some positions look like the beginning of a record of the protocol between two libraries: programs may send anything.

use crate::Wrong;

/// First bytes of every record on an anchor (SPEC §3.3).
pub const MAGIC: [u8; 8] = [0xA7, 0x9D, b'n', b'a', b'c', b'c', 0xE1, 0x1A];

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(key: u64, index: u64) -> [u8; 8] {
    let bits = mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    match bits & 31 {
        // All eight are as good as a proof: no program writes them by chance.
        0 => [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], MAGIC[4], MAGIC[5], MAGIC[6], (bits >> 8) as u8],
        1 => [MAGIC[0]; 8],
        _ => bits.to_le_bytes(),
    }
}

/// The name of the direction that `side` (0 opened, 1 accepted) of a connection writes.
pub fn key(connection: u32, side: u8) -> u64 {
    (u64::from(connection) * 2 + u64::from(side) + 1) << 32
}

/// Fills `out` with the bytes from `position` on.
pub fn fill(key: u64, position: u64, out: &mut [u8]) {
    let mut at = position;
    let mut rest = out;
    while !rest.is_empty() {
        let from = (at % 8) as usize;
        let n = (8 - from).min(rest.len());
        rest[..n].copy_from_slice(&word(key, at / 8)[from..from + n]);
        at += n as u64;
        rest = &mut rest[n..];
    }
}

/// The first of `bytes`, read from `position` on, that is not the one sent.
pub fn mismatch(key: u64, position: u64, bytes: &[u8]) -> Option<Wrong> {
    let mut expected = [0; 512];
    for (i, part) in bytes.chunks(expected.len()).enumerate() {
        let at = position + (i * 512) as u64;
        let expected = &mut expected[..part.len()];
        fill(key, at, expected);
        if expected != part {
            let n = part.iter().zip(&*expected).position(|(a, b)| a != b)?;
            return Some(Wrong { position: at + n as u64, expected: expected[n], found: part[n] });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if reads that split differently from writes would see other bytes.
    #[test]
    fn splits_do_not_matter() {
        let mut whole = [0; 1000];
        fill(7, 3, &mut whole);
        let mut parts = [0; 1000];
        for (from, to) in [(0, 1), (1, 13), (13, 600), (600, 1000)] {
            fill(7, 3 + from as u64, &mut parts[from..to]);
        }
        assert_eq!(whole, parts);
        assert_eq!(mismatch(7, 3, &whole), None);
        whole[700] ^= 1;
        assert_eq!(mismatch(7, 3, &whole).map(|m| m.position), Some(703));
    }

    // Breaks if a byte that is read at the wrong place passes.
    #[test]
    fn shifts_are_seen() {
        let mut bytes = [0; 64];
        fill(key(1, 0), 8, &mut bytes);
        assert!(mismatch(key(1, 0), 0, &bytes).is_some());
        assert!(mismatch(key(1, 1), 8, &bytes).is_some());
    }
}
