//! Windows of events, of several processes at the same time.

use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use netacc_config::stats::Traced;
use netacc_config::trace::Event;
use netacc_trace::events::{SavedWindow, Trace};
use netacc_trace::memory::{Clock, EventMemory, Reading, Scale};
use netacc_trace::message::{Process, Stamped};
use nix::unistd::gethostname;

use super::TraceError;
use crate::ss::{query, query_with};

/// Threads that were recording when a window closed have finished after so long a time. Arbitrary.
const GRACE: Duration = Duration::from_micros(200);
/// While a window is open its events are taken at these intervals, before the memory is full.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// A window with so many events closes early, unless everything is recorded: each event takes time from the traced processes,
/// in them and here. Arbitrary: some thousand messages.
const ENOUGH_EVENTS: usize = 30_000;
/// More events are not kept: they would take gigabytes. Arbitrary.
const MOST_EVENTS: usize = 10_000_000;
/// After so long a process that another tool traces is asked again. Arbitrary.
const RETRY: Duration = Duration::from_millis(2);
/// For so long the clocks are compared before the first window. More readings come at the end.
const CALIBRATION: Duration = Duration::from_millis(20);

/// The events of some processes.
pub(crate) struct Capture {
    pub(crate) trace: Trace,
    /// Events that were lost.
    pub(crate) lost: u64,
    /// It ended before its time, because it had too many events.
    pub(super) full: bool,
}

/// A process that is traced until this is dropped.
struct Tracee {
    pid: u32,
    memory: EventMemory,
}

impl Tracee {
    /// Begins as soon as no other tool traces the process, if that is before the `deadline`.
    fn begin(pid: u32, clock: Clock, deadline: Instant) -> Result<Tracee, TraceError> {
        let memory = EventMemory::new(clock).map_err(TraceError::Memory)?;
        loop {
            let answer: Traced = query_with(pid, "TRACE", Some(memory.file().as_fd()))?;
            match answer {
                Traced { traced: true, .. } => return Ok(Tracee { pid, memory }),
                Traced { tracer: None, error, .. } => return Err(TraceError::Refused { pid, error }),
                Traced { tracer: Some(tracer), .. } if Instant::now() >= deadline => {
                    return Err(TraceError::Taken { pid, tracer })
                }
                Traced { .. } => std::thread::sleep(RETRY),
            }
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.memory.close();
        // It may have ended meanwhile.
        let _ = query::<Traced>(self.pid, "UNTRACE");
    }
}

/// When windows open, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) duration: Duration,
    pub(crate) window: Duration,
    pub(crate) every: Duration,
    /// Show on the terminal how far it is.
    pub(crate) progress: bool,
    /// For so long it waits for processes that another tool traces.
    pub(crate) patience: Duration,
}

/// The events of a window, as they are read.
#[derive(Default)]
struct Raw {
    number: u64,
    counted_until: u64,
    events: Vec<(usize, Event)>,
}

/// Traces the processes. `left_out` decides whether the others are traced if one cannot be; `stop` is asked between windows.
///
/// # Errors
/// That of `left_out`; or none of the processes can be traced.
pub(crate) fn capture(
    found: Vec<Process>,
    plan: Plan,
    left_out: &dyn Fn(TraceError) -> Result<(), TraceError>,
    stop: &dyn Fn() -> bool,
) -> Result<Capture, TraceError> {
    let clock = Clock::here();
    let first = Reading::take(clock);
    let (mut processes, mut tracees) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + plan.patience;
    for process in found {
        match Tracee::begin(process.pid, clock, deadline) {
            Ok(tracee) => {
                processes.push(process);
                tracees.push(tracee);
            }
            Err(error) => left_out(error)?,
        }
    }
    if tracees.is_empty() {
        return Err(TraceError::NoProcess);
    }
    std::thread::sleep(CALIBRATION);
    let rough = Scale::between(first, Reading::take(clock));
    let bar = if plan.progress { bar(plan) } else { ProgressBar::hidden() };
    let begun = Instant::now();
    let mut windows: Vec<Raw> = Vec::new();
    let mut lost = 0;
    let mut kept = 0;
    while begun.elapsed() < plan.duration && kept < MOST_EVENTS && !stop() {
        let number = next_window(plan.every, windows.last().map(|raw| raw.number));
        let (raw, missed) = window(&mut tracees, clock, &rough, plan);
        kept += raw.events.len();
        windows.push(Raw { number, ..raw });
        lost += missed;
        bar.set_position(begun.elapsed().as_millis().min(plan.duration.as_millis()) as u64);
    }
    bar.finish_and_clear();
    let scale = Scale::between(first, Reading::take(clock));
    drop(tracees);
    let windows = windows.iter().map(|raw| stamp(raw, &scale)).collect();
    let host = gethostname().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned());
    Ok(Capture { trace: Trace { host, processes, windows }, lost, full: kept >= MOST_EVENTS })
}

/// Waits until the window after the `last` one is to open, and returns its number. Windows open at multiples of the time
/// between them. Hosts have these times in common, as far as they keep them.
fn next_window(every: Duration, last: Option<u64>) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (number, opens) = following(since, every, last);
    std::thread::sleep(opens.saturating_sub(since));
    number
}

/// The number of the window after the `last` one, and when it opens, both at `since` of the same clock. A window that should
/// have opened less than a quarter of the time between windows ago still counts, so that two hosts skip none at their starts.
fn following(since: Duration, every: Duration, last: Option<u64>) -> (u64, Duration) {
    let every = every.as_nanos().max(1);
    let begun = since.as_nanos().saturating_sub(every / 4).div_ceil(every);
    let number = begun.max(last.map_or(0, |last| u128::from(last) + 1));
    let whole = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    (whole(number), Duration::from_nanos(whole(number.saturating_mul(every))))
}

fn bar(plan: Plan) -> ProgressBar {
    let bar = ProgressBar::new(plan.duration.as_millis() as u64);
    let style = ProgressStyle::with_template("tracing {bar:40} {elapsed_precise}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn window(tracees: &mut [Tracee], clock: Clock, scale: &Scale, plan: Plan) -> (Raw, u64) {
    let length = scale.ticks(plan.window);
    let enough = if plan.every > plan.window { ENOUGH_EVENTS } else { MOST_EVENTS };
    let opened = clock.now();
    for tracee in &*tracees {
        tracee.memory.open(length);
    }
    let mut raw = Raw::default();
    let mut lost = 0;
    let end = Instant::now() + plan.window;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(DRAIN_INTERVAL));
        lost += drain(tracees, &mut raw);
        if left.is_zero() || raw.events.len() >= enough {
            break;
        }
    }
    // The processes close it themselves, should this thread come late.
    let closed = clock.now().min(opened.saturating_add(length));
    for tracee in &*tracees {
        tracee.memory.close();
    }
    std::thread::sleep(GRACE);
    lost += drain(tracees, &mut raw);
    let complete_from = if lost > 0 { first_of_all(tracees.len(), &raw.events).max(opened) } else { opened };
    raw.counted_until = complete_from.saturating_add(closed.saturating_sub(complete_from) / 2);
    (raw, lost)
}

/// When the last of the processes has its first event: those before it may be lost, if this thread came so late that the memory was
/// full.
fn first_of_all(processes: usize, events: &[(usize, Event)]) -> u64 {
    let mut firsts = vec![u64::MAX; processes];
    for (process, event) in events {
        firsts[*process] = firsts[*process].min(event.time);
    }
    firsts.into_iter().filter(|first| *first != u64::MAX).max().unwrap_or(0)
}

fn drain(tracees: &mut [Tracee], raw: &mut Raw) -> u64 {
    let mut lost = 0;
    for (process, tracee) in tracees.iter_mut().enumerate() {
        let drained = tracee.memory.drain();
        lost += drained.lost;
        raw.events.extend(drained.events.into_iter().map(|event| (process, event)));
    }
    lost
}

fn stamp(raw: &Raw, scale: &Scale) -> SavedWindow {
    let stamped = |(process, event): &(usize, Event)| Stamped {
        time: scale.nanoseconds(event.time),
        process: *process,
        event: *event,
    };
    SavedWindow {
        number: raw.number,
        counted_until: scale.nanoseconds(raw.counted_until),
        events: raw.events.iter().map(stamped).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(500);

    // Breaks if a short window is followed by another one at once: then a trace costs several times what it should.
    #[test]
    fn a_window_opens_once() {
        let opened = Duration::from_secs(1000);
        let after_it = opened + Duration::from_millis(10);
        assert_eq!(following(after_it, EVERY, Some(2000)), (2001, opened + EVERY));
    }

    #[test]
    fn windows_that_were_missed_are_left_out() {
        let now = Duration::from_millis(1_000_900);
        assert_eq!(following(now, EVERY, Some(1995)), (2002, Duration::from_secs(1001)));
    }

    // Breaks if messages are counted whose beginning was lost in one of the processes.
    #[test]
    fn a_window_is_complete_from_the_last_of_the_first_events() {
        let at = |process, time| (process, Event::decode(&[time, 0, 0, 0, 1 << 48]).expect("an event"));
        assert_eq!(first_of_all(3, &[at(0, 9), at(1, 30), at(0, 7), at(1, 20)]), 20);
        assert_eq!(first_of_all(2, &[]), 0);
    }

    // Breaks if two hosts that begin at the same time, one of them a moment later, begin with different windows.
    #[test]
    fn a_start_that_is_a_moment_late_is_in_time() {
        let begins = [Duration::from_millis(999_900), Duration::from_millis(1_000_100)];
        assert_eq!(begins.map(|now| following(now, EVERY, None).0), [2000, 2000]);
        assert_eq!(following(Duration::from_millis(1_000_200), EVERY, None).0, 2001);
    }
}
