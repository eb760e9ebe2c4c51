//! Programs from numbers.
//!
//! Each number is one decision: what is done next, by whom, to what. A model of the connections keeps the program
//! sound: it never waits for what nobody will do, and its results do not depend on what TCP leaves open (see
//! `freedoms.md`). Numbers may be dropped and made smaller at will, which is how failures shrink: 0 is the plainest
//! decision, and every list of numbers gives a program that ends.

use serde::{Deserialize, Serialize};

use crate::program::{
    Config, EpollAction, How, Interest, Op, Option_, Program, RecvCall, RecvFlags, SendCall, SendFlags, Step, FORMAT,
    MAX_CONNECTIONS, MAX_PROCESSES,
};

/// Which operations a program is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// Sending and receiving, one way and another.
    #[default]
    Data,
    /// `poll`, `select` and `epoll` besides.
    Readiness,
    /// `shutdown`, `close` and resets besides.
    Endings,
    /// `dup`, `fork`, `exec`, passing descriptors besides.
    Sharing,
    /// All of it.
    All,
}

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
    /// Which operations.
    pub mix: Mix,
    /// Rounds of exchanges before a connection is used; 0 for none.
    pub warm: u8,
    /// Largest single transfer.
    pub most_bytes: u32,
    /// Background steps (threads) may be used.
    pub threads: bool,
    /// How the library is set.
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
    /// What it has written and the other end has not read.
    unread: u64,
    /// In so many calls.
    calls: u32,
    /// It has ended its direction.
    ended: bool,
    /// Nobody knows how much is unread: it was filled.
    filled: bool,
}

#[derive(Clone, Debug, Default)]
struct Connection {
    ends: [End; 2],
    /// It has been used long enough for what it leads to, and that is over.
    warm: bool,
}

struct EpollModel {
    p: u8,
    e: u32,
    /// Slots in it, with their holder's connection and side.
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
    next_background: u32,
}

/// Unread bytes of a direction at most: far below what any connection has room for.
fn room(config: &Config) -> u64 {
    u64::from(config.ring_bytes / 4).min(8192)
}
/// Unread sends of a direction at most; a path may bound messages as well as bytes.
const CALLS: u32 = 12;

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

/// What a decision may be. The order is that of plainness.
#[derive(Clone, Copy)]
enum Kind {
    Send,
    Receive,
    Drain,
    Peek,
    Fionread,
    BlockedReceive,
    Transfer,
    FillDrain,
    Poll,
    EpollCtl,
    EpollWait,
    BlockedWait,
    Set,
    Get,
    Shutdown,
    Close,
    Abort,
    Dup,
    Connect,
    Fork,
    Pass,
    Exec,
    Leave,
    Pause,
}

fn weights(mix: Mix) -> &'static [(Kind, usize)] {
    use Kind as K;
    match mix {
        Mix::Data => &[
            (K::Send, 30),
            (K::Receive, 25),
            (K::Drain, 4),
            (K::Peek, 8),
            (K::Fionread, 5),
            (K::BlockedReceive, 4),
            (K::Transfer, 3),
            (K::FillDrain, 1),
            (K::Poll, 4),
            (K::Set, 5),
            (K::Get, 2),
            (K::Pause, 1),
        ],
        Mix::Readiness => &[
            (K::Send, 24),
            (K::Receive, 18),
            (K::Drain, 4),
            (K::Peek, 3),
            (K::Fionread, 3),
            (K::BlockedReceive, 1),
            (K::FillDrain, 1),
            (K::Poll, 12),
            (K::EpollCtl, 12),
            (K::EpollWait, 16),
            (K::BlockedWait, 6),
            (K::Shutdown, 2),
            (K::Close, 1),
            (K::Pause, 1),
        ],
        Mix::Endings => &[
            (K::Send, 20),
            (K::Receive, 18),
            (K::Drain, 5),
            (K::Peek, 3),
            (K::Fionread, 3),
            (K::BlockedReceive, 2),
            (K::Poll, 8),
            (K::EpollCtl, 3),
            (K::EpollWait, 4),
            (K::Set, 3),
            (K::Get, 3),
            (K::Shutdown, 8),
            (K::Close, 6),
            (K::Abort, 2),
            (K::Connect, 4),
        ],
        Mix::Sharing => &[
            (K::Send, 24),
            (K::Receive, 20),
            (K::Drain, 4),
            (K::Peek, 3),
            (K::Fionread, 2),
            (K::BlockedReceive, 2),
            (K::Transfer, 1),
            (K::Poll, 4),
            (K::Set, 2),
            (K::Shutdown, 1),
            (K::Close, 6),
            (K::Dup, 6),
            (K::Connect, 2),
            (K::Fork, 3),
            (K::Pass, 4),
            (K::Exec, 2),
            (K::Leave, 1),
        ],
        Mix::All => &[
            (K::Send, 26),
            (K::Receive, 22),
            (K::Drain, 4),
            (K::Peek, 5),
            (K::Fionread, 4),
            (K::BlockedReceive, 3),
            (K::Transfer, 2),
            (K::FillDrain, 1),
            (K::Poll, 6),
            (K::EpollCtl, 5),
            (K::EpollWait, 7),
            (K::BlockedWait, 3),
            (K::Set, 3),
            (K::Get, 2),
            (K::Shutdown, 3),
            (K::Close, 3),
            (K::Abort, 1),
            (K::Dup, 3),
            (K::Connect, 2),
            (K::Fork, 1),
            (K::Pass, 1),
            (K::Exec, 1),
            (K::Pause, 1),
        ],
    }
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
            _ => {}
        }
        let Some(holder) = draw.pick(&self.holders.clone()) else { return };
        match kind {
            Kind::Send => self.send(holder, draw),
            Kind::Receive => self.receive(holder, draw, false),
            Kind::Peek => self.receive(holder, draw, true),
            Kind::Drain => self.drain(holder),
            Kind::Fionread => self.step(holder.p, Op::Fionread { s: holder.s }),
            Kind::BlockedReceive => self.blocked_receive(holder, draw),
            Kind::Transfer => self.transfer(holder, draw),
            Kind::FillDrain => self.fill_drain(holder, draw),
            Kind::Poll => self.poll(holder, draw),
            Kind::EpollCtl => self.epoll_ctl(holder, draw),
            Kind::BlockedWait => self.blocked_wait(holder, draw),
            Kind::Set => self.set(holder, draw),
            Kind::Get => self.get(holder, draw),
            Kind::Shutdown => self.shutdown(holder, draw),
            Kind::Close => self.close(holder),
            Kind::Abort => self.abort(holder),
            Kind::Dup => self.dup(holder, draw),
            Kind::Pass => self.pass(holder, draw),
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

    /// A descriptor of the other end, if anybody has one.
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
        // Receiving nothing waits for something to be there.
        let least = if all { n.max(1) } else { end.lowat.max(1).min(n.max(1)) };
        end.nonblock || end.broken || end.read_shut && peer.unread == 0 || peer.ended || peer.unread >= least
    }

    // ---- connections ------------------------------------------------------------------------------------------------

    fn connect(&mut self, draw: &mut Draw) {
        if self.connections.len() >= MAX_CONNECTIONS - 1 {
            return;
        }
        let alive: Vec<u8> = (0..self.alive.len() as u8).filter(|p| self.alive[usize::from(*p)]).collect();
        let (Some(p), Some(q)) = (draw.pick(&alive), draw.pick(&alive)) else { return };
        // Two processes rather than one, where there are two.
        let q = if q == p && alive.len() > 1 && !draw.chance(4) {
            alive[(alive.iter().position(|x| *x == p).unwrap_or(0) + 1) % alive.len()]
        } else {
            q
        };
        let v6 = draw.chance(5);
        let (nonblock, accept_nonblock, cloexec) = (draw.chance(3), draw.chance(3), draw.chance(4));
        let listener = self.listeners.iter().copied().find(|(at, _, six, _)| *at == q && *six == v6);
        let (_, listening, _, l) = match listener {
            Some(listener) => listener,
            None => {
                let (s, l) = (self.slot(), self.listeners.len() as u32);
                self.step(q, Op::Socket { s, v6, nonblock: false, cloexec: true });
                self.step(q, Op::Bind { s });
                self.step(q, Op::Listen { s, l, backlog: 16 });
                self.listeners.push((q, s, v6, l));
                (q, s, v6, l)
            }
        };
        let c = self.connections.len();
        let (opener, acceptor) = (self.slot(), self.slot());
        self.step(p, Op::Socket { s: opener, v6, nonblock, cloexec });
        self.step(p, Op::Connect { s: opener, l, c: c as u32 });
        if nonblock {
            let interest = Interest { output: true, ..Interest::default() };
            self.step(p, Op::Poll { s: vec![opener], interest, wait: true, select: false });
            self.step(p, Op::Get { s: opener, option: Option_::Error });
        }
        self.step(q, Op::Accept { from: listening, s: acceptor, c: c as u32, nonblock: accept_nonblock });
        let mut connection = Connection::default();
        connection.ends[0].nonblock = nonblock;
        connection.ends[1].nonblock = accept_nonblock;
        self.connections.push(connection);
        self.holders.push(Holder { p, s: opener, c, side: 0, cloexec });
        self.holders.push(Holder { p: q, s: acceptor, c, side: 1, cloexec: false });
        if self.shape.warm > 0 && !draw.chance(6) {
            let rounds = u32::from(self.shape.warm);
            self.step(p, Op::Warm { s: opener, q, peer: acceptor, rounds });
            self.connections[c].warm = true;
        }
    }

    fn shutdown(&mut self, h: Holder, draw: &mut Draw) {
        let how = [How::Write, How::Write, How::Write, How::Both, How::Read][draw.below(5)];
        self.step(h.p, Op::Shutdown { s: h.s, how });
        if how != How::Read {
            self.end(h).ended = true;
        }
        if how != How::Write {
            self.end(h).read_shut = true;
        }
    }

    fn close(&mut self, h: Holder) {
        self.step(h.p, Op::Close { s: h.s });
        self.gone(h);
    }

    /// A descriptor is no more.
    fn gone(&mut self, h: Holder) {
        self.holders.retain(|o| *o != h);
        for epoll in self.epolls.iter_mut().filter(|e| e.p == h.p) {
            epoll.members.retain(|s| *s != h.s);
        }
        if self.held(h.c, h.side) {
            return;
        }
        let unread = self.peer(h).unread > 0 || self.peer(h).filled;
        let reset = unread || self.end(h).abort;
        self.end(h).ended = true;
        self.end(h).broken = true;
        if reset {
            self.peer(h).broken = true;
        }
    }

    fn abort(&mut self, h: Holder) {
        self.end(h).abort = true;
        self.step(h.p, Op::Set { s: h.s, option: Option_::Linger, value: 0 });
        self.close(h);
    }

    // ---- bytes ------------------------------------------------------------------------------------------------------

    fn amount(&mut self, draw: &mut Draw) -> u32 {
        let most = self.shape.most_bytes.max(1) as usize;
        match draw.below(8) {
            0..=2 => 1 + draw.below(8) as u32,
            3 | 4 => 1 + draw.below(100) as u32,
            5 if draw.chance(4) => 0,
            _ => 1 + draw.below(most) as u32,
        }
    }

    fn send(&mut self, h: Holder, draw: &mut Draw) {
        let n = self.amount(draw);
        let call =
            [SendCall::Send, SendCall::Send, SendCall::Write, SendCall::Writev, SendCall::Sendmsg, SendCall::Sendto]
                [draw.below(6)];
        let flags = SendFlags { dontwait: draw.chance(3), more: false, nosignal: draw.chance(3) };
        self.send_some(h, n, call, flags);
    }

    fn send_some(&mut self, h: Holder, n: u32, call: SendCall, flags: SendFlags) {
        let room = room(&self.shape.config);
        let gone = !self.held(h.c, 1 - h.side);
        let end = self.end(h);
        if end.filled || end.unread + u64::from(n) > room || end.calls >= CALLS {
            return;
        }
        if !end.ended && !end.broken {
            end.unread += u64::from(n);
            end.calls += 1;
            if gone && n > 0 {
                // What nobody can read is answered with a reset.
                end.broken = true;
            }
        }
        self.step(h.p, Op::Send { s: h.s, n, call, flags });
    }

    fn receive(&mut self, h: Holder, draw: &mut Draw, peek: bool) {
        let n = self.amount(draw);
        let call =
            [RecvCall::Recv, RecvCall::Recv, RecvCall::Read, RecvCall::Readv, RecvCall::Recvmsg, RecvCall::Recvfrom]
                [draw.below(6)];
        let call = if peek && matches!(call, RecvCall::Read | RecvCall::Readv) { RecvCall::Recv } else { call };
        let plain = matches!(call, RecvCall::Read | RecvCall::Readv);
        let mut flags = RecvFlags {
            dontwait: draw.chance(3) && !plain,
            peek,
            waitall: draw.chance(6) && !plain && !peek,
            trunc: draw.chance(12) && !plain && !peek,
        };
        if self.peer(h).filled {
            return;
        }
        if !flags.dontwait && !self.returns(h, u64::from(n), flags.waitall) {
            if plain {
                return;
            }
            flags.dontwait = true;
        }
        self.step(h.p, Op::Recv { s: h.s, n, call, flags });
        if !peek {
            let peer = self.peer(h);
            peer.unread = peer.unread.saturating_sub(u64::from(n));
            if peer.unread == 0 {
                peer.calls = 0;
            }
        }
    }

    fn drain(&mut self, h: Holder) {
        self.step(h.p, Op::Drain { s: h.s });
        let peer = self.peer(h);
        (peer.unread, peer.calls, peer.filled) = (0, 0, false);
    }

    fn background(&mut self, p: u8, op: Op) -> u32 {
        self.next_background += 1;
        let background = self.next_background;
        self.steps.push(Step { p, background: Some(background), op });
        background
    }

    /// A receive that waits, and then a send.
    fn blocked_receive(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        let n = 1 + draw.below(self.shape.most_bytes.max(1) as usize) as u32;
        let (end, peer) = (self.end(h).clone(), self.peer(h).clone());
        let busy = peer.unread > 0 || peer.filled || peer.ended || peer.broken || end.broken || end.read_shut;
        if busy || end.nonblock || end.lowat > 1 || !self.shape.threads || u64::from(n) > room(&self.shape.config) {
            return;
        }
        let waitall = draw.chance(2);
        let ends = draw.chance(8);
        let flags = RecvFlags { waitall, ..RecvFlags::default() };
        let number = self.background(h.p, Op::Recv { s: h.s, n, call: RecvCall::Recv, flags });
        if ends {
            self.step(o.p, Op::Shutdown { s: o.s, how: How::Write });
            self.end(o).ended = true;
        } else if waitall && n > 1 {
            self.step(o.p, Op::SendAll { s: o.s, n: n / 2 });
            self.step(o.p, Op::SendAll { s: o.s, n: n - n / 2 });
        } else {
            self.step(o.p, Op::SendAll { s: o.s, n });
        }
        self.step(h.p, Op::Join { of: number });
    }

    /// Many bytes, more than there is room for, with somebody at each end.
    fn transfer(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        let (end, peer) = (self.end(h).clone(), self.peer(h).clone());
        if end.ended || end.broken || end.filled || peer.broken || peer.read_shut || !self.shape.threads {
            return;
        }
        let n = 1 + draw.below(self.shape.most_bytes.max(1) as usize * 50) as u32;
        let number = self.background(h.p, Op::SendAll { s: h.s, n });
        let unread = u32::try_from(end.unread).unwrap_or(0);
        self.step(o.p, Op::RecvAll { s: o.s, n: n + unread });
        self.step(h.p, Op::Join { of: number });
        let end = self.end(h);
        (end.unread, end.calls) = (0, 0);
    }

    /// Until there is no room, and until there is.
    fn fill_drain(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        let (end, peer) = (self.end(h).clone(), self.peer(h).clone());
        if end.ended || end.broken || end.filled || peer.broken || peer.read_shut {
            return;
        }
        self.step(h.p, Op::Fill { s: h.s });
        self.step(o.p, Op::Drain { s: o.s });
        let interest = Interest { output: true, ..Interest::default() };
        self.step(h.p, Op::Poll { s: vec![h.s], interest, wait: true, select: draw.chance(3) });
        let end = self.end(h);
        (end.unread, end.calls) = (0, 0);
    }

    // ---- readiness --------------------------------------------------------------------------------------------------

    fn poll(&mut self, h: Holder, draw: &mut Draw) {
        let mut s: Vec<u32> = self.holders.iter().filter(|o| o.p == h.p && draw.chance(3)).map(|o| o.s).collect();
        if !s.contains(&h.s) {
            s.push(h.s);
        }
        let interest =
            [(true, true, false), (true, false, false), (true, true, true), (false, true, false), (true, false, true)]
                [draw.below(5)];
        let interest = Interest { input: interest.0, output: interest.1, rdhup: interest.2, ..Interest::default() };
        let select = draw.chance(4);
        self.step(h.p, Op::Poll { s, interest, wait: false, select });
    }

    fn epoll_ctl(&mut self, h: Holder, draw: &mut Draw) {
        let mine: Vec<usize> = (0..self.epolls.len()).filter(|i| self.epolls[*i].p == h.p).collect();
        let index = match draw.pick(&mine) {
            Some(index) if mine.len() > 1 || !draw.chance(8) => index,
            _ => {
                let e = self.slot();
                self.step(h.p, Op::EpollCreate { e });
                self.epolls.push(EpollModel { p: h.p, e, members: Vec::new() });
                self.epolls.len() - 1
            }
        };
        let member = self.epolls[index].members.contains(&h.s);
        // Now and then what must fail.
        let action = match (member, draw.below(8)) {
            (false, 0) => EpollAction::Mod,
            (false, _) => EpollAction::Add,
            (true, 0) => EpollAction::Add,
            (true, 1..=4) => EpollAction::Mod,
            (true, _) => EpollAction::Del,
        };
        let (edge, oneshot, rdhup, output) = (draw.chance(2), draw.chance(4), draw.chance(3), draw.chance(2));
        let interest = Interest { input: true, output, rdhup, edge, oneshot };
        let e = self.epolls[index].e;
        self.step(h.p, Op::EpollCtl { e, s: h.s, action, interest });
        let members = &mut self.epolls[index].members;
        match action {
            EpollAction::Add if !member => members.push(h.s),
            EpollAction::Del => members.retain(|s| *s != h.s),
            _ => {}
        }
    }

    fn epoll_wait(&mut self, draw: &mut Draw) {
        let known: Vec<(u8, u32)> = self.epolls.iter().map(|e| (e.p, e.e)).collect();
        if let Some((p, e)) = draw.pick(&known) {
            self.step(p, Op::EpollWait { e, max: 64, wait: false });
        }
    }

    /// A wait for readiness, and then a send.
    fn blocked_wait(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        let (end, peer) = (self.end(h).clone(), self.peer(h).clone());
        let busy = peer.unread > 0 || peer.filled || peer.ended || peer.broken || end.broken || end.read_shut;
        if busy || end.lowat > 1 || !self.shape.threads {
            return;
        }
        let input = Interest { input: true, ..Interest::default() };
        let number = if draw.chance(2) {
            self.background(h.p, Op::Poll { s: vec![h.s], interest: input, wait: true, select: draw.chance(3) })
        } else {
            let e = self.slot();
            self.step(h.p, Op::EpollCreate { e });
            let interest = Interest { edge: draw.chance(2), oneshot: draw.chance(4), ..input };
            self.step(h.p, Op::EpollCtl { e, s: h.s, action: EpollAction::Add, interest });
            self.epolls.push(EpollModel { p: h.p, e, members: vec![h.s] });
            self.background(h.p, Op::EpollWait { e, max: 64, wait: true })
        };
        self.send_some(o, 1 + draw.below(100) as u32, SendCall::Send, SendFlags::default());
        self.step(h.p, Op::Join { of: number });
    }

    // ---- options ----------------------------------------------------------------------------------------------------

    fn set(&mut self, h: Holder, draw: &mut Draw) {
        let (option, value) = match draw.below(9) {
            0 => (Option_::Nodelay, 1),
            1 | 2 => (Option_::Nonblock, draw.below(2) as i32),
            3 => (Option_::Fionbio, draw.below(2) as i32),
            4 => (Option_::Keepalive, draw.below(2) as i32),
            5 => (Option_::Rcvlowat, [1, 1, 10, 100][draw.below(4)]),
            6 => (Option_::Rcvtimeo, [0, 3000, 5000][draw.below(3)]),
            7 => (Option_::Sndtimeo, [0, 3000, 5000][draw.below(3)]),
            _ => (Option_::Quickack, draw.below(2) as i32),
        };
        match option {
            Option_::Nonblock | Option_::Fionbio => self.end(h).nonblock = value != 0,
            Option_::Rcvlowat => self.end(h).lowat = value as u64,
            _ => {}
        }
        self.step(h.p, Op::Set { s: h.s, option, value });
    }

    fn get(&mut self, h: Holder, draw: &mut Draw) {
        let option = [
            Option_::Error,
            Option_::Error,
            Option_::Nodelay,
            Option_::Nonblock,
            Option_::Rcvlowat,
            Option_::Rcvtimeo,
            Option_::Sndtimeo,
            Option_::Linger,
            Option_::Type,
            Option_::Keepalive,
        ][draw.below(10)];
        self.step(h.p, Op::Get { s: h.s, option });
    }

    // ---- descriptors and processes ----------------------------------------------------------------------------------

    fn dup(&mut self, h: Holder, draw: &mut Draw) {
        let others: Vec<Holder> = self.holders.iter().copied().filter(|o| o.p == h.p && *o != h).collect();
        let onto = if draw.chance(4) { draw.pick(&others) } else { None };
        let to = match onto {
            Some(old) => old.s,
            None => self.slot(),
        };
        self.step(h.p, Op::Dup { s: h.s, to });
        self.holders.push(Holder { s: to, cloexec: false, ..h });
        if let Some(old) = onto {
            let replaced = Holder { s: to, cloexec: false, ..h };
            if old == replaced {
                self.holders.pop();
            } else {
                self.gone(old);
            }
        }
    }

    fn fork(&mut self, draw: &mut Draw) {
        if self.alive.len() >= MAX_PROCESSES {
            return;
        }
        let alive: Vec<u8> = (0..self.alive.len() as u8).filter(|p| self.alive[usize::from(*p)]).collect();
        let Some(p) = draw.pick(&alive) else { return };
        let child = self.alive.len() as u8;
        self.step(p, Op::Fork { child });
        self.alive.push(true);
        self.hosts.push(self.hosts[usize::from(p)]);
        let inherited: Vec<Holder> =
            self.holders.iter().filter(|h| h.p == p).map(|h| Holder { p: child, ..*h }).collect();
        self.holders.extend(inherited);
    }

    fn pass(&mut self, h: Holder, draw: &mut Draw) {
        // Descriptors do not leave their host.
        let near = |p: &u8| self.alive[usize::from(*p)] && self.hosts[usize::from(*p)] == self.hosts[usize::from(h.p)];
        let near: Vec<u8> = (0..self.alive.len() as u8).filter(near).collect();
        let Some(q) = draw.pick(&near) else { return };
        let to = self.slot();
        self.step(h.p, Op::Pass { s: h.s, q, to });
        self.holders.push(Holder { p: q, s: to, cloexec: false, ..h });
    }

    fn exec(&mut self, draw: &mut Draw) {
        let alive: Vec<u8> = (0..self.alive.len() as u8).filter(|p| self.alive[usize::from(*p)]).collect();
        let Some(p) = draw.pick(&alive) else { return };
        self.step(p, Op::Exec);
        self.epolls.retain(|e| e.p != p);
        // Listening sockets are close-on-exec.
        self.listeners.retain(|(at, ..)| *at != p);
        for h in self.holders.clone().into_iter().filter(|h| h.p == p && h.cloexec) {
            self.gone(h);
        }
    }

    /// A process ends, where that is no different from closing everything.
    fn leave(&mut self, draw: &mut Draw) {
        let alive: Vec<u8> = (0..self.alive.len() as u8).filter(|p| self.alive[usize::from(*p)]).collect();
        let Some(p) = draw.pick(&alive) else { return };
        let idle = |h: &&Holder| {
            let ends = &self.connections[h.c].ends;
            ends.iter().all(|e| e.unread == 0 && !e.filled)
        };
        if alive.len() < 2 || !self.holders.iter().filter(|h| h.p == p).all(|h| idle(&h)) {
            return;
        }
        // A link dies with its process, also for others that hold the socket: see freedoms.md.
        let held_elsewhere = |h: &Holder| self.holders.iter().any(|o| o.p != p && (o.c, o.side) == (h.c, h.side));
        let shares = self.holders.iter().any(|h| h.p == p && held_elsewhere(h));
        // So does what somebody has sent and closed, for all but who holds the other end already.
        let lingers = (0..self.connections.len()).any(|c| {
            (0..2).any(|side| {
                let closed = !self.holders.iter().any(|h| (h.c, h.side) == (c, side));
                closed && self.connections[c].ends[side].unread > 0
            })
        });
        // And the kernel of one that has not read a marker answers with a reset.
        let promoting = self.holders.iter().any(|h| h.p == p && !self.connections[h.c].warm);
        self.step(p, if draw.chance(2) && !shares && !lingers && !promoting { Op::Kill } else { Op::Exit });
        self.alive[usize::from(p)] = false;
        self.epolls.retain(|e| e.p != p);
        self.listeners.retain(|(at, ..)| *at != p);
        for h in self.holders.clone().into_iter().filter(|h| h.p == p) {
            self.gone(h);
        }
    }

    /// All that is on its way arrives.
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

    fn numbers(seed: u64, len: usize) -> Vec<u64> {
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
                   join kill listen pass pause poll recv recv_all send send_all set shutdown socket warm"
                .split_whitespace()
        {
            assert!(seen.contains(op), "{op} is never drawn");
        }
    }
}
