//! The mover of packets and time: the plain network, or a simulator that calls in.

use netacc_device::Instant;
use netacc_rnic::network::{Network, Station, TraceHash};
use netacc_rnic::{Nic, Packet};

/// The NICs, and their driver.
pub(crate) enum Net {
    /// A plain network, which the cluster steps.
    Own(Box<Network<Nic>>),
    /// A simulator, which drives the cluster.
    Driven(Driven),
}

/// NICs whose packets and time a simulator moves.
pub(crate) struct Driven {
    now: Instant,
    nics: Vec<Nic>,
    trace: TraceHash,
    /// Hosts that may have packets to send, or another deadline, since they were last served.
    dirty: Vec<usize>,
}

impl Driven {
    pub(crate) fn new(nics: Vec<Nic>) -> Driven {
        Driven { now: Instant::ZERO, nics, trace: TraceHash::default(), dirty: Vec::new() }
    }
}

impl Net {
    pub(crate) fn now(&self) -> Instant {
        match self {
            Net::Own(net) => net.now(),
            Net::Driven(driven) => driven.now,
        }
    }

    pub(crate) fn nic(&self, host: usize) -> &Nic {
        match self {
            Net::Own(net) => net.station(host),
            Net::Driven(driven) => &driven.nics[host],
        }
    }

    pub(crate) fn nic_mut(&mut self, host: usize) -> &mut Nic {
        match self {
            Net::Own(net) => net.station_mut(host),
            Net::Driven(driven) => &mut driven.nics[host],
        }
    }

    /// A NIC got work.
    pub(crate) fn kick(&mut self, host: usize) {
        match self {
            Net::Own(net) => net.kick(host),
            Net::Driven(driven) => {
                if !driven.dirty.contains(&host) {
                    driven.dirty.push(host);
                }
            }
        }
    }

    /// The time of the network's next event. `None` if a simulator has the events.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        match self {
            Net::Own(net) => net.next_event(),
            Net::Driven(_) => None,
        }
    }

    /// Time passes.
    pub(crate) fn advance(&mut self, to: Instant) {
        match self {
            Net::Own(net) => net.advance(to),
            Net::Driven(driven) => driven.now = driven.now.max(to),
        }
    }

    pub(crate) fn step(&mut self) -> bool {
        match self {
            Net::Own(net) => net.step(),
            Net::Driven(_) => false,
        }
    }

    /// A host that an event was for.
    pub(crate) fn take_touched(&mut self) -> Option<usize> {
        match self {
            Net::Own(net) => net.take_touched(),
            Net::Driven(_) => None,
        }
    }

    pub(crate) fn trace(&self) -> &TraceHash {
        match self {
            Net::Own(net) => net.trace(),
            Net::Driven(driven) => &driven.trace,
        }
    }

    /// A simulator that carries TCP has brought something.
    pub(crate) fn note_tcp(&mut self, words: &[u64]) {
        if let Net::Driven(driven) = self {
            driven.trace.note_words(driven.now, words);
        }
    }

    /// Cuts the cable of a host, or repairs it; a simulator has its own ways.
    pub(crate) fn set_cut(&mut self, host: usize, cut: bool) {
        match self {
            Net::Own(net) => net.set_cut(host, cut),
            Net::Driven(_) => {}
        }
    }

    /// A host whose packets and deadline must be polled, in the order in which they became so.
    pub(crate) fn take_dirty(&mut self) -> Option<usize> {
        match self {
            Net::Driven(driven) if !driven.dirty.is_empty() => Some(driven.dirty.remove(0)),
            _ => None,
        }
    }

    /// The caller serves a host in any case.
    pub(crate) fn clear_dirty(&mut self, host: usize) {
        if let Net::Driven(driven) = self {
            driven.dirty.retain(|dirty| *dirty != host);
        }
    }

    /// The simulator delivers a packet.
    pub(crate) fn handle_packet(&mut self, host: usize, now: Instant, packet: Packet) {
        if let Net::Driven(driven) = self {
            driven.now = now;
            driven.trace.record(now, &packet);
            driven.nics[host].handle_packet(now, packet);
        }
    }

    /// The simulator calls at a host's deadline.
    pub(crate) fn handle_timer(&mut self, host: usize, now: Instant) {
        if let Net::Driven(driven) = self {
            driven.now = now;
            driven.nics[host].handle_timer(now);
        }
    }

    /// The simulator's port is free.
    pub(crate) fn poll_transmit(&mut self, host: usize, now: Instant) -> Option<Packet> {
        match self {
            Net::Own(_) => None,
            Net::Driven(driven) => driven.nics[host].poll_transmit(now),
        }
    }

    pub(crate) fn next_deadline(&self, host: usize) -> Option<Instant> {
        Station::next_deadline(self.nic(host))
    }
}
