//! The program's file, by its path or by a descriptor (`execveat`, `fexecve`), and how the program sees it.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::kernel;

pub(crate) struct Program {
    /// As the kernel would tell the program.
    pub(crate) name: &'static CStr,
    /// The file, if it was not named by a path. Closed when another program starts.
    descriptor: Option<OwnedFd>,
}

/// What `/proc/self/exe` is to be for the program.
pub(crate) struct Identity {
    /// The text of the link.
    pub(crate) link: CString,
    /// A path of the file.
    pub(crate) file: CString,
    /// The file, if that path is only one of a descriptor, which stays open.
    pub(crate) descriptor: Option<RawFd>,
}

impl Program {
    pub(crate) fn new(name: &'static CStr, descriptor: Option<&CStr>) -> Program {
        let number = descriptor.and_then(|text| text.to_str().ok()?.parse::<RawFd>().ok()).filter(|fd| *fd >= 0);
        // SAFETY: no pointers.
        let is_open = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
        // SAFETY: open; the process that has started this one has made it for it.
        let descriptor = number.filter(is_open).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Program { name, descriptor }
    }

    pub(crate) fn open(&self) -> io::Result<File> {
        File::open(self.path())
    }

    /// A path of the file; that of a descriptor is a link.
    fn path(&self) -> PathBuf {
        match &self.descriptor {
            Some(fd) => link_of(fd.as_raw_fd()),
            None => OsStr::from_bytes(self.name.to_bytes()).into(),
        }
    }

    /// Of the open file. A descriptor is closed if the file has a path.
    pub(crate) fn take_identity(&mut self, file: &File) -> Identity {
        let name = self.name;
        let known = |path: PathBuf| CString::new(path.into_os_string().as_bytes()).unwrap_or_else(|_| name.to_owned());
        let own = self.path();
        let path = std::fs::canonicalize(&own).ok().filter(|path| is_file(path, file));
        match (path, self.descriptor.take()) {
            (None, Some(fd)) => {
                let link = known(std::fs::read_link(&own).unwrap_or_default());
                let fd = keep(fd);
                Identity { link, file: known(link_of(fd)), descriptor: Some(fd) }
            }
            (path, _) => {
                let link = known(path.unwrap_or(own));
                Identity { file: link.clone(), link, descriptor: None }
            }
        }
    }

    /// Replaces this process by the program, by the kernel's call: the library's would choose the loader again. Returns
    /// the error.
    ///
    /// # Safety
    /// Addresses of lists of strings that end with null.
    pub(crate) unsafe fn replace_process(&self, arguments: u64, environment: u64) -> i64 {
        let (number, call) = match &self.descriptor {
            Some(fd) => {
                let path = c"".as_ptr() as u64;
                let flags = libc::AT_EMPTY_PATH as u64;
                (libc::SYS_execveat, [fd.as_raw_fd() as u64, path, arguments, environment, flags])
            }
            None => (libc::SYS_execve, [self.name.as_ptr() as u64, arguments, environment, 0, 0]),
        };
        // SAFETY: the caller's promise, and C strings.
        unsafe { kernel::call(number, call) }
    }
}

/// The link to the file of a descriptor.
fn link_of(fd: RawFd) -> PathBuf {
    format!("/proc/self/fd/{fd}").into()
}

/// Whether the file at a path is the open one.
fn is_file(path: &Path, file: &File) -> bool {
    let both = std::fs::metadata(path).ok().zip(file.metadata().ok());
    both.is_some_and(|(named, open)| (named.dev(), named.ino()) == (open.dev(), open.ino()))
}

/// Moves it to a number that is out of the way of the program's own, if it can. It stays open.
fn keep(fd: OwnedFd) -> RawFd {
    /// Arbitrary: below the usual limit of 1024.
    const FROM: RawFd = 900;
    // SAFETY: no pointers.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FROM) };
    if moved >= 0 {
        moved
    } else {
        fd.into_raw_fd()
    }
}
