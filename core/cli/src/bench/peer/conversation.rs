//! One connection's side of a ping-pong, or of a client's requests, on a non-blocking socket: whole messages in, whole
//! messages out.

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

/// The bytes of a conversation.
#[derive(Debug)]
enum Messages {
    /// Of a ping-pong, in one buffer: what is received is sent.
    Same(Vec<u8>),
    /// Of a client, whose server has to answer with the expected bytes.
    Exchange { request: Vec<u8>, expected: Vec<u8>, answer: Vec<u8> },
}

/// One end of a ping-pong, or a client. Invariant: `done` is below the length of the phase's message.
#[derive(Debug)]
pub(super) struct Conversation {
    messages: Messages,
    done: usize,
    phase: Phase,
}

impl Conversation {
    /// `size` must not be 0.
    pub(super) fn new(size: usize, phase: Phase) -> Self {
        assert!(size > 0, "a message has at least one byte");
        Conversation { messages: Messages::Same(vec![b'x'; size]), done: 0, phase }
    }

    /// A client that sends `request`, and has to receive `expected`. Neither is empty.
    pub(super) fn asking(request: Vec<u8>, expected: Vec<u8>) -> Self {
        assert!(!request.is_empty() && !expected.is_empty(), "a message has at least one byte");
        let answer = vec![0; expected.len()];
        Conversation { messages: Messages::Exchange { request, expected, answer }, done: 0, phase: Phase::Sending }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Continues the message until it is complete or the socket blocks. One system call if the message fits, as in any
    /// program that expects a fixed length.
    pub(super) fn step(&mut self, mut socket: &Socket) -> io::Result<Progress> {
        loop {
            let message = match (&mut self.messages, self.phase) {
                (Messages::Same(message), _) | (Messages::Exchange { request: message, .. }, Phase::Sending) => message,
                (Messages::Exchange { answer, .. }, Phase::Receiving) => answer,
            };
            let len = message.len();
            let rest = &mut message[self.done..];
            let moved = match self.phase {
                Phase::Receiving => socket.read(rest),
                Phase::Sending => socket.write(rest),
            };
            match moved {
                Ok(0) if self.phase == Phase::Receiving && self.done == 0 => return Ok(Progress::Closed),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.check(count)?;
                    self.done += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if self.done == len {
                self.done = 0;
                self.phase = match self.phase {
                    Phase::Receiving => Phase::Sending,
                    Phase::Sending => Phase::Receiving,
                };
                return Ok(Progress::Complete);
            }
        }
    }

    /// Compares the next `count` bytes with what is expected of a server.
    fn check(&self, count: usize) -> io::Result<()> {
        let (Messages::Exchange { expected, answer, .. }, Phase::Receiving) = (&self.messages, self.phase) else {
            return Ok(());
        };
        let span = self.done..self.done + count;
        if answer[span.clone()] == expected[span.clone()] {
            return Ok(());
        }
        let shown = answer[span].iter().take(SHOWN_BYTES).map(|byte| char::from(*byte)).collect::<String>();
        Err(io::Error::other(format!("the server answered {shown:?}")))
    }
}

/// How much of a wrong answer goes into an error.
const SHOWN_BYTES: usize = 80;

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

    /// Breaks if a client takes any answer for the right one, or waits for the rest of a shorter one.
    #[test]
    fn a_client_refuses_another_answer() {
        let (one, two) = UnixStream::pair().expect("a pair of sockets");
        let (one, mut two) = (Socket::from(OwnedFd::from(one)), Socket::from(OwnedFd::from(two)));
        one.set_nonblocking(true).expect("it can be set");
        let mut client = Conversation::asking(b"get k\r\n".to_vec(), b"STORED\r\nSTORED\r\n".to_vec());
        assert_eq!(client.step(&one).expect("room enough"), Progress::Complete);
        two.write_all(b"STORED\r\n").expect("room enough");
        assert_eq!(client.step(&one).expect("half of it"), Progress::Blocked);
        two.write_all(b"ERROR\r\n").expect("room enough");
        let error = client.step(&one).expect_err("it is another answer");
        assert!(error.to_string().contains("ERROR"), "{error}");
    }
}
