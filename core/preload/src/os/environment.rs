//! The part of the environment that `netacc_run` has set for this process alone.

use std::ffi::{c_char, CStr};

const VARIABLE: &[u8] = b"LD_PRELOAD=";
/// The separator that `netacc_run` puts between the runtime of a sanitizer and the rest of the list. The dynamic linker
/// passes over the empty name.
const MARK: &[u8] = b"::";

extern "C" {
    static environ: *const *mut c_char;
}

/// Takes the runtime of a sanitizer out of `LD_PRELOAD`: it is there for this program. A program that it starts, a
/// shell for instance, is not instrumented, and its leaks must not be reported. Called when the library is loaded,
/// before the program runs.
pub fn leave_runtime_out() {
    // SAFETY: the C library's array, whose strings belong to the process, and no thread has started yet.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            shorten(*entry);
            entry = entry.add(1);
        }
    }
}

/// Moves the end of the list in front, where the program's own array of the environment finds it as well.
///
/// # Safety
/// `text` is a writable C string.
unsafe fn shorten(text: *mut c_char) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes_with_nul();
    let Some(list) = bytes.strip_prefix(VARIABLE) else { return };
    let Some(at) = list.windows(MARK.len()).position(|part| part == MARK) else { return };
    let rest = &list[at + MARK.len()..];
    // SAFETY: both lie in the string, and the zero byte at the end is moved too.
    unsafe { std::ptr::copy(rest.as_ptr(), text.cast::<u8>().add(VARIABLE.len()), rest.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(text: &CStr) -> String {
        let mut bytes = text.to_bytes_with_nul().to_vec();
        // SAFETY: a C string of our own.
        unsafe { shorten(bytes.as_mut_ptr().cast()) };
        CStr::from_bytes_until_nul(&bytes).expect("it ends").to_string_lossy().into_owned()
    }

    #[test]
    fn only_entries_before_the_mark_are_left_out() {
        assert_eq!(shortened(c"LD_PRELOAD=libasan.so.8::/l/n.so:b.so"), "LD_PRELOAD=/l/n.so:b.so");
        assert_eq!(shortened(c"LD_PRELOAD=libasan.so.8:/l/n.so"), "LD_PRELOAD=libasan.so.8:/l/n.so");
        assert_eq!(shortened(c"LD_PRELOAD="), "LD_PRELOAD=");
        assert_eq!(shortened(c"OTHER=a::b"), "OTHER=a::b");
    }
}
