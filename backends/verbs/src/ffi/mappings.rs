//! Mappings of a file, which keep it open like descriptors.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::RawFd;

/// A file, as mappings name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    major: u32,
    minor: u32,
    inode: u64,
}

impl FileId {
    pub(super) fn of(fd: RawFd) -> Option<FileId> {
        let mut found = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the structure is writable.
        if unsafe { libc::fstat(fd, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call has filled it.
        let found = unsafe { found.assume_init() };
        Some(FileId { major: libc::major(found.st_dev), minor: libc::minor(found.st_dev), inode: found.st_ino })
    }
}

/// Puts memory of nobody's in place of all mappings of a file in this process, at the same addresses: whoever still writes there
/// does no harm.
pub(super) fn replace(file: FileId) -> io::Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    for Range { start, end } in maps.lines().filter_map(|line| range_of(line, file)) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the range is one mapping of the device's file, whose users write doorbells there and keep no references.
        let placed = unsafe { libc::mmap(start as *mut libc::c_void, end - start, protection, flags, -1, 0) };
        if placed == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The range of a line of /proc/PID/maps, if it is of this file: `START-END RIGHTS OFFSET MAJOR:MINOR INODE PATH`.
fn range_of(line: &str, file: FileId) -> Option<Range<usize>> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let hex = |text| u32::from_str_radix(text, 16).ok();
    let found = FileId { major: hex(major)?, minor: hex(minor)?, inode };
    let address = |text| usize::from_str_radix(text, 16).ok();
    (found == file).then_some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::ptr;

    use super::*;

    #[test]
    fn a_line_is_of_one_file() {
        let line = "7ff0fd2c3000-7ff0fd2c4000 -w-s 00002000 00:05 110          /dev/infiniband/uverbs0 (deleted)";
        let file = FileId { major: 0, minor: 5, inode: 110 };
        assert_eq!(range_of(line, file), Some(0x7ff0_fd2c_3000..0x7ff0_fd2c_4000));
        for other in [FileId { minor: 6, ..file }, FileId { major: 1, ..file }, FileId { inode: 11, ..file }] {
            assert_eq!(range_of(line, other), None);
        }
        assert_eq!(range_of("", file), None);
    }

    /// Breaks if a device that is taken away stays half there, as eRDMA's doorbells are mapped until the process ends.
    #[test]
    fn a_file_whose_mappings_are_replaced_is_released() {
        const LEN: usize = 4096;
        let kept = tempfile::tempfile().expect("a file");
        let mapped = tempfile::tempfile().expect("a file");
        let map = |file: &fs::File| {
            file.set_len(LEN as u64).expect("its length");
            let protection = libc::PROT_WRITE | libc::PROT_READ;
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(ptr::null_mut(), LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u8>()
        };
        let (ours, other) = (map(&mapped), map(&kept));
        let is_mapped = |file: &fs::File| {
            let file = FileId::of(file.as_raw_fd()).expect("a file");
            fs::read_to_string("/proc/self/maps").expect("read").lines().any(|line| range_of(line, file).is_some())
        };
        assert!(is_mapped(&mapped));
        replace(FileId::of(mapped.as_raw_fd()).expect("a file")).expect("replaced");
        assert!(!is_mapped(&mapped) && is_mapped(&kept));
        // SAFETY: both addresses are mapped and writable.
        unsafe {
            ours.write_volatile(1);
            other.write_volatile(2);
        }
        let mut first = [0; 1];
        for (file, expected) in [(&mapped, 0), (&kept, 2)] {
            std::os::unix::fs::FileExt::read_exact_at(file, &mut first, 0).expect("a byte");
            assert_eq!(first[0], expected);
        }
        // SAFETY: mapped above, and used by nobody any more.
        unsafe {
            libc::munmap(ours.cast(), LEN);
            libc::munmap(other.cast(), LEN);
        }
    }
}
