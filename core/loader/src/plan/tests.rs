//! Plans for generated code, and for whole programs.

use super::*;

const AT: u64 = 0x40_1000;
const STUBS: u64 = 0x50_0000;

fn plan(bytes: &[u8]) -> Result<Plan, Refusal> {
    let mut plan = Plan { patches: Vec::new(), stubs_address: STUBS, stubs: vec![0; SLOT], is_go: false };
    let code = Code { bytes, address: AT };
    plan.add_all(code, &sweep(code, std::iter::once(0..bytes.len()))?)?;
    Ok(plan)
}

/// The instructions of a stub, as another decoder reads them.
fn stub(plan: &Plan) -> Vec<String> {
    let at = STUBS + SLOT as u64;
    let decoder = iced_x86::Decoder::with_ip(64, &plan.stubs[SLOT..], at, iced_x86::DecoderOptions::NONE);
    decoder
        .into_iter()
        .map(|i| {
            let target = match i.op0_kind() {
                iced_x86::OpKind::NearBranch64 => format!(" {:x}", i.near_branch_target()),
                _ if i.is_ip_rel_memory_operand() => format!(" [{:x}]", i.ip_rel_memory_address()),
                _ => String::new(),
            };
            format!("{:?}{target}", i.mnemonic()).to_lowercase()
        })
        .collect()
}

#[test]
fn instructions_behind_a_system_call_move_with_it() {
    // syscall; cmp rax, -4095; ja +0x10
    let code = [0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x77, 0x10];
    let plan = plan(&code).expect("it can be replaced");
    assert_eq!(plan.patches[0].address, AT);
    assert_eq!(plan.patches[0].bytes[..5], [0xe9, 0x3b, 0xf0, 0x0f, 0x00]);
    assert_eq!(plan.patches[0].bytes[5..], [0xcc; 3]);
    assert_eq!(stub(&plan), ["lea [50004d]", "jmp [500000]", "syscall", "cmp", "jmp 401008"]);
}

#[test]
fn instructions_before_a_system_call_move_if_those_behind_cannot() {
    // mov eax, 39; syscall; ret, and a function begins
    let code = [0xe8, 8, 0, 0, 0, 0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3, 0x53, 0x5b, 0xc3];
    let plan = plan(&code).expect("it can be replaced");
    assert_eq!((plan.patches[0].address, plan.patches[0].bytes.len()), (AT + 5, 7));
    assert_eq!(stub(&plan), ["mov", "lea [500052]", "jmp [500000]", "syscall", "jmp 40100c"]);
}

#[test]
fn padding_counts_behind_a_return() {
    // syscall; ret; nop word ptr [rax + rax]
    let plan = plan(&[0x0f, 0x05, 0xc3, 0x0f, 0x1f, 0x44, 0, 0]).expect("it can be replaced");
    assert_eq!(stub(&plan), ["lea [50004d]", "jmp [500000]", "syscall", "ret"]);
}

// Breaks if a branch could come to the middle of a jump.
#[test]
fn a_system_call_between_targets_is_refused() {
    // syscall; nop; and branches to the nop, and to the system call
    let code = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x90, 0x74, 0xfd, 0x75, 0xf9, 0xc3];
    assert_eq!(plan(&code).err(), Some(Refusal::Site(AT + 5)));
    // Without the second branch, what is before it moves.
    let code = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x90, 0x74, 0xfd, 0x90, 0x90, 0xc3];
    assert_eq!(plan(&code).map(|plan| plan.patches[0].address), Ok(AT));
}

#[test]
fn system_calls_that_share_bytes_do_not_overlap() {
    // mov eax, 1; syscall; syscall; nop; nop; nop
    let code = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x05, 0x90, 0x90, 0x90, 0xc3];
    let plan = plan(&code).expect("one takes what is before, one what is behind");
    let ranges: Vec<_> = plan.patches.iter().map(|p| (p.address - AT, p.bytes.len())).collect();
    assert_eq!(ranges, [(0, 7), (7, 5)]);
}
