//! The functions in the unwinder's frames (`.eh_frame`). Programs that are linked statically with `gcc -static` have these and no
//! sorted table of them (`.eh_frame_hdr`).
//!
//! Frames may have any contents: a list that is damaged ends at the damage.

use crate::elf::{full, half, word};

/// The first byte of a frame's encoding that is relative to the encoded address itself.
const RELATIVE: u8 = 0x10;
/// An encoding in which nothing is written.
const OMITTED: u8 = 0xff;

/// The addresses of the functions that the frames describe. `address` is that of the first frame.
pub(crate) fn functions(frames: &[u8], address: u64) -> Vec<u64> {
    let mut functions = Vec::new();
    // Neighbours mostly have the same description of their encoding.
    let mut known: Option<(usize, u8)> = None;
    let mut at = 0;
    while let Some(record) = Record::read(frames, at) {
        at = record.end;
        let Some(distance) = record.to_common.filter(|distance| *distance > 0) else { continue };
        let Some(common_at) = record.body.checked_sub(4).and_then(|from| from.checked_sub(distance)) else { break };
        let encoding = match known.filter(|known| known.0 == common_at) {
            Some((_, encoding)) => encoding,
            None => match Record::read(frames, common_at).and_then(|common| encoding(&frames[common.body..common.end]))
            {
                Some(encoding) => encoding,
                None => break,
            },
        };
        known = Some((common_at, encoding));
        let place = address.wrapping_add(record.body as u64);
        functions.extend(pointer(&frames[record.body..record.end], encoding, place));
    }
    functions
}

/// A description of one function, or one that several of them have in common.
struct Record {
    /// The offset behind the first two words.
    body: usize,
    /// The offset of the next record.
    end: usize,
    /// How far the common description lies before the word that says so; 0 for a common description, and `None` for an empty
    /// record, by which some linkers separate lists.
    to_common: Option<usize>,
}

impl Record {
    fn read(frames: &[u8], at: usize) -> Option<Record> {
        const LONG: u32 = u32::MAX;
        let (len, begin) = match full(frames, at)? {
            0 => return Some(Record { body: at + 4, end: at + 4, to_common: None }),
            LONG => (usize::try_from(word(frames, at + 4)?).ok()?, at + 12),
            len => (len as usize, at + 4),
        };
        let end = begin.checked_add(len).filter(|end| *end <= frames.len())?;
        let to_common = full(&frames[..end], begin)? as usize;
        Some(Record { body: begin + 4, end, to_common: Some(to_common) })
    }
}

/// How the addresses of functions are written, by the common description of their frames.
fn encoding(common: &[u8]) -> Option<u8> {
    const WHOLE: u8 = 0;
    let (version, rest) = common.split_first()?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    let (augmentation, rest) = (&rest[..end], &rest[end + 1..]);
    let Some(marks) = augmentation.strip_prefix(b"z") else { return augmentation.is_empty().then_some(WHOLE) };
    // The factors of the code and of the data, and the register of the return address.
    let rest = skip_number(skip_number(rest)?)?;
    let rest = if *version == 1 { rest.get(1..)? } else { skip_number(rest)? };
    let mut rest = skip_number(rest)?;
    for mark in marks {
        match mark {
            b'R' => return rest.first().copied(),
            b'L' => rest = rest.get(1..)?,
            b'P' => rest = rest.get(1 + size_of_pointer(*rest.first()?)?..)?,
            b'S' | b'B' => {}
            _ => return None,
        }
    }
    Some(WHOLE)
}

/// What follows a number of seven bits a byte.
fn skip_number(bytes: &[u8]) -> Option<&[u8]> {
    let last = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    Some(&bytes[last + 1..])
}

fn size_of_pointer(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        _ if encoding == OMITTED => Some(0),
        0 | 4 | 0xc => Some(8),
        2 | 0xa => Some(2),
        3 | 0xb => Some(4),
        _ => None,
    }
}

/// The address that is written at `place`. `None`: it is written in a way that linkers do not use for functions.
fn pointer(bytes: &[u8], encoding: u8, place: u64) -> Option<u64> {
    let value = match encoding & 0x0f {
        0 | 4 | 0xc => word(bytes, 0)?,
        2 => half(bytes, 0)?.into(),
        3 => full(bytes, 0)?.into(),
        0xa => half(bytes, 0)? as i16 as u64,
        0xb => full(bytes, 0)? as i32 as u64,
        _ => return None,
    };
    match encoding & 0xf0 {
        0 => Some(value),
        RELATIVE => Some(place.wrapping_add(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x50_0000;

    fn record(id: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = (body.len() as u32 + 4).to_le_bytes().to_vec();
        bytes.extend(id.to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// A common description with this augmentation and its data, and one function, whose address is written so.
    fn frames(augmentation: &[u8], data: &[u8], address: &[u8]) -> Vec<u8> {
        let mut common = [&[1], augmentation, &[0, 1, 0x78, 16]].concat();
        if augmentation.first() == Some(&b'z') {
            common.push(data.len() as u8);
        }
        common.extend(data);
        let mut bytes = record(0, &common);
        let distance = bytes.len() as u32 + 4;
        bytes.extend(record(distance, &[address, &[0; 8]].concat()));
        bytes
    }

    #[test]
    fn addresses_are_read_in_each_encoding() {
        let place = |frames: &[u8]| AT + (frames.len() - 8) as u64;
        for (augmentation, data, address, expected) in [
            (&b"zR"[..], &[0x1b][..], &(-0x100i32).to_le_bytes()[..], Some(-0x100)),
            (b"zPLR", &[3, 0, 0, 0, 0, 3, 0x1b], &0x40i32.to_le_bytes(), Some(0x40)),
            (b"zRS", &[0x1c], &0x40i64.to_le_bytes(), Some(0x40)),
            (b"zLR", &[OMITTED, 0x1a], &(-2i16).to_le_bytes(), Some(-2)),
            // Through a pointer: for no function.
            (b"zR", &[0x9b], &0x40i32.to_le_bytes(), None),
        ] {
            let frames = frames(augmentation, data, address);
            let expected: Vec<u64> = expected
                .map(|by: i64| (place(&frames) - address.len() as u64).wrapping_add_signed(by))
                .into_iter()
                .collect();
            assert_eq!(functions(&frames, AT), expected, "{augmentation:?}");
        }
        for (augmentation, data, address) in [
            (&b"zR"[..], &[0x03][..], &0x40_1000u32.to_le_bytes()[..]),
            (b"zR", &[0x02], &[0x00, 0x10]),
            (b"", &[], &0x40_1000u64.to_le_bytes()),
            (b"z", &[], &0x40_1000u64.to_le_bytes()),
        ] {
            let expected = if address.len() == 2 { 0x1000 } else { 0x40_1000 };
            assert_eq!(functions(&frames(augmentation, data, address), AT), [expected], "{augmentation:?}");
        }
    }

    // Breaks if what a length or a distance says is not checked, or if the list ends at an empty record.
    #[test]
    fn damaged_frames_end_the_list() {
        let one = frames(b"zR", &[0x03], &0x40_1000u32.to_le_bytes());
        let all = [&one[..], &[0; 4], &one].concat();
        assert_eq!(functions(&all, AT), [0x40_1000; 2]);
        for len in 0..one.len() {
            assert!(functions(&one[..len], AT).is_empty(), "{len} bytes");
        }
        let distance_at = one.len() - 16;
        for at in 0..all.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut damaged = all.clone();
                damaged[at] = byte;
                assert!(functions(&damaged, AT).len() <= 2, "{byte} at {at}");
            }
        }
        let mut elsewhere = one;
        elsewhere[distance_at..distance_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(functions(&elsewhere, AT).is_empty());
    }
}
