//! Messages on links that no thread watches: the peer may open another stream there.
//!
//! Such links report to the endpoint's common queue. Where peers can knock, a peer does that, and nobody need look at the
//! queue. A device without knocks can announce every message or none, and those of the program's own streams are many: each
//! would wake the helper, although a thread of the program takes the message. So the helper arms the queue, and after an
//! announcement it does not arm it again for a while: for longer each time, while announcements follow each other.
//!
//! Invariant: an OPEN on a link of the common queue is handled within [`PAUSE_MAX`], and at once on a link without other
//! messages. The helper wakes up at most once in each pause.

use std::ffi::c_int;
use std::time::Duration;

use netacc_device::{Armed, Instant};
use netacc_driver::Endpoint;

use crate::runtime::helper::UNWATCHED;
use crate::runtime::Runtime;

/// The first pause after an announcement, and the longest. Arbitrary: a connection that waits so long for a link goes on
/// by TCP meanwhile, and 20 wake-ups a second cost nothing that can be measured.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// An announcement that comes later than so many pauses after the queue was armed is the first one of a series.
const SERIES: u32 = 4;

/// When the queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// An announcement is awaited, since then.
    Armed(Instant),
    /// None is wanted until then.
    Paused(Instant),
}

/// The times at which the queue is armed.
#[derive(Debug)]
struct Pacing {
    phase: Phase,
    pause: Duration,
}

impl Pacing {
    fn new() -> Pacing {
        Pacing { phase: Phase::Paused(Instant::ZERO), pause: PAUSE }
    }

    /// Whether the queue is to be armed now.
    fn is_due(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Paused(until) if until <= now)
    }

    fn arm(&mut self, now: Instant) {
        self.phase = Phase::Armed(now);
    }

    /// An announcement has come.
    fn announced(&mut self, now: Instant) {
        let Phase::Armed(since) = self.phase else { return };
        let follows = now.saturating_since(since) < SERIES * self.pause;
        self.pause = if follows { (2 * self.pause).min(PAUSE_MAX) } else { PAUSE };
        self.phase = Phase::Paused(now + self.pause);
    }

    /// When the helper must call again even if nothing happens.
    fn next(&self) -> Option<Instant> {
        match self.phase {
            Phase::Armed(_) => None,
            Phase::Paused(until) => Some(until),
        }
    }
}

/// The helper's view of the common queue.
pub(super) struct Unwatched<'a> {
    rt: &'a Runtime,
    endpoint: &'a Endpoint,
    channel: c_int,
    pacing: Pacing,
}

impl<'a> Unwatched<'a> {
    /// `None` if the device needs none: its peers can knock, or the common queue is the helper's own.
    pub(super) fn new(rt: &'a Runtime, endpoint: &'a Endpoint) -> Option<Unwatched<'a>> {
        let common = endpoint.default_cq();
        if endpoint.device().capabilities().knock || common == endpoint.control_cq() {
            return None;
        }
        let channel = endpoint.device().channel_fd(common)?;
        // Threads that sleep on a link of the queue make its channel readable as well, hence no event that was not asked for.
        rt.helper.poller.add(channel, 0, UNWATCHED).then(|| Unwatched { rt, endpoint, channel, pacing: Pacing::new() })
    }

    /// Arms the queue if it is time. Returns when to call again.
    pub(super) fn advance(&mut self, now: Instant) -> Option<Instant> {
        if self.pacing.is_due(now) {
            self.pacing.arm(now);
            self.rt.helper.poller.change(self.channel, libc::EPOLLIN | libc::EPOLLONESHOT, UNWATCHED);
            if self.endpoint.device().arm(self.endpoint.default_cq()) == Armed::Pending {
                self.announced(now);
            }
        }
        self.pacing.next()
    }

    /// Something has come, or a thread that sleeps on a link of the queue was woken.
    pub(super) fn announced(&mut self, now: Instant) {
        self.pacing.announced(now);
        let common = self.endpoint.default_cq();
        self.endpoint.device().drain(common);
        self.endpoint.device().disarm(common);
        self.endpoint.poll(common);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The announcements of a second, if there is one `after` the queue was armed each time.
    fn announcements(pacing: &mut Pacing, begun: Instant, after: Duration) -> (u32, Duration) {
        let (mut now, mut count, mut longest) = (begun, 0, Duration::ZERO);
        while now < begun + Duration::from_secs(1) {
            let due = pacing.next().expect("paused");
            longest = longest.max(due.saturating_since(now));
            now = now.max(due);
            assert!(pacing.is_due(now));
            pacing.arm(now);
            assert_eq!(pacing.next(), None);
            now = now + after;
            pacing.announced(now);
            count += 1;
        }
        (count, longest)
    }

    /// Breaks if the helper wakes up for each message of a busy stream, or if an OPEN waits for long.
    #[test]
    fn a_busy_link_wakes_the_helper_twenty_times_a_second() {
        let (count, longest) = announcements(&mut Pacing::new(), Instant::ZERO, Duration::from_micros(5));
        assert!((20..=30).contains(&count), "{count}");
        assert_eq!(longest, PAUSE_MAX);
    }

    /// Breaks if an OPEN on a link that is used now and then waits as long as on one that is always used.
    #[test]
    fn a_link_that_is_used_now_and_then_is_looked_at_soon() {
        let mut pacing = Pacing::new();
        let (_, longest) = announcements(&mut pacing, Instant::ZERO, Duration::from_micros(5));
        assert_eq!(longest, PAUSE_MAX);
        let (_, longest) = announcements(&mut pacing, Instant::from_nanos(2_000_000_000), Duration::from_millis(300));
        assert_eq!(longest, PAUSE);
    }
}
