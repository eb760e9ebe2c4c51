//! How long a write that would not wait on TCP waits for the outgoing direction to change its path.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::LockedStream;

/// How long a call that would not wait on TCP waits for its stream to be on one path, where the peer has to act first.
/// Arbitrary: microseconds on an idle machine, several wake-ups on a busy one.
pub const SWITCH_PATIENCE: Duration = Duration::from_millis(10);

/// The same for a promotion for which only the peer's answer is missing, and for a link that has died. Arbitrary; far
/// longer than a peer that runs takes on a busy machine. A program that saw the socket writable and then cannot write
/// may take that for the end, as hiredis 1.0 does.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(1);

/// How long no write of the process waits for [`JOIN_PATIENCE`] after one has waited that long without success: the next
/// connection's peer is likely to be as far away. Arbitrary.
const BACK_OFF: Duration = Duration::from_secs(60);

/// The patience of a process's writes with changes of path, learned from the last long wait that had no success.
#[derive(Debug, Default)]
pub struct SwitchPatience {
    /// The time at which a write had waited for [`JOIN_PATIENCE`] without success, in nanoseconds; 0 for never.
    failed_at: AtomicU64,
}

impl SwitchPatience {
    /// The patience of a process in which no write has waited yet.
    pub const fn new() -> SwitchPatience {
        SwitchPatience { failed_at: AtomicU64::new(0) }
    }

    /// The patience of a write on this stream: longer if the change needs only the peer's action or the link has died,
    /// but not for one connection after the other.
    pub fn get(&self, stream: &LockedStream<'_>, now: Instant) -> Duration {
        let failed_at = self.failed_at.load(Ordering::Relaxed);
        let backs_off = failed_at != 0 && now.saturating_since(Instant::from_nanos(failed_at)) <= BACK_OFF;
        if !backs_off && (stream.proto().awaits_switch() || stream.has_failing_link()) {
            JOIN_PATIENCE
        } else {
            SWITCH_PATIENCE
        }
    }

    /// A write has waited for so long, until `now`, and the change has not come.
    pub fn record_failed(&self, waited: Duration, now: Instant) {
        if waited >= JOIN_PATIENCE {
            self.failed_at.store(now.as_nanos(), Ordering::Relaxed);
        }
    }
}
