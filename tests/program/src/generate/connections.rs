//! Connections: how they begin and end, and their options.

use super::{Connection, Draw, Holder, Model};
use crate::program::{How, Interest, Op, Option_, MAX_CONNECTIONS};

impl Model {
    pub(super) fn connect(&mut self, draw: &mut Draw) {
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
                let (s, l) = (self.slot(), self.next_listener);
                self.next_listener += 1;
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

    pub(super) fn shutdown(&mut self, h: Holder, draw: &mut Draw) {
        let how = [How::Write, How::Write, How::Write, How::Both, How::Read][draw.below(5)];
        self.step(h.p, Op::Shutdown { s: h.s, how });
        if how != How::Read {
            self.end(h).ended = true;
        }
        if how != How::Write {
            self.end(h).read_shut = true;
        }
    }

    pub(super) fn close(&mut self, h: Holder) {
        self.step(h.p, Op::Close { s: h.s });
        self.gone(h);
    }

    /// A descriptor is gone.
    pub(super) fn gone(&mut self, h: Holder) {
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

    pub(super) fn abort(&mut self, h: Holder) {
        self.end(h).abort = true;
        self.step(h.p, Op::Set { s: h.s, option: Option_::Linger, value: 0 });
        self.close(h);
    }

    pub(super) fn set(&mut self, h: Holder, draw: &mut Draw) {
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

    pub(super) fn get(&mut self, h: Holder, draw: &mut Draw) {
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
            Option_::Peer,
            Option_::Peer,
            Option_::State,
            Option_::State,
        ][draw.below(14)];
        self.step(h.p, Op::Get { s: h.s, option });
    }
}
