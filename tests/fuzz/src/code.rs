//! Programs of any contents, as netacc-loader plans their changes.

use netacc_loader::elf::Elf;
use netacc_loader::plan::{Plan, SLOT};

const HEADERS: usize = 64 + 56;
const ADDRESS: u64 = 0x40_0000;

/// Reads the bytes as a program's file, and as the code of a program.
///
/// # Panics
/// Changes overlap, lie outside of the code, or do not lead to a stub.
pub fn code(bytes: &[u8]) {
    if let Ok(elf) = Elf::parse(bytes) {
        let _ = (elf.linking(), elf.section(b".text"));
        let _ = Plan::new(&elf);
    }
    let file = program(bytes);
    let elf = Elf::parse_static(&file).expect("the headers are good");
    let Ok(plan) = Plan::new(&elf) else { return };
    let end = ADDRESS + file.len() as u64;
    let stubs = plan.stubs_address + SLOT as u64..plan.stubs_address + plan.stubs.len() as u64;
    let mut free = ADDRESS;
    for patch in &plan.patches {
        assert!(patch.address >= free, "changes overlap");
        free = patch.address + patch.bytes.len() as u64;
        assert!(free <= end, "a change outside of the code");
        let [0xe9, a, b, c, d, ..] = patch.bytes[..] else { panic!("no jump: {:x?}", patch.bytes) };
        let target = (patch.address + 5).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
        assert!(stubs.contains(&target), "a jump to {target:#x}");
        let begin = (patch.address - ADDRESS) as usize;
        let replaced = &file[begin..begin + patch.bytes.len()];
        assert!(replaced.windows(2).any(|pair| pair == [0x0f, 0x05]), "no system call: {replaced:x?}");
    }
}

/// A file with one segment: the headers, and the code.
fn program(code: &[u8]) -> Vec<u8> {
    let len = (HEADERS + code.len()) as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [2u16, 62, 1, 0] {
        file.extend(half.to_le_bytes());
    }
    for word in [ADDRESS + HEADERS as u64, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    // Loaded, readable and executable.
    file.extend(1u32.to_le_bytes());
    file.extend(5u32.to_le_bytes());
    for word in [0, ADDRESS, ADDRESS, len, len, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    assert_eq!(file.len(), HEADERS);
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise;

    #[test]
    fn bytes_that_look_random_are_planned_without_harm() {
        for seed in 0..2000 {
            let mut bytes = noise(seed, 200);
            // System calls, and instructions that may move.
            for at in (seed as usize % 40..190).step_by(40) {
                bytes[at..at + 2].copy_from_slice(&[0x0f, 0x05]);
                bytes[at + 2..at + 8].fill(0x90);
            }
            code(&bytes);
        }
    }

    // Breaks if the changes of neighbours may overlap.
    #[test]
    fn system_calls_that_need_the_same_bytes_are_planned_without_harm() {
        let mut bytes = vec![0x90; 120];
        // syscall; nop; nop; nop; syscall; and a call, which cannot move
        bytes[40..52].copy_from_slice(&[0x0f, 0x05, 0x90, 0x90, 0x90, 0x0f, 0x05, 0xe8, 0, 0, 0, 0]);
        code(&bytes);
    }

    #[test]
    fn a_plan_is_made_for_good_code() {
        let file = program(&[0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3, 0x90, 0x90, 0x90]);
        let plan = Plan::new(&Elf::parse_static(&file).expect("good headers")).expect("it can be replaced");
        assert_eq!(plan.patches.len(), 1);
    }
}
