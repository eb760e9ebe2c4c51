//! Messages: what one call of the sender sent, until the receiver had the last byte of it.
//!
//! The events of a window are taken in the order of their times. A message begins with the sender's call. Its positions
//! find it again at the receiver: both ends count them alike, see [`netacc_config::trace`]. A new window begins with nothing
//! known, so a message is complete only if all of its events are of one window.
//!
//! Only messages that begin in the first part of a window are counted, so that slow ones have the time to end there. Those that
//! do not are counted as cut: where there are many, the window is too short, and slow messages are missing.

use std::collections::{HashMap, VecDeque};

use netacc_config::trace::{Event, Point};

use crate::stage::{Stage, Stages};

/// Messages of one direction that are under way at a time: more are those of a receiver that is not traced.
const MOST_UNDER_WAY: usize = 1024;

/// A traced process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub program: String,
}

/// An event with its process and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// In nanoseconds, by a clock that all processes share.
    pub time: u64,
    /// Which of the processes.
    pub process: usize,
    /// The event.
    pub event: Event,
}

/// A time in which all events of all processes were recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Messages that begin before this time are counted.
    pub counted_until: u64,
    /// In any order.
    pub events: Vec<Stamped>,
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Party {
    /// Which of the processes.
    pub process: usize,
    /// The thread, by its number in the kernel.
    pub thread: u32,
    /// The connection's port at this end.
    pub port: u16,
    /// This end has opened the connection.
    pub opener: bool,
}

/// The path of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// The link.
    Link,
    /// The anchor, for the reason with this code.
    Anchor(u16),
}

/// Why a message waited at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// There was no credit.
    Credit,
    /// The program corked it, or the queue had no room.
    Cork,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The window in which it was seen.
    pub window: usize,
    /// The connection: [`netacc_config::trace::connection`].
    pub connection: u64,
    /// The thread that called to send.
    pub sender: Party,
    /// The thread that received the last byte.
    pub receiver: Party,
    /// Its path.
    pub path: Path,
    /// Bytes; of a link's message only.
    pub length: u64,
    /// The sender's call, in nanoseconds.
    pub start: u64,
    /// The durations of its stages.
    pub stages: Stages,
    /// Why it waited at the sender, if it did.
    pub hold: Option<Hold>,
}

impl Message {
    /// When the receiver had the last byte, in nanoseconds.
    pub fn end(&self) -> u64 {
        self.start + self.stages.total()
    }
}

/// The messages of windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Those that are complete and counted, in the order in which they ended.
    pub messages: Vec<Message>,
    /// Messages that began while they were counted, and did not end in their window.
    pub cut: u64,
}

impl Messages {
    /// The messages of each window.
    pub fn of(windows: &[Window]) -> Messages {
        let mut all = Messages::default();
        for (number, window) in windows.iter().enumerate() {
            let mut events = window.events.clone();
            events.sort_by_key(|stamped| stamped.time);
            let mut assembly = Assembly { number, counted_until: window.counted_until, ..Assembly::default() };
            for stamped in &events {
                assembly.take(stamped);
            }
            all.messages.append(&mut assembly.messages);
            let left = assembly.directions.values().flat_map(|direction| [&direction.link, &direction.anchor]);
            all.cut += left.flatten().filter(|message| message.start < window.counted_until).count() as u64;
            all.cut += assembly.dropped;
        }
        all
    }
}

/// The messages of one window, as its events come.
#[derive(Default)]
struct Assembly {
    number: usize,
    counted_until: u64,
    threads: HashMap<(usize, u32), Thread>,
    /// By the connection, and whether its lower end sends.
    directions: HashMap<(u64, bool), Direction>,
    messages: Vec<Message>,
    /// Counted messages that were given up.
    dropped: u64,
}

/// What a thread did last.
#[derive(Clone, Copy, Default)]
struct Thread {
    /// Its call to send, if that was its last call.
    send: Option<Call>,
    /// Its last call to receive.
    recv: Option<Call>,
    /// Since when it looks for completions: its last call to wait or to receive.
    looks: u64,
    asleep: u64,
    /// Its last sleep: from when, until when.
    slept: (u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Call {
    time: u64,
    connection: u64,
}

/// The messages under way in one direction, by their paths.
#[derive(Default)]
struct Direction {
    link: VecDeque<Building>,
    anchor: VecDeque<Building>,
}

/// A message that is not complete.
#[derive(Clone)]
struct Building {
    sender: Party,
    path: Path,
    /// The sender's call: the same for all its parts.
    start: u64,
    /// The positions of its first byte, and behind its last one.
    from: u64,
    to: u64,
    /// The end of the last stage.
    cursor: u64,
    stages: Stages,
    hold: Option<Hold>,
    /// There is no credit for the next part.
    stalled: bool,
    posted: bool,
    /// The end of its last copy, with which the post begins.
    copied: u64,
    arrived: bool,
    /// The call that received its first bytes.
    recv: Option<u64>,
}

impl Building {
    /// The time from the end of the last stage until `time` was this stage.
    fn pass(&mut self, stage: Stage, time: u64) {
        self.stages.add(stage, time.saturating_sub(self.cursor));
        self.cursor = self.cursor.max(time);
    }

    /// The last post is a part of another stage.
    fn take_back_post(&mut self) {
        if self.posted {
            self.stages.remove(Stage::Post, self.cursor - self.copied);
            self.cursor = self.copied;
        }
    }
}

impl Assembly {
    fn take(&mut self, stamped: &Stamped) {
        let Stamped { time, process, event } = *stamped;
        let party = Party { process, thread: event.thread, port: event.local_port, opener: event.opener };
        let call = Call { time, connection: event.connection };
        let thread = self.threads.entry((process, event.thread)).or_default();
        match event.point {
            Point::Send => thread.send = Some(call),
            Point::Recv => (thread.recv, thread.send, thread.looks) = (Some(call), None, time),
            Point::Wait => (thread.send, thread.looks) = (None, time),
            Point::Reported => {}
            Point::Asleep => thread.asleep = time,
            Point::Woken => thread.slept = (thread.asleep, time),
            Point::Claimed => self.claimed(party, time, &event),
            Point::Copied => self.copied(time, &event),
            Point::Posted => self.posted(time, &event),
            Point::Held => self.hold(&event, Hold::Cork),
            Point::Stalled => self.hold(&event, Hold::Credit),
            Point::Arrived => self.arrived(party, time, &event),
            Point::Read => self.read(party, time, &event),
            Point::AnchorSent => self.anchor_sent(party, time, &event),
            Point::AnchorRead => self.anchor_read(party, time, &event),
        }
    }

    /// The direction in which this end sends.
    fn outgoing(&mut self, event: &Event) -> &mut Direction {
        self.directions.entry((event.connection, event.lower)).or_default()
    }

    /// The direction in which it receives.
    fn incoming(&mut self, event: &Event) -> &mut Direction {
        self.directions.entry((event.connection, !event.lower)).or_default()
    }

    /// The time of the thread's call to send on this connection, or else `time`.
    fn call_of(&self, party: Party, time: u64, event: &Event) -> u64 {
        let thread = self.threads.get(&(party.process, party.thread));
        let call = thread.and_then(|thread| thread.send).filter(|call| call.connection == event.connection);
        call.map_or(time, |call| call.time)
    }

    fn claimed(&mut self, party: Party, time: u64, event: &Event) {
        let start = self.call_of(party, time, event);
        let link = &mut self.outgoing(event).link;
        match link.back_mut() {
            Some(last) if last.start == start && last.sender == party && last.to == event.position => {
                let stage = if std::mem::take(&mut last.stalled) { Stage::Held } else { Stage::Call };
                last.pass(stage, time);
                (last.posted, last.arrived) = (false, false);
            }
            last => {
                if last.is_some_and(|last| last.to > event.position) {
                    // Positions have begun anew.
                    link.clear();
                }
                let mut new = Building {
                    sender: party,
                    path: Path::Link,
                    start,
                    from: event.position,
                    to: event.position,
                    cursor: start,
                    stages: Stages::default(),
                    hold: None,
                    stalled: false,
                    posted: false,
                    copied: 0,
                    arrived: false,
                    recv: None,
                };
                new.pass(Stage::Call, time);
                self.push(event, new, |direction| &mut direction.link);
            }
        }
    }

    fn push(&mut self, event: &Event, new: Building, queue: impl Fn(&mut Direction) -> &mut VecDeque<Building>) {
        let counted_until = self.counted_until;
        let queue = queue(self.outgoing(event));
        let given_up = if queue.len() < MOST_UNDER_WAY { None } else { queue.pop_front() };
        queue.push_back(new);
        self.dropped += u64::from(given_up.is_some_and(|message| message.start < counted_until));
    }

    fn copied(&mut self, time: u64, event: &Event) {
        if let Some(last) = self.outgoing(event).link.back_mut().filter(|last| event.position > last.to) {
            last.pass(Stage::Copy, time);
            last.copied = time;
            last.to = event.position;
        }
    }

    fn posted(&mut self, time: u64, event: &Event) {
        for message in self.outgoing(event).link.iter_mut().filter(|m| !m.posted && m.to <= event.position) {
            let stage = if message.hold == Some(Hold::Cork) { Stage::Held } else { Stage::Post };
            message.pass(stage, time);
            message.posted = true;
        }
    }

    fn hold(&mut self, event: &Event, why: Hold) {
        let last = self.outgoing(event).link.back_mut().filter(|last| last.to == event.position);
        if let Some(last) = last {
            last.hold = Some(why);
            last.stalled = why == Hold::Credit;
        }
    }

    fn arrived(&mut self, party: Party, time: u64, event: &Event) {
        let thread = self.threads.get(&(party.process, party.thread)).copied().unwrap_or_default();
        for message in self.incoming(event).link.iter_mut().filter(|m| !m.arrived && m.to <= event.position) {
            let asleep = |at: u64| thread.slept.0 <= at && at < thread.slept.1;
            if asleep(message.copied) && message.hold != Some(Hold::Cork) {
                // The post woke it.
                message.take_back_post();
                message.pass(Stage::Wake, time);
            } else if asleep(message.cursor) {
                message.pass(Stage::Wake, time);
            } else {
                if !message.posted {
                    // The receiver saw it before the sender's call to post it returned.
                    message.pass(Stage::Post, time);
                }
                let posted = message.cursor;
                message.pass(Stage::Completion, thread.looks.clamp(posted, time.max(posted)));
                message.pass(Stage::Wire, time);
            }
            (message.arrived, message.posted) = (true, true);
        }
    }

    fn read(&mut self, party: Party, time: u64, event: &Event) {
        let recv = self.recv_of(party, event);
        let link = &mut self.incoming(event).link;
        let mut done = Vec::new();
        while let Some(first) = link.front_mut().filter(|first| first.from < event.position) {
            let recv = *first.recv.get_or_insert(recv.unwrap_or(time));
            if first.to > event.position {
                break;
            }
            if first.arrived {
                first.pass(Stage::Ready, recv.min(time));
                first.pass(Stage::Read, time);
            }
            done.extend(link.pop_front().filter(|message| message.arrived));
        }
        self.complete(done, party, event);
    }

    fn recv_of(&self, party: Party, event: &Event) -> Option<u64> {
        let thread = self.threads.get(&(party.process, party.thread))?;
        thread.recv.filter(|call| call.connection == event.connection).map(|call| call.time)
    }

    fn anchor_sent(&mut self, party: Party, time: u64, event: &Event) {
        let start = self.call_of(party, time, event);
        let anchor = &mut self.outgoing(event).anchor;
        if anchor.back().is_some_and(|last| last.to > event.position) {
            anchor.clear();
        }
        let from = anchor.back().map_or(event.position.saturating_sub(1), |last| last.to);
        let mut new = Building {
            sender: party,
            path: Path::Anchor(event.reason),
            start,
            from,
            to: event.position,
            cursor: start,
            stages: Stages::default(),
            hold: None,
            stalled: false,
            posted: true,
            copied: 0,
            arrived: true,
            recv: None,
        };
        new.pass(Stage::Call, time);
        self.push(event, new, |direction| &mut direction.anchor);
    }

    fn anchor_read(&mut self, party: Party, time: u64, event: &Event) {
        let thread = self.threads.get(&(party.process, party.thread)).copied().unwrap_or_default();
        let recv = self.recv_of(party, event);
        let anchor = &mut self.incoming(event).anchor;
        let mut done = Vec::new();
        while let Some(first) = anchor.front_mut().filter(|first| first.from < event.position) {
            let recv = *first.recv.get_or_insert(recv.unwrap_or(time));
            if first.to > event.position {
                break;
            }
            let sent = first.cursor;
            if thread.slept.0 <= sent && sent < thread.slept.1 {
                first.pass(Stage::Wake, thread.slept.1.min(time));
                first.pass(Stage::Ready, recv.min(time));
            } else {
                first.pass(Stage::Kernel, recv.min(time));
            }
            first.pass(Stage::Read, time);
            done.extend(anchor.pop_front());
        }
        self.complete(done, party, event);
    }

    fn complete(&mut self, done: Vec<Building>, receiver: Party, event: &Event) {
        let counted = done.into_iter().filter(|message| message.start < self.counted_until);
        let window = self.number;
        self.messages.extend(counted.map(|message| Message {
            window,
            connection: event.connection,
            sender: message.sender,
            receiver,
            path: message.path,
            length: message.to - message.from,
            start: message.start,
            stages: message.stages,
            hold: message.hold,
        }));
    }
}

#[cfg(test)]
mod tests;
