//! Numbers of descriptors while threads borrow the lowest. One test, because the numbers are those of the whole process.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use netacc_descriptors::{borrow, change, lowest, lowest_pair, raise};
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::{fcntl_dupfd_cloexec, fcntl_getfd, FdFlags};

/// Ends the threads, also if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const ROUNDS: u32 = 2000;

/// Opens a descriptor as the program does: not closed on exec.
fn open() -> i32 {
    eventfd(0, EventfdFlags::empty()).expect("an eventfd").into_raw_fd()
}

/// Breaks if a number is not lowered, or lowered while it is borrowed; if flags get lost; or if a number is closed
/// while it is borrowed, because the borrower then raises a descriptor of the program.
#[test]
#[expect(unsafe_code, reason = "plain numbers are closed")]
fn a_program_is_given_the_lowest_numbers() {
    let first = open();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let number = borrow();
                    let low = eventfd(7, EventfdFlags::CLOEXEC).expect("an eventfd");
                    let high = raise(low);
                    drop(number);
                    assert!(high.as_raw_fd() > 500);
                    let mut count = [0; 8];
                    rustix::io::read(&high, &mut count).expect("its own eventfd");
                    assert_eq!(u64::from_ne_bytes(count), 7);
                    std::thread::yield_now();
                }
            });
        }
        let _end = End(&ends);
        for round in 0..ROUNDS {
            let fd = lowest(0, open);
            assert_eq!(fd, first + 1, "round {round}");
            let mut pair = [0; 2];
            // SAFETY: a place for two numbers, which are written.
            let rc = unsafe {
                let place = &raw mut pair;
                lowest_pair(place, || {
                    *place = [open(), open()];
                    0
                })
            };
            assert_eq!((rc, pair), (0, [first + 2, first + 3]), "round {round}");
            // SAFETY: open.
            let copy_of = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            assert!(!fcntl_getfd(copy_of).expect("it is open").contains(FdFlags::CLOEXEC));
            let from = first + 3;
            let copy = lowest(from, || fcntl_dupfd_cloexec(copy_of, from).expect("a copy").into_raw_fd());
            assert_eq!(copy, first + 4, "round {round}");
            // One number more than were opened: the program may close a free one.
            for fd in first + 1..=first + 5 {
                // SAFETY: this test's own, or free.
                change(|| unsafe { libc::close(fd) });
            }
        }
    });
}
