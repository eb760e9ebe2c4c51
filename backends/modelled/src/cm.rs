//! Connecting queue pairs through the network, and the directory of streams.
//!
//! REQUEST, then REPLY or REFUSAL, each a datagram that the NIC repeats until it is acknowledged. The connector has its
//! queue pair from the beginning, so the acceptor can use its own at once. Packets that the acceptor sends before the
//! REPLY has come would be lost and sent again.
//!
//! Commands for a queue pair take their time in the device's command queue. A REQUEST leaves when the queue pair is
//! made and its region registered, a REPLY when the accepting queue pair is connected, too. Each side is established
//! when its own queue pair is connected.

use std::os::fd::RawFd;

use netacc_device::tables::Refusal;
use netacc_device::{
    CmError, CmEvent, CompletionQueueId, ConnectionId, ConnectionManager, Directory, DirectoryError, FourTuple,
    Instant, PeerAddress, QueuePairId, Receives, RemoteRegion, MAX_PRIVATE_DATA,
};
use netacc_rnic::{Command, NodeId};

use crate::connecting::{Attempt, Message, NicCommand, Pending};
use crate::device::HostDevice;
use crate::id::HostId;
use crate::state::{Outgoing, State};

impl ConnectionManager for HostDevice {
    fn address(&self) -> PeerAddress {
        self.host.address()
    }

    fn connect_with(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
        receives: Receives,
    ) -> Result<ConnectionId, CmError> {
        receives.check(false)?;
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(CmError::Exhausted("private data"));
        }
        self.cluster.with(|s| {
            let attempt = s.number();
            let id = ConnectionId(attempt);
            let target = HostId::from_address(peer).filter(|h| h.0 < s.hosts.len() as u32);
            let (qp, region, made_at) = s.prepare(self.host, cq, region_len)?;
            let Some(target) = target else {
                s.destroy(self.host, qp);
                s.queue_event(self.host, CmEvent::Failed { id, error: CmError::Unreachable }, false);
                return Ok(id);
            };
            s.attempts.insert(attempt, Attempt { host: self.host, qp });
            let private_data = private_data.to_vec();
            let request = Message::Request { attempt, qp, region, private_data };
            s.when_done(self.host, made_at, NicCommand::SendRequest { target, request });
            Ok(id)
        })
    }

    fn accept_with(
        &self,
        id: ConnectionId,
        cq: CompletionQueueId,
        region_len: usize,
        receives: Receives,
    ) -> Result<(), CmError> {
        receives.check(false)?;
        self.cluster.with(|s| {
            if s.pending.get(&id.0).is_none_or(|p| p.host != self.host || p.accepted) {
                return Err(CmError::Unreachable);
            }
            let (qp, region, _) = s.prepare(self.host, cq, region_len)?;
            if let Some(pending) = s.pending.get_mut(&id.0) {
                pending.accepted = true;
            }
            let connected_at = s.command(self.host, Command::ConnectQueuePair);
            s.when_done(self.host, connected_at, NicCommand::Accept { number: id.0, qp, region });
            Ok(())
        })
    }

    fn reject(&self, id: ConnectionId) {
        self.cluster.with(|s| {
            if s.pending.get(&id.0).is_some_and(|p| p.host == self.host && !p.accepted) {
                s.refuse(id.0, Refusal::NotAdmitted);
            }
        });
    }

    fn poll_event(&self) -> Option<CmEvent> {
        self.cluster.with(|s| {
            let host = s.host(self.host);
            if let Some(released) = &mut host.released {
                *released = released.checked_sub(1)?;
            }
            host.events.pop_front().map(|(event, _)| event)
        })
    }

    fn event_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Directory for HostDevice {
    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        self.cluster.with(|s| {
            if s.live(self.host).is_none() {
                return Err(DirectoryError::NotServed);
            }
            s.directory.publish(tuple, self.host, stream)
        })
    }

    fn withdraw(&self, tuple: &FourTuple, stream: u32) {
        self.cluster.with(|s| s.directory.withdraw(tuple, self.host, stream));
    }

    fn lookup(&self, tuple: &FourTuple) -> Option<(PeerAddress, u32)> {
        self.cluster.with(|s| s.directory.lookup(tuple).map(|(host, stream)| (host.address(), stream)))
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A new queue pair with its first region, and the time at which its device has made both.
    fn prepare(
        &mut self,
        host: HostId,
        cq: CompletionQueueId,
        region_len: usize,
    ) -> Result<(QueuePairId, RemoteRegion, Instant), CmError> {
        let state = self.live(host).ok_or(CmError::Exhausted("processes"))?;
        if !state.cqs.contains(cq) {
            return Err(CmError::Exhausted("completion queues"));
        }
        let len = state.regions.checked_len(region_len).ok_or(CmError::MemoryLimit)?;
        let qp = self.nic(host).create_qp().ok_or(CmError::Exhausted("queue pairs"))?;
        self.command(host, Command::CreateQueuePair);
        let Some((region, made_at)) = self.register(host, qp, len) else {
            let now = self.net.now();
            self.nic(host).destroy_qp(now, qp);
            return Err(CmError::Exhausted("regions"));
        };
        let state = self.host(host);
        state.qps.insert(qp, region.remote.rkey);
        state.cqs.bind(qp, cq);
        Ok((qp, region.remote, made_at))
    }

    /// Defers an action until a command of a device is done; executes it at once if the command is done.
    fn when_done(&mut self, host: HostId, at: Instant, what: NicCommand) {
        if at <= self.net.now() && self.host(host).commanded.is_empty() {
            return self.handle_done(host, what);
        }
        self.host(host).commanded.push_back((at, what));
        self.net.kick(host.0 as usize);
    }

    /// Executes the actions that waited for commands of a device that are done by now.
    pub(crate) fn handle_commands(&mut self, host: HostId) {
        let now = self.net.now();
        while self.host(host).commanded.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, what)) = self.host(host).commanded.pop_front() else { return };
            self.handle_done(host, what);
        }
    }

    fn handle_done(&mut self, host: HostId, what: NicCommand) {
        match what {
            NicCommand::SendRequest { target, request } => {
                if self.live(host).is_some() {
                    self.send_message(host, target, request);
                }
            }
            NicCommand::Accept { number, qp, region } => {
                // A process that is gone has refused all requests.
                let Some(pending) = self.pending.remove(&number) else { return };
                let Pending { initiator, attempt, qp: theirs, region: remote, .. } = pending;
                self.join((host, qp), (initiator, theirs));
                self.establish((host, qp), ConnectionId(number), (initiator, remote), false);
                self.send_message(host, initiator, Message::Reply { attempt, qp, region });
            }
            NicCommand::Establish { attempt, qp, peer, region } => {
                self.establish((host, qp), ConnectionId(attempt), (peer, region), true);
            }
        }
    }

    /// Connects `near` to an end whose number has been received.
    fn join(&mut self, near: (HostId, QueuePairId), far: (HostId, QueuePairId)) {
        let (host, qp) = near;
        let peer = (NodeId(far.0 .0), far.1);
        let joined = self.nic(host).connect_qp(qp, peer.0, peer.1);
        debug_assert!(joined, "the queue pair is new");
        self.outgoing.insert((NodeId(host.0), qp), Outgoing { peer: Some(peer), ..Outgoing::default() });
    }

    /// Queues an event for a process; `links` if it includes the work of making a link.
    fn queue_event(&mut self, host: HostId, event: CmEvent, links: bool) {
        self.host(host).events.push_back((event, links));
    }

    /// Reports to a process that a queue pair is connected to `peer`, whose first region is `remote`. The connector
    /// (`is_connector`) has this work now; the acceptor has had it.
    fn establish(
        &mut self,
        end: (HostId, QueuePairId),
        id: ConnectionId,
        peer: (HostId, RemoteRegion),
        is_connector: bool,
    ) {
        let ((host, qp), (peer, remote)) = (end, peer);
        let state = self.host(host);
        let Some(local) = state.qps.get(&qp).and_then(|first| state.regions.get(*first)).cloned() else { return };
        let event = CmEvent::Established { id, qp, peer: peer.address(), local, remote };
        self.queue_event(host, event, is_connector);
    }

    fn send_message(&mut self, from: HostId, to: HostId, message: Message) {
        let token = self.number();
        let now = self.net.now();
        if self.nic(from).send_control(now, NodeId(to.0), token) {
            self.messages.insert(token, message);
            self.net.kick(from.0 as usize);
        } else {
            self.fail_message(from, message);
        }
    }

    /// A datagram came: each comes once.
    pub(crate) fn receive_message(&mut self, host: HostId, from: HostId, token: u64) {
        match self.messages.remove(&token) {
            Some(Message::Request { attempt, qp, region, private_data }) => {
                let refusal = match self.live(host) {
                    None => Some(Refusal::Unreachable),
                    Some(state) => state.refusal,
                };
                let number = self.number();
                let pending = Pending { host, initiator: from, attempt, qp, region, accepted: false };
                self.pending.insert(number, pending);
                match refusal {
                    Some(refusal) => self.refuse(number, refusal),
                    None => {
                        let (id, peer) = (ConnectionId(number), from.address());
                        self.queue_event(host, CmEvent::Request { id, peer, private_data }, true);
                    }
                }
            }
            Some(Message::Reply { attempt, qp: theirs, region }) => match self.attempts.remove(&attempt) {
                Some(Attempt { qp, .. }) if self.live(host).is_some() => {
                    // Now, so that the peer's death is detected; the process uses it after its own event.
                    self.join((host, qp), (from, theirs));
                    let connected_at = self.command(host, Command::ConnectQueuePair);
                    self.when_done(host, connected_at, NicCommand::Establish { attempt, qp, peer: from, region });
                }
                _ => self.send_message(host, from, Message::Gone { qp: theirs }),
            },
            Some(Message::Refused { attempt, refusal }) => self.fail_attempt(attempt, refusal.into()),
            Some(Message::Gone { qp }) => self.hang_up(host, qp),
            None => debug_assert!(false, "a datagram without content"),
        }
    }

    /// A datagram was repeated and never acknowledged.
    pub(crate) fn give_up_message(&mut self, host: HostId, token: u64) {
        // It may have arrived while its acknowledgements were lost; then its attempt is gone.
        if let Some(message) = self.messages.remove(&token) {
            self.fail_message(host, message);
        }
    }

    fn fail_message(&mut self, host: HostId, message: Message) {
        match message {
            Message::Request { attempt, .. } => self.fail_attempt(attempt, CmError::Unreachable),
            Message::Reply { qp, .. } => self.hang_up(host, qp),
            Message::Refused { .. } | Message::Gone { .. } => {}
        }
    }

    fn hang_up(&mut self, host: HostId, qp: QueuePairId) {
        let now = self.net.now();
        self.nic(host).fail_qp(now, qp);
    }

    fn refuse(&mut self, number: u64, refusal: Refusal) {
        if let Some(Pending { host, initiator, attempt, .. }) = self.pending.remove(&number) {
            self.send_message(host, initiator, Message::Refused { attempt, refusal });
        }
    }

    fn fail_attempt(&mut self, attempt: u64, error: CmError) {
        if let Some(Attempt { host, qp, .. }) = self.attempts.remove(&attempt) {
            self.destroy(host, qp);
            if self.live(host).is_some() {
                self.queue_event(host, CmEvent::Failed { id: ConnectionId(attempt), error }, false);
            }
        }
    }

    /// A process is gone: peers that wait for its answer get "unreachable". Its own requests end when their answers
    /// come.
    pub(crate) fn forget_attempts(&mut self, gone: HostId) {
        let waiting: Vec<u64> = self.pending.iter().filter(|(_, p)| p.host == gone).map(|(n, _)| *n).collect();
        waiting.into_iter().for_each(|number| self.refuse(number, Refusal::Unreachable));
    }
}
