//! The functions of a Go program, from the table that its own runtime uses for stack traces. It stays in a program whose
//! symbols are stripped.

use std::ops::Range;

use crate::elf::{full, word, Elf};

/// The first bytes of the table, since Go 1.20 and since 1.18: a number, two zeros, the smallest instruction's length and
/// the length of an address.
const BEGINS: [[u8; 8]; 2] = [[0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8], [0xf0, 0xff, 0xff, 0xff, 0, 0, 1, 8]];
const HEADER: usize = 72;
/// Where the header has the address of the first function.
const START: usize = 24;

/// The thread-local memory of a program that is Go alone: one word, the current goroutine. With C in it there is more.
const GO_TLS: u64 = 8;

/// The table, and its address.
struct Table<'a> {
    address: u64,
    bytes: &'a [u8],
}

/// The addresses of all functions of a program that is Go alone, in order; `None` for others, and for a Go whose table is
/// not known.
pub(crate) fn functions(elf: &Elf<'_>) -> Option<Vec<Range<u64>>> {
    elf.tls.is_none_or(|len| len == GO_TLS).then_some(())?;
    let table = find(elf)?;
    let text = text(elf)?;
    // Only some versions of Go have it in the file. Nothing precedes the first function in a program that is Go alone.
    let start = Some(word(table.bytes, START)?).filter(|start| text.contains(start)).unwrap_or(text.start);
    read(table.bytes, start, text)
}

/// As [`functions`], for a program in this process that may have C besides. `word_at` reads a word of the program in memory, as
/// the dynamic linker has left it; `bias` is the distance of its addresses from those in the file.
pub(crate) fn functions_in_memory(elf: &Elf<'_>, bias: u64, word_at: impl Fn(u64) -> u64) -> Option<Vec<Range<u64>>> {
    /// Where the description of the program's parts has the address of the first function.
    const OF_MODULE: u64 = 176;
    let table = find(elf)?;
    let read_word = |address: u64| elf.at(address).filter(|bytes| bytes.len() >= 8).map(|_| word_at(address));
    let start = match read_word(table.address + START as u64)? {
        // Since Go 1.26 the table does not have it, and the description has a section of its own.
        0 => {
            let module = elf.section(b".go.module")?.address;
            (read_word(module)? == table.address.wrapping_add(bias)).then_some(())?;
            read_word(module.checked_add(OF_MODULE)?)?
        }
        start => start,
    };
    read(table.bytes, start.wrapping_sub(bias), text(elf)?)
}

/// Whether the file is a Go program, by the names of its sections. Needs no memory.
pub(crate) fn is_go(file: &[u8]) -> bool {
    crate::elf::section(file, b".go.buildinfo").is_some()
}

fn text(elf: &Elf<'_>) -> Option<Range<u64>> {
    let text = elf.section(b".text")?;
    Some(text.address..text.address.checked_add(text.file.len() as u64)?)
}

fn find<'a>(elf: &Elf<'a>) -> Option<Table<'a>> {
    match elf.section(b".gopclntab") {
        Some(section) => Some(Table { address: section.address, bytes: &elf.bytes()[section.file] }),
        None => search(elf),
    }
}

/// The table of a program whose sections do not name it.
fn search<'a>(elf: &Elf<'a>) -> Option<Table<'a>> {
    let data = elf.segments.iter().filter(|segment| !segment.executable);
    data.filter_map(|segment| {
        let bytes = &elf.bytes()[segment.file.clone()];
        let at = 8 * bytes.chunks_exact(8).position(|chunk| BEGINS.iter().any(|begin| chunk == begin))?;
        Some(Table { address: segment.address + at as u64, bytes: bytes.get(at..)? })
    })
    .next()
}

/// The functions that the table lists, if all are in the code.
fn read(table: &[u8], start: u64, text: Range<u64>) -> Option<Vec<Range<u64>>> {
    BEGINS.iter().any(|begin| table.starts_with(begin)).then_some(())?;
    table.get(..HEADER)?;
    let count = usize::try_from(word(table, 8)?).ok()?;
    let entries = table.get(usize::try_from(word(table, 64)?).ok()?..)?;
    // An entry is two offsets: of the function from the start, and of its description.
    (count.checked_mul(8)?.checked_add(4)? <= entries.len()).then_some(())?;
    let at = |index: usize| start.checked_add(u64::from(full(entries, index * 8)?));
    let functions = (0..count).map(|index| Some(at(index)?..at(index + 1)?));
    let functions: Vec<Range<u64>> = functions.collect::<Option<_>>()?;
    let sound = functions.iter().all(|f| f.start <= f.end && f.start >= text.start && f.end <= text.end);
    (sound && !functions.is_empty()).then_some(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[u32]) -> Vec<u8> {
        let mut table = BEGINS[0].to_vec();
        table.extend((entries.len() as u64 - 1).to_le_bytes());
        table.resize(HEADER, 0);
        table[64..72].copy_from_slice(&(HEADER as u64).to_le_bytes());
        for entry in entries {
            table.extend(entry.to_le_bytes());
            table.extend([0; 4]);
        }
        table
    }

    #[test]
    fn functions_are_between_neighbouring_entries() {
        let read = |entries: &[u32]| read(&table(entries), 0x1000, 0x1000..0x2000);
        assert_eq!(read(&[0, 0x10, 0x40]), Some(vec![0x1000..0x1010, 0x1010..0x1040]));
        assert_eq!(read(&[0, 0x1001]), None, "outside of the code");
        assert_eq!(read(&[8, 4]), None, "not in order");
    }

    // Breaks if an offset or a count of the table is not checked.
    #[test]
    fn a_table_that_is_cut_short_is_none() {
        let whole = table(&[0, 0x10, 0x40]);
        for len in 0..whole.len() - 4 {
            assert_eq!(read(&whole[..len], 0x1000, 0x1000..0x2000), None, "{len} bytes");
        }
        let mut endless = whole;
        endless[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(read(&endless, 0x1000, 0x1000..0x2000), None);
    }
}
