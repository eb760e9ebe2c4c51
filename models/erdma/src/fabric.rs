//! The functions of a lab and the wire between them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use netacc_device::Instant;

use crate::context::Effect;
use crate::counters::Counters;
use crate::events::AsyncEvent;
use crate::function::Function;
use crate::host::Host;
use crate::queue_pair::Connection;
use crate::settings::{Driver, Settings};
use crate::status::Status;
use crate::wire::modelled::WireSettings;
use crate::wire::switched::SwitchedWire;
use crate::wire::{End, Wire, WireEvent};

/// Bytes that one call moves. The rest waits for the next call, so that no thread holds the fabric for long. Arbitrary.
const BUDGET_BYTES: u64 = 64 << 20;

/// Messages that one call moves.
const BUDGET_MESSAGES: u32 = 4096;

/// Seed of the wire: with the traffic it decides which packets are lost. Arbitrary.
const SEED: u64 = 1;

/// Functions and their connections.
///
/// Connections are matched by the ends of the TCP connection that the guests' kernels have made and by the cookies they
/// exchanged on it. The second one to connect finds the first one waiting.
///
/// # Driving it
/// * Inputs: [`read`](Fabric::read), [`write`](Fabric::write), [`reset`](Fabric::reset), settings and faults.
/// * After any of them, and at [`next_deadline`](Fabric::next_deadline): [`run`](Fabric::run).
pub struct Fabric<H> {
    functions: Vec<Function<H>>,
    wire: SwitchedWire,
    /// Both ways. An end whose peer has stopped with an answer in flight stays until it has the answer.
    links: BTreeMap<End, End>,
    /// Queue pairs whose peer is not there yet.
    lonely: Vec<(End, Connection, u32)>,
    /// Queue pairs that may have something to send.
    ready: VecDeque<End>,
    /// The times at which queue pairs with work give up, unless there is progress.
    patience: BTreeMap<End, Instant>,
}

impl<H: Host> Default for Fabric<H> {
    fn default() -> Fabric<H> {
        Fabric {
            functions: Vec::new(),
            wire: SwitchedWire::new(SEED),
            links: BTreeMap::new(),
            lonely: Vec::new(),
            ready: VecDeque::new(),
            patience: BTreeMap::new(),
        }
    }
}

impl<H: Host> Fabric<H> {
    /// Adds a function; returns its index.
    pub fn add(&mut self, host: H, mac: [u8; 6], driver: Driver) -> usize {
        self.functions.push(Function::new(host, mac, driver));
        self.functions.len() - 1
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there are no functions.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The host of a function.
    pub fn host_mut(&mut self, function: usize) -> &mut H {
        &mut self.functions[function].cx.host
    }

    /// The counters of a function.
    pub fn counters(&self, function: usize) -> Counters {
        self.functions[function].counters()
    }

    /// The settings of a function.
    pub fn settings(&self, function: usize) -> &Settings {
        &self.functions[function].cx.settings
    }

    /// Changes settings of a function. Stalled work continues if it may.
    pub fn change(&mut self, now: Instant, function: usize, change: impl FnOnce(&mut Settings)) {
        change(&mut self.functions[function].cx.settings);
        self.functions[function].run_commands(now);
        for qpn in self.functions[function].queue_pairs() {
            let end = End { function, qpn };
            self.ready.push_back(end);
            self.handle_waiting(now, end);
            self.renew_patience(now, end);
        }
    }

    /// The settings of the wire.
    pub fn wire_settings(&self) -> &WireSettings {
        self.wire.settings()
    }

    /// Changes the settings of the wire.
    pub fn set_wire(&mut self, settings: WireSettings) {
        self.wire.set(settings);
    }

    /// Numbers of the queue pairs of a function.
    pub fn queue_pairs(&self, function: usize) -> Vec<u32> {
        self.functions[function].queue_pairs()
    }

    /// Numbers of the completion queues of a function.
    pub fn completion_queues(&self, function: usize) -> Vec<u32> {
        self.functions[function].completion_queues()
    }

    /// Reports an event as if it had happened to a queue pair, which fails, or to a completion queue. `false`: there is
    /// no such queue.
    pub fn inject(&mut self, function: usize, event: AsyncEvent, number: u32) -> bool {
        self.functions[function].inject(event, number)
    }

    /// A processor reads from BAR 0 of a function.
    pub fn read(&self, function: usize, offset: u64, into: &mut [u8]) {
        self.functions[function].read(offset, into);
    }

    /// A processor writes to BAR 0 of a function.
    pub fn write(&mut self, function: usize, offset: u64, bytes: &[u8]) {
        self.functions[function].write(offset, bytes);
    }

    /// A function is reset.
    pub fn reset(&mut self, function: usize) {
        self.functions[function].reset();
    }

    /// The time of the next [`run`](Fabric::run), if no other input comes before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let unfinished = (!self.ready.is_empty()).then_some(Instant::ZERO);
        let commands = self.functions.iter().filter_map(Function::commands_due);
        let patience = self.patience.values().copied();
        commands.chain(patience).chain(self.wire.next_deadline()).chain(unfinished).min()
    }

    /// Does all work that is due.
    pub fn run(&mut self, now: Instant) {
        for function in 0..self.functions.len() {
            if self.functions[function].commands_due().is_some_and(|due| due <= now) {
                self.functions[function].run_commands(now);
            }
        }
        let (mut bytes, mut messages) = (0, 0);
        loop {
            self.drain(now);
            if bytes >= BUDGET_BYTES || messages >= BUDGET_MESSAGES {
                break;
            }
            let Some(end) = self.ready.pop_front() else { break };
            let Some(peer) = self.links.get(&end).copied() else { continue };
            if let Some(message) = self.functions[end.function].next_message(end.qpn) {
                bytes += u64::from(message.len());
                messages += 1;
                self.wire.send(now, end, peer, message);
                // Behind the others, so that no queue pair waits for all of another's requests.
                self.ready.push_back(end);
            }
        }
        self.give_up(now);
        self.drain(now);
    }

    /// Handles effects and the wire's events until there are none.
    fn drain(&mut self, now: Instant) {
        loop {
            let effect = (0..self.functions.len())
                .find_map(|function| self.functions[function].poll_effect().map(|effect| (function, effect)));
            if let Some((function, effect)) = effect {
                self.handle_effect(now, function, effect);
            } else if let Some(event) = self.wire.poll(now) {
                self.handle_event(now, event);
            } else {
                return;
            }
        }
    }

    fn handle_effect(&mut self, now: Instant, function: usize, effect: Effect) {
        let end = |qpn| End { function, qpn };
        match effect {
            Effect::Commands => self.functions[function].run_commands(now),
            Effect::Send(qpn) => {
                self.begin_patience(now, end(qpn));
                self.ready.push_back(end(qpn));
            }
            Effect::Receive(qpn) => self.handle_waiting(now, end(qpn)),
            Effect::Connect(qpn) => self.connect(now, end(qpn)),
            Effect::Disconnect { qpn, linger } => self.disconnect(now, end(qpn), linger),
            Effect::Reset => {
                self.lonely.retain(|(lonely, ..)| lonely.function != function);
                let ends: Vec<End> = self.links.keys().filter(|end| end.function == function).copied().collect();
                ends.into_iter().for_each(|end| self.disconnect(now, end, false));
            }
        }
    }

    fn handle_event(&mut self, now: Instant, event: WireEvent) {
        match event {
            WireEvent::Delivered { to, message } => {
                self.functions[to.function].deliver(to.qpn, message);
                self.handle_waiting(now, to);
            }
            WireEvent::Replied { to, id, reply } => {
                self.functions[to.function].handle_reply(to.qpn, id, reply);
                self.renew_patience(now, to);
                self.ready.push_back(to);
            }
            WireEvent::Failed { end, status } => self.functions[end.function].give_up(end.qpn, status),
        }
    }

    /// Handles messages that have arrived at a queue pair, except those that wait.
    fn handle_waiting(&mut self, now: Instant, end: End) {
        while let Some((id, reply)) = self.functions[end.function].handle_next(end.qpn) {
            if let Some(peer) = self.links.get(&end).copied() {
                self.wire.reply(now, end, peer, id, reply);
            }
        }
    }

    fn connect(&mut self, now: Instant, end: End) {
        let Some((connection, cookie)) = self.functions[end.function].connection(end.qpn) else { return };
        // An answer of its predecessor may still be in flight.
        self.disconnect(now, end, false);
        let matches = |(_, other, their_cookie): &(End, Connection, u32)| {
            (other.local, other.remote, other.peer_cookie) == (connection.remote, connection.local, cookie)
                && connection.peer_cookie == *their_cookie
        };
        let Some(found) = self.lonely.iter().position(matches) else {
            self.lonely.push((end, connection, cookie));
            return;
        };
        let (peer, ..) = self.lonely.swap_remove(found);
        self.links.insert(end, peer);
        self.links.insert(peer, end);
        self.wire.connect([end, peer]);
        for end in [peer, end] {
            self.begin_patience(now, end);
            self.ready.push_back(end);
        }
    }

    /// A queue pair has stopped. Its peer's driver sees the end of the TCP connection; the fabric reports nothing.
    fn disconnect(&mut self, now: Instant, end: End, linger: bool) {
        self.lonely.retain(|(lonely, ..)| *lonely != end);
        self.patience.remove(&end);
        let Some(peer) = self.links.get(&end).copied() else { return };
        if linger {
            return;
        }
        self.links.remove(&end);
        self.links.remove(&peer);
        self.patience.remove(&peer);
        self.wire.disconnect(now, [end, peer]);
    }

    fn retry_limit(&self, end: End) -> Option<Duration> {
        self.functions[end.function].cx.settings.retry_limit
    }

    /// A queue pair has work: its time limit begins now, unless it has begun before.
    fn begin_patience(&mut self, now: Instant, end: End) {
        let Some(limit) = self.retry_limit(end) else { return };
        if self.links.contains_key(&end) && self.functions[end.function].has_work(end.qpn) {
            self.patience.entry(end).or_insert(now + limit);
        }
    }

    /// A queue pair has progress, or another time limit.
    fn renew_patience(&mut self, now: Instant, end: End) {
        self.patience.remove(&end);
        self.begin_patience(now, end);
    }

    fn give_up(&mut self, now: Instant) {
        let late: Vec<End> = self.patience.iter().filter(|(_, at)| **at <= now).map(|(end, _)| *end).collect();
        for end in late {
            self.patience.remove(&end);
            if self.functions[end.function].has_work(end.qpn) {
                self.functions[end.function].give_up(end.qpn, Status::RetryExceeded);
            }
        }
    }
}
