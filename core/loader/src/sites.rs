//! Where code makes system calls, and where branches in it go.
//!
//! Code is read in one sweep from the beginning of each run: a run is all of the code, or a function if the functions are
//! known. After bytes that are no instruction, the sweep tries the next byte.

use std::ops::Range;

use crate::decode::{decode, Kind, MAX_LEN};
use crate::Refusal;

/// `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Instructions before a system call that are remembered. Arbitrary; two usually have the bytes that are missing.
const BEFORE: usize = 6;

/// Bytes around a system call that have to be instructions, so that data that looks like one is not changed. Arbitrary: one
/// byte of sixteen is no instruction, and data of this length nearly always has one.
const CLEAN: usize = 32;

/// Code: its bytes as they are in the file, and the address of the first.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The address of the first one.
    pub address: u64,
}

impl Code<'_> {
    /// The longest piece that an instruction at this offset may take, to the end of the code.
    pub(crate) fn window(&self, at: usize) -> &[u8] {
        &self.bytes[at.min(self.bytes.len())..self.bytes.len().min(at + MAX_LEN)]
    }
}

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The offset of the instruction.
    pub at: usize,
    /// The offsets of the instructions that directly precede it, the nearest first.
    pub before: Vec<usize>,
}

/// The result of a sweep.
#[derive(Debug)]
pub struct Found {
    /// In the order of their addresses.
    pub sites: Vec<Site>,
    targets: Vec<u64>,
}

impl Found {
    /// Whether a branch or a call goes to this offset.
    pub fn is_target(&self, at: usize) -> bool {
        self.targets.get(at / 64).is_some_and(|bits| bits >> (at % 64) & 1 != 0)
    }
}

/// Reads the runs, which are in order and do not overlap.
///
/// # Errors
/// [`Refusal::Doubtful`].
pub fn sweep(code: Code<'_>, runs: impl IntoIterator<Item = Range<usize>>) -> Result<Found, Refusal> {
    let mut found = Found { sites: Vec::new(), targets: vec![0; code.bytes.len() / 64 + 1] };
    for run in runs {
        sweep_run(code, run, &mut found)?;
    }
    Ok(found)
}

fn sweep_run(code: Code<'_>, run: Range<usize>, found: &mut Found) -> Result<(), Refusal> {
    let end = run.end.min(code.bytes.len());
    let mut at = run.start;
    // Of the last instructions: a ring, and how many of them follow each other.
    let (mut last, mut count) = ([0; BEFORE], 0usize);
    let mut unclean: Option<usize> = None;
    while at < end {
        let Some(instruction) = decode(&code.bytes[at..end.min(at + MAX_LEN)]) else {
            let near = found.sites.last().filter(|site| site.at >= run.start && at < site.at + CLEAN);
            if let Some(site) = near {
                return Err(Refusal::Doubtful(code.address + site.at as u64));
            }
            unclean = Some(at);
            count = 0;
            at += 1;
            continue;
        };
        let next = at + instruction.len;
        match instruction.kind {
            Kind::Syscall => {
                if unclean.is_some_and(|bad| bad + CLEAN > at) {
                    return Err(Refusal::Doubtful(code.address + at as u64));
                }
                let before = (1..=count.min(BEFORE)).map(|back| last[(count - back) % BEFORE]).collect();
                found.sites.push(Site { at, before });
            }
            Kind::Jump(by) | Kind::Conditional(_, by) | Kind::Short(by) | Kind::Call(by) => {
                let target = (next as i64).wrapping_add(by.into());
                if let Some(bits) = usize::try_from(target).ok().and_then(|to| found.targets.get_mut(to / 64)) {
                    *bits |= 1 << (target % 64);
                }
            }
            _ => {}
        }
        last[count % BEFORE] = at;
        count += 1;
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8]) -> Result<Found, Refusal> {
        sweep(Code { bytes, address: 0x1000 }, std::iter::once(0..bytes.len()))
    }

    #[test]
    fn a_system_call_in_a_constant_is_none() {
        // mov eax, 0x50f; syscall; ret
        let found = found(&[0xb8, 0x0f, 0x05, 0, 0, 0x0f, 0x05, 0xc3]).expect("it is clean");
        assert_eq!(found.sites, [Site { at: 5, before: vec![0] }]);
    }

    #[test]
    fn branches_have_targets() {
        // jz +1; nop; syscall; jmp to the beginning
        let found = found(&[0x74, 1, 0x90, 0x0f, 0x05, 0xeb, 0xf9]).expect("it is clean");
        assert_eq!((0..7).filter(|at| found.is_target(*at)).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(found.sites, [Site { at: 3, before: vec![2, 0] }]);
    }

    // Breaks if a table among code that contains the bytes of a system call would be changed.
    #[test]
    fn data_around_a_system_call_is_refused() {
        let doubtful = |bytes: &[u8]| matches!(found(bytes), Err(Refusal::Doubtful(_)));
        assert!(doubtful(&[0x06, 0x0f, 0x05, 0xc3]) && doubtful(&[0x0f, 0x05, 0xc3, 0x90, 0x06]));
        let mut far = vec![0x06];
        far.resize(CLEAN + 1, 0x90);
        far.extend(SYSCALL);
        assert!(!doubtful(&far));
    }
}
