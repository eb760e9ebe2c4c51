//! The fabric: the operations of the owner of a simulation, rather than of a simulated process.

use std::sync::Arc;

use parking_lot::Mutex;

use super::config::DeliveryMode;
use super::deliveries::Delivery;
use super::id::{DeviceId, Place, QueuePairEnd};
use super::link::{Life, Source};
use super::state::State;
use crate::tables::{QueueDepths, Refusal};
use crate::Operation;

/// The ends that get the event of a killed link at once when delivery is immediate. The others get it when their
/// [`Delivery::Disconnect`] is delivered; with explicit delivery these are all ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notice {
    /// Both ends.
    #[default]
    Both,
    /// The named end only.
    Near,
    /// The other end only.
    Far,
    /// Neither end yet.
    Neither,
}

/// The way in which a link dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kill {
    /// The ends that get the event at once.
    pub notice: Notice,
    /// Bytes of the named end's next undelivered WRITE that were placed before the link died: a torn write.
    pub torn_bytes: u32,
}

/// A network of in-memory devices. Clones are handles to the same fabric.
#[derive(Clone)]
pub struct Fabric {
    state: Arc<Mutex<State>>,
}

/// Streams that the directory of a fabric holds by default. Arbitrary.
const DIRECTORY_CAPACITY: usize = 1 << 16;

impl Fabric {
    /// An empty fabric.
    pub fn new(mode: DeliveryMode) -> Fabric {
        Fabric { state: Arc::new(Mutex::new(State::new(mode, DIRECTORY_CAPACITY))) }
    }

    /// All deliveries that can happen next, in a fixed order: attempts to connect first, then links by age. Empty when
    /// the fabric is quiet.
    pub fn deliverable(&self) -> Vec<Delivery> {
        self.with(|s| s.deliverable())
    }

    /// Makes one delivery. `false`, and nothing done, if it cannot happen now.
    pub fn deliver(&self, delivery: Delivery) -> bool {
        self.with(|s| s.deliver(delivery))
    }

    /// Makes one delivery, picked by `choice` modulo their number; returns it, or `None` when the fabric is quiet.
    pub fn step(&self, choice: u64) -> Option<Delivery> {
        self.with(|s| {
            let all = s.deliverable();
            let picked = *all.get((choice % all.len().max(1) as u64) as usize)?;
            let happened = s.deliver(picked);
            debug_assert!(happened, "deliverable events can be delivered");
            Some(picked)
        })
    }

    /// Makes all deliveries, oldest link first, until the fabric is quiet; returns their number.
    pub fn deliver_all(&self) -> usize {
        let mut count = 0;
        while self.step(0).is_some() {
            count += 1;
        }
        count
    }

    /// Switches the mode of delivery. Work in flight stays so until its link is next used, or delivered.
    pub fn set_mode(&self, mode: DeliveryMode) {
        self.with(|s| s.mode = mode);
    }

    /// Kills the link of `end`: undelivered work is flushed, except work that a sender whose placement is delivery has
    /// posted. `false` if there is no such end, or it is dead already.
    pub fn kill(&self, end: QueuePairEnd, kill: Kill) -> bool {
        self.with(|s| {
            let Some(at) = s.place(end.device, end.qp).filter(|at| !s.links[&at.link].dead) else { return false };
            s.tear(at, kill.torn_bytes);
            let (near, far) = match kill.notice {
                Notice::Both => (false, false),
                Notice::Near => (false, true),
                Notice::Far => (true, false),
                Notice::Neither => (true, true),
            };
            s.kill(at.link, if at.side == 0 { [near, far] } else { [far, near] });
            s.deliver_if_immediate(at);
            true
        })
    }

    /// From now on nothing that is sent on the link of `end` reaches either end, and no error is reported: as on iWARP,
    /// when a firewall drops its packets. `false` if there is no such end, or its link is dead or silent already.
    pub fn silence(&self, end: QueuePairEnd) -> bool {
        self.with(|s| {
            let Some(at) = s.place(end.device, end.qp) else { return false };
            let Some(link) = s.links.get_mut(&at.link).filter(|link| !link.dead && !link.silent) else { return false };
            link.silent = true;
            true
        })
    }

    /// The process of a device dies: its queue pairs, its attempts and its directory entries go, and undelivered work
    /// with them (except bytes that it had placed). Every call on the device fails from now on.
    pub fn crash(&self, id: DeviceId) {
        self.with(|s| {
            let Some(device) = s.live(id) else { return };
            let places: Vec<Place> = device.qps.values().copied().collect();
            for at in places {
                if s.links.get(&at.link).is_some_and(|l| l.ends[at.side].life != Life::Destroyed) {
                    s.destroy_end(at);
                    s.deliver_if_immediate(at);
                }
            }
            s.forget_connector(id);
            let device = s.device_mut(id);
            device.crashed = true;
            device.events.clear();
            device.cqs.clear();
        });
    }

    /// Makes a device refuse connections, or accept them again (`None`).
    pub fn refuse_connects(&self, id: DeviceId, refusal: Option<Refusal>) {
        self.with(|s| {
            if s.live(id).is_some() {
                s.device_mut(id).refusal = refusal;
            }
        });
    }

    /// Shrinks the queues of a device below its capabilities, or restores them (they never grow beyond). Posted
    /// requests stay.
    pub fn limit_queues(&self, id: DeviceId, depths: QueueDepths) {
        self.with(|s| {
            if s.live(id).is_some() {
                let device = s.device_mut(id);
                device.depths = depths.within(&device.config.capabilities);
            }
        });
    }

    /// Bounds the number of streams in the directory.
    pub fn limit_directory(&self, capacity: usize) {
        self.with(|s| s.directory.limit(capacity));
    }

    /// Requests of a queue pair that were posted and have not been placed.
    pub fn in_flight(&self, end: QueuePairEnd) -> usize {
        self.with(|s| s.place(end.device, end.qp).map_or(0, |at| s.links[&at.link].ends[at.side].outbound.len()))
    }

    /// The other end of a link, while it exists.
    pub fn peer(&self, end: QueuePairEnd) -> Option<QueuePairEnd> {
        self.with(|s| {
            let at = s.place(end.device, end.qp)?.peer();
            let peer = &s.links[&at.link].ends[at.side];
            (peer.life != Life::Destroyed).then_some(QueuePairEnd { device: peer.device, qp: peer.qp })
        })
    }

    /// Runs `f` under the lock.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock())
    }
}

impl State {
    /// Places the first bytes of the next WRITE of `from`, and nothing else of it.
    fn tear(&self, from: Place, bytes: u32) {
        let Some(request) = self.links[&from.link].ends[from.side].outbound.front() else { return };
        let Operation::Write { rkey, offset, .. } = request.operation else { return };
        let len = |whole: u32| bytes.min(whole);
        let placed = match &request.source {
            Source::Inline(source) => self
                .remote_target(from.peer(), rkey, offset, source.len() as u32)
                .map(|(to, at)| to.write(at, &source[..len(source.len() as u32) as usize])),
            Source::Region { memory, offset: start, len: whole, .. } => self
                .remote_target(from.peer(), rkey, offset, *whole)
                .map(|(to, at)| memory.copy_to(*start, &to, at, len(*whole) as usize)),
            Source::InPlace { .. } | Source::Placed { .. } => None,
        };
        debug_assert_ne!(placed, Some(false), "bounds were checked by `remote_target`");
    }
}
