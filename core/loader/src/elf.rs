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
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_RELA: u64 = 7;
const DT_RELA_BYTES: u64 = 8;
/// Relocations in other forms, and in code.
const DT_OTHER_RELOCATIONS: [u64; 4] = [17, 22, 23, 36];
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;
const PT_UNWINDING: u32 = 0x6474_e550;
const PT_RELRO: u32 = 0x6474_e552;
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

/// The work of the dynamic linker for a program that needs no shared libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linking {
    /// Words to set: their addresses, and the values before the distance of the program's place is added.
    pub words: Vec<(u64, u64)>,
    /// Pages that are not writable afterwards.
    pub sealed: Option<Range<u64>>,
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
    /// The unwinder's table of functions: its address, and its bytes in the file.
    pub unwinding: Option<(u64, Range<usize>)>,
    /// Whether it names an interpreter, or is one.
    is_interpreted: bool,
    /// Its dynamic section, in the file.
    dynamic: Option<Range<usize>>,
    /// The pages that its interpreter protects.
    sealed: Option<Range<u64>>,
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
    let (mut has_code, mut is_interpreted, mut dynamic) = (false, false, None);
    for index in 0..u64::from(count) {
        let mut header = [0; PROGRAM_HEADER];
        if !table.checked_add(index * PROGRAM_HEADER as u64).is_some_and(|at| read(&mut header, at)) {
            return false;
        }
        match full(&header, 0) {
            Some(PT_INTERP) => is_interpreted = true,
            Some(PT_DYNAMIC) => dynamic = word(&header, 8).zip(word(&header, 32)),
            Some(PT_LOAD) => has_code = true,
            _ => {}
        }
    }
    has_code && (!is_interpreted || dynamic.is_some_and(|(at, len)| needs_none(read, at, len)))
}

/// Whether the dynamic section names no shared library.
fn needs_none(read: impl Fn(&mut [u8], u64) -> bool, mut at: u64, mut len: u64) -> bool {
    const ENTRY: u64 = 16;
    /// Arbitrary, and more than any linker writes.
    const MOST_BYTES: u64 = 4096;
    let mut buffer = [0; 16 * ENTRY as usize];
    if len > MOST_BYTES {
        return false;
    }
    while len >= ENTRY {
        let part = &mut buffer[..len.min(16 * ENTRY) as usize];
        if !read(part, at) {
            return false;
        }
        for entry in part.chunks_exact(ENTRY as usize) {
            match word(entry, 0) {
                Some(DT_NEEDED) => return false,
                Some(DT_NULL) => return true,
                _ => {}
            }
        }
        let read = part.len() as u64;
        (at, len) = (at.saturating_add(read), len - read);
    }
    true
}

/// Whether the header is that of a program for this processor.
fn is_own(bytes: &[u8]) -> bool {
    const X86_64: u16 = 62;
    const EXECUTABLE: u16 = 2;
    const MOVABLE: u16 = 3;
    let own = bytes.starts_with(b"\x7fELF\x02\x01") && half(bytes, 18) == Some(X86_64);
    own && matches!(half(bytes, 16), Some(EXECUTABLE | MOVABLE))
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
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
        if is_own(bytes) {
            Elf::read(bytes).ok_or(Refusal::Broken)
        } else {
            Err(Refusal::OtherProcessor)
        }
    }

    /// As [`Elf::parse`], for programs that need no shared libraries: nothing else than [`Elf::linking`] is left of an
    /// interpreter's work.
    ///
    /// # Errors
    /// As [`Elf::parse`]; or the program is dynamic.
    pub fn parse_static(bytes: &'a [u8]) -> Result<Elf<'a>, Refusal> {
        let elf = Elf::parse(bytes)?;
        let is_linker = elf.has_entry(DT_SONAME);
        if elf.needs_libraries || is_linker {
            return Err(Refusal::Dynamic);
        }
        Ok(elf)
    }

    /// `None`: something lies outside of the file.
    fn read(bytes: &'a [u8]) -> Option<Elf<'a>> {
        const MOVABLE: u16 = 3;
        let table = usize::try_from(word(bytes, 32)?).ok()?;
        let count = half(bytes, 56)?;
        if usize::from(half(bytes, 54)?) != PROGRAM_HEADER || table < HEADER {
            return None;
        }
        let mut elf = Elf {
            bytes,
            segments: Vec::new(),
            movable: half(bytes, 16) == Some(MOVABLE),
            entry: word(bytes, 24)?,
            headers: (0, count),
            tls: None,
            needs_libraries: false,
            unwinding: None,
            is_interpreted: false,
            dynamic: None,
            sealed: None,
        };
        for index in 0..usize::from(count) {
            let at = table.checked_add(index * PROGRAM_HEADER)?;
            match full(bytes, at)? {
                PT_LOAD => elf.segments.push(Segment::read(bytes, at)?),
                PT_INTERP => elf.is_interpreted = true,
                PT_DYNAMIC => elf.dynamic = Some(range(word(bytes, at + 8)?, word(bytes, at + 32)?, bytes.len())?),
                PT_UNWINDING => {
                    let table = range(word(bytes, at + 8)?, word(bytes, at + 32)?, bytes.len())?;
                    elf.unwinding = Some((word(bytes, at + 16)?, table));
                }
                PT_TLS => elf.tls = Some(word(bytes, at + 40)?),
                PT_RELRO => {
                    let (begin, len) = (word(bytes, at + 16)?, word(bytes, at + 40)?);
                    elf.sealed = Some(begin & !(PAGE - 1)..begin.checked_add(len)? & !(PAGE - 1));
                }
                _ => {}
            }
        }
        elf.segments.retain(|segment| segment.memory > 0);
        let in_order = elf.segments.windows(2).all(|pair| pair[0].pages().end <= pair[1].pages().start);
        if elf.segments.is_empty() || !in_order {
            return None;
        }
        let holder = elf.segments.iter().find(|s| s.file.start <= table && table < s.file.end)?;
        elf.headers.0 = holder.address + (table - holder.file.start) as u64;
        elf.needs_libraries = elf.has_entry(DT_NEEDED) || elf.is_interpreted && elf.dynamic.is_none();
        Some(elf)
    }

    /// The entries of the dynamic section: kinds and values.
    fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let section = self.dynamic.clone().unwrap_or_default();
        let entries = self.bytes[section].chunks_exact(16);
        entries.filter_map(|entry| word(entry, 0).zip(word(entry, 8))).take_while(|(kind, _)| *kind != DT_NULL)
    }

    fn has_entry(&self, kind: u64) -> bool {
        self.entries().any(|entry| entry.0 == kind)
    }

    /// Whether it is a shared library: it needs others, and names no interpreter, so it cannot be started.
    pub fn is_shared_library(&self) -> bool {
        self.needs_libraries && !self.is_interpreted
    }

    /// The work of the interpreter that a program names, and that is not started. Programs without one do it themselves.
    ///
    /// # Errors
    /// There is more than words that depend on the program's place.
    pub fn linking(&self) -> Result<Linking, Refusal> {
        if !self.is_interpreted {
            return Ok(Linking::default());
        }
        let words = self.relative_words().ok_or(Refusal::Dynamic)?;
        let writable = |range: &Range<u64>| {
            let holds = |s: &&Segment| s.writable && s.pages().start <= range.start && range.end <= s.pages().end;
            self.segments.iter().any(|segment| holds(&segment))
        };
        let fits = words.iter().all(|(at, _)| at.checked_add(8).is_some_and(|end| writable(&(*at..end))));
        let sealed = self.sealed.clone().filter(|pages| pages.start < pages.end);
        if !fits || !sealed.iter().all(writable) {
            return Err(Refusal::Broken);
        }
        Ok(Linking { words, sealed })
    }

    fn relative_words(&self) -> Option<Vec<(u64, u64)>> {
        const RELATIVE: u64 = 8;
        const BYTES: usize = 24;
        if DT_OTHER_RELOCATIONS.iter().any(|kind| self.has_entry(*kind)) {
            return None;
        }
        let value = |kind| self.entries().find(|entry| entry.0 == kind).map(|entry| entry.1);
        let Some(at) = value(DT_RELA) else { return Some(Vec::new()) };
        let table = self.at(at)?.get(..usize::try_from(value(DT_RELA_BYTES)?).ok()?)?;
        let read = |entry: &[u8]| {
            let is_relative = word(entry, 8)? == RELATIVE;
            is_relative.then_some((word(entry, 0)?, word(entry, 16)?))
        };
        table.chunks_exact(BYTES).map(read).collect()
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
        assert_eq!(Elf::parse(&own).expect("a program").linking(), Err(Refusal::Dynamic), "functions of libraries");
        let table = usize::try_from(word(&own, 32).expect("a header")).expect("in memory");
        for at in (0..usize::from(half(&own, 56).expect("a header"))).map(|index| table + index * PROGRAM_HEADER) {
            if matches!(full(&own, at), Some(PT_INTERP | PT_DYNAMIC)) {
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
                let _ = elf.linking();
            }
        }
    }
}
