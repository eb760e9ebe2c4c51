//! One receive.

use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::{LockedStream, Readiness};
use netacc_proto::RxSource;

use crate::{
    moved_or, progress_end, take_error, Connection, Deadline, Errno, KernelError, Limit, Next, Socket, Waited,
};

/// How long a non-blocking read waits nevertheless for the replay on the anchor. Arbitrary: the time that a running
/// peer may need to be scheduled on a machine with far more threads than processors. Paid at most once for a demotion,
/// when the peer has stopped in the middle of it.
pub const REPLAY_PATIENCE: Duration = Duration::from_millis(200);

/// The environment of a call that receives.
pub trait RecvSocket: Socket {
    /// Bytes that the call has room for.
    fn len(&self) -> usize;

    /// Whether the call's buffer is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether received bytes stay to be received again (MSG_PEEK).
    fn is_peek(&self) -> bool;

    /// Receives by the kernel, without waiting, at most `limit` bytes behind the call's first `skip`.
    ///
    /// # Errors
    /// The kernel's.
    fn recv_kernel(&mut self, skip: usize, limit: u64) -> Result<usize, KernelError>;

    /// Receives from the link's ring, behind the call's first `skip` bytes. `None`: there are bytes, and the call's
    /// buffer cannot be written.
    fn recv_link(&mut self, stream: &mut LockedStream<'_>, skip: usize) -> Option<usize>;

    /// Bytes that the kernel has for a read.
    fn unread(&self) -> u64;

    /// Whether the connection has an error that came after an earlier call had moved bytes.
    fn has_deferred_error(&self) -> bool;

    /// Takes that error.
    fn take_deferred_error(&mut self) -> Option<Errno>;

    /// Whether earlier calls found nothing at first, so that this one had better sleep before it looks.
    fn expects_nothing(&self) -> bool;

    /// The call has received so many bytes, and is about to return.
    fn record_received(&mut self, len: usize);
}

/// The event that a receive waits for.
#[derive(Clone, Copy, Debug)]
pub enum RecvWait {
    /// For something to read, or for the stream to change.
    Data(Limit),
    /// For the replay on the anchor, which takes microseconds if the peer lives; until then at the latest.
    Replay(Instant),
}

/// The result of an attempt.
enum Step {
    /// So many bytes were received.
    Moved(usize),
    /// The stream ends here, or the call's buffer was empty.
    Ended,
    /// The call has failed. If it has received bytes before, it returns those.
    Failed(Errno),
    /// Nothing can be received now.
    Blocked,
    /// The path changed: attempt again at once.
    Again,
    /// The call has received some bytes and receives no more; the event that ended it is left for the next call.
    Over,
}

/// How far a call is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It sleeps before it looks for bytes.
    Sleeps,
    /// It looks for bytes next.
    Looks,
    /// It has looked.
    Looked,
    /// It has slept until the kernel had no more bytes for it, for good.
    Ended,
}

/// One call that receives.
pub struct Receiving {
    /// Bytes that are received.
    done: usize,
    /// The number of bytes that the call waits for, as long as it may wait.
    least: usize,
    /// The call does not wait, because of its flags, or because the socket is certainly not one that waits.
    nonblocking: bool,
    /// The link has been polled.
    polled: bool,
    stage: Stage,
    deadline: Deadline,
    /// The time until which a call that does not wait awaits the replay, once it has had to.
    replay_until: Option<Instant>,
    /// The wait is over, and the call fails with this error if it finds nothing.
    given_up: Option<Errno>,
}

impl Receiving {
    /// A call begins. As long as it may wait, it waits for `least` bytes.
    #[inline]
    pub fn begin(
        connection: Connection<'_>,
        socket: &mut impl RecvSocket,
        least: usize,
        nonblocking: bool,
    ) -> Receiving {
        if socket.is_peek() && connection.cell.has_news(connection.endpoint) {
            // A program that waits for more must see it come.
            socket.poll_link();
        }
        let sleeps_first = socket.expects_nothing()
            && !nonblocking
            && least > 0
            && connection.cell.readiness().contains(Readiness::KERNEL_RX)
            && !socket.has_deferred_error();
        Receiving {
            done: 0,
            least,
            nonblocking,
            polled: false,
            stage: if sleeps_first { Stage::Sleeps } else { Stage::Looks },
            deadline: Deadline::default(),
            replay_until: None,
            given_up: None,
        }
    }

    /// Receives as many bytes as possible now. Call it first, and after [`Next::Again`].
    #[inline]
    pub fn attempt<S: RecvSocket>(&mut self, connection: Connection<'_>, socket: &mut S) -> Next<RecvWait> {
        if self.stage == Stage::Sleeps {
            self.stage = Stage::Looks;
            // Another process may have set that since the calls that slept.
            if !socket.is_nonblocking() {
                return self.pass(connection, socket);
            }
        }
        let ended = self.stage == Stage::Ended;
        self.stage = Stage::Looked;
        let step = step(connection, socket, self.done, ended);
        self.take_step(connection, socket, step)
    }

    /// The result of an attempt decides how the call goes on.
    #[inline]
    fn take_step<S: RecvSocket>(&mut self, connection: Connection<'_>, socket: &mut S, step: Step) -> Next<RecvWait> {
        match step {
            Step::Ended => self.end(socket),
            Step::Moved(n) => {
                self.done += n;
                if self.done >= self.least || self.nonblocking {
                    socket.record_received(self.done);
                    return Next::Done(Ok(self.done));
                }
                Next::Again
            }
            Step::Again => Next::Again,
            Step::Over => Next::Done(Ok(self.done)),
            Step::Failed(error) => moved_or(self.done, error),
            Step::Blocked => self.pass(connection, socket),
        }
    }

    /// The environment has made the first attempt itself, while the kernel alone had the stream: so many bytes were received, fewer
    /// than the call waits for, or none because none were there. Call it instead of the first [`attempt`](Receiving::attempt).
    pub fn go_on_after<S: RecvSocket>(
        &mut self,
        connection: Connection<'_>,
        socket: &mut S,
        received: usize,
    ) -> Next<RecvWait> {
        self.stage = Stage::Looked;
        self.take_step(connection, socket, if received > 0 { Step::Moved(received) } else { Step::Blocked })
    }

    /// Whether the call has looked for bytes before it waits.
    pub fn has_looked(&self) -> bool {
        self.stage == Stage::Looked
    }

    /// A wait is over. Call it after [`Next::Wait`].
    #[cold]
    pub fn resume<S: RecvSocket>(&mut self, socket: &mut S, wait: RecvWait, waited: Waited) -> Next<RecvWait> {
        match (wait, waited) {
            (_, Waited::Again) => {}
            (_, Waited::Ended) => self.stage = Stage::Ended,
            (RecvWait::Replay(_), _) => return moved_or(self.done, Errno::AGAIN),
            (RecvWait::Data(_), _) => {
                let interrupted = waited == Waited::Interrupted;
                self.given_up = Some(if interrupted { Errno::INTERRUPTED } else { Errno::AGAIN });
                // The kernel takes bytes that have come in the meantime before it checks signals and the time.
                socket.poll_link();
            }
        }
        Next::Again
    }

    /// The stream has ended here.
    fn end<S: RecvSocket>(&mut self, socket: &mut S) -> Next<RecvWait> {
        // After SHUT_RD bytes that arrive can still be read.
        if !self.polled {
            self.polled = true;
            if socket.poll_link() {
                return Next::Again;
            }
        }
        if self.done > 0 {
            return Next::Done(Ok(self.done));
        }
        Next::Done(socket.take_deferred_error().map_or(Ok(0), Err))
    }

    /// Nothing can be received now.
    #[inline]
    fn pass<S: RecvSocket>(&mut self, connection: Connection<'_>, socket: &mut S) -> Next<RecvWait> {
        if let Some(error) = self.given_up {
            return moved_or(self.done, error);
        }
        if !self.polled {
            self.polled = true;
            // Readiness does not report fewer bytes than the low water mark.
            if socket.poll_link() || connection.cell.low_water() > 1 {
                return Next::Again;
            }
        }
        if self.done == 0 && socket.has_deferred_error() {
            return Next::Done(socket.take_deferred_error().map_or(Ok(0), Err));
        }
        if self.nonblocking || socket.is_nonblocking() {
            return match self.replay(connection, socket) {
                Some(until) if self.done == 0 => Next::Wait(RecvWait::Replay(until)),
                _ => moved_or(self.done, Errno::AGAIN),
            };
        }
        let limit = self.deadline.limit(socket, self.done);
        socket.begin_wait();
        Next::Wait(RecvWait::Data(limit))
    }

    /// Bytes that were there on the link are replayed on the anchor when the link is left. A program to which they were
    /// reported must not get EAGAIN: it waits for them for [`REPLAY_PATIENCE`] from the first attempt on. Returns the
    /// time limit.
    ///
    /// A program that polls comes here with every call, so the clock is read only if there is something to wait for.
    #[cold]
    fn replay<S: RecvSocket>(&mut self, connection: Connection<'_>, socket: &S) -> Option<Instant> {
        if self.done > 0 || !connection.cell.lock(connection.endpoint).proto().awaits_replay() {
            return None;
        }
        let now = socket.now();
        let until = *self.replay_until.get_or_insert(now + REPLAY_PATIENCE);
        (now < until).then_some(until)
    }
}

/// Attempts once to receive behind the call's first `skip` bytes.
#[inline]
fn step<S: RecvSocket>(connection: Connection<'_>, socket: &mut S, skip: usize, ended: bool) -> Step {
    let mut guard = connection.cell.lock(connection.endpoint);
    progress_end(&mut guard, || socket.now());
    match guard.rx_source() {
        RxSource::Link => match guard.change(|stream| socket.recv_link(stream, skip)) {
            // An empty receive waits for bytes to be there, as in the kernel.
            Some(0) if !socket.is_empty() || guard.proto().available() == 0 => Step::Blocked,
            Some(0) => Step::Ended,
            Some(n) => Step::Moved(n),
            None if skip > 0 => Step::Over,
            None => Step::Failed(Errno::FAULT),
        },
        RxSource::Anchor(_) if skip > 0 && socket.is_broken() && socket.unread() == 0 => Step::Over,
        // Bytes without a limit may follow the replayed ones.
        RxSource::Anchor(limit) if limit != u64::MAX && guard.change(LockedStream::take_in_replay) => Step::Again,
        // The call that waited has found that already.
        RxSource::Anchor(u64::MAX) if ended => Step::Ended,
        RxSource::Anchor(limit) => match socket.recv_kernel(skip, limit) {
            Ok(0) if limit != u64::MAX && !socket.is_empty() => {
                guard.change(LockedStream::anchor_ended);
                Step::Again
            }
            Ok(n) => {
                if !socket.is_peek() {
                    guard.anchor_received(n);
                }
                if n == 0 {
                    Step::Ended
                } else {
                    Step::Moved(n)
                }
            }
            Err(KernelError::WouldBlock) => Step::Blocked,
            Err(KernelError::Ended(error)) if limit != u64::MAX => {
                // The kernel reports it once; afterwards it reports the end of the stream.
                guard.change(|stream| {
                    stream.anchor_ended();
                    stream.take_error();
                });
                Step::Failed(error)
            }
            Err(KernelError::Ended(error) | KernelError::Call(error)) => Step::Failed(error),
        },
        RxSource::Record => {
            let before = guard.rx_source();
            guard.change(|stream| stream.progress_anchor(false));
            if guard.rx_source() != before {
                Step::Again
            } else if guard.proto().is_read_out() {
                Step::Ended
            } else {
                Step::Blocked
            }
        }
        RxSource::Eof => Step::Ended,
        RxSource::Failed(_) if skip > 0 => Step::Over,
        RxSource::Failed(_) => guard.change(take_error).map_or(Step::Ended, Step::Failed),
    }
}
