//! Go programs that use the C library (cgo): their Go code makes system calls itself, and these calls come to the hooks, too.
//!
//! The Go code is in the executable file. When the library is loaded, before the program runs, [`start`] makes its system
//! calls jumps, by the same plan as for static programs: see `netacc-loader` and [`netacc_loader::plan`]. Go with C uses the
//! C library's threads and thread pointer, so unlike in `netacc-loader` only the stack is switched: see [`entry`].
//!
//! Dynamic Go programs without C (position-independent ones) replace the C library's thread pointer by their own, and need no
//! library. These are for `netacc-loader`. Shared libraries that are written in Go are not changed.
//!
//! Invariant: a program is changed as a whole or not at all.

mod calls;
mod entry;
mod thread;

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use netacc_config::{Config, LogLevel};
use netacc_loader::elf::{Elf, Segment};
use netacc_loader::plan::Plan;
use netacc_loader::{is_go, Refusal};

use crate::os::inside::Inside;
use crate::os::{log, real};

const PAGE: u64 = 4096;

/// Changes the program of this process if it is Go with C. Called when the library is loaded: the program does not run yet.
///
/// For all other programs it allocates nothing.
pub(super) fn start() {
    let Some(file) = own_file() else { return };
    if is_go(file) {
        let _library = Inside::enter();
        let config = Config::load().0;
        if config.static_programs {
            match change(file) {
                Ok(()) | Err(Refusal::Static) => {}
                Err(refusal) => {
                    let text = format!("system calls of the program's Go code stay on TCP, because {refusal}");
                    log::append(&config, LogLevel::Warn, &text);
                }
            }
        }
    }
    // SAFETY: mapped by `own_file`, and not used any more.
    unsafe { libc::munmap(file.as_ptr().cast_mut().cast(), file.len()) };
}

/// The file of the program, mapped.
fn own_file() -> Option<&'static [u8]> {
    // SAFETY: a C string.
    let fd = unsafe { real::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) };
    (fd >= 0).then_some(())?;
    let file = map(fd);
    // SAFETY: opened above.
    unsafe { real::close(fd) };
    file
}

fn map(fd: RawFd) -> Option<&'static [u8]> {
    // SAFETY: all-zero is a valid status.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is writable.
    (unsafe { libc::fstat(fd, &mut status) } == 0).then_some(())?;
    let len = usize::try_from(status.st_size).ok().filter(|len| *len > 0)?;
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
    // SAFETY: mapped, until `start` ends. The file of a program that runs does not change.
    (at != libc::MAP_FAILED).then(|| unsafe { std::slice::from_raw_parts(at.cast(), len) })
}

fn change(file: &[u8]) -> Result<(), Refusal> {
    let elf = Elf::parse(file)?;
    if !elf.needs_libraries {
        return Err(Refusal::Static);
    }
    let bias = bias_of(&elf).ok_or(Refusal::Broken)?;
    let room = Stubs::near(&elf, bias).ok_or(Refusal::Addresses)?;
    // SAFETY: the plan reads words that the file has, in segments that are mapped.
    let word_at = |address: u64| unsafe { (address.wrapping_add(bias) as *const u64).read_unaligned() };
    let plan = Plan::in_memory(&elf, bias, word_at, room.address.wrapping_sub(bias))?;
    entry::prepare();
    room.fill(&plan.stubs)?;
    for segment in elf.segments.iter().filter(|segment| segment.executable) {
        write(segment, &plan, bias)?;
    }
    std::mem::forget(room);
    Ok(())
}

/// The distance of the program's addresses from those in the file; `None` if the process's program is not this file.
fn bias_of(elf: &Elf<'_>) -> Option<u64> {
    // SAFETY: no pointers.
    let [headers, count, entry] =
        [libc::AT_PHDR, libc::AT_PHNUM, libc::AT_ENTRY].map(|kind| unsafe { libc::getauxval(kind) });
    let bias = headers.wrapping_sub(elf.headers.0);
    (count == u64::from(elf.headers.1) && entry == elf.entry.wrapping_add(bias)).then_some(bias)
}

/// Addresses near the program, for the stubs. Given back when it is dropped.
struct Stubs {
    address: u64,
}

impl Stubs {
    /// More than enough: Go's runtime and its packages have about fifty system calls of some thirty bytes.
    const BYTES: u64 = 16 << 10;

    /// The first free place below the program: above it is the heap.
    fn near(elf: &Elf<'_>, bias: u64) -> Option<Stubs> {
        /// A jump reaches 2 GiB.
        const FARTHEST: u64 = 1 << 30;
        let begin = elf.span().start.wrapping_add(bias);
        let distances = std::iter::successors(Some(Stubs::BYTES), |distance| Some(distance * 2));
        distances.take_while(|distance| *distance < FARTHEST.min(begin)).find_map(|distance| {
            let wanted = (begin - distance) as *mut c_void;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a fresh mapping, which replaces none.
            let at = unsafe { libc::mmap(wanted, Stubs::BYTES as usize, access, flags, -1, 0) };
            (at != libc::MAP_FAILED).then_some(())?;
            let stubs = Stubs { address: at as u64 };
            // A kernel that does not know the flag takes the address for a wish.
            (at == wanted).then_some(stubs)
        })
    }

    fn fill(&self, stubs: &[u8]) -> Result<(), Refusal> {
        if stubs.len() as u64 > Stubs::BYTES {
            return Err(Refusal::Addresses);
        }
        let place = self.address as *mut u8;
        // SAFETY: writable, and long enough; the first bytes are for the address to which the stubs jump.
        unsafe {
            std::ptr::copy_nonoverlapping(stubs.as_ptr(), place, stubs.len());
            place.cast::<usize>().write(entry::call as *const () as usize);
        }
        protect(self.address, Stubs::BYTES, libc::PROT_READ | libc::PROT_EXEC)
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        // SAFETY: mapped by `near`; nothing jumps there.
        unsafe { libc::munmap(self.address as *mut c_void, Stubs::BYTES as usize) };
    }
}

/// Writes the changes of a segment's code. The process ends if the code cannot be made executable again.
fn write(segment: &Segment, plan: &Plan, bias: u64) -> Result<(), Refusal> {
    let pages = segment.pages();
    let (at, len) = (pages.start.wrapping_add(bias), pages.end - pages.start);
    protect(at, len, libc::PROT_READ | libc::PROT_WRITE)?;
    for patch in plan.patches.iter().filter(|patch| pages.contains(&patch.address)) {
        let place = patch.address.wrapping_add(bias) as *mut u8;
        // SAFETY: code of the program, which is writable now and does not run yet.
        unsafe { std::ptr::copy_nonoverlapping(patch.bytes.as_ptr(), place, patch.bytes.len()) };
    }
    if protect(at, len, libc::PROT_READ | libc::PROT_EXEC).is_err() {
        give_up();
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the program ends here")]
fn give_up() -> ! {
    eprintln!("netacc: the kernel does not let changed code run; NACC_STATIC=0 leaves the program as it is");
    std::process::abort()
}

fn protect(at: u64, len: u64, access: c_int) -> Result<(), Refusal> {
    let Ok(len) = usize::try_from(len) else { return Err(Refusal::Addresses) };
    // SAFETY: pages of the program, or of the stubs.
    let done = unsafe { libc::mprotect((at & !(PAGE - 1)) as *mut c_void, len, access) } == 0;
    if done {
        Ok(())
    } else {
        Err(Refusal::Addresses)
    }
}
