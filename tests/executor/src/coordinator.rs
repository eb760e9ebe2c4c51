//! The coordinator: reads programs, makes workers take their steps in order, writes traces.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use netacc_program::{Op, Outcome, Program, Step, Trace, LOST};
use serde::Deserialize;

use crate::channel::{Reply, Request};
use crate::host::{Order, Report};
use crate::place::Places;
use crate::world::World;

/// Steps that go to a worker in one message.
const BATCH: usize = 100;
/// Between two rounds of `warm`, for a library that moves the connection in a thread of its own.
const WARM_PAUSE: Duration = Duration::from_micros(400);
/// The same between machines, where the library has to contact the other side, and gives up if there is more to send
/// meanwhile.
const FAR_WARM_PAUSE: Duration = Duration::from_millis(4);
/// There opening a device takes seconds at first: rounds continue for this time, multiplied by the slowness. Arbitrary.
const FAR_WARM_MOST: Duration = Duration::from_millis(300);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    program: Program,
    #[serde(default)]
    expect: Option<Trace>,
}

/// How programs are run.
pub(crate) struct Settings {
    /// Workers serve one program only.
    pub(crate) fresh: bool,
    /// Only kernel TCP can carry the connections.
    pub(crate) kernel_only: bool,
    /// Commands that run agents.
    pub(crate) hosts: Vec<String>,
    pub(crate) world: World,
}

/// The reason why a program cannot continue.
enum Halt {
    Stuck,
    Trouble(String),
}

/// Serves until the input ends.
pub(crate) fn serve(settings: &Settings) -> io::Result<()> {
    let mut places = Places::open(&settings.hosts, settings.world.clone())?;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let trace = match serde_json::from_str::<Job>(&line?) {
            Err(error) => trouble(error.to_string()),
            Ok(job) => match job.program.check() {
                Err(error) => trouble(error.to_string()),
                Ok(()) => run(&job, &mut places, settings),
            },
        };
        serde_json::to_writer(&mut out, &trace)?;
        out.write_all(b"\n")?;
        out.flush()?;
        if settings.fresh {
            places.dismiss();
        }
    }
    places.dismiss();
    Ok(())
}

fn trouble(text: String) -> Trace {
    Trace { trouble: Some(text), ..Trace::default() }
}

fn run(job: &Job, places: &mut Places, settings: &Settings) -> Trace {
    let mut run = Run {
        job,
        outcomes: vec![None; job.program.steps.len()],
        at: job.program.hosts.iter().map(|host| places.of(*host)).collect(),
        places,
        settings,
    };
    let finished = run.begin().and_then(|()| run.steps()).and_then(|()| run.reset());
    let (mut app_bytes, mut kernel_bytes) = (0, 0);
    let mut failed = match &finished {
        Err(Halt::Trouble(text)) => Some(text.clone()),
        _ => None,
    };
    for place in 0..run.places.count() {
        match run.places.perform(place, Order::End { whole: finished.is_ok() }) {
            Report::Totals(app, kernel) => {
                // Each place has the counts of all received bytes, but the kernel's counts only of its own descriptors.
                app_bytes = app_bytes.max(app);
                kernel_bytes += kernel;
            }
            Report::Trouble(text) => failed = failed.or(Some(text)),
            _ => {}
        }
    }
    if let Some(text) = failed {
        return trouble(text);
    }
    let absent =
        || Outcome::skipped(if finished.is_ok() { "the process has gone" } else { "something was stuck before" });
    let outcomes = run.outcomes.into_iter().map(|o| o.unwrap_or_else(absent)).collect();
    Trace { outcomes, app_bytes, kernel_bytes, trouble: None }
}

struct Run<'a> {
    job: &'a Job,
    outcomes: Vec<Option<Outcome>>,
    /// The place of each process.
    at: Vec<usize>,
    places: &'a mut Places,
    settings: &'a Settings,
}

/// Steps that need more than their own worker.
fn is_ours(op: &Op) -> bool {
    matches!(op, Op::Warm { .. } | Op::Fork { .. } | Op::Exec | Op::Pass { .. } | Op::Exit | Op::Kill)
}

fn gone() -> Outcome {
    Outcome::skipped("the process has gone")
}

fn first(reply: Option<Reply>) -> Option<Outcome> {
    reply.and_then(|r| r.outcomes.into_iter().next()).map(|(_, o)| o)
}

impl Run<'_> {
    fn begin(&mut self) -> Result<(), Halt> {
        for place in 0..self.places.count() {
            let numbered = self.job.program.hosts.iter().enumerate();
            let here = numbered.filter(|(_, host)| self.places.of(**host) == place);
            let processes = here.map(|(process, host)| (process as u8, *host)).collect();
            if let Report::Trouble(text) = self.places.perform(place, Order::Begin(processes)) {
                return Err(Halt::Trouble(text));
            }
        }
        Ok(())
    }

    fn steps(&mut self) -> Result<(), Halt> {
        let steps = &self.job.program.steps;
        let mut index = 0;
        while let Some(step) = steps.get(index) {
            if is_ours(&step.op) {
                let outcome = self.special(step);
                self.outcomes[index] = Some(outcome.as_ref().map_or_else(|_| Outcome::stuck(), Clone::clone));
                outcome?;
                self.settings.world.let_answer(&step.op);
                index += 1;
                continue;
            }
            let len = steps[index..].iter().take_while(|s| s.p == step.p && !is_ours(&s.op)).take(BATCH).count();
            let expected = |i: usize| self.job.expect.as_ref().and_then(|t| t.outcomes.get(i).cloned());
            let batch = (index..index + len).map(|i| (i, steps[i].clone(), expected(i))).collect();
            match self.exchange(step.p, Request::Run(batch)) {
                Ok(Some(reply)) => self.record(reply),
                Ok(None) => {}
                Err(halt) => {
                    let at = self.outcomes.iter().position(|o| o.as_ref().is_some_and(|o| o.stuck)).unwrap_or(index);
                    self.outcomes[index..at.max(index)].fill(Some(Outcome::skipped(LOST)));
                    return Err(halt);
                }
            }
            index += len;
        }
        Ok(())
    }

    fn record(&mut self, reply: Reply) {
        for (index, outcome) in reply.outcomes {
            if let Some(slot) = self.outcomes.get_mut(index) {
                *slot = Some(outcome);
            }
        }
    }

    fn reset(&mut self) -> Result<(), Halt> {
        for p in 0..self.at.len() as u8 {
            if let Some(reply) = self.exchange(p, Request::Reset)? {
                self.record(reply);
            }
        }
        Ok(())
    }

    fn exchange(&mut self, p: u8, request: Request) -> Result<Option<Reply>, Halt> {
        self.perform(p, Order::Ask { p, request })
    }

    /// The host's result of an order for a process. `None` if the process has gone.
    fn perform(&mut self, p: u8, order: Order) -> Result<Option<Reply>, Halt> {
        let Some(place) = self.at.get(usize::from(p)) else { return Ok(None) };
        match self.places.perform(*place, order) {
            Report::Reply(reply) => Ok(Some(reply)),
            Report::Gone => Ok(None),
            Report::Stuck(steps) => {
                for step in steps {
                    if let Some(outcome @ None) = self.outcomes.get_mut(step) {
                        *outcome = Some(Outcome::stuck());
                    }
                }
                Err(Halt::Stuck)
            }
            Report::Trouble(text) => Err(Halt::Trouble(text)),
            Report::Totals(..) => Err(Halt::Trouble("an answer to something else".into())),
        }
    }

    fn special(&mut self, step: &Step) -> Result<Outcome, Halt> {
        let p = step.p;
        match &step.op {
            Op::Warm { s, q, peer, rounds } => self.warm((p, *s), (*q, *peer), *rounds),
            Op::Fork { child } => {
                self.at.push(self.at.get(usize::from(p)).copied().unwrap_or(0));
                Ok(first(self.perform(p, Order::Fork { p, child: *child })?).unwrap_or_else(gone))
            }
            Op::Exec => match self.exchange(p, Request::Exec)? {
                None => Ok(gone()),
                reply => Ok(first(reply).unwrap_or_default()),
            },
            Op::Pass { s, q, to } => match self.perform(p, Order::Pass { p, s: *s, q: *q, to: *to })? {
                None => Ok(gone()),
                reply => Ok(first(reply).unwrap_or_default()),
            },
            Op::Exit => self.exchange(p, Request::Exit).map(|_| Outcome::default()),
            Op::Kill => self.perform(p, Order::Kill { p }).map(|_| Outcome::default()),
            _ => Ok(Outcome::skipped("unknown")),
        }
    }

    /// Bytes to and fro until the kernel's TCP carries them no more, or the rounds are over.
    fn warm(&mut self, (p, s): (u8, u32), (q, peer): (u8, u32), rounds: u32) -> Result<Outcome, Halt> {
        let kernel_only = self.settings.kernel_only;
        let rounds = if kernel_only { rounds.min(1) } else { rounds };
        let far = self.places.count() > 1;
        let slowness = self.settings.world.slowness;
        let (mut seen, mut round, begun) = (None, 0, Instant::now());
        while round < rounds || (far && !kernel_only && rounds > 0 && begun.elapsed() < FAR_WARM_MOST * slowness) {
            let requests = [
                (p, Request::Warm { s, receive: false, send: true }),
                (q, Request::Warm { s: peer, receive: true, send: true }),
                (p, Request::Warm { s, receive: true, send: false }),
            ];
            let mut counts = Vec::new();
            for (process, request) in requests {
                let kernel = self.exchange(process, request)?.map_or(u64::MAX, |r| r.kernel_bytes);
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
            round += 1;
            if !kernel_only {
                std::thread::sleep(if far { FAR_WARM_PAUSE * slowness } else { WARM_PAUSE });
            }
        }
        Ok(Outcome::default())
    }
}
