//! Standard I/O on our descriptors. The C library reads, writes and closes them inside itself, where nothing is
//! interposed; so a descriptor that gets a `FILE` is left to the kernel, and a formatted write is formatted here.

use std::ffi::{c_char, c_int, c_void};

use libc::FILE;

use crate::ops::message::{single, Target};
use crate::ops::{ending, io};
use crate::os::errno::{errno, set_errno};
use crate::table;

/// A formatting function: allocates the text, as `vasprintf` does.
pub trait Format: FnOnce(*mut *mut c_char) -> c_int {}

impl<F: FnOnce(*mut *mut c_char) -> c_int> Format for F {}

/// `vdprintf`: formats, then writes all of it.
pub fn print(t: Target<'_>, format: impl Format) -> c_int {
    let mut text = std::ptr::null_mut();
    let len = format(&mut text);
    if len < 0 {
        return -1;
    }
    let mut done = 0usize;
    while done < len as usize {
        let v = single(text.wrapping_add(done).cast(), len as usize - done);
        // SAFETY: the text has `len` bytes, and `done` of them are written.
        let n = unsafe { io::send_in_steps(t.entry, t.sock, t.fd, &[v], 0) };
        if n < 0 {
            break;
        }
        done += n as usize;
    }
    let saved = errno();
    // SAFETY: allocated by the formatting function.
    unsafe { libc::free(text.cast::<c_void>()) };
    set_errno(saved);
    if done == len as usize {
        len
    } else {
        -1
    }
}

/// Before `fclose`, which closes the descriptor unseen.
///
/// # Safety
/// `stream` is an open stream.
pub unsafe fn before_close(stream: *mut FILE) {
    let saved = errno();
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::fileno(stream) };
    if table::get(fd).is_some() {
        ending::forget(fd);
    }
    set_errno(saved);
}
