//! The environment of a call whose socket and buffers are in memory, as in simulations and tests.
//!
//! Time does not pass during a call, and a call has no time limit: the simulation decides how a wait ends.

use std::time::Duration;

use netacc_device::loopback::anchor::{AnchorState, InMemoryAnchor};
use netacc_device::{Anchor, AnchorError, Instant};
use netacc_driver::{LinkIo, LockedStream};

use crate::{Errno, KernelError, RecvSocket, SendSocket, Socket, SwitchPatience};

/// The kernel's socket of a simulated process. No method blocks.
pub trait MemorySocket {
    /// What `poll` and the ioctls would report.
    fn state(&self) -> AnchorState;

    /// Whether it has an error to report, or has seen the end of the connection.
    fn is_over(&self) -> bool;

    /// Whether `poll` would report room.
    fn has_room(&self) -> bool {
        self.state().writable
    }

    /// As `send`.
    ///
    /// # Errors
    /// As the kernel's call: `WouldBlock`, or an error number.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError>;

    /// As `recv`.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn read(&mut self, room: &mut [u8]) -> Result<usize, AnchorError>;

    /// As `recv` with MSG_PEEK.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn peek(&mut self, room: &mut [u8]) -> Result<usize, AnchorError>;
}

impl MemorySocket for InMemoryAnchor {
    fn state(&self) -> AnchorState {
        InMemoryAnchor::state(self)
    }

    fn is_over(&self) -> bool {
        Anchor::is_over(self)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        self.try_write(bytes)
    }

    fn read(&mut self, room: &mut [u8]) -> Result<usize, AnchorError> {
        self.try_read(room)
    }

    fn peek(&mut self, room: &mut [u8]) -> Result<usize, AnchorError> {
        self.try_peek(room)
    }
}

/// The bytes of a send.
#[derive(Debug)]
pub struct Outgoing<'a> {
    bytes: &'a [u8],
    /// With MSG_MORE.
    more: bool,
    patience: &'a SwitchPatience,
    refused: bool,
}

impl<'a> Outgoing<'a> {
    /// A send of these bytes, with MSG_MORE if `more`. The patience is the process's, or the call's own.
    pub fn new(bytes: &'a [u8], more: bool, patience: &'a SwitchPatience) -> Outgoing<'a> {
        Outgoing { bytes, more, patience, refused: false }
    }

    /// Whether the peer receives no more.
    pub fn is_refused(&self) -> bool {
        self.refused
    }
}

/// The buffer of a receive.
#[derive(Debug)]
pub struct Incoming<'a> {
    room: &'a mut [u8],
    peek: bool,
}

impl<'a> Incoming<'a> {
    /// A receive into this buffer, with MSG_PEEK if `peek`.
    pub fn new(room: &'a mut [u8], peek: bool) -> Incoming<'a> {
        Incoming { room, peek }
    }
}

/// A send ([`Outgoing`]) or a receive ([`Incoming`]) on a [`MemorySocket`].
#[derive(Debug)]
pub struct MemoryCall<S, B, P> {
    /// The time of the call.
    pub now: Instant,
    /// Its bytes.
    pub bytes: B,
    /// Bytes that it has moved and counted.
    pub moved: usize,
    /// How often it has begun to wait.
    pub waits: u32,
    socket: S,
    nonblocking: bool,
    expects_nothing: bool,
    poll_link: P,
}

impl<S, B, P> MemoryCall<S, B, P> {
    /// A call at `now`. `poll_link` is [`Socket::poll_link`].
    pub fn new(now: Instant, socket: S, bytes: B, poll_link: P) -> MemoryCall<S, B, P> {
        MemoryCall { now, bytes, moved: 0, waits: 0, socket, nonblocking: true, expects_nothing: false, poll_link }
    }

    /// The same on a socket without O_NONBLOCK.
    #[must_use]
    pub fn blocking(self) -> MemoryCall<S, B, P> {
        MemoryCall { nonblocking: false, ..self }
    }

    /// The same after calls that had to sleep for their bytes.
    #[must_use]
    pub fn after_sleeps(self) -> MemoryCall<S, B, P> {
        MemoryCall { expects_nothing: true, ..self }
    }

    /// The socket.
    pub fn socket(&self) -> &S {
        &self.socket
    }
}

impl<S: MemorySocket, B, P: FnMut() -> bool> Socket for MemoryCall<S, B, P> {
    fn now(&self) -> Instant {
        self.now
    }

    fn is_nonblocking(&self) -> bool {
        self.nonblocking
    }

    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn begin_wait(&mut self) {
        self.waits += 1;
    }

    fn is_broken(&self) -> bool {
        self.socket.is_over()
    }

    fn poll_link(&mut self) -> bool {
        (self.poll_link)()
    }
}

impl<S: MemorySocket, P: FnMut() -> bool> SendSocket for MemoryCall<S, Outgoing<'_>, P> {
    fn len(&self) -> usize {
        self.bytes.bytes.len()
    }

    fn send_kernel(&mut self, skip: usize) -> Result<usize, KernelError> {
        self.socket.write(&self.bytes.bytes[skip..]).map_err(|error| kernel_error(&error))
    }

    fn send_link(&mut self, stream: &mut LockedStream<'_>, skip: usize) -> Option<LinkIo> {
        Some(stream.send_slice(&self.bytes.bytes[skip..], self.bytes.more))
    }

    fn refused_len(&mut self, skip: usize) -> Option<usize> {
        self.bytes.refused = true;
        Some(self.bytes.bytes.len() - skip)
    }

    fn is_full(&self) -> bool {
        self.unacknowledged() > 0
    }

    fn has_room(&self) -> bool {
        self.socket.has_room()
    }

    fn has_room_for_some(&self) -> bool {
        self.socket.state().writable
    }

    fn unacknowledged(&self) -> u64 {
        self.socket.state().unsent as u64
    }

    fn switch_patience(&self) -> &SwitchPatience {
        self.bytes.patience
    }

    fn record_sent(&mut self, len: usize) {
        self.moved += len;
    }
}

impl<S: MemorySocket, P: FnMut() -> bool> RecvSocket for MemoryCall<S, Incoming<'_>, P> {
    fn len(&self) -> usize {
        self.bytes.room.len()
    }

    fn is_peek(&self) -> bool {
        self.bytes.peek
    }

    fn recv_kernel(&mut self, skip: usize, limit: u64) -> Result<usize, KernelError> {
        let room = &mut self.bytes.room[skip..];
        let len = room.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
        let room = &mut room[..len];
        let result = if self.bytes.peek { self.socket.peek(room) } else { self.socket.read(room) };
        result.map_err(|error| kernel_error(&error))
    }

    fn recv_link(&mut self, stream: &mut LockedStream<'_>, skip: usize) -> Option<usize> {
        let len = stream.peek_slice(&mut self.bytes.room[skip..], 0);
        if !self.bytes.peek {
            stream.consume_link(len);
        }
        Some(len)
    }

    fn unread(&self) -> u64 {
        self.socket.state().unread as u64
    }

    fn has_deferred_error(&self) -> bool {
        false
    }

    fn take_deferred_error(&mut self) -> Option<Errno> {
        None
    }

    fn expects_nothing(&self) -> bool {
        self.expects_nothing
    }

    fn record_received(&mut self, len: usize) {
        self.moved += len;
    }
}

fn kernel_error(error: &AnchorError) -> KernelError {
    match error {
        AnchorError::WouldBlock => KernelError::WouldBlock,
        AnchorError::Os(error) => KernelError::from(Errno(error.raw_os_error().unwrap_or(0))),
        _ => KernelError::Call(Errno(0)),
    }
}
