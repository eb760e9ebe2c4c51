//! Places where code is entered other than by its own direct branches, as far as a file shows them: pointers in data
//! and in instructions, tables of a `switch`, the names of symbols, and the functions of the unwinder's table. An instruction
//! at such a place does not move. `endbr64` is one, too: see [`sites`](crate::sites).
//!
//! A word that is a pointer only by chance costs nothing but that an instruction stays where it is, so nothing here has to be
//! certain. Files may have any contents: every offset and length is checked.

use crate::code::Code;
use crate::elf::{full, half, word, Elf};
use crate::frames;

/// Where the code of a program may be entered, but for its instructions.
#[derive(Debug, Default)]
pub struct Indirect<'a> {
    /// What is mapped and not executed.
    data: Vec<Code<'a>>,
    /// Addresses.
    starts: Vec<u64>,
    /// The kernel chooses the place of the program, so only whole words are addresses: the values of relocations, from address
    /// 0 on. Otherwise four bytes may be one, also within an instruction.
    movable: bool,
}

impl<'a> Indirect<'a> {
    /// From a whole program.
    pub fn of(elf: &Elf<'a>) -> Indirect<'a> {
        let data = elf.segments.iter().filter(|segment| !segment.executable);
        let data = data.map(|s| Code { bytes: &elf.bytes()[s.file.clone()], address: s.address }).collect();
        let mut starts = symbols(elf);
        starts.extend(unwound(elf));
        starts.push(elf.entry);
        Indirect { data, starts, movable: elf.movable }
    }

    /// Whether constants in instructions may be addresses of code.
    pub(crate) fn has_constants(&self) -> bool {
        !self.movable
    }

    /// Calls `mark` with the addresses of symbols, functions and words of data, whatever they are, and with the entries of
    /// the tables at `bases`, which are relative to the table's address.
    pub(crate) fn visit(&self, bases: &[u64], code: &std::ops::Range<u64>, mut mark: impl FnMut(u64)) {
        self.starts.iter().for_each(|start| mark(*start));
        for data in &self.data {
            if self.movable {
                words(data).for_each(|value| mark(u64::from_le_bytes(value)));
            } else {
                // A fixed program has its code within 4 GiB, so the other half of a pointer is no news.
                let high = code.start & !u64::from(u32::MAX);
                words(data).for_each(|value| mark(high | u64::from(u32::from_le_bytes(value))));
            }
        }
        let mut left = MOST_ENTRIES;
        for base in bases {
            let Some(table) = self.at(*base) else { continue };
            for entry in table.chunks_exact(4).take(left) {
                let target =
                    base.wrapping_add_signed(i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]).into());
                if !code.contains(&target) {
                    break;
                }
                left -= 1;
                mark(target);
            }
        }
    }

    /// The data from an address on.
    fn at(&self, address: u64) -> Option<&'a [u8]> {
        let offset = |data: &Code<'_>| usize::try_from(address.checked_sub(data.address)?).ok();
        self.data.iter().find_map(|data| data.bytes.get(offset(data)?..))
    }
}

/// The aligned words of data, as long as the arrays.
fn words<'a, const N: usize>(data: &Code<'a>) -> impl Iterator<Item = [u8; N]> + 'a {
    let skipped = data.address.wrapping_neg() as usize % N;
    let parts = data.bytes.get(skipped..).unwrap_or_default().chunks_exact(N);
    parts.map(|part| part.try_into().expect("all are as long"))
}

/// Entries of tables that are read at most. Arbitrary: a program of 4 MiB has some ten thousand.
const MOST_ENTRIES: usize = 1 << 20;

/// The addresses of functions and labels in the table of symbols.
fn symbols(elf: &Elf<'_>) -> Vec<u64> {
    const BYTES: usize = 24;
    /// Kinds of symbols: a label, a function, and a function that chooses another one.
    const KINDS: [u8; 3] = [0, 2, 10];
    let Some(table) = elf.section(b".symtab") else { return Vec::new() };
    let entries = elf.bytes()[table.file].chunks_exact(BYTES);
    let in_code = entries.filter(|entry| KINDS.contains(&(entry[4] & 15)) && half(entry, 6) != Some(0));
    in_code.filter_map(|entry| word(entry, 8)).collect()
}

/// The functions that the unwinder knows: from its table, or else from its frames, if a section or their contents show where they are.
fn unwound(elf: &Elf<'_>) -> Vec<u64> {
    tabled(elf).or_else(|| framed(elf)).unwrap_or_default()
}

/// The functions in the frames.
fn framed(elf: &Elf<'_>) -> Option<Vec<u64>> {
    if let Some(section) = elf.section(b".eh_frame") {
        return Some(frames::functions(&elf.bytes()[section.file], section.address));
    }
    /// The common description of frames that compilers write, behind its length.
    const BEGIN: &[u8] = b"\0\0\0\0\x01zR\0\x01\x78\x10";
    const LEN: usize = 4;
    let data = elf.segments.iter().filter(|segment| !segment.executable);
    let found = data.flat_map(|segment| {
        let bytes = &elf.bytes()[segment.file.clone()];
        let begins = memchr::memmem::find_iter(bytes, BEGIN).filter_map(|at| at.checked_sub(LEN));
        begins.map(move |at| frames::functions(&bytes[at..], segment.address + at as u64))
    });
    // Other data may look like a description, but not like one that functions refer to.
    found.into_iter().find(|functions| !functions.is_empty())
}

/// The functions in the unwinder's table (`.eh_frame_hdr`), in the only form that linkers write.
fn tabled(elf: &Elf<'_>) -> Option<Vec<u64>> {
    /// The version; how the address of the frames, the number of entries and the entries themselves are written.
    const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    const HEADER: usize = 12;
    let (address, range) = elf.unwinding.clone()?;
    let bytes = &elf.bytes()[range];
    let (count, entries) = (full(bytes, 8)?, bytes.get(HEADER..)?);
    bytes.starts_with(&FORM).then_some(())?;
    let entries = entries.chunks_exact(8).take(count as usize);
    let offsets = entries.map(|entry| i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
    Some(offsets.map(|offset| address.wrapping_add_signed(offset.into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited(indirect: &Indirect<'_>, bases: &[u64]) -> Vec<u64> {
        let mut found = Vec::new();
        indirect.visit(bases, &(0x1000..0x2000), |address| found.push(address));
        found.retain(|address| (0x1000..0x2000).contains(address));
        found.sort_unstable();
        found.dedup();
        found
    }

    // Breaks if a pointer in data is not seen, as in a table of functions or a relocation.
    #[test]
    fn words_of_data_are_addresses() {
        let mut bytes = vec![0xff; 2];
        bytes.extend(0x1234u64.to_le_bytes());
        bytes.extend(0x1abcu32.to_le_bytes());
        let indirect =
            Indirect { data: vec![Code { bytes: &bytes, address: 0x5002 }], starts: vec![0x1010], movable: false };
        assert_eq!(visited(&indirect, &[]), [0x1010, 0x1234, 0x1abc]);
        let movable = Indirect { movable: true, ..indirect };
        assert_eq!(visited(&movable, &[]), [0x1010], "that word is not aligned");
    }

    // Breaks if a table whose entries are relative to it is not read, or is read beyond its end.
    #[test]
    fn tables_are_relative_to_their_begin_and_end_at_the_first_other_word() {
        let entries = [0x1100i32 - 0x5004, 0x1200 - 0x5004, 0x0100, 0x1300 - 0x5004];
        let bytes: Vec<u8> = [0i32].iter().chain(&entries).flat_map(|entry| entry.to_le_bytes()).collect();
        let indirect =
            Indirect { data: vec![Code { bytes: &bytes, address: 0x5000 }], starts: Vec::new(), movable: true };
        assert_eq!(visited(&indirect, &[0x5004, 0x5004, 0x9000]), [0x1100, 0x1200]);
    }

    #[test]
    fn the_functions_of_this_very_program_are_known() {
        let file = std::fs::read(std::env::current_exe().expect("it runs")).expect("it is readable");
        let elf = Elf::parse(&file).expect("an ELF file");
        let (symbols, unwound) = (symbols(&elf), unwound(&elf));
        let text = elf.section(b".text").expect("it has code");
        let in_code = |address: &&u64| (text.address..text.address + text.file.len() as u64).contains(address);
        assert!(symbols.contains(&elf.entry) && unwound.iter().filter(in_code).count() > 1000);
        // The unwinder's table has the functions that compilers make, and so do the symbols.
        let known: std::collections::HashSet<_> = symbols.iter().collect();
        let shared = unwound.iter().filter(|address| known.contains(address)).count();
        assert!(shared > unwound.len() / 2, "{shared} of {} functions have symbols", unwound.len());
    }

    // Breaks if the functions of a program without the unwinder's table are not known, as most that are linked statically: with
    // its sections, and without them.
    #[test]
    fn the_frames_have_the_functions_of_the_table() {
        let mut file = std::fs::read(std::env::current_exe().expect("it runs")).expect("it is readable");
        let sorted = |mut functions: Vec<u64>| {
            functions.sort_unstable();
            functions.dedup();
            functions
        };
        let elf = Elf::parse(&file).expect("an ELF file");
        let table = sorted(tabled(&elf).expect("it has the table"));
        assert_eq!(sorted(framed(&elf).expect("it has frames")), table);
        // The offset of the sections' headers.
        file[40..48].fill(0);
        let elf = Elf::parse(&file).expect("an ELF file");
        assert!(elf.section(b".eh_frame").is_none());
        let found = framed(&elf).expect("their contents show where they are").len();
        assert!(found > table.len() / 2, "{found} of {}", table.len());
    }
}
