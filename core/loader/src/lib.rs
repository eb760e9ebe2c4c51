//! Programs without a C library of their own process: Go, musl and other static programs, on links.
//!
//! Nothing can be preloaded into a static program, and its system calls do not pass through a library. So another program,
//! `netacc-loader`, starts with the library preloaded, maps the static program into its own process, and makes each `syscall`
//! instruction of it a jump to the library. The library itself does so for the Go code of dynamic programs. This crate's
//! library part decides what to change, and changes nothing:
//!
//! | layer | modules |
//! | --- | --- |
//! | the changes of a program, or the reason against it | [`plan`] |
//! | moving instructions to another place | [`relocate`] |
//! | system calls in code, and where it is entered indirectly | [`sites`], [`indirect`] |
//! | the file's headers; the functions of Go, and of the unwinder's frames; pieces of the file; lengths of instructions; numbers of calls; arguments of `clone3` | [`elf`], `go`, `frames`, [`code`], [`decode`], `library_calls`, [`clone3`] |
//!
//! Invariant: a program is changed as a whole or not at all. A call that stayed in a changed program would act on the
//! kernel's socket beneath a link, and bytes would be lost.

pub mod clone3;
pub mod code;
pub mod decode;
pub mod elf;
mod frames;
mod go;
pub mod indirect;
#[cfg(target_arch = "x86_64")]
pub mod library_calls;
pub mod plan;
pub mod relocate;
pub mod sites;

/// The variable that names the static program to `netacc-loader`. The program itself does not get it.
pub const PROGRAM_VARIABLE: &str = "NETACC_STATIC_PROGRAM";

/// If it is set, the number of a descriptor of the static program's file, which `netacc-loader` closes; then
/// [`PROGRAM_VARIABLE`] is the program's name alone. The program itself does not get it.
pub const DESCRIPTOR_VARIABLE: &str = "NETACC_STATIC_DESCRIPTOR";

/// Whether a file is a program for this processor that needs no shared library, by its headers. `read` fills bytes from an offset, or
/// returns that it cannot. Needs no memory.
pub fn is_static(read: impl Fn(&mut [u8], u64) -> bool) -> bool {
    elf::is_static(read)
}

/// Whether a file is a Go program, by the names of its sections. Needs no memory.
pub fn is_go(file: &[u8]) -> bool {
    go::is_go(file)
}

/// If it is set, `netacc-loader` prints why a program runs plainly. The program itself does not get it.
pub const REPORT_VARIABLE: &str = "NETACC_STATIC_REPORT";

/// Why a program runs plainly, on TCP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another word size, byte order or processor, or no program at all.
    #[error("it is not an x86-64 program")]
    OtherProcessor,
    /// An offset lies outside of the file, or segments overlap.
    #[error("its ELF headers are damaged or unusual")]
    Broken,
    /// It needs shared libraries, so the library can be preloaded.
    #[error("it is dynamically linked")]
    Dynamic,
    /// It needs no shared libraries, so `netacc-loader` can run it.
    #[error("it needs no shared libraries")]
    Static,
    /// No system call was found.
    #[error("no system call was found in it")]
    NoSites,
    /// It is Go, of a version whose table of functions is not known.
    #[error("its table of functions is not known")]
    NoTable,
    /// The instructions around a system call cannot be moved.
    #[error("the system call at {0:#x} cannot be replaced")]
    Site(u64),
    /// The bytes around a system call are no code.
    #[error("the system call at {0:#x} may be data among code")]
    Doubtful(u64),
    /// The addresses are not free.
    #[error("its addresses are taken in the loader's process")]
    Addresses,
    /// The loader has been started without the library.
    #[error("the library is not preloaded")]
    NoLibrary,
    /// The processor or the kernel lacks an instruction.
    #[error("this processor or kernel lacks {0}")]
    Machine(&'static str),
}
