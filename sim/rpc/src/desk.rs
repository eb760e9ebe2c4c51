//! The work of a host's process, on its processors.
//!
//! Connections belong to threads in turn. What comes for one waits in its thread's inbox; the thread takes one at a time, in
//! order. Its calls happen when their time is over: a response leaves when it was made. What they cost is known before as far
//! as what lies there tells; what is left, as of bytes that came meanwhile, the thread pays before its next work.

use std::collections::VecDeque;
use std::time::Duration;

use netacc_device::Instant;
use netacc_host::{ProcessorConfig, Processors, Work};

/// What a thread is doing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// The conversation.
    pub(crate) number: usize,
    /// What was paid for.
    paid: Duration,
}

#[derive(Default)]
struct Thread {
    inbox: VecDeque<usize>,
    job: Option<Job>,
    /// Time that its last work took beyond what was known.
    owed: Duration,
    /// It has slept: its next work begins with the end of that call.
    slept: bool,
}

/// See the module documentation.
pub(crate) struct Desk {
    pub(crate) processors: Processors,
    threads: Vec<Thread>,
    /// By conversation: it is in an inbox.
    waiting: Vec<bool>,
}

impl Desk {
    pub(crate) fn new(config: ProcessorConfig) -> Desk {
        let threads = (0..config.threads.max(1)).map(|_| Thread::default()).collect();
        Desk { processors: Processors::new(config), threads, waiting: Vec::new() }
    }

    /// There is something to do for a conversation.
    pub(crate) fn put(&mut self, now: Instant, number: usize) {
        let index = number % self.threads.len();
        let thread = &mut self.threads[index];
        if self.waiting.len() <= number {
            self.waiting.resize(number + 1, false);
        }
        if !std::mem::replace(&mut self.waiting[number], true) {
            thread.inbox.push_back(number);
        }
        thread.slept |= self.processors.wake(now, index as u32);
    }

    /// A thread that has a core now, and the conversation that it looks at. [`begin`](Desk::begin) comes next.
    pub(crate) fn poll_start(&mut self, now: Instant) -> Option<(u32, usize)> {
        let thread = self.processors.poll_start(now)?;
        let number = self.threads[thread as usize].inbox.pop_front();
        let number = number.expect("a thread is woken for something");
        self.waiting[number] = false;
        Some((thread, number))
    }

    /// The thread begins with what has that price.
    pub(crate) fn begin(&mut self, now: Instant, index: u32, number: usize, work: Work) {
        let thread = &mut self.threads[index as usize];
        let sleep = Work { system_calls: u32::from(std::mem::take(&mut thread.slept)), ..Work::default() };
        let config = self.processors.config();
        let paid = config.time(&work);
        let time = paid + config.time(&sleep) + std::mem::take(&mut thread.owed);
        thread.job = Some(Job { number, paid });
        self.processors.work(now, index, time);
    }

    /// A thread whose time is over: now it does it. [`settle`](Desk::settle) comes next.
    pub(crate) fn poll_done(&mut self, now: Instant) -> Option<(u32, Job)> {
        let thread = self.processors.poll_done(now)?;
        let job = self.threads[thread as usize].job.take();
        Some((thread, job.expect("a thread that runs has begun with something")))
    }

    /// What was done had that price.
    pub(crate) fn settle(&mut self, now: Instant, index: u32, job: &Job, work: &Work) {
        let thread = &mut self.threads[index as usize];
        thread.owed = self.processors.config().time(work).saturating_sub(job.paid);
        if !thread.inbox.is_empty() {
            self.processors.wake(now, index);
        }
    }
}
