//! The random part of a run: one action a step, picked by the weights of the plan.

use std::time::Duration;

use netacc_driver::Shutdown;
use netacc_socket::Waited;

use crate::plan::Weights;
use crate::trace::Event;
use crate::world::World;
use crate::Check;

/// The action of a step.
#[derive(Clone, Copy)]
enum Action {
    Write,
    Read,
    Peek,
    Shutdown,
    Close,
    Abort,
    Promote,
    Demote,
    Connect,
    Helper,
    Epoll,
    Poll,
    Fabric,
    Wire,
    Time,
}

fn table(w: &Weights) -> [(Action, u32); 15] {
    [
        (Action::Write, w.write),
        (Action::Read, w.read),
        (Action::Peek, w.peek),
        (Action::Shutdown, w.shutdown),
        (Action::Close, w.close),
        (Action::Abort, w.abort),
        (Action::Promote, w.promote),
        (Action::Demote, w.demote),
        (Action::Connect, w.connect),
        (Action::Helper, w.helper),
        (Action::Epoll, w.epoll),
        (Action::Poll, w.poll),
        (Action::Fabric, w.fabric),
        (Action::Wire, w.wire),
        (Action::Time, w.time),
    ]
}

impl World {
    /// The random part: faults, and everything else in any order.
    pub(crate) fn shuffle(&mut self) -> Check {
        for _ in 0..self.plan.initial {
            self.connect();
        }
        let table = table(&self.plan.weights);
        let total: u32 = table.iter().map(|(_, w)| w).sum();
        for _ in 0..self.plan.steps {
            self.tick();
            self.fault();
            let mut roll = self.rng.below(total as usize) as u32;
            let picked = table.iter().find(|(_, w)| {
                let hit = roll < *w;
                roll = roll.saturating_sub(*w);
                hit
            });
            if let Some((action, _)) = picked {
                self.act(*action)?;
            }
            self.check()?;
        }
        self.check_streams()
    }

    fn fault(&mut self) {
        let f = self.plan.faults;
        if self.rng.chance(f.kill) {
            self.kill();
        }
        if self.rng.chance(f.crash) {
            self.crash();
        }
        if self.rng.chance(f.limit) {
            self.limit();
        }
        if self.rng.chance(f.refuse) {
            self.refuse();
        }
        if self.rng.chance(f.limit + f.refuse) {
            self.relieve();
        }
        if self.rng.chance(f.break_anchor) {
            self.break_anchor();
        }
        if f.shortage > 0 && self.rng.chance(f.shortage) {
            self.run_short();
        }
    }

    /// A side whose application still has it, if the dice find one.
    fn pick_side(&mut self) -> Option<(usize, usize)> {
        if self.connections.is_empty() {
            return None;
        }
        for _ in 0..4 {
            let (c, s) = (self.rng.below(self.connections.len()), self.rng.below(2));
            if self.connections[c].sides[s].cell.is_some() {
                return Some((c, s));
            }
        }
        None
    }

    fn amount(&mut self) -> usize {
        match self.rng.below(4) {
            0 => 1 + self.rng.below(8),
            _ => 1 + self.rng.below(self.plan.chunk),
        }
    }

    fn act(&mut self, action: Action) -> Check {
        match action {
            Action::Connect => self.connect(),
            Action::Helper => {
                let p = self.rng.below(self.processes.len());
                self.helper_step(p);
            }
            Action::Epoll => {
                let p = self.rng.below(self.processes.len());
                self.epoll_step(p);
            }
            Action::Poll => self.blind_poll(),
            Action::Fabric | Action::Wire => self.deliver(matches!(action, Action::Fabric)),
            Action::Time => {
                let us = [1, 50, 700, 3000, 30_000][self.rng.below(5)];
                self.now = self.now + Duration::from_micros(us);
                self.trace.record(Event::Time { now_us: self.now.as_nanos() / 1000 });
            }
            _ => {
                if let Some((c, s)) = self.pick_side() {
                    self.act_on(action, c, s)?;
                }
            }
        }
        Ok(())
    }

    fn act_on(&mut self, action: Action, c: usize, s: usize) -> Check {
        if self.connections[c].sides[s].demoting_since.is_some() {
            // The application waits in a call until the stream is a plain socket.
            self.demote_step(c, s);
            return Ok(());
        }
        if self.connections[c].sides[s].suspended.is_some() && !matches!(action, Action::Write | Action::Read) {
            return Ok(());
        }
        if self.connections[c].sides[s].failed && matches!(action, Action::Read | Action::Peek) {
            // It has seen an error: it will do nothing more but close.
            return Ok(());
        }
        match action {
            Action::Write => self.write_step(c, s)?,
            Action::Read => {
                let want = self.amount();
                let io = self.recv(c, s, want, false)?;
                self.trace.record(Event::Read { c, s, want, io });
            }
            Action::Peek => {
                let want = self.amount();
                let io = self.recv(c, s, want, true)?;
                self.trace.record(Event::Peek { c, s, want, io });
            }
            Action::Shutdown if self.rng.below(8) == 0 => {
                self.shutdown(c, s, Shutdown::Read);
                self.trace.record(Event::ShutdownRead { c, s });
            }
            Action::Shutdown => {
                self.shutdown(c, s, Shutdown::Write);
                self.trace.record(Event::ShutdownWrite { c, s });
            }
            Action::Close | Action::Abort => {
                let abort = matches!(action, Action::Abort);
                self.trace.record(Event::Close { c, s, abort });
                self.close(c, s, abort);
            }
            Action::Promote => {
                self.request_promotion(c);
                self.trace.record(Event::RequestPromotion { c });
            }
            Action::Demote => {
                self.trace.record(Event::Demote { c, s });
                self.demote_step(c, s);
            }
            _ => {}
        }
        Ok(())
    }

    fn write_step(&mut self, c: usize, s: usize) -> Check {
        let connection = &self.connections[c];
        if connection.directions[s].written >= self.plan.volume || connection.sides[s].failed {
            return Ok(());
        }
        if connection.sides[s].suspended.is_some() && self.rng.below(8) == 0 {
            // As if the patience were over.
            if let Some(suspended) = &mut self.connections[c].sides[s].suspended {
                suspended.waited = Waited::TimedOut;
            }
            self.trace.record(Event::Void { c, s });
        }
        let want = self.amount();
        let io = self.send(c, s, want, false)?;
        self.trace.record(Event::Write { c, s, want, io });
        Ok(())
    }

    /// One delivery of the preferred kind, else of the other.
    fn deliver(&mut self, fabric_first: bool) {
        if fabric_first && self.net_step() || self.connections.is_empty() {
            return;
        }
        let first = self.rng.below(self.connections.len());
        let moved = (0..self.connections.len()).any(|i| self.wire_step((first + i) % self.connections.len()));
        if !moved && !fabric_first {
            self.net_step();
        }
    }

    /// An application polls without an event, for example in another thread.
    fn blind_poll(&mut self) {
        let p = self.rng.below(self.processes.len());
        let which = self.rng.below(3);
        let Some(process) = &self.processes[p] else { return };
        let cq = [process.endpoint.control_cq(), process.endpoint.default_cq(), process.cq][which];
        process.endpoint.poll(cq);
        self.trace.record(Event::Poll { p });
    }
}
