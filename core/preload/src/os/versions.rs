//! The versions of the C library's functions that the program was linked with.
//!
//! The library defines each function once and without a version, so the calls of all programs arrive at it. Some
//! functions of the C library have older versions that behave otherwise, for programs that were linked before the
//! change. Such a program must get the older one from here, too:
//!
//! | function | before | the older version |
//! | --- | --- | --- |
//! | `posix_spawn`, `posix_spawnp` | glibc 2.15 | runs a file that the kernel does not know as a script of the shell |
//! | `lio_listio`, `lio_listio64` | glibc 2.4 | waits for operations, and notifies of them, in another way |
//!
//! The executable alone is asked: a name has one function in the whole process.

use std::ffi::{c_char, c_int, c_void, CStr};

use libc::{dl_phdr_info, size_t, Elf64_Sym};

use super::lookup::{dynamic_section, DT_STRTAB, DT_SYMTAB, DT_VERSYM};

const DT_PLTRELSZ: i64 = 2;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_VERNEED: i64 = 0x6fff_fffe;

/// The bits of a symbol's version that are the version's number.
const NUMBER: u16 = 0x7fff;

/// The oldest version of the C library's functions on x86-64. Elsewhere no function above has a second one.
const OLDEST: &CStr = c"GLIBC_2.2.5";

/// The functions whose older version behaves otherwise.
const CHANGED: [&CStr; 4] = [c"posix_spawn", c"posix_spawnp", c"lio_listio", c"lio_listio64"];

/// The older version of a function, if the program was linked with it; otherwise null.
pub(super) fn older(name: &CStr) -> *mut c_void {
    if !CHANGED.contains(&name) || !is_required(name, OLDEST) {
        return std::ptr::null_mut();
    }
    // SAFETY: C strings; RTLD_NEXT is valid in a shared object.
    unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), OLDEST.as_ptr()) }
}

/// Whether the executable refers to that version of the function.
fn is_required(name: &CStr, version: &CStr) -> bool {
    let mut search = Search { name, version, found: false };
    // SAFETY: `executable` gets this search, and the loader's description of the first object.
    unsafe { libc::dl_iterate_phdr(Some(executable), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    name: &'a CStr,
    version: &'a CStr,
    found: bool,
}

/// Ends the search with the first object, which is the executable.
unsafe extern "C" fn executable(info: *mut dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
    // SAFETY: both are valid during the call, and nothing else uses the search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    // SAFETY: the executable is loaded.
    search.found =
        unsafe { References::of(info).is_some_and(|references| references.contain(search.name, search.version)) };
    1
}

/// `Elf64_Rela`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// `Elf64_Verneed`: a library whose versions an object requires.
#[repr(C)]
#[derive(Clone, Copy)]
struct Required {
    version: u16,
    count: u16,
    file: u32,
    /// From here to the first of its versions.
    versions: u32,
    /// From here to the next library, or 0.
    next: u32,
}

/// `Elf64_Vernaux`: a version of a library that an object requires.
#[repr(C)]
#[derive(Clone, Copy)]
struct RequiredVersion {
    hash: u32,
    flags: u16,
    number: u16,
    name: u32,
    /// From here to the next version, or 0.
    next: u32,
}

/// The references of an object to functions of others.
struct References {
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    versions: *const u16,
    required: *const Required,
    /// Tables of relocations, and their lengths.
    relocations: [(*const Relocation, usize); 2],
}

impl References {
    /// # Safety
    /// The object is loaded.
    unsafe fn of(info: &dl_phdr_info) -> Option<References> {
        let [mut symbols, mut strings, mut versions, mut required] = [0; 4];
        let [mut calls, mut calls_bytes, mut others, mut others_bytes] = [0; 4];
        // SAFETY: the caller's promise.
        unsafe {
            dynamic_section(info, |tag, address, value| match tag {
                DT_SYMTAB => symbols = address,
                DT_STRTAB => strings = address,
                DT_VERSYM => versions = address,
                DT_VERNEED => required = address,
                DT_JMPREL => calls = address,
                DT_PLTRELSZ => calls_bytes = value,
                DT_RELA => others = address,
                DT_RELASZ => others_bytes = value,
                _ => {}
            })?;
        }
        let table = |address: u64, bytes: u64| {
            (address as *const Relocation, if address == 0 { 0 } else { bytes as usize / size_of::<Relocation>() })
        };
        (symbols != 0 && strings != 0 && versions != 0 && required != 0).then_some(References {
            symbols: symbols as *const Elf64_Sym,
            strings: strings as *const c_char,
            versions: versions as *const u16,
            required: required as *const Required,
            relocations: [table(calls, calls_bytes), table(others, others_bytes)],
        })
    }

    /// # Safety
    /// The object is loaded.
    unsafe fn contain(&self, name: &CStr, version: &CStr) -> bool {
        let mut relocations =
            self.relocations.iter().flat_map(|(table, len)| (0..*len).map(|at| table.wrapping_add(at)));
        relocations.any(|relocation| {
            // SAFETY: the tables have so many relocations, and an entry for each symbol; names are within the strings.
            unsafe {
                let index = (relocation.read().info >> 32) as usize;
                if index == 0 {
                    return false;
                }
                let symbol = self.symbols.add(index).read();
                CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name
                    && self.version(self.versions.add(index).read() & NUMBER) == Some(version)
            }
        })
    }

    /// The name of a required version.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn version(&self, number: u16) -> Option<&CStr> {
        let mut library = self.required;
        loop {
            // SAFETY: the lists end in an entry whose distance to the next one is 0.
            let required = unsafe { library.read() };
            let mut place = library.wrapping_byte_add(required.versions as usize).cast::<RequiredVersion>();
            for _ in 0..required.count {
                // SAFETY: the library has so many versions, and names are within the strings.
                let version = unsafe { place.read() };
                if version.number & NUMBER == number {
                    // SAFETY: as above.
                    return Some(unsafe { CStr::from_ptr(self.strings.add(version.name as usize)) });
                }
                place = place.wrapping_byte_add(version.next as usize);
            }
            if required.next == 0 {
                return None;
            }
            library = library.wrapping_byte_add(required.next as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a program got an older version that it was not linked with, or none although it was.
    #[test]
    fn the_version_that_the_executable_refers_to_is_found() {
        let oldest = if cfg!(target_arch = "x86_64") { OLDEST } else { c"GLIBC_2.17" };
        assert!(is_required(c"getpid", oldest) || is_required(c"dl_iterate_phdr", oldest));
        assert!(!is_required(c"dl_iterate_phdr", c"GLIBC_2.15"));
        assert!(!is_required(c"lio_listio", oldest), "not a function of this program");
        assert!(older(c"dl_iterate_phdr").is_null() && older(c"lio_listio").is_null());
    }
}
