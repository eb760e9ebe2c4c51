//! The [`Device`] of a simulated process.

use std::sync::Arc;

use netacc_device::{
    Armed, Capabilities, CompletionEvents, CompletionQueueId, Device, DeviceError, KernelOrder, Operation, Payload,
    PostError, QueuePairId, Region, WorkCompletion, WorkRequest,
};
use netacc_rnic::{NodeId, SendRequest, Verb};

use crate::cluster::Cluster;
use crate::config::HostConfig;
use crate::id::HostId;
use crate::state::{Posted, Source, State};

/// One simulated process's device. Opened by [`Cluster::open`]; all of its state lives in the cluster.
pub struct HostDevice {
    pub(crate) cluster: Cluster,
    pub(crate) host: HostId,
    config: HostConfig,
}

impl Cluster {
    /// The device of the process on a host.
    pub fn open(&self, host: HostId) -> Arc<HostDevice> {
        let config = self.with(|s| s.host(host).config.clone());
        Arc::new(HostDevice { cluster: self.clone(), host, config })
    }
}

impl HostDevice {
    /// Its host.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Whether the connection manager has an event. Replaces its descriptors.
    pub fn has_events(&self) -> bool {
        self.cluster.with(|s| !s.host(self.host).events.is_empty())
    }

    /// Whether the channel of `cq` would be readable. Replaces [`CompletionEvents::channel_fd`].
    pub fn channel_ready(&self, cq: CompletionQueueId) -> bool {
        self.cluster.with(|s| {
            let now = s.net.now();
            s.live(self.host).is_some_and(|host| host.cqs.is_readable(cq, now))
        })
    }

    fn permits(&self, state: &State, wr: &WorkRequest<'_>) -> bool {
        let known = match wr.payload {
            Payload::Region { region, .. } => {
                state.hosts[self.host.0 as usize].regions.get(region.remote.rkey).is_some()
            }
            Payload::Inline(_) => true,
            Payload::InPlace { .. } => false,
        };
        known && wr.fits(&self.config.capabilities)
    }

    fn post(&self, state: &mut State, qp: QueuePairId, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        let verb = match wr.operation {
            Operation::Write { rkey, offset, imm } => Verb::Write { rkey, remote: offset, imm },
            Operation::Send { imm } => Verb::Send { imm },
        };
        let (inline, source) = match wr.payload {
            Payload::Inline(bytes) => (true, Source::Inline(bytes.to_vec())),
            Payload::Region { region, offset, .. } => (false, Source::Region { memory: region.memory.clone(), offset }),
            Payload::InPlace { .. } => return Err(PostError::Invalid),
        };
        let WorkRequest { id, signaled, .. } = *wr;
        let request = SendRequest { id, verb, len: wr.payload.len(), inline, signaled };
        let now = state.net.now();
        let message = state.nic(self.host).post_send(now, qp, request)?;
        if let Some(outgoing) = state.outgoing.get_mut(&(NodeId(self.host.0), qp)) {
            outgoing.posted.push_back(Posted { message, id, signaled, source });
        }
        Ok(())
    }

    fn has_queue_pair(&self, state: &State, qp: QueuePairId) -> bool {
        state.live(self.host).is_some_and(|h| h.qps.contains_key(&qp))
    }
}

impl Device for HostDevice {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.config.capabilities
    }

    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError> {
        self.cluster.with(|s| {
            let host = s.host(self.host);
            let max = if host.crashed { 0 } else { self.config.capabilities.max_cq };
            host.cqs.create(max)
        })
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        self.cluster.with(|s| s.host(self.host).cqs.take(cq, out, |_| true))
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        self.cluster.with(|s| {
            if !self.has_queue_pair(s, qp) {
                return 0;
            }
            let now = s.net.now();
            let mut count = 0;
            while count < out.len() {
                let Some(wc) = s.nic(self.host).poll_completion(now, qp) else { break };
                s.forget_posted((NodeId(self.host.0), qp), &wc.completion, wc.status);
                out[count] = wc;
                count += 1;
            }
            count
        })
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        self.cluster.with(|s| {
            let moved = self.config.capabilities.rebind && s.host(self.host).cqs.rebind(qp, cq);
            moved.then_some(()).ok_or(DeviceError::Unknown { what: "queue pair or queue" })
        })
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        self.cluster.with(|s| {
            if !self.has_queue_pair(s, qp) {
                return Err(DeviceError::Unknown { what: "queue pair" });
            }
            let bytes = s.host(self.host).regions.checked_len(len).ok_or(DeviceError::MemoryLimit { wanted: len })?;
            let (region, registered_at) =
                s.register(self.host, qp, bytes).ok_or(DeviceError::Exhausted { what: "region" })?;
            // A thread that registers a region waits for it, and posts the messages that name the region after that.
            s.nic(self.host).defer_posts(qp, registered_at);
            Ok(region)
        })
    }

    fn free_region(&self, qp: QueuePairId, region: Region) {
        self.cluster.with(|s| s.unregister(self.host, qp, region.remote.rkey));
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        self.cluster.with(|s| {
            if !self.has_queue_pair(s, qp) {
                return Err(PostError::Dead);
            }
            let spare = self.config.capabilities.max_recv_wr - s.host(self.host).depths.recv;
            let room = s.nic(self.host).receive_room(qp).saturating_sub(spare);
            if count > room && s.nic(self.host).is_connected(qp) {
                return Err(PostError::QueueFull);
            }
            s.nic(self.host).post_recv(qp, count, 0)
        })
    }

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        self.cluster.with(|s| {
            if !self.has_queue_pair(s, qp) || !s.nic(self.host).is_connected(qp) {
                return Err(PostError::Dead);
            }
            if !wrs.iter().all(|wr| self.permits(s, wr)) {
                return Err(PostError::Invalid);
            }
            let spare = self.config.capabilities.max_send_wr - s.host(self.host).depths.send;
            let room = s.nic(self.host).send_room(qp).saturating_sub(spare) as usize;
            if room == 0 && !wrs.is_empty() {
                return Err(PostError::QueueFull);
            }
            let count = room.min(wrs.len());
            for wr in &wrs[..count] {
                self.post(s, qp, wr)?;
            }
            s.collect_results(self.host);
            Ok(count)
        })
    }

    fn fail_qp(&self, qp: QueuePairId) {
        self.cluster.with(|s| {
            if self.has_queue_pair(s, qp) {
                let now = s.net.now();
                s.nic(self.host).fail_qp(now, qp);
                s.collect_results(self.host);
            }
        });
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        self.cluster.with(|s| {
            if s.live(self.host).is_some() {
                s.destroy(self.host, qp);
            }
        });
    }
}

impl CompletionEvents for HostDevice {
    fn arm(&self, cq: CompletionQueueId) -> Armed {
        self.cluster.with(|s| {
            let now = s.net.now();
            let State { net, hosts, .. } = s;
            let nic = net.nic_mut(self.host.0 as usize);
            hosts[self.host.0 as usize].cqs.arm(cq, now, |qp| nic.has_completion(now, qp))
        })
    }

    fn disarm(&self, cq: CompletionQueueId) {
        self.cluster.with(|s| s.host(self.host).cqs.disarm(cq));
    }
}

impl KernelOrder for HostDevice {}
