//! Two streams, the links between them, and the TCP connection under them: one state of the model and its possible
//! steps.
//!
//! Everything that the real world may delay is a step of its own: delivery of a message, death of a link, the moment at
//! which each side learns of it, writing on the anchor, peeking at it, looking beyond unread bytes, the application's
//! reading.

use std::collections::VecDeque;

use netacc_proto::{
    AnchorWrite, ControlMessage, Demotion, MessageKind, Reason, Record, Role, Stream, StreamConfig, TxSink, RECORD_LEN,
};

use crate::mutants::Mutant;

/// Bytes of a ring.
pub(crate) const RING: usize = 4;
pub(crate) const OPENER: usize = 0;
pub(crate) const ACCEPTOR: usize = 1;

/// What a side needs of its peer before it switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The marker on the anchor.
    Anchor,
    /// SWITCHED, before it has read the marker.
    Hints,
    /// UNMARKED in place of the marker, on a link that is certain to have brought everything (SPEC §4.7.4): what was posted
    /// before the link died arrives before a side learns of the death, and a side that posts later is refused.
    Link,
    /// As `Link`, but a thread of the opener sleeps until the anchor brings something.
    Sleeper,
}

impl Trust {
    pub(crate) const ALL: [Trust; 4] = [Trust::Anchor, Trust::Hints, Trust::Link, Trust::Sleeper];

    /// Whether the link is certain to have brought everything.
    pub(crate) fn is_certain(self) -> bool {
        matches!(self, Trust::Link | Trust::Sleeper)
    }
}

/// The choices of the two applications and the world, and how often they may be made.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) trust: Trust,
    /// Bytes that each side writes at most.
    pub(crate) writes: [u8; 2],
    pub(crate) opens: u8,
    pub(crate) deaths: u8,
    pub(crate) demotes: [u8; 2],
    /// Writes for which a pledge is voided may fail.
    pub(crate) fails: bool,
    pub(crate) shutdowns: [bool; 2],
    pub(crate) closes: [bool; 2],
    /// This side may abort.
    pub(crate) abort: Option<usize>,
    /// The applications do nothing that causes a reset.
    pub(crate) gentle: bool,
    /// This side's process may be killed.
    pub(crate) crash: Option<usize>,
    /// Control messages wait for credit, records for room on the anchor.
    pub(crate) lazy_control: bool,
    pub(crate) lazy_anchor: bool,
    /// Records may arrive in two parts.
    pub(crate) split: bool,
    pub(crate) mutant: Option<Mutant>,
}

impl Bounds {
    /// Whether messages that were posted on a link are lost with it.
    pub(crate) fn may_lose(&self) -> bool {
        !self.trust.is_certain() || self.mutant == Some(Mutant::LossyLink)
    }
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            trust: Trust::Anchor,
            writes: [2, 2],
            opens: 1,
            deaths: 1,
            demotes: [0, 0],
            fails: false,
            shutdowns: [true, true],
            closes: [false, false],
            abort: None,
            gentle: true,
            crash: None,
            lazy_control: false,
            lazy_anchor: false,
            split: false,
            mutant: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Deliver(usize, usize),
    Die(usize),
    Notify(usize, usize),
    SendControl(usize),
    WriteAnchor(usize),
    WriteHalf(usize),
    Peek(usize),
    Read(usize),
    Write(usize),
    FailToWrite(usize),
    Shutdown(usize),
    Close(usize),
    Abort(usize),
    Demote(usize),
    Open,
    Crash(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Control(ControlMessage),
    Signal(MessageKind),
    Data { rewind: bool },
}

/// One symbol on the anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Symbol {
    /// The application byte with this position.
    App(u8),
    Record(Record),
    /// The first half of a record whose second half is not there yet.
    Half(Record),
    /// End of stream; stays.
    Fin,
    /// Reset; stays.
    Rst,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Link {
    pub(crate) dead: bool,
    pub(crate) notified: [bool; 2],
    /// Messages in flight to each side.
    pub(crate) to: [VecDeque<Message>; 2],
}

/// Memory that a side has registered: the bytes that the peer wrote there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Region {
    pub(crate) bytes: [u8; RING],
    pub(crate) word: u8,
    /// Attempt that it belongs to; 0: free.
    pub(crate) attempt: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Side {
    pub(crate) stream: Stream,
    pub(crate) link: Option<usize>,
    pub(crate) region: Region,
    /// Attempt whose peer region we write to.
    pub(crate) outgoing: u8,
    /// The bytes that we wrote there.
    pub(crate) copy: [u8; RING],
    pub(crate) wrote: u8,
    pub(crate) read: u8,
    pub(crate) eof: bool,
    pub(crate) reset: bool,
    /// The application waits for credit.
    pub(crate) asleep: bool,
    pub(crate) demotes: u8,
    pub(crate) shut: bool,
    pub(crate) closed: bool,
    pub(crate) anchor_closed: bool,
    pub(crate) crashed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) side: [Side; 2],
    pub(crate) links: Vec<Link>,
    /// Symbols on the anchor, to each side.
    pub(crate) anchor: [VecDeque<Symbol>; 2],
    pub(crate) attempts: u8,
    pub(crate) error: Option<&'static str>,
}

impl World {
    pub(crate) fn new(bounds: &Bounds) -> World {
        let side = |role| Side {
            stream: Stream::new(role, StreamConfig { trust_hints: bounds.trust != Trust::Anchor }),
            link: None,
            region: Region::default(),
            outgoing: 0,
            copy: [0; RING],
            wrote: 0,
            read: 0,
            eof: false,
            reset: false,
            asleep: false,
            demotes: 0,
            shut: false,
            closed: false,
            anchor_closed: false,
            crashed: false,
        };
        World {
            side: [side(Role::Opener), side(Role::Acceptor)],
            links: Vec::new(),
            anchor: [VecDeque::new(), VecDeque::new()],
            attempts: 0,
            error: None,
        }
    }

    /// Steps that happen by themselves, independent of the applications.
    pub(crate) fn internal_steps(&self, bounds: &Bounds, steps: &mut Vec<Step>) {
        for (k, link) in self.links.iter().enumerate() {
            for s in 0..2 {
                if !link.to[s].is_empty() && !link.notified[s] {
                    steps.push(Step::Deliver(s, k));
                }
                if link.dead && !link.notified[s] && (link.to[s].is_empty() || bounds.may_lose()) {
                    steps.push(Step::Notify(s, k));
                }
            }
        }
        for s in (0..2).filter(|&s| !self.side[s].crashed) {
            if bounds.lazy_control && self.side[s].stream.has_control() {
                steps.push(Step::SendControl(s));
            }
            if bounds.lazy_anchor
                && !self.side[s].anchor_closed
                && self.side[s].stream.clone().poll_anchor_write().is_some()
            {
                steps.push(Step::WriteAnchor(s));
                if bounds.split {
                    steps.push(Step::WriteHalf(s));
                }
            }
            if !self.side[s].anchor_closed && !self.anchor[s].is_empty() {
                steps.push(Step::Peek(s));
            }
        }
    }

    /// Steps that only a reading application takes.
    pub(crate) fn reading_steps(&self, steps: &mut Vec<Step>) {
        for (s, side) in self.side.iter().enumerate() {
            if !(side.eof || side.reset || side.crashed || side.anchor_closed) {
                steps.push(Step::Read(s));
            }
        }
    }

    /// Steps that an application or the world chooses.
    pub(crate) fn free_steps(&self, bounds: &Bounds, steps: &mut Vec<Step>) {
        for (k, link) in self.links.iter().enumerate() {
            if !link.dead && self.links.iter().filter(|l| l.dead).count() < usize::from(bounds.deaths) {
                steps.push(Step::Die(k));
            }
        }
        for (s, side) in self.side.iter().enumerate().filter(|(_, side)| !side.crashed) {
            if !side.shut && !side.closed {
                if side.wrote < bounds.writes[s] && !side.asleep {
                    steps.push(Step::Write(s));
                }
                if bounds.fails && side.stream.tx_sink() == TxSink::Pledged {
                    steps.push(Step::FailToWrite(s));
                }
                if bounds.shutdowns[s] {
                    steps.push(Step::Shutdown(s));
                }
            }
            if bounds.closes[s] && !side.closed {
                steps.push(Step::Close(s));
            }
            if bounds.abort == Some(s) && !side.closed {
                steps.push(Step::Abort(s));
            }
            if side.demotes < bounds.demotes[s] && !side.stream.is_plain() && !side.closed {
                steps.push(Step::Demote(s));
            }
            if bounds.crash == Some(s) {
                steps.push(Step::Crash(s));
            }
        }
        let opener = &self.side[OPENER];
        if self.attempts < bounds.opens && opener.stream.may_promote() && opener.link.is_none() && !opener.closed {
            steps.push(Step::Open);
        }
    }

    /// The state after `step`; `None` if it cannot be taken or changes nothing.
    pub(crate) fn after(&self, bounds: &Bounds, step: Step) -> Option<World> {
        let mut next = self.clone();
        next.take(bounds, step)?;
        for s in 0..2 {
            next.drive(bounds, s);
        }
        (next != *self).then_some(next)
    }

    fn take(&mut self, bounds: &Bounds, step: Step) -> Option<()> {
        match step {
            Step::Deliver(s, k) => {
                let message = self.links[k].to[s].pop_front()?;
                self.deliver(bounds, s, k, message);
            }
            Step::Die(k) => self.links[k].dead = true,
            Step::Notify(s, k) => {
                self.links[k].notified[s] = true;
                self.links[k].to[s].clear();
                if self.side[s].link == Some(k) {
                    self.side[s].stream.demote(Demotion::LinkFailed);
                }
            }
            Step::SendControl(s) => self.send_control(bounds, s),
            Step::WriteAnchor(s) => self.write_anchor(bounds, s, RECORD_LEN),
            Step::WriteHalf(s) => match self.side[s].stream.poll_anchor_write()? {
                AnchorWrite::Record(_, 0) => self.write_anchor(bounds, s, RECORD_LEN / 2),
                _ => return None,
            },
            Step::Peek(s) => self.peek(bounds, s)?,
            Step::Read(s) => self.read(bounds, s)?,
            Step::Write(s) => self.write(bounds, s)?,
            Step::FailToWrite(s) => self.side[s].stream.void_pledge(),
            Step::Shutdown(s) => {
                self.side[s].shut = true;
                self.side[s].stream.shutdown_write();
            }
            Step::Close(s) => {
                self.side[s].shut = true;
                self.side[s].closed = true;
                self.side[s].stream.close(false);
            }
            Step::Abort(s) => {
                self.side[s].shut = true;
                self.side[s].closed = true;
                self.side[s].stream.abort();
            }
            Step::Demote(s) => {
                self.side[s].demotes += 1;
                self.side[s].stream.demote(Demotion::Requested(Reason::Requested));
            }
            Step::Open => self.open(bounds),
            Step::Crash(s) => self.crash(s),
        }
        Some(())
    }
}
