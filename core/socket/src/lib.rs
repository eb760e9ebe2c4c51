//! One send and one receive of a program on a connection that may be on its anchor, on a link, or between the two.
//!
//! The library and the simulations run the same decisions. Each supplies its environment, a [`Socket`] with
//! [`SendSocket`] or [`RecvSocket`]: the kernel's socket, the memory of the call, a clock. A call is a [`Sending`] or a
//! [`Receiving`]:
//!
//! 1. `attempt` moves as many bytes as possible now. It makes no call that blocks.
//! 2. The result is a [`Next`]: attempt again, wait, or return to the program.
//! 3. The environment waits in its own way, in the kernel or in virtual time, and reports the outcome to `resume`.
//!
//! Deliberately not here: when a connection tries to get a link, how a thread sleeps, signals, and `errno`.
//!
//! Invariant: bytes move only with the stream locked, and moved bytes are counted before it is unlocked.

mod errno;
mod memory;
mod recv;
mod send;
mod switch;

use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::{Endpoint, LockedStream, Readiness, StreamCell, StreamGuard};
use netacc_proto::SocketError;

pub use errno::{Errno, KernelError};
pub use memory::{Incoming, MemoryCall, MemorySocket, Outgoing};
pub use recv::{Receiving, RecvSocket, RecvWait, REPLAY_PATIENCE};
pub use send::{Expected, SendSocket, SendWait, Sending};
pub use switch::{SwitchPatience, JOIN_PATIENCE, SWITCH_PATIENCE};

/// The stream of a connection, and its endpoint.
#[derive(Clone, Copy)]
pub struct Connection<'a> {
    /// The endpoint of the process.
    pub endpoint: &'a Endpoint,
    /// The stream.
    pub cell: &'a Arc<StreamCell>,
}

/// The queries of a call on a connection to its environment, whether it sends or receives. No method blocks.
pub trait Socket {
    /// The clock.
    fn now(&self) -> Instant;

    /// Whether the program wants no call on the socket to wait. Called only by a call that would have to wait.
    fn is_nonblocking(&self) -> bool;

    /// How long a call may wait (SO_SNDTIMEO, SO_RCVTIMEO); `None` for as long as it takes.
    fn timeout(&self) -> Option<Duration>;

    /// The call is about to wait: from now on its descriptor may be closed by another thread.
    fn begin_wait(&mut self);

    /// Whether the kernel has an error to report, or has seen the end of the connection. Does not take the error.
    fn is_broken(&self) -> bool;

    /// Polls the link of the stream once. Whether the stream has changed: [`Connection::poll_link`], unless the environment
    /// polls all links by itself before each call.
    fn poll_link(&mut self) -> bool;
}

/// The next step of a call.
#[derive(Debug)]
pub enum Next<W> {
    /// The path changed, or more can be moved: call `attempt` again, at once.
    Again,
    /// Wait for this, and then call `resume`.
    Wait(W),
    /// The call is over, with so many bytes or this error.
    Done(Result<usize, Errno>),
}

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The awaited event may have come.
    Again,
    /// Of a receive: the kernel has no more bytes, and the peer has ended its direction.
    Ended,
    /// The time limit has passed.
    TimedOut,
    /// A signal ended it.
    Interrupted,
}

/// The limit of a call's wait, and the effect of signals on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The time at which it ends with EAGAIN.
    pub deadline: Option<Instant>,
    /// It has moved nothing yet. Without a deadline it is then restarted after handlers with SA_RESTART; otherwise every
    /// handler ends it.
    pub idle: bool,
}

impl Limit {
    /// Whether the call continues after handlers with SA_RESTART.
    pub fn restarts(self) -> bool {
        self.idle && self.deadline.is_none()
    }
}

impl Connection<'_> {
    /// Polls the link of the stream once. Returns whether the stream has changed.
    pub fn poll_link(self) -> bool {
        let Connection { endpoint, cell } = self;
        let link = cell.lock(endpoint).link().cloned();
        let Some(link) = link else { return false };
        let before = cell.readiness();
        endpoint.poll_link(&link);
        let after = cell.readiness();
        after != before || after.contains(Readiness::READABLE)
    }
}

/// The limit of the wait of a call that blocks. Its deadline is set when it waits for the first time.
#[derive(Default)]
struct Deadline(Option<Option<Instant>>);

impl Deadline {
    fn limit(&mut self, socket: &impl Socket, done: usize) -> Limit {
        let deadline = *self.0.get_or_insert_with(|| socket.timeout().map(|timeout| socket.now() + timeout));
        Limit { deadline, idle: done == 0 }
    }
}

/// The result of a call that moved `done` bytes before it ended with `error`.
fn moved_or<W>(done: usize, error: Errno) -> Next<W> {
    Next::Done(if done > 0 { Ok(done) } else { Err(error) })
}

/// Handles a stream that has left its link, but whose anchor has not ended as it has: an event that the program has
/// received must not be reported again.
#[inline]
pub fn progress_end(guard: &mut StreamGuard<'_>, now: impl FnOnce() -> Instant) {
    if guard.is_end_pending() {
        guard.change(|stream| stream.progress_end(now()));
    }
}

/// The error of a stream that has failed, if no call has reported it.
pub fn take_error(stream: &mut LockedStream<'_>) -> Option<Errno> {
    stream.take_error().map(|error| match error {
        SocketError::Reset => Errno::RESET,
        SocketError::Pipe => Errno::PIPE,
    })
}
