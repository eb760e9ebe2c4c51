//! The reset that answers bytes which came after their receiver had closed.
//!
//! Mostly it arrives before the call that has sent the bytes is over. It does not where the closing call is preempted before
//! it has let go of the socket, or where the loopback's work is left to a thread of the kernel. Two processes without
//! the library then send a second time with success, where they otherwise get EPIPE: once in 50,000 connections on a busy machine.

use std::time::{Duration, Instant};

use netacc_program::Outcome;

use super::{patience, POLL_INTERVAL};
use crate::process::Slot;
use crate::sys::{self, Fd};

/// linux/tcp_states.h.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;

/// How long the oracle waits for the acknowledgement of a write. It does not come while the peer's buffer is full.
/// Arbitrary; a few of the kernel's ticks.
const ACKNOWLEDGEMENT: Duration = Duration::from_millis(50);

fn state(fd: Fd) -> Option<u8> {
    sys::get_option::<u8>(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()
}

/// Whether a reset may arrive that makes a call that sends fail. It fails in any case after the end of its own direction.
fn may_be_reset(fd: Fd) -> bool {
    matches!(state(fd), Some(ESTABLISHED | CLOSE_WAIT))
}

/// Called before bytes are sent. Freedom "arrival": where the oracle's call failed because the connection was reset, waits for
/// the reset.
pub(super) fn await_reset(slot: &Slot, expect: Option<&Outcome>) {
    let fails = expect.is_some_and(|e| matches!(e.errno.as_deref(), Some("EPIPE" | "ECONNRESET")));
    let begun = Instant::now();
    while fails && may_be_reset(slot.fd) && begun.elapsed() < patience() {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Called after the oracle has sent bytes: waits until they are acknowledged or answered with a reset, if the peer
/// sends no more and so may have closed.
pub(super) fn await_answer(slot: &Slot) {
    let begun = Instant::now();
    let unanswered = || state(slot.fd) == Some(CLOSE_WAIT) && sys::unacknowledged(slot.fd).is_ok_and(|n| n > 0);
    while unanswered() && begun.elapsed() < ACKNOWLEDGEMENT {
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    use super::*;

    const CLOSE: u8 = 7;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        (client, listener.accept().expect("a connection").0)
    }

    fn slot_of(stream: &TcpStream) -> Slot {
        Slot { fd: stream.as_raw_fd(), end: None, cloexec: false }
    }

    #[test]
    fn a_reset_that_the_oracle_saw_is_awaited() {
        let (mut client, server) = pair();
        server.shutdown(Shutdown::Write).expect("it is connected");
        client.write_all(b"unread").expect("it is connected");
        let (begin, begun) = mpsc::channel();
        let closer = std::thread::spawn(move || {
            begun.recv().expect("the other thread lives");
            drop(server);
        });
        begin.send(()).expect("the other thread lives");
        await_reset(&slot_of(&client), Some(&Outcome::error("EPIPE".to_owned())));
        assert_eq!(state(client.as_raw_fd()), Some(CLOSE));
        closer.join().expect("it does not panic");
    }

    // Breaks if each failure of a call that sends were taken for a reset: each would cost the time limit.
    #[test]
    fn a_connection_whose_own_direction_has_ended_awaits_nothing() {
        let (client, server) = pair();
        assert!(may_be_reset(client.as_raw_fd()));
        client.shutdown(Shutdown::Write).expect("it is connected");
        assert!(!may_be_reset(client.as_raw_fd()));
        drop(server);
    }
}
