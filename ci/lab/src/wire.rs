//! The protocol on a virtio serial port: frames, in sessions.
//!
//! A port outlives the programs that use it from this side, and one of them may end in the middle of a frame. So a
//! session begins with enough zeros to complete a frame that was cut short, each frame carries the random number of its
//! session, and a reader skips bytes that do not begin with [`MAGIC`].
//!
//! frame: magic, session (8), kind (1), length (4), payload; integers are little-endian.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

const MAGIC: [u8; 4] = *b"NLab";
const HEADER: usize = 17;

/// The largest payload.
pub(crate) const MAX_PAYLOAD: usize = 32 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// To the guest: a piece of a [`Request`], and its last piece.
    RequestPart = 1,
    Request = 2,
    /// To the guest: input of the command, at most one piece before the next [`Kind::StdinTaken`]; empty at its end.
    Stdin = 3,
    /// To the guest: `rows columns` as two u16.
    Resize = 4,
    /// To the guest: a signal number for the command's process group.
    Signal = 5,
    /// From the guest.
    Stdout = 16,
    Stderr = 17,
    StdinTaken = 18,
    /// From the guest, the last frame of a session: an [`Answer`].
    Answer = 19,
}

impl Kind {
    fn from_wire(byte: u8) -> Option<Kind> {
        use Kind::*;
        [RequestPart, Request, Stdin, Resize, Signal, Stdout, Stderr, StdinTaken, Answer]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The request of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Reports whether the guest is set up.
    Report,
    /// Run a command. Bytes, because they need not be UTF-8.
    Run {
        argv: Vec<Vec<u8>>,
        env: Vec<(Vec<u8>, Vec<u8>)>,
        cwd: Vec<u8>,
        /// Rows and columns, for a command that gets a terminal.
        terminal: Option<(u16, u16)>,
    },
    /// Write all data back and switch off. There is no answer.
    PowerOff,
}

/// How a session ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The guest is set up, or the reason why it is not.
    Report { problem: Option<String> },
    /// The command's status, 128 + the signal that ended it, or 126/127 as shells have them.
    Ended { status: u8 },
    /// The request is invalid.
    Refused { why: String },
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) session: u64,
    pub(crate) kind: Kind,
    pub(crate) payload: Vec<u8>,
}

/// One frame as bytes. The payload is at most [`MAX_PAYLOAD`].
pub(crate) fn encode(session: u64, kind: Kind, payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() <= MAX_PAYLOAD, "callers cut their payloads");
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&session.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Opens a session: completes a frame that a predecessor may have left unfinished, then sends the request.
pub(crate) fn open(port: &mut impl Write, session: u64, request: &Request) -> io::Result<()> {
    port.write_all(&[0; HEADER + MAX_PAYLOAD])?;
    let request = serde_json::to_vec(request)?;
    let mut pieces = request.chunks(MAX_PAYLOAD).peekable();
    while let Some(piece) = pieces.next() {
        let kind = if pieces.peek().is_some() { Kind::RequestPart } else { Kind::Request };
        port.write_all(&encode(session, kind, piece))?;
    }
    Ok(())
}

/// Takes frames out of a stream of bytes.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    source: R,
    buffer: Vec<u8>,
    /// The part of `buffer` that has been consumed.
    taken: usize,
}

impl<R: Read> Frames<R> {
    pub(crate) fn new(source: R) -> Self {
        Frames { source, buffer: Vec::new(), taken: 0 }
    }

    /// The source of the bytes.
    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// Drops an unfinished frame.
    pub(crate) fn forget(&mut self) {
        self.buffer.clear();
        self.taken = 0;
    }

    /// The next frame, or `None` at the end of the stream. A port may be read again after `None`.
    pub(crate) fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take_buffered() {
                return Ok(Some(frame));
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            let mut more = [0; 16 << 10];
            let count = match self.source.read(&mut more) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if count == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(&more[..count]);
        }
    }

    fn take_buffered(&mut self) -> Option<Frame> {
        loop {
            let rest = &self.buffer[self.taken..];
            let header = rest.get(..HEADER)?;
            let len = u32::from_le_bytes(header[13..17].try_into().expect("four bytes")) as usize;
            let kind = Kind::from_wire(header[12]);
            let (true, Some(kind), true) = (header[..4] == MAGIC, kind, len <= MAX_PAYLOAD) else {
                self.taken += 1;
                continue;
            };
            let payload = rest.get(HEADER..HEADER + len)?.to_vec();
            let session = u64::from_le_bytes(header[4..12].try_into().expect("eight bytes"));
            self.taken += HEADER + len;
            return Some(Frame { session, kind, payload });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(bytes: &[u8], step: usize) -> Vec<(u64, Kind, Vec<u8>)> {
        struct Slow<'a>(&'a [u8], usize);
        impl Read for Slow<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let count = self.0.len().min(self.1).min(out.len());
                out[..count].copy_from_slice(&self.0[..count]);
                self.0 = &self.0[count..];
                Ok(count)
            }
        }
        let mut frames = Frames::new(Slow(bytes, step));
        let mut all = Vec::new();
        while let Some(frame) = frames.next_frame().expect("reading memory") {
            all.push((frame.session, frame.kind, frame.payload));
        }
        all
    }

    #[test]
    fn frames_survive_being_read_in_pieces() {
        let mut bytes = encode(7, Kind::Stdout, b"hello");
        bytes.extend(encode(7, Kind::Answer, &[b'x'; MAX_PAYLOAD]));
        for step in [1, 3, 4096] {
            let frames = collect(&bytes, step);
            assert_eq!(frames.len(), 2);
            assert_eq!(frames[0], (7, Kind::Stdout, b"hello".to_vec()));
            assert_eq!(frames[1].2.len(), MAX_PAYLOAD);
        }
    }

    /// Breaks if a client that was killed in the middle of a frame made a port useless for the next one.
    #[test]
    fn a_new_session_is_understood_after_a_frame_that_was_cut_anywhere() {
        let old = encode(1, Kind::Stdin, &[b'i'; 1000]);
        for cut in [0, 1, 3, 4, 12, 16, 17, 18, 500, 1016] {
            let mut bytes = old[..cut].to_vec();
            open(&mut bytes, 2, &Request::Report).expect("writing memory");
            let frames = collect(&bytes, 4096);
            let last = frames.last().expect("the new session");
            assert_eq!((last.0, last.1), (2, Kind::Request), "cut at {cut}");
            assert_eq!(serde_json::from_slice::<Request>(&last.2).expect("JSON"), Request::Report);
        }
    }

    #[test]
    fn noise_and_lengths_beyond_the_bound_are_skipped() {
        let mut bytes = b"NLabNLab garbage".to_vec();
        let mut lie = encode(9, Kind::Stdin, b"");
        lie[13..17].copy_from_slice(&u32::MAX.to_le_bytes());
        bytes.extend(lie);
        bytes.extend(encode(9, Kind::Signal, &[15]));
        assert_eq!(collect(&bytes, 5), [(9, Kind::Signal, vec![15])]);
    }

    #[test]
    fn a_long_request_comes_in_parts() {
        let long = Request::Run { argv: vec![vec![b'a'; 50_000]], env: vec![], cwd: vec![b'/'], terminal: None };
        let mut bytes = Vec::new();
        open(&mut bytes, 3, &long).expect("writing memory");
        let frames = collect(&bytes, 4096);
        assert!(frames.len() > 1 && frames[..frames.len() - 1].iter().all(|frame| frame.1 == Kind::RequestPart));
        let whole: Vec<u8> = frames.into_iter().flat_map(|frame| frame.2).collect();
        assert_eq!(serde_json::from_slice::<Request>(&whole).expect("JSON"), long);
    }
}
