//! The program in memory: its segments, the changes of its code, and the stubs behind it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use netacc_loader::elf::{Elf, Linking, Segment};
use netacc_loader::plan::Plan;
use netacc_loader::Refusal;

const PAGE: u64 = 4096;

/// Maps the program and changes it. Returns the distance of its addresses from those in the file.
///
/// On failure the addresses that were taken stay taken: the process is about to be replaced.
pub(crate) fn map(file: &File, elf: &Elf<'_>, plan: &Plan, entry: u64) -> Result<u64, Refusal> {
    let linking = elf.linking()?;
    let span = elf.span();
    let room = (plan.stubs.len() as u64).next_multiple_of(PAGE);
    let bias = reserve(span.start, span.end - span.start + room, elf.movable).ok_or(Refusal::Addresses)?;
    for segment in &elf.segments {
        place(file, segment, bias).ok_or(Refusal::Addresses)?;
    }
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    protect(plan.stubs_address + bias, room, writable).ok_or(Refusal::Addresses)?;
    for segment in elf.segments.iter().filter(|segment| segment.executable) {
        let pages = segment.pages();
        let (at, len) = (pages.start + bias, pages.end - pages.start);
        protect(at, len, writable).ok_or(Refusal::Addresses)?;
        for patch in plan.patches.iter().filter(|patch| pages.contains(&patch.address)) {
            write(patch.address + bias, &patch.bytes);
        }
        protect(at, len, access(segment)).ok_or(Refusal::Addresses)?;
    }
    let stubs = plan.stubs_address + bias;
    write(stubs, &plan.stubs);
    // SAFETY: the first word of the stubs, which are writable and aligned.
    unsafe { AtomicU64::from_ptr(stubs as *mut u64) }.store(entry, Ordering::SeqCst);
    protect(stubs, room, libc::PROT_READ | libc::PROT_EXEC).ok_or(Refusal::Addresses)?;
    link(&linking, bias).ok_or(Refusal::Addresses)?;
    Ok(bias)
}

/// As the program's interpreter would.
fn link(linking: &Linking, bias: u64) -> Option<()> {
    for (at, value) in &linking.words {
        write(at.wrapping_add(bias), &value.wrapping_add(bias).to_le_bytes());
    }
    match &linking.sealed {
        Some(pages) => protect(pages.start.wrapping_add(bias), pages.end - pages.start, libc::PROT_READ),
        None => Some(()),
    }
}

/// Takes the addresses, without access. The distance of the place from `start`.
fn reserve(start: u64, len: u64, movable: bool) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (at, flags) = if movable { (0, flags) } else { (start, flags | libc::MAP_FIXED_NOREPLACE) };
    // SAFETY: a fresh mapping, which replaces none.
    let place = unsafe { libc::mmap(at as *mut _, usize::try_from(len).ok()?, libc::PROT_NONE, flags, -1, 0) };
    // A kernel that does not know the flag takes the address for a wish.
    let good = place != libc::MAP_FAILED && (movable || place as u64 == start);
    good.then(|| (place as u64).wrapping_sub(start))
}

fn access(segment: &Segment) -> i32 {
    let with = |wanted: bool, flag| if wanted { flag } else { 0 };
    with(segment.readable, libc::PROT_READ)
        | with(segment.writable, libc::PROT_WRITE)
        | with(segment.executable, libc::PROT_EXEC)
}

/// Maps a segment into its reserved place: the file's bytes, then zeros.
fn place(file: &File, segment: &Segment, bias: u64) -> Option<()> {
    let pages = segment.pages();
    let file_end = segment.address + segment.file.len() as u64;
    let mut zeros_from = pages.start;
    if !segment.file.is_empty() {
        zeros_from = file_end.next_multiple_of(PAGE);
        let offset = segment.file.start as u64 & !(PAGE - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let len = usize::try_from(file_end - pages.start).ok()?;
        // SAFETY: within the reserved addresses.
        let mapped = unsafe {
            let at = (pages.start + bias) as *mut _;
            libc::mmap(at, len, access(segment), flags, file.as_raw_fd(), i64::try_from(offset).ok()?)
        };
        (mapped != libc::MAP_FAILED).then_some(())?;
        if segment.memory > segment.file.len() as u64 && segment.writable {
            let zeros = zeros_from - file_end;
            // SAFETY: the rest of the segment's last page with bytes of the file, which is writable.
            unsafe { std::ptr::write_bytes((file_end + bias) as *mut u8, 0, usize::try_from(zeros).ok()?) };
        }
    }
    if zeros_from < pages.end {
        protect(zeros_from + bias, pages.end - zeros_from, access(segment))?;
    }
    Some(())
}

fn protect(at: u64, len: u64, access: i32) -> Option<()> {
    // SAFETY: within the reserved addresses, which only this module uses yet.
    (unsafe { libc::mprotect(at as *mut _, usize::try_from(len).ok()?, access) } == 0).then_some(())
}

fn write(at: u64, bytes: &[u8]) {
    // SAFETY: within the program's pages, which are writable now, and whose code does not run yet.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}
