//! Sending and receiving.

use std::collections::BTreeMap;

use super::{room, Draw, Holder, Model};
use crate::program::{
    BadAddress, How, Interest, LimitedCall, Misuse, Op, Option_, RecvCall, RecvFlags, Resource, SendCall, SendFlags,
};

/// Unread sends of a direction at most. A path may bound messages as well as bytes: TCP begins with a congestion window of ten
/// segments (RFC 6928, section 2), and the rest waits for acknowledgements, which the peer may delay. The end of the
/// direction may be one of them.
pub(super) const CALLS: u32 = 9;

impl Model {
    pub(super) fn amount(&mut self, draw: &mut Draw) -> u32 {
        let most = self.shape.most_bytes.max(1) as usize;
        match draw.below(8) {
            0..=2 => 1 + draw.below(8) as u32,
            3 | 4 => 1 + draw.below(100) as u32,
            5 if draw.chance(4) => 0,
            _ => 1 + draw.below(most) as u32,
        }
    }

    pub(super) fn send(&mut self, h: Holder, draw: &mut Draw) {
        let n = self.amount(draw);
        let call =
            [SendCall::Send, SendCall::Send, SendCall::Write, SendCall::Writev, SendCall::Sendmsg, SendCall::Sendto]
                [draw.below(6)];
        let flags = SendFlags { dontwait: draw.chance(3), more: false, nosignal: draw.chance(3) };
        self.send_some(h, n, call, flags);
    }

    pub(super) fn send_some(&mut self, h: Holder, n: u32, call: SendCall, flags: SendFlags) {
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
                // Bytes that no process can read are answered with a reset.
                end.broken = true;
            }
        }
        self.step(h.p, Op::Send { s: h.s, n, call, flags });
    }

    pub(super) fn receive(&mut self, h: Holder, draw: &mut Draw, peek: bool) {
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

    pub(super) fn drain(&mut self, h: Holder) {
        self.step(h.p, Op::Drain { s: h.s });
        let peer = self.peer(h);
        (peer.unread, peer.calls, peer.filled) = (0, 0, false);
    }

    /// A call with an invalid argument. No byte is moved, whatever the result.
    pub(super) fn misuse(&mut self, h: Holder, draw: &mut Draw) {
        let call = Misuse::ALL[draw.below(Misuse::ALL.len())];
        let at = [BadAddress::Null, BadAddress::Reserved, BadAddress::Low, BadAddress::Beyond][draw.below(4)];
        // The fill level of a filled connection is unknown.
        if self.end(h).filled || self.peer(h).filled {
            return;
        }
        let call = if call.waits() && !self.returns(h, 1, false) { Misuse::Recv } else { call };
        self.step(h.p, Op::Misuse { s: h.s, call, at });
    }

    /// A call of a process that has used up a resource. A call that opens a descriptor is drawn less often: it makes
    /// the library of the process give its own back, and later bytes go over kernel TCP.
    pub(super) fn limited(&mut self, h: Holder, draw: &mut Draw) {
        let resource = if draw.below(4) == 0 { Resource::FileSize } else { Resource::Descriptors };
        let calls: &[LimitedCall] = if draw.below(4) == 0 { &LimitedCall::OPENING } else { &LimitedCall::WITHOUT };
        let call = calls[draw.below(calls.len())];
        self.step(h.p, Op::Limited { s: h.s, resource, call });
    }

    /// A receive that waits, and then a send.
    pub(super) fn blocked_receive(&mut self, h: Holder, draw: &mut Draw) {
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

    /// A call that waits and is interrupted by a signal.
    pub(super) fn interrupted(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        if !self.is_idle(h) || self.end(h).nonblock || !self.shape.threads {
            return;
        }
        let n = 2 + draw.below(100) as u32;
        let receive = |waitall| Op::Recv {
            s: h.s,
            n,
            call: RecvCall::Recv,
            flags: RecvFlags { waitall, ..RecvFlags::default() },
        };
        let input = Interest { input: true, ..Interest::default() };
        match draw.below(5) {
            // It continues as if nothing had happened.
            0 => {
                let of = self.background(h.p, receive(true));
                self.step(h.p, Op::Signal { of, restart: true });
                self.step(o.p, Op::SendAll { s: o.s, n });
                self.step(h.p, Op::Join { of });
            }
            1 => {
                let of = self.background(h.p, receive(false));
                self.step(h.p, Op::Signal { of, restart: false });
                self.step(h.p, Op::Join { of });
            }
            // It returns the bytes that it has.
            2 => {
                let of = self.background(h.p, receive(true));
                self.step(o.p, Op::SendAll { s: o.s, n: n / 2 });
                self.step(h.p, Op::Signal { of, restart: false });
                self.step(h.p, Op::Join { of });
            }
            // Calls with a time limit are not restarted, and neither are poll and select.
            3 => {
                self.step(h.p, Op::Set { s: h.s, option: Option_::Rcvtimeo, value: 60_000 });
                let of = self.background(h.p, receive(false));
                self.step(h.p, Op::Signal { of, restart: false });
                self.step(h.p, Op::Join { of });
                self.step(h.p, Op::Set { s: h.s, option: Option_::Rcvtimeo, value: 0 });
            }
            _ => {
                let wait = Op::Poll { s: vec![h.s], interest: input, wait: true, select: draw.chance(2) };
                let of = self.background(h.p, wait);
                self.step(h.p, Op::Signal { of, restart: false });
                self.step(h.p, Op::Join { of });
            }
        }
    }

    /// Several threads of a process wait, each for a connection of its own, while another connection is used; then each
    /// gets its bytes.
    pub(super) fn herd(&mut self, h: Holder, draw: &mut Draw) {
        /// Threads at most. Arbitrary.
        const MOST: usize = 4;
        if !self.shape.threads {
            return;
        }
        let n = 1 + draw.below(50) as u32;
        // By connection: a second descriptor of an end would take the bytes that another thread waits for.
        let mut idle: BTreeMap<usize, (Holder, Holder)> = BTreeMap::new();
        for holder in self.holders.clone().into_iter().filter(|o| o.p == h.p) {
            if let Some(other) = self.opposite(holder).filter(|_| self.is_idle(holder)) {
                idle.entry(holder.c).or_insert((holder, other));
            }
        }
        let mut waiting: Vec<_> = idle.into_values().collect();
        let busy = if waiting.len() > 1 { waiting.pop() } else { None };
        waiting.truncate(MOST);
        let mut numbers = Vec::new();
        for (holder, _) in &waiting {
            let s = holder.s;
            let input = Interest { input: true, ..Interest::default() };
            numbers.push(match draw.below(3) {
                0 => (self.background(holder.p, Op::RecvAll { s, n }), true),
                kind => {
                    let wait = Op::Poll { s: vec![s], interest: input, wait: true, select: kind == 2 };
                    (self.background(holder.p, wait), false)
                }
            });
        }
        for _ in 0..2 {
            if let Some((holder, other)) = busy {
                self.step(other.p, Op::SendAll { s: other.s, n });
                self.step(holder.p, Op::RecvAll { s: holder.s, n });
            }
        }
        for ((holder, other), (of, receives)) in waiting.into_iter().zip(numbers) {
            self.step(other.p, Op::SendAll { s: other.s, n });
            self.step(holder.p, Op::Join { of });
            if !receives {
                self.step(holder.p, Op::RecvAll { s: holder.s, n });
            }
        }
    }

    /// Nothing is unread that `h` could receive, and the other end can send more.
    fn is_idle(&mut self, h: Holder) -> bool {
        let (end, peer) = (self.end(h).clone(), self.peer(h).clone());
        let ended = peer.ended || peer.broken || end.broken || end.read_shut;
        peer.unread == 0 && !peer.filled && !ended && end.lowat <= 1
    }

    /// Many bytes, more than there is room for, with a process at each end.
    pub(super) fn transfer(&mut self, h: Holder, draw: &mut Draw) {
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
    pub(super) fn fill_drain(&mut self, h: Holder, draw: &mut Draw) {
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
}
