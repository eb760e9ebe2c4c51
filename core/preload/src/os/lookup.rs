//! Finds a function in the objects behind this one, without the C library's `dlsym`.
//!
//! Before glibc 2.34 `dlsym` allocates memory. A hook may be called by an allocator that is about to start (jemalloc reads a file
//! then), and would wait for that allocator's lock for ever. So this module allocates nothing, and takes only the loader's
//! recursive lock. Functions that are chosen when a program is loaded (`STT_GNU_IFUNC`) are not found; no hook has such a name.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::atomic::{AtomicU8, Ordering};

use libc::{dl_phdr_info, size_t, Elf64_Sym};

/// The first version of glibc whose `dlsym` needs no memory.
const FIRST_WITHOUT_ALLOCATION: (u32, u32) = (2, 34);

const PT_DYNAMIC: u32 = 2;
const STT_FUNC: u8 = 2;
pub(super) const DT_STRTAB: i64 = 5;
pub(super) const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
pub(super) const DT_VERSYM: i64 = 0x6fff_fff0;

/// The bit of a symbol's version that says that it is not the default.
const NOT_DEFAULT: u16 = 0x8000;

/// Whether `dlsym` of this process's C library may call an allocator.
pub(super) fn is_needed() -> bool {
    const UNKNOWN: u8 = 0;
    const NEEDED: u8 = 1;
    const NOT_NEEDED: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {
            // SAFETY: it returns a constant string.
            let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
            let needed = allocates(version.to_bytes());
            ANSWER.store(if needed { NEEDED } else { NOT_NEEDED }, Ordering::Relaxed);
            needed
        }
        answer => answer == NEEDED,
    }
}

fn allocates(version: &[u8]) -> bool {
    let number =
        |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + u32::from(b - b'0'));
    let mut parts = version.splitn(3, |byte| *byte == b'.').map(number);
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < FIRST_WITHOUT_ALLOCATION
}

/// The first default definition of a function in an object that was loaded after this one; null if there is none.
pub(super) fn next(name: &CStr) -> *mut c_void {
    let mut search = Search { name, passed_own: false, found: std::ptr::null_mut() };
    // SAFETY: `object` gets this search, and the loader's description of each object.
    unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    name: &'a CStr,
    passed_own: bool,
    found: *mut c_void,
}

/// Ends the search once it returns something other than 0.
unsafe extern "C" fn object(info: *mut dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
    // SAFETY: both are valid during the call, and nothing else uses the search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    if !search.passed_own {
        search.passed_own = contains(info, object as *const () as u64);
        return 0;
    }
    // SAFETY: the object is loaded for as long as the loader's lock is held.
    search.found =
        unsafe { Tables::of(info).and_then(|tables| tables.find(search.name)) }.unwrap_or(std::ptr::null_mut());
    c_int::from(!search.found.is_null())
}

fn headers(info: &dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader's description of an object that is loaded.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

fn contains(info: &dl_phdr_info, address: u64) -> bool {
    headers(info).iter().any(|header| {
        header.p_type == libc::PT_LOAD && address.wrapping_sub(info.dlpi_addr + header.p_vaddr) < header.p_memsz
    })
}

/// Calls `entry` for each entry of an object's dynamic section, with its tag, and its value as an address and as a number.
/// `None` if there is no such section.
///
/// # Safety
/// The object is loaded.
pub(super) unsafe fn dynamic_section(info: &dl_phdr_info, mut entry: impl FnMut(i64, u64, u64)) -> Option<()> {
    let base = info.dlpi_addr;
    let dynamic = headers(info).iter().find(|header| header.p_type == PT_DYNAMIC)?;
    let mut place = (base + dynamic.p_vaddr) as *const [i64; 2];
    loop {
        // SAFETY: the section ends in an entry with tag 0.
        let [tag, value] = unsafe { place.read() };
        if tag == 0 {
            return Some(());
        }
        let value = value as u64;
        // The loader has made these absolute, except in an object of the kernel.
        entry(tag, if value < base { base + value } else { value }, value);
        // SAFETY: as above.
        place = unsafe { place.add(1) };
    }
}

/// Where an object has its symbols.
struct Tables {
    base: u64,
    hash: *const u32,
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    /// Null in an object whose symbols have no versions.
    versions: *const u16,
}

impl Tables {
    /// # Safety
    /// The object is loaded.
    unsafe fn of(info: &dl_phdr_info) -> Option<Tables> {
        let [mut hash, mut symbols, mut strings, mut versions] = [0; 4];
        // SAFETY: the caller's promise.
        unsafe {
            dynamic_section(info, |tag, address, _| match tag {
                DT_GNU_HASH => hash = address,
                DT_SYMTAB => symbols = address,
                DT_STRTAB => strings = address,
                DT_VERSYM => versions = address,
                _ => {}
            })?;
        }
        (hash != 0 && symbols != 0 && strings != 0).then_some(Tables {
            base: info.dlpi_addr,
            hash: hash as *const u32,
            symbols: symbols as *const Elf64_Sym,
            strings: strings as *const c_char,
            versions: versions as *const u16,
        })
    }

    /// # Safety
    /// The object is loaded.
    unsafe fn find(&self, name: &CStr) -> Option<*mut c_void> {
        let wanted = hash_of(name);
        // SAFETY: the layout of DT_GNU_HASH: four numbers, the filter's words of 64 bits, the buckets, the chains.
        unsafe {
            let [buckets, first, words] = [0, 1, 2].map(|at| self.hash.add(at).read());
            let bucket = self.hash.add(4 + 2 * words as usize);
            let chains = bucket.add(buckets as usize);
            let mut index = bucket.add(wanted.checked_rem(buckets)? as usize).read();
            if index < first {
                return None;
            }
            loop {
                let hash = chains.add((index - first) as usize).read();
                if hash | 1 == wanted | 1 {
                    if let Some(address) = self.function(index as usize, name) {
                        return Some(address);
                    }
                }
                if hash & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// The address of a symbol, if it is the default definition of this function.
    ///
    /// # Safety
    /// The object is loaded and has such a symbol.
    unsafe fn function(&self, index: usize, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the tables have an entry for each symbol.
        unsafe {
            let symbol = self.symbols.add(index).read();
            let is_default = self.versions.is_null() || self.versions.add(index).read() & NOT_DEFAULT == 0;
            let is_function = symbol.st_info & 0xf == STT_FUNC && symbol.st_shndx != 0;
            let same = is_default && is_function && CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name;
            same.then_some((self.base + symbol.st_value) as *mut c_void)
        }
    }
}

fn hash_of(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if another definition were called than the one that the C library finds.
    #[test]
    fn finds_what_dlsym_finds() {
        for name in [c"recv", c"epoll_wait", c"fcntl", c"syscall", c"pthread_exit", c"sigaction", c"posix_spawn"] {
            // SAFETY: a C string.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!expected.is_null());
            assert_eq!(next(name), expected, "{name:?}");
        }
        assert!(next(c"no_function_has_this_name").is_null());
    }

    #[test]
    fn only_older_versions_allocate() {
        assert!([&b"2.28"[..], b"2.31", b"2.33"].into_iter().all(allocates));
        assert!(![&b"2.34"[..], b"2.36", b"2.41.9000", b"3.0"].into_iter().any(allocates));
    }
}
