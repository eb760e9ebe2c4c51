//! The tables of a fabric: devices, links, attempts to connect. One lock guards them all.

use std::collections::{BTreeMap, VecDeque};

use super::config::{DeliveryMode, LoopbackConfig};
use super::connecting::{Attempt, CmNotice, Refusal};
use super::id::{DeviceId, LinkId, Place};
use super::link::{Entry, Life, Link};
use super::streams::StreamTable;
use crate::{
    CmEvent, Completion, CompletionStatus, Memory, QueuePairId, Region, RemoteKey, RemoteRegion, WorkCompletion,
};

/// A completion queue. Invariant: a queue pair is in `ready` exactly when its `queued` is set.
#[derive(Default)]
pub(super) struct CqState {
    pub(super) ready: VecDeque<QueuePairId>,
    pub(super) armed: bool,
    /// A completion came while armed: the simulated channel is readable.
    pub(super) fired: bool,
}

pub(super) struct RegionState {
    pub(super) qp: QueuePairId,
    pub(super) memory: Memory,
    pub(super) remote: RemoteRegion,
}

pub(super) struct DeviceState {
    pub(super) config: LoopbackConfig,
    pub(super) cqs: Vec<CqState>,
    /// Entries stay until the whole link is forgotten; destroyed ends are told by their `life`.
    pub(super) qps: BTreeMap<QueuePairId, Place>,
    pub(super) regions: BTreeMap<u32, RegionState>,
    pub(super) registered_bytes: usize,
    pub(super) events: VecDeque<CmEvent>,
    pub(super) crashed: bool,
    pub(super) refusal: Option<Refusal>,
    pub(super) send_depth: u32,
    pub(super) recv_depth: u32,
    next_qp: u32,
    next_region: u32,
}

pub(super) struct State {
    pub(super) mode: DeliveryMode,
    pub(super) devices: Vec<DeviceState>,
    pub(super) links: BTreeMap<LinkId, Link>,
    pub(super) attempts: BTreeMap<u64, Attempt>,
    pub(super) notices: VecDeque<CmNotice>,
    /// Key: local and remote address as the publisher sees them.
    pub(super) directory: StreamTable<DeviceId>,
    pub(super) next_link: u32,
    pub(super) next_attempt: u64,
}

impl State {
    pub(super) fn new(mode: DeliveryMode, directory_capacity: usize) -> State {
        State {
            mode,
            devices: Vec::new(),
            links: BTreeMap::new(),
            attempts: BTreeMap::new(),
            notices: VecDeque::new(),
            directory: StreamTable::new(directory_capacity),
            next_link: 1,
            next_attempt: 1,
        }
    }

    pub(super) fn open(&mut self, config: LoopbackConfig) -> DeviceId {
        let id = DeviceId(self.devices.len() as u32);
        self.devices.push(DeviceState {
            send_depth: config.capabilities.max_send_wr,
            recv_depth: config.capabilities.max_recv_wr,
            config,
            cqs: Vec::new(),
            qps: BTreeMap::new(),
            regions: BTreeMap::new(),
            registered_bytes: 0,
            events: VecDeque::new(),
            crashed: false,
            refusal: None,
            // Numbers of different devices differ, so that a handle used on the wrong device is noticed.
            next_qp: (id.0 + 1) << 16,
            next_region: (id.0 + 1) << 16,
        });
        id
    }

    /// A device that exists and lives.
    pub(super) fn live(&self, id: DeviceId) -> Option<&DeviceState> {
        self.devices.get(id.0 as usize).filter(|d| !d.crashed)
    }

    pub(super) fn device_mut(&mut self, id: DeviceId) -> &mut DeviceState {
        &mut self.devices[id.0 as usize]
    }

    pub(super) fn config(&self, id: DeviceId) -> &LoopbackConfig {
        &self.devices[id.0 as usize].config
    }

    /// The end behind a handle, unless it was destroyed.
    pub(super) fn place(&self, device: DeviceId, qp: QueuePairId) -> Option<Place> {
        let place = *self.live(device)?.qps.get(&qp)?;
        (self.links[&place.link].ends[place.side].life != Life::Destroyed).then_some(place)
    }

    /// Queues a completion, reports its queue pair, and fires an armed channel.
    pub(super) fn complete(&mut self, at: Place, entry: Entry) {
        let Some(link) = self.links.get_mut(&at.link) else { return };
        let end = &mut link.ends[at.side];
        if end.life == Life::Destroyed {
            return;
        }
        end.completions.push_back(entry);
        let report = !std::mem::replace(&mut end.queued, true);
        let (qp, cq_id) = (end.qp, end.cq);
        let device = &mut self.devices[end.device.0 as usize];
        let cq = &mut device.cqs[cq_id.0 as usize];
        if report {
            cq.ready.push_back(qp);
        }
        cq.fired |= cq.armed;
    }

    pub(super) fn complete_send(
        &mut self,
        at: Place,
        id: crate::WorkRequestId,
        status: CompletionStatus,
        releases: u32,
    ) {
        let qp = self.links[&at.link].ends[at.side].qp;
        let wc = WorkCompletion { qp, status, completion: Completion::Send { id } };
        self.complete(at, Entry { wc, releases });
    }

    /// The bytes of `to`'s region that a peer names, or `None` if it may not write there.
    pub(super) fn remote_target(&self, to: Place, rkey: RemoteKey, offset: u64, len: u32) -> Option<(Memory, usize)> {
        let end = &self.links.get(&to.link)?.ends[to.side];
        let region = self.devices[end.device.0 as usize].regions.get(&rkey.0)?;
        let position = usize::try_from(offset.checked_sub(region.remote.base)?).ok()?;
        let fits = position.checked_add(len as usize)? <= region.memory.len();
        (fits && region.qp == end.qp).then(|| (region.memory.clone(), position))
    }
}

impl DeviceState {
    pub(super) fn fresh_qp(&mut self) -> QueuePairId {
        self.next_qp = self.next_qp.wrapping_add(1);
        QueuePairId(self.next_qp)
    }

    pub(super) fn register(&mut self, qp: QueuePairId, len: u32) -> Region {
        self.next_region = self.next_region.wrapping_add(1);
        let key = self.next_region;
        let memory = Memory::heap(len as usize);
        // Far apart and never 0: an offset mistaken for an address, or the reverse, misses every region.
        let remote = RemoteRegion { rkey: RemoteKey(key), base: u64::from(key) << 32, len };
        self.registered_bytes += len as usize;
        self.regions.insert(key, RegionState { qp, memory: memory.clone(), remote });
        Region { memory, remote }
    }

    pub(super) fn unregister(&mut self, qp: QueuePairId, key: u32) {
        if self.regions.get(&key).is_some_and(|r| r.qp == qp) {
            if let Some(region) = self.regions.remove(&key) {
                self.registered_bytes -= region.memory.len();
            }
        }
    }
}
