//! Writes that are held back: `TCP_CORK` and `MSG_MORE`.

use super::bytes::CALLS;
use super::{room, Draw, Holder, Mix, Model};
use crate::program::{How, Op, Option_, SendCall, SendFlags};

/// Calls that take flags come first.
const CALLS_THAT_SEND: [SendCall; 5] =
    [SendCall::Send, SendCall::Sendmsg, SendCall::Sendto, SendCall::Write, SendCall::Writev];
const WITH_FLAGS: usize = 3;

/// The event that releases bytes that are held back.
#[derive(Clone, Copy)]
enum LetGo {
    /// The option is taken back, or a write follows that is not held back.
    Plainly,
    /// TCP_NODELAY is set once more.
    Nodelay,
    /// The direction ends.
    End,
    /// As `Plainly`, by the process that the descriptor was passed to.
    Elsewhere,
    /// No call does: time passes.
    Time,
}

impl Model {
    /// Some writes that are held back, and the event that releases them. Until then no process polls the direction: the
    /// implementation decides how much of it comes earlier.
    pub(super) fn cork(&mut self, h: Holder, draw: &mut Draw) {
        let Some(o) = self.opposite(h) else { return };
        let (end, peer) = (self.end(h).clone(), self.peer(h).clone());
        let room = room(&self.shape.config);
        // All drawn writes have room, so that the release is not left out.
        let most = room / 8;
        if end.ended || end.broken || end.filled || peer.broken || peer.read_shut {
            return;
        }
        if end.unread > room / 2 || end.calls + 4 > CALLS {
            return;
        }
        let corked = draw.chance(2);
        let shares = matches!(self.shape.mix, Mix::Sharing | Mix::All);
        let let_go = match draw.below(24) {
            0..=11 => LetGo::Plainly,
            12..=15 => LetGo::Nodelay,
            16..=18 if self.shape.mix != Mix::Data => LetGo::End,
            19..=22 if shares => LetGo::Elsewhere,
            23 if peer.lowat <= 1 => LetGo::Time,
            _ => LetGo::Plainly,
        };
        if corked {
            self.step(h.p, Op::Set { s: h.s, option: Option_::Cork, value: 1 });
        }
        for _ in 0..1 + draw.below(3) {
            let n = self.amount(draw).min(most as u32);
            let call = CALLS_THAT_SEND[draw.below(if corked { CALLS_THAT_SEND.len() } else { WITH_FLAGS })];
            let flags = SendFlags { dontwait: draw.chance(3), more: !corked, nosignal: false };
            self.send_some(h, n, call, flags);
            if draw.chance(4) {
                // Credit for the peer is not held back.
                self.receive(h, draw, false);
            }
        }
        self.let_go(h, o, let_go, corked, draw);
    }

    fn let_go(&mut self, h: Holder, o: Holder, how: LetGo, corked: bool, draw: &mut Draw) {
        let uncork = |s| Op::Set { s, option: Option_::Cork, value: 0 };
        match how {
            LetGo::Plainly if !corked => {
                // No more bytes than there is always room for.
                let n = 1 + draw.below((room(&self.shape.config) / 8).clamp(1, 100) as usize) as u32;
                self.send_some(h, n, CALLS_THAT_SEND[draw.below(5)], SendFlags::default());
            }
            LetGo::Plainly => self.step(h.p, uncork(h.s)),
            LetGo::Nodelay => {
                self.step(h.p, Op::Set { s: h.s, option: Option_::Nodelay, value: 1 });
                if corked {
                    self.step(h.p, uncork(h.s));
                }
            }
            LetGo::End => {
                self.step(h.p, Op::Shutdown { s: h.s, how: How::Write });
                self.end(h).ended = true;
            }
            LetGo::Elsewhere => {
                let passed = self.pass(h, draw).unwrap_or(h);
                self.let_go(passed, o, LetGo::Plainly, corked, draw);
            }
            LetGo::Time => {
                let unread = u32::try_from(self.end(h).unread).unwrap_or(0);
                // Without bytes there is nothing to wait for.
                if unread > 0 {
                    self.step(o.p, Op::RecvAll { s: o.s, n: unread });
                }
                let end = self.end(h);
                (end.unread, end.calls) = (0, 0);
                if corked {
                    self.step(h.p, uncork(h.s));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::numbers;
    use crate::program::{Op, Option_, Step};
    use crate::{generate, Mix, Shape};

    /// The effect of a step on the bytes that a slot holds back: holds some back, or releases them.
    fn effect_on_corked(step: &Step) -> Option<bool> {
        match &step.op {
            Op::Send { n, flags, .. } if flags.more => (*n > 0).then_some(true),
            Op::Set { option: Option_::Cork, value, .. } => Some(*value == 1),
            _ => None,
        }
    }

    // Breaks if a process might poll a direction that has bytes held back, or a way to release them is never drawn.
    #[test]
    fn corked_bytes_are_not_polled_before_release() {
        let mut ways = BTreeSet::new();
        let mut corked = 0;
        for seed in 1..2000 {
            for mix in [Mix::Data, Mix::Readiness, Mix::Endings, Mix::Sharing, Mix::All] {
                let steps = generate(&Shape { mix, ..Shape::default() }, &numbers(seed, 40)).steps;
                let mut rest = steps.iter();
                while let Some(first) = rest.find(|step| effect_on_corked(step) == Some(true)) {
                    corked += 1;
                    let mut holder = first.p;
                    let corked = matches!(first.op, Op::Set { .. });
                    let way = rest.by_ref().find_map(|step| match &step.op {
                        // Bytes that time has released are read.
                        Op::RecvAll { n, .. } if *n > 0 => Some("time"),
                        _ if step.p != holder => panic!("{step:?} while {first:?} holds back: {steps:?}"),
                        Op::Pass { q, .. } => {
                            holder = *q;
                            ways.insert("elsewhere");
                            None
                        }
                        Op::Shutdown { .. } => Some("end"),
                        Op::Set { option: Option_::Nodelay, .. } => Some("nodelay"),
                        Op::Set { option: Option_::Cork, value: 0, .. } => Some("option"),
                        Op::Send { n, flags, .. } if !corked && !flags.more && *n > 0 => Some("write"),
                        Op::Send { .. } | Op::Recv { .. } => None,
                        _ => panic!("{step:?} while {first:?} holds back: {steps:?}"),
                    });
                    ways.insert(way.unwrap_or_else(|| panic!("{first:?} is never released: {steps:?}")));
                }
            }
        }
        assert!(corked > 1000, "{corked}");
        assert_eq!(ways, BTreeSet::from(["elsewhere", "end", "nodelay", "option", "time", "write"]));
    }
}
