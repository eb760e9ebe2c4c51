//! Everything that is drawn from the seed before a run begins.

use std::time::Duration;

use netacc_device::loopback::anchor::AnchorConfig;
use netacc_device::loopback::{DeliveryMode, LoopbackConfig};
use netacc_device::middleware::{FaultConfig, SplitMix64};
use netacc_driver::{EndpointConfig, Sharing, Spread};
use netacc_proto::{CacheConfig, PreSharedKey};

use crate::{Crowd, Options, Preset};

/// Of 1000 steps each, how many are faults of a kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultRates {
    pub(crate) kill: u16,
    pub(crate) crash: u16,
    pub(crate) limit: u16,
    pub(crate) refuse: u16,
    pub(crate) break_anchor: u16,
    /// A process runs short of descriptors, and leaves its links for good.
    pub(crate) shortage: u16,
}

/// Relative frequencies of the steps of applications and scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub(crate) write: u32,
    pub(crate) read: u32,
    pub(crate) peek: u32,
    pub(crate) shutdown: u32,
    pub(crate) close: u32,
    pub(crate) abort: u32,
    pub(crate) promote: u32,
    pub(crate) demote: u32,
    pub(crate) connect: u32,
    pub(crate) helper: u32,
    pub(crate) epoll: u32,
    pub(crate) poll: u32,
    pub(crate) fabric: u32,
    pub(crate) wire: u32,
    pub(crate) time: u32,
}

/// The draws of one run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) preset: Preset,
    pub(crate) processes: usize,
    /// Connections at the beginning, and in all.
    pub(crate) initial: usize,
    pub(crate) connections: usize,
    pub(crate) steps: u32,
    pub(crate) endpoint: EndpointConfig,
    pub(crate) anchor: AnchorConfig,
    pub(crate) device_faults: Option<FaultConfig>,
    pub(crate) faults: FaultRates,
    pub(crate) weights: Weights,
    /// Largest single read or write.
    pub(crate) chunk: usize,
    /// Bytes that each direction writes at most before the drain.
    pub(crate) volume: u64,
    /// The applications ask for promotion at once, as after `NACC_PROMOTE_AFTER=1`.
    pub(crate) eager: bool,
}

impl Plan {
    pub(crate) fn draw(seed: u64, options: &Options) -> Plan {
        let rng = &mut SplitMix64::new(seed ^ 0x9e1a_7d5c);
        let preset = Preset::DRAWN[rng.below(Preset::DRAWN.len())];
        let preset = options.preset.unwrap_or(preset);
        let ring_len = 4096u32 << rng.below(5);
        let expire = match rng.below(4) {
            0 => None,
            1 => Some(Duration::ZERO),
            _ => Some(Duration::from_millis(1 + rng.below(50) as u64)),
        };
        let endpoint = EndpointConfig {
            ring_len,
            message_len: (ring_len / 2) >> rng.below(4),
            sharing: Sharing::UpTo([1, 2, 8][rng.below(3)]),
            receive_depth: [8, 12, 16, 64][rng.below(4)],
            cache: CacheConfig { expire, max_all: 1 + rng.below(4), max_per: 1 + rng.below(3) },
            trust_hints: rng.below(2) == 0 && preset == Preset::Shm,
            key: None,
            stall_patience: (rng.below(2) == 0).then(|| Duration::from_millis(1 + rng.below(100) as u64)),
            // Drawn apart, so that seeds stay as they are.
            idle_after: Duration::from_millis(SplitMix64::new(seed ^ 0x1d1e).below(20) as u64),
        };
        let anchor = AnchorConfig {
            send_capacity: 64 << rng.below(11),
            receive_capacity: 64 << rng.below(11),
            mode: DeliveryMode::Explicit,
        };
        let processes = 2 + [0, 0, 0, 1, 2, 4, 6][rng.below(7)];
        let connections = 1 + rng.below(3 * processes);
        let chunk = [16, 200, 2000, ring_len as usize * 2][rng.below(4)];
        let steps = options.steps.unwrap_or(300 + rng.below(2500) as u32);
        let mut plan = Plan {
            preset,
            processes,
            initial: 1 + rng.below(connections),
            connections,
            steps,
            endpoint,
            anchor,
            device_faults: (rng.below(3) == 0).then(|| device_faults(rng)),
            faults: fault_rates(rng),
            weights: weights(rng),
            chunk,
            volume: (chunk as u64 * 40).clamp(2000, u64::from(ring_len) * 8),
            eager: rng.below(4) != 0,
        };
        plan.endpoint.key = PreSharedKey::new(b"the key of all simulated hosts").filter(|_| rng.below(3) == 0);
        if let Some(crowd) = options.crowded {
            plan.crowd(crowd, &mut SplitMix64::new(seed ^ 0x5ead_c10d));
        }
        plan
    }

    /// Few processes with many connections that come and go on shared links. Its draws are apart, so that seeds
    /// without it stay as they are.
    fn crowd(&mut self, crowd: Crowd, rng: &mut SplitMix64) {
        self.processes = 2 + rng.below(2);
        self.connections = 8 + rng.below(32);
        self.initial = 1 + rng.below(self.connections);
        let most = [4, 16, 64][rng.below(3)];
        self.endpoint.sharing = match crowd {
            Crowd::Configured => Sharing::UpTo(most),
            Crowd::Automatic => {
                let spread = Spread { dedicated: 1 + rng.below(3) as u16, most };
                Sharing::Automatic { mapped: spread, posted: spread }
            }
        };
        self.eager = true;
        self.weights.connect = self.weights.connect.max(10);
        self.weights.close = self.weights.close.max(1 + rng.below(6) as u32);
        self.weights.promote = self.weights.promote.max(20);
        self.faults.shortage = rng.below(4) as u16;
    }

    /// The preset's device in memory.
    pub(crate) fn device(&self) -> LoopbackConfig {
        match self.preset {
            Preset::Shm => LoopbackConfig::shm(),
            Preset::Erdma | Preset::Silent => LoopbackConfig::erdma(),
            Preset::Rxe | Preset::Nic => LoopbackConfig::soft_roce(),
        }
    }
}

fn device_faults(rng: &mut SplitMix64) -> FaultConfig {
    FaultConfig {
        seed: rng.next_u64(),
        queue_full_per_mille: [0, 20, 200][rng.below(3)],
        recv_queue_full_per_mille: [0, 0, 50][rng.below(3)],
        kill_after_posts: None,
        delay_polls: [0, 0, 3, 10][rng.below(4)],
        reorder_per_mille: [0, 300][rng.below(2)],
    }
}

fn fault_rates(rng: &mut SplitMix64) -> FaultRates {
    // A third of the runs has no faults at all, a third one kind, a third all.
    let mut draw = |most: usize| 1 + rng.below(most) as u16;
    let all = FaultRates {
        kill: draw(15),
        crash: draw(2),
        limit: draw(10),
        refuse: draw(5),
        break_anchor: draw(3),
        shortage: 0,
    };
    match rng.below(9) {
        0..=2 => FaultRates::default(),
        3 => FaultRates { crash: all.crash, ..Default::default() },
        4 => FaultRates { limit: all.limit, ..Default::default() },
        5 | 6 => FaultRates { kill: all.kill, ..Default::default() },
        _ => all,
    }
}

fn weights(rng: &mut SplitMix64) -> Weights {
    let endings = rng.below(3) != 0;
    let rng = std::cell::RefCell::new(rng);
    let some = |usual: u32| match rng.borrow_mut().below(4) {
        0 => usual / 3,
        1 | 2 => usual,
        _ => usual * 3,
    };
    // Conversations must live long enough to be promoted, and end often enough to show how they end.
    let rare = |most: u32| if endings { rng.borrow_mut().below(most as usize + 1) as u32 } else { 0 };
    Weights {
        write: some(120),
        read: some(150),
        peek: some(10),
        shutdown: rare(3),
        close: rare(4),
        abort: rare(1),
        promote: some(20),
        demote: some(6),
        connect: some(10),
        helper: some(90),
        epoll: some(120),
        poll: some(30),
        fabric: some(300),
        wire: some(200),
        time: some(20),
    }
}
