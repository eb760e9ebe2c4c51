//! The dynamic section of a program: the libraries that it needs, and their search path. Files may have any contents:
//! every offset and length is checked, and an invalid one gives no result.

use super::executable::Executable;

/// The parts that are read.
#[derive(Debug, Default)]
pub(super) struct Dynamic {
    /// `DT_NEEDED`: the names of libraries.
    pub(super) needed: Vec<Vec<u8>>,
    /// `DT_RUNPATH`, or else `DT_RPATH`: directories, separated by colons.
    pub(super) search_path: Vec<u8>,
    /// Every name that the program imports from libraries, or exports to them.
    pub(super) names: Vec<u8>,
}

/// Further names are not read. Arbitrary: a large browser has a tenth of this.
const MAX_NAMES: u64 = 256 << 20;
const MAX_HEADERS: u16 = 256;
const MAX_ENTRIES: u64 = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

impl Dynamic {
    /// Whether the program imports or exports a name with this prefix.
    pub(super) fn has_name(&self, beginning: &str) -> bool {
        self.names.split(|byte| *byte == 0).any(|known| known.starts_with(beginning.as_bytes()))
    }
}

/// A program header, as far as it matters.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

/// The dynamic section of an ELF file of this word size and byte order.
pub(super) fn dynamic(file: &Executable) -> Option<Dynamic> {
    let segments = segments(file)?;
    let section = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let entries = file.read(section.offset, section.len.min(MAX_ENTRIES * 16))?;
    let entries: Vec<(u64, u64)> = entries.chunks_exact(16).map(|entry| (word(entry, 0), word(entry, 8))).collect();
    let value = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
    let names_at = value(DT_STRTAB)?;
    let holds = |segment: &&Segment| segment.kind == PT_LOAD && names_at.wrapping_sub(segment.address) < segment.len;
    let segment = segments.iter().find(holds)?;
    let offset = segment.offset.checked_add(names_at - segment.address)?;
    let names = file.read(offset, value(DT_STRSZ)?.min(MAX_NAMES))?;
    let name = |at: u64| Some(names.get(usize::try_from(at).ok()?..)?.split(|byte| *byte == 0).next()?.to_vec());
    let needed = entries.iter().filter(|entry| entry.0 == DT_NEEDED).filter_map(|entry| name(entry.1)).collect();
    let search_path = value(DT_RUNPATH).or(value(DT_RPATH)).and_then(name).unwrap_or_default();
    Some(Dynamic { needed, search_path, names })
}

fn segments(file: &Executable) -> Option<Vec<Segment>> {
    const ENTRY_BYTES: u16 = 56;
    let head = file.read(0, 64)?;
    let own_byte_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let own = head.starts_with(b"\x7fELF\x02") && head[5] == own_byte_order;
    let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    if !own || half(54) != ENTRY_BYTES {
        return None;
    }
    let table = file.read(word(&head, 32), u64::from(half(56).min(MAX_HEADERS)) * u64::from(ENTRY_BYTES))?;
    let segment = |entry: &[u8]| Segment {
        kind: u32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]),
        offset: word(entry, 8),
        address: word(entry, 16),
        len: word(entry, 32),
    };
    Some(table.chunks_exact(ENTRY_BYTES.into()).map(segment).collect())
}

/// The eight bytes at `at`, which exist.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_program_needs_the_c_library() {
        let own = Executable::open(&std::env::current_exe().expect("it runs")).expect("it is readable");
        let dynamic = dynamic(&own).expect("it is dynamically linked");
        assert!(dynamic.needed.iter().any(|name| name.starts_with(b"libc.so")), "{:?}", dynamic.needed);
        assert!(dynamic.has_name("malloc") && !dynamic.has_name("__tsan_"));
    }

    // Breaks if an offset or a length of the file is not checked.
    #[test]
    fn files_of_any_content_are_read_without_harm() {
        let own = std::fs::read(std::env::current_exe().expect("it runs")).expect("it is readable");
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut state = 7u64;
        for cut in [0, 5, 63, 64, 100, 4096] {
            std::fs::write(file.path(), &own[..cut]).expect("writable");
            assert!(dynamic(&Executable::open(file.path()).expect("it is there")).is_none());
        }
        for _ in 0..200 {
            let mut bytes = own[..own.len().min(8192)].to_vec();
            for _ in 0..20 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes[16 + (state >> 33) as usize % 1000] = (state >> 20) as u8;
            }
            std::fs::write(file.path(), &bytes).expect("writable");
            let _ = dynamic(&Executable::open(file.path()).expect("it is there"));
        }
    }
}
