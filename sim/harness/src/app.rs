//! The applications: `recv`, `send`, `shutdown` and `close` on simulated descriptors. What a `recv` and a `send` do is decided
//! by `core/socket`, as in the library; `shutdown` and `close` have the order of calls of `core/preload/src/ops`. Nothing
//! blocks: where the library would wait, the call says [`Io::Blocked`].

use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::anchor::AnchorState;
use netacc_device::{Anchor, AnchorError};
use netacc_driver::{Endpoint, Readiness, Shutdown, StreamCell};
use netacc_program::pattern;
use netacc_proto::{Failure, Reason};
use netacc_socket::{
    Connection, Errno, Expected, Incoming, MemoryCall, MemorySocket, Next, Outgoing, Receiving, SendWait, Sending,
    Waited,
};

use crate::connection::{key, SuspendedSend};
use crate::descriptor::{Descriptor, Handle, OUT};
use crate::io::Io;
use crate::world::World;
use crate::{Broken, Check, What};

/// As `DEMOTE_PATIENCE` of the library.
const DEMOTE_PATIENCE: Duration = Duration::from_secs(2);
/// A call that goes round more often than this is lost. Arbitrary.
const ROUNDS: u32 = 1000;

impl MemorySocket for &Descriptor {
    fn state(&self) -> AnchorState {
        Descriptor::state(self)
    }

    fn is_over(&self) -> bool {
        Descriptor::is_over(self)
    }

    fn has_room(&self) -> bool {
        self.events() & OUT != 0
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        Descriptor::write(self, bytes)
    }

    fn read(&mut self, room: &mut [u8]) -> Result<usize, AnchorError> {
        Descriptor::read(self, room)
    }

    fn peek(&mut self, room: &mut [u8]) -> Result<usize, AnchorError> {
        Descriptor::peek(self, room)
    }
}

/// The bytes on the link of a stream on which nothing else is to be done; how many.
fn receive_direct(endpoint: &Endpoint, cell: &Arc<StreamCell>, room: &mut [u8]) -> Option<usize> {
    // The application reads until nothing is left, so it need not be told of what it reads here.
    endpoint.receive_slice_direct(cell, false, room)
}

/// How a call ends with this error.
fn failed(error: Errno) -> Io {
    if error == Errno::AGAIN {
        Io::Blocked
    } else {
        Io::Error(error.0)
    }
}

impl World {
    /// The endpoint and the stream of an open side.
    pub(crate) fn open_side(&self, c: usize, s: usize) -> Option<(Arc<Endpoint>, Arc<StreamCell>)> {
        let side = &self.connections[c].sides[s];
        let process = self.processes[side.process].as_ref()?;
        Some((process.endpoint.clone(), side.cell.clone()?))
    }

    /// Whether a call tries the direct way first, as a short call of the library with one buffer does. Every other one, so that
    /// both ways meet.
    fn goes_direct(&self, flags: bool) -> bool {
        !flags && self.summary.steps.is_multiple_of(2)
    }

    fn sent_direct(&mut self, c: usize, s: usize, buf: Vec<u8>) -> Io {
        let sent = buf.len();
        self.connections[c].directions[s].written += sent as u64;
        self.buffer = buf;
        Io::Done(sent)
    }

    /// `recv` of up to `want` bytes, checked against the ledger.
    pub(crate) fn recv(&mut self, c: usize, s: usize, want: usize, peek: bool) -> Check<Io> {
        let Some((endpoint, cell)) = self.open_side(c, s) else { return Ok(Io::Blocked) };
        let mut buf = std::mem::take(&mut self.buffer);
        buf.resize(want.max(1), 0);
        if let Some(n) = self.goes_direct(peek).then(|| receive_direct(&endpoint, &cell, &mut buf)).flatten() {
            self.connections[c].check_bytes(c, s, &buf[..n], peek)?;
            self.summary.bytes += n as u64;
            self.buffer = buf;
            return Ok(Io::Done(n));
        }
        let claimed = cell.readiness();
        let connection = Connection { endpoint: &endpoint, cell: &cell };
        let descriptor = &*self.connections[c].sides[s].descriptor;
        let incoming = Incoming::new(&mut buf, peek);
        let mut call = MemoryCall::new(self.now, descriptor, incoming, || connection.poll_link());
        let mut receiving = Receiving::begin(connection, &mut call, 1, true);
        let mut next = Next::Again;
        let mut attempts = 0;
        let io = loop {
            next = match next {
                Next::Again if attempts == ROUNDS => {
                    let detail = format!("recv on connection {c} side {s} goes round and round");
                    return Err(Broken::new(What::Restless, detail));
                }
                Next::Again => {
                    attempts += 1;
                    receiving.attempt(connection, &mut call)
                }
                // As if the patience were over, or the library had none.
                Next::Wait(wait) => receiving.resume(&mut call, wait, Waited::TimedOut),
                Next::Done(Ok(n)) => break Io::Done(n),
                Next::Done(Err(error)) => break failed(error),
            };
        };
        let silent = !claimed.intersects(Readiness::READABLE | Readiness::KERNEL_RX);
        if let (Io::Done(n), true, 1) = (io, silent, attempts) {
            let detail = format!("connection {c} side {s} could read {n} bytes at {claimed:?}");
            return Err(Broken::new(What::Readiness, detail));
        }
        if !matches!(io, Io::Blocked | Io::Done(1..)) {
            honest(&endpoint, &cell, (c, s))?;
        }
        let connection = &mut self.connections[c];
        match io {
            Io::Done(0) => connection.check_end(c, s)?,
            Io::Done(n) => {
                connection.check_bytes(c, s, &buf[..n], peek)?;
                if !peek {
                    self.summary.bytes += n as u64;
                }
            }
            Io::Blocked => connection.sides[s].may_read = false,
            Io::Error(errno) => connection.check_error(c, s, errno, false)?,
        }
        self.buffer = buf;
        Ok(io)
    }

    /// `send` of `want` more bytes of the direction, with MSG_MORE if `more`. Where the library waits for the peer's answer, the
    /// call is suspended, and the next one goes on with it.
    pub(crate) fn send(&mut self, c: usize, s: usize, want: usize, more: bool) -> Check<Io> {
        let Some((endpoint, cell)) = self.open_side(c, s) else { return Ok(Io::Blocked) };
        let mut buf = std::mem::take(&mut self.buffer);
        buf.resize(want.max(1), 0);
        pattern::fill(key(c, s), self.connections[c].directions[s].written, &mut buf);
        let suspended = self.connections[c].sides[s].suspended.take();
        if suspended.is_none() && self.goes_direct(more) && endpoint.send_slice_direct(&cell, &buf) {
            return Ok(self.sent_direct(c, s, buf));
        }
        let side = &self.connections[c].sides[s];
        let Some(process) = &self.processes[side.process] else { return Ok(Io::Blocked) };
        let connection = Connection { endpoint: &endpoint, cell: &cell };
        let outgoing = Outgoing::new(&buf, more, &process.switch_patience);
        let mut call = MemoryCall::new(self.now, &*side.descriptor, outgoing, || connection.poll_link());
        let mut polled = suspended.is_some();
        let (mut sending, mut next) = match suspended {
            Some(SuspendedSend { mut sending, waited }) => {
                cell.take_in(&endpoint);
                let next = sending.resume(connection, &mut call, waited);
                (sending, next)
            }
            None => (Sending::begin(connection, &mut call, true), Next::Again),
        };
        let mut attempts = 0;
        let (io, suspended) = loop {
            next = match next {
                Next::Again if attempts > ROUNDS + buf.len() as u32 => {
                    let detail = format!("send on connection {c} side {s} goes round and round");
                    return Err(Broken::new(What::Restless, detail));
                }
                Next::Again => {
                    attempts += 1;
                    // Readiness may lag behind here: credit comes silently, and is announced to whoever asked for it.
                    sending.attempt(connection, &mut call)
                }
                // As if the patience were over: the program is told when it can write.
                Next::Wait(SendWait::Peer { expected: Expected::Switch, .. }) => {
                    sending.resume(connection, &mut call, Waited::TimedOut)
                }
                Next::Wait(_) if !polled => {
                    polled = true;
                    cell.take_in(&endpoint);
                    sending.resume(connection, &mut call, Waited::Again)
                }
                Next::Wait(_) => {
                    endpoint.poll(endpoint.control_cq());
                    let done = sending.done();
                    sending.begin_rest();
                    let io = if done > 0 { Io::Done(done) } else { Io::Blocked };
                    break (io, Some(SuspendedSend { sending, waited: Waited::Again }));
                }
                Next::Done(Ok(n)) => break (Io::Done(n), None),
                Next::Done(Err(error)) => break (failed(error), None),
            };
        };
        let refused = call.bytes.is_refused();
        if matches!(io, Io::Error(_)) {
            honest(&endpoint, &cell, (c, s))?;
        }
        self.buffer = buf;
        let connection = &mut self.connections[c];
        connection.broken |= refused;
        let waits = suspended.is_some();
        connection.sides[s].suspended = suspended;
        match io {
            Io::Done(n) => {
                connection.directions[s].written += n as u64;
                // A short write is as good as EAGAIN.
                connection.sides[s].may_write &= n == self.buffer.len() || waits;
            }
            Io::Blocked => connection.sides[s].may_write = waits,
            Io::Error(errno) => connection.check_error(c, s, errno, true)?,
        }
        Ok(io)
    }

    /// What MSG_MORE or TCP_CORK holds back goes out, as when the option is taken back. TCP holds nothing back here.
    pub(crate) fn push_corked(&mut self, c: usize, s: usize) {
        if let Some((endpoint, cell)) = self.open_side(c, s) {
            cell.lock(&endpoint).change(|stream| stream.push_corked());
        }
    }

    /// `shutdown`.
    pub(crate) fn shutdown(&mut self, c: usize, s: usize, how: Shutdown) {
        let Some((endpoint, cell)) = self.open_side(c, s) else { return };
        let link = cell.lock(&endpoint).link().cloned();
        if let Some(link) = link {
            endpoint.poll_link(&link);
        }
        let connection = &mut self.connections[c];
        let side = &mut connection.sides[s];
        connection.directions[s].ended |= how != Shutdown::Read;
        side.read_shut |= how != Shutdown::Write;
        side.suspended = None;
        // What comes from now on is answered with a reset.
        connection.broken |= connection.directions[s].ended && side.read_shut;
        let mut guard = cell.lock(&endpoint);
        if !guard.kernel_is_accurate() {
            guard.change(|stream| {
                stream.shutdown(how);
                stream.announce_again();
            });
        } else if side.descriptor.shutdown(how).is_ok() {
            guard.change(|stream| stream.handle_kernel_shutdown(how));
        }
    }

    /// `close`; `abort` as with SO_LINGER of zero time.
    pub(crate) fn close(&mut self, c: usize, s: usize, abort: bool) {
        let Some((endpoint, cell)) = self.open_side(c, s) else { return };
        let connection = &mut self.connections[c];
        connection.directions[s].ended = true;
        connection.broken |= abort;
        let tag = World::tag(c, s);
        let side = &mut connection.sides[s];
        side.cell = None;
        side.suspended = None;
        let descriptor = side.descriptor.clone();
        if abort {
            // The option was set on the kernel's socket.
            descriptor.abort();
        }
        let Some(process) = self.processes[side.process].as_mut() else { return };
        process.epoll.remove(tag);
        close_stream(&endpoint, &cell, abort, || {
            let copy = descriptor.duplicate()?;
            process.duplicates.push(copy.clone());
            Some(Box::new(Handle::owned(copy)))
        });
        descriptor.close();
    }

    /// One look of `switching::demote`, which the shim repeats until the stream is a plain socket.
    pub(crate) fn demote_step(&mut self, c: usize, s: usize) {
        let now = self.now;
        let Some((endpoint, cell)) = self.open_side(c, s) else { return };
        let side = &mut self.connections[c].sides[s];
        let since = *side.demoting_since.get_or_insert(now);
        let mut guard = cell.lock(&endpoint);
        let mut done = guard.proto().is_plain();
        if !done {
            guard.change(|stream| {
                stream.demote(Reason::Requested);
                side.descriptor.progress(stream);
            });
            done = guard.proto().is_plain() || guard.proto().failure().is_some();
        }
        let link = guard.link().cloned();
        drop(guard);
        if done || now.saturating_since(since) > DEMOTE_PATIENCE {
            side.demoting_since = None;
        } else if let Some(link) = link {
            endpoint.poll_link(&link);
        }
    }
}

/// As `close_stream` of the shim.
fn close_stream(
    endpoint: &Endpoint,
    cell: &Arc<StreamCell>,
    abort: bool,
    keep: impl FnOnce() -> Option<Box<dyn Anchor + Send>>,
) {
    if cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
        let plain = {
            let guard = cell.lock(endpoint);
            guard.proto().is_plain() && guard.link().is_none()
        };
        if plain {
            cell.tag().store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
            endpoint.forget(cell);
            return;
        }
    }
    cell.tag().store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
    // What has arrived but was not looked at decides between FIN and RST.
    let link = cell.lock(endpoint).link().cloned();
    if let Some(link) = link {
        endpoint.poll_link(&link);
    }
    cell.lock(endpoint).change(|stream| stream.close(abort, keep));
}

/// Among honest processes nobody breaks the protocol.
fn honest(endpoint: &Endpoint, cell: &Arc<StreamCell>, (c, s): (usize, usize)) -> Check {
    match cell.lock(endpoint).proto().failure() {
        Some(Failure::Violation(what)) => Err(Broken::new(What::Violation, format!("connection {c} side {s}: {what}"))),
        _ => Ok(()),
    }
}
