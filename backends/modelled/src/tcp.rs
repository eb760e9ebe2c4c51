//! TCP connections whose bytes a simulator's own TCP carries.
//!
//! Both ends are [in-memory anchors](netacc_device::loopback::anchor); their sockets' buffers are those of the anchors.
//! The simulator takes the bytes that an end has written ([`TcpWires::poll_bytes`]), and delivers bytes
//! ([`TcpWires::handle_bytes`]). These are the bytes themselves; they are compared with those that were written.
//!
//! Invariant: of the bytes that an end has written and that have not arrived, the first `given` are in the simulator's TCP.

use std::collections::VecDeque;

use netacc_device::loopback::anchor::{AnchorDelivery, AnchorEnd, AnchorWire, UsedWires};

use crate::HostId;

/// An end of a wire: the one that connected, or the one that accepted.
const ENDS: [AnchorEnd; 2] = [AnchorEnd::First, AnchorEnd::Second];

struct Wire {
    wire: AnchorWire,
    hosts: [HostId; 2],
    connected: bool,
    /// By writer.
    given: [usize; 2],
    /// By writer: the simulator has taken the end.
    ended: [bool; 2],
}

/// The simulator's TCP has delivered bytes that no process wrote there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// See the module documentation. Wires are numbered from 0, the sides of each are 0 (connected) and 1 (accepted); calls on
/// others do nothing.
#[derive(Default)]
pub struct TcpWires {
    used: UsedWires,
    wires: Vec<Option<Wire>>,
    /// Wires that [`next_connect`](TcpWires::next_connect) will return.
    unconnected: VecDeque<u32>,
    buffer: Vec<u8>,
}

impl TcpWires {
    /// A connection of these hosts, the first of which connects.
    pub fn add(&mut self, hosts: [HostId; 2], wire: AnchorWire) -> u32 {
        let number = self.wires.len() as u32;
        self.put(number, hosts, wire);
        number
    }

    /// As [`add`](TcpWires::add), with a number that the caller chooses. The previous wire with the number is dropped,
    /// and the simulator drops it when it takes the new one.
    pub fn put(&mut self, number: u32, hosts: [HostId; 2], wire: AnchorWire) {
        wire.watch(number, &self.used);
        if self.wires.len() <= number as usize {
            self.wires.resize_with(number as usize + 1, || None);
        }
        self.wires[number as usize] = Some(Wire { wire, hosts, connected: false, given: [0; 2], ended: [false; 2] });
        self.unconnected.push_back(number);
    }

    /// A connection is over, and its number free.
    pub fn remove(&mut self, number: u32) {
        if let Some(wire) = self.wires.get_mut(number as usize) {
            *wire = None;
        }
    }

    fn get(&self, number: u32) -> Option<&Wire> {
        self.wires.get(number as usize)?.as_ref()
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Wire> {
        self.wires.get_mut(number as usize)?.as_mut()
    }

    /// A connection that is to be made, and its hosts.
    pub fn next_connect(&mut self) -> Option<(u32, [HostId; 2])> {
        loop {
            let number = self.unconnected.pop_front()?;
            if let Some(wire) = self.get(number) {
                return Some((number, wire.hosts));
            }
        }
    }

    /// The connection is made.
    pub fn handle_connected(&mut self, number: u32) {
        if let Some(wire) = self.get_mut(number) {
            wire.connected = true;
        }
    }

    /// Whether the connection is made.
    pub fn is_connected(&self, number: u32) -> bool {
        self.get(number).is_some_and(|w| w.connected)
    }

    /// The hosts at the ends.
    pub fn hosts(&self, number: u32) -> Option<[HostId; 2]> {
        self.get(number).map(|w| w.hosts)
    }

    /// A wire whose ends were used: there may be bytes to send, or room for more.
    pub fn take_dirty(&mut self) -> Option<u32> {
        let number = self.used.take()?;
        if let Some(wire) = self.get(number) {
            wire.wire.reset_use();
        }
        Some(number)
    }

    /// The next bytes that a side has written; returns their number.
    pub fn poll_bytes(&mut self, number: u32, side: usize, buf: &mut [u8]) -> usize {
        let Some((wire, from)) = self.get_mut(number).zip(ENDS.get(side)) else { return 0 };
        let count = wire.wire.copy_unsent(*from, wire.given[side], buf);
        wire.given[side] += count;
        count
    }

    /// Whether a side writes no more and all its bytes were taken. Reported once.
    pub fn poll_end(&mut self, number: u32, side: usize) -> bool {
        let Some((wire, from)) = self.get_mut(number).zip(ENDS.get(side)) else { return false };
        let left = wire.wire.copy_unsent(*from, wire.given[side], &mut [0]);
        let ends = wire.wire.is_ending(*from) && left == 0 && !wire.ended[side];
        wire.ended[side] |= ends;
        ends
    }

    /// Bytes that a side has room for, of those in flight to it.
    pub fn room(&self, number: u32, side: usize) -> usize {
        let Some((wire, end)) = self.get(number).zip(ENDS.get(side)) else { return 0 };
        let lens = wire.wire.deliverable().into_iter().map(|delivery| match delivery {
            AnchorDelivery::Bytes { to, len } if to == *end => len,
            _ => 0,
        });
        lens.max().unwrap_or(0).min(wire.given[1 - side])
    }

    /// Bytes arrive at a side, at most as many as it has [`room`](TcpWires::room) for. After a reset they are dropped.
    ///
    /// # Errors
    /// Fails if they are not the bytes that its peer has written there.
    pub fn handle_bytes(&mut self, number: u32, side: usize, bytes: &[u8]) -> Result<(), Corrupt> {
        if bytes.is_empty() {
            return Ok(());
        }
        let wire = self.wires.get_mut(number as usize).and_then(Option::as_mut);
        let Some((wire, to)) = wire.zip(ENDS.get(side)) else { return Err(Corrupt) };
        if ENDS.into_iter().any(|end| wire.wire.state(end).reset) {
            return Ok(());
        }
        self.buffer.resize(bytes.len(), 0);
        let there = wire.wire.copy_unsent(to.peer(), 0, &mut self.buffer);
        let given = &mut wire.given[1 - side];
        if self.buffer[..there] != *bytes || *given < bytes.len() {
            return Err(Corrupt);
        }
        *given -= bytes.len();
        match wire.wire.deliver(AnchorDelivery::Bytes { to: *to, len: bytes.len() }) {
            true => Ok(()),
            false => Err(Corrupt),
        }
    }

    /// The end of the stream arrives at a side.
    pub fn handle_end(&mut self, number: u32, side: usize) {
        if let Some((wire, to)) = self.get(number).zip(ENDS.get(side)) {
            wire.wire.deliver(AnchorDelivery::Fin { to: *to });
        }
    }

    /// The connection is gone, for both sides: it could not be made, or TCP has given up.
    pub fn handle_failure(&mut self, number: u32) {
        let Some(wire) = self.get(number) else { return };
        wire.wire.break_off();
        ENDS.into_iter().for_each(|to| {
            wire.wire.deliver(AnchorDelivery::Reset { to });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, InMemoryAnchor};
    use netacc_device::loopback::DeliveryMode;
    use netacc_device::Anchor;

    fn pair(capacity: usize) -> (InMemoryAnchor, InMemoryAnchor, TcpWires) {
        let config = AnchorConfig { send_capacity: capacity, receive_capacity: capacity, mode: DeliveryMode::Explicit };
        let (near, far, wire) = anchor_pair(config);
        let mut wires = TcpWires::default();
        assert_eq!(wires.add([HostId(3), HostId(5)], wire), 0);
        (near, far, wires)
    }

    // Breaks if bytes are given twice, arrive before they were given, or are not announced.
    #[test]
    fn bytes_are_given_to_the_simulation_once() {
        let (mut near, mut far, mut wires) = pair(8);
        assert_eq!(wires.next_connect(), Some((0, [HostId(3), HostId(5)])));
        assert_eq!(wires.next_connect(), None);
        assert_eq!(wires.take_dirty(), None);
        assert_eq!(near.try_write(b"0123456789").ok(), Some(8));
        assert_eq!((wires.take_dirty(), wires.take_dirty()), (Some(0), None));
        let mut buf = [0; 5];
        assert_eq!((wires.poll_bytes(0, 0, &mut buf), &buf), (5, b"01234"));
        assert_eq!((wires.poll_bytes(0, 0, &mut buf), &buf[..3]), (3, &b"567"[..]));
        assert_eq!(wires.poll_bytes(0, 0, &mut buf), 0);
        assert!(far.try_read(&mut buf).is_err());
        assert_eq!(wires.room(0, 1), 8);
        assert_eq!(wires.handle_bytes(0, 1, b"012"), Ok(()));
        assert_eq!((wires.take_dirty(), near.try_write(b"89").ok()), (Some(0), Some(2)));
        assert_eq!((far.try_read(&mut buf).ok(), &buf[..3]), (Some(3), &b"012"[..]));
        assert_eq!((wires.poll_bytes(0, 0, &mut buf), &buf[..2]), (2, &b"89"[..]));
        assert_eq!(wires.handle_bytes(0, 1, b"34567"), Ok(()));
        assert_eq!(wires.room(0, 1), 2);
    }

    // Breaks if wrong bytes, or bytes that were not given, are accepted.
    #[test]
    fn wrong_bytes_are_noticed() {
        let (mut near, _far, mut wires) = pair(8);
        assert_eq!(near.try_write(b"abc").ok(), Some(3));
        assert_eq!(wires.handle_bytes(0, 1, b"a"), Err(Corrupt));
        let mut buf = [0; 8];
        assert_eq!(wires.poll_bytes(0, 0, &mut buf), 3);
        assert_eq!(wires.handle_bytes(0, 1, b"b"), Err(Corrupt));
        assert_eq!(wires.handle_bytes(0, 1, b"abcd"), Err(Corrupt));
        assert_eq!(wires.handle_bytes(0, 1, b"abc"), Ok(()));
    }

    // Breaks if an end arrives before the last byte, or twice; or a failure leaves an end waiting.
    #[test]
    fn ends_and_failures_arrive() {
        let (mut near, mut far, mut wires) = pair(8);
        assert_eq!(near.try_write(b"abc").ok(), Some(3));
        assert!(near.shutdown_write().is_ok());
        assert!(!wires.poll_end(0, 0), "three bytes are left");
        let mut buf = [0; 8];
        wires.poll_bytes(0, 0, &mut buf);
        assert!(wires.poll_end(0, 0) && !wires.poll_end(0, 0) && !wires.poll_end(0, 1));
        wires.handle_end(0, 1);
        assert!(!far.is_ended());
        assert_eq!(wires.handle_bytes(0, 1, b"abc"), Ok(()));
        wires.handle_end(0, 1);
        assert_eq!((far.try_read(&mut buf).ok(), far.try_read(&mut buf).ok()), (Some(3), Some(0)));
        wires.handle_failure(0);
        assert!(near.is_over() && far.is_over());
        assert_eq!(wires.handle_bytes(0, 0, b"of before"), Ok(()), "in flight when it was reset");
    }
}
