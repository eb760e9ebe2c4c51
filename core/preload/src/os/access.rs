//! Memory that the program passes to its calls, and that may be unmapped.
//!
//! For a bad address the kernel returns EFAULT, and consumes or sends only the bytes that it reports. On a link no
//! kernel is called, so the library checks the address itself, before it copies: it touches one byte of each page that
//! it is about to use. A touch is one load (or one load and one store) in [`netacc_access_begin`]..`netacc_access_end`.
//! If it faults, the signal handler in [`actions`](super::actions) recognises the instruction pointer and continues at a landing pad,
//! which reports the fault: the kernel's own exception table, in user space.
//!
//! Why this and nothing else:
//! * A system call for each buffer (`process_vm_readv`, a write into a pipe, `mincore`) is the cost that a link avoids,
//!   and a program that has confined itself with seccomp may not make it.
//! * Copying inside the recovery region would need a `memcpy` of our own, in every crate that copies. After a touch
//!   the ordinary copy is safe, unless another thread unmaps the buffer in between; then it faults, as it did before.
//! * A cache of good pages is stale after the next `munmap`.
//!
//! A thread that blocks SIGSEGV or SIGBUS, and a program that ignores them, has no recovery: there the kernel ends the
//! process on the touch. The first page is never touched, so null is reported there, too.

use std::arch::global_asm;
use std::ffi::c_void;

/// The unit in which one byte stands for all others: no page is smaller.
const PAGE: usize = 4096;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.netacc_access,\"ax\",@progbits",
    ".balign 16",
    ".hidden netacc_access_begin",
    ".hidden netacc_access_load",
    ".hidden netacc_access_store",
    ".hidden netacc_access_end",
    ".hidden netacc_access_landing",
    ".globl netacc_access_begin",
    ".globl netacc_access_load",
    ".globl netacc_access_store",
    ".globl netacc_access_end",
    ".globl netacc_access_landing",
    "netacc_access_begin:",
    "netacc_access_load:",
    "mov al, byte ptr [rdi]",
    "xor eax, eax",
    "ret",
    "netacc_access_store:",
    "mov al, byte ptr [rdi]",
    "mov byte ptr [rdi], al",
    "xor eax, eax",
    "ret",
    "netacc_access_end:",
    "netacc_access_landing:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.netacc_access,\"ax\",@progbits",
    ".balign 16",
    ".hidden netacc_access_begin",
    ".hidden netacc_access_load",
    ".hidden netacc_access_store",
    ".hidden netacc_access_end",
    ".hidden netacc_access_landing",
    ".globl netacc_access_begin",
    ".globl netacc_access_load",
    ".globl netacc_access_store",
    ".globl netacc_access_end",
    ".globl netacc_access_landing",
    "netacc_access_begin:",
    "netacc_access_load:",
    "ldrb w1, [x0]",
    "mov w0, #0",
    "ret",
    "netacc_access_store:",
    "ldrb w1, [x0]",
    "strb w1, [x0]",
    "mov w0, #0",
    "ret",
    "netacc_access_end:",
    "netacc_access_landing:",
    "mov w0, #1",
    "ret",
    ".popsection",
);

extern "C" {
    /// Reads the byte at an address; 0, or 1 if that faults.
    fn netacc_access_load(address: usize) -> u32;
    /// Reads the byte at an address and writes it back; 0, or 1 if either faults.
    fn netacc_access_store(address: usize) -> u32;
    static netacc_access_begin: u8;
    static netacc_access_end: u8;
    static netacc_access_landing: u8;
}

/// Where a touch that has faulted at `pc` continues; `None`: the fault was not in a touch.
pub(super) fn landing(pc: usize) -> Option<usize> {
    let touches = (&raw const netacc_access_begin) as usize..(&raw const netacc_access_end) as usize;
    touches.contains(&pc).then_some((&raw const netacc_access_landing) as usize)
}

/// How many of the `len` bytes at `first` can be read, up to the first that cannot.
#[inline(always)]
pub fn readable<T>(first: *const T, len: usize) -> usize {
    reach(first as usize, len, |address| {
        // SAFETY: a fault is reported, and the byte is discarded.
        unsafe { netacc_access_load(address) == 0 }
    })
}

/// How many of the `len` bytes at `first` can be written, up to the first that cannot.
///
/// # Safety
/// The caller may write to them: a byte of each page is replaced by itself.
#[inline]
pub unsafe fn writable<T>(first: *mut T, len: usize) -> usize {
    reach(first as usize, len, |address| {
        // SAFETY: a fault is reported; the byte is the caller's to write.
        unsafe { netacc_access_store(address) == 0 }
    })
}

/// Whether all of `count` elements can be read.
#[inline]
pub fn is_readable<T>(first: *const T, count: usize) -> bool {
    let len = count.saturating_mul(size_of::<T>());
    readable(first, len) == len
}

/// Whether a value can be written.
///
/// # Safety
/// As [`writable`].
#[inline]
pub unsafe fn is_writable<T>(to: *mut T) -> bool {
    // SAFETY: the caller's promise.
    unsafe { writable(to, size_of::<T>()) == size_of::<T>() }
}

/// The value at an address of the program's; `None` if it cannot be read.
///
/// # Safety
/// Any bytes are a valid `T`.
#[inline]
pub unsafe fn read<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: readable, and any bytes will do.
    is_readable(from, 1).then(|| unsafe { from.read_unaligned() })
}

/// Writes a value to an address of the program's. Whether that can be written.
///
/// # Safety
/// If the memory is mapped, it is the caller's to write.
#[inline]
pub unsafe fn write<T: Copy>(to: *mut T, value: T) -> bool {
    // SAFETY: the caller's promise; writable.
    unsafe {
        let there = is_writable(to);
        if there {
            to.write_unaligned(value);
        }
        there
    }
}

/// Touches each page of a range; how much of it comes before the first that faults.
#[inline(always)]
fn reach(first: usize, len: usize, touch: impl Fn(usize) -> bool) -> usize {
    // Nothing is mapped in the first page, so null, the commonest of bad addresses, needs no recovery. The kernel takes no
    // address of the upper half, though it may have mapped pages there that can be read.
    if len == 0 || (first as isize) < PAGE as isize || !touch(first) {
        return 0;
    }
    // Most ranges end where they begin.
    if (first % PAGE).saturating_add(len) <= PAGE {
        return len;
    }
    reach_pages(first, len, touch)
}

/// As [`reach`], of a range that begins with a byte that is there, and ends in another page.
#[inline(never)]
fn reach_pages(first: usize, len: usize, touch: impl Fn(usize) -> bool) -> usize {
    let mut reached = PAGE - first % PAGE;
    while reached < len {
        if !first.checked_add(reached).is_some_and(&touch) {
            return reached;
        }
        reached += PAGE;
    }
    len
}

/// Whether a buffer reaches beyond the memory of programs. A call with such a buffer fails before it does anything.
#[inline]
pub fn is_beyond(first: *const c_void, len: usize) -> bool {
    (first as usize).checked_add(len).is_none_or(|end| end > BEYOND)
}

/// The highest possible end of the memory of programs.
pub(crate) const BEYOND: usize = if cfg!(target_arch = "x86_64") { (1 << 47) - 4096 } else { 1 << 52 };

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    /// Two pages that can be used, one that can be read only, and one that is unmapped.
    fn pages() -> *mut u8 {
        crate::os::actions::install();
        // SAFETY: a fresh mapping, changed within its bounds.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let first = libc::mmap(std::ptr::null_mut(), 4 * PAGE, protection, flags, -1, 0);
            assert_ne!(first, libc::MAP_FAILED);
            let first = first.cast::<u8>();
            assert_eq!(libc::mprotect(first.add(2 * PAGE).cast(), PAGE, libc::PROT_READ), 0);
            assert_eq!(libc::munmap(first.add(3 * PAGE).cast(), PAGE), 0);
            first
        }
    }

    // Breaks if a fault ended the process, or was not found, or was found in the wrong place.
    #[test]
    fn ranges_end_at_the_first_page_that_faults() {
        let first = pages();
        let at = |n: usize| first.wrapping_add(n);
        assert_eq!(readable(at(0), 3 * PAGE), 3 * PAGE);
        assert_eq!(readable(at(10), 4 * PAGE), 3 * PAGE - 10);
        assert_eq!(readable(at(3 * PAGE), 1), 0);
        assert_eq!(readable(at(3 * PAGE - 1), 1), 1);
        assert_eq!(readable(at(3 * PAGE - 1), 2), 1);
        // SAFETY: memory of this test.
        unsafe {
            at(0).write(7);
            assert_eq!(writable(at(0), 3 * PAGE), 2 * PAGE);
            assert_eq!(writable(at(5), 2 * PAGE - 5), 2 * PAGE - 5);
            assert_eq!(writable(at(2 * PAGE), 1), 0);
            assert_eq!(at(0).read(), 7);
            assert_eq!(read::<u64>(at(3 * PAGE - 4).cast()), None);
            assert_eq!(read::<u64>(at(3 * PAGE - 8).cast()), Some(0));
            assert!(!write::<u64>(at(2 * PAGE - 4).cast(), u64::MAX));
            assert!(write::<u64>(at(2 * PAGE - 8).cast(), 9));
            assert_eq!(read::<u64>(at(2 * PAGE - 8).cast()), Some(9));
        }
    }

    #[test]
    fn no_address_is_special() {
        crate::os::actions::install();
        for address in [0usize, 8, 4096, 65_535, 1 << 47, 1 << 63, usize::MAX] {
            let p = address as *mut c_void;
            // SAFETY: nothing is mapped there.
            assert_eq!((readable(p, 1), unsafe { writable(p, 16) }), (0, 0), "{address:#x}");
        }
        assert_eq!(readable(usize::MAX as *const u8, 0), 0);
    }
}
