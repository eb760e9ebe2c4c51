//! Programs from numbers.
//!
//! Each number is one decision: the next operation, its process, and its object. A model of the connections keeps the
//! program sound: it never waits for an event that will not come, and its results do not depend on anything that TCP
//! leaves open (see `freedoms.md`). Numbers may be dropped and made smaller at will, which is how failures shrink: 0 is
//! the plainest decision, and every list of numbers gives a program that ends.
//!
//! Here: the model, and the choice of a decision from a number. The effect of each decision on the model is in modules
//! by subject.

use serde::{Deserialize, Serialize};

use crate::program::{Config, Op, Program, Step, FORMAT};

mod bytes;
mod connections;
mod corked;
mod mix;
mod processes;
mod readiness;

pub use mix::Mix;

use mix::{weights, Kind};

/// The frame of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    /// Processes at the beginning, 1 to 4.
    pub processes: u8,
    /// Hosts that they are on, 1 to 4.
    pub hosts: u8,
    /// Connections at the beginning, 1 to 8.
    pub connections: u8,
    /// The set of operations.
    pub mix: Mix,
    /// Rounds of exchanges before a connection is used; 0 for none.
    pub warm: u8,
    /// Largest single transfer.
    pub most_bytes: u32,
    /// Background steps (threads) may be used.
    pub threads: bool,
    /// The library's settings.
    pub config: Config,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            processes: 2,
            hosts: 1,
            connections: 1,
            mix: Mix::All,
            warm: 6,
            most_bytes: 2000,
            threads: true,
            config: Config::default(),
        }
    }
}

/// Takes a number apart.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        let n = n.max(1) as u64;
        let drawn = self.0 % n;
        self.0 /= n;
        drawn as usize
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == one_in - 1 && one_in > 1
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() {
            return None;
        }
        of.get(self.below(of.len())).copied()
    }
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    p: u8,
    s: u32,
    c: usize,
    side: usize,
    cloexec: bool,
}

/// One end of a connection.
#[derive(Clone, Debug, Default)]
struct End {
    /// O_NONBLOCK, which all descriptors of an end share.
    nonblock: bool,
    /// SO_RCVLOWAT
    lowat: u64,
    /// SO_LINGER with 0.
    abort: bool,
    /// It was reset, or will be.
    broken: bool,
    /// It will read no more.
    read_shut: bool,
    /// The bytes that it has written and the other end has not read.
    unread: u64,
    /// The number of calls that wrote them.
    calls: u32,
    /// It has ended its direction.
    ended: bool,
    /// The number of unread bytes is unknown: it was filled.
    filled: bool,
}

#[derive(Clone, Debug, Default)]
struct Connection {
    ends: [End; 2],
    /// It has been used long enough for promotion, and that is over.
    warm: bool,
}

struct EpollModel {
    p: u8,
    /// The slots that name it; never empty.
    names: Vec<u32>,
    /// Slots in it: of sockets, and of other instances.
    members: Vec<u32>,
}

struct Model {
    shape: Shape,
    steps: Vec<Step>,
    alive: Vec<bool>,
    hosts: Vec<u8>,
    holders: Vec<Holder>,
    connections: Vec<Connection>,
    epolls: Vec<EpollModel>,
    listeners: Vec<(u8, u32, bool, u32)>,
    next_slot: u32,
    next_listener: u32,
    next_background: u32,
}

/// The largest number of unread bytes of a direction: far below the room of any connection.
fn room(config: &Config) -> u64 {
    u64::from(config.ring_bytes / 4).min(8192)
}

/// A program from a shape and a list of decisions.
pub fn generate(shape: &Shape, decisions: &[u64]) -> Program {
    let shape = Shape {
        processes: shape.processes.clamp(1, 4),
        hosts: shape.hosts.clamp(1, 4),
        connections: shape.connections.clamp(1, 8),
        ..*shape
    };
    let hosts: Vec<u8> = (0..shape.processes).map(|p| p % shape.hosts).collect();
    let mut model = Model {
        shape,
        steps: Vec::new(),
        alive: vec![true; hosts.len()],
        hosts: hosts.clone(),
        holders: Vec::new(),
        connections: Vec::new(),
        epolls: Vec::new(),
        listeners: Vec::new(),
        next_slot: 0,
        next_listener: 0,
        next_background: 0,
    };
    let mut decisions = decisions.iter();
    for _ in 0..shape.connections {
        let mut draw = Draw(decisions.next().copied().unwrap_or(0));
        model.connect(&mut draw);
    }
    for decision in decisions {
        model.decide(&mut Draw(*decision));
    }
    model.finish();
    Program { format: FORMAT, note: String::new(), config: shape.config, hosts, steps: model.steps }
}

impl Model {
    fn decide(&mut self, draw: &mut Draw) {
        let table = weights(self.shape.mix);
        let mut roll = draw.below(table.iter().map(|(_, w)| w).sum());
        let mut kind = Kind::Send;
        for (k, w) in table {
            if roll < *w {
                kind = *k;
                break;
            }
            roll -= w;
        }
        match kind {
            Kind::Connect => return self.connect(draw),
            Kind::Fork => return self.fork(draw),
            Kind::Exec => return self.exec(draw),
            Kind::Leave => return self.leave(draw),
            Kind::EpollWait => return self.epoll_wait(draw),
            Kind::EpollNest => return self.epoll_nest(draw),
            Kind::EpollCopy => return self.epoll_copy(draw),
            _ => {}
        }
        let Some(holder) = draw.pick(&self.holders.clone()) else { return };
        match kind {
            Kind::Send => self.send(holder, draw),
            Kind::Cork => self.cork(holder, draw),
            Kind::Receive => self.receive(holder, draw, false),
            Kind::Peek => self.receive(holder, draw, true),
            Kind::Drain => self.drain(holder),
            Kind::Fionread => self.step(holder.p, Op::Fionread { s: holder.s }),
            Kind::Misuse => self.misuse(holder, draw),
            Kind::Limited => self.limited(holder, draw),
            Kind::BlockedReceive => self.blocked_receive(holder, draw),
            Kind::Interrupted => self.interrupted(holder, draw),
            Kind::Herd => self.herd(holder, draw),
            Kind::Transfer => self.transfer(holder, draw),
            Kind::FillDrain => self.fill_drain(holder, draw),
            Kind::Poll => self.poll(holder, draw),
            Kind::EpollCtl => self.epoll_ctl(holder, draw),
            Kind::BlockedWait => self.blocked_wait(holder, draw),
            Kind::SharedWait => self.shared_wait(holder, draw),
            Kind::Set => self.set(holder, draw),
            Kind::Get => self.get(holder, draw),
            Kind::Shutdown => self.shutdown(holder, draw),
            Kind::Close => self.close(holder),
            Kind::Abort => self.abort(holder),
            Kind::Dup => self.dup(holder, draw),
            Kind::Pass => drop(self.pass(holder, draw)),
            _ => self.step(holder.p, Op::Pause { us: 300 }),
        }
    }

    fn step(&mut self, p: u8, op: Op) {
        self.steps.push(Step { p, background: None, op });
    }

    fn slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot
    }

    fn end(&mut self, h: Holder) -> &mut End {
        &mut self.connections[h.c].ends[h.side]
    }

    fn peer(&mut self, h: Holder) -> &mut End {
        &mut self.connections[h.c].ends[1 - h.side]
    }

    /// A descriptor of the other end, if a process has one.
    fn opposite(&self, h: Holder) -> Option<Holder> {
        self.holders.iter().copied().find(|o| o.c == h.c && o.side != h.side)
    }

    fn held(&self, c: usize, side: usize) -> bool {
        self.holders.iter().any(|o| o.c == c && o.side == side)
    }

    /// Whether a receive of `n` bytes returns at once.
    fn returns(&mut self, h: Holder, n: u64, all: bool) -> bool {
        let end = self.end(h).clone();
        let peer = self.peer(h).clone();
        // An empty receive waits for bytes to be there.
        let least = if all { n.max(1) } else { end.lowat.max(1).min(n.max(1)) };
        end.nonblock || end.broken || end.read_shut && peer.unread == 0 || peer.ended || peer.unread >= least
    }

    fn background(&mut self, p: u8, op: Op) -> u32 {
        self.next_background += 1;
        let background = self.next_background;
        self.steps.push(Step { p, background: Some(background), op });
        background
    }

    /// All bytes in flight arrive.
    fn finish(&mut self) {
        for c in 0..self.connections.len() {
            for side in 0..2 {
                if let Some(h) = self.holders.iter().copied().find(|h| h.c == c && h.side == side) {
                    self.drain(h);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn numbers(seed: u64, len: usize) -> Vec<u64> {
        let mut x = seed | 1;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x
            })
            .collect()
    }

    // Breaks if some list of decisions, or a part of one, gives a program that executors refuse.
    #[test]
    fn every_list_is_a_sound_program() {
        for seed in 1..500 {
            for mix in [Mix::Data, Mix::Readiness, Mix::Endings, Mix::Sharing, Mix::All] {
                let decisions = numbers(seed, 60);
                let shape = Shape { mix, processes: 1 + (seed % 4) as u8, ..Shape::default() };
                for decisions in [&decisions[..], &decisions[30..], &[]] {
                    assert_eq!(generate(&shape, decisions).check(), Ok(()));
                }
            }
        }
    }

    // Breaks if programs never nest, duplicate or share epoll instances.
    #[test]
    fn instances_are_nested_duplicated_and_shared() {
        let (mut nested, mut copied, mut closed, mut shared, mut polled) = (0, 0, 0, 0, 0);
        for seed in 1..500 {
            let program = generate(&Shape { mix: Mix::Readiness, ..Shape::default() }, &numbers(seed, 40));
            let created = program.steps.iter().filter_map(|step| match step.op {
                Op::EpollCreate { e } => Some(e),
                _ => None,
            });
            let instances: Vec<u32> = created.collect();
            let mut asleep = None;
            for step in &program.steps {
                match &step.op {
                    Op::EpollCtl { s, .. } => nested += usize::from(instances.contains(s)),
                    Op::Dup { s, .. } => copied += usize::from(instances.contains(s)),
                    Op::Close { s } => closed += usize::from(instances.contains(s)),
                    Op::Poll { s, .. } => polled += usize::from(s.iter().any(|s| instances.contains(s))),
                    Op::EpollWait { e, .. } if step.background.is_some() => asleep = Some(*e),
                    Op::EpollWait { e, .. } => shared += usize::from(asleep == Some(*e)),
                    Op::Join { .. } => asleep = None,
                    _ => {}
                }
            }
        }
        assert!([nested, copied, closed, shared, polled].iter().all(|count| *count > 0));
    }

    // Breaks if an operation is never drawn.
    #[test]
    fn every_operation_is_drawn() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 1..3000 {
            for mix in [Mix::Sharing, Mix::All] {
                for step in generate(&Shape { mix, ..Shape::default() }, &numbers(seed, 40)).steps {
                    let text = serde_json::to_value(&step.op).unwrap_or_default();
                    seen.insert(text["op"].as_str().unwrap_or_default().to_owned());
                }
            }
        }
        for op in
            "accept bind close connect drain dup epoll_create epoll_ctl epoll_wait exec exit fill fionread fork get \
                   join kill limited listen misuse pass pause poll recv recv_all send send_all set shutdown signal socket warm"
                .split_whitespace()
        {
            assert!(seen.contains(op), "{op} is never drawn");
        }
    }
}
