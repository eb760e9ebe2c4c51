//! The symbols that an old glibc had, from the list of a newer one.
//!
//! Invariant: of each name there is one symbol, with the newest version that is not newer than the oldest glibc's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// From this version on, glibc has its other shared objects merged into the C library.
const MERGED: Version = Version([2, 32, 0]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) [u16; 3]);

impl Version {
    /// None for `GLIBC_PRIVATE` and the versions of other libraries.
    fn parse(text: &str) -> Option<Version> {
        let mut numbers = [0; 3];
        let mut parts = text.strip_prefix("GLIBC_")?.split('.');
        for number in &mut numbers {
            match parts.next() {
                Some(part) => *number = part.parse().ok()?,
                None => break,
            }
        }
        parts.next().is_none().then_some(Version(numbers))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// The shared object that it was in.
    pub(crate) object: String,
    name: String,
    version: String,
    /// Of a variable; functions have none here.
    size: Option<u64>,
}

/// The symbols that glibc `oldest` had of those in `listed`, which `readelf --dyn-syms` printed for `object`.
pub(crate) fn oldest(object: &str, listed: &str, oldest: Version) -> Vec<Symbol> {
    let mut chosen: BTreeMap<&str, (Version, Symbol)> = BTreeMap::new();
    let mut defaults: BTreeMap<&str, Version> = BTreeMap::new();
    for (name, version, is_default, size) in listed.lines().filter_map(parse) {
        let Some(number) = Version::parse(version) else { continue };
        if is_default {
            defaults.insert(name, number);
        }
        if number > oldest || chosen.get(name).is_some_and(|(other, _)| *other > number) {
            continue;
        }
        let symbol = Symbol { object: object.to_owned(), name: name.to_owned(), version: version.to_owned(), size };
        chosen.insert(name, (number, symbol));
    }
    let place = |(name, (_, symbol)): (&str, (Version, Symbol))| {
        let moved = defaults.get(name).is_some_and(|version| *version >= MERGED);
        let object = before_merging(name).filter(|_| moved).unwrap_or(object).to_owned();
        Symbol { object, ..symbol }
    };
    chosen.into_iter().map(place).collect()
}

/// The shared object that a symbol was in, if it is one of those that were merged.
fn before_merging(name: &str) -> Option<&'static str> {
    const PLACES: [(&str, &[&str]); 4] = [
        ("libpthread.so.0", &["pthread_", "sem_"]),
        ("libdl.so.2", &["dl"]),
        ("librt.so.1", &["aio_", "lio_", "mq_", "shm_", "timer_"]),
        ("libutil.so.1", &["openpty", "forkpty", "login", "logout", "logwtmp"]),
    ];
    let plain = name.trim_start_matches('_');
    PLACES.iter().find(|(_, names)| names.iter().any(|prefix| plain.starts_with(prefix))).map(|(object, _)| *object)
}

/// Name, version, whether that is the default, and the size if it is a variable.
fn parse(line: &str) -> Option<(&str, &str, bool, Option<u64>)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, size, kind, _, _, section, name, ..] = fields[..] else { return None };
    if section == "UND" || section == "ABS" {
        return None;
    }
    let size = match kind {
        "FUNC" | "IFUNC" | "GNU_IFUNC" => None,
        "OBJECT" => Some(size.parse().ok()?),
        _ => return None,
    };
    let (name, version) = name.split_once('@')?;
    let is_default = version.starts_with('@');
    Some((name, version.trim_start_matches('@'), is_default, size))
}

/// Symbols at their versions; the bytes behind them do not matter, because nobody loads them.
pub(crate) fn assembly(symbols: &[&Symbol]) -> String {
    let mut text = String::from(".section .note.GNU-stack,\"\",@progbits\n");
    for (number, Symbol { name, version, size, .. }) in symbols.iter().enumerate() {
        let (section, kind, size) = match size {
            None => (".text", "function", 1),
            Some(size) => (".bss", "object", (*size).max(1)),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{section}\n.balign 16\n.globl s{number}\n.type s{number},@{kind}\n.size s{number},{size}\ns{number}: .skip {size}\n\
             .symver s{number}, {name}@@{version}, remove"
        );
    }
    text
}

/// Declares the versions.
pub(crate) fn version_script(symbols: &[&Symbol]) -> String {
    let versions: BTreeSet<&str> = symbols.iter().map(|symbol| symbol.version.as_str()).collect();
    versions.into_iter().map(|version| format!("{version} {{ }};\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "\
Symbol table '.dynsym' contains 3044 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND _dl_exception_create@GLIBC_PRIVATE (40)
     2: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 dlopen@GLIBC_2.2.5
     3: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 dlopen@@GLIBC_2.34
     4: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 memcpy@GLIBC_2.2.5
     5: 0000000000083000     9 IFUNC   GLOBAL DEFAULT   15 memcpy@@GLIBC_2.14
     6: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 gettid@@GLIBC_2.30
     7: 0000000000083000     8 OBJECT  WEAK   DEFAULT   36 environ@@GLIBC_2.2.5
     8: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 __libc_start_main@@GLIBC_2.34
     9: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 __libc_start_main@GLIBC_2.2.5
    10: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 __libc_dlopen@@GLIBC_PRIVATE
    11: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS GLIBC_2.34
    12: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 __pthread_key_create@@GLIBC_2.34
    13: 0000000000083000     9 FUNC    GLOBAL DEFAULT   15 __pthread_key_create@GLIBC_2.2.5
";

    // Breaks if a program would need a newer version, or search a symbol in a library that did not have it.
    #[test]
    fn each_symbol_is_where_it_was() {
        let found = oldest("libc.so.6", LISTED, Version([2, 28, 0]));
        let found: Vec<_> = found.iter().map(|s| (s.name.as_str(), s.version.as_str(), s.object.as_str())).collect();
        assert_eq!(
            found,
            [
                ("__libc_start_main", "GLIBC_2.2.5", "libc.so.6"),
                ("__pthread_key_create", "GLIBC_2.2.5", "libpthread.so.0"),
                ("dlopen", "GLIBC_2.2.5", "libdl.so.2"),
                ("environ", "GLIBC_2.2.5", "libc.so.6"),
                ("memcpy", "GLIBC_2.14", "libc.so.6"),
            ]
        );
    }

    #[test]
    fn variables_have_their_size() {
        let found = oldest("libc.so.6", LISTED, Version([2, 28, 0]));
        let text = assembly(&found.iter().filter(|symbol| symbol.name == "environ").collect::<Vec<_>>());
        assert!(text.contains(".size s0,8") && text.contains("environ@@GLIBC_2.2.5"), "{text}");
    }
}
