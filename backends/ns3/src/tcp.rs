//! The processes' TCP connections, which a simulator's own TCP carries.

use netacc_device::Instant;

use crate::ffi::WireSpec;
use crate::fleet::Fleet;

/// No number.
const NONE: u32 = u32::MAX;

impl Fleet {
    pub(crate) fn tcp_buffer_bytes(&self) -> u64 {
        self.run().and_then(netacc_rpc::Run::tcp_buffer_bytes).unwrap_or(0) as u64
    }

    pub(crate) fn next_connect(&mut self) -> WireSpec {
        let next = self.run_mut().and_then(|run| run.tcp().next_connect());
        let (number, [client, server]) = next.map_or((NONE, [NONE; 2]), |(n, hosts)| (n, hosts.map(|host| host.0)));
        WireSpec { number, client, server }
    }

    pub(crate) fn handle_connected(&mut self, wire: u32, now_ns: u64) {
        if let Some(run) = self.run_mut() {
            run.handle_connected(wire, Instant::from_nanos(now_ns));
        }
    }

    pub(crate) fn next_wire(&mut self) -> u32 {
        self.run_mut().and_then(|run| run.tcp().take_dirty()).unwrap_or(NONE)
    }

    pub(crate) fn poll_wire(&mut self, wire: u32, side: u32, buffer: &mut [u8]) -> usize {
        self.run_mut().map_or(0, |run| run.tcp().poll_bytes(wire, side as usize, buffer))
    }

    pub(crate) fn poll_wire_end(&mut self, wire: u32, side: u32) -> bool {
        self.run_mut().is_some_and(|run| run.tcp().poll_end(wire, side as usize))
    }

    pub(crate) fn wire_room(&self, wire: u32, side: u32) -> usize {
        self.run().map_or(0, |run| run.tcp_room(wire, side as usize))
    }

    pub(crate) fn handle_wire(&mut self, wire: u32, side: u32, now_ns: u64, bytes: &[u8]) {
        let Some(run) = self.run_mut() else { return };
        match run.tcp().handle_bytes(wire, side as usize, bytes) {
            Ok(()) => run.handle_arrival(wire, side as usize, Instant::from_nanos(now_ns)),
            Err(_) => run.handle_corruption(wire),
        }
    }

    pub(crate) fn handle_wire_end(&mut self, wire: u32, side: u32, now_ns: u64) {
        if let Some(run) = self.run_mut() {
            run.tcp().handle_end(wire, side as usize);
            run.handle_arrival(wire, side as usize, Instant::from_nanos(now_ns));
        }
    }

    pub(crate) fn handle_wire_failure(&mut self, wire: u32, now_ns: u64) {
        if let Some(run) = self.run_mut() {
            run.tcp().handle_failure(wire);
            (0..2).for_each(|side| run.handle_arrival(wire, side, Instant::from_nanos(now_ns)));
        }
    }
}
