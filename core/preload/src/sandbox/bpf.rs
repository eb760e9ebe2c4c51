//! Classic BPF as seccomp runs it, evaluated for system calls with unknown arguments.
//!
//! Jumps go forward only, so one pass over the instructions visits every path: where two paths meet, their states are
//! merged, and a value on which they disagree is unknown from there on. The answer is therefore a superset of what the
//! kernel can return: [`Program::permits`] returns true only if the kernel certainly lets the call pass.
//!
//! A pure function of its inputs. A program that the kernel would refuse is `None` from [`Program::new`].

use libc::{
    SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ALLOW, SECCOMP_RET_DATA, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_THREAD,
    SECCOMP_RET_LOG,
};

/// `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Class, size, mode or operation.
    pub code: u16,
    /// How many instructions a jump passes over if its condition holds.
    pub jt: u8,
    /// The same if it does not.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

/// BPF_MAXINSNS.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Words of `struct seccomp_data`.
const WORDS: usize = 16;
/// Cells of scratch memory.
const CELLS: usize = 16;

/// A known number, or any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// This one.
    Known(u32),
    /// It differs from call to call.
    Any,
}

use Value::{Any, Known};

/// A system call, as `struct seccomp_data` describes it to a filter.
#[derive(Clone, Copy, Debug)]
pub struct Call([Value; WORDS]);

impl Call {
    /// The call `number` of the architecture `arch` with unknown arguments.
    pub fn new(arch: u32, number: u32) -> Call {
        let mut words = [Any; WORDS];
        (words[0], words[1]) = (Known(number), Known(arch));
        Call(words)
    }

    /// The same with `value` as argument `index`.
    pub fn with_argument(mut self, index: usize, value: u64) -> Call {
        let (low, high) = (Known(value as u32), Known((value >> 32) as u32));
        let at = 4 + 2 * index;
        let words = if cfg!(target_endian = "little") { [low, high] } else { [high, low] };
        if let Some(place) = self.0.get_mut(at..at + 2) {
            place.copy_from_slice(&words);
        }
        self
    }
}

/// The verdict of a filter on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It passes.
    Passes,
    /// It fails with this error, without any effect.
    Fails(u16),
    /// It ends the thread or the process, raises a signal, or leaves the verdict to another process.
    Catches,
}

impl Answer {
    fn of(returned: Value) -> Answer {
        let Known(value) = returned else { return Answer::Catches };
        match value & SECCOMP_RET_ACTION_FULL {
            SECCOMP_RET_ALLOW | SECCOMP_RET_LOG => Answer::Passes,
            SECCOMP_RET_ERRNO => Answer::Fails((value & SECCOMP_RET_DATA) as u16),
            _ => Answer::Catches,
        }
    }
}

/// A filter that the kernel accepts.
#[derive(Clone, Debug)]
pub struct Program(Vec<Step>);

/// One instruction, decoded.
#[derive(Clone, Copy, Debug)]
enum Step {
    LoadWord(usize),
    LoadConstant(u32),
    LoadCell(usize),
    LoadIndexConstant(u32),
    LoadIndexCell(usize),
    Store(usize),
    StoreIndex(usize),
    IndexFromAccumulator,
    AccumulatorFromIndex,
    Compute(Operator, Operand),
    Negate,
    Jump { condition: Condition, operand: Operand, taken: usize, passed: usize },
    Go(usize),
    Return(Operand),
    ReturnAccumulator,
}

#[derive(Clone, Copy, Debug)]
enum Operand {
    Constant(u32),
    Index,
}

#[derive(Clone, Copy, Debug)]
enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug)]
enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// The machine before an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Machine {
    accumulator: Value,
    index: Value,
    cells: [Value; CELLS],
}

impl Machine {
    fn operand(&self, operand: Operand) -> Value {
        match operand {
            Operand::Constant(k) => Known(k),
            Operand::Index => self.index,
        }
    }

    fn merge(&mut self, other: &Machine) {
        let join = |mine: &mut Value, theirs: Value| {
            if *mine != theirs {
                *mine = Any;
            }
        };
        join(&mut self.accumulator, other.accumulator);
        join(&mut self.index, other.index);
        self.cells.iter_mut().zip(other.cells).for_each(|(mine, theirs)| join(mine, theirs));
    }
}

impl Program {
    /// Decodes a filter. `None` if the kernel would not install it, apart from reads of memory that was never written.
    pub fn new(instructions: &[Instruction]) -> Option<Program> {
        if instructions.is_empty() || instructions.len() > MAX_INSTRUCTIONS {
            return None;
        }
        let steps: Option<Vec<Step>> =
            instructions.iter().enumerate().map(|(at, i)| decode(i, at, instructions.len())).collect();
        let steps = steps?;
        matches!(steps.last()?, Step::Return(_) | Step::ReturnAccumulator).then_some(Program(steps))
    }

    /// All possible verdicts of the filter on `call`. Never empty.
    pub fn answers(&self, call: &Call) -> Vec<Answer> {
        let mut answers: Vec<Answer> = self.returns(call).into_iter().map(Answer::of).collect();
        answers.dedup();
        answers
    }

    /// Whether `call` passes, whatever its unknown arguments are.
    pub fn permits(&self, call: &Call) -> bool {
        self.returns(call).into_iter().all(|value| Answer::of(value) == Answer::Passes)
    }

    /// The values that the filter may return for `call`.
    fn returns(&self, call: &Call) -> Vec<Value> {
        let mut before: Vec<Option<Machine>> = vec![None; self.0.len()];
        // The kernel clears both registers before a filter runs.
        before[0] = Some(Machine { accumulator: Known(0), index: Known(0), cells: [Any; CELLS] });
        let mut returned = Vec::new();
        for (at, step) in self.0.iter().enumerate() {
            let Some(machine) = before[at] else { continue };
            match *step {
                Step::Return(operand) => returned.push(machine.operand(operand)),
                Step::ReturnAccumulator => returned.push(machine.accumulator),
                Step::Go(to) => enter(&mut before, to, &machine),
                Step::Jump { condition, operand, taken, passed } => {
                    let holds = decide(condition, machine.accumulator, machine.operand(operand));
                    if holds != Some(false) {
                        enter(&mut before, taken, &machine);
                    }
                    if holds != Some(true) {
                        enter(&mut before, passed, &machine);
                    }
                }
                step => {
                    let (next, ends) = advance(step, machine, call);
                    returned.extend(ends);
                    next.iter().for_each(|machine| enter(&mut before, at + 1, machine));
                }
            }
        }
        returned
    }
}

/// Another path leads to the instruction at `to`.
fn enter(before: &mut [Option<Machine>], to: usize, machine: &Machine) {
    match before.get_mut(to) {
        Some(Some(there)) => there.merge(machine),
        Some(place) => *place = Some(*machine),
        None => {}
    }
}

/// The machine after a step that continues with the next instruction, and the filter's possible results at this one.
fn advance(step: Step, mut machine: Machine, call: &Call) -> (Option<Machine>, Option<Value>) {
    match step {
        Step::LoadWord(word) => machine.accumulator = call.0[word],
        Step::LoadConstant(k) => machine.accumulator = Known(k),
        Step::LoadCell(cell) => machine.accumulator = machine.cells[cell],
        Step::LoadIndexConstant(k) => machine.index = Known(k),
        Step::LoadIndexCell(cell) => machine.index = machine.cells[cell],
        Step::Store(cell) => machine.cells[cell] = machine.accumulator,
        Step::StoreIndex(cell) => machine.cells[cell] = machine.index,
        Step::IndexFromAccumulator => machine.index = machine.accumulator,
        Step::AccumulatorFromIndex => machine.accumulator = machine.index,
        Step::Negate => {
            if let Known(a) = machine.accumulator {
                machine.accumulator = Known(a.wrapping_neg());
            }
        }
        Step::Compute(operator, operand) => {
            let operand = machine.operand(operand);
            if let (Operator::Divide, Known(0)) = (operator, operand) {
                // The kernel ends the filter there, with 0.
                return (None, Some(Known(SECCOMP_RET_KILL_THREAD)));
            }
            let ends = matches!((operator, operand), (Operator::Divide, Any)).then_some(Known(SECCOMP_RET_KILL_THREAD));
            machine.accumulator = match (machine.accumulator, operand) {
                (Known(a), Known(b)) => Known(compute(operator, a, b)),
                _ => Any,
            };
            return (Some(machine), ends);
        }
        Step::Jump { .. } | Step::Go(_) | Step::Return(_) | Step::ReturnAccumulator => return (None, Some(Any)),
    }
    (Some(machine), None)
}

fn compute(operator: Operator, a: u32, b: u32) -> u32 {
    match operator {
        Operator::Add => a.wrapping_add(b),
        Operator::Subtract => a.wrapping_sub(b),
        Operator::Multiply => a.wrapping_mul(b),
        Operator::Divide => a.checked_div(b).unwrap_or(0),
        Operator::And => a & b,
        Operator::Or => a | b,
        Operator::Xor => a ^ b,
        // The kernel's machine takes the low five bits.
        Operator::ShiftLeft => a.wrapping_shl(b),
        Operator::ShiftRight => a.wrapping_shr(b),
    }
}

fn decide(condition: Condition, a: Value, b: Value) -> Option<bool> {
    let (Known(a), Known(b)) = (a, b) else { return None };
    Some(match condition {
        Condition::Equal => a == b,
        Condition::Greater => a > b,
        Condition::GreaterOrEqual => a >= b,
        Condition::AnyBit => a & b != 0,
    })
}

/// Bits of the code that name the operand: the index register, and not the constant.
const FROM_INDEX: u16 = 0x08;

fn decode(i: &Instruction, at: usize, len: usize) -> Option<Step> {
    let cell = || usize::try_from(i.k).ok().filter(|cell| *cell < CELLS);
    let to = |distance: usize| at.checked_add(1)?.checked_add(distance).filter(|to| *to < len);
    let operand = if i.code & FROM_INDEX == 0 { Operand::Constant(i.k) } else { Operand::Index };
    let size_of_data = (WORDS * size_of::<u32>()) as u32;
    let step = match i.code {
        // ld W abs
        0x20 if i.k.is_multiple_of(4) && i.k < size_of_data => Step::LoadWord(i.k as usize / 4),
        // ld len, ldx len
        0x80 => Step::LoadConstant(size_of_data),
        0x81 => Step::LoadIndexConstant(size_of_data),
        // ld imm, ldx imm, ld mem, ldx mem, st, stx
        0x00 => Step::LoadConstant(i.k),
        0x01 => Step::LoadIndexConstant(i.k),
        0x60 => Step::LoadCell(cell()?),
        0x61 => Step::LoadIndexCell(cell()?),
        0x02 => Step::Store(cell()?),
        0x03 => Step::StoreIndex(cell()?),
        // tax, txa
        0x07 => Step::IndexFromAccumulator,
        0x87 => Step::AccumulatorFromIndex,
        // ret k, ret a
        0x06 => Step::Return(Operand::Constant(i.k)),
        0x16 => Step::ReturnAccumulator,
        // neg
        0x84 => Step::Negate,
        // ja
        0x05 => Step::Go(to(i.k as usize)?),
        code if code & 0x07 == 0x04 => Step::Compute(operator(code, i.k)?, operand),
        code if code & 0x07 == 0x05 => Step::Jump {
            condition: match code & !FROM_INDEX {
                0x15 => Condition::Equal,
                0x25 => Condition::Greater,
                0x35 => Condition::GreaterOrEqual,
                0x45 => Condition::AnyBit,
                _ => return None,
            },
            operand,
            taken: to(i.jt.into())?,
            passed: to(i.jf.into())?,
        },
        _ => return None,
    };
    Some(step)
}

fn operator(code: u16, k: u32) -> Option<Operator> {
    let constant = code & FROM_INDEX == 0;
    Some(match code & !FROM_INDEX {
        0x04 => Operator::Add,
        0x14 => Operator::Subtract,
        0x24 => Operator::Multiply,
        0x34 if !constant || k != 0 => Operator::Divide,
        0x44 => Operator::Or,
        0x54 => Operator::And,
        0x64 if !constant || k < 32 => Operator::ShiftLeft,
        0x74 if !constant || k < 32 => Operator::ShiftRight,
        0xa4 => Operator::Xor,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
