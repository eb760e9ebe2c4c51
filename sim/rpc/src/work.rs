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
                    read: after.read - before.read,
                    written: after.written - before.written,
                    served: after.served - before.served,
                };
                let work = self.price(job.number, host, moves);
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

    fn side(&self, number: usize, host: usize) -> usize {
        usize::from(host != self.talks[number].client as usize)
    }

    /// What one end of a conversation has moved so far.
    pub(crate) fn moved(&self, number: usize, host: usize) -> Moves {
        let (talk, side) = (&self.talks[number], self.side(number, host));
        let served = if side == 1 { talk.answers } else { 0 };
        Moves { read: talk.directions[1 - side].read, written: talk.directions[side].written, served }
    }

    /// What one end of a conversation will move, as far as can be told before.
    fn expect(&mut self, number: usize, host: usize) -> Moves {
        let side = self.side(number, host);
        let talk = &mut self.talks[number];
        let unread = talk.end(&self.endpoints[host], side).unread();
        talk.expect(side, unread)
    }

    /// What it costs to move that: a call each to wait, to read and to write.
    fn price(&mut self, number: usize, host: usize, moves: Moves) -> Work {
        let side = self.side(number, host);
        let talk = &mut self.talks[number];
        let bytes = moves.read + moves.written;
        if bytes == 0 {
            return Work::default();
        }
        let calls = 1 + u32::from(moves.read > 0) + u32::from(moves.written > 0);
        let service = talk.service * moves.served;
        match talk.end(&self.endpoints[host], side).is_linked() {
            true => Work { library_calls: calls, bytes, service, ..Work::default() },
            false => Work { system_calls: calls, bytes, segment_bytes: bytes, service, ..Work::default() },
        }
    }
}
