//! Whether a receive sleeps before it looks for bytes.
//!
//! A receive that finds none has made a system call in vain before it sleeps. So after one that had to sleep the next ones sleep
//! at once. A short connection has few of them, so a new connection goes by the first receives of others.

use std::sync::atomic::{AtomicU8, Ordering};

/// After a receive that had to sleep, so many sleep before they look. Then one looks again, because by then the bytes may be
/// there in time. Arbitrary.
const AHEAD: u8 = 15;

/// The receives of one connection, or the new connections whose receives are to sleep before they look.
#[derive(Default)]
pub struct Sleeps(AtomicU8);

/// Of connections that this process has accepted, and of others.
static FIRST: [Sleeps; 2] = [const { Sleeps(AtomicU8::new(0)) }; 2];

impl Sleeps {
    /// Of a new connection.
    pub fn of_new(accepted: bool) -> Sleeps {
        Sleeps(AtomicU8::new(if FIRST[usize::from(accepted)].take() { AHEAD } else { 0 }))
    }

    /// The first receive of a connection looked for bytes, and has to sleep for them.
    #[cold]
    pub fn expect_of_new(accepted: bool) {
        FIRST[usize::from(accepted)].expect();
    }

    /// A receive looked for bytes, and has to sleep for them: so will the next ones, it is assumed.
    pub fn expect(&self) {
        self.0.store(AHEAD, Ordering::Relaxed);
    }

    /// Whether the next receive is to sleep before it looks for bytes.
    #[inline]
    pub fn are_expected(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Whether this receive is to sleep before it looks for bytes. It makes one system call less then if it finds none,
    /// and one more if it does.
    pub fn take(&self) -> bool {
        let ahead = self.0.load(Ordering::Relaxed);
        if ahead > 0 {
            self.0.store(ahead - 1, Ordering::Relaxed);
        }
        ahead > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a receive that could find its bytes were never to look for them again.
    #[test]
    fn receives_sleep_ahead_after_one_that_had_to_until_one_looks_again() {
        let sleeps = Sleeps::default();
        assert!(!sleeps.take());
        sleeps.expect();
        assert_eq!((0..2 * AHEAD).filter(|_| sleeps.take()).count(), usize::from(AHEAD));
    }

    /// Breaks if each short connection looked for its first bytes in vain.
    #[test]
    fn the_first_receive_goes_by_those_of_other_connections() {
        let firsts = |accepted, of: u8| (0..of).filter(|_| Sleeps::of_new(accepted).take()).count();
        assert_eq!(firsts(true, 3), 0);
        Sleeps::expect_of_new(true);
        let sleeps = Sleeps::of_new(true);
        assert!(sleeps.take() && sleeps.take());
        assert_eq!(firsts(false, 3), 0, "the other end has another turn");
        assert_eq!(firsts(true, 2 * AHEAD), usize::from(AHEAD) - 1, "one looks again");
    }
}
