//! The workers of one host, and the coordinator's orders for them: in the same process if all hosts of a program are
//! this machine, else at the other end of a line ([`crate::place`]).

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use netacc_program::Outcome;
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, Reply, Request};
use crate::ledger::{Ledger, Positions};
use crate::sys::{self, Fd};
use crate::worker::Worker;
use crate::world::World;

/// An order for a host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// A program begins, with these processes here: the number of each and that of its host.
    Begin(Vec<(u8, u8)>),
    /// A request for one worker.
    Ask { p: u8, request: Request },
    /// A worker forks one with the number `child`.
    Fork { p: u8, child: u8 },
    /// A worker passes the descriptor of its slot to another of this host.
    Pass { p: u8, s: u32, q: u8, to: u32 },
    /// A worker is killed.
    Kill { p: u8 },
    /// The program is over; `whole` if no worker of it is stuck anywhere.
    End { whole: bool },
}

/// The result of an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The worker's answer.
    Reply(Reply),
    /// There is no such worker any more.
    Gone,
    /// It got nowhere, and neither did any other worker here. The steps that the workers are at.
    Stuck(Vec<usize>),
    /// For `End`: bytes that programs have received, and the kernel's TCP for them.
    Totals(u64, u64),
    /// A failure that no program can have caused.
    Trouble(String),
}

/// An order on a line, with the events of other hosts meanwhile.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderLine {
    pub(crate) order: Order,
    pub(crate) known: Positions,
}

/// A report on a line, with the events here so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReportLine {
    pub(crate) report: Report,
    pub(crate) known: Positions,
}

struct Handle {
    pid: i32,
    channel: Channel,
    /// From the pool, to serve again.
    pooled: bool,
}

/// See the module documentation.
pub(crate) struct Host {
    ledger: (Fd, &'static Ledger),
    world: World,
    /// Workers that wait for a program, by process and host.
    pool: BTreeMap<(u8, u8), Handle>,
    /// The workers of the running program, by process, with their host.
    working: BTreeMap<u8, (u8, Handle)>,
}

/// Serves a coordinator elsewhere until the input ends.
pub(crate) fn serve(world: World) -> io::Result<()> {
    let mut host = Host::create(world)?;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let report = match serde_json::from_str::<OrderLine>(&line?) {
            Ok(line) => {
                // A program begins with an empty ledger, which `Begin` makes.
                if !matches!(line.order, Order::Begin(_)) {
                    host.ledger.1.learn(&line.known);
                }
                host.perform(line.order)
            }
            Err(error) => Report::Trouble(error.to_string()),
        };
        serde_json::to_writer(&mut out, &ReportLine { report, known: host.ledger.1.positions() })?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    host.dismiss();
    Ok(())
}

/// The ways in which waiting for a worker ends without an answer.
enum Silence {
    Gone,
    Stuck,
}

type Answer = Result<(Reply, Option<Fd>), Silence>;

impl Host {
    pub(crate) fn create(world: World) -> io::Result<Host> {
        sys::adopt_orphans();
        Ok(Host { ledger: Ledger::create()?, world, pool: BTreeMap::new(), working: BTreeMap::new() })
    }

    /// Ends all workers.
    pub(crate) fn dismiss(&mut self) {
        let working = std::mem::take(&mut self.working).into_values().map(|(_, handle)| handle);
        for handle in working.chain(std::mem::take(&mut self.pool).into_values()) {
            end(handle);
        }
    }

    pub(crate) fn perform(&mut self, order: Order) -> Report {
        let answer = match order {
            Order::Begin(processes) => return self.begin(&processes),
            Order::End { whole } => return self.end(whole),
            Order::Ask { p, request } => self.exchange(p, &request, None).map(|(reply, _)| reply),
            Order::Fork { p, child } => self.fork(p, child),
            Order::Pass { p, s, q, to } => self.pass((p, s), (q, to)),
            Order::Kill { p } => {
                if let Some((_, handle)) = self.working.get(&p) {
                    sys::kill(handle.pid);
                }
                // It is dead only when its channel has ended.
                self.answer(p).map(|(reply, _)| reply)
            }
        };
        match answer {
            Ok(reply) => Report::Reply(reply),
            Err(Silence::Gone) => Report::Gone,
            Err(Silence::Stuck) => {
                let at = self.ledger.1.at.iter().map(|at| at.load(Ordering::SeqCst) as usize);
                Report::Stuck(at.filter_map(|at| at.checked_sub(1)).collect())
            }
        }
    }

    fn begin(&mut self, processes: &[(u8, u8)]) -> Report {
        self.ledger.1.clear();
        for (p, host) in processes {
            let handle = match self.pool.remove(&(*p, *host)) {
                Some(handle) => Ok(handle),
                None => self.begin_worker(*p, *host),
            };
            match handle {
                Ok(handle) => drop(self.working.insert(*p, (*host, handle))),
                Err(error) => return Report::Trouble(format!("no worker: {error}")),
            }
        }
        Report::Reply(Reply::default())
    }

    fn begin_worker(&self, process: u8, host: u8) -> io::Result<Handle> {
        let (ours, theirs) = Channel::pair()?;
        match sys::fork()? {
            0 => {
                ours.close();
                let others = self.pool.values().chain(self.working.values().map(|(_, handle)| handle));
                others.for_each(|h| drop(sys::close(h.channel.fd)));
                // The processes that it forks in turn do not: they outlive it, as a program's do.
                sys::die_with_parent();
                Arc::new(Worker::new(theirs, self.ledger, self.world.clone(), process, host)).run()
            }
            pid => {
                theirs.close();
                Ok(Handle { pid, channel: ours, pooled: true })
            }
        }
    }

    fn end(&mut self, whole: bool) -> Report {
        for (process, (host, handle)) in std::mem::take(&mut self.working) {
            if whole && handle.pooled {
                self.pool.insert((process, host), handle);
            } else {
                end(handle);
            }
        }
        let (app, kernel) = self.ledger.1.totals();
        Report::Totals(app, kernel)
    }

    /// Sends a request to a worker and waits.
    fn exchange(&mut self, p: u8, request: &Request, beside: Option<Fd>) -> Answer {
        let Some((_, handle)) = self.working.get(&p) else { return Err(Silence::Gone) };
        if handle.channel.send(request, beside).is_err() {
            self.gone(p);
            return Err(Silence::Gone);
        }
        self.answer(p)
    }

    fn answer(&mut self, p: u8) -> Answer {
        let Some((_, handle)) = self.working.get(&p) else { return Err(Silence::Gone) };
        let ledger = self.ledger.1;
        let mut seen = ledger.progress.load(Ordering::SeqCst);
        let mut since = Instant::now();
        loop {
            let mut one = [libc::pollfd { fd: handle.channel.fd, events: libc::POLLIN, revents: 0 }];
            if sys::poll(&mut one, 100).is_ok_and(|n| n > 0) {
                break;
            }
            let progress = ledger.progress.load(Ordering::SeqCst);
            if progress != seen {
                (seen, since) = (progress, Instant::now());
            }
            if since.elapsed() > self.world.stuck_after() {
                return Err(Silence::Stuck);
            }
        }
        match handle.channel.receive::<Reply>() {
            Ok(Some(reply)) => Ok(reply),
            _ => {
                self.gone(p);
                Err(Silence::Gone)
            }
        }
    }

    fn gone(&mut self, p: u8) {
        if let Some((_, handle)) = self.working.remove(&p) {
            handle.channel.close();
            // Its channel may have been closed before its other files.
            sys::reap(handle.pid);
        }
    }

    fn fork(&mut self, p: u8, child: u8) -> Result<Reply, Silence> {
        let (reply, channel) = self.exchange(p, &Request::Fork, None)?;
        let host = self.working.get(&p).map_or(0, |(host, _)| *host);
        if let Some(fd) = channel {
            let handle = Handle { pid: reply.pid, channel: Channel { fd }, pooled: false };
            self.working.insert(child, (host, handle));
        }
        Ok(reply)
    }

    fn pass(&mut self, (p, s): (u8, u32), (q, to): (u8, u32)) -> Result<Reply, Silence> {
        let Ok((a, b)) = sys::packet_pair() else { return Ok(Reply::of(Outcome::error("no pair"))) };
        let given = self.exchange(p, &Request::Give { s }, Some(a));
        let result = given.and_then(|(reply, _)| match reply.end {
            Some((c, side)) if reply.outcomes.iter().all(|(_, o)| o.errno.is_none()) => {
                match self.exchange(q, &Request::Take { to, c, side }, Some(b)) {
                    Err(Silence::Gone) => Ok(reply),
                    taken => taken.map(|(reply, _)| reply),
                }
            }
            _ => Ok(reply),
        });
        let _ = sys::close(a);
        let _ = sys::close(b);
        result
    }
}

fn end(handle: Handle) {
    handle.channel.close();
    sys::kill(handle.pid);
    sys::reap(handle.pid);
}
