//! The state that every part of a function uses: host, settings, counters, and pending effects on the fabric.

use std::collections::VecDeque;

use crate::counters::Counters;
use crate::host::Host;
use crate::settings::Settings;

/// A request of a function to the fabric, which drains them after every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// There are commands to run.
    Commands,
    /// A queue pair may have something to send.
    Send(u32),
    /// A queue pair has got receives.
    Receive(u32),
    /// A queue pair is to be joined to its peer.
    Connect(u32),
    /// A queue pair has stopped.
    Disconnect {
        qpn: u32,
        /// Its last answer is still to reach the peer.
        linger: bool,
    },
    /// All queue pairs are gone.
    Reset,
}

/// The vector of the command queue's and the asynchronous events (`ERDMA_MSIX_VECTOR_CMDQ`).
pub(crate) const COMMON_VECTOR: u16 = 0;

pub(crate) struct Context<H> {
    pub(crate) host: H,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) effects: VecDeque<Effect>,
}

impl<H: Host> Context<H> {
    /// Raises an interrupt, unless the settings lose it. They lose none of the command queue's: without its answers the
    /// driver gives up the device.
    pub(crate) fn raise(&mut self, vector: u16) {
        if vector != COMMON_VECTOR && self.settings.lose_interrupts > 0 {
            self.settings.lose_interrupts -= 1;
            self.counters.interrupts_lost += 1;
            return;
        }
        for _ in 0..1 + u8::from(self.settings.duplicate_interrupts) {
            self.counters.interrupts += 1;
            self.host.raise(vector);
        }
    }
}
