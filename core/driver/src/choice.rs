//! Chooses the path of the streams to one service, where a link is not certain to be faster than the anchor.
//!
//! The side that opens streams measures how long the service takes to answer: from the end of a send to the receive
//! that follows it, on both paths. Both figures have the service's own time in them, so they are compared with one
//! another only. The choice is reluctant both ways. A link is left if its median is a quarter above the anchor's
//! ([`SLOWER`]), and it stays left only if fresh samples of the anchor confirm that. It is tried again, with one
//! stream, after a pause that doubles each time, and taken again only if it is no slower than the anchor.
//!
//! The caller may time anything that it times in the same way on both paths: the time to an answer, or the time of a
//! number of bytes in one direction. Streams that give no samples go onto the link.

use std::time::Duration;

use netacc_device::{Backoff, Instant};
use parking_lot::Mutex;

/// A link whose median is more than 5/4 of the anchor's is slower. Arbitrary: the medians of so few samples may differ
/// by this much on a busy machine, and a user would not notice the difference.
const SLOWER: (u64, u64) = (5, 4);
/// A median is taken of this many samples, the latest ones. Arbitrary.
const WINDOW: usize = 32;
/// Fewer samples are not significant. Arbitrary.
const LEAST: usize = 16;
/// A stream's promotion waits for samples of the anchor during this many operations: a stream that sends requests and
/// receives answers has given them by then, and any other stream will never give any.
const PATIENCE: u32 = 4 * LEAST as u32;
/// A longer time is not a round trip: the service has delayed its answer.
const LONGEST: Duration = Duration::from_secs(1);
/// The pause before the choice is checked again.
const PAUSE: Backoff = Backoff { first: Duration::from_secs(10), longest: Duration::from_secs(600) };
/// After so long without a verdict another stream is tried. Arbitrary.
const TRIAL: Duration = Duration::from_secs(10);

/// The path of a stream's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In the kernel's connection.
    Anchor,
    /// On a link.
    Link,
}

/// The decision about a stream that could be promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes onto the link.
    Promote,
    /// It stays for a few more operations, so that the anchor is measured.
    Measure,
    /// The link is slower.
    Stay,
}

/// The choice for the streams to one service. Shared by threads.
#[derive(Debug, Default)]
pub struct PathChoice {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    pause: Duration,
    anchor: Window,
    link: Window,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Streams go onto links; the link is not judged before this time.
    OnLink(Instant),
    /// Streams leave the link, whose median was this: the anchor's median now decides, if there is one in time.
    Leaving { link: u64, until: Instant },
    /// The link is slower, and is tried again at this time.
    OnAnchor(Instant),
    /// One stream goes onto the link to measure it; another one if that is not done by this time.
    Trying(Instant),
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            state: State::OnLink(Instant::ZERO),
            pause: PAUSE.first,
            anchor: Window::default(),
            link: Window::default(),
        }
    }
}

impl PathChoice {
    /// Whether to promote a stream that has done so many operations on its anchor. A caller that does not follow the
    /// verdict does no harm: another stream gets the same verdict later.
    pub fn judge(&self, operations: u32, now: Instant) -> Verdict {
        let mut inner = self.inner.lock();
        match inner.state {
            State::OnLink(_) if inner.anchor.median().is_none() && operations < PATIENCE => Verdict::Measure,
            State::OnLink(_) => Verdict::Promote,
            // No program sends requests and waits for answers any more.
            State::Leaving { until, .. } if now >= until => {
                inner.link.clear();
                inner.state = State::OnLink(now + inner.next_pause());
                Verdict::Promote
            }
            State::OnAnchor(until) | State::Trying(until) if now >= until => {
                inner.state = State::Trying(now + TRIAL);
                inner.link.clear();
                Verdict::Promote
            }
            State::Leaving { .. } | State::OnAnchor(_) | State::Trying(_) => Verdict::Stay,
        }
    }

    /// The service has answered after `took`, and the stream was on this path all the time. Returns whether the stream
    /// is to leave its link.
    pub fn record(&self, path: Path, took: Duration, now: Instant) -> bool {
        if took > LONGEST {
            return false;
        }
        let nanos = took.as_nanos() as u64;
        let mut inner = self.inner.lock();
        match path {
            Path::Anchor => {
                inner.anchor.push(nanos);
                inner.conclude_leaving(now);
                false
            }
            Path::Link => {
                inner.link.push(nanos);
                inner.compare(now);
                matches!(inner.state, State::Leaving { .. } | State::OnAnchor(_))
            }
        }
    }

    /// The medians of the anchor and of the link, where there are samples enough.
    pub fn medians(&self) -> (Option<Duration>, Option<Duration>) {
        let inner = self.inner.lock();
        let of = |window: &Window| window.median().map(Duration::from_nanos);
        (of(&inner.anchor), of(&inner.link))
    }
}

impl Inner {
    /// New samples of the link.
    fn compare(&mut self, now: Instant) {
        let (Some(anchor), Some(link)) = (self.anchor.median(), self.link.median()) else { return };
        match self.state {
            State::OnLink(not_before) if now >= not_before && is_slower(link, anchor) => {
                // The anchor's samples may be old, from a time when the service had less load.
                self.state = State::Leaving { link, until: now + TRIAL };
                self.anchor.clear();
            }
            State::Trying(_) if link <= anchor => self.state = State::OnLink(now + self.next_pause()),
            State::Trying(_) => self.state = State::OnAnchor(now + self.next_pause()),
            _ => {}
        }
    }

    /// New samples of the anchor.
    fn conclude_leaving(&mut self, now: Instant) {
        if let (State::Leaving { link, .. }, Some(anchor)) = (self.state, self.anchor.median()) {
            let until = now + self.next_pause();
            self.state = if is_slower(link, anchor) { State::OnAnchor(until) } else { State::OnLink(until) };
            self.link.clear();
        }
    }

    fn next_pause(&mut self) -> Duration {
        let next = PAUSE.after(Some(self.pause));
        std::mem::replace(&mut self.pause, next)
    }
}

fn is_slower(link: u64, anchor: u64) -> bool {
    link * SLOWER.1 > anchor * SLOWER.0
}

/// The latest samples, in nanoseconds; each at most [`LONGEST`].
#[derive(Debug, Default)]
struct Window {
    samples: [u64; WINDOW],
    pushed: usize,
}

impl Window {
    fn push(&mut self, nanos: u64) {
        self.samples[self.pushed % WINDOW] = nanos;
        self.pushed += 1;
    }

    fn clear(&mut self) {
        self.pushed = 0;
    }

    /// `None`: too few.
    fn median(&self) -> Option<u64> {
        let len = self.pushed.min(WINDOW);
        if len < LEAST {
            return None;
        }
        let mut sorted = self.samples;
        let (_, median, _) = sorted[..len].select_nth_unstable(len / 2);
        Some(*median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: u64 = 1000;

    /// A clock, and a service that answers after so long on each path.
    struct Bench {
        choice: PathChoice,
        now: Instant,
        anchor: u64,
        link: u64,
    }

    impl Bench {
        fn new(anchor: u64, link: u64) -> Bench {
            Bench { choice: PathChoice::default(), now: Instant::from_nanos(1), anchor, link }
        }

        /// The anchor was measured, so streams go onto the link.
        fn on_link(anchor: u64, link: u64) -> Bench {
            let mut b = Bench::new(anchor, link);
            b.exchange(Path::Anchor, WINDOW);
            assert_eq!(b.judge(), Verdict::Promote);
            b
        }

        /// The link was left because it is slower, which fresh samples of the anchor have confirmed.
        fn on_anchor(anchor: u64, link: u64) -> Bench {
            let mut b = Bench::on_link(anchor, link);
            assert!(b.exchange(Path::Link, LEAST));
            b.exchange(Path::Anchor, LEAST);
            assert_eq!(b.judge(), Verdict::Stay);
            b
        }

        /// Makes so many requests and answers; returns whether the stream is to leave its link.
        fn exchange(&mut self, path: Path, times: usize) -> bool {
            (0..times).any(|_| {
                let took = Duration::from_nanos(match path {
                    Path::Anchor => self.anchor,
                    Path::Link => self.link,
                });
                self.now = self.now + took;
                self.choice.record(path, took, self.now)
            })
        }

        fn judge(&self) -> Verdict {
            self.choice.judge(u32::MAX, self.now)
        }

        fn pass(&mut self, time: Duration) {
            self.now = self.now + time;
        }
    }

    #[test]
    fn the_anchor_is_measured_before_the_first_promotion() {
        let mut b = Bench::new(50 * US, 10 * US);
        assert_eq!(b.choice.judge(2, b.now), Verdict::Measure);
        assert_eq!(
            b.choice.judge(PATIENCE, b.now),
            Verdict::Promote,
            "a stream that never sends requests does not wait"
        );
        b.exchange(Path::Anchor, LEAST - 1);
        assert_eq!(b.choice.judge(2, b.now), Verdict::Measure);
        b.exchange(Path::Anchor, 1);
        assert_eq!(b.choice.judge(2, b.now), Verdict::Promote);
    }

    #[test]
    fn a_faster_link_stays_and_so_does_one_that_is_hardly_slower() {
        for link in [10 * US, 100 * US, 124 * US] {
            let mut b = Bench::on_link(100 * US, link);
            assert!(!b.exchange(Path::Link, 1000), "{link}");
            assert_eq!(b.judge(), Verdict::Promote);
        }
    }

    #[test]
    fn a_slower_link_is_left_and_tried_again_after_growing_pauses() {
        let mut b = Bench::on_link(100 * US, 200 * US);
        assert!(b.exchange(Path::Link, LEAST));
        assert_eq!(b.judge(), Verdict::Stay);
        assert!(b.choice.record(Path::Link, Duration::from_micros(200), b.now), "every other stream leaves too");
        b.exchange(Path::Anchor, LEAST);
        let mut pause = PAUSE.first;
        for _ in 0..10 {
            b.pass(pause - Duration::from_millis(1));
            assert_eq!(b.judge(), Verdict::Stay);
            b.pass(Duration::from_millis(1));
            assert_eq!(b.judge(), Verdict::Promote);
            assert_eq!(b.judge(), Verdict::Stay, "one stream is enough");
            assert!(b.exchange(Path::Link, LEAST));
            pause = PAUSE.after(Some(pause));
        }
    }

    #[test]
    fn a_link_that_has_become_as_fast_is_taken_again() {
        let mut b = Bench::on_anchor(100 * US, 200 * US);
        b.pass(PAUSE.first);
        assert_eq!(b.judge(), Verdict::Promote);
        b.link = 99 * US;
        assert!(!b.exchange(Path::Link, WINDOW));
        assert_eq!(b.judge(), Verdict::Promote);
    }

    #[test]
    fn a_service_that_has_more_to_do_does_not_lose_its_link() {
        let mut b = Bench::on_link(100 * US, 50 * US);
        b.exchange(Path::Link, WINDOW);
        (b.anchor, b.link) = (1000 * US, 500 * US);
        assert!(b.exchange(Path::Link, WINDOW), "it is slower as far as the samples go");
        assert_eq!(b.judge(), Verdict::Stay);
        b.exchange(Path::Anchor, LEAST);
        assert_eq!(b.judge(), Verdict::Promote, "but so is the anchor");
        assert!(!b.exchange(Path::Link, 1000));
    }

    #[test]
    fn a_failed_trial_is_repeated() {
        let mut b = Bench::on_anchor(100 * US, 200 * US);
        b.pass(PAUSE.first);
        assert_eq!(b.judge(), Verdict::Promote);
        b.pass(TRIAL - Duration::from_nanos(1));
        assert_eq!(b.judge(), Verdict::Stay);
        b.pass(Duration::from_nanos(1));
        assert_eq!(b.judge(), Verdict::Promote);
    }

    #[test]
    fn an_idle_service_gets_its_link_back() {
        let mut b = Bench::on_link(100 * US, 200 * US);
        assert!(b.exchange(Path::Link, LEAST));
        b.pass(TRIAL);
        assert_eq!(b.judge(), Verdict::Promote);
    }

    #[test]
    fn answers_that_were_kept_back_do_not_count() {
        let mut b = Bench::on_link(100 * US, 2_000_000 * US);
        assert!(!b.exchange(Path::Link, 1000));
        assert_eq!(b.choice.medians(), (Some(Duration::from_micros(100)), None));
    }

    proptest! {
        /// However much the times vary, streams are not moved to and fro: each pause allows one change there and one
        /// back.
        #[test]
        fn changes_are_as_rare_as_the_pauses_allow(times in prop::collection::vec((1..100_000u64, 1..100_000u64), 1..200)) {
            let mut b = Bench::new(1, 1);
            let (mut on_link, mut left) = (false, 0);
            for (anchor, link) in times {
                (b.anchor, b.link) = (anchor * US, link * US);
                if on_link {
                    on_link = !b.exchange(Path::Link, WINDOW);
                    left += usize::from(!on_link);
                } else {
                    b.exchange(Path::Anchor, WINDOW);
                    on_link = b.judge() == Verdict::Promote;
                }
            }
            let pauses = std::iter::successors(Some(PAUSE.first), |pause| Some(PAUSE.after(Some(*pause))));
            let least: Duration = pauses.take(left.saturating_sub(1)).sum();
            prop_assert!(least <= Duration::from_nanos(b.now.as_nanos()), "left {left} times in {:?}", b.now);
        }
    }
}
