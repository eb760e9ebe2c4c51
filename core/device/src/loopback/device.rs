//! The [`Device`] of a simulated process.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::{LoopbackConfig, NoReceive, SlotRelease};
use super::fabric::Fabric;
use super::id::{DeviceId, LinkId, Place, QueuePairEnd};
use super::link::{consumes_receive, sides, Life, Link, Request, Source};
use super::state::{DeviceState, State};
use crate::{
    Armed, Capabilities, Completion, CompletionEvents, CompletionQueueId, Device, DeviceError, Instant, KernelOrder,
    Operation, Payload, PostError, QueuePairId, Region, RemoteRegion, WorkCompletion, WorkRequest,
};

/// One simulated process's device. Opened by [`Fabric::open`]; all of its state lives in the fabric.
pub struct LoopbackDevice {
    pub(super) fabric: Fabric,
    pub(super) id: DeviceId,
    config: LoopbackConfig,
}

impl Fabric {
    /// Adds a device.
    pub fn open(&self, config: LoopbackConfig) -> Arc<LoopbackDevice> {
        let id = self.with(|s| s.open(config.clone()));
        Arc::new(LoopbackDevice { fabric: self.clone(), id, config })
    }
}

impl LoopbackDevice {
    /// Its number on the fabric.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The fabric's name for one of its queue pairs.
    pub fn end(&self, qp: QueuePairId) -> QueuePairEnd {
        QueuePairEnd { device: self.id, qp }
    }

    /// Whether the channel of `cq` would be readable: it was armed, and completions came. Replaces
    /// [`CompletionEvents::channel_fd`].
    pub fn channel_ready(&self, cq: CompletionQueueId) -> bool {
        self.fabric.with(|s| s.live(self.id).is_some_and(|device| device.cqs.is_readable(cq, Instant::ZERO)))
    }

    /// Whether this device can execute a request at all, regardless of its peer.
    fn permits(&self, state: &State, at: Place, wr: &WorkRequest<'_>) -> bool {
        let caps = &self.config.capabilities;
        let known = match wr.payload {
            Payload::Region { region, .. } => {
                state.devices[self.id.0 as usize].regions.get(region.remote.rkey).is_some()
            }
            Payload::Inline(_) | Payload::InPlace { .. } => true,
        };
        if !known || !wr.fits(caps) {
            return false;
        }
        match wr.operation {
            Operation::Write { rkey, offset, .. } if caps.peer_memory || caps.placement_is_delivery => {
                // A device that reaches the peer's memory detects a false key of the peer at once, unless the peer is
                // gone.
                let alive = state.links[&at.link].ends[1 - at.side].life != Life::Destroyed;
                !alive || state.remote_target(at.peer(), rkey, offset, wr.payload.len()).is_some()
            }
            _ => true,
        }
    }

    /// Takes over one permitted request.
    fn enqueue(&self, state: &mut State, at: Place, wr: &WorkRequest<'_>) {
        let target = match wr.operation {
            Operation::Write { rkey, offset, .. } if self.config.capabilities.placement_is_delivery => {
                state.remote_target(at.peer(), rkey, offset, wr.payload.len())
            }
            _ => None,
        };
        let source = match target {
            Some((memory, position)) => {
                let placed = match wr.payload {
                    Payload::Inline(bytes) => memory.write(position, bytes),
                    Payload::Region { region, offset, len } => {
                        region.memory.copy_to(offset, &memory, position, len as usize)
                    }
                    Payload::InPlace { .. } => true,
                };
                debug_assert!(placed, "bounds were checked by `permits`");
                Source::Placed { len: wr.payload.len() }
            }
            None => match wr.payload {
                Payload::Inline(bytes) => Source::Inline(bytes.to_vec()),
                Payload::InPlace { len } => Source::InPlace { len },
                Payload::Region { region, offset, len } => {
                    Source::Region { rkey: region.remote.rkey, memory: region.memory.clone(), offset, len }
                }
            },
        };
        let Some(link) = state.links.get_mut(&at.link) else { return };
        let dead = link.dead;
        let [near, far] = sides(link, at.side);
        let releases = match (self.config.slot_release, wr.signaled) {
            (SlotRelease::OnDelivery, _) => 1,
            (SlotRelease::OnPolledCompletion, true) => std::mem::take(&mut near.unsignaled) + 1,
            (SlotRelease::OnPolledCompletion, false) => {
                near.unsignaled += 1;
                0
            }
        };
        near.send_slots += 1;
        if consumes_receive(&wr.operation) && self.config.no_receive == NoReceive::QueueFull {
            far.promised += 1;
        }
        let WorkRequest { id, operation, signaled, .. } = *wr;
        let request = Request { id, operation, source, signaled, releases, resolved: false };
        if dead {
            near.flushed.push_back(request)
        } else {
            near.outbound.push_back(request)
        }
    }

    /// The number of `wrs` that fit now.
    fn room(&self, state: &State, at: Place, wrs: &[WorkRequest<'_>]) -> usize {
        let link = &state.links[&at.link];
        let (near, far) = (&link.ends[at.side], &link.ends[1 - at.side]);
        let depth = state.devices[self.id.0 as usize].depths.send;
        let slots = depth.saturating_sub(near.send_slots) as usize;
        if self.config.no_receive != NoReceive::QueueFull || link.dead {
            return slots.min(wrs.len());
        }
        let mut receives = far.receives.saturating_sub(far.promised);
        let mut fits = |wr: &WorkRequest<'_>| {
            if !consumes_receive(&wr.operation) {
                return true;
            }
            let fits = receives > 0;
            receives = receives.saturating_sub(1);
            fits
        };
        wrs.iter().take(slots).take_while(|wr| fits(wr)).count()
    }
}

impl Device for LoopbackDevice {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.config.capabilities
    }

    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError> {
        self.fabric.with(|s| {
            let device = s.device_mut(self.id);
            let max = if device.crashed { 0 } else { self.config.capabilities.max_cq };
            device.cqs.create(max)
        })
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        self.fabric.with(|s| {
            let State { devices, links, .. } = s;
            let DeviceState { cqs, qps, .. } = &mut devices[self.id.0 as usize];
            // Some were drained meanwhile by a caller that did not take them here.
            cqs.take(cq, out, |qp| has_completions(links, qps, qp))
        })
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        self.fabric.with(|s| {
            let Some(at) = s.place(self.id, qp) else { return 0 };
            let Some(link) = s.links.get_mut(&at.link) else { return 0 };
            let end = &mut link.ends[at.side];
            let count = out.len().min(end.completions.len());
            for (slot, entry) in out.iter_mut().zip(end.completions.drain(..count)) {
                *slot = entry.wc;
                end.send_slots = end.send_slots.saturating_sub(entry.releases);
                if matches!(entry.wc.completion, Completion::Receive { .. }) {
                    end.receive_slots = end.receive_slots.saturating_sub(1);
                }
            }
            count
        })
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        self.fabric.with(|s| {
            let known = self.config.capabilities.rebind && s.place(self.id, qp).is_some();
            let moved = known && s.device_mut(self.id).cqs.rebind(qp, cq);
            moved.then_some(()).ok_or(DeviceError::Unknown { what: "queue pair or queue" })
        })
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        self.fabric.with(|s| {
            s.place(self.id, qp).ok_or(DeviceError::Unknown { what: "queue pair" })?;
            let device = s.device_mut(self.id);
            if device.regions.len() >= self.config.max_mr as usize {
                return Err(DeviceError::Exhausted { what: "region" });
            }
            let bytes = device.regions.checked_len(len).ok_or(DeviceError::MemoryLimit { wanted: len })?;
            Ok(device.register(qp, bytes))
        })
    }

    fn free_region(&self, qp: QueuePairId, region: Region) {
        self.fabric.with(|s| s.device_mut(self.id).regions.remove(qp, region.remote.rkey));
    }

    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        self.fabric.with(|s| {
            let at = s.place(self.id, qp).filter(|_| self.config.capabilities.peer_memory);
            let at = at.ok_or(DeviceError::Unknown { what: "queue pair with peer memory" })?;
            let target = s.remote_target(at.peer(), remote.rkey, remote.base, remote.len);
            let memory = target.and_then(|(memory, position)| memory.slice(position, remote.len as usize));
            memory.map(|memory| Region { memory, remote }).ok_or_else(|| {
                let link = &s.links[&at.link];
                let connected = !link.dead && link.ends[1 - at.side].life == Life::Alive;
                if connected {
                    DeviceError::NotRegistered
                } else {
                    DeviceError::Unknown { what: "queue pair" }
                }
            })
        })
    }

    /// The bytes are lost, so that a test finds a reader of them.
    fn discard(&self, qp: QueuePairId, remote: RemoteRegion, from: u32) {
        if let (Ok(region), true) = (self.window(qp, remote), from <= remote.len) {
            let _ = region.memory.zero(from as usize, (remote.len - from) as usize);
        }
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        self.fabric.with(|s| {
            let at = s.place(self.id, qp).ok_or(PostError::Dead)?;
            let depth = s.devices[self.id.0 as usize].depths.recv;
            let Some(link) = s.links.get_mut(&at.link) else { return Err(PostError::Dead) };
            let end = &mut link.ends[at.side];
            if end.life != Life::Alive {
                return Err(PostError::Dead);
            }
            if count > depth.saturating_sub(end.receive_slots) {
                return Err(PostError::QueueFull);
            }
            end.receive_slots += count;
            end.receives += count;
            s.deliver_if_immediate(at);
            Ok(())
        })
    }

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        self.fabric.with(|s| {
            let at = s.place(self.id, qp).ok_or(PostError::Dead)?;
            let link = &s.links[&at.link];
            let end = &link.ends[at.side];
            // No process would learn that the rest is lost.
            let nothing_is_flushed = self.config.capabilities.placement_is_delivery;
            if end.life != Life::Alive || link.dead && nothing_is_flushed {
                return Err(PostError::Dead);
            }
            let spoke_too_soon = self.config.capabilities.initiator_sends_first && at.side == 1 && !end.has_received;
            if !wrs.iter().all(|wr| self.permits(s, at, wr)) {
                return Err(PostError::Invalid);
            }
            let count = self.room(s, at, wrs);
            if count == 0 && !wrs.is_empty() {
                return Err(PostError::QueueFull);
            }
            for wr in &wrs[..count] {
                self.enqueue(s, at, wr);
            }
            if spoke_too_soon && count > 0 {
                s.kill(at.link, [false; 2]);
            }
            s.deliver_if_immediate(at);
            Ok(count)
        })
    }

    fn fail_qp(&self, qp: QueuePairId) {
        self.fabric.with(|s| {
            if let Some(at) = s.place(self.id, qp) {
                s.fail_end(at);
                s.deliver_if_immediate(at);
            }
        });
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        self.fabric.with(|s| {
            if let Some(at) = s.place(self.id, qp) {
                s.destroy_end(at);
                s.deliver_if_immediate(at);
            }
        });
    }
}

impl CompletionEvents for LoopbackDevice {
    fn arm(&self, cq: CompletionQueueId) -> Armed {
        self.fabric.with(|s| {
            let State { devices, links, .. } = s;
            let DeviceState { cqs, qps, .. } = &mut devices[self.id.0 as usize];
            cqs.arm(cq, Instant::ZERO, |qp| has_completions(links, qps, qp))
        })
    }

    fn disarm(&self, cq: CompletionQueueId) {
        self.fabric.with(|s| s.device_mut(self.id).cqs.disarm(cq));
    }
}

impl KernelOrder for LoopbackDevice {}

/// Whether a queue pair has completions that were not polled.
fn has_completions(links: &BTreeMap<LinkId, Link>, qps: &BTreeMap<QueuePairId, Place>, qp: QueuePairId) -> bool {
    let at = qps.get(&qp);
    at.and_then(|at| Some(&links.get(&at.link)?.ends[at.side])).is_some_and(|end| !end.completions.is_empty())
}
