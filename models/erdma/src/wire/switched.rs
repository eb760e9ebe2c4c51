//! The wire of a fabric: the copy, or the model while it has messages.

use netacc_device::Instant;

use crate::wire::copy::CopyWire;
use crate::wire::modelled::{ModelledWire, WireSettings};
use crate::wire::{End, Message, Reply, Wire, WireEvent};

/// Settings may change while there are connections. A message is copied if packets are not to be impaired and all earlier ones
/// of its queue pair were answered, so that none is overtaken.
pub(crate) struct SwitchedWire {
    copy: CopyWire,
    modelled: ModelledWire,
}

impl SwitchedWire {
    pub(crate) fn new(seed: u64) -> SwitchedWire {
        SwitchedWire { copy: CopyWire::default(), modelled: ModelledWire::new(seed) }
    }

    pub(crate) fn settings(&self) -> &WireSettings {
        self.modelled.settings()
    }

    pub(crate) fn set(&mut self, settings: WireSettings) {
        self.modelled.set(settings);
    }
}

impl Wire for SwitchedWire {
    fn connect(&mut self, ends: [End; 2]) {
        self.copy.connect(ends);
        self.modelled.connect(ends);
    }

    fn disconnect(&mut self, now: Instant, ends: [End; 2]) {
        self.copy.disconnect(now, ends);
        self.modelled.disconnect(now, ends);
    }

    fn send(&mut self, now: Instant, from: End, to: End, message: Message) {
        if self.settings().is_impaired() || self.modelled.is_busy(from) {
            self.modelled.send(now, from, to, message);
        } else {
            self.copy.send(now, from, to, message);
        }
    }

    fn reply(&mut self, now: Instant, from: End, to: End, id: u64, reply: Reply) {
        if self.modelled.awaits(to, id) {
            self.modelled.reply(now, from, to, id, reply);
        } else {
            self.copy.reply(now, from, to, id, reply);
        }
    }

    fn poll(&mut self, now: Instant) -> Option<WireEvent> {
        self.copy.poll(now).or_else(|| self.modelled.poll(now))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.copy.next_deadline().into_iter().chain(self.modelled.next_deadline()).min()
    }
}
