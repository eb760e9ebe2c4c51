//! `sendfile` and `splice`.
//!
//! While the connection is on the kernel path a non-blocking `sendfile` is the kernel's own, made with the stream
//! locked so that what it moved is counted before anything else can happen. Otherwise the file is read in pieces and
//! sent like any bytes. The file's position, or the caller's offset, moves by exactly the number of sent bytes:
//! pieces are read with `pread`, so a partial send loses nothing.
//!
//! `splice` moves pages between a pipe and the kernel's socket, and a pipe cannot be read without consuming; so it
//! takes the connection off its link for good.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

use libc::{off64_t, off_t};
use netacc_driver::Endpoint;
use netacc_proto::{Reason, TxSink};

use crate::ops::io;
use crate::ops::message::{single, Target};
use crate::os::asleep::asleep;
use crate::os::errno::{errno, fail, set_errno};
use crate::os::limits::MAX_BYTES;
use crate::os::{access, real};
use crate::runtime::{self, in_kernel, Runtime};
use crate::table::{self, Entry};

/// Bytes read from a file at a time. Arbitrary: a ring's length by default.
const PIECE: usize = 64 << 10;

/// `sendfile` to a connection.
///
/// # Safety
/// As the C function.
pub unsafe fn sendfile(t: Target<'_>, from: c_int, offset: *mut off_t, count: usize) -> isize {
    if t.stays_on_kernel() {
        // SAFETY: as the C function.
        let n = in_kernel(|| asleep(|| unsafe { real::sendfile(t.fd, from, offset, count) }));
        if n > 0 {
            io::account_kernel(t.sock, n as usize, 0);
        }
        return n;
    }
    // SAFETY: any bytes are an offset.
    let given = unsafe { access::read(offset) };
    if given.is_none() && !offset.is_null() {
        return fail(libc::EFAULT);
    }
    let mut position = match start(from, given) {
        Ok(_) if count > isize::MAX as usize => return fail(libc::EINVAL),
        Ok(position) => position,
        Err(e) => return fail(e),
    };
    let n = send_pieces(t, from, &mut position, count.min(MAX_BYTES));
    if !offset.is_null() {
        let saved = errno();
        // The kernel writes the position back whatever the result of the call, and fails the call if it
        // cannot. SAFETY: as the C function.
        if !unsafe { access::write(offset, position) } {
            return fail(libc::EFAULT);
        }
        set_errno(saved);
    } else if n > 0 {
        // SAFETY: no pointers. An earlier seek succeeded, so this one does.
        unsafe { libc::lseek(from, position, libc::SEEK_SET) };
    }
    n
}

/// Where to read first. Sources that cannot be read at a position are refused as the kernel refuses them.
fn start(from: c_int, offset: Option<off_t>) -> Result<off_t, c_int> {
    // SAFETY: all-zero is a valid stat; it is writable.
    let kind = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(from, &mut stat) != 0 {
            return Err(libc::EBADF);
        }
        stat.st_mode & libc::S_IFMT
    };
    if !matches!(kind, libc::S_IFREG | libc::S_IFBLK | libc::S_IFCHR) {
        return Err(libc::EINVAL);
    }
    match offset {
        Some(offset) if offset < 0 => Err(libc::EINVAL),
        Some(offset) => Ok(offset),
        // SAFETY: no pointers.
        None => match unsafe { libc::lseek(from, 0, libc::SEEK_CUR) } {
            position if position >= 0 => Ok(position),
            _ => Err(libc::EINVAL),
        },
    }
}

/// Sends from `position` on, and advances it by the number of sent bytes. Returns that number, or -1 with errno.
fn send_pieces(t: Target<'_>, from: c_int, position: &mut off_t, count: usize) -> isize {
    let endpoint = runtime::get().and_then(Runtime::endpoint);
    let mut buf = Vec::new();
    let mut done = 0usize;
    while done < count {
        let left = count - done;
        let kernel = endpoint.and_then(|endpoint| kernel_sendfile(t, endpoint, from, *position, left));
        let (n, wanted) = match kernel {
            Some(n) => (n, left),
            None => {
                if buf.is_empty() {
                    buf.resize(left.min(PIECE), 0u8);
                }
                let len = left.min(buf.len());
                // SAFETY: the buffer is writable and has `len` bytes.
                let n = unsafe { libc::pread(from, buf.as_mut_ptr().cast(), len, *position) };
                if n <= 0 {
                    (n, len)
                } else {
                    let more = if n as usize == left { 0 } else { libc::MSG_MORE };
                    let v = single(buf.as_ptr().cast(), n as usize);
                    // SAFETY: the buffer is readable and has `n` bytes.
                    (unsafe { io::send_in_steps(t.entry, t.sock, t.fd, &[v], more) }, len)
                }
            }
        };
        if n <= 0 && done == 0 {
            return n;
        }
        done += n.max(0) as usize;
        *position += n.max(0) as off_t;
        if n < wanted as isize {
            if !t.sock.options.cork.load(Ordering::Relaxed) {
                // No more bytes follow after all.
                t.sock.push_corked();
            }
            break;
        }
    }
    done as isize
}

/// The kernel's own `sendfile`, if the stream is on the kernel path and the call cannot block on the socket.
fn kernel_sendfile(t: Target<'_>, endpoint: &Endpoint, from: c_int, position: off_t, count: usize) -> Option<isize> {
    let cell = t.sock.stream.as_ref()?;
    if !t.sock.never_waits() {
        return None;
    }
    let mut guard = cell.lock(endpoint);
    if guard.tx_sink() != TxSink::Anchor {
        return None;
    }
    let mut position = position;
    // SAFETY: the offset is writable.
    let n = in_kernel(|| unsafe { real::sendfile(t.fd, from, &mut position, count) });
    if n > 0 {
        guard.anchor_sent(n as usize);
    }
    Some(n)
}

/// `splice`. Either end may be ours.
///
/// # Safety
/// As the C function.
pub unsafe fn splice(
    (from, from_offset): (c_int, *mut off64_t),
    (to, to_offset): (c_int, *mut off64_t),
    len: usize,
    flags: c_uint,
) -> isize {
    let ends = [from, to].map(table::get_full);
    for (entry, fd) in ends.iter().zip([from, to]) {
        let Some(entry) = entry else { continue };
        let Entry::Stream(sock) = &**entry else { continue };
        if !(Target { entry, sock, fd }).to_kernel(Reason::KernelOnly) {
            // On this error programs read and write instead.
            return fail(libc::EINVAL);
        }
    }
    // SAFETY: as the C function.
    let n = in_kernel(|| asleep(|| unsafe { real::splice(from, from_offset, to, to_offset, len, flags) }));
    if n > 0 {
        let [from, to] = &ends;
        if let Some(Entry::Stream(sock)) = from.as_deref() {
            io::account_kernel(sock, 0, n as usize);
        }
        if let Some(Entry::Stream(sock)) = to.as_deref() {
            io::account_kernel(sock, n as usize, 0);
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn sources_are_judged_as_the_kernel_does() {
        let mut file = tempfile();
        file.write_all(b"0123456789").expect("a temporary file can be written");
        file.seek(SeekFrom::Start(4)).expect("it can be sought");
        assert_eq!(start(file.as_raw_fd(), None), Ok(4));
        assert_eq!(start(file.as_raw_fd(), Some(7)), Ok(7));
        assert_eq!(start(file.as_raw_fd(), Some(-1)), Err(libc::EINVAL));
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
        assert_eq!(start(reader.as_raw_fd(), None), Err(libc::EINVAL));
        assert_eq!(start(-1, None), Err(libc::EBADF));
    }

    fn tempfile() -> std::fs::File {
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a C string; the descriptor is new and owned by the file from here on.
        unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"netacc-test".as_ptr(), 0)) }
    }
}
