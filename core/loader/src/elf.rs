//! The parts of an ELF file that running it needs. Files may have any contents: every offset and length is checked.

use std::ops::Range;

use crate::Refusal;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const PAGE: u64 = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// The name of a library, in the dynamic section: the dynamic linker itself has one, and no interpreter.
const DT_SONAME: u64 = 14;
const DT_NEEDED: u64 = 1;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// A part of the file that is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it goes, for a program that has a fixed place; relative to the program's begin for others.
    pub address: u64,
    /// Its bytes in the file.
    pub file: Range<usize>,
    /// Its length in memory, not less than in the file: the rest is zero.
    pub memory: u64,
    /// Whether it is code.
    pub executable: bool,
    /// Whether the program writes to it.
    pub writable: bool,
    /// Whether the program reads it.
    pub readable: bool,
}

/// A section: bytes of the file, and where they are mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// As [`Segment::address`].
    pub address: u64,
    /// Its bytes in the file.
    pub file: Range<usize>,
}

/// A program.
#[derive(Debug)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    /// The parts to map, in the order of their addresses.
    pub segments: Vec<Segment>,
    /// Whether the kernel may choose where it goes.
    pub movable: bool,
    /// Where it begins to run.
    pub entry: u64,
    /// Where its program headers are mapped, and how many there are.
    pub headers: (u64, u16),
    /// The bytes of each thread's own variables.
    pub tls: Option<u64>,
    /// Whether it names shared libraries that it needs.
    pub needs_libraries: bool,
}

/// See [`crate::is_static`].
pub(crate) fn is_static(read: impl Fn(&mut [u8], u64) -> bool) -> bool {
    const MOST_HEADERS: u16 = 64;
    let mut head = [0; HEADER];
    if !read(&mut head, 0) || !is_own(&head) || half(&head, 54) != Some(PROGRAM_HEADER as u16) {
        return false;
    }
    let (Some(table), Some(count)) = (word(&head, 32), half(&head, 56).filter(|count| *count <= MOST_HEADERS)) else {
        return false;
    };
    let mut has_code = false;
    for index in 0..u64::from(count) {
        let mut header = [0; PROGRAM_HEADER];
        if !table.checked_add(index * PROGRAM_HEADER as u64).is_some_and(|at| read(&mut header, at)) {
            return false;
        }
        match full(&header, 0) {
            Some(PT_INTERP) => return false,
            Some(PT_LOAD) => has_code = true,
            _ => {}
        }
    }
    has_code
}

/// Whether the header is that of a program for this processor.
fn is_own(bytes: &[u8]) -> bool {
    const X86_64: u16 = 62;
    const EXECUTABLE: u16 = 2;
    const MOVABLE: u16 = 3;
    let own = bytes.starts_with(b"\x7fELF\x02\x01") && half(bytes, 18) == Some(X86_64);
    own && matches!(half(bytes, 16), Some(EXECUTABLE | MOVABLE))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(crate) fn full(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The end of a range that begins at `at`, within `limit`.
fn range(at: u64, len: u64, limit: usize) -> Option<Range<usize>> {
    let (at, len) = (usize::try_from(at).ok()?, usize::try_from(len).ok()?);
    let end = at.checked_add(len).filter(|end| *end <= limit)?;
    Some(at..end)
}

/// See [`Elf::section`]. Needs no memory.
pub(crate) fn section(bytes: &[u8], name: &[u8]) -> Option<Section> {
    let table = usize::try_from(word(bytes, 40)?).ok().filter(|at| *at > 0)?;
    let count = half(bytes, 60)?;
    let in_file = |at: &usize| at.checked_add(SECTION_HEADER).is_some_and(|end| end <= bytes.len());
    let header = |index: u16| table.checked_add(usize::from(index) * SECTION_HEADER).filter(in_file);
    let names_at = header(half(bytes, 62)?)?;
    let names = range(word(bytes, names_at + 24)?, word(bytes, names_at + 32)?, bytes.len())?;
    let names = &bytes[names];
    (0..count).find_map(|index| {
        let at = header(index)?;
        let own = names.get(usize::try_from(full(bytes, at)?).ok()?..)?;
        let matches = own.strip_prefix(name)?.first() == Some(&0);
        let address = word(bytes, at + 16)?;
        let file = range(word(bytes, at + 24)?, word(bytes, at + 32)?, bytes.len())?;
        matches.then_some(Section { address, file })
    })
}

impl<'a> Elf<'a> {
    /// Reads the headers. A dynamic program is read, too: see [`Elf::parse_static`].
    ///
    /// # Errors
    /// It is no program for this processor, or it is broken.
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, Refusal> {
        Elf::read(bytes).ok_or(Refusal::Broken)?.map(|(elf, _)| elf)
    }

    /// As [`Elf::parse`], for programs that need no interpreter.
    ///
    /// # Errors
    /// As [`Elf::parse`]; or the program is dynamic.
    pub fn parse_static(bytes: &'a [u8]) -> Result<Elf<'a>, Refusal> {
        match Elf::read(bytes).ok_or(Refusal::Broken)?? {
            (_, true) => Err(Refusal::Dynamic),
            (elf, false) => Ok(elf),
        }
    }

    /// The program, and whether it names an interpreter. `None`: something lies outside of the file.
    fn read(bytes: &'a [u8]) -> Option<Result<(Elf<'a>, bool), Refusal>> {
        const MOVABLE: u16 = 3;
        let kind = half(bytes, 16);
        if !is_own(bytes) {
            return Some(Err(Refusal::OtherProcessor));
        }
        let table = usize::try_from(word(bytes, 32)?).ok()?;
        let count = half(bytes, 56)?;
        if usize::from(half(bytes, 54)?) != PROGRAM_HEADER || table < HEADER {
            return None;
        }
        let (mut segments, mut interpreted, mut tls, mut needs_libraries) = (Vec::new(), false, None, false);
        for index in 0..usize::from(count) {
            let at = table.checked_add(index * PROGRAM_HEADER)?;
            match full(bytes, at)? {
                PT_LOAD => segments.push(Segment::read(bytes, at)?),
                PT_INTERP => interpreted = true,
                PT_DYNAMIC => {
                    let section = range(word(bytes, at + 8)?, word(bytes, at + 32)?, bytes.len())?;
                    let has = |kind| bytes[section.clone()].chunks_exact(16).any(|entry| word(entry, 0) == Some(kind));
                    interpreted |= has(DT_SONAME);
                    needs_libraries |= has(DT_NEEDED);
                }
                PT_TLS => tls = Some(word(bytes, at + 40)?),
                _ => {}
            }
        }
        segments.retain(|segment| segment.memory > 0);
        let in_order = segments.windows(2).all(|pair| pair[0].pages().end <= pair[1].pages().start);
        if segments.is_empty() || !in_order {
            return None;
        }
        let holder = segments.iter().find(|s| s.file.start <= table && table < s.file.end)?;
        let headers = (holder.address + (table - holder.file.start) as u64, count);
        let entry = word(bytes, 24)?;
        let movable = kind == Some(MOVABLE);
        Some(Ok((Elf { bytes, segments, movable, entry, headers, tls, needs_libraries }, interpreted)))
    }

    /// The whole file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The pages of all segments: from the first to the last.
    pub fn span(&self) -> Range<u64> {
        let (first, last) = (&self.segments[0], &self.segments[self.segments.len() - 1]);
        first.pages().start..last.pages().end
    }

    /// The section of this name, if the file has sections and that one has bytes.
    pub fn section(&self, name: &[u8]) -> Option<Section> {
        section(self.bytes, name)
    }

    /// The bytes of the file that are mapped at an address, from there to the end of the segment.
    pub fn at(&self, address: u64) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|segment| {
            let offset = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            self.bytes[segment.file.clone()].get(offset..).filter(|rest| !rest.is_empty())
        })
    }
}

impl Segment {
    fn read(bytes: &[u8], at: usize) -> Option<Segment> {
        let flags = full(bytes, at + 4)?;
        let file = range(word(bytes, at + 8)?, word(bytes, at + 32)?, bytes.len())?;
        let (address, memory) = (word(bytes, at + 16)?, word(bytes, at + 40)?);
        let fits = memory >= file.len() as u64 && address.checked_add(memory)?.checked_add(PAGE).is_some();
        // The kernel maps whole pages.
        let aligned = file.is_empty() || file.start as u64 % PAGE == address % PAGE;
        (fits && aligned).then_some(Segment {
            address,
            file,
            memory,
            executable: flags & PF_X != 0,
            writable: flags & PF_W != 0,
            readable: flags & PF_R != 0,
        })
    }

    /// The pages that it takes.
    pub fn pages(&self) -> Range<u64> {
        self.address & !(PAGE - 1)..(self.address + self.memory).next_multiple_of(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().expect("it runs")).expect("it is readable")
    }

    fn is_static_bytes(file: &[u8]) -> bool {
        is_static(|bytes, at| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let part = at.checked_add(bytes.len()).and_then(|end| file.get(at..end));
            part.map(|part| bytes.copy_from_slice(part)).is_some()
        })
    }

    #[test]
    fn this_very_program_is_dynamic_and_static_without_its_interpreter() {
        let mut own = own();
        assert!(!is_static_bytes(&own));
        assert_eq!(Elf::parse_static(&own).err(), Some(Refusal::Dynamic));
        let table = usize::try_from(word(&own, 32).expect("a header")).expect("in memory");
        for at in (0..usize::from(half(&own, 56).expect("a header"))).map(|index| table + index * PROGRAM_HEADER) {
            if full(&own, at) == Some(PT_INTERP) {
                own[at..at + 4].copy_from_slice(&0u32.to_le_bytes());
            }
        }
        assert!(is_static_bytes(&own) && Elf::parse_static(&own).is_ok());
    }

    // Breaks if an offset or a length of the file is not checked.
    #[test]
    fn files_of_any_content_are_read_without_harm() {
        let own = own();
        let mut state = 7u64;
        for cut in [0, 5, 63, 64, 100, 4096] {
            assert!(Elf::parse(&own[..cut]).is_err() && !is_static_bytes(&own[..cut.min(64)]));
        }
        for _ in 0..2000 {
            let mut bytes = own[..own.len().min(1 << 16)].to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes[18 + (state >> 33) as usize % 1000] = (state >> 20) as u8;
            }
            is_static_bytes(&bytes);
            if let Ok(elf) = Elf::parse(&bytes) {
                elf.section(b".text");
            }
        }
    }
}
