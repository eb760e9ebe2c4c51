//! The processor from which the kernel has brought a datagram lately. A receiver that spins there stands in the way of its own
//! sender, and sleeps at once instead.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::os::processor;

/// Not known: the next datagram of the kernel's shows it.
const UNKNOWN: u64 = u64::MAX;

/// Where the sender of a socket's latest datagram by the kernel ran.
pub(super) struct Whereabouts(AtomicU64);

impl Default for Whereabouts {
    fn default() -> Whereabouts {
        Whereabouts(AtomicU64::new(UNKNOWN))
    }
}

impl Whereabouts {
    /// It ran there; `None`: it has not said.
    pub(super) fn learn(&self, processor: Option<u32>) {
        self.0.store(processor.map_or(UNKNOWN, u64::from), Ordering::Relaxed);
    }

    /// Whether it is the calling thread's processor.
    //= spec §10.4.5
    //# A receiver on the same processor does not spin for the flow's next datagram, because the sender could not run
    //# meanwhile.
    #[inline]
    pub(super) fn are_here(&self) -> bool {
        let known = self.0.load(Ordering::Relaxed);
        known != UNKNOWN && processor::current().is_some_and(|here| u64::from(here) == known)
    }
}
