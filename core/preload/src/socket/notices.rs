//! The notifications of MSG_ZEROCOPY on the error queue of a socket. If a connection may be on a link, its bytes are
//! copied, as the kernel itself does if a device cannot send from the program's memory (the loopback device, for
//! example). So a send is complete when it returns, and its notification, which reports a copy, is there at once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sends with MSG_ZEROCOPY, numbered as the kernel numbers them. The unreported ones form one range, because they
/// complete in order: the kernel merges them as well.
#[derive(Default)]
pub(super) struct Notices(AtomicU64);

/// First number that is not reported, and the next one to be assigned.
fn parts(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn word(first: u32, next: u32) -> u64 {
    u64::from(first) << 32 | u64::from(next)
}

impl Notices {
    /// One more send is complete.
    pub(super) fn add(&self) {
        self.update(|first, next| (first, next.wrapping_add(1)));
    }

    /// One more send was made by the kernel, which reports it.
    pub(super) fn pass_over(&self) {
        self.update(|_, next| (next.wrapping_add(1), next.wrapping_add(1)));
    }

    /// The unreported numbers, both inclusive. From now on they count as reported.
    pub(super) fn take(&self) -> Option<(u32, u32)> {
        let (first, next) = self.update(|_, next| (next, next));
        (first != next).then(|| (first, next.wrapping_sub(1)))
    }

    /// Whether there is anything to report.
    pub(super) fn pending(&self) -> bool {
        let (first, next) = parts(self.0.load(Ordering::Acquire));
        first != next
    }

    /// Continues another socket's numbers, with nothing to report.
    pub(super) fn go_on_from(&self, other: &Notices) {
        let (_, next) = parts(other.0.load(Ordering::Acquire));
        self.0.store(word(next, next), Ordering::Release);
    }

    fn update(&self, change: impl Fn(u32, u32) -> (u32, u32)) -> (u32, u32) {
        let changed = |old| {
            let (first, next) = parts(old);
            let (first, next) = change(first, next);
            Some(word(first, next))
        };
        // The change is never refused, so both arms are the value before it.
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed) {
            Ok(old) | Err(old) => parts(old),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreported_sends_are_one_range() {
        let notices = Notices::default();
        assert!(!notices.pending() && notices.take().is_none());
        notices.add();
        assert!(notices.pending());
        assert_eq!(notices.take(), Some((0, 0)));
        assert!(!notices.pending() && notices.take().is_none());
        (0..3).for_each(|_| notices.add());
        assert_eq!(notices.take(), Some((1, 3)));
    }

    #[test]
    fn numbers_wrap_around() {
        let notices = Notices(AtomicU64::new(word(u32::MAX, u32::MAX)));
        notices.add();
        notices.add();
        assert_eq!(notices.take(), Some((u32::MAX, 0)));
        notices.pass_over();
        notices.add();
        assert_eq!(notices.take(), Some((2, 2)));
    }

    #[test]
    fn another_holder_continues_the_numbers() {
        let (parent, child) = (Notices::default(), Notices::default());
        (0..5).for_each(|_| parent.add());
        child.go_on_from(&parent);
        assert!(!child.pending());
        child.add();
        assert_eq!(child.take(), Some((5, 5)));
    }
}
