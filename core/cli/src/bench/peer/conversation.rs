//! One connection's side of a ping-pong on a non-blocking socket: whole messages in, whole messages
//! out.

use std::io::{self, ErrorKind, Read, Write};

use socket2::Socket;

/// The step of one end in the current message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Receiving,
    Sending,
}

/// The progress of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The message is complete; the phase has changed to the other one.
    Complete,
    /// The socket blocks: wait for it.
    Blocked,
    /// The peer is gone, between messages.
    Closed,
}

/// One end of a ping-pong. Invariant: `done < message.len()`.
#[derive(Debug)]
pub(super) struct Conversation {
    message: Vec<u8>,
    done: usize,
    phase: Phase,
}

impl Conversation {
    /// `size` must not be 0.
    pub(super) fn new(size: usize, phase: Phase) -> Self {
        assert!(size > 0, "a message has at least one byte");
        Conversation { message: vec![b'x'; size], done: 0, phase }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Continues the message until it is complete or the socket blocks. One system call if the message fits, as in any
    /// program that expects a fixed length.
    pub(super) fn step(&mut self, mut socket: &Socket) -> io::Result<Progress> {
        loop {
            let rest = &mut self.message[self.done..];
            let moved = match self.phase {
                Phase::Receiving => socket.read(rest),
                Phase::Sending => socket.write(rest),
            };
            match moved {
                Ok(0) if self.phase == Phase::Receiving && self.done == 0 => return Ok(Progress::Closed),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if self.done == self.message.len() {
                self.done = 0;
                self.phase = match self.phase {
                    Phase::Receiving => Phase::Sending,
                    Phase::Sending => Phase::Receiving,
                };
                return Ok(Progress::Complete);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_arrive_whole_and_the_end_is_detected() {
        let (one, two) = UnixStream::pair().expect("a pair of sockets");
        let (one, two) = (Socket::from(OwnedFd::from(one)), Socket::from(OwnedFd::from(two)));
        one.set_nonblocking(true).expect("it can be set");
        two.set_nonblocking(true).expect("it can be set");
        let mut sender = Conversation::new(100, Phase::Sending);
        let mut receiver = Conversation::new(100, Phase::Receiving);
        assert_eq!(receiver.step(&two).expect("nothing there"), Progress::Blocked);
        assert_eq!(sender.step(&one).expect("room enough"), Progress::Complete);
        assert_eq!(sender.phase(), Phase::Receiving);
        assert_eq!(receiver.step(&two).expect("all there"), Progress::Complete);
        assert_eq!(receiver.step(&two).expect("room enough"), Progress::Complete);
        assert_eq!(sender.step(&one).expect("all there"), Progress::Complete);
        drop(one);
        assert_eq!(receiver.step(&two).expect("an orderly end"), Progress::Closed);
    }
}
