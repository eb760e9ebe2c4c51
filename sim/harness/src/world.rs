//! The world of one run: processes, connections, the fabric, the wires, virtual time.
//!
//! Everything in it happens in [`World`]'s own methods, one at a time, and every choice comes from one generator: the
//! same seed gives the same run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use netacc_device::loopback::anchor::anchor_pair;
use netacc_device::loopback::QueuePairEnd;
use netacc_device::middleware::SplitMix64;
use netacc_device::tables::{QueueDepths, Refusal};
use netacc_device::{FourTuple, Instant, QueuePairId};
use netacc_modelled::Simulator;
use netacc_proto::{Failure as StreamFailure, Role};

use crate::connection::{Connection, Direction, Side};
use crate::descriptor::{Descriptor, Handle, ERR, HUP, IN, OUT, RDHUP};
use crate::mutants::{AnchorMutant, Countdown};
use crate::network::Net;
use crate::plan::Plan;
use crate::process::{Process, Setup};
use crate::tcp::ProgramTcp;
use crate::trace::{Event, Trace};
use crate::{Broken, Check, Mutant, Options, Preset, Summary, What};

/// See the module documentation.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: SplitMix64,
    pub(crate) now: Instant,
    pub(crate) net: Net,
    /// Makes the network's events happen, where it has a time of its own.
    pub(crate) simulator: Option<Box<dyn Simulator>>,
    /// The connections' TCP, where the simulator has one.
    pub(crate) tcp: Option<ProgramTcp>,
    /// Processes whose host's cable is cut, and since when the network has it so.
    pub(crate) cut: BTreeMap<usize, Instant>,
    /// `None` once crashed.
    pub(crate) processes: Vec<Option<Process>>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) summary: Summary,
    pub(crate) trace: Trace,
    pub(crate) buffer: Vec<u8>,
    pub(crate) mutant: Option<(Mutant, Countdown)>,
    /// Queue pairs that their owners have.
    pub(crate) connected: BTreeSet<QueuePairEnd>,
    /// Processes whose queues are limited, or that refuse connects.
    hampered: Vec<usize>,
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> Check<World> {
        let plan = Plan::draw(seed, options);
        let (net, simulator) = Net::new(seed, &plan);
        World::with_plan(seed, options, plan, net, simulator)
    }

    /// A world of a given plan, on a given network.
    pub(crate) fn with_plan(
        seed: u64,
        options: &Options,
        plan: Plan,
        net: Net,
        simulator: Option<Box<dyn Simulator>>,
    ) -> Check<World> {
        let mut rng = SplitMix64::new(seed);
        let mutant = options.mutant.map(|m| {
            let opportunities = match m {
                // Rare.
                Mutant::DropResume => 2,
                _ => 40,
            };
            (m, Countdown::new(rng.below(opportunities) as u32))
        });
        let mut processes = Vec::new();
        for number in 0..plan.processes {
            let setup = Setup {
                net: &net,
                plan: &plan,
                seed: rng.next_u64(),
                mutant: mutant.clone(),
                record: options.record.as_deref(),
                number,
            };
            processes.push(Some(Process::open(&setup)?));
        }
        Ok(World {
            plan,
            rng,
            now: Instant::from_nanos(1_000_000_000),
            net,
            simulator,
            tcp: None,
            cut: BTreeMap::new(),
            processes,
            connections: Vec::new(),
            summary: Summary::default(),
            trace: Trace::new(options.trace),
            buffer: Vec::new(),
            mutant,
            connected: BTreeSet::new(),
            hampered: Vec::new(),
        })
    }

    /// The mark of a side's stream.
    pub(crate) fn tag(c: usize, s: usize) -> u32 {
        (c * 2 + s) as u32
    }

    /// A new TCP connection between two processes that live (maybe one and the same).
    pub(crate) fn connect(&mut self) {
        let alive: Vec<usize> = (0..self.processes.len()).filter(|p| self.processes[*p].is_some()).collect();
        if alive.is_empty() || self.connections.len() >= self.plan.connections {
            return;
        }
        let opener = alive[self.rng.below(alive.len())];
        let acceptor = alive[self.rng.below(alive.len())];
        self.connect_between(opener, acceptor);
    }

    /// A new TCP connection from one process to another, or to itself.
    pub(crate) fn connect_between(&mut self, opener: usize, acceptor: usize) {
        let c = self.connections.len();
        let (near, far, wire) = anchor_pair(self.plan.anchor);
        let port = |base: usize| SocketAddr::from(([127, 0, 0, 1], (base + c) as u16));
        let tuple = FourTuple { local: port(30_000), remote: port(5_000) };
        let side = |s: usize, process: usize, anchor| {
            let mutant = self.mutant.clone().map(|(mutant, countdown)| AnchorMutant { mutant, countdown });
            let descriptor = Descriptor::new(anchor, mutant);
            let (role, tuple) = if s == 0 { (Role::Opener, tuple) } else { (Role::Acceptor, tuple.reversed()) };
            let handle = Box::new(Handle::borrowed(descriptor.clone()));
            let cell = self.processes[process].as_ref().map(|p| {
                let cell = p.endpoint.adopt(role, tuple, handle);
                if role == Role::Acceptor {
                    p.endpoint.publish(&cell);
                }
                cell.tag().store(World::tag(c, s), std::sync::atomic::Ordering::Relaxed);
                p.epoll.add(World::tag(c, s), cell.clone(), descriptor.clone());
                cell
            });
            Side {
                process,
                cell,
                descriptor,
                may_read: true,
                may_write: true,
                suspended: None,
                demoting_since: None,
                ended: false,
                failed: false,
                read_shut: false,
                left: 0,
                probes: 0,
            }
        };
        // The acceptor's end first: it must be in the directory before anybody looks.
        let second = side(1, acceptor, far);
        let first = side(0, opener, near);
        // Within a host TCP crosses no network.
        let carrier = self.tcp.as_ref().filter(|_| opener != acceptor);
        let carried = carrier.map(|tcp| tcp.add([opener, acceptor], wire.clone()));
        self.connections.push(Connection {
            wire,
            carried,
            sides: [first, second],
            directions: [Direction::default(); 2],
            broken: false,
        });
        self.summary.connections += 1;
        self.trace.record(Event::Connect { c, opener, acceptor });
        if self.plan.eager {
            self.request_promotion(c);
        }
    }

    /// The opener asks for promotion, as the shim does after a few operations.
    pub(crate) fn request_promotion(&mut self, c: usize) {
        let side = &self.connections[c].sides[0];
        let Some(cell) = side.cell.clone() else { return };
        if let Some(process) = self.processes[side.process].as_mut() {
            process.request_promotion(cell);
        }
    }

    /// The application's wait reports ready streams.
    pub(crate) fn epoll_step(&mut self, p: usize) {
        let kernel_first = self.rng.below(4) == 0;
        let Some(process) = self.processes[p].as_mut() else { return };
        let reported = process.epoll_wait(kernel_first);
        for (tag, events) in reported {
            let (c, s) = (tag as usize / 2, tag as usize % 2);
            let side = &mut self.connections[c].sides[s];
            side.may_read |= events & (IN | RDHUP | HUP | ERR) != 0;
            side.may_write |= events & (OUT | HUP | ERR) != 0;
            self.trace.record(Event::Reported { c, s, events });
        }
    }

    /// One turn of a process's helper thread.
    pub(crate) fn helper_step(&mut self, p: usize) {
        let now = self.now;
        if let Some(process) = self.processes[p].as_mut() {
            process.helper(now);
            self.trace.record(Event::Helper { p });
        }
    }

    /// A queue pair dies under everybody's feet.
    pub(crate) fn kill(&mut self) {
        let alive: Vec<usize> = (0..self.processes.len()).filter(|p| self.processes[*p].is_some()).collect();
        let Some(&p) = alive.get(self.rng.below(alive.len())) else { return };
        let Some(process) = &self.processes[p] else { return };
        let links = process.endpoint.links();
        if links.is_empty() {
            return;
        }
        let qp = QueuePairId(links[self.rng.below(links.len())].qp);
        let torn_bytes = [0, 0, 1, 100][self.rng.below(4)];
        if self.plan.preset == Preset::Silent {
            if self.net.silence(&process.port, qp) {
                self.trace.record(Event::Silence { p, qp: qp.0 });
            }
        } else if self.net.kill(&process.port, qp, torn_bytes) {
            self.trace.record(Event::Kill { p, qp: qp.0, torn_bytes });
        }
    }

    /// A process dies; the kernel closes its descriptors.
    pub(crate) fn crash(&mut self) {
        let alive: Vec<usize> = (0..self.processes.len()).filter(|p| self.processes[*p].is_some()).collect();
        if alive.len() < 2 {
            return;
        }
        let p = alive[self.rng.below(alive.len())];
        let Some(process) = self.processes[p].take() else { return };
        self.trace.record(Event::Crash { p });
        self.summary.crashes += 1;
        self.account(&process);
        process.die(&self.net);
        for connection in &mut self.connections {
            for s in 0..2 {
                let side = &mut connection.sides[s];
                if side.process != p {
                    continue;
                }
                // A closed side perhaps still lingers: its bytes may be lost.
                connection.broken = true;
                connection.directions[s].died = true;
                if side.cell.take().is_some() {
                    side.descriptor.close();
                    connection.directions[s].ended = true;
                }
            }
        }
    }

    /// Shrinks a device's queues.
    pub(crate) fn limit(&mut self) {
        let p = self.rng.below(self.processes.len());
        let Some(process) = &self.processes[p] else { return };
        let (send, recv) = (4 + self.rng.below(30) as u32, 4 + self.rng.below(30) as u32);
        self.net.limit_queues(&process.port, QueueDepths { send, recv });
        self.hampered.push(p);
        self.trace.record(Event::Limit { p, send, recv });
    }

    /// A device refuses connects.
    pub(crate) fn refuse(&mut self) {
        let p = self.rng.below(self.processes.len());
        let Some(process) = &self.processes[p] else { return };
        let refusal = [Refusal::Unreachable, Refusal::NotAdmitted, Refusal::Exhausted][self.rng.below(3)];
        self.net.refuse_connects(&process.port, Some(refusal));
        self.hampered.push(p);
        self.trace.record(Event::Refuse { p });
    }

    /// A process runs short of descriptors.
    pub(crate) fn run_short(&mut self) {
        let p = self.rng.below(self.processes.len());
        let now = self.now;
        let Some(process) = &mut self.processes[p] else { return };
        process.run_short(now);
        self.trace.record(Event::Short { p });
        self.summary.shortages += 1;
    }

    /// Undoes `limit` and `refuse`.
    pub(crate) fn relieve(&mut self) {
        for p in std::mem::take(&mut self.hampered) {
            if let Some(process) = &self.processes[p] {
                self.net.limit_queues(&process.port, QueueDepths { send: u32::MAX, recv: u32::MAX });
                self.net.refuse_connects(&process.port, None);
            }
        }
    }

    /// The network resets a TCP connection.
    pub(crate) fn break_anchor(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let c = self.rng.below(self.connections.len());
        if self.connections[c].is_open() {
            self.connections[c].wire.break_off();
            self.connections[c].broken = true;
            self.trace.record(Event::Break { c });
        }
    }

    /// Checks the invariants that hold at any time among honest processes.
    pub(crate) fn check(&self) -> Check {
        if let Some(c) = self.tcp.as_ref().and_then(ProgramTcp::corrupt) {
            return Err(Broken::new(What::WrongByte, format!("connection {c}: TCP has brought other bytes")));
        }
        for (c, connection) in self.connections.iter().enumerate() {
            for (s, side) in connection.sides.iter().enumerate() {
                if side.descriptor.misused() > 0 {
                    let detail = format!("connection {c} side {s}: the anchor was used after close");
                    return Err(Broken::new(What::Misuse, detail));
                }
            }
        }
        let repeats = matches!(self.mutant, Some((Mutant::Repeat, _)));
        for (p, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            let counters = process.endpoint.counters();
            let count = counters.violations.load(Ordering::Relaxed);
            if count > 0 {
                return Err(Broken::new(What::Violation, format!("process {p} counts {count} violations")));
            }
            let count = counters.links_out_of_turn.load(Ordering::Relaxed);
            if count > 0 && !repeats {
                return Err(Broken::new(What::OutOfTurn, format!("process {p} counts {count} messages out of turn")));
            }
        }
        Ok(())
    }

    /// No stream of an honest process was accused. Dearer than `check`.
    pub(crate) fn check_streams(&self) -> Check {
        for (p, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            for cell in process.endpoint.streams() {
                let failure = cell.lock(&process.endpoint).proto().failure();
                if let Some(StreamFailure::Violation(what)) = failure {
                    return Err(Broken::new(What::Violation, format!("process {p} {}: {what}", cell.tuple().local)));
                }
            }
        }
        Ok(())
    }

    /// Adds a process's counters to the summary, before it goes.
    pub(crate) fn account(&mut self, process: &Process) {
        let counters = process.endpoint.counters().snapshot();
        let get = |name: &str| counters.get(name).copied().unwrap_or(0);
        self.summary.promotions += get("streams_promoted");
        self.summary.demotions += get("streams_demoted");
        self.summary.links_failed += get("links_failed");
        self.summary.links_out_of_turn += get("links_out_of_turn");
        self.summary.sharing_stopped += get("sharing_stopped");
        self.summary.link_bytes += get("rx_bytes_link");
        for (reason, n) in process.endpoint.counters().reasons() {
            *self.summary.reasons.entry(reason).or_default() += n;
        }
        for name in
            ["opens_sent", "opens_accepted", "opens_refused", "pledges_voided", "links_established", "links_reused"]
        {
            *self.summary.reasons.entry(name.to_string()).or_default() += get(name);
        }
    }

    /// The streams and links as they stand, for people, without those on TCP and those that are finished.
    pub(crate) fn dump(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        let dull = |s: &crate::connection::Side| s.cell.is_none() || s.ended || s.failed;
        for (c, k) in self.connections.iter().enumerate().filter(|(_, k)| !k.sides.iter().all(dull)) {
            let _ = writeln!(out, "connection {c}: {:?} broken={}", k.directions, k.broken);
            for (s, side) in k.sides.iter().enumerate() {
                let _ = writeln!(
                    out,
                    "  side {s} process {} open={} may_read={} may_write={} ended={} failed={} left={} {:?}",
                    side.process,
                    side.cell.is_some(),
                    side.may_read,
                    side.may_write,
                    side.ended,
                    side.failed,
                    side.left,
                    side.descriptor.state()
                );
            }
        }
        for (p, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            let _ = writeln!(out, "process {p}: {}", process.restlessness(self.now));
            for link in process.endpoint.links() {
                let _ = writeln!(out, "process {p}: {link:?}");
            }
            for cell in process.endpoint.streams() {
                let guard = cell.lock(&process.endpoint);
                if guard.proto().is_plain() && guard.link().is_none() {
                    continue;
                }
                let link = guard.link().map(|l| (l.qp().0, l.is_dead()));
                let _ = writeln!(
                    out,
                    "process {p} {} {:?} link={link:?} {:?} {:?} {:?}\n    {:?}",
                    cell.tuple().local,
                    cell.readiness(),
                    guard.tx_sink(),
                    guard.rx_source(),
                    guard.counters(),
                    guard.proto()
                );
            }
        }
        out
    }

    /// An event's place in the run.
    pub(crate) fn tick(&mut self) {
        self.summary.steps += 1;
        self.trace.step = self.summary.steps;
    }

    /// The last events.
    pub(crate) fn tail(&self) -> VecDeque<String> {
        self.trace.tail()
    }
}
