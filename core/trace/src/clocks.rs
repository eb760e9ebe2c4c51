//! The clocks of two hosts: their difference and its drift, from the messages between them.
//!
//! A message of the first host arrives at its delay plus the difference of the clocks, and one of the second host at its delay
//! minus it. Half of what the shortest of both have in excess of each other is the difference, as NTP estimates it (RFC 5905,
//! section 8), if the shortest delays are the same in both directions. They are not, by at most their sum: half of that is the uncertainty.

use std::collections::HashMap;

use netacc_config::trace::{Event, Point};

use crate::events::{SavedWindow, Trace};
use crate::message::{Process, Stamped, Window};

/// Larger drifts are no drifts: a crystal is off by some parts in a hundred thousand.
const MOST_DRIFT: f64 = 1e-3;

/// The second clock, as seen from the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relation {
    /// A time of the second clock.
    origin: u64,
    /// The second clock minus the first one at that time, in nanoseconds.
    pub difference: f64,
    /// How much the difference grows, in nanoseconds for each nanosecond.
    pub drift: f64,
    /// The difference is at most so much larger or smaller, in nanoseconds.
    pub uncertainty: f64,
    /// Windows in which messages went both ways.
    pub windows: usize,
}

/// The reason why two traces cannot be joined. Prints as one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRelated {
    /// They were not made at the same time, or with other intervals.
    NoWindow,
    /// No message of one was received in the other, in one of the two directions.
    NoMessages,
}

impl std::fmt::Display for NotRelated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NotRelated::NoWindow => {
                "the two have no window in common: trace both hosts at the same time, with the same --every"
            }
            NotRelated::NoMessages => "the clocks cannot be compared: no message went from each host to the other",
        })
    }
}

impl std::error::Error for NotRelated {}

impl Relation {
    /// From the messages of windows that both traces have.
    ///
    /// # Errors
    /// There are none, or not in both directions.
    pub fn between(first: &Trace, second: &Trace) -> Result<Relation, NotRelated> {
        let pairs = common(first, second);
        if pairs.is_empty() {
            return Err(NotRelated::NoWindow);
        }
        let seen: Vec<Seen> = pairs.iter().filter_map(|(first, second)| Seen::of(first, second)).collect();
        let origin = seen.first().ok_or(NotRelated::NoMessages)?.at;
        let since = |seen: &Seen| seen.at.wrapping_sub(origin).cast_signed() as f64;
        let best = seen.iter().min_by(|one, other| one.uncertainty.total_cmp(&other.uncertainty));
        let best = best.ok_or(NotRelated::NoMessages)?;
        let points: Vec<Sample> = seen.iter().map(|seen| Sample::new(since(seen), seen)).collect();
        let (at_origin, drift) = line(&points);
        let span = points.iter().map(|point| point.x.abs()).fold(0.0, f64::max);
        // A smaller one is not seen, and would only make the difference worse.
        let drifts = (2.0 * best.uncertainty / span.max(1.0)..=MOST_DRIFT).contains(&drift.abs());
        let (difference, drift) = if drifts { (at_origin, drift) } else { (best.difference, 0.0) };
        Ok(Relation { origin, difference, drift, uncertainty: best.uncertainty, windows: seen.len() })
    }

    /// A time of the second clock, by the first one.
    pub fn to_first(&self, time: u64) -> u64 {
        let since = time.wrapping_sub(self.origin).cast_signed() as f64;
        time.saturating_add_signed(-(self.difference + self.drift * since) as i64)
    }
}

/// The processes and the windows of both, by the first clock.
pub fn join(first: &Trace, second: &Trace, relation: &Relation) -> (Vec<Process>, Vec<Window>) {
    let processes = first.processes.iter().chain(&second.processes).cloned().collect();
    let windows = common(first, second).into_iter().map(|(one, other)| {
        let translated = other.events.iter().map(|stamped| Stamped {
            time: relation.to_first(stamped.time),
            process: stamped.process + first.processes.len(),
            event: stamped.event,
        });
        Window {
            counted_until: one.counted_until.min(relation.to_first(other.counted_until)),
            events: one.events.iter().copied().chain(translated).collect(),
        }
    });
    (processes, windows.collect())
}

/// The windows with the same number.
fn common<'a>(first: &'a Trace, second: &'a Trace) -> Vec<(&'a SavedWindow, &'a SavedWindow)> {
    let others: HashMap<u64, &SavedWindow> = second.windows.iter().map(|window| (window.number, window)).collect();
    first.windows.iter().filter_map(|window| Some((window, *others.get(&window.number)?))).collect()
}

/// The clocks in one window.
struct Seen {
    /// By the second clock.
    at: u64,
    difference: f64,
    uncertainty: f64,
}

impl Seen {
    fn of(first: &SavedWindow, second: &SavedWindow) -> Option<Seen> {
        let (there, at) = shortest(first, second)?;
        let (back, _) = shortest(second, first)?;
        Some(Seen {
            at,
            difference: (there - back) as f64 / 2.0,
            uncertainty: (there + back).unsigned_abs() as f64 / 2.0,
        })
    }
}

/// The end of a message: its connection, the end that sends, its path, and the position behind it.
type End = (u64, bool, bool, u64);

/// The least time from a message of one host to its arrival at the other, by their own clocks, and the time of that arrival; in
/// nanoseconds.
fn shortest(from: &SavedWindow, to: &SavedWindow) -> Option<(i64, u64)> {
    let end = |event: &Event, lower: bool, anchor: bool| -> End { (event.connection, lower, anchor, event.position) };
    let mut sent: HashMap<End, u64> = HashMap::new();
    let mut calls: HashMap<(usize, u32), u64> = HashMap::new();
    for Stamped { time, process, event } in &from.events {
        let thread = (*process, event.thread);
        // A sender can lose its processor behind the post, and record its next event later than the arrival.
        match event.point {
            Point::Send => calls.insert(thread, *time),
            Point::Copied => sent.insert(end(event, event.lower, false), *time),
            Point::AnchorSent => {
                calls.remove(&thread).and_then(|call| sent.insert(end(event, event.lower, true), call))
            }
            _ => None,
        };
    }
    let arrivals = to.events.iter().filter_map(|Stamped { time, event, .. }| {
        let end = match event.point {
            Point::Arrived => end(event, !event.lower, false),
            Point::AnchorRead => end(event, !event.lower, true),
            _ => return None,
        };
        Some((time.wrapping_sub(*sent.get(&end)?).cast_signed(), *time))
    });
    arrivals.min()
}

/// A difference of the clocks, `y`, at the time `x`.
struct Sample {
    x: f64,
    y: f64,
    /// What is less certain counts less.
    weight: f64,
}

impl Sample {
    fn new(x: f64, seen: &Seen) -> Sample {
        Sample { x, y: seen.difference, weight: seen.uncertainty.max(1.0).powi(-2) }
    }
}

/// The line through the points with the least weighted squares: its value at 0, and its slope; of one point a level line.
fn line(points: &[Sample]) -> (f64, f64) {
    let weight: f64 = points.iter().map(|point| point.weight).sum();
    let mean = |of: &dyn Fn(&Sample) -> f64| points.iter().map(|point| point.weight * of(point)).sum::<f64>() / weight;
    let (x, y) = (mean(&|point| point.x), mean(&|point| point.y));
    let spread = mean(&|point| (point.x - x).powi(2));
    let slope = if spread > 0.0 { mean(&|point| (point.x - x) * (point.y - y)) / spread } else { 0.0 };
    (y - slope * x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Messages;
    use crate::stage::Stage;

    /// The delays of messages there and back, in nanoseconds.
    const DELAYS: [u64; 2] = [5_000, 7_000];

    /// A host's clock: ahead of true time by so much, and by so many parts in a million more and more.
    struct Host {
        ahead: i64,
        parts_per_million: i64,
        windows: Vec<SavedWindow>,
    }

    impl Host {
        fn new(ahead: i64, parts_per_million: i64) -> Host {
            Host { ahead, parts_per_million, windows: Vec::new() }
        }

        fn clock(&self, time: u64) -> u64 {
            (time as i64 + self.ahead + time as i64 / 1_000_000 * self.parts_per_million) as u64
        }

        fn record(&mut self, point: Point, (lower, position): (bool, u64), time: u64) {
            let event = Event {
                time: 0,
                point,
                thread: 1,
                connection: 9,
                lower,
                local_port: u16::from(lower),
                remote_port: u16::from(!lower),
                position,
                amount: 0,
                opener: lower,
                reason: 0,
            };
            let time = self.clock(time);
            self.windows.last_mut().expect("begun").events.push(Stamped { time, process: 0, event });
        }

        fn begin(&mut self, number: u64, time: u64) {
            let counted_until = self.clock(time + 1_000_000_000);
            self.windows.push(SavedWindow { number, counted_until, events: Vec::new() });
        }

        fn trace(self, program: &str) -> Trace {
            let processes = vec![Process { pid: 1, program: program.into() }];
            Trace { host: String::new(), processes, windows: self.windows }
        }
    }

    /// Ten windows of round trips between two hosts, a second apart.
    fn traces(mut first: Host, mut second: Host) -> (Trace, Trace) {
        for number in 0..10 {
            let begin = 1_000_000_000 * (number + 1);
            first.begin(number, begin);
            second.begin(number, begin);
            for turn in 0..20 {
                let (position, mut time) = (10 * (20 * number + turn + 1), begin + 100_000 * turn);
                for (lower, delay) in [true, false].into_iter().zip(DELAYS) {
                    let (from, to) = if lower { (&mut first, &mut second) } else { (&mut second, &mut first) };
                    from.record(Point::Claimed, (lower, position - 10), time);
                    from.record(Point::Copied, (lower, position), time + 100);
                    from.record(Point::Posted, (lower, position), time + 200);
                    to.record(Point::Recv, (!lower, 0), time - 3000);
                    // Most take longer than the shortest.
                    time += 200 + delay + 1000 * (turn % 3);
                    to.record(Point::Arrived, (!lower, position), time);
                    to.record(Point::Read, (!lower, position), time + 50);
                    time += 1000;
                }
            }
        }
        (first.trace("client"), second.trace("server"))
    }

    #[test]
    fn a_clock_that_is_ahead_and_drifts_is_found() {
        let (first, second) = traces(Host::new(0, 0), Host::new(5_000_000, 40));
        let relation = Relation::between(&first, &second).expect("messages went both ways");
        assert!((relation.drift - 40e-6).abs() < 1e-7, "{relation:?}");
        assert!(relation.windows == 10 && (relation.uncertainty - 6100.0).abs() < 50.0, "{relation:?}");
        // True time is found as exactly as the delays are the same in both directions.
        let host = Host::new(5_000_000, 40);
        for time in [1_000_000_000, 9_500_000_000] {
            let found = relation.to_first(host.clock(time));
            assert!(found.abs_diff(time) <= 1_100, "{found} is not {time}");
        }
    }

    #[test]
    fn joined_traces_have_messages_with_their_stages() {
        let (first, second) = traces(Host::new(3, 0), Host::new(-700_000_000, -20));
        let relation = Relation::between(&first, &second).expect("messages went both ways");
        let (processes, windows) = join(&first, &second, &relation);
        let Messages { messages, cut } = Messages::of(&windows);
        assert_eq!((messages.len(), cut, processes.len()), (400, 0, 2));
        // The difference between the two delays is not known; their mean is.
        let shortest = messages.iter().map(|message| message.stages.get(Stage::Wire)).min().expect("there are some");
        assert!(shortest.abs_diff(6_000) < 200, "{shortest} ns");
    }

    #[test]
    fn traces_of_other_times_or_of_one_direction_are_not_joined() {
        let (first, mut second) = traces(Host::new(0, 0), Host::new(0, 0));
        let mut silent = second.clone();
        silent
            .windows
            .iter_mut()
            .for_each(|window| window.events.retain(|stamped| stamped.event.point == Point::Arrived));
        assert_eq!(Relation::between(&first, &silent), Err(NotRelated::NoMessages));
        second.windows.iter_mut().for_each(|window| window.number += 1000);
        assert_eq!(Relation::between(&first, &second), Err(NotRelated::NoWindow));
    }
}
