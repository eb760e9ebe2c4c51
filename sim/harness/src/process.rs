//! A simulated process: an endpoint on its device, an epoll instance, and the helper thread of the shim.
//!
//! The helper follows `core/preload/src/runtime/helper.rs`: it runs `progress` when it is kicked, when its completion
//! channel fires, when an anchor that it watches moves, or at the time that `progress` asked for; else it sleeps. A kick
//! counts only while it sleeps, as in the shim.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::middleware::{Fault, FaultConfig, Record, SplitMix64};
use netacc_device::{Armed, CompletionQueueId, Device, Instant};
use netacc_driver::{Endpoint, StreamCell};
use netacc_proto::Reason;
use netacc_socket::SwitchPatience;
use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::epoll::Epoll;
use crate::meter::Meter;
use crate::mutants::{Countdown, DeviceMutant};
use crate::network::{Net, Port};
use crate::plan::Plan;
use crate::{Broken, Check, Mutant, What};

/// Whether the helper sleeps, and whether it was woken.
#[derive(Default)]
struct HelperFlags {
    asleep: AtomicBool,
    kicked: AtomicBool,
}

/// A process that lives.
pub(crate) struct Process {
    pub(crate) port: Port,
    pub(crate) meter: Arc<Meter>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) epoll: Arc<Epoll>,
    /// The completion queue of the epoll instance.
    pub(crate) cq: CompletionQueueId,
    /// Streams whose promotion the applications asked for.
    pub(crate) promotions: Vec<Arc<StreamCell>>,
    /// When `progress` wants to be called again.
    pub(crate) timer: Option<Instant>,
    /// Descriptors that the library keeps for closed sockets; the kernel closes them if the process dies.
    pub(crate) duplicates: Vec<Arc<Descriptor>>,
    flags: Arc<HelperFlags>,
    /// Arming a queue found completions: look again at once.
    helper_again: bool,
    epoll_again: bool,
    pub(crate) switch_patience: SwitchPatience,
    shortage: Shortage,
}

/// Whether the process leaves its links for want of descriptors.
#[derive(Clone, Copy)]
enum Shortage {
    /// It has enough.
    Never,
    /// The helper has demoted its streams since then.
    Leaving(Instant),
    /// It is on TCP for good.
    Over,
}

/// As `EFFORT` of the library, and how often its helper looks meanwhile.
const SHORTAGE_EFFORT: Duration = Duration::from_secs(1);
const SHORTAGE_INTERVAL: Duration = Duration::from_millis(1);

/// The parts of a process.
pub(crate) struct Setup<'a> {
    pub(crate) net: &'a Net,
    pub(crate) plan: &'a Plan,
    pub(crate) seed: u64,
    pub(crate) mutant: Option<(Mutant, Countdown)>,
    pub(crate) record: Option<&'a Path>,
    pub(crate) number: usize,
}

impl Process {
    pub(crate) fn open(setup: &Setup<'_>) -> Check<Process> {
        let broken = |what: &str, e: &dyn std::fmt::Display| Broken::new(What::Panic, format!("{what}: {e}"));
        let port = setup.net.open(setup.plan, setup.number);
        let mut stack: Arc<dyn Device> = port.device();
        if let Some(faults) = &setup.plan.device_faults {
            let faults = FaultConfig { seed: faults.seed ^ setup.seed, ..faults.clone() };
            stack = Arc::new(Fault::new(stack, faults));
        }
        let mutant = setup.mutant.clone();
        let device_mutant = mutant.clone().map(|(mutant, countdown)| DeviceMutant::new(mutant, countdown));
        let meter = Arc::new(Meter::new(stack, device_mutant));
        let mut top: Arc<dyn Device> = meter.clone();
        if let Some(path) = setup.record {
            let path = format!("{}.{}.jsonl", path.display(), setup.number);
            let file = std::fs::File::create(&path).map_err(|e| broken(&path, &e))?;
            let writer = std::io::LineWriter::new(file);
            top = Arc::new(Record::start(top, writer, true).map_err(|e| broken(&path, &e))?);
        }
        let flags = Arc::new(HelperFlags::default());
        flags.asleep.store(true, Ordering::Relaxed);
        let wake = flags.clone();
        let nonces = Mutex::new(SplitMix64::new(setup.seed));
        let drop_edge = mutant.filter(|(m, _)| *m == Mutant::DropEdge).map(|(_, countdown)| countdown);
        let epoll = Arc::new(Epoll::new(drop_edge));
        let endpoint = Endpoint::new(
            top,
            port.connection_manager(),
            port.directory(),
            setup.plan.endpoint.clone(),
            epoll.clone(),
            Box::new(move || {
                if wake.asleep.swap(false, Ordering::Relaxed) {
                    wake.kicked.store(true, Ordering::Relaxed);
                }
            }),
            Box::new(move || {
                let mut rng = nonces.lock();
                let mut nonce = [0; 16];
                nonce[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
                nonce[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
                nonce
            }),
        )
        .map_err(|e| broken("endpoint", &e))?;
        let endpoint = Arc::new(endpoint);
        let cq = endpoint.device().create_cq().unwrap_or(endpoint.default_cq());
        epoll.attach(&endpoint, cq);
        Ok(Process {
            port,
            meter,
            endpoint,
            epoll,
            cq,
            promotions: Vec::new(),
            timer: None,
            duplicates: Vec::new(),
            flags,
            helper_again: true,
            epoll_again: true,
            switch_patience: SwitchPatience::new(),
            shortage: Shortage::Never,
        })
    }

    /// As the shim's `request_promotion`.
    pub(crate) fn request_promotion(&mut self, cell: Arc<StreamCell>) {
        self.promotions.push(cell);
        self.endpoint.need_helper();
    }

    /// The program has no descriptor left: the library's are given back.
    pub(crate) fn run_short(&mut self, now: Instant) {
        if matches!(self.shortage, Shortage::Never) {
            self.shortage = Shortage::Leaving(now);
            self.helper_again = true;
        }
    }

    /// The connection manager's descriptor became readable.
    pub(crate) fn connection_event(&mut self) {
        self.helper_again = true;
    }

    /// Whether the helper would wake by itself.
    pub(crate) fn helper_runnable(&self, now: Instant) -> bool {
        self.helper_again
            || self.port.has_events()
            || self.flags.kicked.load(Ordering::Relaxed)
            || !self.promotions.is_empty()
            || self.timer.is_some_and(|t| t <= now)
            || self.port.channel_ready(self.endpoint.control_cq())
            || self.epoll.helper_edges()
    }

    /// Why the helper and the application would run, for people.
    pub(crate) fn restlessness(&self, now: Instant) -> String {
        format!(
            "helper again={} kicked={} asked={} timer={:?} channel={} anchors={}; epoll again={} events={} channel={} {:?}",
            self.helper_again,
            self.flags.kicked.load(Ordering::Relaxed),
            self.promotions.len(),
            self.timer.map(|t| t.saturating_since(now)),
            self.port.channel_ready(self.endpoint.control_cq()),
            self.epoll.helper_edges(),
            self.epoll_again,
            self.epoll.has_events(),
            self.port.channel_ready(self.cq),
            self.endpoint.backlog()
        )
    }

    /// One turn of the helper's loop.
    pub(crate) fn helper(&mut self, now: Instant) {
        let cq = self.endpoint.control_cq();
        self.flags.asleep.store(false, Ordering::Relaxed);
        self.flags.kicked.store(false, Ordering::Relaxed);
        self.endpoint.device().disarm(cq);
        self.epoll.poll_as_helper(&self.endpoint);
        for cell in std::mem::take(&mut self.promotions) {
            if let Err(reason) = self.endpoint.promote(&cell) {
                self.endpoint.counters().reason(reason);
            }
        }
        self.timer = self.endpoint.progress(now);
        if let Shortage::Leaving(since) = self.shortage {
            let late = now.saturating_since(since) > SHORTAGE_EFFORT;
            if self.endpoint.leave_for_good(Reason::DescriptorLimit, now) || late {
                self.shortage = Shortage::Over;
            } else {
                let soon = now + SHORTAGE_INTERVAL;
                self.timer = Some(self.timer.map_or(soon, |timer| timer.min(soon)));
            }
        }
        self.flags.asleep.store(true, Ordering::Relaxed);
        let armed = self.endpoint.device().arm(cq);
        self.helper_again = armed == Armed::Pending || self.endpoint.has_work();
    }

    /// Whether an application asleep in `epoll_wait` would wake.
    pub(crate) fn epoll_runnable(&self) -> bool {
        self.epoll_again || self.epoll.has_events() || self.port.channel_ready(self.cq)
    }

    /// One `epoll_wait` that does not block, and going to sleep after it. Returns its report as `(tag, events)`.
    pub(crate) fn epoll_wait(&mut self, kernel_first: bool) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        self.endpoint.device().disarm(self.cq);
        self.endpoint.poll(self.cq);
        self.epoll.collect(&mut out);
        if out.is_empty() || kernel_first {
            self.epoll.kernel_events(&mut out);
            self.epoll.collect(&mut out);
        }
        self.epoll_again = self.endpoint.device().arm(self.cq) == Armed::Pending;
        out
    }

    /// The process is gone: the kernel closes what it had open.
    pub(crate) fn die(self, net: &Net) {
        net.crash(&self.port);
        self.epoll.clear();
        self.duplicates.iter().for_each(|d| d.close());
    }
}
