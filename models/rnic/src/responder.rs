//! The receiving half of a queue pair: puts packets in order, checks messages, consumes receives.
//!
//! Invariants: everything below `expected` was delivered exactly once; every number kept out of order is in
//! `expected + 1 .. expected + max_in_flight`; a receive is consumed with the last packet of its message, in order.

use std::collections::{BTreeMap, VecDeque};

use netacc_device::Instant;

use crate::packet::{Segment, Verb};
use crate::{NicConfig, Recovery};

/// The treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is the next one: deliver it, then what [`Responder::next_kept`] gives.
    Next,
    /// It came before.
    Duplicate,
    /// It came too early and is kept.
    Kept,
    /// It came too early and is dropped; the requester gets a NAK, once.
    Gap,
    /// It came too early and is dropped; the requester has had its NAK.
    Ignored,
}

/// Why a packet that is next cannot be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No receive is posted.
    NotReady,
    /// It is no continuation of the message, or longer than the receive.
    Invalid,
}

/// A message came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) imm: Option<u32>,
    pub(crate) len: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected: u64,
    /// The message that `expected` belongs to, and how much of it was delivered.
    message: u64,
    offset: u32,
    /// Lengths of the posted receives.
    receives: VecDeque<u32>,
    /// The requester has had its NAK for the gap before which everything waits.
    reported: bool,
    kept: BTreeMap<u64, Segment>,
    notified_at: Option<Instant>,
}

impl Responder {
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    pub(crate) fn post_receive(&mut self, len: u32) {
        self.receives.push_back(len);
    }

    /// The treatment of a packet. It is delivered only after `Next`.
    pub(crate) fn arrive(&mut self, psn: u64, segment: Segment, config: &NicConfig) -> Arrival {
        if psn < self.expected {
            return Arrival::Duplicate;
        }
        if psn == self.expected {
            return Arrival::Next;
        }
        match config.recovery {
            Recovery::SelectiveRepeat if psn - self.expected < u64::from(config.max_in_flight) => {
                self.kept.insert(psn, segment);
                Arrival::Kept
            }
            Recovery::GoBackN if !std::mem::replace(&mut self.reported, true) => Arrival::Gap,
            _ => Arrival::Ignored,
        }
    }

    /// Checks the packet that is next, without delivering it. The caller checks memory.
    pub(crate) fn check(&mut self, segment: &Segment, config: &NicConfig) -> Result<(), Refused> {
        let whole = segment.len == config.mtu_bytes || segment.last && segment.len <= config.mtu_bytes;
        let end = segment.offset.checked_add(segment.len).filter(|end| *end <= config.max_message_bytes);
        if !whole || end.is_none() || segment.message != self.message || segment.offset != self.offset {
            return Err(Refused::Invalid);
        }
        // A SEND needs its receive from the beginning, a WRITE at the end.
        let needs = segment.verb.consumes_receive() && (segment.last || matches!(segment.verb, Verb::Send { .. }));
        match self.receives.front() {
            None if needs => {
                // The requester will send it again: whatever else comes meanwhile is early.
                self.reported = true;
                Err(Refused::NotReady)
            }
            Some(len) if needs && matches!(segment.verb, Verb::Send { .. }) && end.is_some_and(|e| e > *len) => {
                Err(Refused::Invalid)
            }
            _ => Ok(()),
        }
    }

    /// Delivers the packet that is next. Precondition: [`check`](Responder::check) found nothing.
    pub(crate) fn deliver(&mut self, segment: &Segment) -> Option<Received> {
        self.expected += 1;
        self.reported = false;
        self.offset += segment.len;
        if !segment.last {
            return None;
        }
        let received = Received { imm: segment.verb.imm(), len: self.offset };
        (self.message, self.offset) = (self.message + 1, 0);
        if !segment.verb.consumes_receive() {
            return None;
        }
        self.receives.pop_front();
        Some(received)
    }

    /// The packet that was kept and is next now.
    pub(crate) fn next_kept(&mut self) -> Option<Segment> {
        self.kept.remove(&self.expected)
    }

    /// Whether to notify the requester now that a packet met congestion.
    pub(crate) fn notify(&mut self, now: Instant, config: &NicConfig) -> bool {
        let recent = |t: Instant| now.saturating_since(t) < config.notification_interval;
        if !config.rate_control.notifies() || self.notified_at.is_some_and(recent) {
            return false;
        }
        self.notified_at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_device::RemoteKey;

    fn config() -> NicConfig {
        NicConfig { mtu_bytes: 10, max_message_bytes: 35, ..NicConfig::ideal(1_000_000_000) }
    }

    fn segment(message: u64, offset: u32, len: u32, last: bool) -> Segment {
        let verb = Verb::Write { rkey: RemoteKey(1), remote: 0, imm: None };
        Segment { message, verb, offset, len, last }
    }

    // Breaks if a peer's pieces need not be the next ones of the message: then bytes could be skipped, or a length lie.
    #[test]
    fn pieces_must_continue_the_message() {
        let mut responder = Responder::default();
        assert_eq!(responder.check(&segment(0, 0, 10, false), &config()), Ok(()));
        responder.deliver(&segment(0, 0, 10, false));
        let wrong = [
            segment(0, 20, 10, false),
            segment(0, 0, 10, false),
            segment(1, 10, 10, false),
            segment(0, 10, 9, false),
            segment(0, 10, 11, true),
        ];
        for segment in wrong {
            assert_eq!(responder.check(&segment, &config()), Err(Refused::Invalid), "{segment:?}");
        }
        for offset in [10, 20] {
            assert_eq!(responder.check(&segment(0, offset, 10, false), &config()), Ok(()));
            responder.deliver(&segment(0, offset, 10, false));
        }
        assert_eq!(
            responder.check(&segment(0, 30, 6, true), &config()),
            Err(Refused::Invalid),
            "longer than permitted"
        );
    }

    // Breaks if a SEND that is longer than its receive is delivered.
    #[test]
    fn a_send_must_fit_its_receive() {
        let mut responder = Responder::default();
        let send = |offset, len, last| Segment { verb: Verb::Send { imm: None }, ..segment(0, offset, len, last) };
        assert_eq!(responder.check(&send(0, 10, false), &config()), Err(Refused::NotReady));
        responder.post_receive(15);
        assert_eq!(responder.check(&send(0, 10, false), &config()), Ok(()));
        responder.deliver(&send(0, 10, false));
        assert_eq!(responder.check(&send(10, 6, true), &config()), Err(Refused::Invalid));
        assert_eq!(responder.deliver(&send(10, 5, true)), Some(Received { imm: None, len: 15 }));
    }
}
