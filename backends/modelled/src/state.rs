//! The tables of a cluster: hosts, their queues and regions, and the bytes in flight. One lock guards them all.

use std::collections::{BTreeMap, VecDeque};

use netacc_device::tables::{CompletionQueues, NumberMap, QueueDepths, Refusal, Regions, StreamTable};
use netacc_device::{
    CmEvent, Completion, CompletionStatus, Instant, Memory, QueuePairId, Region, RemoteKey, WorkRequestId,
};
use netacc_rnic::{Command, ControlEvent, Nic, NodeId, Placement, Target};

use crate::config::HostConfig;
use crate::connecting::{Attempt, Message, NicCommand, Pending};
use crate::id::HostId;
use crate::net::Net;
use crate::news::News;
use crate::verbs_events::{Verbs, VerbsEvent};

/// An end of a connection, anywhere in the cluster.
pub(crate) type End = (NodeId, QueuePairId);

/// The place of the bytes of a request until it is done.
pub(crate) enum Source {
    Inline(Vec<u8>),
    Region { memory: Memory, offset: usize },
}

/// A posted request.
pub(crate) struct Posted {
    pub(crate) message: u64,
    pub(crate) id: WorkRequestId,
    pub(crate) signaled: bool,
    pub(crate) source: Source,
}

/// The requests that an end has posted and not seen complete. Outlives its queue pair while the peer's exists, like
/// packets in flight.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) posted: VecDeque<Posted>,
    pub(crate) peer: Option<End>,
    pub(crate) destroyed: bool,
}

pub(crate) struct HostState {
    pub(crate) config: HostConfig,
    pub(crate) cqs: CompletionQueues,
    /// With the key of their first region.
    pub(crate) qps: NumberMap<QueuePairId, RemoteKey>,
    pub(crate) regions: Regions,
    /// The queue pairs of programs that use verbs themselves.
    pub(crate) verbs: Verbs,
    /// The events for the process; and whether an event includes the work of making a link.
    pub(crate) events: VecDeque<(CmEvent, bool)>,
    /// The number of events that its helper thread may take; `None`: all.
    pub(crate) released: Option<usize>,
    /// Actions that wait for the device's commands, each with its time; in the order in which they are done.
    pub(crate) commanded: VecDeque<(Instant, NicCommand)>,
    pub(crate) crashed: bool,
    pub(crate) refusal: Option<Refusal>,
    /// Below the NIC's own, if a test limits them.
    pub(crate) depths: QueueDepths,
}

pub(crate) struct State {
    pub(crate) net: Net,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) outgoing: NumberMap<End, Outgoing>,
    /// Contents of the connection managers' datagrams.
    pub(crate) messages: BTreeMap<u64, Message>,
    pub(crate) attempts: BTreeMap<u64, Attempt>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) next_number: u64,
    /// Key: local and remote address as the publisher sees them.
    pub(crate) directory: StreamTable<HostId>,
}

impl HostState {
    pub(crate) fn new(config: HostConfig, host: u32) -> HostState {
        HostState {
            depths: QueueDepths::of(&config.capabilities),
            // Keys of different hosts differ, so that the use of a key on the wrong host is detected.
            regions: Regions::new((host + 1) << 16, config.memory_limit_bytes),
            config,
            cqs: CompletionQueues::default(),
            qps: NumberMap::default(),
            verbs: Verbs::default(),
            events: VecDeque::new(),
            released: None,
            commanded: VecDeque::new(),
            crashed: false,
            refusal: None,
        }
    }

    /// News that its processes have not taken.
    pub(crate) fn news(&self) -> News {
        let may_take_event = self.released.map_or(!self.events.is_empty(), |released| released > 0);
        if self.cqs.has_ready() || may_take_event {
            News::Device
        } else if !self.events.is_empty() || !self.verbs.events.is_empty() {
            News::Others
        } else {
            News::None
        }
    }
}

impl State {
    pub(crate) fn nic(&mut self, host: HostId) -> &mut Nic {
        self.net.nic_mut(host.0 as usize)
    }

    pub(crate) fn host(&mut self, host: HostId) -> &mut HostState {
        &mut self.hosts[host.0 as usize]
    }

    pub(crate) fn live(&self, host: HostId) -> Option<&HostState> {
        self.hosts.get(host.0 as usize).filter(|h| !h.crashed)
    }

    /// One event of the network, of a command queue or of an interrupt, and all its effects. `false` if there is none.
    pub(crate) fn step(&mut self) -> bool {
        match (self.net.next_event(), self.next_due()) {
            (None, None) => return false,
            (Some(event), None) => self.net.advance(event),
            (Some(event), Some((at, _))) if event <= at => self.net.advance(event),
            (_, Some((at, host))) => {
                self.net.advance(at);
                self.handle_commands(host);
                return true;
            }
        }
        self.net.step();
        while let Some(index) = self.net.take_touched() {
            self.collect_results(HostId(index as u32));
        }
        true
    }

    /// The time of the next event.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let due = self.next_due().map(|(at, _)| at);
        self.net.next_event().into_iter().chain(due).min()
    }

    /// The host that is the first to be interrupted, or to have a command done.
    fn next_due(&self) -> Option<(Instant, HostId)> {
        let hosts = (0..self.hosts.len() as u32).map(HostId);
        hosts.filter_map(|host| self.due(host).map(|at| (at, host))).min()
    }

    /// The time at which a host is interrupted next, or has a command done.
    pub(crate) fn due(&self, host: HostId) -> Option<Instant> {
        let state = &self.hosts[host.0 as usize];
        let interrupt = state.cqs.next_readable(self.net.now());
        let commanded = state.commanded.front().map(|(at, _)| *at);
        Instant::earliest([interrupt, commanded])
    }

    /// A host's NIC got work: takes out the results.
    pub(crate) fn collect_results(&mut self, host: HostId) {
        self.net.kick(host.0 as usize);
        while let Some(placement) = self.nic(host).poll_placement() {
            self.place(host, placement);
        }
        let now = self.net.now();
        while let Some(qp) = self.nic(host).poll_ready(now) {
            self.report(host, qp, now);
        }
        while let Some(event) = self.nic(host).poll_control() {
            match event {
                ControlEvent::Received { from, token } => self.receive_message(host, HostId(from.0), token),
                ControlEvent::GivenUp { token, .. } => self.give_up_message(host, token),
            }
        }
        self.net.kick(host.0 as usize);
    }

    /// Copies bytes that have arrived to their place.
    fn place(&mut self, host: HostId, placement: Placement) {
        let Placement { qp, from, message, offset, len, target } = placement;
        let verbs = &mut self.hosts[host.0 as usize].verbs;
        if verbs.queue_pairs.contains(&qp) {
            return verbs.events.push_back(VerbsEvent::Placed(qp, len));
        }
        // Receives have no room, so the NIC has refused every SEND that has bytes.
        let Target::Region { rkey, remote } = target else { return };
        let Some(posted) = self.outgoing.get(&from).and_then(|o| o.posted.iter().find(|p| p.message == message)) else {
            debug_assert!(false, "bytes of a message that was never posted");
            return;
        };
        let Some(region) = self.hosts[host.0 as usize].regions.get(rkey) else { return };
        let at = (remote - region.remote.base) as usize;
        let (offset, len) = (offset as usize, len as usize);
        let placed = match &posted.source {
            Source::Inline(bytes) => bytes.get(offset..offset + len).is_some_and(|b| region.memory.write(at, b)),
            Source::Region { memory, offset: start } => memory.copy_to(start + offset, &region.memory, at, len),
        };
        debug_assert!(placed, "bounds were checked when it was posted, and by the NIC");
    }

    /// A completion of `qp` is visible: its queue reports it, and interrupts a sleeper.
    fn report(&mut self, host: HostId, qp: QueuePairId, now: Instant) {
        if self.hosts[host.0 as usize].verbs.queue_pairs.contains(&qp) {
            while let Some(completion) = self.nic(host).poll_completion(now, qp) {
                self.host(host).verbs.events.push_back(VerbsEvent::Completed(completion));
            }
            return;
        }
        let state = &mut self.hosts[host.0 as usize];
        state.cqs.report(qp, now + state.config.nic.costs.interrupt);
    }

    /// Requests up to the one that has completed are finished.
    pub(crate) fn forget_posted(&mut self, end: End, completion: &Completion, status: CompletionStatus) {
        let Completion::Send { id } = completion else { return };
        let Some(outgoing) = self.outgoing.get_mut(&end) else { return };
        if status != CompletionStatus::Success {
            // Packets of it may still be in flight.
            return;
        }
        while let Some(posted) = outgoing.posted.pop_front() {
            if posted.signaled && posted.id == *id {
                return;
            }
        }
    }

    /// Makes a host's device execute a command after the earlier ones; returns the time at which it is done.
    pub(crate) fn command(&mut self, host: HostId, command: Command) -> Instant {
        let now = self.net.now();
        if now < self.host(host).config.commands_from {
            return now;
        }
        self.nic(host).command(now, command)
    }

    /// A new region, and the time at which the device can use it.
    pub(crate) fn register(&mut self, host: HostId, qp: QueuePairId, len: u32) -> Option<(Region, Instant)> {
        let state = self.host(host);
        let remote = state.regions.name(len);
        if !self.nic(host).register(qp, remote.rkey, remote.base, u64::from(len)) {
            return None;
        }
        let region = self.host(host).regions.add(qp, remote);
        let registered_at = self.command(host, Command::Register { bytes: u64::from(len) });
        Some((region, registered_at))
    }

    pub(crate) fn unregister(&mut self, host: HostId, qp: QueuePairId, rkey: RemoteKey) {
        if self.host(host).regions.remove(qp, rkey) {
            self.nic(host).deregister(rkey);
            self.command(host, Command::Deregister);
        }
    }

    /// The queue pair is gone; the NIC informs its peer.
    pub(crate) fn destroy(&mut self, host: HostId, qp: QueuePairId) {
        let state = self.host(host);
        if state.qps.remove(&qp).is_none() {
            return;
        }
        state.cqs.remove(qp);
        let keys = state.regions.keys_of(qp);
        keys.into_iter().for_each(|rkey| self.unregister(host, qp, rkey));
        let now = self.net.now();
        self.nic(host).destroy_qp(now, qp);
        self.command(host, Command::DestroyQueuePair);
        let end = (NodeId(host.0), qp);
        let peer = self.outgoing.get(&end).and_then(|o| o.peer);
        match peer.filter(|peer| self.outgoing.get(peer).is_some_and(|o| !o.destroyed)) {
            Some(_) => {
                if let Some(outgoing) = self.outgoing.get_mut(&end) {
                    outgoing.destroyed = true;
                }
            }
            None => {
                self.outgoing.remove(&end);
                if let Some(peer) = peer {
                    self.outgoing.remove(&peer);
                }
            }
        }
        self.collect_results(host);
    }
}
