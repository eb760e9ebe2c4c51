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
const IDLE_LOOKS: u32 = 30;

/// The result of checking a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The peer has sent something, or owes no answer.
    None,
    /// Nothing has happened for long: the link rests until a message is sent, or has come.
    Rest,
    /// The peer is to be probed, unless it has been already: there may have been no room for the probe.
    Ask,
    /// It was probed, and has not answered: the link counts as dead.
    Dead,
}

/// The state of the check for silence of one link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SilenceWatch {
    /// The counts at the last check.
    heard: Heard,
    /// The time since which the peer owes an answer, or since which there has been no room for the probe.
    asked: Option<Instant>,
    /// The number of checks since the peer last had to answer.
    idle: u32,
}

/// Signs of life; each count only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Messages that have come.
    pub(crate) received: u64,
    /// Messages that the peer has announced as consumed.
    pub(crate) consumed: u64,
}

impl SilenceWatch {
    /// `outstanding`: the peer has not announced all messages as consumed, as far as it announces them.
    pub(crate) fn look(&mut self, now: Instant, heard: Heard, outstanding: bool) -> Silence {
        let news = core::mem::replace(&mut self.heard, heard) != heard;
        self.idle = if news || outstanding { 0 } else { self.idle + 1 };
        if news || !outstanding {
            self.asked = None;
            return if self.idle < IDLE_LOOKS { Silence::None } else { Silence::Rest };
        }
        let since = *self.asked.get_or_insert(now);
        if now.saturating_since(since) >= SILENCE_LIMIT {
            Silence::Dead
        } else {
            Silence::Ask
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn heard(received: u64, consumed: u64) -> Heard {
        Heard { received, consumed }
    }

    // Breaks if a link were given up although its peer is there, or kept for ever although it is not.
    #[test]
    fn only_who_is_asked_and_says_nothing_is_given_up() {
        let mut watch = SilenceWatch::default();
        assert_eq!(watch.look(at(0), heard(3, 2), true), Silence::None, "the peer has sent something");
        assert_eq!(watch.look(at(1000), heard(3, 2), true), Silence::Ask);
        assert_eq!(watch.look(at(10_999), heard(3, 2), true), Silence::Ask, "it has time to answer");
        assert_eq!(watch.look(at(11_000), heard(3, 2), true), Silence::Dead);
        // Any sign of life is an answer, and the time begins again.
        for answer in [heard(4, 2), heard(4, 3)] {
            assert_eq!(watch.look(at(11_000), answer, true), Silence::None);
            assert_eq!(watch.look(at(12_000), answer, true), Silence::Ask);
            assert_eq!(watch.look(at(21_999), answer, true), Silence::Ask);
        }
    }

    // Breaks if idle links were probed for ever.
    #[test]
    fn who_has_taken_everything_is_not_asked() {
        let mut watch = SilenceWatch::default();
        assert_eq!(watch.look(at(0), heard(1, 1), false), Silence::None);
        assert_eq!(watch.look(at(60_000), heard(1, 1), false), Silence::None);
        assert_eq!(watch.look(at(61_000), heard(1, 1), true), Silence::Ask);
        assert_eq!(watch.look(at(80_000), heard(1, 1), false), Silence::None);
        assert_eq!(watch.look(at(81_000), heard(1, 1), true), Silence::Ask, "that is another probe");
    }

    // Breaks if a process had to wake for a link that stays idle, or if the link rested while the peer owes an answer.
    #[test]
    fn a_link_that_is_idle_rests() {
        let mut watch = SilenceWatch::default();
        // The number of checks before it rests; 100: it does not.
        let mut idle = |heard, outstanding| {
            (0..100).take_while(|_| watch.look(at(0), heard, outstanding) != Silence::Rest).count()
        };
        assert_eq!(idle(heard(1, 1), false), 30, "the first has news");
        assert_eq!(idle(heard(1, 1), false), 0);
        assert_eq!(idle(heard(2, 1), false), 30);
        assert_eq!(idle(heard(2, 1), true), 100);
    }
}
