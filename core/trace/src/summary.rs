//! The distribution of each stage, over all messages and over the slowest.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::message::{Message, Path};
use crate::stage::{Stage, Stages};

/// The messages that a [`StageSummary::slowest`] is about: one in so many.
pub const SLOWEST: usize = 100;

/// Messages from one program to another, on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// Which of the processes sends.
    pub from: usize,
    /// Which of them receives.
    pub to: usize,
    /// Their path.
    pub path: Path,
}

/// A stage, or the total, in a group of messages. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSummary {
    /// Its name; `total` for the sum.
    pub stage: &'static str,
    /// The mean of all messages.
    pub mean: f64,
    /// Percentiles of all messages.
    pub p50: u64,
    /// As above.
    pub p99: u64,
    /// The largest.
    pub max: u64,
    /// The mean of the slowest one in [`SLOWEST`] messages, by their totals: which stages make the tail.
    pub slowest: f64,
}

/// The messages of a group.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many.
    pub messages: u64,
    /// Stages that take any time, in their order, and the total.
    pub stages: Vec<StageSummary>,
    /// The distribution of the totals, in nanoseconds.
    pub totals: Histogram<u64>,
}

/// The messages of a connection in one direction, on one path. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// Where they go.
    pub group: Group,
    /// The ports of the sender and the receiver.
    pub ports: [u16; 2],
    /// How many.
    pub messages: u64,
    /// The mean of their totals.
    pub mean: f64,
    /// The 99th percentile of their totals.
    pub p99: u64,
    /// The stage that takes the largest part of them, and its mean.
    pub largest: (Stage, f64),
}

/// Each direction of each connection, the slowest by their means first.
pub fn by_connection(messages: &[Message]) -> Vec<Connection> {
    let mut connections: BTreeMap<(u64, Group), (Vec<Stages>, [u16; 2])> = BTreeMap::new();
    for message in messages {
        let of = connections.entry((message.connection, Group::of(message))).or_default();
        of.0.push(message.stages);
        of.1 = [message.sender.port, message.receiver.port];
    }
    let summarised = connections.into_iter().map(|((_, group), (stages, ports))| {
        let (total, _) = row("total", &stages, &stages, Stages::total);
        let means = Stage::ALL.map(|stage| (stage, mean(&stages, |stages| stages.get(stage))));
        let largest = means.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((Stage::Call, 0.0));
        Connection { group, ports, messages: stages.len() as u64, mean: total.mean, p99: total.p99, largest }
    });
    let mut connections: Vec<Connection> = summarised.collect();
    connections.sort_by(|one, other| other.mean.total_cmp(&one.mean));
    connections
}

impl Group {
    fn of(message: &Message) -> Group {
        Group { from: message.sender.process, to: message.receiver.process, path: message.path }
    }
}

/// A summary of each group.
pub fn by_group(messages: &[Message]) -> BTreeMap<Group, Summary> {
    let mut groups: BTreeMap<Group, Vec<Stages>> = BTreeMap::new();
    for message in messages {
        groups.entry(Group::of(message)).or_default().push(message.stages);
    }
    groups.into_iter().map(|(group, stages)| (group, summarise(stages))).collect()
}

fn summarise(mut messages: Vec<Stages>) -> Summary {
    messages.sort_by_key(Stages::total);
    let slowest = &messages[messages.len() - messages.len().div_ceil(SLOWEST)..];
    let mut stages = Vec::new();
    for stage in Stage::ALL {
        let of = |stages: &Stages| stages.get(stage);
        if messages.iter().any(|stages| of(stages) > 0) {
            stages.push(row(stage.name(), &messages, slowest, of).0);
        }
    }
    let (total, totals) = row("total", &messages, slowest, Stages::total);
    stages.push(total);
    Summary { messages: messages.len() as u64, stages, totals }
}

fn row(
    stage: &'static str,
    all: &[Stages],
    slowest: &[Stages],
    of: impl Fn(&Stages) -> u64,
) -> (StageSummary, Histogram<u64>) {
    let mut histogram = Histogram::new(3).expect("three digits are allowed");
    for stages in all {
        // A histogram without bounds grows as far as it must.
        let _ = histogram.record(of(stages));
    }
    let summary = StageSummary {
        stage,
        mean: mean(all, &of),
        p50: histogram.value_at_quantile(0.5),
        p99: histogram.value_at_quantile(0.99),
        max: histogram.max(),
        slowest: mean(slowest, &of),
    };
    (summary, histogram)
}

fn mean(messages: &[Stages], of: impl Fn(&Stages) -> u64) -> f64 {
    messages.iter().map(|stages| of(stages) as f64).sum::<f64>() / messages.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Party;

    #[test]
    fn the_slowest_connection_is_first_with_its_largest_stage() {
        let message = |connection, wake| {
            let mut stages = Stages::default();
            stages.add(Stage::Copy, 10);
            stages.add(Stage::Wake, wake);
            Message {
                window: 0,
                connection,
                sender: Party { port: connection as u16, ..Party::default() },
                receiver: Party { port: 80, ..Party::default() },
                path: Path::Link,
                length: 1,
                start: 0,
                stages,
                hold: None,
            }
        };
        let found = by_connection(&[message(1, 0), message(2, 50), message(2, 70), message(3, 5)]);
        let shown = found.iter().map(|one| (one.ports[0], one.messages, one.mean, one.largest));
        let expected =
            [(2, 2, 70.0, (Stage::Wake, 60.0)), (3, 1, 15.0, (Stage::Copy, 10.0)), (1, 1, 10.0, (Stage::Copy, 10.0))];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_tail_shows_which_stage_makes_it() {
        let messages = (0..200).map(|n| {
            let mut stages = Stages::default();
            stages.add(Stage::Copy, 10);
            stages.add(Stage::Wake, if n < 2 { 1000 } else { 0 });
            stages
        });
        let summary = summarise(messages.collect());
        let [copy, wake, total] = &summary.stages[..] else { panic!("{:?}", summary.stages) };
        assert_eq!((copy.stage, copy.mean, copy.slowest), ("copy", 10.0, 10.0));
        assert_eq!((wake.stage, wake.p50, wake.mean, wake.slowest), ("wake", 0, 10.0, 1000.0));
        assert_eq!((total.stage, total.mean, summary.messages), ("total", 20.0, 200));
    }
}
