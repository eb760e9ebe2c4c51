//! `poll`, `select` and `epoll`.

use super::{Draw, EpollModel, Holder, Model};
use crate::program::{EpollAction, Interest, Op, SendCall, SendFlags};

impl Model {
    pub(super) fn poll(&mut self, h: Holder, draw: &mut Draw) {
        let mut s: Vec<u32> = self.holders.iter().filter(|o| o.p == h.p && draw.chance(3)).map(|o| o.s).collect();
        if !s.contains(&h.s) {
            s.push(h.s);
        }
        let instances = self.epolls.iter().filter(|e| e.p == h.p && draw.chance(3));
        s.extend(instances.filter_map(|e| e.names.last().copied()));
        let interest =
            [(true, true, false), (true, false, false), (true, true, true), (false, true, false), (true, false, true)]
                [draw.below(5)];
        let interest = Interest { input: interest.0, output: interest.1, rdhup: interest.2, ..Interest::default() };
        let select = draw.chance(4);
        self.step(h.p, Op::Poll { s, interest, wait: false, select });
    }

    pub(super) fn epoll_ctl(&mut self, h: Holder, draw: &mut Draw) {
        let mine: Vec<usize> = (0..self.epolls.len()).filter(|i| self.epolls[*i].p == h.p).collect();
        let index = match draw.pick(&mine) {
            Some(index) if mine.len() > 1 || !draw.chance(8) => index,
            _ => {
                self.epoll_create(h.p);
                self.epolls.len() - 1
            }
        };
        let member = self.epolls[index].members.contains(&h.s);
        // Now and then a call that must fail.
        let action = match (member, draw.below(8)) {
            (false, 0) => EpollAction::Mod,
            (false, _) => EpollAction::Add,
            (true, 0) => EpollAction::Add,
            (true, 1..=4) => EpollAction::Mod,
            (true, _) => EpollAction::Del,
        };
        let (edge, oneshot, rdhup, output) = (draw.chance(2), draw.chance(4), draw.chance(3), draw.chance(2));
        let interest = Interest { input: true, output, rdhup, edge, oneshot };
        self.register(index, h.s, action, interest, draw);
    }

    fn epoll_create(&mut self, p: u8) -> u32 {
        let e = self.slot();
        self.step(p, Op::EpollCreate { e });
        self.epolls.push(EpollModel { p, names: vec![e], members: Vec::new() });
        e
    }

    /// `epoll_ctl` by some name of an instance.
    fn register(&mut self, index: usize, s: u32, action: EpollAction, interest: Interest, draw: &mut Draw) {
        let EpollModel { p, names, members } = &mut self.epolls[index];
        let (p, e) = (*p, names[draw.below(names.len())]);
        match action {
            EpollAction::Add if !members.contains(&s) => members.push(s),
            EpollAction::Del => members.retain(|member| *member != s),
            _ => {}
        }
        self.step(p, Op::EpollCtl { e, s, action, interest });
    }

    /// An instance watches another one. Now and then one that must fail: itself, or one that watches it.
    pub(super) fn epoll_nest(&mut self, draw: &mut Draw) {
        if self.epolls.is_empty() {
            return;
        }
        let inner = draw.below(self.epolls.len());
        let p = self.epolls[inner].p;
        let mine: Vec<usize> = (0..self.epolls.len()).filter(|i| self.epolls[*i].p == p && *i != inner).collect();
        let outer = match draw.pick(&mine) {
            Some(outer) if !draw.chance(3) => outer,
            _ => {
                self.epoll_create(p);
                self.epolls.len() - 1
            }
        };
        let names = self.epolls[inner].names.clone();
        let s = names[draw.below(names.len())];
        let action = match (self.epolls[outer].members.contains(&s), draw.below(4)) {
            (false, _) => EpollAction::Add,
            (true, 0) => EpollAction::Del,
            (true, _) => EpollAction::Mod,
        };
        let interest = Interest { input: true, edge: draw.chance(2), oneshot: draw.chance(4), ..Interest::default() };
        self.register(outer, s, action, interest, draw);
    }

    /// An instance gets one more descriptor, or loses one of several.
    pub(super) fn epoll_copy(&mut self, draw: &mut Draw) {
        if self.epolls.is_empty() {
            return;
        }
        let index = draw.below(self.epolls.len());
        let EpollModel { p, names, .. } = &self.epolls[index];
        let (p, name) = (*p, names[draw.below(names.len())]);
        if names.len() > 1 && draw.chance(2) {
            self.step(p, Op::Close { s: name });
            self.epolls[index].names.retain(|n| *n != name);
            for epoll in self.epolls.iter_mut().filter(|e| e.p == p) {
                epoll.members.retain(|member| *member != name);
            }
            return;
        }
        let to = self.slot();
        self.step(p, Op::Dup { s: name, to });
        self.epolls[index].names.push(to);
    }

    pub(super) fn epoll_wait(&mut self, draw: &mut Draw) {
        let known: Vec<(u8, u32)> = self.epolls.iter().flat_map(|e| e.names.iter().map(|name| (e.p, *name))).collect();
        if let Some((p, e)) = draw.pick(&known) {
            self.step(p, Op::EpollWait { e, max: 64, wait: false });
        }
    }

    /// Whether no bytes are to be read, and a send of the other end is going to change that.
    fn is_quiet(&mut self, h: Holder) -> bool {
        let (end, peer) = (self.end(h).clone(), self.peer(h).clone());
        let busy = peer.unread > 0 || peer.filled || peer.ended || peer.broken || end.broken || end.read_shut;
        !busy && end.lowat <= 1 && self.shape.threads
    }

    /// A wait for readiness, and then a send.
    pub(super) fn blocked_wait(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        if !self.is_quiet(h) {
            return;
        }
        let input = Interest { input: true, ..Interest::default() };
        let number = if draw.chance(2) {
            self.background(h.p, Op::Poll { s: vec![h.s], interest: input, wait: true, select: draw.chance(3) })
        } else {
            let e = self.epoll_create(h.p);
            let interest = Interest { edge: draw.chance(2), oneshot: draw.chance(4), ..input };
            self.register(self.epolls.len() - 1, h.s, EpollAction::Add, interest, draw);
            self.background(h.p, Op::EpollWait { e, max: 64, wait: true })
        };
        self.send_some(o, 1 + draw.below(100) as u32, SendCall::Send, SendFlags::default());
        self.step(h.p, Op::Join { of: number });
    }

    /// A thread sleeps on an instance, or on another one or in a `poll` that watches it, while others poll without
    /// waiting. Before an event they find nothing. Afterwards all find it, as long as no poll takes it from the others:
    /// so they poll only where everything is level-triggered.
    pub(super) fn shared_wait(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        if !self.is_quiet(h) {
            return;
        }
        let e = self.epoll_create(h.p);
        let index = self.epolls.len() - 1;
        if draw.chance(3) {
            let to = self.slot();
            self.step(h.p, Op::Dup { s: e, to });
            self.epolls[index].names.push(to);
        }
        let input = Interest { input: true, ..Interest::default() };
        let interest = Interest { edge: draw.chance(3), oneshot: draw.chance(5), ..input };
        let early = draw.chance(2);
        if early {
            self.register(index, h.s, EpollAction::Add, interest, draw);
        }
        let sleeper = match draw.below(4) {
            0 | 1 => Op::EpollWait { e, max: 64, wait: true },
            2 => Op::Poll { s: vec![e], interest: input, wait: true, select: draw.chance(2) },
            _ => {
                let outer = self.epoll_create(h.p);
                let interest = Interest { edge: draw.chance(2), oneshot: draw.chance(3), ..input };
                self.register(self.epolls.len() - 1, e, EpollAction::Add, interest, draw);
                Op::EpollWait { e: outer, max: 64, wait: true }
            }
        };
        let number = self.background(h.p, sleeper);
        if !early {
            self.register(index, h.s, EpollAction::Add, interest, draw);
        }
        let names = &self.epolls[index].names;
        let wait_step = Op::EpollWait { e: names[draw.below(names.len())], max: 64, wait: false };
        for _ in 0..draw.below(3) {
            self.step(h.p, wait_step.clone());
        }
        self.send_some(o, 1 + draw.below(100) as u32, SendCall::Send, SendFlags::default());
        if interest == input {
            for _ in 0..draw.below(3) {
                self.step(h.p, wait_step.clone());
            }
        }
        self.step(h.p, Op::Join { of: number });
    }
}
