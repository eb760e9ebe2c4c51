//! A simple network in virtual time: stations joined by one link, or each by a link to one switch.
//!
//! Links have a rate and a delay; a seed decides which packets they lose, double and delay. The switch stores and forwards, has a
//! bounded queue for each port, and marks. Anything richer (shared buffers, PFC, several paths) is ns-3's.
//!
//! # Invariants
//! * One event at a time; those of one instant happen in the order in which they were scheduled. Sending a packet schedules
//!   first the moment the port is free, then the arrival. The shell around the NIC in ns-3 does the same, so that the two give
//!   one order of events, and one [`TraceHash`], where they model the same network.
//! * No clock, thread or entropy: the same stations, calls and seed give the same run.

mod link;
mod switch;
mod trace;

use netacc_device::Instant;

use crate::{Body, Events, Nic, NodeId, Packet};

pub use link::{LinkConfig, Serializer};
pub use switch::{Marking, SwitchConfig};
pub use trace::TraceHash;

use link::Link;
use switch::Queue;

/// The owner of a port: a NIC, alone or with more around it.
pub trait Station {
    /// A packet arrives.
    fn handle_packet(&mut self, now: Instant, packet: Packet);
    /// The time is [`next_deadline`](Station::next_deadline), or another one.
    fn handle_timer(&mut self, now: Instant);
    /// The next packet, the port being free.
    fn poll_transmit(&mut self, now: Instant) -> Option<Packet>;
    /// When to call [`handle_timer`](Station::handle_timer).
    fn next_deadline(&self) -> Option<Instant>;
}

impl Station for Nic {
    fn handle_packet(&mut self, now: Instant, packet: Packet) {
        Nic::handle_packet(self, now, packet);
    }

    fn handle_timer(&mut self, now: Instant) {
        Nic::handle_timer(self, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        Nic::poll_transmit(self, now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        Nic::next_deadline(self)
    }
}

/// How stations are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Two stations, one link.
    Direct(LinkConfig),
    /// Each station has a link to one switch.
    Star(LinkConfig, SwitchConfig),
}

enum Event {
    /// A station asked to be called.
    Timer(usize),
    /// A port has sent its packet. Ports 0.. are the stations', those behind them the switch's.
    PortFree(usize),
    /// A packet has passed the link of a port.
    Arrival(usize, Packet),
}

/// See the module's documentation. Station `i` is `NodeId(i)`.
pub struct Network<S> {
    now: Instant,
    stations: Vec<S>,
    /// When each station's timer is scheduled for.
    timers: Vec<Option<Instant>>,
    /// Of the stations, then of the switch.
    links: Vec<Link>,
    /// Of the switch's ports; empty without one.
    queues: Vec<Queue>,
    events: Events<Event>,
    trace: TraceHash,
    /// Stations that were called since [`take_touched`](Network::take_touched).
    touched: Vec<usize>,
}

impl<S: Station> Network<S> {
    /// Joins the stations. A direct link needs two of them.
    pub fn new(topology: &Topology, stations: Vec<S>, seed: u64) -> Network<S> {
        let count = stations.len();
        let (config, switch) = match topology {
            Topology::Direct(config) => {
                assert_eq!(count, 2, "a direct link joins two stations");
                (config, None)
            }
            Topology::Star(config, switch) => (config, Some(switch)),
        };
        let ports = if switch.is_some() { 2 * count } else { count };
        Network {
            now: Instant::ZERO,
            stations,
            timers: vec![None; count],
            links: (0..ports as u64).map(|port| Link::new(config.clone(), seed, port)).collect(),
            queues: switch.map_or(Vec::new(), |config| {
                (0..count as u64).map(|port| Queue::new(config.clone(), seed, port)).collect()
            }),
            events: Events::default(),
            trace: TraceHash::default(),
            touched: Vec::new(),
        }
    }

    /// The time of the event that happens, or happened last.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// A station.
    pub fn station(&self, index: usize) -> &S {
        &self.stations[index]
    }

    /// A station, to be given work. Call [`kick`](Network::kick) afterwards.
    pub fn station_mut(&mut self, index: usize) -> &mut S {
        &mut self.stations[index]
    }

    /// All stations.
    pub fn stations(&self) -> &[S] {
        &self.stations
    }

    /// The hash over all deliveries so far.
    pub fn trace(&self) -> &TraceHash {
        &self.trace
    }

    /// Packets that the switch dropped because its queue was full, and packets that it marked.
    pub fn switch_counts(&self) -> (u64, u64) {
        self.queues.iter().fold((0, 0), |(d, m), q| (d + q.dropped, m + q.marked))
    }

    /// Bytes that wait in the switch for the port of a station; 0 without a switch.
    pub fn queued_bytes(&self, index: usize) -> u64 {
        self.queues.get(index).map_or(0, |queue| queue.bytes)
    }

    /// Cuts the cable of a station, or repairs it. Packets in flight still arrive.
    pub fn set_cut(&mut self, index: usize, cut: bool) {
        let count = self.stations.len();
        // Without a switch a station's cable is its peer's.
        let other = if self.queues.is_empty() { 1 - index } else { count + index };
        self.links[index].cut = cut;
        self.links[other].cut = cut;
    }

    /// A station was given work: sends what it has, and sets its timer.
    pub fn kick(&mut self, index: usize) {
        if !self.links[index].busy {
            if let Some(packet) = self.stations[index].poll_transmit(self.now) {
                self.transmit(index, packet);
            }
        }
        let Some(deadline) = self.stations[index].next_deadline() else { return };
        let at = deadline.max(self.now);
        if self.timers[index].is_none_or(|set| at < set) {
            self.timers[index] = Some(at);
            self.events.schedule(at, Event::Timer(index));
        }
    }

    /// When the next event is.
    pub fn next_event(&self) -> Option<Instant> {
        self.events.next_at()
    }

    /// Lets time pass without an event.
    ///
    /// # Panics
    /// If there is an event before that time.
    pub fn advance(&mut self, to: Instant) {
        assert!(self.next_event().is_none_or(|at| at >= to), "an event would be skipped");
        self.now = self.now.max(to);
    }

    /// Makes the next event happen. `false` if there is none.
    pub fn step(&mut self) -> bool {
        let Some((at, event)) = self.events.pop() else { return false };
        self.now = at;
        let count = self.stations.len();
        match event {
            Event::Timer(index) => {
                if self.timers[index] == Some(at) {
                    self.timers[index] = None;
                    self.stations[index].handle_timer(at);
                    self.serve(index);
                }
            }
            Event::PortFree(port) => {
                self.links[port].busy = false;
                if port < count {
                    self.kick(port);
                } else if let Some(packet) = self.queues[port - count].pop() {
                    self.transmit(port, packet);
                }
            }
            Event::Arrival(port, packet) if port < count && !self.queues.is_empty() => self.forward(packet),
            Event::Arrival(port, packet) => {
                let index = if port < count { 1 - port } else { port - count };
                self.trace.record(at, &packet);
                self.stations[index].handle_packet(at, packet);
                self.serve(index);
            }
        }
        true
    }

    /// Steps until nothing happens before `end`, or any more; calls `inspect` with each station that an event was for.
    pub fn run_until(&mut self, end: Instant, mut inspect: impl FnMut(&mut Network<S>, usize)) {
        while self.next_event().is_some_and(|at| at < end) {
            self.step();
            while let Some(index) = self.take_touched() {
                inspect(self, index);
                self.kick(index);
            }
        }
    }

    /// A station that an event was for, once.
    pub fn take_touched(&mut self) -> Option<usize> {
        self.touched.pop()
    }

    fn serve(&mut self, index: usize) {
        self.kick(index);
        if !self.touched.contains(&index) {
            self.touched.push(index);
        }
    }

    fn forward(&mut self, packet: Packet) {
        let Packet { dst: NodeId(dst), .. } = packet;
        let dst = dst as usize;
        // An address that no station has.
        if dst >= self.queues.len() {
            return;
        }
        let port = self.stations.len() + dst;
        if let Some(packet) = self.queues[dst].offer(packet, self.links[port].busy) {
            self.transmit(port, packet);
        }
    }

    fn transmit(&mut self, port: usize, mut packet: Packet) {
        if let (Some(queue), Body::Data { .. }) =
            (port.checked_sub(self.stations.len()).and_then(|at| self.queues.get(at)), packet.body)
        {
            let hop = self.links[port].hop(self.now, queue.bytes);
            packet.telemetry.iter_mut().for_each(|telemetry| telemetry.add(hop));
        }
        let (busy_for, arrivals) = self.links[port].send(&packet);
        self.events.schedule(self.now + busy_for, Event::PortFree(port));
        for delay in arrivals.into_iter().flatten() {
            self.events.schedule(self.now + delay, Event::Arrival(port, packet));
        }
    }
}
