//! The functions of a Go program, from the table that its own runtime uses for stack traces. It stays in a program whose
//! symbols are stripped.

use std::ops::Range;

use crate::elf::{full, word, Elf};

/// The first bytes of the table, since Go 1.20 and since 1.18: a number, two zeros, the smallest instruction's length and
/// the length of an address.
const BEGINS: [[u8; 8]; 2] = [[0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8], [0xf0, 0xff, 0xff, 0xff, 0, 0, 1, 8]];
const HEADER: usize = 72;

/// The thread-local memory of a program that is Go alone: one word, the current goroutine. With C in it there is more.
const GO_TLS: u64 = 8;

/// The addresses of all functions of a program that is Go alone, in order; `None` for others, and for a Go whose table is
/// not known.
pub(crate) fn functions(elf: &Elf<'_>) -> Option<Vec<Range<u64>>> {
    elf.tls.is_none_or(|len| len == GO_TLS).then_some(())?;
    let text = elf.section(b".text")?;
    let table = match elf.section(b".gopclntab") {
        Some(section) => &elf.bytes()[section.file],
        None => search(elf)?,
    };
    read(table, text.address..text.address + text.file.len() as u64)
}

/// The table of a program whose sections do not name it.
fn search<'a>(elf: &Elf<'a>) -> Option<&'a [u8]> {
    let data = elf.segments.iter().filter(|segment| !segment.executable);
    data.filter_map(|segment| {
        let bytes = &elf.bytes()[segment.file.clone()];
        let aligned = bytes.chunks_exact(8).position(|chunk| BEGINS.iter().any(|begin| chunk == begin))?;
        bytes.get(aligned * 8..)
    })
    .next()
}

fn read(table: &[u8], text: Range<u64>) -> Option<Vec<Range<u64>>> {
    BEGINS.iter().any(|begin| table.starts_with(begin)).then_some(())?;
    table.get(..HEADER)?;
    let count = usize::try_from(word(table, 8)?).ok()?;
    // Later versions of Go leave it to the section.
    let start = Some(word(table, 24)?).filter(|start| text.contains(start)).unwrap_or(text.start);
    let entries = table.get(usize::try_from(word(table, 64)?).ok()?..)?;
    // An entry is two offsets: of the function from the start, and of its description.
    (count.checked_mul(8)?.checked_add(4)? <= entries.len()).then_some(())?;
    let at = |index: usize| Some(start + u64::from(full(entries, index * 8)?));
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
        let read = |entries: &[u32]| read(&table(entries), 0x1000..0x2000);
        assert_eq!(read(&[0, 0x10, 0x40]), Some(vec![0x1000..0x1010, 0x1010..0x1040]));
        assert_eq!(read(&[0, 0x1001]), None, "outside of the code");
        assert_eq!(read(&[8, 4]), None, "not in order");
    }

    // Breaks if an offset or a count of the table is not checked.
    #[test]
    fn a_table_that_is_cut_short_is_none() {
        let whole = table(&[0, 0x10, 0x40]);
        for len in 0..whole.len() - 4 {
            assert_eq!(read(&whole[..len], 0x1000..0x2000), None, "{len} bytes");
        }
        let mut endless = whole;
        endless[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(read(&endless, 0x1000..0x2000), None);
    }
}
