//! [`Fabric`] as a device for the core: each call goes to the device that it concerns.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use netacc_device::{
    forward, Armed, Capabilities, CmError, CmEvent, CompletionEvents, CompletionQueueId, ConnectionId,
    ConnectionManager, Device, DeviceError, Directory, DirectoryError, FourTuple, KernelOrder, Obstacle, PeerAddress,
    PostError, QueuePairId, Receives, Wait, WorkCompletion, UNKNOWN_STREAM,
};

use crate::fabric::{mark, Fabric, Side};
use crate::parts::{BetweenHosts, WithinHost};
use crate::remote::link_port;

/// The result of a call on a queue pair whose device is gone.
trait Gone {
    fn gone() -> Self;
}

impl Gone for () {
    fn gone() {}
}

impl Gone for u32 {
    fn gone() -> u32 {
        0
    }
}

impl Gone for usize {
    fn gone() -> usize {
        0
    }
}

impl Gone for Wait {
    fn gone() -> Wait {
        Wait::Woken
    }
}

impl<T> Gone for Result<T, DeviceError> {
    fn gone() -> Result<T, DeviceError> {
        Err(DeviceError::Unknown { what: "queue pair" })
    }
}

impl<T> Gone for Option<T> {
    fn gone() -> Option<T> {
        None
    }
}

impl<T> Gone for Result<T, PostError> {
    fn gone() -> Result<T, PostError> {
        Err(PostError::Dead)
    }
}

/// Calls the device that has the queue pair.
macro_rules! to_owner {
    ($self:ident, $method:ident($qp:ident $(, $argument:ident)*)) => {
        match $self.split($qp) {
            Side::Near(near) => near.$method($qp $(, $argument)*),
            Side::Far(far, qp) => far.$method(qp $(, $argument)*),
            Side::Nobody => Gone::gone(),
        }
    };
}

/// Calls the near device alone: only its peers share the kernel with this process.
macro_rules! to_near {
    ($self:ident, $method:ident($($argument:ident),*)) => {
        match &$self.near {
            Some(near) => near.$method($($argument),*),
            None => Default::default(),
        }
    };
}

/// Calls both devices.
macro_rules! to_both {
    ($self:ident, $method:ident($($argument:ident),*)) => {{
        if let Some(near) = &$self.near {
            near.$method($($argument),*);
        }
        if let Some(far) = &*$self.far.load() {
            far.$method($($argument),*);
        }
    }};
}

impl<N: WithinHost, F: BetweenHosts> Fabric<N, F> {
    fn near_pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        self.near.as_ref().map_or(0, |near| near.pending(cq, out))
    }
}

impl<N: WithinHost, F: BetweenHosts> Device for Fabric<N, F> {
    forward!(
        to_owner: rebind, alloc_region, free_region, window, discard, post_recv, post_send, in_place, fail_qp,
    );

    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> &Capabilities {
        self.narrowest()
    }

    fn capabilities_of(&self, qp: QueuePairId) -> Capabilities {
        match self.split(qp) {
            Side::Near(near) => near.capabilities_of(qp),
            Side::Far(far, qp) => far.capabilities_of(qp),
            Side::Nobody => self.narrowest().clone(),
        }
    }

    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError> {
        self.make_queue()
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        let guard = self.far.load();
        let Some(far) = &*guard else { return self.near_pending(cq, out) };
        let far_pending = |out: &mut [QueuePairId]| {
            let count = far.pending(cq, out);
            out[..count].iter_mut().for_each(mark);
            count
        };
        if self.turn.fetch_xor(true, Ordering::Relaxed) {
            let count = far_pending(out);
            count + self.near_pending(cq, &mut out[count..])
        } else {
            let count = self.near_pending(cq, out);
            count + far_pending(&mut out[count..])
        }
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        match self.split(qp) {
            Side::Near(near) => near.poll_qp(qp, out),
            Side::Far(far, inner) => {
                let count = far.poll_qp(inner, out);
                out[..count].iter_mut().for_each(|completion| completion.qp = qp);
                count
            }
            Side::Nobody => 0,
        }
    }

    fn poll_one(&self, qp: QueuePairId) -> Option<WorkCompletion> {
        match self.split(qp) {
            Side::Near(near) => near.poll_one(qp),
            Side::Far(far, inner) => far.poll_one(inner).map(|completion| WorkCompletion { qp, ..completion }),
            Side::Nobody => None,
        }
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        match self.split(qp) {
            Side::Near(near) => near.destroy_qp(qp),
            Side::Far(far, qp) => {
                far.destroy_qp(qp);
                if far.is_gone() {
                    self.call();
                }
            }
            Side::Nobody => {}
        }
    }
}

impl<N: WithinHost, F: BetweenHosts> CompletionEvents for Fabric<N, F> {
    forward!(to_owner: qp_sequence, wait_qp, wake_qp, knock);
    forward!(to_near: defer_wakes, release_wakes);
    forward!(to_both: drain);

    fn arm(&self, cq: CompletionQueueId) -> Armed {
        self.record_armed(cq);
        let near = self.near.as_ref().map_or(Armed::Sleep, |near| near.arm(cq));
        let far = self.far.load().as_ref().map_or(Armed::Sleep, |far| far.arm(cq));
        either(near, far)
    }

    fn arm_moderated(&self, cq: CompletionQueueId) -> Armed {
        self.record_armed(cq);
        let near = self.near.as_ref().map_or(Armed::Sleep, |near| near.arm_moderated(cq));
        let far = self.far.load().as_ref().map_or(Armed::Sleep, |far| far.arm_moderated(cq));
        either(near, far)
    }

    fn disarm(&self, cq: CompletionQueueId) {
        self.record_disarmed(cq);
        to_both!(self, disarm(cq));
    }

    fn channel_fd(&self, cq: CompletionQueueId) -> Option<RawFd> {
        self.queues.lock().get(cq.0 as usize).map(|queue| queue.fd())
    }
}

impl<N: WithinHost, F: BetweenHosts> KernelOrder for Fabric<N, F> {
    forward!(to_near: KernelOrder);
}

fn either(a: Armed, b: Armed) -> Armed {
    if a == Armed::Pending {
        a
    } else {
        b
    }
}

/// Marks the attempts of the far device's connection manager.
const FAR_ATTEMPT: u64 = 1 << 63;

fn mark_attempt(id: &mut ConnectionId) {
    id.0 |= FAR_ATTEMPT;
}

/// Whether an address is one of the far device's: no other device makes such addresses.
fn is_far<F: BetweenHosts>(peer: PeerAddress) -> bool {
    F::socket_address(peer).is_some()
}

impl<N: WithinHost, F: BetweenHosts> ConnectionManager for Fabric<N, F> {
    fn address(&self) -> PeerAddress {
        match (&self.near, &*self.far.load()) {
            (Some(near), _) => near.address(),
            (None, Some(far)) => far.address(),
            (None, None) => PeerAddress([0; 4]),
        }
    }

    fn ends(&self, peer: PeerAddress) -> [PeerAddress; 2] {
        match (&self.near, &*self.far.load()) {
            (_, Some(far)) if is_far::<F>(peer) => far.ends(peer),
            (Some(near), _) => near.ends(peer),
            // The device is gone; there is no link to prove anything about.
            _ => [PeerAddress([0; 4]), peer],
        }
    }

    fn connect_with(
        &self,
        peer: PeerAddress,
        cq: CompletionQueueId,
        region_len: usize,
        private_data: &[u8],
        receives: Receives,
    ) -> Result<ConnectionId, CmError> {
        if is_far::<F>(peer) {
            let far = self.far.load_full().ok_or(CmError::Unreachable)?;
            let mut id = far.connect_with(peer, cq, region_len, private_data, receives)?;
            mark_attempt(&mut id);
            return Ok(id);
        }
        self.near.as_ref().ok_or(CmError::Unreachable)?.connect_with(peer, cq, region_len, private_data, receives)
    }

    fn accept_with(
        &self,
        id: ConnectionId,
        cq: CompletionQueueId,
        region_len: usize,
        receives: Receives,
    ) -> Result<(), CmError> {
        if id.0 & FAR_ATTEMPT != 0 {
            let far = self.far.load_full().ok_or(CmError::Unreachable)?;
            return far.accept_with(ConnectionId(id.0 & !FAR_ATTEMPT), cq, region_len, receives);
        }
        self.near.as_ref().ok_or(CmError::Unreachable)?.accept_with(id, cq, region_len, receives)
    }

    fn reject(&self, id: ConnectionId) {
        if id.0 & FAR_ATTEMPT == 0 {
            if let Some(near) = &self.near {
                near.reject(id);
            }
        } else if let Some(far) = &*self.far.load() {
            far.reject(ConnectionId(id.0 & !FAR_ATTEMPT));
        }
    }

    fn poll_event(&self) -> Option<CmEvent> {
        self.tend();
        if let Some(event) = self.near.as_ref().and_then(|near| near.poll_event()) {
            return Some(event);
        }
        let guard = self.far.load();
        let mut event = guard.as_ref()?.poll_event()?;
        match &mut event {
            CmEvent::Request { id, .. } | CmEvent::Failed { id, .. } => mark_attempt(id),
            CmEvent::Established { id, qp, peer, .. } => {
                mark_attempt(id);
                mark(qp);
                self.remote_state.record_present(*peer, Instant::now());
            }
            _ => {}
        }
        Some(event)
    }

    fn may_wait(&self) -> bool {
        match &*self.far.load() {
            Some(far) => far.may_wait(),
            None => self.is_due_to_open(),
        }
    }

    fn event_fds(&self) -> Vec<RawFd> {
        vec![self.event_fd()]
    }
}

impl<N: WithinHost, F: BetweenHosts> Directory for Fabric<N, F> {
    fn serves(&self, tuple: &FourTuple) -> bool {
        if self.is_near(tuple) {
            return self.serves_host && self.near.is_some();
        }
        self.may_serve(tuple) || self.spanning().is_some()
    }

    fn trusts(&self, tuple: &FourTuple) -> bool {
        self.is_near(tuple) && self.near.as_ref().is_none_or(|near| near.trusts(tuple))
    }

    fn shows_accepted(&self, tuple: &FourTuple) -> bool {
        self.is_near(tuple) && self.near.as_ref().is_some_and(|near| near.shows_accepted(tuple))
    }

    fn admits(&self, peer: PeerAddress, tuple: &FourTuple) -> bool {
        match F::socket_address(peer) {
            Some(peer) => !self.is_near(tuple) && peer.ip() == tuple.remote.ip() && self.may_serve(tuple),
            None => self.is_near(tuple) || self.spanning().is_some_and(|near| near.admits(peer, tuple)),
        }
    }

    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        if !self.serves(tuple) {
            return Err(DirectoryError::NotServed);
        }
        if let Some(near) = self.near.as_ref().filter(|_| self.is_near(tuple)) {
            return near.publish(tuple, stream);
        }
        let Some(port) = link_port(tuple.local.port()) else {
            return self.spanning().map_or(Err(DirectoryError::NoPort), |near| near.publish(tuple, stream));
        };
        self.remote_state.publish(tuple, stream);
        if let Some(near) = &self.near {
            // If the table is full, a neighbour that is connected to in our place does not find the connection there.
            near.announce(tuple, stream);
        }
        self.want_far();
        if self.remote_state.want(port, Instant::now()) {
            self.call();
        }
        Ok(())
    }

    fn offer_flows(&self, tuple: &FourTuple) {
        let Some(port) = link_port(tuple.local.port()).filter(|_| !self.is_near(tuple)) else { return };
        self.remote_state.offer_flows();
        self.want_far();
        if self.remote_state.want(port, Instant::now()) {
            self.call();
        }
    }

    fn withdraw(&self, tuple: &FourTuple, stream: u32) {
        if let Some(near) = &self.near {
            near.retract(tuple, stream);
        }
        self.remote_state.withdraw(tuple, stream);
    }

    fn lookup(&self, tuple: &FourTuple) -> Option<(PeerAddress, u32)> {
        if self.is_near(tuple) {
            return self.near.as_ref().filter(|_| self.serves_host)?.lookup(tuple);
        }
        if let Some(found) = self.spanning().and_then(|near| near.lookup(tuple)) {
            return Some(found);
        }
        let port = link_port(tuple.remote.port())?;
        // By the connecting thread, too.
        self.open_far().ok().filter(|far| !far.is_gone() && self.may_serve(tuple))?;
        let peer = F::peer_address((tuple.remote.ip(), port).into());
        (!self.remote_state.is_absent(peer, Instant::now())).then_some((peer, UNKNOWN_STREAM))
    }

    fn resolve(&self, tuple: &FourTuple) -> Option<u32> {
        self.remote_state.resolve(tuple)
    }

    fn holder(&self, tuple: &FourTuple) -> Option<u16> {
        self.near.as_ref().filter(|_| !self.is_near(tuple))?.link_port_of_holder(tuple)
    }

    fn neighbour(&self, peer: PeerAddress, port: u16) -> Option<PeerAddress> {
        let address = F::socket_address(peer)?;
        (port != 0).then(|| F::peer_address((address.ip(), port).into()))
    }

    fn obstacle(&self, tuple: &FourTuple, accepted: bool) -> Option<Obstacle> {
        if self.is_near(tuple) {
            return self.near.as_ref().filter(|_| self.serves_host)?.obstacle(tuple, accepted);
        }
        let served = if accepted { tuple.local } else { tuple.remote };
        let Some(port) = link_port(served.port()) else { return Some(Obstacle::NoPort) };
        if !self.has_far() {
            return self.spanning().map_or(Some(Obstacle::NoDevice), |near| near.obstacle(tuple, accepted));
        }
        // A neighbour that accepts links may have it, and refers peers to us.
        let is_strange = || !self.near.as_ref().is_some_and(|near| near.has_neighbour_with_links());
        (accepted && self.remote_state.is_taken(port) && is_strange()).then_some(Obstacle::PortTaken)
    }

    fn mark_unreachable(&self, peer: PeerAddress) {
        if is_far::<F>(peer) {
            self.remote_state.record_absent(peer, Instant::now());
        }
    }
}
