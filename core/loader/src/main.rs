//! `netacc-loader`: becomes the static program that `NETACC_STATIC_PROGRAM` names, in a process that has the library.
//!
//! `netacc_run`, and the library when a program starts another one, start it in place of a static program, with the program's
//! own arguments. Then `/proc/PID/cmdline` is right. If the program cannot be changed as a whole, it is started plainly.
//!
//! | layer | modules |
//! | --- | --- |
//! | the start | this one |
//! | calls of the program | `calls` |
//! | forks | `processes` |
//! | threads | `threads` |
//! | signals, the heap, the program in memory | `signals`, `heap`, `image` |
//! | assembly; the library's and the kernel's calls | `entry`, `library`, `kernel` |
//! | each thread's state; numbers of calls | `block`, `numbers` |
//! | the program's file and names | `program` |

#![no_main]
#![expect(unsafe_code, reason = "it runs another program in this process")]

mod block;
mod calls;
mod entry;
mod heap;
mod image;
mod kernel;
mod library;
mod numbers;
mod processes;
mod program;
mod signals;
mod threads;

use std::ffi::{c_char, c_int, CStr, CString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use netacc_loader::elf::Elf;
use netacc_loader::plan::Plan;
use netacc_loader::{Refusal, DESCRIPTOR_VARIABLE, PROGRAM_VARIABLE, REPORT_VARIABLE};

use program::Program;

type Strings = *const *const c_char;

const NO_PROGRAM_STATUS: c_int = 127;

/// Called by the C library; Rust's own start would change signal dispositions.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: Strings, envp: Strings) -> c_int {
    let start = Start { argc, argv, envp };
    let Some(name) = start.variable(PROGRAM_VARIABLE) else {
        eprintln!("netacc-loader: {PROGRAM_VARIABLE} names no program; netacc_run starts this program");
        return NO_PROGRAM_STATUS;
    };
    let mut program = Program::new(name, start.variable(DESCRIPTOR_VARIABLE));
    let refusal = match start.run(&mut program) {
        Ok(never) => match never {},
        Err(refusal) => refusal,
    };
    if start.variable(REPORT_VARIABLE).is_some() {
        let shown = name.to_string_lossy();
        eprintln!("netacc_run: {} is statically linked, and {refusal}: it stays on TCP", shown.escape_debug());
    }
    start.plainly(&program)
}

/// As the C library passes it: the arguments, the environment, and behind that the auxiliary vector.
struct Start {
    argc: c_int,
    argv: Strings,
    envp: Strings,
}

enum Never {}

impl Start {
    fn run(&self, program: &mut Program) -> Result<Never, Refusal> {
        check_machine()?;
        let guard = fault_guard().ok_or(Refusal::NoLibrary)?;
        share_descriptors().ok_or(Refusal::NoLibrary)?;
        let file = program.open().map_err(|_| Refusal::Broken)?;
        let bytes = whole(&file).ok_or(Refusal::Broken)?;
        let elf = Elf::parse_static(bytes)?;
        let plan = Plan::new(&elf)?;
        let bias = image::map(&file, &elf, &plan, entry::call as *const () as u64)?;
        let words = self.initial_words(program.name, &elf, bias);
        entry::KEEPS_VECTORS.store(u64::from(!plan.is_go), Ordering::SeqCst);
        entry::HANDLE.store(calls::handle as *const () as usize, Ordering::SeqCst);
        // SAFETY: the library's function, which takes a handler and returns its own.
        entry::FAULT.store(unsafe { guard(entry::fault as *const () as usize) }, Ordering::SeqCst);
        let first = threads::first().ok_or(Refusal::Addresses)?;
        let identity = program.take_identity(&file);
        drop(file);
        name_process(&identity.link);
        let _ = calls::PROGRAM.set(identity);
        let block = Box::leak(Box::new(first));
        block.own = block;
        // SAFETY: the block is never freed; the words are what a program expects, and its code is mapped and changed.
        unsafe {
            block::install(block);
            entry::begin(words.as_ptr(), words.len(), elf.entry.wrapping_add(bias))
        }
    }

    /// The program's stack, as the kernel would have made it.
    fn initial_words(&self, program: &CStr, elf: &Elf<'_>, bias: u64) -> Vec<u64> {
        let mut words = vec![self.argc as u64];
        words.extend(strings(self.argv).map(|string| string.as_ptr() as u64));
        words.push(0);
        words.extend(self.environment().map(|string| string as u64));
        words.push(0);
        let own = Box::leak(program.to_owned().into_boxed_c_str());
        let behind = strings(self.envp).count() + 1;
        // SAFETY: the vector follows the environment, and ends with an entry of type 0.
        let mut entry = unsafe { self.envp.add(behind) }.cast::<[u64; 2]>();
        loop {
            // SAFETY: as above.
            let [kind, value] = unsafe { *entry };
            let value = match kind {
                libc::AT_PHDR => elf.headers.0.wrapping_add(bias),
                libc::AT_PHNUM => elf.headers.1.into(),
                libc::AT_BASE => 0,
                libc::AT_ENTRY => elf.entry.wrapping_add(bias),
                libc::AT_EXECFN => own.as_ptr() as u64,
                _ => value,
            };
            words.extend([kind, value]);
            if kind == libc::AT_NULL {
                return words;
            }
            // SAFETY: as above: this entry was not the last one.
            entry = unsafe { entry.add(1) };
        }
    }

    /// Without the loader's own variables.
    fn environment(&self) -> impl Iterator<Item = *const c_char> {
        let own = |string: &'static CStr| {
            [PROGRAM_VARIABLE, REPORT_VARIABLE, DESCRIPTOR_VARIABLE].iter().any(|name| value_of(string, name).is_some())
        };
        strings(self.envp).filter(move |string| !own(string)).map(CStr::as_ptr)
    }

    fn variable(&self, name: &str) -> Option<&'static CStr> {
        strings(self.envp).find_map(|string| value_of(string, name))
    }

    /// Replaces this process by the program, by the kernel's call: the library's would choose the loader again.
    fn plainly(&self, program: &Program) -> c_int {
        let environment: Vec<_> = self.environment().chain([std::ptr::null()]).collect();
        // SAFETY: lists of strings that end with null.
        let failed = unsafe { program.replace_process(self.argv as u64, environment.as_ptr() as u64) };
        let error = std::io::Error::from_raw_os_error(-failed as c_int);
        eprintln!("netacc-loader: {}: {error}", program.name.to_string_lossy().escape_debug());
        NO_PROGRAM_STATUS
    }
}

fn strings(list: Strings) -> impl Iterator<Item = &'static CStr> {
    // SAFETY: the C library's lists end with null, and stay as long as the process.
    (0..).map_while(move |index| unsafe {
        let string = *list.add(index);
        (!string.is_null()).then(|| CStr::from_ptr(string))
    })
}

/// The part behind `name=`.
fn value_of(string: &'static CStr, name: &str) -> Option<&'static CStr> {
    let rest = string.to_bytes_with_nul().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    CStr::from_bytes_with_nul(rest).ok()
}

/// Instructions that the assembly needs.
fn check_machine() -> Result<(), Refusal> {
    const FSGSBASE: u64 = 2;
    // SAFETY: no pointers.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & FSGSBASE == 0 {
        return Err(Refusal::Machine("FSGSBASE"));
    }
    if !std::arch::is_x86_feature_detected!("xsavec") {
        return Err(Refusal::Machine("XSAVEC"));
    }
    Ok(())
}

type Guard = unsafe extern "C" fn(usize) -> usize;

/// The library's function that puts a handler before its own handler of faults; `None` without the library.
fn fault_guard() -> Option<Guard> {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"netacc_guard_through".as_ptr()) };
    // SAFETY: the library's function of this name is of this type.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, Guard>(found) })
}

type Descriptors = unsafe extern "C" fn(*mut usize) -> usize;

/// Shows the calls of the program of which descriptors the library moves the bytes; `None` without the library.
fn share_descriptors() -> Option<()> {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"netacc_descriptors".as_ptr()) };
    if found.is_null() {
        return None;
    }
    let mut count = 0;
    // SAFETY: the library's function of this name is of this type, and sets a word.
    let bits = unsafe { std::mem::transmute::<*mut libc::c_void, Descriptors>(found)(&mut count) };
    entry::MOVED.store(bits, Ordering::SeqCst);
    entry::DESCRIPTORS.store(count, Ordering::SeqCst);
    Some(())
}

/// The file's bytes, as long as the process lives.
fn whole(file: &File) -> Option<&'static [u8]> {
    let len = usize::try_from(file.metadata().ok()?.len()).ok().filter(|len| *len > 0)?;
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    // SAFETY: mapped and never unmapped. A program file does not change while it is mapped and about to run.
    (at != libc::MAP_FAILED).then(|| unsafe { std::slice::from_raw_parts(at.cast(), len) })
}

/// The name that `ps` shows.
fn name_process(program: &CStr) {
    let name = program.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    if let Ok(name) = CString::new(name) {
        // SAFETY: a C string.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
}
