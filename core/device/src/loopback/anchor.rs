//! An anchor in memory: it behaves like a kernel TCP connection, without a kernel.
//!
//! Bytes wait in the sender's buffer, travel, wait in the receiver's buffer, are read. With
//! [`DeliveryMode::Immediate`] they travel at once, as far as the receiver has room; with
//! [`DeliveryMode::Explicit`] the [`AnchorWire`] moves them, in pieces of any size.
//!
//! As in Linux:
//! * FIN arrives after every byte written before it; then reads give `Ok(0)`, and the other direction continues;
//! * RST overtakes bytes that have not arrived; bytes that have arrived can still be read, then one call fails with
//!   `ECONNRESET` (`EPIPE` if the peer's FIN was there first), later reads give `Ok(0)` and later writes `EPIPE`;
//! * after `shutdown_read` bytes that arrive can still be read; but bytes that reach an end which has ended both
//!   directions are answered with RST;
//! * dropping the last handle closes: a FIN, or an RST if [`Anchor::abort`] was called or unread bytes are discarded;
//!   bytes that reach a closed end are answered with RST.
//!
//! Clones are the handles of one socket, like descriptors after `fork`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::DeliveryMode;
use crate::{Anchor, AnchorError, AnchorPosition};

/// The ends of an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnchorEnd {
    /// The first of the pair.
    First,
    /// The second of the pair.
    Second,
}

impl AnchorEnd {
    /// The other end.
    pub fn peer(self) -> AnchorEnd {
        match self {
            AnchorEnd::First => AnchorEnd::Second,
            AnchorEnd::Second => AnchorEnd::First,
        }
    }
}

/// One event that can happen next on the wire, and its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnchorDelivery {
    /// Up to `len` bytes arrive. [`AnchorWire::deliverable`] gives the largest number; a smaller one is allowed.
    Bytes {
        /// The end that receives them.
        to: AnchorEnd,
        /// The largest number.
        len: usize,
    },
    /// The end of the stream arrives.
    Fin {
        /// The end that receives it.
        to: AnchorEnd,
    },
    /// The reset arrives, and the bytes that it overtakes are lost.
    Reset {
        /// The end that receives it.
        to: AnchorEnd,
    },
}

/// Buffer sizes and the mode of delivery.
#[derive(Clone, Copy, Debug)]
pub struct AnchorConfig {
    /// Bytes that may wait to be delivered, in each direction.
    pub send_capacity: usize,
    /// Bytes that may wait to be read, in each direction.
    pub receive_capacity: usize,
    /// The mode of delivery.
    pub mode: DeliveryMode,
}

impl Default for AnchorConfig {
    /// 64 KiB each way (arbitrary; of the order of the kernel's initial buffers), delivered at once.
    fn default() -> AnchorConfig {
        AnchorConfig { send_capacity: 1 << 16, receive_capacity: 1 << 16, mode: DeliveryMode::Immediate }
    }
}

/// The result of a readiness poll of an anchor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnchorState {
    /// A read would not have to wait (bytes, end of stream, or an error).
    pub readable: bool,
    /// A write would not have to wait (room, or an error).
    pub writable: bool,
    /// The peer's FIN arrived (as RDHUP; bytes may still be unread).
    pub peer_closed: bool,
    /// The peer's RST arrived.
    pub reset: bool,
    /// Bytes that arrived and were not read (FIONREAD).
    pub unread: usize,
    /// Bytes written that have not arrived (SIOCOUTQ).
    pub unsent: usize,
}

/// Linux errno values that a connection reports.
const EPIPE: i32 = 32;
const ECONNRESET: i32 = 104;
const ENOTCONN: i32 = 107;

/// One end. Invariants: `unsent.len() <= send_capacity`; `unread.len() <= receive_capacity`.
#[derive(Default)]
struct EndState {
    unsent: VecDeque<u8>,
    unread: VecDeque<u8>,
    /// Our FIN was sent or waits behind `unsent`.
    write_ended: bool,
    read_ended: bool,
    fin_sent: bool,
    fin_received: bool,
    reset_pending: bool,
    reset_received: bool,
    /// The connection's own error, reported once.
    error: Option<i32>,
    linger_reset: bool,
    closed: bool,
    written: u64,
    read: u64,
}

struct Pipe {
    config: AnchorConfig,
    ends: [EndState; 2],
    watch: Option<Watch>,
}

/// The place where the use of an end is recorded.
struct Watch {
    number: u32,
    used: UsedWires,
    /// It is recorded, and was not examined since.
    recorded: bool,
}

/// The numbers of the wires whose ends were used since they were last examined, each once: for an owner of many wires.
#[derive(Clone, Default)]
pub struct UsedWires(Arc<Mutex<VecDeque<u32>>>);

impl UsedWires {
    /// The next number.
    pub fn take(&self) -> Option<u32> {
        self.0.lock().pop_front()
    }
}

/// A handle of one end. The end closes when its last handle is dropped.
#[derive(Clone)]
pub struct InMemoryAnchor {
    holder: Arc<Holder>,
}

struct Holder {
    pipe: Arc<Mutex<Pipe>>,
    end: AnchorEnd,
}

/// The wire between the two ends, for the owner of a simulation.
#[derive(Clone)]
pub struct AnchorWire {
    pipe: Arc<Mutex<Pipe>>,
}

/// A connected pair, and its wire.
pub fn anchor_pair(config: AnchorConfig) -> (InMemoryAnchor, InMemoryAnchor, AnchorWire) {
    let pipe = Arc::new(Mutex::new(Pipe { config, ends: Default::default(), watch: None }));
    let end = |end| InMemoryAnchor { holder: Arc::new(Holder { pipe: pipe.clone(), end }) };
    (end(AnchorEnd::First), end(AnchorEnd::Second), AnchorWire { pipe: pipe.clone() })
}

impl InMemoryAnchor {
    /// The result of a readiness poll now.
    pub fn state(&self) -> AnchorState {
        self.holder.pipe.lock().state(self.holder.end)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Pipe, AnchorEnd) -> R) -> R {
        let mut pipe = self.holder.pipe.lock();
        let result = f(&mut pipe, self.holder.end);
        pipe.deliver_if_immediate();
        pipe.record_use();
        result
    }
}

impl Anchor for InMemoryAnchor {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        self.with(|pipe, end| {
            let capacity = pipe.config.send_capacity;
            let near = pipe.end(end);
            if near.error.is_some() || near.write_ended || near.reset_received {
                return Err(os_error(near.error.take().unwrap_or(EPIPE)));
            }
            let room = capacity - near.unsent.len();
            if room == 0 && !bytes.is_empty() {
                return Err(AnchorError::WouldBlock);
            }
            let count = room.min(bytes.len());
            near.unsent.extend(&bytes[..count]);
            near.written += count as u64;
            Ok(count)
        })
    }

    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.with(|pipe, end| {
            let count = pipe.end(end).copy_unread(buf)?;
            pipe.end(end).unread.drain(..count);
            pipe.end(end).read += count as u64;
            Ok(count)
        })
    }

    fn try_peek(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.with(|pipe, end| pipe.end(end).copy_unread(buf))
    }

    fn position(&self) -> Option<AnchorPosition> {
        let pipe = self.holder.pipe.lock();
        let near = &pipe.ends[self.holder.end as usize];
        Some(AnchorPosition { written: near.written, read: near.read })
    }

    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        self.with(|pipe, end| {
            let near = pipe.end(end);
            if near.reset_received {
                return Err(os_error(ENOTCONN));
            }
            near.write_ended = true;
            Ok(())
        })
    }

    fn shutdown_read(&mut self) -> Result<(), AnchorError> {
        self.with(|pipe, end| {
            let near = pipe.end(end);
            if near.reset_received {
                return Err(os_error(ENOTCONN));
            }
            near.read_ended = true;
            Ok(())
        })
    }

    fn is_broken(&self) -> bool {
        let pipe = self.holder.pipe.lock();
        let near = &pipe.ends[self.holder.end as usize];
        near.unread.is_empty() && near.error.is_some()
    }

    fn is_over(&self) -> bool {
        let pipe = self.holder.pipe.lock();
        let near = &pipe.ends[self.holder.end as usize];
        near.reset_received || near.fin_received && near.write_ended
    }

    fn is_ended(&self) -> bool {
        let pipe = self.holder.pipe.lock();
        let near = &pipe.ends[self.holder.end as usize];
        near.reset_received || near.fin_received
    }

    fn has_fin(&self, _read: u64) -> Option<bool> {
        Some(self.holder.pipe.lock().ends[self.holder.end as usize].fin_received)
    }

    fn unread(&self) -> u64 {
        let pipe = self.holder.pipe.lock();
        pipe.ends[self.holder.end as usize].unread.len() as u64
    }

    fn clear_error(&mut self) {
        self.with(|pipe, end| pipe.end(end).error = None);
    }

    fn abort(&mut self) {
        self.with(|pipe, end| pipe.end(end).linger_reset = true);
    }

    fn reset(&mut self) {
        self.with(|pipe, end| {
            let near = pipe.end(end);
            near.unread.clear();
            near.unsent.clear();
            // An end of the stream that waited behind unsent bytes is lost with them.
            (near.write_ended, near.fin_sent) = (true, true);
            near.reset_received = true;
            pipe.end(end.peer()).reset_pending = true;
        });
    }

    /// Without effect: every byte is announced.
    fn set_low_water(&mut self, _: u32) {}
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut pipe = self.pipe.lock();
        let near = pipe.end(self.end);
        near.closed = true;
        let reset = near.linger_reset || !near.unread.is_empty();
        near.unread.clear();
        if near.reset_received {
            near.unsent.clear();
        } else if reset {
            pipe.end(self.end.peer()).reset_pending = true;
        } else {
            near.write_ended = true;
        }
        pipe.deliver_if_immediate();
        pipe.record_use();
    }
}

impl AnchorWire {
    /// All events that can happen next, in a fixed order. Empty when the wire is quiet.
    pub fn deliverable(&self) -> Vec<AnchorDelivery> {
        self.pipe.lock().deliverable()
    }

    /// Makes one event happen; `false` if it cannot happen now.
    pub fn deliver(&self, delivery: AnchorDelivery) -> bool {
        self.pipe.lock().deliver(delivery)
    }

    /// Makes one event happen, picked by `choice`; bytes are split at a point picked by `choice` as well, from 1 byte
    /// to all that can arrive. Returns the event, or `None` when the wire is quiet.
    pub fn step(&self, choice: u64) -> Option<AnchorDelivery> {
        let mut pipe = self.pipe.lock();
        let all = pipe.deliverable();
        let count = all.len().max(1) as u64;
        let picked = match *all.get((choice % count) as usize)? {
            AnchorDelivery::Bytes { to, len } => {
                AnchorDelivery::Bytes { to, len: 1 + ((choice / count) % len as u64) as usize }
            }
            other => other,
        };
        pipe.deliver(picked).then_some(picked)
    }

    /// Makes deliveries until the wire is quiet.
    pub fn deliver_all(&self) {
        self.pipe.lock().deliver_all();
    }

    /// The connection breaks in the middle: both ends are to be reset.
    pub fn break_off(&self) {
        let mut pipe = self.pipe.lock();
        for end in &mut pipe.ends {
            end.reset_pending |= !end.reset_received;
        }
        pipe.deliver_if_immediate();
    }

    /// The result of a readiness poll of an end now.
    pub fn state(&self, end: AnchorEnd) -> AnchorState {
        self.pipe.lock().state(end)
    }

    /// Records `number` in `used` when an end is used, once until [`reset_use`](AnchorWire::reset_use).
    pub fn watch(&self, number: u32, used: &UsedWires) {
        self.pipe.lock().watch = Some(Watch { number, used: used.clone(), recorded: false });
    }

    /// Records the next use again.
    pub fn reset_use(&self) {
        if let Some(watch) = &mut self.pipe.lock().watch {
            watch.recorded = false;
        }
    }

    /// Whether `from` writes no more, and its end has not arrived.
    pub fn is_ending(&self, from: AnchorEnd) -> bool {
        let pipe = self.pipe.lock();
        let end = &pipe.ends[from as usize];
        end.write_ended && !end.fin_sent
    }

    /// Whether nothing can happen any more: both ends have received the end of the other's direction, or were reset.
    pub fn is_over(&self) -> bool {
        self.pipe.lock().ends.iter().all(|end| end.fin_sent)
    }

    /// Copies bytes that `from` has written and that have not arrived, from the `skip`th on; returns their number.
    pub fn copy_unsent(&self, from: AnchorEnd, skip: usize, buf: &mut [u8]) -> usize {
        let pipe = self.pipe.lock();
        let unsent = &pipe.ends[from as usize].unsent;
        let count = buf.len().min(unsent.len().saturating_sub(skip));
        for (slot, byte) in buf.iter_mut().zip(unsent.iter().skip(skip)) {
            *slot = *byte;
        }
        count
    }
}

impl Pipe {
    fn end(&mut self, end: AnchorEnd) -> &mut EndState {
        &mut self.ends[end as usize]
    }

    fn state(&self, end: AnchorEnd) -> AnchorState {
        let near = &self.ends[end as usize];
        let failed = near.error.is_some() || near.reset_received;
        AnchorState {
            readable: !near.unread.is_empty() || near.fin_received || near.read_ended || failed,
            writable: near.unsent.len() < self.config.send_capacity || near.write_ended || failed,
            peer_closed: near.fin_received || near.reset_received,
            reset: near.reset_received,
            unread: near.unread.len(),
            unsent: near.unsent.len(),
        }
    }

    fn deliverable(&self) -> Vec<AnchorDelivery> {
        let mut all = Vec::new();
        for to in [AnchorEnd::First, AnchorEnd::Second] {
            let (near, from) = (&self.ends[to as usize], &self.ends[to.peer() as usize]);
            if near.reset_received {
                continue;
            }
            // A closed end takes any number of bytes: it discards them and answers with a reset.
            let room = if near.closed { usize::MAX } else { self.config.receive_capacity - near.unread.len() };
            let len = from.unsent.len().min(room);
            if len > 0 {
                all.push(AnchorDelivery::Bytes { to, len });
            }
            if from.write_ended && from.unsent.is_empty() && !from.fin_sent {
                all.push(AnchorDelivery::Fin { to });
            }
            if near.reset_pending {
                all.push(AnchorDelivery::Reset { to });
            }
        }
        all
    }

    fn deliver(&mut self, delivery: AnchorDelivery) -> bool {
        let possible = self.deliverable().into_iter().find(|d| match (d, &delivery) {
            (AnchorDelivery::Bytes { to, .. }, AnchorDelivery::Bytes { to: wanted, len }) => to == wanted && *len > 0,
            _ => *d == delivery,
        });
        match (possible, delivery) {
            (Some(AnchorDelivery::Bytes { to, len: most }), AnchorDelivery::Bytes { len, .. }) => {
                self.deliver_bytes(to, len.min(most));
            }
            (Some(AnchorDelivery::Fin { to }), _) => {
                self.end(to.peer()).fin_sent = true;
                self.end(to).fin_received = true;
            }
            (Some(AnchorDelivery::Reset { to }), _) => self.deliver_reset(to),
            _ => return false,
        }
        true
    }

    fn deliver_bytes(&mut self, to: AnchorEnd, len: usize) {
        let bytes: Vec<u8> = self.end(to.peer()).unsent.drain(..len).collect();
        let near = self.end(to);
        let deaf = near.read_ended && near.fin_sent && !near.fin_received;
        if !near.closed && !deaf {
            return near.unread.extend(bytes);
        }
        if deaf {
            self.deliver_reset(to);
        }
        self.end(to.peer()).reset_pending = true;
    }

    fn deliver_reset(&mut self, to: AnchorEnd) {
        // Neither direction continues: a reset connection sends nothing, and its peer has forgotten it.
        self.end(to.peer()).unsent.clear();
        self.end(to.peer()).write_ended = true;
        self.end(to.peer()).fin_sent = true;
        let near = self.end(to);
        near.unsent.clear();
        near.fin_sent = true;
        near.write_ended = true;
        near.reset_pending = false;
        near.reset_received = true;
        near.error = Some(if near.fin_received { EPIPE } else { ECONNRESET });
    }

    fn deliver_all(&mut self) {
        // Bytes and FIN of an end go before its reset, which is last in the list for each end.
        while let Some(next) = self.deliverable().first().copied() {
            self.deliver(next);
        }
    }

    fn record_use(&mut self) {
        if let Some(watch) = &mut self.watch {
            if !std::mem::replace(&mut watch.recorded, true) {
                watch.used.0.lock().push_back(watch.number);
            }
        }
    }

    fn deliver_if_immediate(&mut self) {
        if self.config.mode == DeliveryMode::Immediate {
            self.deliver_all();
        }
    }
}

impl EndState {
    /// Copies unread bytes, or returns the reason why there are none, with Linux's order of checks.
    fn copy_unread(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        if !self.unread.is_empty() || buf.is_empty() {
            let count = buf.len().min(self.unread.len());
            for (slot, byte) in buf.iter_mut().zip(&self.unread) {
                *slot = *byte;
            }
            return Ok(count);
        }
        if self.fin_received {
            return Ok(0);
        }
        match self.error.take() {
            Some(errno) => Err(os_error(errno)),
            None if self.reset_received || self.read_ended => Ok(0),
            None => Err(AnchorError::WouldBlock),
        }
    }
}

fn os_error(errno: i32) -> AnchorError {
    AnchorError::Os(io::Error::from_raw_os_error(errno))
}

#[cfg(test)]
mod tests;
