//! The turns of a run: packets, timers and TCP come in, and processes handle them.

use std::cmp::Reverse;

use netacc_device::Instant;
use netacc_host::{Found, Part};
use netacc_modelled::{HostId, Interrupts, News};
use netacc_rnic::{Body, Packet};

use crate::config::Tcp;
use crate::connection::Exchange;
use crate::host_threads::Task;
use crate::measured::{ns, Sample};
use crate::process::{run_process, Broken};
use crate::run::{Due, Run};
use crate::workload::Received;

/// Polls in a row at most, each because the one before has brought something. Arbitrary: bounds a loop that must end by itself.
const MAX_POLLS: u32 = 1000;

impl Run {
    /// Has every client begin. Once, at the beginning of time.
    pub fn start(&mut self) {
        if self.tcp == Tcp::Memory {
            (0..self.connections.len()).for_each(|number| self.handle_connected(number as u32, Instant::ZERO));
        }
        (0..self.short_clients.len()).for_each(|conversation| self.plan_connect(conversation));
        (0..self.flows.len()).for_each(|flow| self.plan_datagram(flow));
        self.exchanges.numbers().for_each(|number| self.plan_verbs(number));
        (0..self.endpoints.len()).for_each(|host| self.turn(host));
    }

    /// TCP has brought something to a side (0 connected, 1 accepted) of a connection: bytes, the end, or a failure.
    pub fn handle_arrival(&mut self, number: u32, side: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number as usize).filter(|_| side < 2) else { return };
        self.cluster.set_now(now);
        let hosts = [connection.client as usize, connection.server as usize];
        let host = hosts[side];
        let serial = connection.salt;
        if let Some(mut end) = connection.end(&self.endpoints[host], side) {
            end.check_anchor();
            self.cluster.note_tcp(&[serial + side as u64, end.unread()]);
        }
        let waits = std::mem::take(&mut connection.blocked[1 - side]);
        self.interrupt(host, number, now);
        self.turn_for_tcp(host);
        if waits {
            self.hosts[hosts[1 - side]].ready.renew(number);
            self.turn_for_tcp(hosts[1 - side]);
        }
        self.release_if_over(number as usize);
    }

    /// The host's NIC reports what TCP has brought for a connection: at once, or by an interrupt that comes later; the stack's own
    /// thread, if there is one, passes it on after that.
    fn interrupt(&mut self, host: usize, number: u32, now: Instant) {
        match self.report_at(host, now).or_else(|| self.has_softirqs(host, number as usize).then_some(now)) {
            Some(at) => self.hosts[host].timers.push(Reverse((at, Due::Interrupt(number as usize)))),
            None => self.hosts[host].ready.renew(number),
        }
    }

    /// When a host's processes learn of what has come to its NIC from the kernel's network now; `None` for at once.
    pub(crate) fn report_at(&mut self, host: usize, now: Instant) -> Option<Instant> {
        let state = &mut self.hosts[host];
        let stack = state.threads.as_mut().and_then(|threads| threads.stack.as_mut());
        if state.interrupts == Interrupts::default() && stack.is_none() {
            return None;
        }
        let Interrupts { delay, interval } = state.interrupts;
        let soonest = now + delay;
        // One that is to come for packets before this one does not bring it, unless it comes late enough.
        let at = match state.interrupted {
            Some(latest) if latest >= soonest => latest,
            Some(latest) => soonest.max(latest + interval),
            None => soonest,
        };
        state.interrupted = Some(at);
        // Bytes that come at once are one segment.
        Some(stack.map_or(at, |stack| stack.pass(at, 1)))
    }

    /// TCP has brought wrong bytes.
    pub fn handle_corruption(&mut self, number: u32) {
        let Some(connection) = self.connections.get(number as usize) else { return };
        let (conversation, position) = (connection.conversation as usize, connection.directions[0].read);
        self.broken.get_or_insert(Broken { conversation, position });
    }

    /// A packet reaches a host.
    pub fn handle_packet(&mut self, host: u32, now: Instant, packet: Packet) {
        if (host as usize) < self.endpoints.len() {
            let mut news = self.cluster.handle_packet(HostId(host), now, packet);
            self.charge_device(host as usize, now);
            if matches!(packet.body, Body::Datagram(_)) {
                self.receive_datagram(host as usize, packet, now);
                news = self.cluster.news(HostId(host)).1;
            }
            self.turn_after(host, now, news);
        }
    }

    /// A host's deadline is now. The simulator serves the host after this call, as after each packet.
    pub fn handle_timer(&mut self, host: u32, now: Instant) {
        if (host as usize) < self.endpoints.len() {
            let news = self.cluster.handle_timer(HostId(host), now);
            self.charge_device(host as usize, now);
            self.turn_after(host, now, news);
        }
    }

    /// The work that a device in software has got takes the core from the threads: before whatever they do next.
    pub(crate) fn charge_device(&mut self, host: usize, now: Instant) {
        if !self.hosts[host].has_device_on_core {
            return;
        }
        let time = self.cluster.take_device_work(HostId(host as u32));
        if let Some(threads) = self.hosts[host].threads.as_mut().filter(|_| !time.is_zero()) {
            threads.processors.softirq(now, 0, time);
        }
    }

    /// The turn of a host after an event for its NIC.
    fn turn_after(&mut self, host: u32, now: Instant, news: News) {
        let has_work = self.has_work(host as usize, now, news);
        if has_work {
            self.turn_with_peers(host as usize);
        } else if self.nudged.is_empty() {
            return;
        }
        self.turn_nudged();
        // The simulator serves it in any case.
        self.cluster.clear_dirty(HostId(host));
    }

    /// The next packet of a host whose port is free.
    pub fn poll_transmit(&mut self, host: u32, now: Instant) -> Option<Packet> {
        let index = host as usize;
        if index >= self.endpoints.len() {
            return None;
        }
        if let Some(datagram) = self.poll_datagram(index, true, now) {
            return Some(datagram);
        }
        let packet = self.cluster.poll_transmit(HostId(host), now);
        self.charge_device(index, now);
        match packet {
            Some(packet) => {
                self.record_turn(index);
                Some(packet)
            }
            None => self.poll_datagram(index, false, now),
        }
    }

    /// As [`turn`](Run::turn), for events that do not involve the host's NIC: the simulator does not ask for its deadline by itself.
    pub(crate) fn turn_for_tcp(&mut self, host: usize) {
        self.turn(host);
        self.rewoken.push(host as u32);
    }

    /// The process of a host polls its device and does what it can; and, while a connection of its has not been
    /// promoted, so does the other end, as the anchor's bytes take no time, and then this one again.
    fn turn(&mut self, host: usize) {
        let (now, news) = self.cluster.news(HostId(host as u32));
        if self.has_work(host, now, news) {
            self.turn_with_peers(host);
        }
        self.turn_nudged();
    }

    fn turn_with_peers(&mut self, host: usize) {
        let peers = self.run_process(host);
        for peer in &peers {
            self.run_process(*peer);
        }
        if !peers.is_empty() {
            self.run_process(host);
        }
    }

    /// Those hosts have turns that something was done for which no event brings.
    fn turn_nudged(&mut self) {
        for _ in 0..MAX_POLLS {
            let Some(host) = self.nudged.pop() else { break };
            self.run_process(host);
            self.rewoken.push(host as u32);
        }
    }

    /// TCP in memory has carried something at once: it wakes the other end, because no event does.
    pub(crate) fn nudge_peer(&mut self, number: usize, host: usize) {
        let Some(connection) = self.connections.get(number) else { return };
        let peer = connection.host(usize::from(host == connection.client as usize));
        match self.has_softirqs(peer, number) {
            true => self.hosts[peer].timers.push(Reverse((self.cluster.now(), Due::Interrupt(number)))),
            false => self.hosts[peer].ready.renew(number as u32),
        }
        self.nudge(peer);
    }

    /// When the program of a host finds a connection that is ready.
    fn found(&self, number: usize, host: usize) -> Found {
        let on_link = self.connections.get(number).is_some_and(|connection| {
            let side = usize::from(host != connection.client as usize);
            connection.is_linked(&self.endpoints[host], side)
        });
        if on_link {
            Found::WhenAsked
        } else {
            Found::InOrder
        }
    }

    /// A host has something to do that no event brings.
    pub(crate) fn nudge(&mut self, host: usize) {
        if !self.nudged.contains(&host) {
            self.nudged.push(host);
        }
    }

    /// One process. Returns the hosts at the other end of those connections that are on their way to a link.
    fn run_process(&mut self, host: usize) -> Vec<usize> {
        let now = self.cluster.now();
        let mut peers = Vec::new();
        for _ in 0..MAX_POLLS {
            self.run_endpoint(host, now);
            self.charge_device(host, now);
            self.trace_posts(host, now);
            let mut ready = self.hosts[host].ready.take();
            self.poll_verbs(host, now);
            self.take_due(host, now, &mut ready);
            for number in &ready {
                if !self.connections.contains(*number) {
                    continue;
                }
                self.trace_arrival(*number, host, now);
                let found = self.found(*number, host);
                match &mut self.hosts[host].threads {
                    Some(threads) => threads.put(now, Task::Connection(*number), found),
                    None => self.serve(*number, host, now, Part::Whole),
                }
                peers.extend(self.unlinked_peer(*number, host));
                self.handle_linked(*number);
            }
            self.send_helper(host, now);
            self.work(host, now);
            self.release_all_over();
            if ready.is_empty() {
                break;
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Whether anything has changed for a process since its last turn: most events are its NIC's alone.
    fn has_work(&self, host: usize, now: Instant, news: News) -> bool {
        let state = &self.hosts[host];
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        news != News::None || state.ready.has_any() || is_due(state.wake()) || is_due(state.thread_deadline())
    }

    /// The endpoint of a process has its turn, if something has changed for it.
    fn run_endpoint(&mut self, host: usize, now: Instant) {
        let state = &mut self.hosts[host];
        let is_due = state.endpoint_wake.is_some_and(|at| at <= now);
        if is_due || state.ready.has_work() || self.cluster.news(HostId(host as u32)).1 == News::Device {
            state.endpoint_wake = run_process(&self.endpoints[host], &state.ready, now);
        }
    }

    /// The other host of a conversation whose ends are not both on their link.
    fn unlinked_peer(&self, number: usize, host: usize) -> Option<usize> {
        let connection = self.connections.get(number).filter(|_| self.tcp == Tcp::Memory)?;
        let linked = |side: usize| connection.is_linked(&self.endpoints[connection.host(side)], side);
        let peer = connection.host(usize::from(host == connection.client as usize));
        (!linked(0) || !linked(1)).then_some(peer)
    }

    /// Does the actions that are due on a host by now: makes connections, and adds those with something to do to `ready`.
    fn take_due(&mut self, host: usize, now: Instant, ready: &mut Vec<usize>) {
        while let Some(Reverse((_, due))) = self.hosts[host].timers.peek().filter(|Reverse((at, _))| *at <= now) {
            let due = *due;
            self.hosts[host].timers.pop();
            match due {
                Due::Request(number) => {
                    ready.push(number);
                    if let Some(connection) = self.connections.get_mut(number) {
                        connection.wake_at = None;
                    }
                }
                Due::Connect(conversation) => self.connect_due(conversation, now, ready),
                Due::Interrupt(number) => match self.softirq(host, number, now) {
                    Some(at) => self.hosts[host].timers.push(Reverse((at, Due::Received(number)))),
                    None => ready.push(number),
                },
                Due::Received(number) => ready.push(number),
                Due::DatagramIn => self.deliver_next(host, now),
                Due::DatagramOut => self.pass_datagram(host),
                Due::Datagrams(flow) => self.datagrams_due(flow, now),
                Due::DatagramExpiry(flow) => self.expire_datagrams(flow, now),
                Due::Verbs(number) => self.post_due_verbs(number, now),
                Due::Written(number, side) => self.receive_verbs(number, side, now),
            }
        }
    }

    /// One end of a conversation does all that it can in that part of its turn.
    pub(crate) fn serve(&mut self, number: usize, host: usize, now: Instant, part: Part) {
        let promoted = self.connections.get(number).is_some_and(|connection| connection.promoted);
        if promoted || self.tcp != Tcp::Memory {
            return self.move_bytes(number, host, now, part);
        }
        let before = self.moved(number, host);
        self.move_bytes(number, host, now, part);
        let after = self.moved(number, host);
        if (after.read, after.written) != (before.read, before.written) {
            self.nudge_peer(number, host);
        }
    }

    fn move_bytes(&mut self, number: usize, host: usize, now: Instant, part: Part) {
        let connected = self.tcp == Tcp::Memory || self.wires.is_connected(number as u32);
        let Some(connection) = self.connections.get(number) else { return };
        let at_once = self.uses_tcp(connection);
        let side = usize::from(host != connection.client as usize);
        let endpoint = &self.endpoints[host];
        if connection.is_closing(side) {
            return self.go_on_closing(number, side, now);
        }
        if !connected || !at_once && !connection.is_linked(endpoint, side) {
            return self.close_if_over(number, side, now);
        }
        if part != Part::Write && !self.read(number, host, side, now) {
            return;
        }
        if part != Part::Read {
            match side {
                0 => self.make_requests(number, now),
                _ => self.answer(number, host, now),
            }
            self.close_if_over(number, side, now);
        }
        self.plan_next_call(number, host, side, now);
    }

    /// An end whose calls move one message each has more to do: it has another turn.
    fn plan_next_call(&mut self, number: usize, host: usize, side: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let unread = connection.end(&self.endpoints[host], side).map_or(0, |end| end.unread());
        if connection.has_more(side, unread, now) {
            self.hosts[host].ready.renew(number as u32);
            self.nudge(host);
        }
    }

    /// One end reads what there is; a client takes the answers in it. Whether no byte was wrong.
    fn read(&mut self, number: usize, host: usize, side: usize, now: Instant) -> bool {
        let Some(connection) = self.connections.get_mut(number) else { return false };
        let conversation = connection.conversation as usize;
        let before = connection.directions[1 - side].read;
        if let Err(position) = connection.read(&self.endpoints[host], side, (now, &mut self.chunk)) {
            self.broken.get_or_insert(Broken { conversation, position });
            return false;
        }
        self.results.read += connection.directions[1 - side].read - before;
        match side {
            0 => self.take_answers(number, now),
            _ => self.take_requests(number, now),
        }
        true
    }

    /// A server takes the requests that it has read. Others may have waited for them.
    fn take_requests(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let (conversation, before) = (connection.conversation, u64::from(connection.answers));
        connection.answerable();
        let after = u64::from(connection.answers);
        for requests in before + 1..=after {
            for dependent in self.dependents.remove(&Received { conversation, requests }).unwrap_or_default() {
                self.release_dependent(dependent, now);
            }
        }
    }

    /// A request waits for one less, and may be due.
    fn release_dependent(&mut self, (number, request): (usize, usize), now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let host = connection.client as usize;
        connection.source.handle_received(request, now);
        if let Some(due) = connection.source.due().filter(|due| connection.wake_at.is_none_or(|at| *due < at)) {
            connection.wake_at = Some(due);
            self.hosts[host].timers.push(Reverse((due, Due::Request(number))));
            self.nudge(host);
        }
    }

    /// A server answers the requests that it has read.
    fn answer(&mut self, number: usize, host: usize, now: Instant) {
        if let Some(connection) = self.connections.get_mut(number) {
            let until = connection.answerable();
            connection.write(&self.endpoints[host], 1, until, (now, &mut self.chunk));
        }
    }

    /// A client takes its answers.
    fn take_answers(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let mut answers = 0;
        while let Some(exchange) = connection.take_answered() {
            let Exchange { begun, request_bytes, response_bytes, .. } = exchange;
            answers += 1;
            self.results.measured[connection.conversation as usize].latencies_ns.push(ns(begun, now));
            if self.results.sampled {
                let conversation = connection.conversation;
                self.results.samples.push(Sample { conversation, begun, end: now, request_bytes, response_bytes });
            }
            connection.source.handle_answer(now);
        }
        self.results.answered += u64::from(answers);
        if let Some(short) = &mut connection.short {
            short.answered += answers;
        }
        connection.new_answers += answers;
    }

    /// A client makes the requests that are due.
    fn make_requests(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let host = connection.client as usize;
        connection.make_requests(now);
        connection.write(&self.endpoints[host], 0, connection.ends[0], (now, &mut self.chunk));
        if connection.is_open && connection.is_over() {
            connection.is_open = false;
            self.open -= 1;
        }
        let answers = std::mem::take(&mut connection.new_answers);
        if let Some(due) = connection.source.due().filter(|due| connection.wake_at.is_none_or(|at| *due < at)) {
            connection.wake_at = Some(due);
            self.hosts[host].timers.push(Reverse((due, Due::Request(number))));
        }
        self.request_after_use(number, answers);
    }
}
