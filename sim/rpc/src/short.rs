//! Short connections: made when they are due, used, and closed while the run goes on.
//!
//! The client closes when it has its last answer, the server when it has read the end. Both do as the library does: a
//! promotion in progress ends first, and the endpoint finishes a stream that is on a link, which has a duplicate of the
//! socket for that.
//!
//! Invariant: a number of [`Run::connections`] is free once both sockets are closed and TCP has nothing more to carry; a task
//! that still names it then finds no connection, or the next one of that number, which polls once more than it need.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netacc_device::loopback::anchor::{AnchorDelivery, AnchorEnd};
use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_driver::Endpoint;
use netacc_modelled::HostId;
use netacc_proto::{Phase, Reason};

use crate::config::Tcp;
use crate::connection::{connect, Numbers, Short, Socket};
use crate::measured::ShortConnection;
use crate::run::{Due, Run};
use crate::workload::Conversation;

/// The tag of a stream whose socket is closed.
const NOBODY: u32 = u32::MAX;
/// How long a close waits for a promotion under way, and for one that it has called off: the library's figures.
const SWITCH_PATIENCE: Duration = Duration::from_millis(200);
const CLOSE_PATIENCE: Duration = Duration::from_millis(2);

impl Run {
    /// Makes a connection; its number among those that there are.
    pub(crate) fn open(&mut self, conversation: usize, plan: &Conversation, begun: Option<Instant>) -> usize {
        let entry = self.connections.vacant_entry();
        let number = entry.key();
        let numbers = Numbers { conversation: conversation as u32, number: number as u32, serial: self.connected };
        self.connected += 1;
        let mut connection = connect(&self.endpoints, plan, numbers, self.tcp, self.promotions.after);
        connection.traced = self.results.traced.then(Box::default);
        connection.short = begun.map(|begun| Short { begun, connected: None, answered: 0, closing: [None; 2] });
        match self.tcp {
            Tcp::Simulated { .. } => {
                self.wires.put(
                    number as u32,
                    [HostId(connection.client), HostId(connection.server)],
                    connection.wire.clone(),
                );
            }
            Tcp::Memory if begun.is_some() => connection.wire.watch(number as u32, &self.used),
            Tcp::Memory => {}
        }
        for side in [0, 1] {
            self.hosts[connection.host(side)].connections += 1;
        }
        entry.insert(connection);
        number
    }

    /// Has a client's host woken when it makes its next connection.
    pub(crate) fn plan_connect(&mut self, conversation: usize) {
        let Some(short_client) = self.short_clients.get_mut(conversation).and_then(Option::as_mut) else { return };
        let sooner = |due: &Instant| short_client.wake_at.is_none_or(|at| *due < at);
        if let Some(due) = short_client.source.due().filter(sooner) {
            short_client.wake_at = Some(due);
            self.hosts[short_client.plan.client as usize].timers.push(Reverse((due, Due::Connect(conversation))));
        }
    }

    /// Makes the connections that are due; those that can be used at once are added to `ready`.
    pub(crate) fn connect_due(&mut self, conversation: usize, now: Instant, ready: &mut Vec<usize>) {
        while let Some(short_client) = self.short_clients.get_mut(conversation).and_then(Option::as_mut) {
            short_client.wake_at = None;
            let Some(due) = short_client.source.take(now) else { break };
            // Each connection has its own sequence.
            let seed = SplitMix64::new(short_client.plan.seed ^ short_client.made << 24).next_u64();
            short_client.made += 1;
            short_client.open += 1;
            let plan = short_client.plan.one_connection(now, short_client.requests, seed);
            let number = self.open(conversation, &plan, Some(due.begun));
            if self.tcp == Tcp::Memory {
                self.begin_connection(number, now);
                ready.push(number);
            }
        }
        self.plan_connect(conversation);
    }

    /// A side of a short connection has done what it could: whether it closes its socket now, and does so.
    pub(crate) fn close_if_over(&mut self, number: usize, side: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        if connection.short.is_none() {
            return;
        }
        let endpoint = &self.endpoints[connection.host(side)];
        let answered = side == 0 && connection.is_over();
        let ended = connection.end(endpoint, side).is_some_and(|mut end| end.is_at_end());
        let Some(short) = &mut connection.short else { return };
        if short.closing[side].is_none() {
            if !answered && !ended {
                return;
            }
            short.closing[side] = Some(now);
            if side == 0 {
                self.finish_short(number, now, !answered);
            }
        }
        self.go_on_closing(number, side, now);
    }

    /// One step of closing a socket.
    pub(crate) fn go_on_closing(&mut self, number: usize, side: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let host = connection.host(side);
        let Some(since) = connection.short.and_then(|short| short.closing[side]) else { return };
        let Some(socket) = &mut connection.sockets[side] else { return };
        let endpoint = &self.endpoints[host];
        if !close(endpoint, socket, now.saturating_since(since)) {
            self.hosts[host].timers.push(Reverse((now + CLOSE_PATIENCE, Due::Request(number))));
            return;
        }
        let counters = socket.cell.lock(endpoint).counters();
        self.results.carried[connection.conversation as usize].add(&counters);
        connection.sockets[side] = None;
        self.hosts[host].connections -= 1;
        if self.tcp == Tcp::Memory {
            self.nudge_peer(number, host);
        }
        self.release_if_over(number);
    }

    /// A client has its last answer on a connection, or will get none.
    fn finish_short(&mut self, number: usize, now: Instant, failed: bool) {
        let Some((connection, short)) =
            self.connections.get_mut(number).and_then(|connection| connection.short.map(|short| (connection, short)))
        else {
            return;
        };
        // Its requests that it has not made are not waited for.
        connection.exchanges.clear();
        connection.served = 0;
        connection.source.end();
        let conversation = connection.conversation as usize;
        if self.results.sampled {
            self.results.closed.push(ShortConnection {
                conversation: connection.conversation,
                begun: short.begun,
                connected: short.connected,
                end: now,
                answered: short.answered,
                failed,
                promoted: connection.was_linked,
            });
        }
        if connection.promoted && self.tcp == Tcp::Memory && !connection.was_linked {
            self.promotions.promoting = self.promotions.promoting.saturating_sub(1);
        }
        let Some(short_client) = self.short_clients.get_mut(conversation).and_then(Option::as_mut) else { return };
        short_client.open -= 1;
        short_client.source.handle_answer(now);
        if short_client.is_over() {
            self.open -= 1;
        }
        self.plan_connect(conversation);
    }

    /// Something has happened to the sockets of a connection: if both are closed and TCP is through, its number is free.
    pub(crate) fn release_if_over(&mut self, number: usize) {
        let Some(connection) = self.connections.get(number).filter(|connection| connection.short.is_some()) else {
            return;
        };
        // Resets are no packets: a simulator's sockets have no way to abort.
        let (wire, hosts) = (connection.wire.clone(), [connection.host(0), connection.host(1)]);
        for delivery in wire.deliverable() {
            let AnchorDelivery::Reset { to } = delivery else { continue };
            let host = hosts[usize::from(to == AnchorEnd::Second)];
            if wire.deliver(delivery) {
                self.hosts[host].ready.renew(number as u32);
                self.nudge(host);
            }
        }
        let Some(connection) = self.connections.get(number) else { return };
        if connection.sockets.iter().all(Option::is_none) && connection.wire.is_over() {
            self.connections.remove(number);
            self.wires.remove(number as u32);
        }
    }

    /// Looks at the connections whose TCP in memory was used by endpoints.
    pub(crate) fn release_all_over(&mut self) {
        while let Some(number) = self.used.take() {
            if let Some(connection) = self.connections.get(number as usize) {
                connection.wire.reset_use();
            }
            self.release_if_over(number as usize);
        }
    }
}

/// Closes a socket, as the library does. Whether it is closed: if not, call again when something has come for it, or time has
/// passed.
fn close(endpoint: &Endpoint, socket: &mut Socket, waited: Duration) -> bool {
    let cell = &socket.cell;
    if cell.lock(endpoint).close_plain() {
        cell.tag().store(NOBODY, Ordering::Relaxed);
        endpoint.forget(cell);
        return true;
    }
    // Bytes that have arrived and were not read decide between FIN and RST.
    cell.take_in(endpoint);
    let mut guard = cell.lock(endpoint);
    guard.change(|stream| stream.withdraw());
    if guard.proto().awaits_switch() {
        guard.change(|stream| stream.progress_anchor(false));
        if guard.proto().awaits_switch() && waited < SWITCH_PATIENCE {
            return false;
        }
    } else if guard.proto().phase() == Phase::Promoting {
        guard.change(|stream| {
            stream.demote(Reason::PledgeVoided);
            stream.progress_anchor(false);
        });
        if guard.proto().phase() == Phase::Promoting && waited < CLOSE_PATIENCE {
            return false;
        }
    }
    cell.tag().store(NOBODY, Ordering::Relaxed);
    let kept = socket.anchor.clone();
    guard.change(|stream| stream.close(false, || Some(Box::new(kept))));
    true
}
