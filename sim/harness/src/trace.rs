//! The last events of a run, kept cheaply and formatted only when they are read.

use std::collections::VecDeque;

use netacc_device::loopback::anchor::AnchorDelivery;
use netacc_device::loopback::Delivery;

use crate::io::Io;

/// Something that the scheduler did. `c`, `s`, `p`: connection, side, process.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "fields are read by the derived Debug, which is their only purpose")]
pub(crate) enum Event {
    Connect { c: usize, opener: usize, acceptor: usize },
    Read { c: usize, s: usize, want: usize, io: Io },
    Peek { c: usize, s: usize, want: usize, io: Io },
    Write { c: usize, s: usize, want: usize, io: Io },
    ShutdownWrite { c: usize, s: usize },
    ShutdownRead { c: usize, s: usize },
    Close { c: usize, s: usize, abort: bool },
    RequestPromotion { c: usize },
    Demote { c: usize, s: usize },
    Void { c: usize, s: usize },
    Reported { c: usize, s: usize, events: u32 },
    Helper { p: usize },
    Poll { p: usize },
    Fabric(Delivery),
    Network { now_ns: u64 },
    Wire { c: usize, delivery: AnchorDelivery },
    Kill { p: usize, qp: u32, torn_bytes: u32 },
    Silence { p: usize, qp: u32 },
    Cut { p: usize, cut: bool },
    Crash { p: usize },
    Limit { p: usize, send: u32, recv: u32 },
    Refuse { p: usize },
    Short { p: usize },
    Break { c: usize },
    Time { now_us: u64 },
    Drain(&'static str),
}

/// Events kept. Arbitrary: a few screens.
const KEPT: usize = 60;

pub(crate) struct Trace {
    pub(crate) step: u64,
    print: bool,
    events: VecDeque<(u64, Event)>,
}

impl Trace {
    pub(crate) fn new(print: bool) -> Trace {
        Trace { step: 0, print, events: VecDeque::with_capacity(KEPT) }
    }

    pub(crate) fn record(&mut self, event: Event) {
        if self.print {
            eprintln!("{:6} {event:?}", self.step);
        }
        if self.events.len() >= KEPT {
            self.events.pop_front();
        }
        self.events.push_back((self.step, event));
    }

    pub(crate) fn tail(&self) -> VecDeque<String> {
        self.events.iter().map(|(step, event)| format!("{step:6} {event:?}")).collect()
    }
}
