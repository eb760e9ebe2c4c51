//! The processes' TCP connections, which a simulator's own TCP carries: of conversations, or of a program of socket operations.

use netacc_device::Instant;
use netacc_modelled::TcpWires;

use crate::ffi::WireSpec;
use crate::fleet::Fleet;

/// No number.
const NONE: u32 = u32::MAX;

impl Fleet {
    pub(crate) fn tcp_buffer_bytes(&self) -> u64 {
        let of_program = self.program_tcp().map(netacc_harness::ProgramTcp::buffer_bytes);
        of_program.or_else(|| self.run()?.tcp_buffer_bytes()).unwrap_or(0) as u64
    }

    pub(crate) fn next_connect(&mut self) -> WireSpec {
        let next = self.wires(TcpWires::next_connect).flatten();
        let (number, [client, server]) = next.map_or((NONE, [NONE; 2]), |(n, hosts)| (n, hosts.map(|host| host.0)));
        WireSpec { number, client, server }
    }

    pub(crate) fn handle_connected(&mut self, wire: u32, now_ns: u64) {
        match self.run_mut() {
            Some(run) => run.handle_connected(wire, Instant::from_nanos(now_ns)),
            None => drop(self.wires(|wires| wires.handle_connected(wire))),
        }
    }

    pub(crate) fn next_wire(&mut self) -> u32 {
        self.wires(TcpWires::take_dirty).flatten().unwrap_or(NONE)
    }

    pub(crate) fn poll_wire(&mut self, wire: u32, side: u32, buffer: &mut [u8]) -> usize {
        self.wires(|wires| wires.poll_bytes(wire, side as usize, buffer)).unwrap_or(0)
    }

    pub(crate) fn poll_wire_end(&mut self, wire: u32, side: u32) -> bool {
        self.wires(|wires| wires.poll_end(wire, side as usize)).unwrap_or(false)
    }

    pub(crate) fn wire_room(&self, wire: u32, side: u32) -> usize {
        match self.program_tcp() {
            Some(tcp) => tcp.with(|wires| wires.room(wire, side as usize)),
            None => self.run().map_or(0, |run| run.tcp_room(wire, side as usize)),
        }
    }

    pub(crate) fn handle_wire(&mut self, wire: u32, side: u32, now_ns: u64, bytes: &[u8]) {
        if let Some(tcp) = self.program_tcp() {
            return tcp.handle_bytes(wire, side as usize, bytes);
        }
        let Some(run) = self.run_mut() else { return };
        match run.tcp().handle_bytes(wire, side as usize, bytes) {
            Ok(()) => run.handle_arrival(wire, side as usize, Instant::from_nanos(now_ns)),
            Err(_) => run.handle_corruption(wire),
        }
    }

    pub(crate) fn handle_wire_end(&mut self, wire: u32, side: u32, now_ns: u64) {
        if let Some(tcp) = self.program_tcp() {
            tcp.handle_end(wire, side as usize);
        } else if let Some(run) = self.run_mut() {
            run.tcp().handle_end(wire, side as usize);
            run.handle_arrival(wire, side as usize, Instant::from_nanos(now_ns));
        }
    }

    pub(crate) fn handle_wire_failure(&mut self, wire: u32, now_ns: u64) {
        if let Some(tcp) = self.program_tcp() {
            tcp.handle_failure(wire);
        } else if let Some(run) = self.run_mut() {
            run.tcp().handle_failure(wire);
            (0..2).for_each(|side| run.handle_arrival(wire, side, Instant::from_nanos(now_ns)));
        }
    }

    fn wires<R>(&mut self, f: impl FnOnce(&mut TcpWires) -> R) -> Option<R> {
        match self.program_tcp() {
            Some(tcp) => Some(tcp.with(f)),
            None => self.run_mut().map(|run| f(run.tcp())),
        }
    }
}
