//! `poll`, `select` and `epoll`.

use super::{Draw, EpollModel, Holder, Model};
use crate::program::{EpollAction, Interest, Op, SendCall, SendFlags};

impl Model {
    pub(super) fn poll(&mut self, h: Holder, draw: &mut Draw) {
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

    pub(super) fn epoll_ctl(&mut self, h: Holder, draw: &mut Draw) {
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

    pub(super) fn epoll_wait(&mut self, draw: &mut Draw) {
        let known: Vec<(u8, u32)> = self.epolls.iter().map(|e| (e.p, e.e)).collect();
        if let Some((p, e)) = draw.pick(&known) {
            self.step(p, Op::EpollWait { e, max: 64, wait: false });
        }
    }

    /// A wait for readiness, and then a send.
    pub(super) fn blocked_wait(&mut self, h: Holder, draw: &mut Draw) {
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
}
