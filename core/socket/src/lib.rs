//! What one send and one receive of a program do on a connection that may be on its anchor, on a link, or between the two.
//!
//! The library and the simulations run the same decisions. Each supplies its environment, a [`Socket`] with
//! [`SendSocket`] or [`RecvSocket`]: the kernel's socket, the memory of the call, a clock. A call is a [`Sending`] or a
//! [`Receiving`]:
//!
//! 1. `attempt` moves what can be moved now. It makes no call that blocks.
//! 2. The result is a [`Next`]: attempt again, wait, or return to the program.
//! 3. The environment waits in its own way, in the kernel or in virtual time, and reports how the wait ended to `resume`.
//!
//! Deliberately not here: when a connection asks for a link, how a thread sleeps, signals, and `errno`.
//!
//! Invariant: bytes move only with the stream locked, and what was moved is counted before it is unlocked.

mod errno;
mod recv;
mod send;
mod switch;

use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::{Endpoint, LockedStream, Readiness, StreamCell, StreamGuard};
use netacc_proto::SocketError;

pub use errno::{Errno, KernelError};
pub use recv::{Receiving, RecvSocket, RecvWait, REPLAY_PATIENCE};
pub use send::{Expected, SendSocket, SendWait, Sending};
pub use switch::{SwitchPatience, JOIN_PATIENCE, SWITCH_PATIENCE};

/// The stream of a connection, and where it lives.
#[derive(Clone, Copy)]
pub struct Connection<'a> {
    /// The endpoint of the process.
    pub endpoint: &'a Endpoint,
    /// The stream.
    pub cell: &'a Arc<StreamCell>,
}

/// What a call on a connection needs to know of its environment, whether it sends or receives. No method blocks.
pub trait Socket {
    /// The clock.
    fn now(&self) -> Instant;

    /// Whether the program wants no call on the socket to wait. Asked only by a call that would have to.
    fn is_nonblocking(&self) -> bool;

    /// How long a call may wait (SO_SNDTIMEO, SO_RCVTIMEO); `None` for as long as it takes.
    fn timeout(&self) -> Option<Duration>;

    /// The call is about to wait: from now on its descriptor may be closed by another thread.
    fn begin_wait(&mut self);

    /// Whether the kernel has an error to report, or knows that the connection is over. Does not take the error.
    fn is_broken(&self) -> bool;

    /// Polls the link of the stream once. Whether the stream has changed: [`Connection::poll_link`], unless the environment
    /// polls all links by itself before each call.
    fn poll_link(&mut self) -> bool;
}

/// What a call does next.
#[derive(Debug)]
pub enum Next<W> {
    /// The path changed, or more can be moved: call `attempt` again, at once.
    Again,
    /// Wait for this, and then call `resume`.
    Wait(W),
    /// The call is over, with so many bytes or this error.
    Done(Result<usize, Errno>),
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// What was waited for may be there.
    Again,
    /// The time is over.
    TimedOut,
    /// By a signal.
    Interrupted,
}

/// How long a call may wait, and what signals do to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// When it ends with EAGAIN.
    pub deadline: Option<Instant>,
    /// It has moved nothing yet. Without a deadline it is then restarted after handlers with SA_RESTART; otherwise every
    /// handler ends it.
    pub idle: bool,
}

impl Limit {
    /// Whether the call goes on after handlers with SA_RESTART.
    pub fn restarts(self) -> bool {
        self.idle && self.deadline.is_none()
    }
}

impl Connection<'_> {
    /// Polls the link of the stream once. Whether the stream has changed.
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

/// How the wait of a call that blocks is limited. Its deadline is set when it waits for the first time.
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

/// A stream that has left its link, but whose anchor has not ended as it has: what the program was told it is not told again.
#[inline]
pub fn settle_end(guard: &mut StreamGuard<'_>, now: impl FnOnce() -> Instant) {
    if guard.is_settling() {
        guard.change(|stream| stream.settle_end(now()));
    }
}

/// The error of a stream that has failed, if no call has reported it.
pub fn take_error(stream: &mut LockedStream<'_>) -> Option<Errno> {
    stream.take_error().map(|error| match error {
        SocketError::Reset => Errno::RESET,
        SocketError::Pipe => Errno::PIPE,
    })
}
