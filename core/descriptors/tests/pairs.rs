//! Two descriptors that are opened while another thread borrows a number.

use std::thread;

use netacc_descriptors::{borrow, lowest_pair};

/// Breaks if a copy of an end stays open: the reader of a pipe then waits for ever for its end.
#[test]
#[expect(unsafe_code, reason = "plain numbers are read and closed")]
fn a_pipe_that_was_lowered_ends_with_its_writer() {
    let mut pair = [0; 2];
    let place = &raw mut pair;
    let open = || {
        thread::scope(|scope| scope.spawn(|| drop(borrow())).join()).expect("it borrows");
        // SAFETY: a place for two numbers.
        unsafe { libc::pipe2(place.cast(), libc::O_NONBLOCK) }
    };
    // SAFETY: `open` writes the numbers.
    assert_eq!(unsafe { lowest_pair(place, open) }, 0);
    let [reader, writer] = pair;
    let mut byte = [0];
    // SAFETY: this test's own descriptors, and one byte.
    let read = unsafe {
        libc::close(writer);
        libc::read(reader, byte.as_mut_ptr().cast(), 1)
    };
    assert_eq!(read, 0, "{}", std::io::Error::last_os_error());
}
