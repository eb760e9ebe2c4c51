//! Instructions at another address: the same effect, with distances that fit the new place.

use crate::decode::{Instruction, Kind};

/// Appends the instruction `bytes`, decoded as `instruction`, whose address is `from`, to code that is at `to` after the
/// addition. `None`: it cannot be moved.
pub fn append(code: &mut Vec<u8>, bytes: &[u8], instruction: &Instruction, from: u64, to: u64) -> Option<()> {
    let target = |by: i32| from.wrapping_add(instruction.len as u64).wrapping_add_signed(by.into());
    match instruction.kind {
        Kind::Jump(by) => jump(code, to, target(by)),
        Kind::Conditional(condition, by) => {
            let distance = distance(to + 6, target(by))?;
            code.extend([0x0f, 0x80 | condition]);
            code.extend(distance.to_le_bytes());
            Some(())
        }
        // A short branch has no long form, a call would return to the old place's copy, and a system call is changed itself.
        Kind::Short(_) | Kind::Call(_) | Kind::IndirectCall | Kind::Syscall => None,
        Kind::Plain | Kind::Nop | Kind::End | Kind::Trap => {
            let begin = code.len();
            code.extend(bytes.get(..instruction.len)?);
            let Some(at) = instruction.relative_at else { return Some(()) };
            let place = code.get_mut(begin + at..begin + at + 4)?;
            let by = i32::from_le_bytes([place[0], place[1], place[2], place[3]]);
            let moved = distance(to + instruction.len as u64, target(by))?;
            place.copy_from_slice(&moved.to_le_bytes());
            Some(())
        }
    }
}

/// Appends `jmp target` to code that is at `to` after the addition. `None`: the target is too far.
pub fn jump(code: &mut Vec<u8>, to: u64, target: u64) -> Option<()> {
    let distance = distance(to + 5, target)?;
    code.push(0xe9);
    code.extend(distance.to_le_bytes());
    Some(())
}

/// The distance from the end of an instruction.
pub fn distance(from: u64, to: u64) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from) as i64).ok()
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};
    use proptest::prelude::*;

    use super::*;
    use crate::decode::decode;

    const FROM: u64 = 0x40_0000;
    const TO: u64 = 0x70_0000;

    fn moved(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut code = Vec::new();
        append(&mut code, bytes, &decode(bytes)?, FROM, TO)?;
        Some(code)
    }

    #[test]
    fn branches_and_relative_operands_keep_their_targets() {
        for bytes in [
            &[0xeb, 0x10][..],
            &[0x75, 0xf0],
            &[0xe9, 1, 2, 3, 0],
            &[0x0f, 0x84, 0xff, 0xff, 0xff, 0xff],
            // mov rax, [rip + 0x1000]; cmp dword ptr [rip + 8], 5
            &[0x48, 0x8b, 0x05, 0, 0x10, 0, 0],
            &[0x83, 0x3d, 8, 0, 0, 0, 5],
        ] {
            let read = |bytes: &[u8], at| Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            let (before, after) = (read(bytes, FROM), read(&moved(bytes).expect("it can be moved"), TO));
            assert_eq!(before.mnemonic(), after.mnemonic());
            assert_eq!(before.near_branch_target(), after.near_branch_target(), "{bytes:x?}");
            if before.is_ip_rel_memory_operand() {
                assert_eq!(before.ip_rel_memory_address(), after.ip_rel_memory_address(), "{bytes:x?}");
            }
        }
    }

    #[test]
    fn calls_short_loops_and_system_calls_stay() {
        for bytes in [&[0xe8, 0, 0, 0, 0][..], &[0xff, 0xd0], &[0xe2, 0], &[0x0f, 0x05]] {
            assert_eq!(moved(bytes), None, "{bytes:x?}");
        }
    }

    proptest! {
        // Breaks if a moved instruction does something else than before.
        #[test]
        fn any_instruction_is_the_same_at_the_new_place(bytes in proptest::collection::vec(any::<u8>(), 15)) {
            let read = |bytes: &[u8], at| Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            let before = read(&bytes, FROM);
            prop_assume!(!before.is_invalid() && decode(&bytes).is_some_and(|own| own.len == before.len()));
            let Some(code) = moved(&bytes) else { return Ok(()) };
            let after = read(&code, TO);
            prop_assert_eq!(before.mnemonic(), after.mnemonic());
            if before.is_ip_rel_memory_operand() {
                prop_assert_eq!(before.ip_rel_memory_address(), after.ip_rel_memory_address());
            } else if before.is_jcc_short_or_near() || before.is_jmp_short_or_near() {
                prop_assert_eq!(before.near_branch_target(), after.near_branch_target());
            } else {
                prop_assert_eq!(&code[..], &bytes[..before.len()]);
            }
        }
    }
}
