//! The file of a program, as far as `netacc_run` reads it: opened once, and its first bytes read once.

use std::fs::{File, Metadata};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The bytes that are read at once: most programs have all their program headers in them.
const HEAD_BYTES: usize = 1024;

/// A file that is open for reading.
pub(super) struct Executable {
    file: File,
    metadata: Metadata,
    head: [u8; HEAD_BYTES],
    /// The bytes of `head` that the file has.
    head_len: usize,
}

impl Executable {
    /// Opens the file at `path`; `None` if it is unreadable.
    pub(super) fn open(path: &Path) -> Option<Self> {
        // musl's `open` sets the flag in a second system call.
        let file: File = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?.into();
        let metadata = file.metadata().ok()?;
        let mut head = [0; HEAD_BYTES];
        let head_len = read_some(&file, &mut head, 0)?;
        Some(Self { file, metadata, head, head_len })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The first bytes.
    pub(super) fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    /// Fills `bytes` from a place of the file. Returns whether the file has so many.
    pub(super) fn fill(&self, bytes: &mut [u8], at: u64) -> bool {
        let known = usize::try_from(at).ok().and_then(|at| self.head().get(at..)?.get(..bytes.len()));
        match known {
            Some(known) => {
                bytes.copy_from_slice(known);
                true
            }
            None => self.file.read_exact_at(bytes, at).is_ok(),
        }
    }

    /// This number of bytes from that offset; `None` if the file has fewer.
    pub(super) fn read(&self, at: u64, len: u64) -> Option<Vec<u8>> {
        at.checked_add(len).filter(|end| *end <= self.metadata.len())?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.fill(&mut bytes, at).then_some(bytes)
    }

    /// Reads from a place of the file up to its end, and at most as many as `bytes` has. Returns how many.
    pub(super) fn read_up_to(&self, bytes: &mut [u8], at: u64) -> Option<usize> {
        if self.head_len == HEAD_BYTES && at.saturating_add(bytes.len() as u64) <= HEAD_BYTES as u64 {
            return self.fill(bytes, at).then_some(bytes.len());
        }
        read_some(&self.file, bytes, at)
    }
}

fn read_some(file: &File, bytes: &mut [u8], at: u64) -> Option<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], at + len as u64).ok()? {
            0 => break,
            more => len += more,
        }
    }
    Some(len)
}
