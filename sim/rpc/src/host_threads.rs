//! The work of a host's process, on its processors.
//!
//! Connections belong to threads in turn. A connection with something to do waits in its thread's inbox, an [`EventLoop`], which has the
//! order of the steps. The calls of a step happen when their time is over: a response leaves when it was made. Their cost is predicted
//! from the bytes that are there; the rest, for bytes that came meanwhile, the thread pays before its next work.
//!
//! The library's helper thread is one more, which sleeps between its [tasks](HelperTask).

use std::time::Duration;

use netacc_device::Instant;
use netacc_host::{
    EventLoop, Found, LoopKind, Part, ProcessorConfig, Processors, Saving, StackThread, Step, Usage, Work,
};

/// A task of the helper thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelperTask {
    /// Has a connection ask for a link: its number, and its identity among those that have had the number.
    Promote { number: usize, salt: u64 },
    /// Takes the oldest event of the connection manager.
    Event,
    /// Has granted a link to so many streams of peers. The grants have happened; their time is paid now.
    Grant(u32),
}

/// The task of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// One turn of a connection.
    Connection(usize),
    /// One datagram of a flow.
    Datagrams(usize),
    Helper(HelperTask),
}

/// The current work of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) step: Step<Task>,
    /// The work that was predicted and paid for.
    paid: Duration,
    /// Decides what is random about its time.
    pub(crate) seed: u64,
    /// When it began.
    pub(crate) begun: Instant,
    /// When its thread last asked for what is ready.
    pub(crate) asked: Instant,
    /// Its thread slept before it.
    pub(crate) slept: bool,
}

/// The activity of a thread that has a core, or had one last.
enum Activity {
    /// Nothing is left.
    Idle,
    Job(Job),
    /// It works on after its last job has written: the write wakes a thread, and the program has more of its own work.
    Rest,
}

struct Thread {
    inbox: EventLoop<Task>,
    activity: Activity,
    /// A write on its way to it has paid for its wake-up.
    is_being_woken: bool,
    /// Time that its last work took beyond the prediction.
    owed: Duration,
    /// It has slept: its next work begins with the end of that call.
    slept: bool,
    /// When it last asked for what is ready.
    asked: Instant,
}

/// See the module documentation.
pub(crate) struct HostThreads {
    pub(crate) processors: Processors,
    /// The stack's own thread, if it has one.
    pub(crate) stack: Option<StackThread>,
    /// The program's saves in the background, and the number of the child.
    saving: Option<(Saving, u32)>,
    threads: Vec<Thread>,
    /// The helper's number, if it takes time.
    helper: Option<u32>,
    /// By connection, and by flow: it is in an inbox.
    waiting: [Vec<bool>; 2],
    /// How often threads have asked for what is ready, beside the helper.
    asks: u64,
}

impl HostThreads {
    pub(crate) fn new(config: ProcessorConfig) -> HostThreads {
        let helper = config.helper();
        let thread = |kind| Thread {
            inbox: EventLoop::new(kind),
            activity: Activity::Idle,
            is_being_woken: false,
            owed: Duration::ZERO,
            slept: false,
            asked: Instant::ZERO,
        };
        let workers = (0..config.threads.max(1)).map(|_| thread(config.loop_kind));
        let threads = workers.chain(helper.map(|_| thread(LoopKind::Turns))).collect();
        let stack = StackThread::of(&config);
        let saving = Saving::of(&config).zip(config.saver());
        HostThreads {
            processors: Processors::new(config),
            stack,
            saving,
            threads,
            helper,
            waiting: Default::default(),
            asks: 0,
        }
    }

    /// How the processors were used until now, that of the stack's thread included.
    pub(crate) fn usage(&self, now: Instant) -> Usage {
        let usage = self.processors.usage(now);
        let stack = self.stack.as_ref().map_or(Duration::ZERO, StackThread::busy);
        Usage { busy: usage.busy + stack, asks: self.asks, ..usage }
    }

    /// Whether its helper thread takes time.
    pub(crate) fn has_helper(&self) -> bool {
        self.helper.is_some()
    }

    /// The helper has something to do; without one that takes time, without effect.
    pub(crate) fn send(&mut self, now: Instant, helper_task: HelperTask) {
        let Some(helper) = self.helper else { return };
        let thread = &mut self.threads[helper as usize];
        thread.inbox.push(Task::Helper(helper_task), Found::InOrder);
        thread.slept |= self.processors.wake(now, helper);
    }

    /// Whether the helper has an unfinished task of that kind.
    pub(crate) fn is_sent(&self, helper_task: HelperTask) -> bool {
        let Some(helper) = self.helper else { return false };
        let thread = &self.threads[helper as usize];
        let task = Task::Helper(helper_task);
        let is_done_now = matches!(&thread.activity, Activity::Job(job) if job.step.of == task);
        is_done_now || thread.inbox.arrived().any(|arrived| *arrived == task)
    }

    /// Decides what is random about the softirq that brings a connection so many bytes in all.
    pub(crate) fn seed_of_softirq(&self, number: usize, total: u64) -> u64 {
        self.processors.config().seed ^ (number as u64) << 44 ^ total
    }

    /// Whether a child of the program saves.
    pub(crate) fn is_saving(&self) -> bool {
        self.saving.as_ref().is_some_and(|(saving, _)| saving.is_running())
    }

    /// The thread of a connection or a flow.
    fn worker_of(&self, number: usize) -> usize {
        number % (self.threads.len() - usize::from(self.has_helper()))
    }

    /// A write sends something to a connection or a flow: whether it has to wake the thread. Another one need not until that thread runs.
    pub(crate) fn claim_wake_up(&mut self, now: Instant, number: usize) -> bool {
        let index = self.worker_of(number);
        self.processors.sleeps(now, index as u32) && !std::mem::replace(&mut self.threads[index].is_being_woken, true)
    }

    /// There is something to do for a connection or a flow.
    pub(crate) fn put(&mut self, now: Instant, task: Task, found: Found) {
        let (waiting, number) = match task {
            Task::Connection(number) => (&mut self.waiting[0], number),
            Task::Datagrams(number) => (&mut self.waiting[1], number),
            Task::Helper(helper_task) => return self.send(now, helper_task),
        };
        if waiting.len() <= number {
            waiting.resize(number + 1, false);
        }
        let is_new = !std::mem::replace(&mut waiting[number], true);
        let index = self.worker_of(number);
        let thread = &mut self.threads[index];
        if is_new {
            thread.inbox.push(task, found);
        }
        thread.slept |= self.processors.wake(now, index as u32);
    }

    /// A thread that has a core now, and its next step. [`begin`](HostThreads::begin) comes next.
    pub(crate) fn poll_start(&mut self, now: Instant) -> Option<(u32, Step<Task>)> {
        let mut thread = self.processors.poll_start(now)?;
        while let Some((saving, _)) = self.saving.as_mut().filter(|(_, child)| *child == thread) {
            self.processors.work(now, thread, saving.take_slice());
            thread = self.processors.poll_start(now)?;
        }
        let step = self.threads[thread as usize].inbox.poll();
        let step = step.expect("a thread is woken for something");
        match (step.of, step.part) {
            (Task::Connection(number), Part::Whole | Part::Read) => self.waiting[0][number] = false,
            (Task::Datagrams(number), Part::Whole | Part::Read) => self.waiting[1][number] = false,
            _ => {}
        }
        Some((thread, step))
    }

    /// The thread begins work of that price, with the costs of another stack than the host's if they are given.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        index: u32,
        step: Step<Task>,
        work: Work,
        costs: Option<&ProcessorConfig>,
    ) {
        let seed = self.processors.seed();
        let thread = &mut self.threads[index as usize];
        thread.is_being_woken = false;
        let slept = std::mem::take(&mut thread.slept);
        let sleeps = u32::from(slept);
        if step.asks {
            thread.asked = now;
            self.asks += u64::from(self.helper != Some(index));
        }
        let asked = thread.asked;
        let sleep = Work { system_calls: sleeps, ..Work::default() };
        let config = self.processors.config();
        let paid = costs.unwrap_or(config).time(&work, seed);
        let mut time = paid + config.time(&sleep, !seed) + std::mem::take(&mut thread.owed);
        if let Some((saving, child)) = self.saving.as_mut().filter(|_| index == 0) {
            if let Some(fork) = saving.fork(now) {
                time += fork;
                self.processors.wake(now, *child);
            }
        }
        thread.activity = Activity::Job(Job { step, paid, seed, begun: now, asked, slept });
        self.processors.work(now, index, time);
    }

    /// A thread whose time is over: now it does it. [`charge`](HostThreads::charge) comes next.
    pub(crate) fn poll_done(&mut self, now: Instant) -> Option<(u32, Job)> {
        loop {
            let thread = self.processors.poll_done(now)?;
            if let Some((saving, _)) = self.saving.as_ref().filter(|(_, child)| *child == thread) {
                if saving.is_running() {
                    self.processors.wake(now, thread);
                }
                continue;
            }
            match std::mem::replace(&mut self.threads[thread as usize].activity, Activity::Idle) {
                Activity::Job(job) => return Some((thread, job)),
                Activity::Rest => self.go_on(now, thread),
                Activity::Idle => debug_assert!(false, "a thread that runs has begun with something"),
            }
        }
    }

    /// The work that was done had that price. What follows its read or write begins now.
    pub(crate) fn charge(&mut self, now: Instant, index: u32, job: &Job, work: &Work, costs: Option<&ProcessorConfig>) {
        let thread = &mut self.threads[index as usize];
        let config = self.processors.config();
        let done = Work { wakes: 0, ..*work };
        thread.owed = costs.unwrap_or(config).time(&done, job.seed).saturating_sub(job.paid);
        // Most jobs wake nobody, and each sum of costs takes hundreds of instructions.
        let waking = match work.wakes {
            0 => Duration::ZERO,
            wakes => config.time(&Work { wakes, ..Work::default() }, job.seed),
        };
        let rest = waking + work.after;
        if rest.is_zero() {
            return self.go_on(now, index);
        }
        thread.activity = Activity::Rest;
        self.processors.prolong(now, index, rest);
    }

    /// A thread is done, and asks what is next.
    fn go_on(&mut self, now: Instant, index: u32) {
        if !self.threads[index as usize].inbox.is_empty() {
            self.processors.wake(now, index);
        }
    }
}
