//! Which connections ask for a link, and when: all when they are made, and those that stayed on TCP or came back to it again
//! after some use, as the library does.

use netacc_device::Instant;

use crate::run::Tcp;
use crate::talk::{is_linked, Talk};
use crate::Run;

/// Promotions under way at a time where TCP is in memory: all connections are made at once there, and an acceptor sets up 1024
/// links at a time, no more.
const MAX_PROMOTIONS: usize = 512;
/// After so many operations on TCP a connection asks again, after half as many more each time: the library's figures.
const RETRY_AFTER: u32 = 8;
/// As many at most.
const MAX_RETRY_AFTER: u32 = 1 << 20;

/// When a connection that is on TCP asks for a link again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retry {
    /// At this count of operations; `None` while it has no need to.
    at: Option<u32>,
    step: u32,
}

impl Retry {
    /// The connection is on TCP, and has used it so often: whether it asks now.
    fn is_due(&mut self, operations: u32) -> bool {
        let Some(at) = self.at else {
            *self = Retry { at: Some(operations.saturating_add(RETRY_AFTER)), step: RETRY_AFTER };
            return false;
        };
        if operations < at {
            return false;
        }
        self.step = (self.step + self.step / 2 + 1).min(MAX_RETRY_AFTER);
        self.at = Some(operations.saturating_add(self.step));
        true
    }
}

impl Run {
    /// Promotes those that are next, not more at a time than acceptors set up.
    pub(crate) fn ask_promotions(&mut self) {
        while self.tcp != Tcp::Memory || self.promoting < MAX_PROMOTIONS {
            let Some(number) = self.unasked.pop_front() else { return };
            self.promoting += 1;
            self.ask_promotion(number);
        }
    }

    fn ask_promotion(&mut self, number: usize) {
        let talk = &self.talks[number];
        let client = talk.client as usize;
        // Who cannot be promoted stays on TCP.
        let _ = self.endpoints[client].promote(&talk.cells[0]);
        if !self.nudged.contains(&client) {
            self.nudged.push(client);
        }
    }

    /// A conversation may be on its link now: then it is another one's turn.
    pub(crate) fn note_linked(&mut self, number: usize) {
        let talk = &mut self.talks[number];
        let ends = [talk.client as usize, talk.server as usize];
        let linked = (0..2).all(|side| is_linked(&self.endpoints[ends[side]], &talk.cells[side]));
        if linked && !std::mem::replace(&mut talk.was_linked, true) {
            self.promoting -= 1;
            self.ask_promotions();
        }
    }

    /// The client of a conversation has used it: if it is on TCP it asks for a link now and then. Where TCP is in memory it has
    /// no use without a link.
    pub(crate) fn ask_again(&mut self, number: usize) {
        if !self.promote || self.tcp == Tcp::Memory {
            return;
        }
        let Talk { client, cells, measured, retry, .. } = &mut self.talks[number];
        if !cells[0].lock(&self.endpoints[*client as usize]).proto().may_promote() {
            retry.at = None;
            return;
        }
        // Each request is sent, and its response received.
        let operations = u32::try_from(2 * measured.latencies_ns.len()).unwrap_or(u32::MAX);
        if retry.is_due(operations) {
            self.ask_promotion(number);
        }
    }

    /// Connections that are on a link, at both ends.
    pub fn linked(&self) -> usize {
        let linked = |talk: &&Talk| {
            let ends = [talk.client as usize, talk.server as usize];
            (0..2).all(|side| is_linked(&self.endpoints[ends[side]], &talk.cells[side]))
        };
        self.talks.iter().filter(linked).count()
    }

    /// A connection is made: its ends may talk, and it may be promoted.
    pub fn handle_connected(&mut self, number: u32, now: Instant) {
        self.cluster.set_now(now);
        self.wires.handle_connected(number);
        let Some(talk) = self.talks.get(number as usize) else { return };
        let client = talk.client as usize;
        if self.promote {
            self.unasked.push_back(number as usize);
            self.ask_promotions();
        }
        if self.talks_at_once() {
            self.ears[client].note(number);
            self.turn_for_tcp(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if who stays on TCP asks at each operation, or never again.
    #[test]
    fn asking_becomes_rare() {
        let mut retry = Retry::default();
        let asked: Vec<u32> = (0..100).filter(|n| retry.is_due(*n)).collect();
        assert_eq!(asked, [8, 21, 41, 72]);
        let before = retry.at;
        assert!(!retry.is_due(100) && retry.at == before);
    }
}
