//! The coordinator: reads programs, has workers take their steps in order, writes traces.

use std::io::{self, BufRead, Write};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netacc_program::{Op, Outcome, Program, Step, Trace, LOST};
use serde::Deserialize;

use crate::channel::{Channel, Reply, Request};
use crate::ledger::Ledger;
use crate::sys::{self, Fd};
use crate::worker::Worker;

/// A worker that gets nowhere for so long is stuck. Above what any step may wait for by itself.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Steps that go to a worker in one message.
const BATCH: usize = 100;
/// Between two rounds of `warm`, for a library that moves the connection in a thread of its own.
const WARM_PAUSE: Duration = Duration::from_micros(400);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    program: Program,
    #[serde(default)]
    expect: Option<Trace>,
}

struct Handle {
    pid: i32,
    channel: Channel,
    /// From the pool, to serve again.
    pooled: bool,
}

struct Coordinator {
    ledger: (Fd, &'static Ledger),
    pool: Vec<Handle>,
    kernel_only: bool,
}

/// Why a program cannot go on.
struct Stuck;

/// Serves until the input ends.
pub(crate) fn serve(fresh: bool, kernel_only: bool) -> io::Result<()> {
    sys::adopt_orphans();
    let mut coordinator = Coordinator { ledger: Ledger::create()?, pool: Vec::new(), kernel_only };
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let trace = match serde_json::from_str::<Job>(&line?) {
            Err(error) => Trace { trouble: Some(error.to_string()), ..Trace::default() },
            Ok(job) => match job.program.check() {
                Err(error) => Trace { trouble: Some(error.to_string()), ..Trace::default() },
                Ok(()) => coordinator.run(&job),
            },
        };
        serde_json::to_writer(&mut out, &trace)?;
        out.write_all(b"\n")?;
        out.flush()?;
        if fresh {
            coordinator.dismiss();
        }
    }
    coordinator.dismiss();
    Ok(())
}

impl Coordinator {
    fn dismiss(&mut self) {
        for handle in std::mem::take(&mut self.pool) {
            handle.channel.close();
            sys::kill(handle.pid);
            sys::reap(handle.pid, true);
        }
    }

    fn begin_worker(&self, process: u8, host: u8) -> io::Result<Handle> {
        let (ours, theirs) = Channel::pair()?;
        match sys::fork()? {
            0 => {
                ours.close();
                self.pool.iter().for_each(|h| drop(sys::close(h.channel.fd)));
                Arc::new(Worker::new(theirs, self.ledger, process, host)).run()
            }
            pid => {
                theirs.close();
                Ok(Handle { pid, channel: ours, pooled: true })
            }
        }
    }

    fn run(&mut self, job: &Job) -> Trace {
        self.ledger.1.clear();
        let mut handles = Vec::new();
        let mut pool = std::mem::take(&mut self.pool).into_iter();
        for (process, host) in job.program.hosts.iter().enumerate() {
            let next = match pool.next() {
                Some(handle) => Ok(handle),
                None => self.begin_worker(process as u8, *host),
            };
            match next {
                Ok(handle) => handles.push(Some(handle)),
                Err(error) => return Trace { trouble: Some(format!("no worker: {error}")), ..Trace::default() },
            }
        }
        let spare: Vec<_> = pool.collect();
        let mut run = Run {
            job,
            handles,
            outcomes: vec![None; job.program.steps.len()],
            ledger: self.ledger.1,
            kernel_only: self.kernel_only,
        };
        let finished = run.steps().and_then(|()| run.reset());
        let Run { handles, outcomes, .. } = run;
        let whole = finished.is_ok();
        // In the order of processes, so that each keeps its number; what a program has ended is begun anew.
        for (process, handle) in handles.into_iter().enumerate() {
            let alive = handle.as_ref().is_some_and(|h| whole && h.pooled);
            match handle {
                Some(handle) if alive => self.pool.push(handle),
                Some(handle) => {
                    handle.channel.close();
                    sys::kill(handle.pid);
                    sys::reap(handle.pid, handle.pooled);
                }
                None => {}
            }
            if !alive && process < job.program.hosts.len() {
                match self.begin_worker(process as u8, job.program.hosts[process]) {
                    Ok(handle) => self.pool.push(handle),
                    Err(error) => return Trace { trouble: Some(format!("no worker: {error}")), ..Trace::default() },
                }
            }
        }
        self.pool.extend(spare);
        let (app_bytes, kernel_bytes) = self.ledger.1.totals();
        let absent = || Outcome::skipped(if whole { "the process has gone" } else { "something was stuck before" });
        let outcomes = outcomes.into_iter().map(|o| o.unwrap_or_else(absent)).collect();
        Trace { outcomes, app_bytes, kernel_bytes, trouble: None }
    }
}

struct Run<'a> {
    job: &'a Job,
    handles: Vec<Option<Handle>>,
    outcomes: Vec<Option<Outcome>>,
    ledger: &'static Ledger,
    kernel_only: bool,
}

/// Steps that need more than their own worker.
fn is_ours(op: &Op) -> bool {
    matches!(op, Op::Warm { .. } | Op::Fork { .. } | Op::Exec | Op::Pass { .. } | Op::Exit | Op::Kill)
}

impl Run<'_> {
    fn steps(&mut self) -> Result<(), Stuck> {
        let steps = &self.job.program.steps;
        let mut index = 0;
        while let Some(step) = steps.get(index) {
            if is_ours(&step.op) {
                let outcome = self.special(step);
                self.outcomes[index] = Some(outcome.as_ref().map_or_else(|_| Outcome::stuck(), Clone::clone));
                outcome?;
                index += 1;
                continue;
            }
            let len = steps[index..].iter().take_while(|s| s.p == step.p && !is_ours(&s.op)).take(BATCH).count();
            let expected = |i: usize| self.job.expect.as_ref().and_then(|t| t.outcomes.get(i).cloned());
            let batch = (index..index + len).map(|i| (i, steps[i].clone(), expected(i))).collect();
            match self.ask(step.p, &Request::Run(batch), None) {
                Ok(Some(reply)) => self.record(reply.0),
                Ok(None) => {}
                Err(stuck) => {
                    let at = self.outcomes.iter().position(|o| o.as_ref().is_some_and(|o| o.stuck)).unwrap_or(index);
                    self.outcomes[index..at.max(index)].fill(Some(Outcome::skipped(LOST)));
                    return Err(stuck);
                }
            }
            index += len;
        }
        Ok(())
    }

    fn record(&mut self, reply: Reply) {
        for (index, outcome) in reply.outcomes {
            self.outcomes[index] = Some(outcome);
        }
    }

    fn reset(&mut self) -> Result<(), Stuck> {
        for p in 0..self.handles.len() as u8 {
            if let Some(reply) = self.ask(p, &Request::Reset, None)? {
                self.record(reply.0);
            }
        }
        Ok(())
    }

    /// Asks a worker and waits. `None` if it has gone.
    fn ask(&mut self, p: u8, request: &Request, beside: Option<Fd>) -> Result<Option<(Reply, Option<Fd>)>, Stuck> {
        let Some(Some(handle)) = self.handles.get(usize::from(p)) else { return Ok(None) };
        if handle.channel.send(request, beside).is_err() {
            self.gone(p);
            return Ok(None);
        }
        self.answer(p)
    }

    fn answer(&mut self, p: u8) -> Result<Option<(Reply, Option<Fd>)>, Stuck> {
        let Some(Some(handle)) = self.handles.get(usize::from(p)) else { return Ok(None) };
        let mut seen = self.ledger.progress.load(Ordering::SeqCst);
        let mut since = Instant::now();
        loop {
            let mut one = [libc::pollfd { fd: handle.channel.fd, events: libc::POLLIN, revents: 0 }];
            if sys::poll(&mut one, 100).is_ok_and(|n| n > 0) {
                break;
            }
            let progress = self.ledger.progress.load(Ordering::SeqCst);
            if progress != seen {
                (seen, since) = (progress, Instant::now());
            }
            if since.elapsed() > PATIENCE {
                for at in &self.ledger.at {
                    let step = at.load(Ordering::SeqCst) as usize;
                    if let Some(outcome @ None) = step.checked_sub(1).and_then(|i| self.outcomes.get_mut(i)) {
                        *outcome = Some(Outcome::stuck());
                    }
                }
                return Err(Stuck);
            }
        }
        match handle.channel.receive::<Reply>() {
            Ok(Some(reply)) => Ok(Some(reply)),
            _ => {
                self.gone(p);
                Ok(None)
            }
        }
    }

    fn gone(&mut self, p: u8) {
        if let Some(handle) = self.handles.get_mut(usize::from(p)).and_then(Option::take) {
            handle.channel.close();
            sys::reap(handle.pid, handle.pooled);
        }
    }

    fn special(&mut self, step: &Step) -> Result<Outcome, Stuck> {
        let gone = || Outcome::skipped("the process has gone");
        let first = |reply: Option<(Reply, Option<Fd>)>| {
            reply.and_then(|(r, _)| r.outcomes.into_iter().next()).map_or_else(gone, |(_, o)| o)
        };
        match &step.op {
            Op::Warm { s, q, peer, rounds } => self.warm((step.p, *s), (*q, *peer), *rounds),
            Op::Fork { .. } => {
                let Some((reply, channel)) = self.ask(step.p, &Request::Fork, None)? else {
                    self.handles.push(None);
                    return Ok(gone());
                };
                let child = channel.map(|fd| Handle { pid: reply.pid, channel: Channel { fd }, pooled: false });
                self.handles.push(child);
                Ok(first(Some((reply, None))))
            }
            Op::Exec => match self.ask(step.p, &Request::Exec, None)? {
                None => Ok(gone()),
                Some((reply, _)) => Ok(reply.outcomes.into_iter().next().map_or_else(Outcome::default, |(_, o)| o)),
            },
            Op::Pass { s, q, to } => self.pass((step.p, *s), (*q, *to)),
            Op::Exit => {
                self.ask(step.p, &Request::Exit, None)?;
                self.gone(step.p);
                Ok(Outcome::default())
            }
            Op::Kill => {
                if let Some(Some(handle)) = self.handles.get(usize::from(step.p)) {
                    sys::kill(handle.pid);
                    // It is dead only when its channel has ended.
                    self.answer(step.p)?;
                    self.gone(step.p);
                }
                Ok(Outcome::default())
            }
            _ => Ok(Outcome::skipped("unknown")),
        }
    }

    /// Bytes to and fro until the kernel's TCP carries them no more, or the rounds are over.
    fn warm(&mut self, (p, s): (u8, u32), (q, peer): (u8, u32), rounds: u32) -> Result<Outcome, Stuck> {
        let rounds = if self.kernel_only { rounds.min(1) } else { rounds };
        let mut seen = None;
        for round in 0..rounds {
            let asked = [
                (p, Request::Warm { s, receive: false, send: true }),
                (q, Request::Warm { s: peer, receive: true, send: true }),
                (p, Request::Warm { s, receive: true, send: false }),
            ];
            let mut counts = Vec::new();
            for (process, request) in asked {
                let kernel = self.ask(process, &request, None)?.map_or(u64::MAX, |(r, _)| r.kernel_bytes);
                if kernel == u64::MAX {
                    return Ok(Outcome::error("warm failed"));
                }
                counts.push(kernel);
            }
            let now = Some((counts[1], counts[2]));
            if now == seen {
                break;
            }
            seen = now;
            if !self.kernel_only && round + 1 < rounds {
                std::thread::sleep(WARM_PAUSE);
            }
        }
        Ok(Outcome::default())
    }

    fn pass(&mut self, (p, s): (u8, u32), (q, to): (u8, u32)) -> Result<Outcome, Stuck> {
        let Ok((a, b)) = sys::packet_pair() else { return Ok(Outcome::error("no pair")) };
        let given = self.ask(p, &Request::Give { s }, Some(a));
        let result = match given {
            Ok(Some((reply, _))) => {
                let end = reply.end;
                let outcome = reply.outcomes.into_iter().next().map_or_else(Outcome::default, |(_, o)| o);
                match end {
                    Some((c, side)) if outcome.errno.is_none() => {
                        let taken = self.ask(q, &Request::Take { to, c, side }, Some(b))?;
                        Ok(taken.and_then(|(r, _)| r.outcomes.into_iter().next()).map_or(outcome, |(_, o)| o))
                    }
                    _ => Ok(outcome),
                }
            }
            Ok(None) => Ok(Outcome::skipped("the process has gone")),
            Err(stuck) => Err(stuck),
        };
        let _ = sys::close(a);
        let _ = sys::close(b);
        result
    }
}
