//! The lengths of x86-64 instructions, and the properties that matter to a program that moves them: where a branch goes,
//! and whether an operand is relative to the instruction's address.
//!
//! It reads bytes of any content without a panic, and never past the end. It does not check that operands make sense: an
//! instruction that a processor would refuse may get a length. It refuses opcodes that do not exist in 64-bit mode.

/// The longest instruction.
pub const MAX_LEN: usize = 15;

/// How an instruction continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With the next one.
    Plain,
    /// With the next one, and has no effect.
    Nop,
    /// `syscall`.
    Syscall,
    /// At another place: `jmp` with the distance from the next instruction.
    Jump(i32),
    /// At another place if the condition is true: `jcc`. The number of the condition, and the distance.
    Conditional(u8, i32),
    /// `loop` and `jrcxz`, which only have one byte for the distance.
    Short(i32),
    /// `call` with the distance from the next instruction.
    Call(i32),
    /// `call` through a register or memory.
    IndirectCall,
    /// Not with the next one, and not at a place that the instruction names: `ret`, or `jmp` through a register or memory.
    End,
    /// Not at all: `int3`, `hlt`, `ud2`.
    Trap,
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// In bytes, at most [`MAX_LEN`].
    pub len: usize,
    /// How it continues.
    pub kind: Kind,
    /// Where in the instruction the distance of an operand from the next instruction is: four bytes.
    pub relative_at: Option<usize>,
}

/// A byte after the opcode says which operands there are.
const MODRM: u8 = 1;
/// One byte of constant.
const BYTE: u8 = 2;
/// Two bytes of constant.
const WORD: u8 = 4;
/// Four bytes of constant, two with the operand-size prefix.
const FULL: u8 = 8;
/// No such opcode, or one that is handled before the table is read.
const NONE: u8 = 128;

const fn set(table: &mut [u8; 256], from: usize, to: usize, value: u8) {
    let mut at = from;
    while at <= to {
        table[at] = value;
        at += 1;
    }
}

/// Opcodes of one byte.
const ONE: [u8; 256] = {
    let mut t = [0; 256];
    let mut row = 0;
    while row < 0x40 {
        set(&mut t, row, row + 3, MODRM);
        t[row + 4] = BYTE;
        t[row + 5] = FULL;
        set(&mut t, row + 6, row + 7, NONE);
        row += 8;
    }
    set(&mut t, 0x60, 0x62, NONE);
    t[0x63] = MODRM;
    t[0x68] = FULL;
    t[0x69] = MODRM | FULL;
    t[0x6a] = BYTE;
    t[0x6b] = MODRM | BYTE;
    set(&mut t, 0x70, 0x7f, BYTE);
    set(&mut t, 0x80, 0x83, MODRM | BYTE);
    t[0x81] = MODRM | FULL;
    t[0x82] = NONE;
    set(&mut t, 0x84, 0x8f, MODRM);
    t[0x9a] = NONE;
    t[0xa8] = BYTE;
    t[0xa9] = FULL;
    set(&mut t, 0xb0, 0xb7, BYTE);
    set(&mut t, 0xb8, 0xbf, FULL);
    set(&mut t, 0xc0, 0xc1, MODRM | BYTE);
    t[0xc2] = WORD;
    set(&mut t, 0xc4, 0xc5, NONE);
    t[0xc6] = MODRM | BYTE;
    t[0xc7] = MODRM | FULL;
    t[0xc8] = WORD | BYTE;
    t[0xca] = WORD;
    t[0xcd] = BYTE;
    t[0xce] = NONE;
    set(&mut t, 0xd0, 0xd3, MODRM);
    set(&mut t, 0xd4, 0xd6, NONE);
    set(&mut t, 0xd8, 0xdf, MODRM);
    set(&mut t, 0xe0, 0xe7, BYTE);
    t[0xea] = NONE;
    t[0xeb] = BYTE;
    set(&mut t, 0xf6, 0xf7, MODRM);
    set(&mut t, 0xfe, 0xff, MODRM);
    t
};

/// Opcodes after `0f`.
const TWO: [u8; 256] = {
    let mut t = [MODRM; 256];
    t[0x04] = NONE;
    set(&mut t, 0x05, 0x09, 0);
    t[0x0a] = NONE;
    t[0x0b] = 0;
    t[0x0c] = NONE;
    t[0x0e] = 0;
    t[0x0f] = MODRM | BYTE;
    set(&mut t, 0x24, 0x27, NONE);
    set(&mut t, 0x30, 0x37, 0);
    t[0x36] = NONE;
    set(&mut t, 0x39, 0x3f, NONE);
    set(&mut t, 0x70, 0x73, MODRM | BYTE);
    t[0x77] = 0;
    set(&mut t, 0x7a, 0x7b, NONE);
    set(&mut t, 0xa0, 0xa2, 0);
    t[0xa4] = MODRM | BYTE;
    set(&mut t, 0xa6, 0xa7, NONE);
    set(&mut t, 0xa8, 0xaa, 0);
    t[0xac] = MODRM | BYTE;
    t[0xba] = MODRM | BYTE;
    t[0xc2] = MODRM | BYTE;
    set(&mut t, 0xc4, 0xc6, MODRM | BYTE);
    set(&mut t, 0xc8, 0xcf, 0);
    t
};

/// The parts before the operands.
#[derive(Default)]
struct Prefixes {
    short_operand: bool,
    short_address: bool,
    wide: bool,
    repeats: bool,
}

/// The first instruction of `code`; `None` if there is none, or not all of it.
#[inline]
pub fn decode(code: &[u8]) -> Option<Instruction> {
    let code = &code[..code.len().min(MAX_LEN)];
    let (mut at, mut prefixes) = (0, Prefixes::default());
    let mut opcode = *code.first()?;
    loop {
        match opcode {
            0x66 => prefixes.short_operand = true,
            0x67 => prefixes.short_address = true,
            0xf3 => prefixes.repeats = true,
            0xf0 | 0xf2 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            _ => break,
        }
        at += 1;
        opcode = *code.get(at)?;
    }
    if opcode & 0xf0 == 0x40 {
        prefixes.wide = opcode & 8 != 0;
        at += 1;
        opcode = *code.get(at)?;
        // A prefix after it would void it: no compiler writes that.
        if opcode & 0xf0 == 0x40 {
            return None;
        }
    }
    at += 1;
    match opcode {
        0x0f => two(code, at, &prefixes),
        0xc4 | 0xc5 | 0x62 => vector(code, at, opcode),
        _ => one(code, at, opcode, &prefixes),
    }
}

fn one(code: &[u8], at: usize, opcode: u8, prefixes: &Prefixes) -> Option<Instruction> {
    let mut operands = ONE[usize::from(opcode)];
    let mut extra = 0;
    match opcode {
        0xa0..=0xa3 => extra = if prefixes.short_address { 4 } else { 8 },
        0xb8..=0xbf if prefixes.wide => (operands, extra) = (0, 8),
        0xe8 | 0xe9 => extra = 4,
        // `test` has a constant, its relatives with the same opcode have none.
        0xf6 | 0xf7 if code.get(at)? & 0x30 == 0 => operands |= if opcode == 0xf6 { BYTE } else { FULL },
        // XOP, which only old processors have.
        0x8f if code.get(at)? & 0x38 != 0 => return None,
        _ => {}
    }
    let (len, relative_at) = operands_end(code, at, operands, extra, prefixes.short_operand)?;
    let byte = || i32::from(code[len - 1] as i8);
    let four = || i32::from_le_bytes([code[len - 4], code[len - 3], code[len - 2], code[len - 1]]);
    let kind = match opcode {
        0x70..=0x7f => Kind::Conditional(opcode & 15, byte()),
        0xe0..=0xe3 => Kind::Short(byte()),
        0xe8 => Kind::Call(four()),
        0xe9 => Kind::Jump(four()),
        0xeb => Kind::Jump(byte()),
        0xc2 | 0xc3 | 0xca | 0xcb | 0xcf => Kind::End,
        0xcc | 0xf4 => Kind::Trap,
        0x90 => Kind::Nop,
        0xff => match code[at] >> 3 & 7 {
            2 | 3 => Kind::IndirectCall,
            4 | 5 => Kind::End,
            7 => return None,
            _ => Kind::Plain,
        },
        0xfe if code[at] >> 3 & 7 > 1 => return None,
        _ => Kind::Plain,
    };
    Some(Instruction { len, kind, relative_at })
}

fn two(code: &[u8], at: usize, prefixes: &Prefixes) -> Option<Instruction> {
    let opcode = *code.get(at)?;
    let at = at + 1;
    let (operands, at, extra) = match opcode {
        0x38 => (MODRM, at + 1, 0),
        0x3a => (MODRM | BYTE, at + 1, 0),
        0x80..=0x8f => (0, at, 4),
        _ => (TWO[usize::from(opcode)], at, 0),
    };
    let (len, relative_at) = operands_end(code, at, operands, extra, prefixes.short_operand)?;
    let kind = match opcode {
        0x05 => Kind::Syscall,
        0x0b => Kind::Trap,
        0x1f => Kind::Nop,
        0x1e if prefixes.repeats && code[at] == 0xfa => Kind::Nop,
        0x80..=0x8f => {
            let distance = i32::from_le_bytes([code[len - 4], code[len - 3], code[len - 2], code[len - 1]]);
            Kind::Conditional(opcode & 15, distance)
        }
        _ => Kind::Plain,
    };
    Some(Instruction { len, kind, relative_at })
}

/// VEX and EVEX: one to three bytes, then the opcode.
fn vector(code: &[u8], at: usize, first: u8) -> Option<Instruction> {
    let map = match first {
        0xc5 => 1,
        0xc4 => code.get(at)? & 0x1f,
        _ => code.get(at)? & 7,
    };
    let at = at
        + match first {
            0xc5 => 1,
            0xc4 => 2,
            _ => 3,
        };
    let opcode = *code.get(at)?;
    let operands = match map {
        1 if first != 0x62 && opcode == 0x77 => 0,
        1 => MODRM | TWO[usize::from(opcode)] & BYTE,
        2 | 5 | 6 => MODRM,
        3 => MODRM | BYTE,
        _ => return None,
    };
    let (len, relative_at) = operands_end(code, at + 1, operands, 0, false)?;
    Some(Instruction { len, kind: Kind::Plain, relative_at })
}

/// Where the instruction ends whose operands begin at `at`, and where the distance of a relative operand is.
#[inline]
fn operands_end(code: &[u8], mut at: usize, operands: u8, extra: usize, short: bool) -> Option<(usize, Option<usize>)> {
    if operands & NONE != 0 {
        return None;
    }
    let mut relative_at = None;
    if operands & MODRM != 0 {
        let modrm = *code.get(at)?;
        at += 1;
        let (form, register) = (modrm >> 6, modrm & 7);
        let mut displacement = [0, 1, 4, 0][usize::from(form)];
        if form != 3 && register == 4 {
            if form == 0 && *code.get(at)? & 7 == 5 {
                displacement = 4;
            }
            at += 1;
        } else if form == 0 && register == 5 {
            displacement = 4;
            relative_at = Some(at);
        }
        at += displacement;
    }
    let constants = usize::from(operands & BYTE != 0)
        + if operands & WORD != 0 { 2 } else { 0 }
        + if operands & FULL == 0 {
            0
        } else if short {
            2
        } else {
            4
        };
    let len = at + constants + extra;
    (len <= code.len()).then_some((len, relative_at))
}

#[cfg(test)]
mod tests;
