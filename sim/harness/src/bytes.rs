//! The bytes that a direction of a connection carries: a function of the position, so that nothing need be kept.
//!
//! Some positions begin like a record of the protocol. Applications may send anything, and a reader that takes such
//! bytes for a record, or waits for the rest of one, is wrong.

/// First bytes of every record on an anchor (SPEC §3.3).
const MAGIC: [u8; 8] = [0xA7, 0x9D, b'n', b'a', b'c', b'c', 0xE1, 0x1A];

/// How many of the last of `bytes` may be the first bytes of a record whose writer died: too few to distinguish from data.
/// The reader was given `before` of them already.
pub(crate) fn torn_record(before: usize, bytes: &[u8]) -> usize {
    let possible = &MAGIC[before..MAGIC.len() - 1];
    let lens = 1..=possible.len().min(bytes.len());
    // Nothing stands between the parts of a record.
    lens.rev().find(|n| bytes.ends_with(&possible[..*n]) && (before == 0 || *n == bytes.len())).unwrap_or(0)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(key: u64, index: u64) -> [u8; 8] {
    let bits = mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    match bits & 31 {
        // All eight are as good as a proof: no application writes them by chance.
        0 => [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], MAGIC[4], MAGIC[5], MAGIC[6], (bits >> 8) as u8],
        1 => [MAGIC[0]; 8],
        _ => bits.to_le_bytes(),
    }
}

/// Fills `out` with the bytes from `position` on of the direction named by `key`.
pub(crate) fn fill(key: u64, position: u64, out: &mut [u8]) {
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

/// The first position at which `bytes`, read from `position` on, differ from the written ones.
pub(crate) fn mismatch(key: u64, position: u64, bytes: &[u8]) -> Option<(u64, u8, u8)> {
    let mut expected = [0; 512];
    for (i, part) in bytes.chunks(expected.len()).enumerate() {
        let at = position + (i * 512) as u64;
        let expected = &mut expected[..part.len()];
        fill(key, at, expected);
        if expected != part {
            let n = part.iter().zip(&*expected).position(|(a, b)| a != b)?;
            return Some((at + n as u64, part[n], expected[n]));
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
        assert_eq!(mismatch(7, 3, &whole).map(|m| m.0), Some(703));
    }
}
