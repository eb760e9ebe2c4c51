//! Links that fall silent without an error from their device.
//!
//! Some devices report an unreachable peer as late as TCP does: iWARP repeats unacknowledged bytes for a quarter of an
//! hour. So each side checks such a link at intervals. If a side has received nothing since the last check, and has
//! sent messages that the peer may not have consumed, it probes the peer; and it gives the link up if there is no
//! answer. A link whose messages are all consumed rests after some more checks; the checks begin again when a message
//! is sent, or has come.

use core::time::Duration;

use netacc_device::Instant;

/// The time between two checks of a link. Arbitrary: long for the peer that answers, short for the side that waits.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The time that a probed peer has for an answer. Arbitrary: a process that is stopped for longer loses its links, and
/// gets new ones; TCP continues meanwhile.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The number of checks of an idle link before it rests. Arbitrary: a process that computes for longer than that, and
/// handles no message meanwhile, loses the link if the peer writes to it then.
const IDLE_CHECKS: u32 = 30;

/// The result of checking a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The peer has sent something, or owes no answer.
    None,
    /// Nothing has happened for long: the link rests until a message is sent, or has come.
    Rest,
    /// The peer is to be probed, unless it has been already: there may have been no room for the probe.
    Probe,
    /// It was probed, and has not answered: the link counts as dead.
    Dead,
}

/// The state of the check for silence of one link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SilenceWatch {
    /// The counts at the last check.
    signs: LifeSigns,
    /// The time since which the peer owes an answer, or since which there has been no room for the probe.
    probed: Option<Instant>,
    /// The number of checks since the peer last had to answer.
    idle: u32,
}

/// Signs of life; each count only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LifeSigns {
    /// Messages that have come.
    pub(crate) received: u64,
    /// Messages that the peer has announced as consumed.
    pub(crate) consumed: u64,
}

impl SilenceWatch {
    /// `outstanding`: the peer has not announced all messages as consumed, as far as it announces them.
    pub(crate) fn check(&mut self, now: Instant, signs: LifeSigns, outstanding: bool) -> Silence {
        let news = core::mem::replace(&mut self.signs, signs) != signs;
        self.idle = if news || outstanding { 0 } else { self.idle + 1 };
        if news || !outstanding {
            self.probed = None;
            return if self.idle < IDLE_CHECKS { Silence::None } else { Silence::Rest };
        }
        let since = *self.probed.get_or_insert(now);
        if now.saturating_since(since) >= SILENCE_LIMIT {
            Silence::Dead
        } else {
            Silence::Probe
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn signs(received: u64, consumed: u64) -> LifeSigns {
        LifeSigns { received, consumed }
    }

    // Breaks if a link were given up although its peer is there, or kept for ever although it is not.
    #[test]
    fn only_a_probed_peer_that_stays_silent_is_given_up() {
        let mut watch = SilenceWatch::default();
        assert_eq!(watch.check(at(0), signs(3, 2), true), Silence::None, "the peer has sent something");
        assert_eq!(watch.check(at(1000), signs(3, 2), true), Silence::Probe);
        assert_eq!(watch.check(at(10_999), signs(3, 2), true), Silence::Probe, "it has time to answer");
        assert_eq!(watch.check(at(11_000), signs(3, 2), true), Silence::Dead);
        // Any sign of life is an answer, and the time begins again.
        for answer in [signs(4, 2), signs(4, 3)] {
            assert_eq!(watch.check(at(11_000), answer, true), Silence::None);
            assert_eq!(watch.check(at(12_000), answer, true), Silence::Probe);
            assert_eq!(watch.check(at(21_999), answer, true), Silence::Probe);
        }
    }

    // Breaks if idle links were probed for ever.
    #[test]
    fn a_peer_that_has_consumed_everything_is_not_probed() {
        let mut watch = SilenceWatch::default();
        assert_eq!(watch.check(at(0), signs(1, 1), false), Silence::None);
        assert_eq!(watch.check(at(60_000), signs(1, 1), false), Silence::None);
        assert_eq!(watch.check(at(61_000), signs(1, 1), true), Silence::Probe);
        assert_eq!(watch.check(at(80_000), signs(1, 1), false), Silence::None);
        assert_eq!(watch.check(at(81_000), signs(1, 1), true), Silence::Probe, "that is another probe");
    }

    // Breaks if a process had to wake for a link that stays idle, or if the link rested while the peer owes an answer.
    #[test]
    fn a_link_that_is_idle_rests() {
        let mut watch = SilenceWatch::default();
        // The number of checks before it rests; 100: it does not.
        let mut idle = |signs, outstanding| {
            (0..100).take_while(|_| watch.check(at(0), signs, outstanding) != Silence::Rest).count()
        };
        assert_eq!(idle(signs(1, 1), false), 30, "the first has news");
        assert_eq!(idle(signs(1, 1), false), 0);
        assert_eq!(idle(signs(2, 1), false), 30);
        assert_eq!(idle(signs(2, 1), true), 100);
    }
}
