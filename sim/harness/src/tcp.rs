//! Connections of a program whose TCP is a simulator's own, instead of wires that the scheduler delivers on.
//!
//! The simulator takes the bytes that an end writes, and brings them to the other end when their packets have arrived: late, after
//! losses and cut cables, but all of them, and in order. Resets alone are no packets: a simulator's sockets have no way to abort,
//! so the scheduler delivers them, and bytes that TCP brings later are dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use netacc_device::loopback::anchor::{AnchorDelivery, AnchorEnd, AnchorWire};
use netacc_modelled::{HostId, TcpWires};
use parking_lot::Mutex;

/// The connections' TCP. Clones are handles to the same.
#[derive(Clone)]
pub struct ProgramTcp {
    state: Arc<Mutex<State>>,
    buffer_bytes: usize,
}

#[derive(Default)]
struct State {
    wires: TcpWires,
    /// Bytes and ends that have arrived, and whose readers were not woken yet.
    arrivals: VecDeque<(u32, AnchorDelivery)>,
    delivered_bytes: u64,
    /// A connection to which wrong bytes have come.
    corrupt: Option<u32>,
}

impl ProgramTcp {
    pub(crate) fn new(buffer_bytes: usize) -> ProgramTcp {
        ProgramTcp { state: Arc::default(), buffer_bytes }
    }

    /// Bytes of a socket's send and receive buffers each.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// The connections, from which the simulator takes bytes. It delivers with the methods below.
    pub fn with<R>(&self, f: impl FnOnce(&mut TcpWires) -> R) -> R {
        f(&mut self.state.lock().wires)
    }

    /// Bytes reach a side.
    pub fn handle_bytes(&self, number: u32, side: usize, bytes: &[u8]) {
        let state = &mut *self.state.lock();
        match (state.wires.handle_bytes(number, side, bytes), end(side)) {
            (Ok(()), Some(to)) => {
                state.delivered_bytes += bytes.len() as u64;
                state.arrivals.push_back((number, AnchorDelivery::Bytes { to, len: bytes.len() }));
            }
            _ => state.corrupt = Some(number),
        }
    }

    /// The end of the peer's bytes reaches a side.
    pub fn handle_end(&self, number: u32, side: usize) {
        let state = &mut *self.state.lock();
        state.wires.handle_end(number, side);
        state.arrivals.extend(end(side).map(|to| (number, AnchorDelivery::Fin { to })));
    }

    /// TCP has given up.
    pub fn handle_failure(&self, number: u32) {
        let state = &mut *self.state.lock();
        state.wires.handle_failure(number);
        let resets = [AnchorEnd::First, AnchorEnd::Second].map(|to| (number, AnchorDelivery::Reset { to }));
        state.arrivals.extend(resets);
    }

    /// Bytes that TCP has brought.
    pub fn delivered_bytes(&self) -> u64 {
        self.state.lock().delivered_bytes
    }

    /// A connection of two processes is to be made; its number.
    pub(crate) fn add(&self, hosts: [usize; 2], wire: AnchorWire) -> u32 {
        self.with(|wires| wires.add(hosts.map(|host| HostId(host as u32)), wire))
    }

    pub(crate) fn is_connected(&self, number: u32) -> bool {
        self.with(|wires| wires.is_connected(number))
    }

    pub(crate) fn take_arrival(&self) -> Option<(u32, AnchorDelivery)> {
        self.state.lock().arrivals.pop_front()
    }

    /// A connection to which bytes have come that no process wrote there.
    pub(crate) fn corrupt(&self) -> Option<u32> {
        self.state.lock().corrupt
    }
}

fn end(side: usize) -> Option<AnchorEnd> {
    [AnchorEnd::First, AnchorEnd::Second].get(side).copied()
}
