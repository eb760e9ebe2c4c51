//! The ledger of each connection, which every read is checked against.

use std::sync::Arc;

use netacc_device::loopback::anchor::AnchorWire;
use netacc_device::Instant;
use netacc_driver::StreamCell;
use netacc_program::{pattern, Wrong};
use netacc_socket::{Errno, Sending, Waited};

use crate::descriptor::Descriptor;
use crate::torn::torn_record;
use crate::{Broken, Check, What};

/// A write in the middle of a wait.
pub(crate) struct SuspendedSend {
    pub(crate) sending: Sending,
    /// How the wait has ended, when the write goes on.
    pub(crate) waited: Waited,
}

/// One end, as its application has it.
pub(crate) struct Side {
    pub(crate) process: usize,
    /// `None` once closed.
    pub(crate) cell: Option<Arc<StreamCell>>,
    pub(crate) descriptor: Arc<Descriptor>,
    /// It has not seen EAGAIN since its epoll reported that it may read.
    pub(crate) may_read: bool,
    /// As `may_read`.
    pub(crate) may_write: bool,
    /// A write that waits for its peer to act.
    pub(crate) suspended: Option<SuspendedSend>,
    /// A demotion that the application waits for.
    pub(crate) demoting_since: Option<Instant>,
    /// A read gave end of stream.
    pub(crate) ended: bool,
    /// A call gave an error: there is nothing to do but to close.
    pub(crate) failed: bool,
    pub(crate) read_shut: bool,
    /// Bytes still to write before the end, in the drain.
    pub(crate) left: u64,
    /// Writes into a connection whose other end is closed.
    pub(crate) probes: u32,
}

/// One direction, named by its writer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Direction {
    /// Bytes accepted from the writer.
    pub(crate) written: u64,
    /// Bytes given to the reader.
    pub(crate) read: u64,
    /// The writer has ended it, by `shutdown`, by `close`, or by dying.
    pub(crate) ended: bool,
    /// The writer's process has died, perhaps while it wrote a record.
    pub(crate) died: bool,
    /// Bytes of such a record that the reader was given.
    pub(crate) torn: usize,
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) wire: AnchorWire,
    /// Its number in the simulator's TCP, if that carries it.
    pub(crate) carried: Option<u32>,
    pub(crate) sides: [Side; 2],
    /// By writer.
    pub(crate) directions: [Direction; 2],
    /// An end aborted it, died, or broke it: errors are allowed.
    pub(crate) broken: bool,
}

impl Connection {
    /// Whether a side may see an error: it was broken, or closed with bytes that it had not read.
    pub(crate) fn may_fail(&self) -> bool {
        let unread = |side: usize| {
            let incoming = &self.directions[1 - side];
            self.sides[side].cell.is_none() && incoming.read < incoming.written
        };
        self.broken || unread(0) || unread(1)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.sides.iter().any(|s| s.cell.is_some())
    }

    /// The reader on `side` was given `bytes`, or sees them with `peek`.
    pub(crate) fn check_bytes(&mut self, number: usize, side: usize, bytes: &[u8], peek: bool) -> Check {
        let direction = &mut self.directions[1 - side];
        let at = direction.read;
        let wrong = |b: &[u8]| {
            pattern::mismatch(key(number, 1 - side), at, b).is_some() || at + b.len() as u64 > direction.written
        };
        // A peer that dies within the first seven bytes of a marker leaves its reader with those and the end that its
        // kernel sends: no protocol on a byte stream can tell.
        let torn = if direction.died && wrong(bytes) { torn_record(direction.torn, bytes) } else { 0 };
        let bytes = &bytes[..bytes.len() - torn];
        if let Some(Wrong { position, expected, found }) = pattern::mismatch(key(number, 1 - side), at, bytes) {
            let detail = format!(
                "connection {number} side {side} read {found:#04x} for {expected:#04x} at position {position} ({} bytes from {at})",
                bytes.len()
            );
            return Err(Broken::new(What::WrongByte, detail));
        }
        if at + bytes.len() as u64 > direction.written {
            let detail = format!("connection {number} side {side} read beyond the written bytes, at {at}");
            return Err(Broken::new(What::WrongByte, detail));
        }
        if self.sides[side].ended && !self.sides[side].read_shut && !bytes.is_empty() {
            let detail = format!("connection {number} side {side} read bytes after the end of stream");
            return Err(Broken::new(What::FalseEnd, detail));
        }
        if !peek {
            direction.read += bytes.len() as u64;
            direction.torn += torn;
        }
        Ok(())
    }

    /// The reader on `side` saw the end of the stream here.
    pub(crate) fn check_end(&mut self, number: usize, side: usize) -> Check {
        let direction = self.directions[1 - side];
        let reader = &mut self.sides[side];
        let honest = direction.ended && direction.read == direction.written;
        if honest || reader.read_shut || reader.failed {
            reader.ended = true;
            return Ok(());
        }
        Err(Broken::new(What::FalseEnd, format!("connection {number} side {side} of {direction:?}")))
    }

    /// A call on `side` failed with `errno`.
    pub(crate) fn check_error(&mut self, number: usize, side: usize, errno: i32, writing: bool) -> Check {
        let own_end = writing && errno == Errno::PIPE.0 && self.directions[side].ended;
        if own_end {
            return Ok(());
        }
        if !self.may_fail() {
            let detail = format!("connection {number} side {side} got errno {errno} {:?}", self.directions);
            return Err(Broken::new(What::FalseError, detail));
        }
        self.sides[side].failed = true;
        Ok(())
    }
}

/// Names the bytes of a direction.
pub(crate) fn key(connection: usize, writer: usize) -> u64 {
    pattern::key(connection as u32, writer as u8)
}
