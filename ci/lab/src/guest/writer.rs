//! The writing side of a port.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::wire::{encode, Answer, Kind, MAX_PAYLOAD};

/// The port's writing side. Each frame is written whole under the lock.
pub(super) type Writer = Arc<Mutex<File>>;

/// Sends bytes in frames of a kind.
pub(super) fn send(writer: &Writer, session: u64, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(MAX_PAYLOAD) {
        let frame = encode(session, kind, piece);
        writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame)?;
    }
    Ok(())
}

/// Sends the answer of a session.
pub(super) fn send_answer(writer: &Writer, session: u64, answer: &Answer) -> io::Result<()> {
    send(writer, session, Kind::Answer, &serde_json::to_vec(answer)?)
}
