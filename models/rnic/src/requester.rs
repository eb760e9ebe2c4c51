//! The sending half of a queue pair: a send queue cut into packets, and what is known of their fate.
//!
//! Packets have sequence numbers. Everything below `una` is acknowledged, everything below `next` was sent at least once,
//! everything below `end` was posted. Recovery is a walk from `una` to a limit that passes by what the peer is known to
//! keep; go-back-N and selective repeat differ only in that limit.
//!
//! Invariants: `una <= next <= end`; `next - una <= window`; every number in `sacked` is in `una + 1..next`; each request covers
//! at least one packet, and the requests' packets cover `queue.front().first .. end` without a gap.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use netacc_device::{Instant, WorkRequestId};

use crate::packet::{Segment, Verb};
use crate::{NicConfig, Recovery};

/// One posted request that is not done.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: WorkRequestId,
    pub(crate) message: u64,
    pub(crate) verb: Verb,
    pub(crate) len: u32,
    pub(crate) signaled: bool,
    /// Send slots that polling its completion frees.
    pub(crate) releases: u32,
    /// When the NIC has fetched it.
    pub(crate) ready_at: Instant,
    first: u64,
    packets: u64,
}

/// A posted request.
pub(crate) struct Posting {
    pub(crate) id: WorkRequestId,
    pub(crate) verb: Verb,
    pub(crate) len: u32,
    pub(crate) signaled: bool,
    pub(crate) releases: u32,
    pub(crate) ready_at: Instant,
}

/// A walk over what must be sent again.
#[derive(Clone, Copy, Debug)]
struct Resend {
    cursor: u64,
    /// Where it ends; `None` is what the peer keeps with the highest number, or just the first missing packet.
    limit: Option<u64>,
    /// Losses before this number belong to this recovery.
    recover: u64,
}

/// Why a queue pair must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

#[derive(Debug, Default)]
pub(crate) struct Requester {
    queue: VecDeque<Request>,
    next_message: u64,
    una: u64,
    next: u64,
    end: u64,
    resend: Option<Resend>,
    sacked: BTreeSet<u64>,
    retries: u8,
    rnr_retries: u8,
    /// When to give up waiting for progress. Set exactly while something is in flight and no pause is asked for.
    deadline: Option<Instant>,
    /// Not before this time: a pause that the peer asked for.
    pause_until: Instant,
}

impl Requester {
    /// Takes over a request; returns the number of its message.
    pub(crate) fn post(&mut self, posting: Posting, mtu_bytes: u32) -> u64 {
        let Posting { id, verb, len, signaled, releases, ready_at } = posting;
        let (message, first) = (self.next_message, self.end);
        let packets = u64::from(len.div_ceil(mtu_bytes)).max(1);
        self.next_message += 1;
        self.end += packets;
        self.queue.push_back(Request { id, message, verb, len, signaled, releases, ready_at, first, packets });
        message
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The packet to send next, and when at the earliest. `None` if nothing may be sent, whatever time passes.
    pub(crate) fn next_packet(&self, window: u64) -> Option<(u64, Instant)> {
        let again = self.resend.and_then(|r| self.next_again(r));
        let psn = match again {
            Some(psn) => psn,
            None if self.next < self.end && self.in_flight() < window => self.next,
            None => return None,
        };
        let ready_at = self.request_of(psn)?.ready_at;
        Some((psn, ready_at.max(self.pause_until)))
    }

    fn next_again(&self, resend: Resend) -> Option<u64> {
        let from = resend.cursor.max(self.una);
        let kept = self.sacked.last().copied().unwrap_or(0);
        let limit = resend.limit.unwrap_or(kept.max(self.una + 1)).min(self.next);
        (from..limit).find(|psn| !self.sacked.contains(psn))
    }

    fn in_flight(&self) -> u64 {
        match self.resend {
            Some(Resend { cursor, limit: Some(limit), .. }) if cursor < limit => u64::MAX,
            _ => self.next - self.una,
        }
    }

    /// The content of packet `psn`, and whether it requests an acknowledgement.
    pub(crate) fn segment(&self, psn: u64, config: &NicConfig, window: u64) -> Option<(Segment, bool)> {
        let request = self.request_of(psn)?;
        let index = psn - request.first;
        let offset = (index * u64::from(config.mtu_bytes)) as u32;
        let len = (request.len - offset).min(config.mtu_bytes);
        let last = index + 1 == request.packets;
        let full = psn + 1 >= self.end || psn + 1 - self.una >= window;
        let again = psn < self.next;
        let due = (psn + 1).is_multiple_of(u64::from(config.ack_interval.max(1)));
        let segment = Segment { message: request.message, verb: request.verb, offset, len, last };
        Some((segment, last || full || again || due))
    }

    fn request_of(&self, psn: u64) -> Option<&Request> {
        let after = self.queue.partition_point(|r| r.first <= psn);
        self.queue.get(after.checked_sub(1)?).filter(|r| psn < r.first + r.packets)
    }

    /// Packet `psn`, as [`next_packet`](Requester::next_packet) named it, was sent; whether it was again.
    pub(crate) fn sent(&mut self, psn: u64, now: Instant, timeout: Duration) -> bool {
        let again = psn < self.next;
        if let (true, Some(resend)) = (again, &mut self.resend) {
            resend.cursor = psn + 1;
            if resend.limit.is_some_and(|limit| resend.cursor >= limit) {
                self.resend = None;
            }
        }
        if !again {
            self.next = psn + 1;
        }
        self.deadline.get_or_insert(now + timeout);
        again
    }

    /// The first packet that is not acknowledged.
    pub(crate) fn first_missing(&self) -> u64 {
        self.una
    }

    /// The first packet that was never sent.
    pub(crate) fn next_new(&self) -> u64 {
        self.next
    }

    /// Everything below `expected` has arrived: how many packets that is more than before. Numbers that were never sent, or
    /// are old, are not believed.
    pub(crate) fn acknowledge(&mut self, expected: u64, now: Instant, timeout: Duration) -> u64 {
        if expected <= self.una || expected > self.next {
            return 0;
        }
        let packets = expected - self.una;
        self.una = expected;
        (self.retries, self.rnr_retries) = (0, 0);
        // The peer does not have a packet that it kept and then refused because it had no receive.
        self.sacked = self.sacked.split_off(&(expected + 1));
        if self.resend.is_some_and(|r| expected >= r.limit.unwrap_or(r.recover)) {
            self.resend = None;
        }
        self.deadline = (self.una < self.next).then(|| now + timeout);
        packets
    }

    /// The oldest request, if all of it is acknowledged.
    pub(crate) fn pop_done(&mut self) -> Option<Request> {
        let done = self.queue.front().is_some_and(|r| r.first + r.packets <= self.una);
        done.then(|| self.queue.pop_front()).flatten()
    }

    /// The oldest request, done or not: the queue pair is dead.
    pub(crate) fn pop_any(&mut self) -> Option<Request> {
        self.deadline = None;
        self.queue.pop_front()
    }

    /// The peer misses `expected`, and keeps `kept`.
    ///
    /// # Errors
    /// When there were too many attempts without progress.
    pub(crate) fn handle_gap(
        &mut self,
        expected: u64,
        kept: Option<u64>,
        now: Instant,
        config: &NicConfig,
    ) -> Result<(), Exhausted> {
        self.acknowledge(expected, now, config.retry_timeout);
        if let Some(psn) = kept.filter(|psn| (self.una + 1..self.next).contains(psn)) {
            self.sacked.insert(psn);
        }
        if expected != self.una || self.una == self.next || self.resend.is_some() {
            // Old news, or news of a gap that is being filled.
            return Ok(());
        }
        self.start_resend(config.recovery == Recovery::GoBackN, config)
    }

    /// The peer has no receive for `expected`.
    ///
    /// # Errors
    /// When there were too many attempts without progress.
    pub(crate) fn handle_not_ready(
        &mut self,
        expected: u64,
        pause: Duration,
        now: Instant,
        config: &NicConfig,
    ) -> Result<(), Exhausted> {
        self.acknowledge(expected, now, config.retry_timeout);
        if expected != self.una || self.una == self.next {
            return Ok(());
        }
        if let Some(most) = config.rnr_retry {
            if self.rnr_retries >= most {
                return Err(Exhausted);
            }
            self.rnr_retries += 1;
        }
        // Kept packets, the refused one among them, may have been refused since.
        let limit = (config.recovery == Recovery::GoBackN).then_some(self.next);
        self.resend = Some(Resend { cursor: self.una, limit, recover: self.next });
        self.pause_until = self.pause_until.max(now + pause);
        self.deadline = None;
        Ok(())
    }

    /// Whether the time for progress is over; then everything that the peer is not known to keep is sent again.
    ///
    /// # Errors
    /// When there were too many attempts without progress.
    pub(crate) fn handle_timer(&mut self, now: Instant, config: &NicConfig) -> Result<bool, Exhausted> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return Ok(false);
        }
        self.start_resend(true, config)?;
        self.deadline = Some(now + config.retry_timeout);
        Ok(true)
    }

    fn start_resend(&mut self, everything: bool, config: &NicConfig) -> Result<(), Exhausted> {
        if self.retries >= config.retry_count {
            return Err(Exhausted);
        }
        self.retries += 1;
        self.resend = Some(Resend { cursor: self.una, limit: everything.then_some(self.next), recover: self.next });
        Ok(())
    }

    /// Panics if an invariant does not hold.
    #[cfg(test)]
    pub(crate) fn check(&self, window: u64) {
        assert!(self.una <= self.next && self.next <= self.end, "{self:?}");
        assert!(self.next - self.una <= window, "{self:?}");
        assert!(self.sacked.iter().all(|psn| (self.una + 1..self.next).contains(psn)), "{self:?}");
        let mut at = self.queue.front().map_or(self.end, |r| r.first);
        for request in &self.queue {
            assert!(request.first == at && request.packets > 0, "{self:?}");
            at += request.packets;
        }
        assert_eq!(at, self.end, "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(recovery: Recovery) -> NicConfig {
        NicConfig { recovery, mtu_bytes: 10, retry_count: 3, rnr_retry: Some(3), ..NicConfig::ideal(1_000_000_000) }
    }

    fn post(requester: &mut Requester, len: u32) {
        let verb = Verb::Send { imm: None };
        let id = WorkRequestId(0);
        let posting = Posting { id, verb, len, signaled: true, releases: 1, ready_at: Instant::ZERO };
        requester.post(posting, 10);
    }

    fn send_all(requester: &mut Requester, window: u64) -> Vec<u64> {
        let mut sent = Vec::new();
        while let Some((psn, _)) = requester.next_packet(window) {
            requester.sent(psn, Instant::ZERO, Duration::from_nanos(100));
            sent.push(psn);
        }
        sent
    }

    // Breaks if go-back-N does not repeat everything from the gap on, or selective repeat more than the gap.
    #[test]
    fn the_two_kinds_of_recovery() {
        for (recovery, again) in [(Recovery::GoBackN, vec![2, 3, 4, 5]), (Recovery::SelectiveRepeat, vec![2, 4])] {
            let config = config(recovery);
            let mut requester = Requester::default();
            post(&mut requester, 60);
            assert_eq!(send_all(&mut requester, 8), [0, 1, 2, 3, 4, 5]);
            let kept = |psn| (recovery == Recovery::SelectiveRepeat).then_some(psn);
            for psn in [3, 5] {
                assert_eq!(requester.handle_gap(2, kept(psn), Instant::ZERO, &config), Ok(()));
            }
            assert_eq!(send_all(&mut requester, 8), again, "{recovery:?}");
        }
    }

    // Breaks if a packet that the peer kept and then refused, its refusal having been lost, counts as kept for ever.
    #[test]
    fn kept_and_then_refused_is_sent_again() {
        let config = config(Recovery::SelectiveRepeat);
        let mut requester = Requester::default();
        post(&mut requester, 30);
        send_all(&mut requester, 8);
        assert_eq!(requester.handle_gap(0, Some(1), Instant::ZERO, &config), Ok(()));
        send_all(&mut requester, 8);
        requester.acknowledge(1, Instant::ZERO, config.retry_timeout);
        let late = Instant::ZERO + config.retry_timeout;
        assert_eq!(requester.handle_timer(late, &config), Ok(true));
        assert_eq!(send_all(&mut requester, 8), [1, 2]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Post(u32),
        Send,
        Ack(u64),
        Gap(u64, Option<u64>),
        NotReady(u64),
        Timer(u64),
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..100).prop_map(Step::Post),
            Just(Step::Send),
            Just(Step::Send),
            (0u64..60).prop_map(Step::Ack),
            (0u64..60, prop::option::of(0u64..60)).prop_map(|(e, k)| Step::Gap(e, k)),
            (0u64..60).prop_map(Step::NotReady),
            (0u64..1 << 28).prop_map(Step::Timer),
        ]
    }

    proptest! {
        // Breaks if any order of events, true or forged, breaks an invariant.
        #[test]
        fn invariants_hold(steps in prop::collection::vec(steps(), 0..100), window in 1u64..20, selective: bool) {
            let config = config(if selective { Recovery::SelectiveRepeat } else { Recovery::GoBackN });
            let mut requester = Requester::default();
            let mut now = Instant::ZERO;
            for step in steps {
                match step {
                    Step::Post(len) => post(&mut requester, len),
                    Step::Send => {
                        if let Some((psn, _)) = requester.next_packet(window) {
                            prop_assert!(requester.segment(psn, &config, window).is_some());
                            requester.sent(psn, now, config.retry_timeout);
                        }
                    }
                    Step::Ack(expected) => {
                        requester.acknowledge(expected, now, config.retry_timeout);
                    }
                    Step::Gap(expected, kept) => {
                        let _ = requester.handle_gap(expected, kept, now, &config);
                    }
                    Step::NotReady(expected) => {
                        let _ = requester.handle_not_ready(expected, Duration::from_nanos(5), now, &config);
                    }
                    Step::Timer(ns) => {
                        now = now + Duration::from_nanos(ns);
                        let _ = requester.handle_timer(now, &config);
                    }
                }
                while requester.pop_done().is_some() {}
                requester.check(window);
            }
        }
    }
}
