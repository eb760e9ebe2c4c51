//! A wire that takes no time.

use std::collections::VecDeque;

use netacc_device::Instant;

use crate::wire::{End, Message, Reply, Wire, WireEvent};

/// See the module's documentation. Messages are moved, not copied: the only copies are those out of and into guests' memory.
#[derive(Default)]
pub struct CopyWire {
    events: VecDeque<WireEvent>,
}

impl Wire for CopyWire {
    fn connect(&mut self, _ends: [End; 2]) {}

    fn disconnect(&mut self, _now: Instant, ends: [End; 2]) {
        self.events.retain(|event| !ends.contains(&event.end()));
    }

    fn send(&mut self, _now: Instant, _from: End, to: End, message: Message) {
        self.events.push_back(WireEvent::Delivered { to, message });
    }

    fn reply(&mut self, _now: Instant, _from: End, to: End, id: u64, reply: Reply) {
        self.events.push_back(WireEvent::Replied { to, id, reply });
    }

    fn poll(&mut self, _now: Instant) -> Option<WireEvent> {
        self.events.pop_front()
    }

    fn next_deadline(&self) -> Option<Instant> {
        // All events are drained before any wait.
        None
    }
}
