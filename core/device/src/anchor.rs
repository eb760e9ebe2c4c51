//! The anchor: the kernel TCP connection beside a link, or its model.

use std::io;
use std::net::SocketAddr;

/// The reason why an anchor operation did nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnchorError {
    /// Try again when the anchor is ready.
    #[error("anchor not ready")]
    WouldBlock,
    /// The connection's own error, with the kernel's errno.
    #[error("anchor failed: {0}")]
    Os(#[from] io::Error),
}

/// The number of bytes that an anchor has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchorPosition {
    /// Written to it, sent or not.
    pub written: u64,
    /// Read from it. Bytes that have arrived and are unread do not count.
    pub read: u64,
}

/// The next event on an anchor, as far as it shows without being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// There are unread bytes. Then `ended` and `broken` are false, whatever comes after the bytes.
    pub unread: bool,
    /// As [`Anchor::is_ended`].
    pub ended: bool,
    /// As [`Anchor::is_broken`].
    pub broken: bool,
    /// The peer has ended its direction, or the connection is broken, perhaps behind unread bytes. May also be true where
    /// this process has ended that direction.
    pub hung_up: bool,
}

/// A reliable byte stream that always exists. All calls are non-blocking.
pub trait Anchor {
    /// Writes some of `bytes`; returns how many.
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError>;

    /// Reads up to `buf.len()` bytes; `Ok(0)` is end of stream.
    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError>;

    /// Like [`try_read`](Anchor::try_read), leaving the bytes where they are.
    fn try_peek(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError>;

    /// The connection's own address. `None` if it cannot be determined.
    fn local_address(&self) -> Option<SocketAddr> {
        None
    }

    /// Whether the connection is one of TCP, and not of a protocol that begins as TCP.
    fn is_plain_tcp(&self) -> bool {
        true
    }

    /// Bytes that it has carried since it was connected, whichever process wrote and read them. `None` if the number
    /// cannot be determined exactly.
    fn position(&self) -> Option<AnchorPosition>;

    /// Whether it has carried exactly these bytes. As [`position`](Anchor::position), in fewer system calls where that is
    /// possible; `false` may also mean that it cannot be determined.
    fn is_at(&self, counted: AnchorPosition) -> bool {
        self.position() == Some(counted)
    }

    /// Ends the outgoing direction (FIN).
    fn shutdown_write(&mut self) -> Result<(), AnchorError>;

    /// Ends the incoming direction for the program (`shutdown(SHUT_RD)`): reads that would wait find the end.
    fn shutdown_read(&mut self) -> Result<(), AnchorError>;

    /// Whether nothing is unread and the connection has an unreported error. Does not take the error, as reading would.
    fn is_broken(&self) -> bool;

    /// Whether the connection has ended: both directions have ended, or it was reset.
    fn is_over(&self) -> bool;

    /// Whether the peer has ended its direction; unread bytes may be in front of the end.
    fn is_ended(&self) -> bool;

    /// [`unread`](Anchor::unread), [`is_ended`](Anchor::is_ended) and [`is_broken`](Anchor::is_broken), in fewer system
    /// calls where that is possible. `low_water` is the anchor's SO_RCVLOWAT.
    fn shown(&self, _low_water: u32) -> Shown {
        let (ended, broken) = (self.is_ended(), self.is_broken());
        let hung_up = ended || broken || self.is_over();
        match self.unread() {
            0 => Shown { unread: false, ended, broken, hung_up },
            _ => Shown { unread: true, hung_up, ..Shown::default() },
        }
    }

    /// Whether the peer has ended its direction before anything else ended the connection, for a reader that has read
    /// `read` bytes so far: a later reset is no error to a reader. Does not take the error. `None` if it cannot be
    /// determined.
    fn has_fin(&self, _read: u64) -> Option<bool> {
        None
    }

    /// The number of unread bytes.
    fn unread(&self) -> u64;

    /// Takes the connection's error, so that no other call receives it.
    fn clear_error(&mut self);

    /// Written bytes go out at once, although the connection is corked or waits for an acknowledgement (Nagle).
    fn push(&mut self) {}

    /// Makes the coming close of the anchor a reset (RST).
    fn abort(&mut self);

    /// Resets the connection at once (RST), as the kernel does when data arrives that no process can read.
    fn reset(&mut self);

    /// SO_RCVLOWAT: with fewer unread bytes the anchor does not become readable.
    fn set_low_water(&mut self, bytes: u32);
}
