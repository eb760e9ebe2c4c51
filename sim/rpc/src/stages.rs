//! Where the time of each message goes, by the stages that `netacc trace` shows for real processes.
//!
//! Only between hosts with processors, because elsewhere nothing but the network takes time. A message is what one turn of its
//! sender wrote. Its stages are consecutive, and their sum is the time from the sender's call to the end of the receiver's:
//!
//! * `call`, `copy`, `post`: the modelled costs of the sender's call;
//! * `held`: from the end of that call until the driver posts the message, if it holds it back. The cost of the post is paid before;
//! * `wire` (`kernel` on TCP): until the receiving process learns of it, interrupts included;
//! * `wake`: until the receiver's thread, which slept, has a core; or `completion`, until a busy thread asks for what is ready;
//! * `ready`: until the thread comes to this connection;
//! * `read`: the modelled cost of the receiver's call.

use std::collections::VecDeque;
use std::time::Duration;

use netacc_device::Instant;
use netacc_host::Part;
use netacc_trace::stage::{Stage, Stages};

use crate::host_threads::Job;

/// A message that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedMessage {
    /// The conversation.
    pub conversation: u32,
    /// From the client to the server.
    pub is_request: bool,
    /// It went over a link.
    pub on_link: bool,
    /// How many bytes.
    pub bytes: u64,
    /// The sender's call.
    pub begun: Instant,
    /// Its stages.
    pub stages: Stages,
}

/// The messages of a connection that are under way, by the side that sends.
#[derive(Debug, Default)]
pub(crate) struct Underway {
    sides: [VecDeque<Building>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Building {
    begun: Instant,
    written: Instant,
    /// Later than `written` if the driver held it back; `None` while it does.
    posted: Option<Instant>,
    bytes: u64,
    ends: Ends,
    stages: Stages,
    arrived: Option<Instant>,
}

/// The costs of what a turn ends with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    /// Of the call that writes, without its copy.
    pub(crate) write: Duration,
    /// Of the copy of what is written.
    pub(crate) copy: Duration,
    /// Of the post.
    pub(crate) post: Duration,
}

/// The position behind the last byte of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// Among all bytes of the direction.
    pub(crate) all: u64,
    /// As the protocol counts on a link; `None` for a message on TCP.
    pub(crate) link: Option<u64>,
}

impl Underway {
    /// A side has written bytes up to the position `end`: its turn is over `now`.
    pub(crate) fn sent(&mut self, side: usize, now: Instant, costs: Costs, bytes: u64, ends: Ends) {
        let mut stages = Stages::default();
        stages.add(Stage::Call, ns(costs.write));
        stages.add(Stage::Copy, ns(costs.copy));
        stages.add(Stage::Post, ns(costs.post));
        let begun = Instant::from_nanos(now.as_nanos().saturating_sub(stages.total()));
        let posted = ends.link.is_none().then_some(now);
        self.sides[side].push_back(Building { begun, written: now, posted, bytes, ends, stages, arrived: None });
    }

    /// The device has what a side has sent up to that position on its link.
    pub(crate) fn posted(&mut self, side: usize, now: Instant, position: u64) {
        let held = self.sides[side].iter_mut().filter(|message| message.posted.is_none());
        for message in held.filter(|message| message.ends.link.is_some_and(|end| end <= position)) {
            message.posted = Some(now);
        }
    }

    /// The process of the other side learns that there are bytes up to the position `end`.
    pub(crate) fn arrived(&mut self, sender: usize, now: Instant, end: u64) {
        for message in
            self.sides[sender].iter_mut().filter(|message| message.arrived.is_none() && message.ends.all <= end)
        {
            message.arrived = Some(now);
        }
    }

    /// The other side has read bytes up to the position `end` in this job, which is over `now`. Returns the messages that it has
    /// all of.
    pub(crate) fn read(
        &mut self,
        conversation: u32,
        sender: usize,
        job: &Job,
        (now, cost): (Instant, Duration),
        end: u64,
    ) -> Vec<TracedMessage> {
        let mut done = Vec::new();
        // The rest of the turn, behind the call, is not of the message.
        let behind = match job.step.part {
            Part::Whole => now.saturating_since(job.begun).saturating_sub(cost),
            Part::Read | Part::Write => Duration::ZERO,
        };
        let read = Instant::from_nanos(now.as_nanos().saturating_sub(ns(behind)));
        while let Some(message) = self.sides[sender].front().copied().filter(|message| message.ends.all <= end) {
            self.sides[sender].pop_front();
            let mut stages = message.stages;
            let on_link = message.ends.link.is_some();
            let mut cursor = message.written;
            let mut pass = |stage: Stage, until: Instant| {
                stages.add(stage, ns(until.saturating_since(cursor)));
                cursor = cursor.max(until);
            };
            pass(Stage::Held, message.posted.unwrap_or(message.written));
            pass(if on_link { Stage::Wire } else { Stage::Kernel }, message.arrived.unwrap_or(job.begun));
            match job.slept {
                true => pass(Stage::Wake, job.begun),
                false => pass(Stage::Completion, job.asked),
            }
            pass(Stage::Ready, job.begun);
            pass(Stage::Read, read);
            done.push(TracedMessage {
                conversation,
                is_request: sender == 0,
                on_link,
                bytes: message.bytes,
                begun: message.begun,
                stages,
            });
        }
        done
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
