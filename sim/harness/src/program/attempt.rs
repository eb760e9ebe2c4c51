//! One try of a step of a program.

use netacc_driver::{Readiness, Shutdown};
use netacc_program::{How, Op, Option_, Outcome, SendCall, Step, UNSUPPORTED};

use super::{End, Run};
use crate::io::Io;
use crate::Check;

/// The result of an attempt.
pub(super) enum Attempt {
    Over(Outcome),
    More(i64),
    /// A peek has seen less than the oracle's. Beyond a change between TCP and link, which is in front of the rest, it sees
    /// nothing here; reading goes on behind it.
    Short,
}

/// The step is over and complete.
fn over() -> Check<Attempt> {
    Ok(Attempt::Over(Outcome::default()))
}

/// The simulation does not support the step here.
fn unsupported() -> Check<Attempt> {
    Ok(Attempt::Over(Outcome::skipped(UNSUPPORTED)))
}

impl Run<'_> {
    /// One try of a step; it is over, or has come so far and waits.
    pub(super) fn attempt(&mut self, index: usize, step: &Step, done: i64) -> Check<Attempt> {
        let p = step.p;
        let expect = self.expect.and_then(|t| t.outcomes.get(index)).cloned();
        match &step.op {
            Op::Socket { s, cloexec, .. } => {
                if *cloexec {
                    self.cloexec.insert((p, *s));
                }
                over()
            }
            Op::Bind { .. } | Op::Pause { .. } => over(),
            Op::Listen { l, .. } => {
                self.listeners.insert(*l, p);
                over()
            }
            Op::Connect { s, l, c } => self.begin_connect((p, *s), *l, *c, expect),
            Op::Accept { s, c, .. } => self.accept((p, *s), *c, done),
            Op::Warm { s, .. } => self.warm(p, *s, done),
            Op::Dup { s, to } => self.duplicate(p, *s, *to),
            Op::Close { s } if self.end(p, *s).is_none() => unsupported(),
            Op::Close { s } => {
                self.release((p, *s));
                over()
            }
            Op::Fork { child } => {
                self.fork(p, *child);
                over()
            }
            Op::Pass { s, q, to } => {
                let Some(end) = self.end(p, *s) else { return unsupported() };
                self.share((*q, *to), end);
                over()
            }
            Op::Exec => {
                let closed: Vec<_> = self.cloexec.iter().copied().filter(|(at, _)| *at == p).collect();
                closed.into_iter().for_each(|slot| self.release(slot));
                over()
            }
            // A program has a process killed only where that is the same.
            Op::Exit | Op::Kill => {
                let closed: Vec<_> = self.slots.keys().copied().filter(|(at, _)| *at == p).collect();
                closed.into_iter().for_each(|slot| self.release(slot));
                over()
            }
            Op::Set { s, option, value } => {
                let Some(end) = self.end(p, *s) else { return unsupported() };
                self.set(end, *option, *value);
                over()
            }
            op @ (Op::Send { s, .. }
            | Op::SendAll { s, .. }
            | Op::Recv { s, .. }
            | Op::RecvAll { s, .. }
            | Op::Drain { s }
            | Op::Shutdown { s, .. }) => {
                let Some(end) = self.end(p, *s).filter(|end| !self.beyond(*end)) else { return unsupported() };
                self.move_bytes(end, op, expect.as_ref(), done)
            }
            _ => unsupported(),
        }
    }

    /// Connects a slot to listener `l`, as connection `c`, unless an earlier try has begun to.
    fn begin_connect(&mut self, slot: (u8, u32), l: u32, c: u32, expect: Option<Outcome>) -> Check<Attempt> {
        if !self.connections.contains_key(&c) {
            let Some(&q) = self.listeners.get(&l) else { return unsupported() };
            let processes = self.world.processes.len();
            if usize::from(q) >= processes || usize::from(slot.0) >= processes {
                return unsupported();
            }
            self.connect(slot, q, c);
        }
        self.connected(c, expect)
    }

    fn accept(&mut self, slot: (u8, u32), c: u32, done: i64) -> Check<Attempt> {
        let Some(&number) = self.connections.get(&c) else { return unsupported() };
        if !self.world.is_connected(number) {
            return Ok(Attempt::More(done));
        }
        self.slots.insert(slot, End { c: number, s: 1 });
        over()
    }

    fn duplicate(&mut self, p: u8, s: u32, to: u32) -> Check<Attempt> {
        let Some(end) = self.end(p, s) else { return unsupported() };
        if s != to {
            self.release((p, to));
            self.cloexec.remove(&(p, to));
            self.slots.insert((p, to), end);
        }
        over()
    }

    /// Process `q` listens; the slot is the connecting one.
    fn connect(&mut self, slot: (u8, u32), q: u8, c: u32) {
        let number = self.world.connections.len();
        self.world.connect_between(usize::from(slot.0), usize::from(q));
        self.connections.insert(c, number);
        self.acceptors.insert(c, q);
        self.openers.insert(c, slot);
        self.slots.insert(slot, End { c: number, s: 0 });
    }

    fn fork(&mut self, parent: u8, child: u8) {
        let of = |slot: &(u8, u32)| slot.0 == parent;
        let slots: Vec<_> = self.slots.iter().filter(|(slot, _)| of(slot)).map(|((_, s), end)| (*s, *end)).collect();
        let cloexec: Vec<_> = self.cloexec.iter().filter(|slot| of(slot)).map(|(_, s)| (child, *s)).collect();
        self.cloexec.extend(cloexec);
        for (s, end) in slots {
            self.share((child, s), end);
        }
    }

    fn set(&mut self, end: End, option: Option_, value: i32) {
        let on = value != 0;
        match option {
            Option_::Linger => drop(self.aborts.insert((end.c, end.s), !on)),
            Option_::Cork | Option_::Nodelay => {
                match option {
                    Option_::Cork if on => drop(self.corked.insert((end.c, end.s))),
                    Option_::Cork => drop(self.corked.remove(&(end.c, end.s))),
                    _ => {}
                }
                // Clearing TCP_CORK or setting TCP_NODELAY releases corked bytes.
                if on == (option == Option_::Nodelay) {
                    self.world.push_corked(end.c, end.s);
                }
            }
            _ => {}
        }
    }

    /// A descriptor is closed, and with the last one of any process the connection's end.
    fn release(&mut self, slot: (u8, u32)) {
        self.cloexec.remove(&slot);
        let Some(end) = self.slots.remove(&slot) else { return };
        if self.slots.values().any(|other| (other.c, other.s) == (end.c, end.s)) {
            return;
        }
        let abort = self.aborts.get(&(end.c, end.s)).copied().unwrap_or(false);
        if let Some((endpoint, cell)) = self.world.open_side(end.c, end.s) {
            self.link_bytes += cell.lock(&endpoint).counters().rx_bytes_link;
        }
        self.world.close(end.c, end.s, abort);
    }

    /// Another process holds the socket, too, under that slot. It leaves its link, as in the library: only the kernel's
    /// socket is left, and it does not matter which of its holders uses that.
    fn share(&mut self, slot: (u8, u32), end: End) {
        self.slots.insert(slot, end);
        self.world.demote_step(end.c, end.s);
    }

    /// How far a connect has come that was begun.
    fn connected(&self, c: u32, expect: Option<Outcome>) -> Check<Attempt> {
        match expect {
            // A connect that does not wait is the kernel's affair.
            Some(expected) if expected.errno.as_deref() == Some("EINPROGRESS") => Ok(Attempt::Over(expected)),
            _ if self.connections.get(&c).is_some_and(|number| self.world.is_connected(*number)) => {
                Ok(Attempt::Over(Outcome::default()))
            }
            _ => Ok(Attempt::More(0)),
        }
    }

    /// The connection has been reset or closed somewhere, or reading is shut down: the kernel has behaviour there that the
    /// simulated anchor has not.
    fn beyond(&self, end: End) -> bool {
        let connection = &self.world.connections[end.c];
        let closed = connection.sides.iter().any(|s| s.cell.is_none());
        connection.may_fail()
            || connection.sides.iter().any(|s| s.read_shut || s.failed)
            || closed && {
                // Reading the bytes that a closed peer left is simple; writing to it is not.
                connection.sides[end.s].cell.is_none()
            }
    }

    fn warm(&mut self, p: u8, s: u32, done: i64) -> Check<Attempt> {
        let Some(end) = self.end(p, s) else { return Ok(Attempt::Over(Outcome::skipped(UNSUPPORTED))) };
        if done == 0 {
            self.world.request_promotion(end.c);
        }
        let linked = (0..2).all(|side| {
            self.world
                .open_side(end.c, side)
                .is_none_or(|(_, cell)| !cell.readiness().intersects(Readiness::KERNEL_RX | Readiness::KERNEL_TX))
        });
        // Promotion may be refused, or its link die: patience ends.
        if linked || done > 400 {
            return Ok(Attempt::Over(Outcome::default()));
        }
        Ok(Attempt::More(done + 1))
    }

    fn move_bytes(&mut self, end: End, op: &Op, expect: Option<&Outcome>, done: i64) -> Check<Attempt> {
        let (c, s) = (end.c, end.s);
        if matches!(op, Op::Send { n: 0, .. } | Op::Recv { n: 0, .. }) {
            return Ok(Attempt::Over(Outcome::skipped(UNSUPPORTED)));
        }
        if self.world.connections[c].sides[s].demoting_since.is_some() {
            return Ok(Attempt::More(done));
        }
        let over = |outcome| Ok(Attempt::Over(outcome));
        match op {
            // The kernel's connection may be no more from then on.
            Op::Shutdown { .. } if self.world.connections[c].directions.iter().all(|d| d.ended) => {
                over(Outcome::skipped(UNSUPPORTED))
            }
            Op::Shutdown { .. } if self.world.connections[c].sides[1 - s].cell.is_none() => {
                over(Outcome::skipped(UNSUPPORTED))
            }
            Op::Shutdown { how, .. } => {
                let how = match how {
                    How::Read => Shutdown::Read,
                    How::Write => Shutdown::Write,
                    How::Both => Shutdown::Both,
                };
                self.world.shutdown(c, s, how);
                over(Outcome::default())
            }
            Op::Send { n, .. } | Op::SendAll { n, .. } => {
                let takes_flags = |call: &SendCall| !matches!(call, SendCall::Write | SendCall::Writev);
                let more = matches!(op, Op::Send { call, flags, .. } if flags.more && takes_flags(call));
                self.send(end, i64::from(*n), done, more)
            }
            Op::Recv { n, flags, .. } => {
                let want = expect.map_or(1, |e| e.ret);
                let blocks = expect.is_some_and(|e| e.errno.as_deref() == Some("EAGAIN"));
                match self.world.recv(c, s, (i64::from(*n) - done) as usize, flags.peek)? {
                    Io::Done(0) => over(Outcome { end: true, ..Outcome::value(done) }),
                    Io::Done(k) if flags.peek && (k as i64) < want => Ok(Attempt::Short),
                    Io::Done(k) if !flags.peek && done + (k as i64) < want => Ok(Attempt::More(done + k as i64)),
                    Io::Done(k) => over(Outcome::value(if flags.peek { k as i64 } else { done + k as i64 })),
                    Io::Blocked if blocks => over(Outcome::error("EAGAIN")),
                    Io::Blocked => Ok(Attempt::More(done)),
                    Io::Error(errno) => over(Outcome::error(format!("errno {errno}"))),
                }
            }
            Op::RecvAll { n, .. } => match self.world.recv(c, s, (i64::from(*n) - done).max(1) as usize, false)? {
                Io::Done(0) => over(Outcome { end: true, ..Outcome::value(done) }),
                Io::Done(k) if done + k as i64 == i64::from(*n) => over(Outcome::value(i64::from(*n))),
                Io::Done(k) => Ok(Attempt::More(done + k as i64)),
                Io::Blocked => Ok(Attempt::More(done)),
                Io::Error(errno) => over(Outcome::error(format!("errno {errno}"))),
            },
            Op::Drain { .. } => {
                let d = self.world.connections[c].directions[1 - s];
                let ends = expect.is_some_and(|e| e.end);
                match self.world.recv(c, s, 65536, false)? {
                    Io::Done(0) => over(Outcome { end: true, ..Outcome::value(done) }),
                    Io::Done(k) => Ok(Attempt::More(done + k as i64)),
                    Io::Blocked if d.read == d.written && !ends => over(Outcome::value(done)),
                    Io::Blocked => Ok(Attempt::More(done)),
                    Io::Error(errno) => over(Outcome::error(format!("errno {errno}"))),
                }
            }
            _ => over(Outcome::skipped(UNSUPPORTED)),
        }
    }

    /// Sends on after `done` of `n` bytes.
    fn send(&mut self, End { c, s }: End, n: i64, done: i64, more: bool) -> Check<Attempt> {
        let over = |outcome| Ok(Attempt::Over(outcome));
        let connection = &self.world.connections[c];
        if connection.directions[s].ended || connection.sides[1 - s].cell.is_none() {
            return over(Outcome::skipped(UNSUPPORTED));
        }
        if n == done {
            return over(Outcome::value(done));
        }
        let more = more || self.corked.contains(&(c, s));
        match self.world.send(c, s, (n - done) as usize, more)? {
            Io::Done(k) if done + k as i64 == n => over(Outcome::value(n)),
            Io::Done(k) => Ok(Attempt::More(done + k as i64)),
            Io::Blocked => Ok(Attempt::More(done)),
            Io::Error(errno) => over(Outcome::error(format!("errno {errno}"))),
        }
    }
}
