//! The work of processes takes its turn and its time on their hosts' processors.
//!
//! The library's helper thread works in the background: it lets connections ask for links, takes the events of the connection
//! manager, and grants links to peers. Making links and taking streams onto them take its time; its other work (ends of links,
//! retries) takes none.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Anchor, Instant};
use netacc_host::{LoopKind, Part, ProcessorConfig, Step, Work};
use netacc_modelled::HostId;

use crate::connection::Moves;
use crate::host_threads::{HelperTask, HostThreads, Job, Task};
use crate::process::Posted;
use crate::run::{HostState, Run};
use crate::stages::{Costs, Ends};

impl Run {
    /// The threads of a host that have a core do their work, and those that are ready get one.
    pub(crate) fn work(&mut self, host: usize, now: Instant) {
        loop {
            let Some(threads) = &mut self.hosts[host].threads else { return };
            if let Some((thread, job)) = threads.poll_done(now) {
                let work = self.finish(host, &job, now);
                self.charge_device(host, now);
                let costs = self.costs_of(job.step.of);
                if let Some(threads) = &mut self.hosts[host].threads {
                    threads.charge(now, thread, &job, &work, costs.as_deref());
                }
                continue;
            }
            let Some((thread, step)) = threads.poll_start(now) else { return };
            let work = match step.of {
                Task::Connection(number) => {
                    let expected = self.expect(number, host, step.part);
                    self.price(number, host, &step, expected)
                }
                Task::Datagrams(_) if step.part == Part::Write => Work::default(),
                Task::Datagrams(number) => self.begin_datagram(number, host, now),
                Task::Helper(_) if now < self.hosts[host].links_cost_from => Work::default(),
                Task::Helper(helper_task) => self.price_helper_task(host, helper_task),
            };
            let costs = self.costs_of(step.of);
            if let Some(threads) = &mut self.hosts[host].threads {
                threads.begin(now, thread, step, work, costs.as_deref());
            }
        }
    }

    /// The costs of a task, if its stack is another one than the host's.
    fn costs_of(&self, task: Task) -> Option<Arc<ProcessorConfig>> {
        match task {
            Task::Connection(number) => self.connections.get(number)?.costs.clone(),
            Task::Datagrams(number) => self.flows.get(number)?.as_ref()?.plan.costs.clone(),
            Task::Helper(_) => None,
        }
    }

    /// The time of a job is over: it happens. Returns its cost.
    fn finish(&mut self, host: usize, job: &Job, now: Instant) -> Work {
        let number = match job.step.of {
            Task::Connection(number) => number,
            Task::Datagrams(_) if job.step.part == Part::Write => return Work::default(),
            Task::Datagrams(number) => return self.finish_datagram(number, host, now),
            Task::Helper(helper_task) => {
                self.run_helper_task(host, helper_task);
                return Work::default();
            }
        };
        let (before, defers) = (self.moved(number, host), self.is_deferred_client(number, host));
        self.serve(number, host, now, job.step.part);
        let after = self.moved(number, host);
        let served = after.served.saturating_sub(before.served);
        let moves = Moves {
            read: after.read.saturating_sub(before.read),
            written: after.written.saturating_sub(before.written),
            served: if defers { 0 } else { served },
        };
        let mut work = self.price(number, host, &job.step, moves);
        if let Some(connection) = self.connections.get(number) {
            let other = connection.client + connection.server - host as u32;
            if defers {
                work.after += connection.client_service * served;
            }
            if moves.written > 0 {
                work.after += if other == connection.server { connection.client_after_write } else { Duration::ZERO };
                work.wakes = self.claim_wake_up(other, number, now);
            }
        }
        self.trace_moves(number, host, job, (now, moves));
        self.record_used(number, host, moves);
        if work.tcp_bytes[1] > 0 {
            // Its own time delays what comes after, not these bytes: TCP has them already.
            if let Some(stack) = self.hosts[host].threads.as_mut().and_then(|threads| threads.stack.as_mut()) {
                stack.pass(now, moves.written);
            }
        }
        work
    }

    /// A write sends something to that host for a connection or a flow: the number of threads that it has to wake.
    pub(crate) fn claim_wake_up(&mut self, host: u32, number: usize, now: Instant) -> u32 {
        let threads = self.hosts[host as usize].threads.as_mut();
        threads.map_or(0, |threads| u32::from(threads.claim_wake_up(now, number)))
    }

    /// Whether softirqs do the work of what a host receives for a connection.
    pub(crate) fn has_softirqs(&self, host: usize, number: usize) -> bool {
        let Some(threads) = &self.hosts[host].threads else { return false };
        let costs = self.connections.get(number).and_then(|connection| connection.costs.as_deref());
        costs.unwrap_or(threads.processors.config()).softirq
    }

    /// An interrupt brings what TCP has for a connection: when a softirq has done its work, where there are any. `None` for at once.
    pub(crate) fn softirq(&mut self, host: usize, number: usize, now: Instant) -> Option<Instant> {
        let threads = self.hosts[host].threads.as_mut()?;
        let connection = self.connections.get_mut(number)?;
        let costs = connection.costs.as_deref().unwrap_or(threads.processors.config());
        if !costs.softirq {
            return None;
        }
        let side = usize::from(host != connection.client as usize);
        let socket = connection.sockets[side].as_ref()?;
        let read = socket.cell.lock(&self.endpoints[host]).counters().rx_bytes_tcp;
        let total = read + socket.anchor.unread();
        let bytes = total.saturating_sub(std::mem::replace(&mut connection.received[side], total));
        let seed = threads.seed_of_softirq(number, total);
        let time = costs.receiving(bytes, seed);
        (bytes > 0).then(|| threads.processors.softirq(now, number as u32, time))
    }

    /// Wakes the helper thread of a host for its events.
    pub(crate) fn send_helper(&mut self, host: usize, now: Instant) {
        let HostState { threads, granted: before, .. } = &mut self.hosts[host];
        let Some(threads) = threads.as_mut().filter(|threads| threads.has_helper()) else { return };
        if self.cluster.deferred_event(HostId(host as u32)).is_some() && !threads.is_sent(HelperTask::Event) {
            threads.send(now, HelperTask::Event);
        }
        let granted = self.endpoints[host].counters().opens_accepted.load(Ordering::Relaxed);
        let before = std::mem::replace(before, granted);
        if let Some(count) = u32::try_from(granted - before).ok().filter(|count| *count > 0) {
            threads.send(now, HelperTask::Grant(count));
        }
    }

    fn price_helper_task(&self, host: usize, helper_task: HelperTask) -> Work {
        match helper_task {
            HelperTask::Promote { .. } => Work { promotions: 1, ..Work::default() },
            HelperTask::Event => {
                let links = self.cluster.deferred_event(HostId(host as u32)).is_some_and(|makes_link| makes_link);
                Work { links: u32::from(links), ..Work::default() }
            }
            HelperTask::Grant(count) => Work { promotions: count, ..Work::default() },
        }
    }

    fn run_helper_task(&mut self, host: usize, helper_task: HelperTask) {
        match helper_task {
            HelperTask::Promote { number, salt } => {
                let same = self
                    .connections
                    .get(number)
                    .is_some_and(|connection| connection.salt == salt && !connection.is_closing(0));
                if same {
                    self.promote(number);
                }
            }
            HelperTask::Event => self.cluster.release_event(HostId(host as u32)),
            HelperTask::Grant(_) => return,
        }
        self.nudge(host);
    }

    /// The bytes that one end of a conversation has moved so far.
    pub(crate) fn moved(&self, number: usize, host: usize) -> Moves {
        let Some(connection) = self.connections.get(number) else { return Moves::default() };
        let side = usize::from(host != connection.client as usize);
        let served = if side == 1 { connection.answers } else { connection.answered };
        Moves { read: connection.directions[1 - side].read, written: connection.directions[side].written, served }
    }

    /// The process of a host learns of what has come for a connection.
    pub(crate) fn trace_arrival(&mut self, number: usize, host: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(number).filter(|connection| connection.traced.is_some()) else {
            return;
        };
        let sender = usize::from(host == connection.client as usize);
        let unread = connection.end(&self.endpoints[host], 1 - sender).map_or(0, |end| end.unread());
        let end = connection.directions[sender].read + unread;
        if let Some(traced) = &mut connection.traced {
            traced.arrived(sender, now, end);
        }
    }

    /// The device of a host has messages now that were held back, or that a job has just written.
    pub(crate) fn trace_posts(&mut self, host: usize, now: Instant) {
        for Posted { number, position } in self.hosts[host].ready.take_posted() {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            let side = usize::from(host != connection.client as usize);
            if let Some(traced) = &mut connection.traced {
                traced.posted(side, now, position);
            }
        }
    }

    /// A job of a host is over now: it has read messages, and sent one.
    fn trace_moves(&mut self, number: usize, host: usize, job: &Job, (now, moves): (Instant, Moves)) {
        let Some(threads) = &self.hosts[host].threads else { return };
        let Some(connection) = self.connections.get_mut(number).filter(|connection| connection.traced.is_some()) else {
            return;
        };
        let side = usize::from(host != connection.client as usize);
        let on_link = connection.is_linked(&self.endpoints[host], side);
        let config = connection.costs.clone();
        let config = config.as_deref().unwrap_or(threads.processors.config());
        let cost = |calls: u32, bytes: [u64; 2]| {
            let work = Work { bytes: bytes.iter().sum(), ..Work::default() };
            let work = match on_link {
                true => Work { library_calls: calls, ..work },
                false => Work { system_calls: calls, tcp_bytes: bytes, ..work },
            };
            config.time(&work, job.seed)
        };
        let post = match on_link {
            true => config.time(&Work { posts: 1, ..Work::default() }, job.seed),
            false => Duration::ZERO,
        };
        let link_position = on_link.then(|| connection.link_position(&self.endpoints[host], side)).flatten();
        // The call that asks for what is ready comes before the one that reads.
        let asks = u32::from(job.step.asks);
        let read = cost(asks + 1, [moves.read, 0]).saturating_sub(cost(0, [0, 0]));
        let (position, written) = (connection.directions[1 - side].read, connection.directions[side].written);
        let Some(traced) = &mut connection.traced else { return };
        if moves.read > 0 {
            let done = traced.read(connection.conversation, 1 - side, job, (now, read), position);
            self.results.messages.extend(done);
        }
        if moves.written > 0 {
            let write = cost(1, [0, 0]);
            let copy = cost(1, [0, moves.written]).saturating_sub(write);
            let ends = Ends { all: written, link: link_position };
            traced.sent(side, now, Costs { write, copy, post }, moves.written, ends);
        }
        self.trace_posts(host, now);
    }

    /// The bytes that one end of a conversation will move in that part of its turn, as far as they can be predicted.
    fn expect(&mut self, number: usize, host: usize, part: Part) -> Moves {
        let Some(connection) = self.connections.get_mut(number) else { return Moves::default() };
        let side = usize::from(host != connection.client as usize);
        let unread = connection.end(&self.endpoints[host], side).map_or(0, |end| end.unread());
        let all = connection.expect(side, unread);
        let all = if self.is_deferred_client(number, host) { Moves { served: 0, ..all } } else { all };
        match part {
            Part::Whole => all,
            Part::Read => Moves { written: 0, ..all },
            Part::Write => Moves { read: 0, served: 0, ..all },
        }
    }

    /// Whether the host is the client, and defers its writes. Then its own work for an answer follows the read: redis-benchmark ends a
    /// request's time as it begins to read the answer.
    fn is_deferred_client(&self, number: usize, host: usize) -> bool {
        let is_client = self.connections.get(number).is_some_and(|connection| connection.client as usize == host);
        let threads = self.hosts[host].threads.as_ref().filter(|_| is_client);
        threads.is_some_and(|threads| threads.processors.config().loop_kind == LoopKind::Deferred)
    }

    /// The cost of moving them: a call each to ask for what is ready, to read and to write.
    fn price(&mut self, number: usize, host: usize, step: &Step<Task>, moves: Moves) -> Work {
        let bytes = moves.read + moves.written;
        let Some(connection) = self.connections.get_mut(number) else { return Work::default() };
        let side = usize::from(host != connection.client as usize);
        // Paid when it is first used; lasting connections were made before the run.
        let connections = u32::from(connection.short.is_some() && !connection.was_used[side]);
        let calls = u32::from(step.asks) + u32::from(moves.read > 0) + u32::from(moves.written > 0);
        let (each, round, cold) = match side {
            1 => (connection.service, connection.round_service, connection.cold_service),
            _ => (connection.client_service, connection.client_round_service, connection.client_cold_service),
        };
        if bytes == 0 {
            return Work { service: each * moves.served, ..Work::default() };
        }
        // A turn begins with what it reads, or is one of a client that has nothing to read.
        let turns = u32::from(moves.read > 0 || step.part == Part::Whole);
        let HostState { threads, connections: open, .. } = &self.hosts[host];
        let costs = connection.costs.as_deref().or_else(|| threads.as_ref().map(|threads| threads.processors.config()));
        let cold_ppm = costs.map_or(0, |costs| costs.cold_ppm(*open));
        let cold = Work { turns, cold_service: cold * turns, cold_ppm, ..Work::default() };
        let saves = side == 1 && self.hosts[host].threads.as_ref().is_some_and(HostThreads::is_saving);
        let copies = if saves { moves.served } else { 0 };
        let service = each * moves.served + round * u32::from(step.asks);
        let work = Work { connections, bytes, copies, service, ..cold };
        match connection.is_linked(&self.endpoints[host], side) {
            true => Work { library_calls: calls, posts: u32::from(moves.written > 0), ..work },
            false => Work { system_calls: calls, tcp_bytes: [moves.read, moves.written], ..work },
        }
    }

    /// The moved bytes have been paid for.
    fn record_used(&mut self, number: usize, host: usize, moves: Moves) {
        if let Some(connection) = self.connections.get_mut(number).filter(|_| moves.read + moves.written > 0) {
            connection.was_used[usize::from(host != connection.client as usize)] = true;
        }
    }
}
