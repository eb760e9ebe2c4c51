//! The changes that send the system calls of a program to the library.
//!
//! `syscall` has two bytes and a jump has five. So each system call moves to a stub behind the program, with as many of its
//! neighbours as the jump needs: instructions behind it, or else before it. No branch of the program may go to a moved
//! neighbour. A stub is:
//!
//! ```text
//!         (neighbours from before)
//!         lea r11, [raw]        the system call itself would destroy r11 and rcx, so both are free
//!         jmp [entry]           to the loader, which goes on at raw for calls that do not interest the library,
//! raw:    syscall               and behind it for all others
//!         (neighbours from behind)
//!         jmp back
//! ```
//!
//! A plan is made from the file, whose bytes never change. All distances are between addresses of the program, so
//! it holds wherever the program is put.

use std::ops::Range;

use crate::code::Code;
use crate::decode::{decode, Kind};
use crate::elf::Elf;
use crate::indirect::Indirect;
use crate::relocate::{append, distance, jump};
use crate::sites::{search, sweep, Found, Site, SYSCALL};
use crate::{go, Refusal};

/// The length of the jump that replaces a system call.
const JUMP: usize = 5;
/// Before the stubs: the address to which they jump, alone in its cache line.
pub const SLOT: usize = 64;
/// The most bytes of neighbours that move. Arbitrary: one instruction may have 15.
const MOST: usize = 40;

/// Bytes to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where, as [`Segment::address`](crate::elf::Segment::address).
    pub address: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// All changes of a program.
#[derive(Debug)]
pub struct Plan {
    /// Of its code.
    pub patches: Vec<Patch>,
    /// The address of the page where the stubs begin: directly behind a static program.
    pub stubs_address: u64,
    /// The stubs. The first [`SLOT`] bytes get the address to which they jump.
    pub stubs: Vec<u8>,
    /// All code is Go's, which keeps nothing in vector registers over a system call.
    pub is_go: bool,
}

impl Plan {
    /// The plan for a static program.
    ///
    /// # Errors
    /// A system call was found that cannot be replaced, or none.
    pub fn new(elf: &Elf<'_>) -> Result<Plan, Refusal> {
        let functions = go::functions(elf);
        Plan::of(elf, elf.span().end, functions.as_deref())
    }

    /// The plan for the Go code of a dynamic program that is in this process. Its C code makes no system call itself.
    ///
    /// `bias` is the distance of its addresses in memory from those in the file, `word_at` reads a word of the program in
    /// memory, and `stubs_address` is where the stubs will be, as an address in the file.
    ///
    /// # Errors
    /// As [`Plan::new`]; or the table of its functions is not known.
    pub fn in_memory(
        elf: &Elf<'_>,
        bias: u64,
        word_at: impl Fn(u64) -> u64,
        stubs_address: u64,
    ) -> Result<Plan, Refusal> {
        let functions = go::functions_in_memory(elf, bias, word_at).ok_or(Refusal::NoTable)?;
        Plan::of(elf, stubs_address, Some(&functions))
    }

    /// With the functions of a Go program.
    fn of(elf: &Elf<'_>, stubs_address: u64, functions: Option<&[Range<u64>]>) -> Result<Plan, Refusal> {
        let is_go = functions.is_some();
        let mut plan = Plan { patches: Vec::new(), stubs_address, stubs: vec![0; SLOT], is_go };
        for code in code_of(elf) {
            let found = match functions {
                Some(functions) => sweep(code, with_calls(code, functions))?,
                None => search(code, &Indirect::of(elf))?,
            };
            plan.add_all(code, &found)?;
        }
        if plan.patches.is_empty() {
            return Err(Refusal::NoSites);
        }
        Ok(plan)
    }

    fn add_all(&mut self, code: Code<'_>, found: &Found) -> Result<(), Refusal> {
        // Patches are in order, so no two overlap if each begins behind the last.
        let mut free_from = 0;
        for site in &found.sites {
            let patched = self
                .move_followers(code, found, site, free_from)
                .or_else(|| self.move_predecessors(code, found, site, free_from));
            free_from = patched.ok_or(Refusal::Site(code.address + site.at as u64))?;
        }
        Ok(())
    }

    /// Replaces a system call and the instructions behind it. Returns where the changed bytes end.
    fn move_followers(&mut self, code: Code<'_>, found: &Found, site: &Site, free_from: usize) -> Option<usize> {
        (site.at >= free_from).then_some(())?;
        let mut stub = self.call();
        let (mut at, mut goes_on) = (site.at + SYSCALL.len(), true);
        while at < site.at + JUMP {
            if found.is_target(at) {
                return None;
            }
            let window = code.window(at);
            let next = decode(window)?;
            if goes_on {
                let to = self.end() + stub.len() as u64;
                append(&mut stub, window, &next, code.address + at as u64, to)?;
                goes_on = !matches!(next.kind, Kind::Jump(_) | Kind::End | Kind::Trap);
            } else if next.kind != Kind::Nop && !matches!(window[0], 0xcc | 0xf4) {
                return None;
            }
            at += next.len;
        }
        if goes_on {
            let to = self.end() + stub.len() as u64;
            jump(&mut stub, to, code.address + at as u64)?;
        }
        self.place(code, site.at..at, stub)
    }

    /// Replaces a system call and instructions before it.
    fn move_predecessors(&mut self, code: Code<'_>, found: &Found, site: &Site, free_from: usize) -> Option<usize> {
        let end = site.at + SYSCALL.len();
        let mut behind = site.at;
        for begin in &site.before {
            // A branch to what follows would find the middle of the jump.
            if found.is_target(behind) || *begin < free_from || end - begin > MOST {
                return None;
            }
            behind = *begin;
            if end - begin >= JUMP {
                break;
            }
        }
        (end - behind >= JUMP).then_some(())?;
        let (mut stub, mut at) = (Vec::new(), behind);
        while at < site.at {
            let window = code.window(at);
            let next = decode(window)?;
            let goes_on = !matches!(next.kind, Kind::Jump(_) | Kind::End | Kind::Trap);
            goes_on.then_some(())?;
            let to = self.end() + stub.len() as u64;
            append(&mut stub, window, &next, code.address + at as u64, to)?;
            at += next.len;
        }
        let call = self.call_at(self.end() + stub.len() as u64);
        stub.extend(call);
        let to = self.end() + stub.len() as u64;
        jump(&mut stub, to, code.address + end as u64)?;
        self.place(code, behind..end, stub)
    }

    /// The address of the next stub.
    fn end(&self) -> u64 {
        self.stubs_address + self.stubs.len() as u64
    }

    fn call(&self) -> Vec<u8> {
        self.call_at(self.end())
    }

    /// The middle of a stub, which is at this address.
    fn call_at(&self, at: u64) -> Vec<u8> {
        const LOAD: [u8; 3] = [0x4c, 0x8d, 0x1d];
        const INDIRECT: [u8; 2] = [0xff, 0x25];
        let mut bytes = LOAD.to_vec();
        // The system call begins six bytes behind this instruction.
        bytes.extend(6i32.to_le_bytes());
        bytes.extend(INDIRECT);
        let slot = distance(at + 13, self.stubs_address).expect("stubs are few");
        bytes.extend(slot.to_le_bytes());
        bytes.extend(SYSCALL);
        bytes
    }

    /// Keeps a stub, and the jump to it in place of these bytes. Returns their end.
    fn place(&mut self, code: Code<'_>, of: Range<usize>, stub: Vec<u8>) -> Option<usize> {
        const UNUSED: u8 = 0xcc;
        let address = code.address + of.start as u64;
        let mut bytes = Vec::new();
        jump(&mut bytes, address, self.end())?;
        bytes.resize(of.len(), UNUSED);
        self.patches.push(Patch { address, bytes });
        self.stubs.extend(stub);
        Some(of.end)
    }
}

/// The code of a program: the section if it names one, because segments may hold data besides.
fn code_of<'a>(elf: &'a Elf<'a>) -> Vec<Code<'a>> {
    if let Some(section) = elf.section(b".text") {
        return vec![Code { bytes: &elf.bytes()[section.file], address: section.address }];
    }
    let segments = elf.segments.iter().filter(|segment| segment.executable);
    segments.map(|s| Code { bytes: &elf.bytes()[s.file.clone()], address: s.address }).collect()
}

/// The functions that have the bytes of a system call.
fn with_calls(code: Code<'_>, functions: &[Range<u64>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in memchr::memmem::find_iter(code.bytes, &SYSCALL) {
        let address = code.address + at as u64;
        let index = functions.partition_point(|function| function.end <= address);
        let Some(function) = functions.get(index).filter(|function| function.contains(&address)) else { continue };
        let offset = |address: u64| usize::try_from(address - code.address).ok();
        let (Some(start), Some(end)) = (offset(function.start), offset(function.end)) else { continue };
        if runs.last().is_none_or(|last| last.end <= start) {
            runs.push(start..end);
        }
    }
    runs
}

#[cfg(test)]
mod tests;
