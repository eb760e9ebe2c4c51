//! The applications: `recv`, `send`, `shutdown` and `close` as `core/preload/src/ops` does them, on simulated
//! descriptors. Same order of calls, so that the simulation runs what production runs. Nothing blocks: where the shim
//! would wait, the call says [`Io::Blocked`].

use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Anchor, AnchorError};
use netacc_driver::{Endpoint, LinkIo, LockedStream, Readiness, Shutdown, StreamCell};
use netacc_proto::{Failure, Reason, RxSource, SocketError, TxSink};

use crate::connection::{key, ECONNRESET, EPIPE};
use crate::descriptor::Handle;
use crate::io::Io;
use crate::world::World;
use crate::{bytes, Broken, Check, What};

/// What one attempt came to.
enum Step {
    Done(usize),
    Blocked,
    Again,
    Failed(i32),
}

/// As `PLEDGE_PATIENCE` of the shim.
pub(crate) const PLEDGE_PATIENCE: Duration = Duration::from_millis(2);
/// As `DEMOTE_PATIENCE` of the shim.
const DEMOTE_PATIENCE: Duration = Duration::from_secs(2);
/// A call that goes round more often than this is lost. Arbitrary.
const ROUNDS: u32 = 1000;

fn os_error(error: &AnchorError) -> Option<i32> {
    match error {
        AnchorError::WouldBlock => None,
        AnchorError::Os(e) => Some(e.raw_os_error().unwrap_or(0)),
        _ => Some(0),
    }
}

/// Looks at the link once; whether the stream has changed.
fn poll_link(endpoint: &Endpoint, cell: &Arc<StreamCell>) -> bool {
    let link = cell.lock(endpoint).link().cloned();
    let Some(link) = link else { return false };
    let before = cell.readiness();
    endpoint.poll_link(&link);
    let after = cell.readiness();
    after != before || after.contains(Readiness::READABLE)
}

impl World {
    /// The endpoint and the stream of an open side.
    pub(crate) fn open_side(&self, c: usize, s: usize) -> Option<(Arc<Endpoint>, Arc<StreamCell>)> {
        let side = &self.connections[c].sides[s];
        let process = self.processes[side.process].as_ref()?;
        Some((process.endpoint.clone(), side.cell.clone()?))
    }

    /// `recv` of up to `want` bytes, checked against the ledger.
    pub(crate) fn recv(&mut self, c: usize, s: usize, want: usize, peek: bool) -> Check<Io> {
        let Some((endpoint, cell)) = self.open_side(c, s) else { return Ok(Io::Blocked) };
        let mut buf = std::mem::take(&mut self.buffer);
        buf.resize(want.max(1), 0);
        let claimed = cell.readiness();
        let mut polled = false;
        let mut rounds = 0;
        let io = loop {
            if let Some(errno) = self.connections[c].sides[s].pending_error.take() {
                break Io::Error(errno);
            }
            rounds += 1;
            if rounds > ROUNDS {
                return Err(Broken::new(
                    What::Restless,
                    format!("recv on connection {c} side {s} goes round and round"),
                ));
            }
            match self.recv_step(&endpoint, &cell, (c, s), &mut buf, peek)? {
                Step::Done(n) => {
                    let silent = !claimed.intersects(Readiness::READABLE | Readiness::KERNEL_RX);
                    if silent && rounds == 1 {
                        let detail = format!("connection {c} side {s} could read {n} bytes at {claimed:?}");
                        return Err(Broken::new(What::Readiness, detail));
                    }
                    break Io::Done(n);
                }
                Step::Again => {}
                Step::Failed(errno) => break Io::Error(errno),
                Step::Blocked if !polled => {
                    polled = true;
                    if !poll_link(&endpoint, &cell) {
                        break Io::Blocked;
                    }
                }
                Step::Blocked => break Io::Blocked,
            }
        };
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

    fn recv_step(
        &mut self,
        endpoint: &Endpoint,
        cell: &Arc<StreamCell>,
        (c, s): (usize, usize),
        buf: &mut [u8],
        peek: bool,
    ) -> Check<Step> {
        let side = &mut self.connections[c].sides[s];
        let mut guard = cell.lock(endpoint);
        Ok(match guard.rx_source() {
            RxSource::Link => {
                let n = guard.change(|stream| {
                    let n = stream.peek_slice(buf, 0);
                    if !peek {
                        stream.consume_link(n);
                    }
                    n
                });
                if n > 0 {
                    Step::Done(n)
                } else {
                    Step::Blocked
                }
            }
            RxSource::Anchor(limit) => {
                let len = buf.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
                let buf = &mut buf[..len];
                let result = if peek { side.descriptor.peek(buf) } else { side.descriptor.read(buf) };
                match result {
                    Ok(n) => {
                        if !peek {
                            guard.change(|stream| stream.anchor_received(n));
                        }
                        if n == 0 && limit != u64::MAX {
                            guard.change(LockedStream::anchor_ended);
                            return Ok(Step::Again);
                        }
                        Step::Done(n)
                    }
                    Err(e) => match os_error(&e) {
                        None => Step::Blocked,
                        Some(errno) => {
                            if limit != u64::MAX {
                                guard.change(|stream| {
                                    stream.anchor_ended();
                                    stream.take_error();
                                });
                            }
                            Step::Failed(errno)
                        }
                    },
                }
            }
            RxSource::Record => {
                let before = guard.rx_source();
                guard.change(|stream| side.descriptor.progress(stream));
                if guard.rx_source() != before {
                    Step::Again
                } else if guard.proto().is_read_out() {
                    Step::Done(0)
                } else {
                    Step::Blocked
                }
            }
            RxSource::Eof => Step::Done(0),
            RxSource::Failed(failure) => {
                honest(failure, (c, s))?;
                guard.change(take_error).map_or(Step::Done(0), Step::Failed)
            }
        })
    }

    /// `send` of `want` more bytes of the direction, with MSG_MORE if `more`.
    pub(crate) fn send(&mut self, c: usize, s: usize, want: usize, more: bool) -> Check<Io> {
        let Some((endpoint, cell)) = self.open_side(c, s) else { return Ok(Io::Blocked) };
        let mut buf = std::mem::take(&mut self.buffer);
        buf.resize(want.max(1), 0);
        bytes::fill(key(c, s), self.connections[c].directions[s].written, &mut buf);
        let (mut done, mut polled, mut rounds) = (0, false, 0);
        let io = loop {
            if let Some(errno) = self.connections[c].sides[s].pending_error.take() {
                break Io::Error(errno);
            }
            rounds += 1;
            if rounds > ROUNDS + buf.len() as u32 {
                return Err(Broken::new(
                    What::Restless,
                    format!("send on connection {c} side {s} goes round and round"),
                ));
            }
            match self.send_step(&endpoint, &cell, (c, s), &buf[done..], more)? {
                Step::Done(n) => {
                    // Readiness may lag behind here: credit comes silently, and is announced to whoever asked for it.
                    done += n;
                    polled = false;
                    if done >= buf.len() {
                        break Io::Done(done);
                    }
                }
                Step::Again => {}
                Step::Failed(errno) if done > 0 => {
                    self.connections[c].sides[s].pending_error = Some(errno);
                    break Io::Done(done);
                }
                Step::Failed(errno) => break Io::Error(errno),
                Step::Blocked if !polled => {
                    polled = true;
                    if !poll_link(&endpoint, &cell) {
                        break if done > 0 { Io::Done(done) } else { Io::Blocked };
                    }
                }
                Step::Blocked => break if done > 0 { Io::Done(done) } else { Io::Blocked },
            }
        };
        let whole = buf.len();
        self.buffer = buf;
        let connection = &mut self.connections[c];
        match io {
            Io::Done(n) => {
                connection.directions[s].written += n as u64;
                // A short write is as good as EAGAIN.
                connection.sides[s].may_write &= n == whole || connection.sides[s].pledge_since.is_some();
            }
            Io::Blocked => connection.sides[s].may_write = connection.sides[s].pledge_since.is_some(),
            Io::Error(errno) => connection.check_error(c, s, errno, true)?,
        }
        Ok(io)
    }

    fn send_step(
        &mut self,
        endpoint: &Endpoint,
        cell: &Arc<StreamCell>,
        (c, s): (usize, usize),
        bytes: &[u8],
        more: bool,
    ) -> Check<Step> {
        let now = self.now;
        let side = &mut self.connections[c].sides[s];
        let mut guard = cell.lock(endpoint);
        let pledged = side.pledge_since.take();
        // A kernel that would not shut down a broken connection leaves the stream unaware of it.
        if self.connections[c].directions[s].ended && guard.tx_sink() == TxSink::Pledged {
            return Ok(Step::Failed(EPIPE));
        }
        let side = &mut self.connections[c].sides[s];
        Ok(match guard.tx_sink() {
            TxSink::Link => match guard.change(|stream| stream.send_slice(bytes, more)) {
                LinkIo::Done(n) => Step::Done(n),
                LinkIo::WouldBlock => Step::Blocked,
                LinkIo::Moved => Step::Again,
            },
            TxSink::Anchor => match side.descriptor.write(bytes) {
                Ok(n) => {
                    guard.change(|stream| stream.anchor_sent(n));
                    Step::Done(n)
                }
                Err(e) => os_error(&e).map_or(Step::Blocked, Step::Failed),
            },
            TxSink::Pledged => {
                // The shim sleeps here, looking again and again; the scheduler comes back.
                guard.change(|stream| side.descriptor.progress(stream));
                if guard.tx_sink() != TxSink::Pledged {
                    return Ok(Step::Again);
                }
                let since = pledged.unwrap_or(now);
                if now.saturating_since(since) > PLEDGE_PATIENCE {
                    guard.change(LockedStream::void_pledge);
                    return Ok(Step::Again);
                }
                side.pledge_since = Some(since);
                drop(guard);
                endpoint.poll(endpoint.control_cq());
                Step::Blocked
            }
            TxSink::Wait => {
                guard.change(|stream| side.descriptor.progress(stream));
                if guard.tx_sink() == TxSink::Wait {
                    Step::Blocked
                } else {
                    Step::Again
                }
            }
            TxSink::Refused => {
                guard.change(|stream| stream.refuse_write(bytes.len()));
                drop(guard);
                self.connections[c].broken = true;
                Step::Done(bytes.len())
            }
            TxSink::Closed => {
                if let Some(failure) = guard.proto().failure() {
                    honest(failure, (c, s))?;
                }
                Step::Failed(guard.change(take_error).unwrap_or(EPIPE))
            }
        })
    }

    /// What MSG_MORE or TCP_CORK holds back goes out, as when the option is taken back. TCP holds nothing back here.
    pub(crate) fn push_held(&mut self, c: usize, s: usize) {
        if let Some((endpoint, cell)) = self.open_side(c, s) {
            cell.lock(&endpoint).change(|stream| stream.push_held());
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
        side.pledge_since = None;
        // What comes from now on is answered with a reset.
        connection.broken |= connection.directions[s].ended && side.read_shut;
        let mut guard = cell.lock(&endpoint);
        if !guard.kernel_is_accurate() {
            guard.change(|stream| {
                stream.shutdown(how);
                stream.note_arrival();
            });
        } else if side.descriptor.shutdown(how).is_ok() {
            guard.change(|stream| stream.note_kernel_shutdown(how));
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

    /// One look of `settling::demote`, which the shim repeats until the stream is a plain socket.
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

/// The errno of a stream that has failed, told once.
fn take_error(stream: &mut LockedStream<'_>) -> Option<i32> {
    stream.take_error().map(|error| match error {
        SocketError::Reset => ECONNRESET,
        SocketError::Pipe => EPIPE,
    })
}

/// Among honest processes nobody breaks the protocol.
fn honest(failure: Failure, (c, s): (usize, usize)) -> Check {
    match failure {
        Failure::Violation(what) => Err(Broken::new(What::Violation, format!("connection {c} side {s}: {what}"))),
        _ => Ok(()),
    }
}
