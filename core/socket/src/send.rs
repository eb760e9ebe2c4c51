//! One send.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::{LinkCell, LinkIo, LockedStream, StreamGuard, PLEDGE_PATIENCE};
use netacc_proto::{RxSource, TxSink};

use crate::{
    moved_or, progress_end, take_error, Connection, Deadline, Errno, KernelError, Limit, Next, Socket, SwitchPatience,
    Waited, SWITCH_PATIENCE,
};

/// After so many bytes written to the anchor a write may have to wait for reasons that the program cannot see: the
/// kernel's buffers take about as many.
const BULK: u64 = 256 << 10;

/// The environment of a call that sends.
pub trait SendSocket: Socket {
    /// Bytes that the call is to send.
    fn len(&self) -> usize;

    /// Whether the call has no bytes to send.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends by the kernel, without waiting, the bytes after the call's first `skip`.
    ///
    /// # Errors
    /// The kernel's.
    fn send_kernel(&mut self, skip: usize) -> Result<usize, KernelError>;

    /// Sends on the link the bytes after the call's first `skip`. `None`: the next bytes cannot be read.
    fn send_link(&mut self, stream: &mut LockedStream<'_>, skip: usize) -> Option<LinkIo>;

    /// The number of bytes after the call's first `skip`, of a write that the peer does not take any more. `None`: they
    /// cannot be read.
    fn refused_len(&mut self, skip: usize) -> Option<usize>;

    /// Whether bytes wait in the kernel that the peer's kernel has no room for, or the network.
    fn is_full(&self) -> bool;

    /// Whether `poll` would report that the kernel takes bytes.
    fn has_room(&self) -> bool;

    /// Whether the kernel takes a write that does not block, in part at least.
    fn has_room_for_some(&self) -> bool;

    /// Bytes that the peer's kernel has not acknowledged.
    fn unacknowledged(&self) -> u64;

    /// The patience of the process with changes of path.
    fn switch_patience(&self) -> &SwitchPatience;

    /// The call has sent so many bytes, and is about to return.
    fn record_sent(&mut self, len: usize);
}

/// The action of its peer that a write waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// To answer an OPEN. An answer that waits for this program to read does not come while it writes.
    Answer,
    /// To take bytes off the kernel's queue, in which so many are not acknowledged; or to answer an OPEN.
    Read {
        /// When the wait began.
        unacknowledged: u64,
    },
    /// To change the path of the outgoing direction.
    Switch,
}

impl Expected {
    /// Whether the peer has done it.
    pub fn is_done(self, stream: &LockedStream<'_>, socket: &impl SendSocket) -> bool {
        match self {
            Expected::Answer => stream.tx_sink() != TxSink::Pledged || stream.proto().awaits_reader(),
            Expected::Read { unacknowledged } => {
                stream.tx_sink() != TxSink::Pledged || socket.unacknowledged() < unacknowledged
            }
            Expected::Switch => !stream.is_between(),
        }
    }
}

/// The event that a send waits for.
#[derive(Clone, Copy, Debug)]
pub enum SendWait {
    /// For the peer to act, which takes microseconds if it lives. Poll the link and the anchor until
    /// [`is_done`](Expected::is_done), or until `until`.
    Peer {
        /// The action.
        expected: Expected,
        /// The time at which the wait ends at the latest.
        until: Instant,
        /// Set for a call that blocks: signals end the wait.
        limit: Option<Limit>,
    },
    /// For room, or for the stream to change.
    Room(Limit),
}

/// A wait for the peer that is not over.
struct PeerWait {
    expected: Expected,
    since: Instant,
    until: Instant,
    /// The link whose peer is to answer.
    link: Option<Arc<LinkCell>>,
    /// Set for a call that blocks.
    blocking: Option<Blocking>,
}

#[derive(Clone, Copy)]
struct Blocking {
    limit: Limit,
    /// The kernel took bytes when the wait began: its room need not be checked after that. It wakes a writer that found
    /// no room when a third of the buffer is free, not for a few bytes.
    room: bool,
}

/// The result of an attempt.
enum Step {
    /// So many bytes were sent.
    Moved(usize),
    /// The call has failed. If it has sent bytes before, it returns those.
    Failed(Errno),
    /// Nothing can be sent now.
    Blocked,
    /// The same, because the outgoing direction changes its path.
    Between,
    /// The path changed: attempt again at once.
    Again,
    /// The call has sent some bytes and sends no more; the event that ended it is left for the next call.
    Over,
    /// The peer is to act first.
    Await(Expected),
}

/// One call that sends.
pub struct Sending {
    /// Bytes that are sent.
    done: usize,
    /// The call does not wait, because of its flags, or because the socket is certainly not one that waits.
    nonblocking: bool,
    /// The link has been polled since the last wait.
    polled: bool,
    deadline: Deadline,
    /// The time until which a call that does not wait awaits a change of paths, once it has had to.
    switch_until: Option<Instant>,
    waits: Option<PeerWait>,
}

impl Sending {
    /// A call begins.
    #[inline]
    pub fn begin(connection: Connection<'_>, socket: &mut impl SendSocket, nonblocking: bool) -> Sending {
        // A program that only writes must see the peer's events, above all its end.
        if connection.cell.has_news(connection.endpoint) {
            socket.poll_link();
        }
        Sending { done: 0, nonblocking, polled: false, deadline: Deadline::default(), switch_until: None, waits: None }
    }

    /// Bytes that are sent.
    pub fn done(&self) -> usize {
        self.done
    }

    /// The time until which the call waits for its peer, if its last [`Next`] was [`SendWait::Peer`].
    pub fn waits_until(&self) -> Option<Instant> {
        self.waits.as_ref().map(|waits| waits.until)
    }

    /// Continues with the bytes after those that are sent, as if they were the whole call: the environment has reported
    /// the sent ones.
    pub fn begin_rest(&mut self) {
        self.done = 0;
    }

    /// Sends as many bytes as possible now. Call it first, and after [`Next::Again`].
    #[inline]
    pub fn attempt<S: SendSocket>(&mut self, connection: Connection<'_>, socket: &mut S) -> Next<SendWait> {
        let step = step(connection, socket, self.done, self.nonblocking);
        self.take_step(connection, socket, step)
    }

    /// The environment has made the first attempt itself, while the kernel alone had the stream: so many bytes were sent, fewer
    /// than the call has, or none because there was no room. Call it instead of the first [`attempt`](Sending::attempt).
    pub fn go_on_after<S: SendSocket>(
        &mut self,
        connection: Connection<'_>,
        socket: &mut S,
        sent: usize,
    ) -> Next<SendWait> {
        self.take_step(connection, socket, if sent > 0 { Step::Moved(sent) } else { Step::Blocked })
    }

    /// The result of an attempt decides how the call goes on.
    #[inline]
    fn take_step<S: SendSocket>(&mut self, connection: Connection<'_>, socket: &mut S, step: Step) -> Next<SendWait> {
        match step {
            Step::Moved(n) => {
                self.done += n;
                if self.done >= socket.len() {
                    socket.record_sent(self.done);
                    return Next::Done(Ok(self.done));
                }
                if self.nonblocking {
                    // The next blocked attempt polls again, and so finds credit that has come back meanwhile.
                    self.polled = false;
                }
                Next::Again
            }
            Step::Again => Next::Again,
            Step::Over => Next::Done(Ok(self.done)),
            Step::Failed(error) => moved_or(self.done, error),
            Step::Blocked => self.pass(connection, socket, false),
            Step::Between => self.pass(connection, socket, true),
            Step::Await(expected) => self.await_peer(connection, socket, expected),
        }
    }

    /// A wait is over. Call it after [`Next::Wait`].
    #[cold]
    pub fn resume<S: SendSocket>(
        &mut self,
        connection: Connection<'_>,
        socket: &mut S,
        waited: Waited,
    ) -> Next<SendWait> {
        let Some(waits) = self.waits.take() else { return self.go_on(waited) };
        let mut guard = connection.cell.lock(connection.endpoint);
        let now = socket.now();
        let done = waits.expected.is_done(&guard, socket);
        if !done && waited == Waited::Again && now < waits.until {
            drop(guard);
            return self.wait_for_peer(waits);
        }
        match waits.expected {
            Expected::Answer => {
                if guard.tx_sink() == TxSink::Pledged {
                    guard.change(LockedStream::void_pledge);
                }
                drop(guard);
                match waits.blocking {
                    Some(_) if waited == Waited::Interrupted => moved_or(self.done, Errno::INTERRUPTED),
                    Some(Blocking { room: true, .. }) => self.go_on(Waited::Again),
                    Some(Blocking { limit, .. }) => Next::Wait(SendWait::Room(limit)),
                    None => {
                        if let Some(link) = waits.link {
                            link.answer_patience().record(done.then(|| now.saturating_since(waits.since)));
                        }
                        Next::Again
                    }
                }
            }
            Expected::Read { .. } if wait_or_void(&mut guard, done) => {
                drop(guard);
                self.pass(connection, socket, false)
            }
            Expected::Switch if !done => {
                socket.switch_patience().record_failed(now.saturating_since(waits.since), now);
                Next::Done(Err(Errno::AGAIN))
            }
            Expected::Read { .. } | Expected::Switch => Next::Again,
        }
    }

    /// A wait for room is over.
    fn go_on(&mut self, waited: Waited) -> Next<SendWait> {
        match waited {
            Waited::Again | Waited::Ended => {
                self.polled = false;
                Next::Again
            }
            Waited::TimedOut => moved_or(self.done, Errno::AGAIN),
            Waited::Interrupted => moved_or(self.done, Errno::INTERRUPTED),
        }
    }

    /// Nothing can be sent now. `between`: because the outgoing direction changes its path.
    #[inline]
    fn pass<S: SendSocket>(&mut self, connection: Connection<'_>, socket: &mut S, between: bool) -> Next<SendWait> {
        if !self.polled {
            self.polled = true;
            if socket.poll_link() {
                return Next::Again;
            }
        }
        if !self.nonblocking && !socket.is_nonblocking() {
            return self.block(connection, socket);
        }
        if self.done > 0 {
            socket.record_sent(self.done);
            return Next::Done(Ok(self.done));
        }
        if between {
            return self.await_peer(connection, socket, Expected::Switch);
        }
        Next::Done(Err(Errno::AGAIN))
    }

    /// Waits for the answer to a pledge, or else for room.
    fn block<S: SendSocket>(&mut self, connection: Connection<'_>, socket: &mut S) -> Next<SendWait> {
        let limit = self.deadline.limit(socket, self.done);
        socket.begin_wait();
        let pledged = awaits_answer(&connection.cell.lock(connection.endpoint), socket);
        if !pledged {
            return Next::Wait(SendWait::Room(limit));
        }
        let blocking = Some(Blocking { limit, room: socket.has_room_for_some() });
        let since = socket.now();
        let left = limit.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_since(since));
        let until = since + PLEDGE_PATIENCE.min(left);
        self.wait_for_peer(PeerWait { expected: Expected::Answer, since, until, link: None, blocking })
    }

    /// Waits for the peer to act, in a call that need not block.
    #[cold]
    fn await_peer<S: SendSocket>(
        &mut self,
        connection: Connection<'_>,
        socket: &mut S,
        expected: Expected,
    ) -> Next<SendWait> {
        let guard = connection.cell.lock(connection.endpoint);
        let since = socket.now();
        let link = guard.link().cloned();
        let until = match expected {
            // As long as the link usually takes: the answer is mostly microseconds away. If it does not come, the
            // connection stays on its anchor for now.
            Expected::Answer => since + link.as_ref().map_or(Duration::ZERO, |link| link.answer_patience().get()),
            Expected::Read { .. } => since + SWITCH_PATIENCE,
            Expected::Switch => {
                *self.switch_until.get_or_insert_with(|| since + socket.switch_patience().get(&guard, since))
            }
        };
        drop(guard);
        self.wait_for_peer(PeerWait { expected, since, until, link, blocking: None })
    }

    fn wait_for_peer(&mut self, waits: PeerWait) -> Next<SendWait> {
        let limit = waits.blocking.map(|blocking| blocking.limit);
        let wait = SendWait::Peer { expected: waits.expected, until: waits.until, limit };
        self.waits = Some(waits);
        Next::Wait(wait)
    }
}

/// Attempts once to send the bytes after the call's first `skip`.
#[inline]
fn step<S: SendSocket>(connection: Connection<'_>, socket: &mut S, skip: usize, nonblocking: bool) -> Step {
    let mut guard = connection.cell.lock(connection.endpoint);
    progress_end(&mut guard, || socket.now());
    match guard.tx_sink() {
        // There is nothing to wait for, and the kernel has an error to report.
        TxSink::Pledged if socket.is_broken() => {
            guard.change(LockedStream::void_pledge);
            Step::Again
        }
        TxSink::Link | TxSink::Pledged | TxSink::Wait | TxSink::Refused if socket.is_empty() => Step::Moved(0),
        TxSink::Link => send_on_link(&mut guard, socket, skip),
        TxSink::Anchor | TxSink::Closed if skip > 0 && (guard.tx_sink() == TxSink::Closed || socket.is_broken()) => {
            Step::Over
        }
        TxSink::Anchor => send_on_anchor(guard, socket, skip),
        // For a program that does something else when a write has to wait: it will read the bytes that the answer waits
        // for.
        TxSink::Pledged if nonblocking && may_have_to_wait(&guard, socket) => {
            // EAGAIN before the buffer is full is for peers that read, or else the program could write again although
            // its peer has read nothing.
            if socket.has_room_for_some() {
                return Step::Await(Expected::Read { unacknowledged: socket.unacknowledged() });
            }
            guard.change(LockedStream::wait_for_pledge);
            Step::Blocked
        }
        TxSink::Pledged if !nonblocking && awaits_answer(&guard, socket) => Step::Blocked,
        TxSink::Pledged => Step::Await(Expected::Answer),
        TxSink::Wait => {
            guard.change(|stream| stream.progress_anchor(false));
            if guard.tx_sink() == TxSink::Wait {
                Step::Between
            } else {
                Step::Again
            }
        }
        TxSink::Refused => match socket.refused_len(skip) {
            Some(len) => {
                guard.change(|stream| stream.refuse_write(len));
                Step::Moved(len)
            }
            None if skip > 0 => Step::Over,
            None => Step::Failed(Errno::FAULT),
        },
        TxSink::Closed => {
            let error = guard.change(|stream| {
                if stream.rx_source() == RxSource::Record {
                    // The peer may have written to a side that reads nothing.
                    stream.progress_anchor(false);
                }
                take_error(stream)
            });
            Step::Failed(error.unwrap_or(Errno::PIPE))
        }
    }
}

/// Copies into the link's ring as many bytes as there is room for.
#[inline]
fn send_on_link<S: SendSocket>(guard: &mut StreamGuard<'_>, socket: &mut S, skip: usize) -> Step {
    guard.change(|stream| match socket.send_link(stream, skip) {
        Some(LinkIo::Done(n)) => Step::Moved(n),
        Some(LinkIo::WouldBlock) if stream.is_between() => Step::Between,
        Some(LinkIo::WouldBlock) => Step::Blocked,
        Some(LinkIo::Moved) => Step::Again,
        None => refuse_address(stream, skip),
    })
}

/// A write has come to an address that cannot be read. It fails, unless it has to wait or has sent something.
#[cold]
fn refuse_address(stream: &mut LockedStream<'_>, skip: usize) -> Step {
    stream.refresh_consumed();
    match stream.proto().free() {
        0 if stream.is_between() => Step::Between,
        0 => Step::Blocked,
        _ if skip > 0 => Step::Over,
        _ => Step::Failed(Errno::FAULT),
    }
}

/// Sends by the kernel, with the stream locked.
#[inline]
fn send_on_anchor<S: SendSocket>(mut guard: StreamGuard<'_>, socket: &mut S, skip: usize) -> Step {
    match socket.send_kernel(skip) {
        Ok(n) => {
            guard.anchor_sent(n);
            Step::Moved(n)
        }
        Err(KernelError::WouldBlock) => Step::Blocked,
        Err(KernelError::Ended(error)) => {
            if !guard.proto().is_plain() {
                // The kernel reports it once, and the stream must not report it again.
                guard.change(|stream| {
                    stream.withdraw();
                    if !stream.proto().is_plain() {
                        stream.anchor_ended();
                        stream.take_error();
                    }
                });
            }
            Step::Failed(error)
        }
        Err(KernelError::Call(error)) => Step::Failed(error),
    }
}

/// A write that does not wait came during a pledge. Returns whether it must wait, because the peer reads; otherwise the
/// pledge is void.
fn wait_or_void(guard: &mut StreamGuard<'_>, peer_reads: bool) -> bool {
    if guard.tx_sink() != TxSink::Pledged {
        return false;
    }
    guard.change(|stream| if peer_reads { stream.wait_for_pledge() } else { stream.void_pledge() });
    peer_reads
}

/// Whether a program expects a write to have to wait: after so many bytes, if some of them wait, it cannot predict how
/// many the kernel takes; after fewer bytes it only expects to wait once the kernel has no room.
fn may_have_to_wait(stream: &LockedStream<'_>, socket: &impl SendSocket) -> bool {
    let bulk = stream.counters().tx_bytes_tcp >= BULK;
    socket.is_full() && (bulk || !stream.proto().awaits_reader() && !socket.has_room())
}

/// Whether a write that may wait does so until the pledge is answered: the kernel's buffer is full, or nearly, so that
/// the program expects to wait.
fn awaits_answer(stream: &LockedStream<'_>, socket: &impl SendSocket) -> bool {
    stream.tx_sink() == TxSink::Pledged && !stream.proto().awaits_reader() && socket.is_full()
}
