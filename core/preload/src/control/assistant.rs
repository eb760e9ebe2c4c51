//! The assistants: the helper threads after the first, which `NACC_SOR_IO_THREADS` above 1 adds. See
//! [`assistants`](crate::runtime::assistants) for the interface of the others to them.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netacc_config::LogLevel;
use netacc_device::Instant;
use netacc_driver::Endpoint;

use super::helper::{record_reason, record_unrequested};
use super::threads;
use crate::anchor;
use crate::os::clock::now;
use crate::os::own::drain;
use crate::os::{limits, log, real};
use crate::runtime::assistants::{Assistant, Assistants, Done};
use crate::runtime::poller::KICK;
use crate::runtime::{get, Runtime};

/// Events taken at a time.
const BATCH: usize = 64;

/// How long an assistant looks for something to copy after it has copied. The next part of a stream comes within some
/// microseconds; a wake-up takes 50 and more. Arbitrary.
const WATCH: Duration = Duration::from_micros(100);
/// How long it does so before it checks its other work.
const GLANCE: Duration = Duration::from_micros(20);

/// As many as the configuration requests, with at most an eighth of the descriptors that the process may have.
pub(super) fn make(rt: &Runtime) -> Assistants {
    let wanted = (rt.config.io.threads as usize).saturating_sub(1);
    let affordable = usize::try_from(limits::soft_limit()).unwrap_or(usize::MAX) / 8 / 2;
    let assistants = Assistants::new(wanted.min(affordable));
    report_missing(rt, wanted, assistants.list().len(), "too few descriptors");
    assistants
}

fn report_missing(rt: &Runtime, wanted: usize, made: usize, why: &str) {
    if made < wanted {
        let text = format!("NACC_SOR_IO_THREADS={}: {} helper threads run, because of {why}", wanted + 1, made + 1);
        log::append(&rt.config, LogLevel::Warn, &text);
    }
}

/// Starts the threads.
pub(super) fn spawn(rt: &'static Runtime) {
    let Some(endpoint) = rt.endpoint() else { return };
    let assistants = rt.assistants.list();
    let start = |(index, this): (usize, &'static Assistant)| {
        let thread = threads::start(&rt.helper.work, index + 1, move || run(rt, endpoint, this)).ok()?;
        *this.thread.lock() = Some(thread);
        Some(())
    };
    let started = assistants.iter().enumerate().map_while(start).count();
    report_missing(rt, assistants.len(), started, "the limit of threads");
    rt.assistants.begin(started);
    if started > 0 {
        endpoint.copies().set_helpers(Box::new(|| {
            if let Some(rt) = get() {
                rt.assistants.wake_for_copies();
            }
        }));
    }
}

fn run(rt: &'static Runtime, endpoint: &'static Endpoint, this: &'static Assistant) {
    threads::prepare(rt);
    let mut turns = Turns { rt, endpoint, this, watches_until: Instant::ZERO, woken: None };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    while !this.ends.load(Ordering::SeqCst) {
        turns.turn(&mut events);
    }
}

/// The state of an assistant between two turns of its loop.
struct Turns {
    rt: &'static Runtime,
    endpoint: &'static Endpoint,
    this: &'static Assistant,
    /// Until when it looks for something to copy.
    watches_until: Instant,
    /// It was woken for something to copy: whether it has found any.
    woken: Option<bool>,
}

impl Turns {
    /// Does what there is to do, sleeps until there is more, and handles what woke it.
    fn turn(&mut self, events: &mut [libc::epoll_event; BATCH]) {
        let Turns { rt, endpoint, this, .. } = *self;
        self.serve_requests();
        self.copy();
        let timeout_ms = if self.watches() { 0 } else { self.fall_asleep() };
        let epoll = this.poller.epoll.load(Ordering::Relaxed);
        // SAFETY: the array is writable.
        let sleep = || unsafe { real::epoll_wait(epoll, events.as_mut_ptr(), BATCH as c_int, timeout_ms) };
        let n = rt.helper.work.pause(sleep);
        this.wake_up();
        for event in events.iter().take(n.max(0) as usize) {
            if event.u64 == KICK {
                drain(this.poller.kick_fd());
                self.begin_watch();
                continue;
            }
            Done::add(&this.done.anchor_events, 1);
            if let Some(cell) = this.poller.stream(event.u64) {
                cell.anchor_event(endpoint, anchor::anchor_event(event.events));
            }
        }
    }

    /// Finds the peers of connections that are to be promoted, and why others are not.
    fn serve_requests(&self) {
        let promotions = std::mem::take(&mut *self.this.promotions.lock());
        Done::add(&self.this.done.promotions, promotions.len());
        for cell in promotions {
            if let Err(reason) = self.endpoint.prepare_promotion(&cell) {
                record_reason(&cell, reason);
            }
        }
        for cell in std::mem::take(&mut *self.this.unrequested.lock()) {
            record_unrequested(self.rt, self.endpoint, &cell);
        }
    }

    /// Copies what there is to copy.
    fn copy(&mut self) {
        let copied = self.endpoint.copies().help();
        if copied > 0 {
            Done::add(&self.this.done.copied_bytes, copied);
            self.watches_until = now() + WATCH;
            self.woken = self.woken.map(|_| true);
        }
    }

    /// A kick for something to copy: looks for that for a while.
    fn begin_watch(&mut self) {
        if self.this.take_copies_wanted() {
            self.watches_until = now() + WATCH;
            self.woken.get_or_insert(false);
        }
    }

    /// Looks for something to copy, as long as that may come soon. Gives its processor to whoever wants it between two
    /// checks. No work is done meanwhile, so a fork is not delayed. Returns whether the assistant is to go on looking.
    fn watches(&mut self) -> bool {
        let Turns { rt, endpoint, this, watches_until, .. } = *self;
        let begun = now();
        if begun >= watches_until {
            if let Some(was_useful) = self.woken.take() {
                rt.assistants.record_wake(was_useful);
            }
            return false;
        }
        rt.helper.work.pause(|| {
            while !endpoint.copies().has_parts() && !this.has_requests() && now() < begun + GLANCE {
                std::thread::yield_now();
            }
        });
        true
    }

    /// The thread is about to sleep. Returns for how long, in milliseconds: not at all if something has come meanwhile.
    fn fall_asleep(&self) -> c_int {
        self.this.fall_asleep();
        let has_work =
            self.this.has_requests() || self.this.ends.load(Ordering::SeqCst) || self.endpoint.copies().has_parts();
        if has_work {
            0
        } else {
            -1
        }
    }
}
