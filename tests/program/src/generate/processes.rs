//! Descriptors, and the processes that hold them.

use super::{Draw, Holder, Model};
use crate::program::{Op, MAX_PROCESSES};

impl Model {
    pub(super) fn dup(&mut self, h: Holder, draw: &mut Draw) {
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

    pub(super) fn fork(&mut self, draw: &mut Draw) {
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

    /// The descriptor that the other process got.
    pub(super) fn pass(&mut self, h: Holder, draw: &mut Draw) -> Option<Holder> {
        // Descriptors do not leave their host.
        let near = |p: &u8| self.alive[usize::from(*p)] && self.hosts[usize::from(*p)] == self.hosts[usize::from(h.p)];
        let near: Vec<u8> = (0..self.alive.len() as u8).filter(near).collect();
        let q = draw.pick(&near)?;
        let passed = Holder { p: q, s: self.slot(), cloexec: false, ..h };
        self.step(h.p, Op::Pass { s: h.s, q, to: passed.s });
        self.holders.push(passed);
        Some(passed)
    }

    pub(super) fn exec(&mut self, draw: &mut Draw) {
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

    /// A process ends, if that is no different from closing everything.
    pub(super) fn leave(&mut self, draw: &mut Draw) {
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
        // So do bytes that a process has sent before it closed, except for a process that holds the other end already.
        let lingers = (0..self.connections.len()).any(|c| {
            (0..2).any(|side| {
                let closed = !self.holders.iter().any(|h| (h.c, h.side) == (c, side));
                closed && self.connections[c].ends[side].unread > 0
            })
        });
        // And the kernel of a process that has not read a marker answers with a reset.
        let promoting = self.holders.iter().any(|h| h.p == p && !self.connections[h.c].warm);
        self.step(p, if draw.chance(2) && !shares && !lingers && !promoting { Op::Kill } else { Op::Exit });
        self.alive[usize::from(p)] = false;
        self.epolls.retain(|e| e.p != p);
        self.listeners.retain(|(at, ..)| *at != p);
        for h in self.holders.clone().into_iter().filter(|h| h.p == p) {
            self.gone(h);
        }
    }
}
