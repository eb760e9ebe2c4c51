//! Against another decoder, on real code and on bytes of any content.

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction as Other};
use proptest::prelude::*;

use super::*;

/// The other decoder's instruction; `None` if the bytes are none, or of an extension that no program has.
fn other(code: &[u8]) -> Option<Other> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (decoder.last_error() == DecoderError::None && !instruction.is_invalid()).then_some(instruction)
}

fn check(code: &[u8], other: &Other) -> Result<(), TestCaseError> {
    let own = decode(code).ok_or_else(|| TestCaseError::fail(format!("{:x?} refused: {:?}", code, other.code())))?;
    prop_assert_eq!(own.len, other.len(), "{:x?} {:?}", code, other.code());
    prop_assert_eq!(own.relative_at.is_some(), other.is_ip_rel_memory_operand(), "{:x?} {:?}", code, other.code());
    let target = match own.kind {
        Kind::Jump(by) | Kind::Conditional(_, by) | Kind::Short(by) | Kind::Call(by) => {
            Some((own.len as u64).wrapping_add_signed(by.into()))
        }
        _ => None,
    };
    let near = matches!(other.op0_kind(), iced_x86::OpKind::NearBranch64) && other.op_count() > 0;
    prop_assert_eq!(target, near.then(|| other.near_branch64()), "{:x?} {:?}", code, other.code());
    let continues = matches!(own.kind, Kind::End | Kind::Trap | Kind::Jump(_));
    let flow = other.flow_control();
    let ends = matches!(
        flow,
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Interrupt
    ) && other.code() != Code::Int_imm8
        || matches!(other.code(), Code::Hlt | Code::Ud2);
    prop_assert_eq!(continues, ends, "{:x?} {:?}", code, other.code());
    prop_assert_eq!(own.kind == Kind::Syscall, other.code() == Code::Syscall);
    Ok(())
}

// Breaks if a length, a branch or a relative operand of an instruction that compilers write is wrong.
#[test]
fn the_code_of_this_very_program_is_read_as_another_decoder_reads_it() {
    let file = std::fs::read(std::env::current_exe().expect("it runs")).expect("it is readable");
    let elf = crate::elf::Elf::parse(&file).expect("an ELF file");
    let text = elf.section(b".text").expect("it has code");
    let code = &file[text.file];
    let (mut at, mut count) = (0, 0);
    while at < code.len() {
        let window = &code[at..code.len().min(at + MAX_LEN)];
        let Some(other) = other(window) else {
            at += 1;
            continue;
        };
        check(window, &other).unwrap_or_else(|error| panic!("at {at:#x}: {error}"));
        at += other.len();
        count += 1;
    }
    assert!(count > 50_000, "{count} instructions");
}

proptest! {
    // Breaks if bytes of any content make it read past the end.
    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
        if let Some(instruction) = decode(&bytes) {
            prop_assert!(instruction.len <= bytes.len() && instruction.len <= MAX_LEN && instruction.len > 0);
        }
    }
}
