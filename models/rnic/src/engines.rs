//! When a NIC's work is done.
//!
//! A NIC in hardware has an engine for each kind of work, and all of them work side by side. A device in software has one
//! processor: whatever it does waits for what it has begun before.

use std::time::Duration;

use netacc_device::Instant;

use crate::config::Engines;

/// A kind of a NIC's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// To see a request, and to fetch it with its payload.
    Post,
    /// To make a packet.
    Transmit,
    /// To look at a packet.
    Receive,
    /// To place what has come, and to write a completion.
    Complete,
}

/// Until when the engines have work.
#[derive(Debug)]
pub(crate) struct Busy {
    engines: Engines,
    /// Of the receiving engine, or of the processor that all share.
    until: Instant,
    /// Work of that processor since the last [`take_work`](Busy::take_work).
    worked: Duration,
}

impl Busy {
    pub(crate) fn new(engines: Engines) -> Busy {
        Busy { engines, until: Instant::ZERO, worked: Duration::ZERO }
    }

    /// When work of a stage that arrives `now` is done. Separate engines take requests and completions side by side, and a packet
    /// to send only if they have none.
    pub(crate) fn work(&mut self, now: Instant, stage: Stage, time: Duration) -> Instant {
        match (self.engines, stage) {
            (Engines::Separate, Stage::Post | Stage::Transmit | Stage::Complete) => now + time,
            (Engines::Separate, Stage::Receive) => self.queue(now, time),
            (Engines::Shared, _) => {
                self.worked += time;
                self.queue(now, time)
            }
        }
    }

    /// Work that begins when what is before it is done.
    fn queue(&mut self, now: Instant, time: Duration) -> Instant {
        self.until = self.until.max(now) + time;
        self.until
    }

    /// Takes the work of a processor that all share.
    pub(crate) fn take_work(&mut self) -> Duration {
        std::mem::take(&mut self.worked)
    }
}
