//! The sockets of another process, which are found one by one: a process may have many.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::Relations;

/// A process's descriptors, by their names in `/proc/<pid>/fd` when the visit began. One that has been closed
/// meanwhile is no socket any more.
pub(super) struct Visit {
    pub(super) pid: u32,
    folder: PathBuf,
    left: std::vec::IntoIter<OsString>,
}

impl Visit {
    /// Lists the descriptors. `Ok(None)`: they may not be read.
    ///
    /// # Errors
    /// The list cannot be read for another reason, such as a lack of descriptors here.
    pub(super) fn begin(pid: u32) -> Result<Option<Visit>, ErrorKind> {
        let folder = PathBuf::from(format!("/proc/{pid}/fd"));
        let names = match netacc_descriptors::read_names(&folder) {
            Ok(names) => names,
            Err(error) => match error.raw_os_error() {
                // It has ended, or has no descriptors.
                Some(libc::ENOENT | libc::ESRCH) => Vec::new(),
                Some(libc::EACCES | libc::EPERM) => match Relations::of(pid) {
                    Some(process) if process.has_no_descriptors() => Vec::new(),
                    _ => return Ok(None),
                },
                _ => return Err(error.kind()),
            },
        };
        Ok(Some(Visit { pid, folder, left: names.into_iter() }))
    }
}

/// The number of the socket behind each descriptor; `None` if it is something else.
impl Iterator for Visit {
    type Item = Option<u64>;

    fn next(&mut self) -> Option<Option<u64>> {
        let link = std::fs::read_link(self.folder.join(self.left.next()?));
        let number =
            link.ok().and_then(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::holders::socket_number;

    #[test]
    fn the_sockets_of_a_process_are_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let number = socket_number(socket.as_raw_fd()).expect("a socket");
        let own = || Visit::begin(std::process::id()).expect("readable").expect("it is this process");
        assert_eq!(own().filter(|found| *found == Some(number)).count(), 1);
        assert!(own().any(|found| found.is_none()), "the folder of the list itself, at least");
        let mut visit = own();
        drop(socket);
        assert!(visit.all(|found| found != Some(number)), "it has been closed since the list was made");
        // No process has this number.
        assert_eq!(Visit::begin(u32::MAX - 1).map(|visit| visit.map(Iterator::count)), Ok(Some(0)));
    }
}
