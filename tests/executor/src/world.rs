//! An executor's settings for the machines that it runs on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;
use std::time::Duration;

use netacc_program::Op;
use serde::{Deserialize, Serialize};

/// Addresses of the hosts of a program, and time limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct World {
    /// By host, round and round. Empty: 127.0.0.1 and up.
    pub(crate) addresses: Vec<Ipv4Addr>,
    /// The same for IPv6. Empty: `::1`, which has no neighbours.
    pub(crate) addresses6: Vec<Ipv6Addr>,
    /// The first and the last port that listeners are given; none: the kernel chooses.
    pub(crate) ports: Option<(u16, u16)>,
    /// The factor by which everything is slower than on an ordinary machine.
    pub(crate) slowness: u32,
    /// The time that the peer's kernel needs to answer. The worker waits so long after each step that makes it answer.
    /// The result is then as on the loopback, where a reset is there before the call that provoked it returns.
    pub(crate) settle_ms: u32,
}

impl Default for World {
    fn default() -> World {
        World { addresses: Vec::new(), addresses6: Vec::new(), ports: None, slowness: 1, settle_ms: 0 }
    }
}

/// A worker without progress for this time is stuck. Above every step's own waits.
const STUCK_AFTER: Duration = Duration::from_millis(2500);
/// How long a step waits for an outcome that the oracle saw at once. Arbitrary, far above any delay of a busy machine.
const PATIENCE: Duration = Duration::from_millis(1000);
/// How long a joined step may take. Far above the time of a correct one, below [`STUCK_AFTER`].
const JOIN_PATIENCE: Duration = Duration::from_millis(1800);

static SLOWNESS: OnceLock<u32> = OnceLock::new();

impl World {
    /// The address of a host.
    pub(crate) fn address(&self, host: u16, v6: bool) -> IpAddr {
        let host = usize::from(host);
        if v6 {
            let known = self.addresses6.get(host % self.addresses6.len().max(1));
            IpAddr::V6(known.copied().unwrap_or(Ipv6Addr::LOCALHOST))
        } else {
            let known = self.addresses.get(host % self.addresses.len().max(1));
            IpAddr::V4(known.copied().unwrap_or(Ipv4Addr::new(127, 0, 0, 1 + host as u8)))
        }
    }

    /// Sets [`patience`] and [`join_patience`], in a process that is a worker from now on.
    pub(crate) fn apply_patience(&self) {
        let _ = SLOWNESS.set(self.slowness);
    }

    /// Waits after a step that the peer's kernel may answer, because no call shows the answer.
    pub(crate) fn let_answer(&self, op: &Op) {
        let provokes = matches!(
            op,
            Op::Connect { .. }
                | Op::Send { .. }
                | Op::SendAll { .. }
                | Op::Fill { .. }
                | Op::Shutdown { .. }
                | Op::Close { .. }
                | Op::Dup { .. }
                | Op::Exec
                | Op::Exit
                | Op::Kill
        );
        if provokes && self.settle_ms > 0 {
            std::thread::sleep(Duration::from_millis(self.settle_ms.into()));
        }
    }

    /// The time without progress of any worker after which one is stuck.
    pub(crate) fn stuck_after(&self) -> Duration {
        STUCK_AFTER * self.slowness
    }
}

fn slowness() -> u32 {
    SLOWNESS.get().copied().unwrap_or(1)
}

/// How long a step waits for an outcome that the oracle saw at once.
pub(crate) fn patience() -> Duration {
    PATIENCE * slowness()
}

/// How long a joined step may take.
pub(crate) fn join_patience() -> Duration {
    JOIN_PATIENCE * slowness()
}
