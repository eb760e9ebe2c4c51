//! Links that fall silent without a word from their device.
//!
//! Some devices say as little of a peer that is out of reach as TCP does: on iWARP what nobody acknowledges is repeated
//! for a quarter of an hour. So each side looks at such a link now and then. Who has heard nothing since the last look, and
//! cannot know that everything it sent was taken, asks; and gives the link up if there is no answer. A link of which all
//! was taken rests after some more looks, and nobody looks until something is sent, or has come.

use core::time::Duration;

use netacc_device::Instant;

/// How far apart two looks at a link are. Arbitrary: long for who answers, short for who waits.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a peer that was asked may say nothing. Arbitrary: a process that is stopped for longer loses its links, and
/// gets new ones; TCP goes on meanwhile.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// So many looks at a link that is idle, and it rests. Arbitrary: who computes for longer than that, and takes in nothing
/// meanwhile, is given up if it is written to then.
const IDLE_LOOKS: u32 = 30;

/// What a look at a link comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Something was heard, or there is nothing to hear of.
    None,
    /// Nothing has happened for long: the link rests until something is sent, or has come.
    Rest,
    /// The peer is to be asked, unless it is already: there may have been no room for that.
    Ask,
    /// It was asked, and has not answered: the link is as good as dead.
    Dead,
}

/// What was heard of one link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SilenceWatch {
    /// At the last look.
    heard: Heard,
    /// Since when the peer owes an answer, or there has been no room for asking.
    asked: Option<Instant>,
    /// Looks since there was something to hear of.
    idle: u32,
}

/// Signs of life: each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Messages that have come.
    pub(crate) received: u64,
    /// Messages that the peer has said to have consumed.
    pub(crate) consumed: u64,
}

impl SilenceWatch {
    /// `outstanding`: the peer is not known to have consumed all that it has to tell of.
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
        assert_eq!(watch.look(at(0), heard(3, 2), true), Silence::None, "something was heard");
        assert_eq!(watch.look(at(1000), heard(3, 2), true), Silence::Ask);
        assert_eq!(watch.look(at(10_999), heard(3, 2), true), Silence::Ask, "it has time to answer");
        assert_eq!(watch.look(at(11_000), heard(3, 2), true), Silence::Dead);
        // Any sign of life is an answer, and the time begins anew.
        for answer in [heard(4, 2), heard(4, 3)] {
            assert_eq!(watch.look(at(11_000), answer, true), Silence::None);
            assert_eq!(watch.look(at(12_000), answer, true), Silence::Ask);
            assert_eq!(watch.look(at(21_999), answer, true), Silence::Ask);
        }
    }

    // Breaks if idle links were asked for ever.
    #[test]
    fn who_has_taken_everything_is_not_asked() {
        let mut watch = SilenceWatch::default();
        assert_eq!(watch.look(at(0), heard(1, 1), false), Silence::None);
        assert_eq!(watch.look(at(60_000), heard(1, 1), false), Silence::None);
        assert_eq!(watch.look(at(61_000), heard(1, 1), true), Silence::Ask);
        assert_eq!(watch.look(at(80_000), heard(1, 1), false), Silence::None);
        assert_eq!(watch.look(at(81_000), heard(1, 1), true), Silence::Ask, "that is another question");
    }

    // Breaks if a process had to wake for a link that is idle for good, or rested while there is something to hear of.
    #[test]
    fn a_link_that_is_idle_rests() {
        let mut watch = SilenceWatch::default();
        // So many looks, and it rests; 100: it does not.
        let mut idle = |heard, outstanding| {
            (0..100).take_while(|_| watch.look(at(0), heard, outstanding) != Silence::Rest).count()
        };
        assert_eq!(idle(heard(1, 1), false), 30, "the first has news");
        assert_eq!(idle(heard(1, 1), false), 0);
        assert_eq!(idle(heard(2, 1), false), 30);
        assert_eq!(idle(heard(2, 1), true), 100);
    }
}
