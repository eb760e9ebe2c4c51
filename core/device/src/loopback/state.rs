//! The tables of a fabric: devices, links, attempts to connect. One lock guards them all.

use std::collections::{BTreeMap, VecDeque};

use super::config::{DeliveryMode, LoopbackConfig};
use super::connecting::{Attempt, CmNotice};
use super::id::{DeviceId, LinkId, Place};
use super::link::{Entry, Life, Link};
use crate::tables::{CompletionQueues, QueueDepths, Refusal, Regions, StreamTable};
use crate::{CmEvent, Completion, CompletionStatus, Instant, Memory, QueuePairId, Region, RemoteKey, WorkCompletion};

pub(super) struct DeviceState {
    pub(super) config: LoopbackConfig,
    pub(super) cqs: CompletionQueues,
    /// Entries stay until the whole link is forgotten; the `life` of an end shows whether it was destroyed.
    pub(super) qps: BTreeMap<QueuePairId, Place>,
    pub(super) regions: Regions,
    pub(super) events: VecDeque<CmEvent>,
    pub(super) crashed: bool,
    pub(super) refusal: Option<Refusal>,
    pub(super) depths: QueueDepths,
    next_qp: u32,
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
        // Numbers of different devices differ, so that the use of a handle on the wrong device is detected.
        let first = (id.0 + 1) << 16;
        self.devices.push(DeviceState {
            depths: QueueDepths::of(&config.capabilities),
            regions: Regions::new(first, config.memory_limit_bytes),
            config,
            cqs: CompletionQueues::default(),
            qps: BTreeMap::new(),
            events: VecDeque::new(),
            crashed: false,
            refusal: None,
            next_qp: first,
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
        // There is no time here.
        self.devices[end.device.0 as usize].cqs.report(end.qp, Instant::ZERO);
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
        self.devices[end.device.0 as usize].regions.target(end.qp, rkey, offset, len)
    }
}

impl DeviceState {
    pub(super) fn fresh_qp(&mut self) -> QueuePairId {
        self.next_qp = self.next_qp.wrapping_add(1);
        QueuePairId(self.next_qp)
    }

    pub(super) fn register(&mut self, qp: QueuePairId, len: u32) -> Region {
        let remote = self.regions.name(len);
        self.regions.add(qp, remote)
    }
}
