//! The executor `harness`: runs a program on the core alone, under the seeded scheduler, with faults.
//!
//! Between the steps of the program the scheduler makes deliveries, helper turns, demotions, and links that die
//! (`fault_per_mille`). None of that may show in the trace. An operation without a model here (epoll as the program uses
//! it, the kernel's behaviour after a reset) is `unsupported` in the trace, never silently passed.
//!
//! A socket that several processes hold is one end of one connection, off its link, whichever of them uses it. The library
//! demotes such sockets and lets their holders find each other; its own tests check that.

mod attempt;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use netacc_modelled::{Cluster, Simulator};
use netacc_program::{Op, Outcome, Program, Step, Trace, UNSUPPORTED};

use self::attempt::Attempt;
use crate::network::{Net, NetworkPlan};
use crate::plan::{FaultRates, Plan};
use crate::tcp::ProgramTcp;
use crate::world::World;
use crate::{Check, Mutant, Options, Preset};

/// Rounds of the scheduler for which a step waits for the oracle's outcome. Arbitrary, far above the need.
const PATIENCE: u32 = 3000;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct ProgramRun {
    /// The trace; `kernel_bytes` are the bytes read from anchors.
    pub trace: Trace,
    /// A promise of the core that was broken, independent of the program.
    pub broken: Option<String>,
    /// The streams as they stood when a step was first given up, for people.
    pub state: String,
    /// A hash over the deliveries of the network and their times, where it has times.
    pub network_trace: Option<u64>,
}

/// Runs a program. `expect` is the oracle's trace.
pub fn run_program(program: &Program, seed: u64, options: &Options, expect: Option<&Trace>) -> ProgramRun {
    let plan = plan(program, seed, options);
    let (net, simulator) = Net::new(seed, &plan);
    run_on(program, seed, options, expect, Place { plan, net, simulator, tcp: None })
}

/// A program that waits for a simulator to make its network: on modelled NICs, as with [`Preset::Nic`].
pub struct DrivenProgram {
    /// The description of the network.
    pub network: NetworkPlan,
    /// The hosts, for the simulator to drive.
    pub cluster: Cluster,
    /// The connections' TCP, if the simulator is to carry it.
    pub tcp: Option<ProgramTcp>,
    plan: Plan,
    seed: u64,
    options: Options,
}

impl DrivenProgram {
    /// Draws everything that the seed decides before the run begins. TCP is the simulator's own, or the scheduler's wires.
    pub fn new(program: &Program, seed: u64, mutant: Option<Mutant>, simulated_tcp: bool) -> DrivenProgram {
        let options = Options { preset: Some(Preset::Nic), mutant, ..Options::default() };
        let plan = plan(program, seed, &options);
        let network = NetworkPlan::draw(seed, plan.processes);
        let cluster = Cluster::driven(network.hosts.clone());
        let buffer_bytes = plan.anchor.send_capacity.max(plan.anchor.receive_capacity);
        let tcp = simulated_tcp.then(|| ProgramTcp::new(buffer_bytes));
        DrivenProgram { network, cluster, tcp, plan, seed, options }
    }

    /// Runs it between the simulator's events. `expect` is the oracle's trace.
    pub fn run(self, program: &Program, expect: Option<&Trace>, simulator: Box<dyn Simulator>) -> ProgramRun {
        let place = Place { plan: self.plan, net: Net::Nics(self.cluster), simulator: Some(simulator), tcp: self.tcp };
        run_on(program, self.seed, &self.options, expect, place)
    }
}

/// The plan that the seed draws, with the program's own settings.
fn plan(program: &Program, seed: u64, options: &Options) -> Plan {
    let mut plan = Plan::draw(seed, options);
    let children = program.steps.iter().filter(|step| matches!(step.op, Op::Fork { .. })).count();
    plan.processes = program.hosts.len() + children;
    plan.connections = usize::MAX;
    plan.endpoint.sharing = netacc_driver::Sharing::from_setting(program.config.conn_per_qp.clamp(0, 64) as _);
    plan.endpoint.ring_len = program.config.ring_bytes.next_power_of_two().clamp(4096, 1 << 20);
    plan.endpoint.message_len = plan.endpoint.message_len.min(plan.endpoint.ring_len / 2);
    plan.eager = program.config.promote_after == 0;
    // The oracle's kernel has room for the unread bytes of a sound program.
    plan.anchor.send_capacity = plan.anchor.send_capacity.max(16384);
    plan.anchor.receive_capacity = plan.anchor.receive_capacity.max(16384);
    plan.faults = FaultRates::default();
    plan.volume = u64::MAX;
    plan
}

/// Where a program runs.
struct Place {
    plan: Plan,
    net: Net,
    simulator: Option<Box<dyn Simulator>>,
    tcp: Option<ProgramTcp>,
}

fn run_on(program: &Program, seed: u64, options: &Options, expect: Option<&Trace>, place: Place) -> ProgramRun {
    let Place { plan, net, simulator, tcp } = place;
    let mut world = match World::with_plan(seed, options, plan, net, simulator) {
        Ok(world) => world,
        Err(broken) => return ProgramRun { broken: Some(broken.detail), ..ProgramRun::default() },
    };
    world.tcp = tcp;
    let mut run = Run::new(program, world, expect);
    let result = catch_unwind(AssertUnwindSafe(|| run.steps()));
    let broken = match result {
        Ok(Ok(())) => None,
        Ok(Err(broken)) => Some(format!("{:?}: {}", broken.what, broken.detail)),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    let panicked = broken.as_deref().is_some_and(|b| b.starts_with("panic"));
    let (app, link) = if panicked { (0, 0) } else { run.totals() };
    let network_trace = if panicked { None } else { run.world.net.trace() };
    let outcomes = std::mem::take(&mut run.outcomes);
    let state = std::mem::take(&mut run.state);
    if panicked {
        // Locks may be held for ever.
        std::mem::forget(run);
    }
    let absent = || Outcome::skipped("something was broken before");
    let outcomes = outcomes.into_iter().map(|o| o.unwrap_or_else(absent)).collect();
    let trace = Trace { outcomes, app_bytes: app, kernel_bytes: app.saturating_sub(link), trouble: None };
    ProgramRun { trace, broken, state, network_trace }
}

/// A slot's end of a connection, and whether it does not block.
#[derive(Clone, Copy, Debug)]
struct End {
    c: usize,
    s: usize,
}

struct Pending {
    index: usize,
    step: Step,
    done: i64,
}

struct Run<'a> {
    program: &'a Program,
    expect: Option<&'a Trace>,
    world: World,
    outcomes: Vec<Option<Outcome>>,
    /// Slots by process.
    slots: BTreeMap<(u8, u32), End>,
    /// Those that are closed when the process starts another program.
    cloexec: BTreeSet<(u8, u32)>,
    listeners: BTreeMap<u32, u8>,
    /// Where the accepting process of each connection is.
    acceptors: BTreeMap<u32, u8>,
    openers: BTreeMap<u32, (u8, u32)>,
    connections: BTreeMap<u32, usize>,
    aborts: BTreeMap<(usize, usize), bool>,
    /// Ends of connections that have TCP_CORK.
    corked: BTreeSet<(usize, usize)>,
    pending: BTreeMap<u32, Pending>,
    faults: u32,
    /// Read on links by streams that have been closed.
    link_bytes: u64,
    /// The streams as they stood when a step was first given up.
    state: String,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, world: World, expect: Option<&'a Trace>) -> Run<'a> {
        Run {
            program,
            expect,
            world,
            outcomes: vec![None; program.steps.len()],
            slots: BTreeMap::new(),
            cloexec: BTreeSet::new(),
            listeners: BTreeMap::new(),
            acceptors: BTreeMap::new(),
            openers: BTreeMap::new(),
            connections: BTreeMap::new(),
            aborts: BTreeMap::new(),
            corked: BTreeSet::new(),
            pending: BTreeMap::new(),
            faults: program.config.fault_per_mille,
            link_bytes: 0,
            state: String::new(),
        }
    }

    /// Bytes read by the program, and of those on links.
    fn totals(&mut self) -> (u64, u64) {
        for c in 0..self.world.connections.len() {
            for s in 0..2 {
                if let Some((endpoint, cell)) = self.world.open_side(c, s) {
                    self.link_bytes += cell.lock(&endpoint).counters().rx_bytes_link;
                }
            }
        }
        (self.world.summary.bytes, self.link_bytes)
    }

    fn steps(&mut self) -> Check {
        for (index, step) in self.program.steps.iter().enumerate() {
            for _ in 0..self.world.rng.below(12) {
                self.pump()?;
            }
            if let Some(number) = step.background {
                self.pending.insert(number, Pending { index, step: step.clone(), done: 0 });
                self.try_pending()?;
                continue;
            }
            let outcome = self.take(index, step)?;
            self.outcomes[index] = Some(outcome);
            self.world.check()?;
        }
        self.world.check_streams()
    }

    /// One turn of the world: events that happen at any time, and may not show.
    fn pump(&mut self) -> Check {
        self.world.tick();
        if self.faults > 0 && self.world.rng.below(1000) < self.faults as usize {
            self.world.kill();
        }
        // A cable is cut seldom, and for long enough that retries may be over.
        let chance = if self.world.is_cut() { 100 } else { self.faults as usize };
        if self.faults > 0 && self.world.simulator.is_some() && self.world.rng.below(5000) < chance {
            self.world.cut_or_repair();
        }
        let p = self.world.rng.below(self.world.processes.len());
        match self.world.rng.below(12) {
            0..=3 => drop(self.world.net_step()),
            4..=6 if !self.world.connections.is_empty() => {
                let c = self.world.rng.below(self.world.connections.len());
                self.world.wire_step(c);
            }
            7 | 8 => self.world.helper_step(p),
            9 => self.world.epoll_step(p),
            10 => self.world.now = self.world.now + Duration::from_micros(100),
            _ if self.faults > 0 && !self.world.connections.is_empty() && self.world.rng.below(20) == 0 => {
                let c = self.world.rng.below(self.world.connections.len());
                let s = self.world.rng.below(2);
                self.world.demote_step(c, s);
            }
            _ => {}
        }
        // A demotion that has begun goes on by itself: an application waits in a call for it.
        for c in 0..self.world.connections.len() {
            for s in 0..2 {
                if self.world.connections[c].sides[s].demoting_since.is_some() {
                    self.world.demote_step(c, s);
                }
            }
        }
        self.try_pending()
    }

    /// No event for a while: timers may have to fire first.
    fn pass_time(&mut self, waited: u32) {
        if waited > PATIENCE / 4 {
            self.world.now = self.world.now + Duration::from_millis(5);
        }
    }

    fn try_pending(&mut self) -> Check {
        for number in self.pending.keys().copied().collect::<Vec<_>>() {
            let Some(mut pending) = self.pending.remove(&number) else { continue };
            let step = pending.step.clone();
            match self.attempt(pending.index, &step, pending.done)? {
                Attempt::Over(outcome) => self.outcomes[pending.index] = Some(outcome),
                Attempt::More(done) => {
                    pending.done = done;
                    self.pending.insert(number, pending);
                }
                Attempt::Short => drop(self.pending.insert(number, pending)),
            }
        }
        Ok(())
    }

    fn take(&mut self, index: usize, step: &Step) -> Check<Outcome> {
        if let Op::Join { of } = &step.op {
            let (mut done, mut waited) = (-1, 0);
            while let Some(pending) = self.pending.get(of).filter(|_| waited < PATIENCE) {
                (done, waited) = if pending.done > done { (pending.done, 0) } else { (done, waited + 1) };
                self.pump()?;
                self.pass_time(waited);
            }
            if let Some(pending) = self.pending.remove(of) {
                self.outcomes[pending.index] = Some(Outcome::stuck());
            }
            return Ok(Outcome::default());
        }
        if let Op::Signal { of, restart } = &step.op {
            return self.signal(*of, *restart);
        }
        let (mut done, mut waited, mut short) = (0, 0, false);
        while waited < PATIENCE {
            match self.attempt(index, step, done)? {
                Attempt::Over(outcome) => return Ok(outcome),
                Attempt::More(n) if n > done => (done, waited) = (n, 0),
                Attempt::More(n) => (done, waited) = (n, waited + 1),
                Attempt::Short => (waited, short) = (waited + 1, true),
            }
            self.pump()?;
            self.pass_time(waited);
        }
        Ok(match &step.op {
            Op::Recv { .. } if short => Outcome::skipped(UNSUPPORTED),
            // The oracle's outcome did not come: the trace has the outcome that the program saw.
            Op::Recv { .. } if done == 0 => Outcome::error("EAGAIN"),
            Op::Recv { .. } => Outcome::value(done),
            _ => {
                if self.state.is_empty() {
                    self.state = self.world.dump();
                }
                Outcome::stuck()
            }
        })
    }

    /// A background step that a handler without SA_RESTART ends has moved all bytes that it could before. With SA_RESTART nothing
    /// happens.
    fn signal(&mut self, of: u32, restart: bool) -> Check<Outcome> {
        let wanted = |run: &Self, index: usize| {
            run.expect.and_then(|trace| trace.outcomes.get(index)).map_or(0, |outcome| outcome.ret)
        };
        let mut waited = 0;
        while let Some(pending) = self.pending.get(&of) {
            if restart || waited >= PATIENCE || pending.done >= wanted(self, pending.index) {
                break;
            }
            waited += 1;
            self.pump()?;
            self.pass_time(waited);
        }
        if !restart {
            if let Some(Pending { index, done, .. }) = self.pending.remove(&of) {
                let outcome = if done > 0 { Outcome::value(done) } else { Outcome::error("EINTR") };
                self.outcomes[index] = Some(outcome);
            }
        }
        Ok(Outcome::default())
    }

    fn end(&self, p: u8, s: u32) -> Option<End> {
        self.slots.get(&(p, s)).copied()
    }
}
