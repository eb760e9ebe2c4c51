//! What processes do takes its turn and its time on their hosts' processors.

use netacc_device::Instant;
use netacc_host::Work;

use crate::talk::Moves;
use crate::Run;

impl Run {
    /// The threads of a host that have a core do their work, and those that are ready get one.
    pub(crate) fn work(&mut self, host: usize, now: Instant) {
        loop {
            let Some(desk) = &mut self.desks[host] else { return };
            if let Some((thread, job)) = desk.poll_done(now) {
                let before = self.moved(job.number, host);
                self.talk(job.number, host, now);
                let after = self.moved(job.number, host);
                let moves = Moves {
                    read: after.read.saturating_sub(before.read),
                    written: after.written.saturating_sub(before.written),
                    served: after.served.saturating_sub(before.served),
                };
                let work = self.price(job.number, host, moves);
                self.note_used(job.number, host, moves);
                if let Some(desk) = &mut self.desks[host] {
                    desk.settle(now, thread, &job, &work);
                }
                continue;
            }
            let Some((thread, number)) = desk.poll_start(now) else { return };
            let expected = self.expect(number, host);
            let work = self.price(number, host, expected);
            if let Some(desk) = &mut self.desks[host] {
                desk.begin(now, thread, number, work);
            }
        }
    }

    /// What one end of a conversation has moved so far.
    pub(crate) fn moved(&self, number: usize, host: usize) -> Moves {
        let Some(talk) = self.talks.get(number) else { return Moves::default() };
        let side = usize::from(host != talk.client as usize);
        let served = if side == 1 { talk.answers } else { 0 };
        Moves { read: talk.directions[1 - side].read, written: talk.directions[side].written, served }
    }

    /// What one end of a conversation will move, as far as can be told before.
    fn expect(&mut self, number: usize, host: usize) -> Moves {
        let Some(talk) = self.talks.get_mut(number) else { return Moves::default() };
        let side = usize::from(host != talk.client as usize);
        let unread = talk.end(&self.endpoints[host], side).map_or(0, |end| end.unread());
        talk.expect(side, unread)
    }

    /// What it costs to move that: a call each to wait, to read and to write.
    fn price(&mut self, number: usize, host: usize, moves: Moves) -> Work {
        let bytes = moves.read + moves.written;
        let Some(talk) = self.talks.get_mut(number).filter(|_| bytes > 0) else { return Work::default() };
        let side = usize::from(host != talk.client as usize);
        // Paid when it is first used; whoever lasts was made before the run.
        let connections = u32::from(talk.short.is_some() && !talk.was_used[side]);
        let calls = 1 + u32::from(moves.read > 0) + u32::from(moves.written > 0);
        let work = Work { connections, bytes, service: talk.service * moves.served, ..Work::default() };
        match talk.is_linked(&self.endpoints[host], side) {
            true => Work { library_calls: calls, ..work },
            false => Work { system_calls: calls, segment_bytes: bytes, ..work },
        }
    }

    /// What was moved has been paid for.
    fn note_used(&mut self, number: usize, host: usize, moves: Moves) {
        if let Some(talk) = self.talks.get_mut(number).filter(|_| moves.read + moves.written > 0) {
            talk.was_used[usize::from(host != talk.client as usize)] = true;
        }
    }
}
