//! Datagrams between the kernels of two processes whose network is a simulator's own: it may lose, double and reorder them.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::host::Wired;

/// A datagram that the simulator is to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPacket {
    /// Names it, see [`ProgramUdp::handle_arrival`].
    pub number: u64,
    /// The host that sends it.
    pub from: usize,
    /// The host that it is for.
    pub to: usize,
    /// Bytes of payload.
    pub len: usize,
}

/// The kernels' datagrams. Clones are handles to the same.
#[derive(Clone, Default)]
pub struct ProgramUdp(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    outgoing: VecDeque<UdpPacket>,
    /// With the number of its arrivals.
    sent: BTreeMap<u64, (Wired, u64)>,
    arrived: VecDeque<Wired>,
}

impl ProgramUdp {
    /// The next datagram to carry.
    pub fn next_packet(&self) -> Option<UdpPacket> {
        self.0.lock().outgoing.pop_front()
    }

    /// A datagram reaches its host.
    pub fn handle_arrival(&self, number: u64) {
        let state = &mut *self.0.lock();
        if let Some((datagram, arrivals)) = state.sent.get_mut(&number) {
            *arrivals += 1;
            state.arrived.push_back(datagram.clone());
        }
    }

    pub(super) fn send(&self, from: usize, to: usize, datagram: Wired) {
        let state = &mut *self.0.lock();
        let number = state.sent.len() as u64;
        state.outgoing.push_back(UdpPacket { number, from, to, len: datagram.bytes.len() });
        state.sent.insert(number, (datagram, 0));
    }

    pub(super) fn take_arrival(&self) -> Option<Wired> {
        self.0.lock().arrived.pop_front()
    }

    /// Whether a datagram has arrived twice.
    pub(super) fn has_doubled(&self) -> bool {
        self.0.lock().sent.values().any(|(_, arrivals)| *arrivals > 1)
    }

    /// Datagrams that have not arrived.
    pub(super) fn lost(&self, from: SocketAddr, to: SocketAddr) -> u64 {
        let state = self.0.lock();
        let lost = |(datagram, arrivals): &&(Wired, u64)| (datagram.from, datagram.to, *arrivals) == (from, to, 0);
        state.sent.values().filter(lost).count() as u64
    }
}
