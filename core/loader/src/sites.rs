//! Where code makes system calls, and where branches in it go.
//!
//! Code is read in one sweep from the beginning of each run: a run is a function if the functions are known. After bytes that
//! are no instruction, the sweep tries the next byte. If no functions are known, [`search`] reads only the code around
//! bytes that look like a system call, which takes a fraction of the time.

use std::ops::Range;

use crate::code::Code;
use crate::decode::{decode, Kind, MAX_LEN};
use crate::indirect::Indirect;
use crate::Refusal;

/// `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Instructions before a system call that are remembered. Arbitrary; two usually have the bytes that are missing.
const BEFORE: usize = 6;

/// Bytes around a system call that have to be instructions, so that data that looks like one is not changed. Arbitrary: one
/// byte of sixteen is no instruction, and data of this length nearly always has one.
const CLEAN: usize = 32;

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
    /// Whether code is entered at this offset: by a branch, by a call, or indirectly.
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

/// Bytes before a possible system call from which it finds where instructions begin. Arbitrary.
const LEAD: usize = 1024;
/// Bytes behind it that may move or have a short branch to those that move.
const TRAIL: usize = 192;
/// Bytes from a system call on that a jump in its place, and the instruction whose beginning it takes, may have.
const MOVED: usize = 5 + MAX_LEN;

/// Reads the code whose functions are not known. The result is that of a [`sweep`] over all of it, as far as it concerns
/// the system calls and their neighbours.
///
/// # Errors
/// [`Refusal::Doubtful`].
pub fn search(code: Code<'_>, indirect: &Indirect<'_>) -> Result<Found, Refusal> {
    let len = code.bytes.len();
    let mut regions: Vec<Range<usize>> = Vec::new();
    for at in memchr::memmem::find_iter(code.bytes, &SYSCALL) {
        let (start, end) = (at.saturating_sub(LEAD), len.min(at + TRAIL));
        match regions.last_mut().filter(|last| last.end >= start) {
            Some(last) => last.end = end,
            None => regions.push(start..end),
        }
    }
    let runs: Option<Vec<_>> = regions.iter().map(|region| Some(boundary(code, region.start)?..region.end)).collect();
    let mut found = match runs {
        Some(runs) => sweep(code, runs)?,
        None => sweep(code, std::iter::once(0..len))?,
    };
    add_far_targets(code, indirect, &mut found);
    Ok(found)
}

/// Where an instruction begins, shortly behind this offset; `None` if that is not certain.
///
/// An instruction begins at one of the 16 offsets from this one on, because none is longer than 15 bytes. All readings that
/// begin at these offsets meet after some instructions, and where the last one has met the others the right one has, too.
fn boundary(code: Code<'_>, start: usize) -> Option<usize> {
    const WITHIN: usize = LEAD / 2;
    if start == 0 {
        return Some(0);
    }
    let next = |at: usize| at + decode(code.window(at)).map_or(1, |instruction| instruction.len);
    let mut first = [false; WITHIN];
    let mut at = start;
    while let Some(seen) = first.get_mut(at - start) {
        *seen = true;
        at = next(at);
    }
    let mut met = start;
    for other in 1..=MAX_LEN {
        let mut at = start + other;
        while !*first.get(at - start)? {
            at = next(at);
        }
        met = met.max(at);
    }
    Some(met)
}

/// Adds the targets that are near a system call: of long branches and calls from anywhere, of addresses in instructions and in
/// data. Bytes within another instruction may look like such a branch or address; then a neighbour stays that could move.
fn add_far_targets(code: Code<'_>, indirect: &Indirect<'_>, found: &mut Found) {
    let len = code.bytes.len();
    let mut near = vec![0u64; found.targets.len()];
    for site in &found.sites {
        let begin = site.before.last().copied().unwrap_or(site.at);
        for at in begin..len.min(site.at + MOVED) {
            near[at / 64] |= 1 << (at % 64);
        }
    }
    // Most of the code has no system call near, and this part of it is asked first, because it stays in the cache.
    let mut near_blocks = vec![0u64; (len >> BLOCK) / 64 + 1];
    for (index, _) in near.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        let block = (index * 64) >> BLOCK;
        near_blocks[block / 64] |= 1 << (block % 64);
    }
    let is_near = |target: usize| {
        // Nothing is near the end.
        let target = target.min(len);
        let block = target >> BLOCK;
        near_blocks[block / 64] >> (block % 64) & 1 != 0 && near[target / 64] >> (target % 64) & 1 != 0
    };
    let targets = &mut found.targets;
    let mut tables = Vec::new();
    let (begin, has_constants) = (code.address as u32, indirect.has_constants());
    let constants = has_constants.then(|| Highest::of(begin, len));
    visit_entries(code.bytes, constants, |previous, part, at| {
        let value = u32::from_le_bytes([part[1], part[2], part[3], part[4]]);
        let target = (at as i64 + 5 + i64::from(value as i32)) as usize;
        let loads = previous == LOAD_ADDRESS && part[0] & FORM == RELATIVE;
        if (loads || is_branch(previous, part[0])) && is_near(target) {
            targets[target / 64] |= 1 << (target % 64);
        }
        if loads && target >= len {
            tables.push(code.address.wrapping_add(target as u64));
        }
        let constant = value.wrapping_sub(begin) as usize;
        if has_constants && is_near(constant) {
            targets[constant / 64] |= 1 << (constant % 64);
        }
    });
    indirect.visit(&tables, &(code.address..code.address + len as u64), |address| {
        let target = address.wrapping_sub(code.address) as usize;
        if is_near(target) {
            targets[target / 64] |= 1 << (target % 64);
        }
    });
}

/// Binary logarithm of the bytes in a part of the code, see [`add_far_targets`]. Arbitrary: a bit for each fits in the cache.
const BLOCK: u32 = 8;

/// The two highest bytes of addresses in code: the first of each, and how many follow.
#[derive(Clone, Copy)]
struct Highest {
    first: [u8; 2],
    more: [u8; 2],
}

impl Highest {
    fn of(begin: u32, len: usize) -> Highest {
        let end = begin.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        let [[.., low, high], [.., last_low, last_high]] = [begin, end].map(u32::to_le_bytes);
        if high == last_high {
            Highest { first: [low, high], more: [last_low - low, 0] }
        } else {
            Highest { first: [0, high], more: [u8::MAX, last_high - high] }
        }
    }

    #[inline]
    fn have(self, low: u8, high: u8) -> bool {
        (low.wrapping_sub(self.first[0]) <= self.more[0]) & (high.wrapping_sub(self.first[1]) <= self.more[1])
    }
}

/// Whether these are the opcode of a branch or a call with a distance of four bytes: the last byte, and the one before it.
#[inline]
fn is_branch(previous: u8, last: u8) -> bool {
    (last & 0xfe == 0xe8) | (previous == 0x0f) & (last & 0xf0 == 0x80)
}

/// Calls `visit` with each byte that may be the last before four bytes by which code is entered, and with the byte before it, the
/// four bytes behind it, and its offset. Others come, too.
///
/// Nearly all bytes are none of these, so they are looked at by 32, which the compiler makes instructions for vectors of.
#[inline]
fn visit_entries(code: &[u8], constants: Option<Highest>, mut visit: impl FnMut(u8, &[u8], usize)) {
    const TOGETHER: usize = 32;
    const AROUND: usize = TOGETHER + 5;
    let (highest, has_constants) = (constants.unwrap_or(Highest { first: [0; 2], more: [0; 2] }), constants.is_some());
    let mut one = |at: usize| {
        let Some(part) = code.get(at..at + 5) else { return };
        visit(at.checked_sub(1).map_or(0, |before| code[before]), part, at);
    };
    one(0);
    let mut begin = 1;
    while let Some(around) = code.get(begin - 1..).and_then(|rest| rest.first_chunk::<AROUND>()) {
        let mut flags = [0u8; TOGETHER];
        for (at, flag) in flags.iter_mut().enumerate() {
            let (previous, last) = (around[at], around[at + 1]);
            let loads = (previous == LOAD_ADDRESS) & (last & FORM == RELATIVE);
            let constant = has_constants & highest.have(around[at + 4], around[at + 5]);
            *flag = u8::from(is_branch(previous, last) | loads | constant);
        }
        for (index, eight) in flags.chunks_exact(8).enumerate() {
            let mut bits = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
            while bits != 0 {
                one(begin + index * 8 + bits.trailing_zeros() as usize / 8);
                bits &= bits - 1;
            }
        }
        begin += TOGETHER;
    }
    (begin..code.len()).for_each(one);
}

/// `lea`, whose operand is relative to the next instruction.
const LOAD_ADDRESS: u8 = 0x8d;
const FORM: u8 = 0xc7;
const RELATIVE: u8 = 0x05;
/// `endbr64`: indirect branches go there, where the processor checks them.
const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

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
            Kind::Nop if code.bytes[at..].starts_with(&LANDING) => found.targets[at / 64] |= 1 << (at % 64),
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

    /// The code of this very program, and with system calls in place of every 499th instruction of two bytes.
    fn planted() -> Vec<u8> {
        let file = std::fs::read(std::env::current_exe().expect("it runs")).expect("it is readable");
        let elf = crate::elf::Elf::parse(&file).expect("an ELF file");
        let mut bytes = file[elf.section(b".text").expect("it has code").file].to_vec();
        let (mut at, mut count) = (0, 0);
        while let Some(instruction) = decode(&bytes[at..bytes.len().min(at + MAX_LEN)]) {
            if instruction.len == 2 && instruction.kind == Kind::Plain {
                count += 1;
                if count % 499 == 0 {
                    bytes[at..at + 2].copy_from_slice(&SYSCALL);
                }
            }
            at += instruction.len;
        }
        assert!(count > 10_000, "{count} instructions of two bytes, in {at} bytes of code");
        bytes
    }

    // Breaks if the search begins within an instruction, or does not see a branch to a neighbour.
    #[test]
    fn a_search_finds_what_a_sweep_finds() {
        let bytes = planted();
        let code = Code { bytes: &bytes, address: 0x1000 };
        let swept = sweep(code, std::iter::once(0..bytes.len())).expect("it is clean");
        let searched = search(code, &Indirect::default()).expect("it is clean");
        assert!(swept.sites.len() > 20);
        assert_eq!(swept.sites, searched.sites);
        let near = |site: &Site| site.before.last().copied().unwrap_or(site.at)..site.at + MOVED;
        for at in swept.sites.iter().flat_map(near) {
            assert!(!swept.is_target(at) || searched.is_target(at), "a branch goes to {at:#x}");
        }
    }

    // Breaks if the search takes a reading that begins within an instruction for the right one.
    #[test]
    fn code_with_several_readings_is_read_from_its_beginning() {
        // `mov eax, 0xb8b8b8b8`, a thousand times: it reads the same from each of its bytes.
        let mut bytes = vec![0xb8; 5000];
        bytes.extend([0x0f, 0x05, 0xc3, 0x90, 0x90, 0x90]);
        let found = search(Code { bytes: &bytes, address: 0x1000 }, &Indirect::default()).expect("it is clean");
        assert_eq!(found.sites.iter().map(|site| site.at).collect::<Vec<_>>(), [5000]);
    }

    // Breaks if bytes at an edge of those that are looked at together are left out.
    #[test]
    fn each_entry_is_visited_wherever_it_is() {
        let highest = Highest::of(0x0040_1000, 0x3000);
        let entries = [
            [0x90, 0xe8, 0, 0, 0, 0],
            [0x0f, 0x85, 0, 0, 0, 0],
            [0x8d, 0x35, 0, 0, 0, 0],
            [0x90, 0xbf, 7, 0x20, 0x40, 0],
        ];
        for len in 0..100 {
            for (entry, begin) in entries.iter().flat_map(|entry| (0..len).map(move |begin| (entry, begin))) {
                let mut bytes = vec![0x90; len];
                let end = len.min(begin + entry.len());
                bytes[begin..end].copy_from_slice(&entry[..end - begin]);
                let mut found = false;
                visit_entries(&bytes, Some(highest), |previous, part, at| {
                    found |= at == begin + 1 && previous == entry[0] && part == &entry[1..];
                });
                assert_eq!(found, begin + entry.len() <= len, "{entry:x?} at {begin} of {len}");
            }
        }
    }

    #[test]
    fn the_highest_bytes_of_addresses_are_those_of_the_code() {
        let have = |begin, len, address: u32| {
            let [.., low, high] = address.to_le_bytes();
            Highest::of(begin, len).have(low, high)
        };
        assert!(have(0x40_1000, 0x3000, 0x40_1000) && have(0x40_1000, 0x3000, 0x40_4000));
        assert!(!have(0x40_1000, 0x3000, 0x41_0000) && !have(0x40_1000, 0x3000, 0x140_1000));
        // Over a border of the highest byte, and to the end of all addresses.
        assert!(have(0xff_f000, 0x2000, 0xff_f000) && have(0xff_f000, 0x2000, 0x100_0000));
        assert!(!have(0xff_f000, 0x2000, 0x200_0000));
        assert!(have(0xff00_0000, usize::MAX, u32::MAX));
    }

    // Breaks if an address of code in an instruction, or an instruction that marks an entry, is not seen.
    #[test]
    fn indirect_entries_are_targets() {
        let entered = |code: &[u8], from: &[u8]| {
            let far = 4096usize;
            let mut bytes = code.to_vec();
            bytes.resize(far, 0x90);
            bytes.extend(from);
            bytes.push(0xc3);
            let found = search(Code { bytes: &bytes, address: 0x40_1000 }, &Indirect::default()).expect("it is clean");
            (0..code.len()).filter(|at| found.is_target(*at)).collect::<Vec<_>>()
        };
        // mov eax, 39; syscall; nop; nop; nop
        let code = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x90, 0x90, 0x90];
        assert!(entered(&code, &[]).is_empty());
        // lea rax, [rip + the second nop], which is 4096 + 7 - 8 bytes before the next instruction.
        let lea = [&[0x48, 0x8d, 0x05][..], &(-4095i32).to_le_bytes()].concat();
        assert_eq!(entered(&code, &lea), [8]);
        // mov edi, offset of the first nop
        let constant = [&[0xbf][..], &0x40_1007u32.to_le_bytes()].concat();
        assert_eq!(entered(&code, &constant), [7]);
        // mov eax, 39; syscall; endbr64; ret
        let landing = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xf3, 0x0f, 0x1e, 0xfa, 0xc3];
        assert_eq!(entered(&landing, &[]), [7]);
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
