//! The variables of a thread that `calls.c` defines, which code reaches without a function of the dynamic linker.

/// Where the parts of `netacc_thread` begin, in bytes.
pub(crate) const HAZARD: usize = 0;
pub(crate) const BATCH: usize = 8;
pub(crate) const CALLS: usize = 24;

/// The address of a part of `netacc_thread`. A function that uses several of them finds the variable once.
#[inline(always)]
pub(crate) fn part<T>(offset: usize) -> *mut T {
    let thread: *mut u8 = thread_variable!("netacc_thread");
    thread.wrapping_add(offset).cast()
}

/// The address of a variable of `calls.c`, by its name. It is the same as long as the thread runs.
macro_rules! thread_variable {
    ($name:literal) => {{
        let address;
        // SAFETY: computes an address.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!(
                concat!("mov {address}, qword ptr [rip + ", $name, "@GOTTPOFF]"),
                "add {address}, qword ptr fs:[0]",
                address = out(reg) address,
                options(pure, nomem, nostack),
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!(
                concat!("adrp {offset}, :gottprel:", $name),
                concat!("ldr {offset}, [{offset}, :gottprel_lo12:", $name, "]"),
                "mrs {address}, tpidr_el0",
                "add {address}, {address}, {offset}",
                address = out(reg) address,
                offset = out(reg) _,
                options(pure, nomem, nostack),
            );
        }
        address
    }};
}

pub(crate) use thread_variable;
