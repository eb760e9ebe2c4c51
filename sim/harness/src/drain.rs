//! The end of a run: faults stop, and applications and helpers act only on events. Work that is unfinished when all is quiet never ends.
//!
//! 1. Each open side writes some last bytes, ends its direction, and reads until the end. An application acts only
//!    when its epoll reports it (edge-triggered), a helper only when it would wake.
//! 2. Counters are compared, everything is closed, and all streams must be gone.
//! 3. The cache expires: all links must be gone, and no region left.

use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::Shutdown;
use netacc_proto::Phase;

use crate::io::Io;
use crate::trace::Event;
use crate::world::World;
use crate::{Broken, Check, Mutant, Preset, What};

/// Rounds after which a run that is not quiet never will be. Arbitrary, far above the need of an honest run.
const MAX_ROUNDS: u32 = 60_000;
/// Writes into a connection that is closed at the other end, until an error must have come. Arbitrary: the closed end may
/// have to read tens of kilobytes through the smallest buffer before it finds a record.
const MAX_PROBES: u32 = 4000;

impl World {
    /// See the module documentation.
    pub(crate) fn drain(&mut self) -> Check {
        self.relieve();
        if let Some((Mutant::DropEdge, countdown)) = &self.mutant {
            // Before the drain every application polls sooner or later, even without an event.
            countdown.reset(self.rng.below(20) as u32);
        }
        self.trace.record(Event::Drain("last bytes"));
        for c in 0..self.connections.len() {
            for s in 0..2 {
                if self.connections[c].sides[s].read_shut {
                    // No application reads there any more: its peer could wait for room for ever, as with kernel TCP.
                    self.connections[c].broken = true;
                    self.close(c, s, false);
                }
                let most = u64::from(self.plan.endpoint.ring_len) * 2;
                let left = if self.rng.below(2) == 0 { self.rng.below(most as usize) as u64 } else { 0 };
                let ended = self.connections[c].directions[s].ended;
                self.connections[c].sides[s].left = if ended { 0 } else { left };
            }
        }
        self.run_until_idle()?;
        self.check_finished()?;
        self.check_counters()?;
        self.trace.record(Event::Drain("close all"));
        for c in 0..self.connections.len() {
            for s in 0..2 {
                self.close(c, s, false);
            }
        }
        self.run_until_idle()?;
        self.check_gone()?;
        self.trace.record(Event::Drain("expire"));
        if let Some(expire) = self.plan.endpoint.cache.expire {
            self.now = self.now + expire + Duration::from_millis(1);
        }
        for p in 0..self.processes.len() {
            self.helper_step(p);
        }
        self.run_until_idle()?;
        self.check_links()?;
        let processes: Vec<_> = self.processes.iter_mut().filter_map(Option::take).collect();
        for process in processes {
            self.account(&process);
            process.die(&self.net);
        }
        self.summary.network_trace = self.net.trace();
        Ok(())
    }

    /// Runs all helpers and applications that would run by themselves, until none would.
    fn run_until_idle(&mut self) -> Check {
        for _ in 0..MAX_ROUNDS {
            // Every round takes time: timers fire even while all are busy.
            self.now = self.now + Duration::from_micros(200);
            let moved = self.round()?;
            self.check()?;
            if moved {
                continue;
            }
            match self.next_timer() {
                Some(at) => self.now = at.max(self.now + Duration::from_nanos(1)),
                None => return self.check_streams(),
            }
        }
        let mut detail = String::from("the drain does not end");
        for (p, process) in self.processes.iter().enumerate() {
            if let Some(process) = process {
                detail += &format!("; process {p}: {}", process.restlessness(self.now));
            }
        }
        Err(Broken::new(What::Restless, detail))
    }

    /// Gives a turn to each helper and application that would take one, in an order that changes. Whether any did.
    fn round(&mut self) -> Check<bool> {
        let mut moved = false;
        for _ in 0..1 + self.rng.below(8) {
            self.tick();
            moved |= self.net_step();
        }
        let first = self.rng.below(self.connections.len().max(1));
        for i in 0..self.connections.len() {
            let c = (first + i) % self.connections.len();
            for _ in 0..4 {
                self.tick();
                moved |= self.wire_step(c);
            }
        }
        for p in 0..self.processes.len() {
            if self.processes[p].as_ref().is_some_and(|x| x.helper_runnable(self.now)) {
                self.tick();
                self.helper_step(p);
                moved = true;
            }
            if self.processes[p].as_ref().is_some_and(|x| x.epoll_runnable()) {
                self.tick();
                self.epoll_step(p);
                moved = true;
            }
        }
        for c in 0..self.connections.len() {
            for s in 0..2 {
                self.tick();
                moved |= self.application(c, s)?;
            }
        }
        Ok(moved)
    }

    /// The turn of an application that had an event, or waits in a call. Whether it did anything.
    fn application(&mut self, c: usize, s: usize) -> Check<bool> {
        let side = &self.connections[c].sides[s];
        if side.cell.is_none() || side.failed {
            return Ok(false);
        }
        if side.demoting_since.is_some() {
            self.demote_step(c, s);
            return Ok(self.connections[c].sides[s].demoting_since.is_none());
        }
        let mut moved = false;
        if side.may_read && !side.ended {
            let io = self.recv(c, s, 5000, false)?;
            self.trace.record(Event::Read { c, s, want: 5000, io });
            moved = true;
        }
        Ok(moved | self.last_writes(c, s)?)
    }

    fn last_writes(&mut self, c: usize, s: usize) -> Check<bool> {
        let connection = &self.connections[c];
        let side = &connection.sides[s];
        if connection.directions[s].ended || side.failed || side.cell.is_none() {
            return Ok(false);
        }
        let peer_closed = connection.sides[1 - s].cell.is_none();
        let waits = side.suspended.is_some();
        if side.left == 0 && !peer_closed && !waits {
            self.shutdown(c, s, Shutdown::Write);
            self.trace.record(Event::ShutdownWrite { c, s });
            return Ok(true);
        }
        if !side.may_write {
            return Ok(false);
        }
        let probing = side.left == 0;
        let want = if probing { 1 } else { side.left.min(3000) as usize };
        let io = self.send(c, s, want, false)?;
        self.trace.record(Event::Write { c, s, want, io });
        let side = &mut self.connections[c].sides[s];
        match io {
            Io::Done(n) if probing => {
                side.probes += n as u32;
                // A closed peer that lingers polls its anchor only from time to time.
                self.now = self.now + Duration::from_millis(20);
            }
            Io::Done(n) => side.left -= n as u64,
            Io::Error(_) => side.left = 0,
            // Waiting for the peer to act, as before: that is no move.
            Io::Blocked => return Ok(!waits || side.suspended.is_none()),
        }
        if self.connections[c].sides[s].probes > MAX_PROBES {
            let detail = format!("connection {c} side {s} writes and writes to a closed peer");
            return Err(Broken::new(What::Stuck, detail));
        }
        Ok(true)
    }

    fn next_timer(&self) -> Option<Instant> {
        let helpers = self.processes.iter().flatten().filter_map(|p| p.timer);
        let sides = self.connections.iter().flat_map(|c| &c.sides).filter(|s| s.cell.is_some() && !s.failed);
        let waits = sides.flat_map(|s| {
            let send = s.suspended.as_ref().and_then(|suspended| suspended.sending.waits_until());
            let demotion = s.demoting_since.map(|_| self.now + Duration::from_millis(200));
            [send, demotion]
        });
        // The deadline of a cached link may be far away; the third phase waits for it.
        helpers.chain(waits.flatten()).min()
    }

    /// Every byte was read, every end of stream seen; else an application or helper missed a wake-up.
    fn check_finished(&mut self) -> Check {
        for c in 0..self.connections.len() {
            for s in 0..2 {
                let k = &self.connections[c];
                let side = &k.sides[s];
                if side.cell.is_none() || side.failed {
                    continue;
                }
                let unwritten = side.left > 0 && !k.directions[s].ended;
                let unread = !side.ended;
                let undemoted = side.demoting_since.is_some();
                if unwritten || unread || undemoted {
                    return Err(self.diagnose(c, s));
                }
            }
        }
        Ok(())
    }

    /// Quiet but not finished: would it go on after a poll?
    fn diagnose(&mut self, c: usize, s: usize) -> Broken {
        let name = format!("connection {c} side {s}");
        let before = self.connections[c].directions;
        let reads = match self.recv(c, s, 100, true) {
            Ok(io) => io,
            Err(broken) => return broken,
        };
        let writes = match self.connections[c].sides[s].left > 0 {
            true => self.send(c, s, 1, false).unwrap_or(Io::Blocked),
            false => Io::Blocked,
        };
        if reads != Io::Blocked || writes != Io::Blocked {
            let detail = format!("{name} had no event: a read gives {reads:?}, a write {writes:?}; {before:?}");
            return Broken::new(What::LostEdge, detail);
        }
        Broken::new(What::Stuck, format!("{name}: {before:?}"))
    }

    /// Each side received the bytes that the other one sent, path by path in sum.
    fn check_counters(&self) -> Check {
        for (c, k) in self.connections.iter().enumerate() {
            for s in 0..2 {
                let (Some((we, writer)), Some((they, reader))) = (self.open_side(c, s), self.open_side(c, 1 - s))
                else {
                    continue;
                };
                let d = k.directions[s];
                if k.sides.iter().any(|x| x.failed || x.read_shut) || k.broken {
                    continue;
                }
                let (tx, rx) = (writer.lock(&we).counters(), reader.lock(&they).counters());
                let sent = tx.tx_bytes_link + tx.tx_bytes_tcp;
                let received = rx.rx_bytes_link + rx.rx_bytes_tcp;
                if d.read != d.written || sent != d.written || received != d.read {
                    let detail =
                        format!("connection {c} from side {s}: {d:?}, counted {sent} sent, {received} received");
                    return Err(Broken::new(What::Counters, detail));
                }
            }
        }
        Ok(())
    }

    /// After everything was closed, no stream is left.
    fn check_gone(&self) -> Check {
        for (p, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            if let Some(cell) = process.endpoint.streams().first() {
                let guard = cell.lock(&process.endpoint);
                let lingers = guard.proto().must_linger();
                let detail = format!(
                    "process {p} still has the stream of {} ({:?}, lingers: {lingers})",
                    cell.tuple().local,
                    guard.proto().phase()
                );
                let what = if guard.proto().phase() == Phase::Plain { What::Leak } else { What::Stuck };
                return Err(Broken::new(what, detail));
            }
        }
        Ok(())
    }

    /// No link is left but cached ones that never expire, none has a stream, and no region of a stream is left.
    fn check_links(&mut self) -> Check {
        for (p, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            for link in process.endpoint.links() {
                let kept = self.plan.endpoint.cache.expire.is_none() && link.streams == 0 && !link.dead;
                if !kept {
                    return Err(Broken::new(What::Leak, format!("process {p} still has {link:?}")));
                }
            }
            let links = process.endpoint.links();
            let spare = |qp: u32| links.iter().find(|link| link.qp == qp).map_or(0, |link| link.spare_regions);
            // A link itself may have one, for control messages that are too long to go inline; not where memory is shared.
            let own = usize::from(self.plan.preset != Preset::Shm);
            if let Some((qp, n)) = process.meter.regions().into_iter().find(|(qp, n)| *n > own + spare(qp.0)) {
                return Err(Broken::new(What::Leak, format!("process {p} queue pair {} still has {n} regions", qp.0)));
            }
        }
        match self.under_way() {
            Some(event) => Err(Broken::new(What::Leak, format!("still in flight: {event}"))),
            None => Ok(()),
        }
    }
}
