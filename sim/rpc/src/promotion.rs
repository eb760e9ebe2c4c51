//! The connections that ask for a link, and when: where TCP is in memory all when they are made; else after some use, and those
//! that stayed on TCP or came back to it again, as the library does.

use netacc_device::Instant;
use netacc_driver::{Readiness, Tries};

use crate::config::Tcp;
use crate::connection::Connection;
use crate::host_threads::HelperTask;
use crate::run::Run;

/// Promotions under way at a time where TCP is in memory: all connections are made at once there, and an acceptor sets up 1024
/// links at a time, no more.
const MAX_PROMOTIONS: usize = 512;

impl Run {
    /// Promotes those that are next, not more at a time than acceptors set up.
    pub(crate) fn request_promotions(&mut self) {
        while self.tcp != Tcp::Memory || self.promotions.promoting < MAX_PROMOTIONS {
            let Some(number) = self.promotions.unrequested.pop_front() else { return };
            self.promotions.promoting += usize::from(self.tcp == Tcp::Memory);
            self.request_promotion(number);
        }
    }

    fn request_promotion(&mut self, number: usize) {
        let Some(connection) = self.connections.get(number) else { return };
        let (client, helper_task) = (connection.client as usize, HelperTask::Promote { number, salt: connection.salt });
        match self.hosts[client].threads.as_mut().filter(|threads| threads.has_helper()) {
            Some(threads) => threads.send(self.cluster.now(), helper_task),
            None => self.promote(number),
        }
        self.nudge(client);
    }

    /// The library asks for a link for a connection.
    pub(crate) fn promote(&mut self, number: usize) {
        let Some(connection) = self.connections.get(number) else { return };
        if let Some(socket) = &connection.sockets[0] {
            // A connection that cannot be promoted stays on TCP.
            let _ = self.endpoints[connection.client as usize].promote(&socket.cell);
        }
    }

    /// A conversation may be on its link now: then it is another one's turn.
    pub(crate) fn handle_linked(&mut self, number: usize) {
        let Some(connection) =
            self.connections.get_mut(number).filter(|connection| connection.promoted && !connection.was_linked)
        else {
            return;
        };
        connection.was_linked = (0..2).all(|side| connection.is_linked(&self.endpoints[connection.host(side)], side));
        if connection.was_linked && self.tcp == Tcp::Memory {
            self.promotions.promoting -= 1;
            self.request_promotions();
        }
    }

    /// The client of a conversation has used it, and had so many answers: if it is on TCP it asks for a link now and then. Where
    /// TCP is in memory it has no use without a link.
    pub(crate) fn request_after_use(&mut self, number: usize, answers: u32) {
        if self.tcp == Tcp::Memory {
            return;
        }
        let Some(connection) = self.connections.get_mut(number).filter(|connection| connection.promoted) else {
            return;
        };
        let Some(socket) = &connection.sockets[0] else { return };
        let attempts = &mut connection.attempts;
        if socket.cell.readiness().contains(Readiness::KERNEL_TX) {
            // Each request is sent, and its response received.
            attempts.operations = attempts.operations.saturating_add(2 * answers);
        }
        let now = self.cluster.now();
        let guard = socket.cell.lock(&self.endpoints[connection.client as usize]);
        attempts.linked |= guard.proto().is_linked();
        let may = guard.proto().may_promote();
        drop(guard);
        if !may || connection.short.is_some() && connection.is_over() {
            return;
        }
        let attempts = &mut connection.attempts;
        if std::mem::take(&mut attempts.linked) {
            attempts.schedule.record_return(attempts.operations);
        }
        if attempts.schedule.is_due(attempts.operations, || now) {
            attempts.schedule.record_try(attempts.operations, now, Tries::default());
            self.request_promotion(number);
        }
    }

    /// Connections that are on a link, at both ends.
    pub fn linked(&self) -> usize {
        let linked = |connection: &Connection| {
            (0..2).all(|side| connection.is_linked(&self.endpoints[connection.host(side)], side))
        };
        self.connections.iter().filter(|(_, connection)| linked(connection)).count()
    }

    /// The simulator has made a connection.
    pub fn handle_connected(&mut self, number: u32, now: Instant) {
        self.cluster.set_now(now);
        self.wires.handle_connected(number);
        self.begin_connection(number as usize, now);
        let Some(connection) = self.connections.get(number as usize) else { return };
        let client = connection.client as usize;
        if self.uses_tcp(connection) {
            self.hosts[client].ready.renew(number);
            self.turn_for_tcp(client);
        }
    }

    /// A connection is made: its ends may use it, and it may be promoted.
    pub(crate) fn begin_connection(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        if let Some(short) = &mut connection.short {
            short.connected = Some(now);
        }
        if connection.promoted && (self.tcp == Tcp::Memory || connection.attempts.schedule.is_due(0, || now)) {
            connection.attempts.schedule.record_try(0, now, Tries::default());
            self.promotions.unrequested.push_back(number);
            self.request_promotions();
        }
    }
}
