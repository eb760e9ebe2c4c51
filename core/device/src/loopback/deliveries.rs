//! Work in flight on links: the deliveries that can happen next, and their effects.

use super::config::{DeliveryMode, NoReceive, SlotRelease};
use super::id::{DeviceId, LinkId, Place, QueuePairEnd};
use super::link::{sides, End, Entry, Life, Request, Source};
use super::state::State;
use crate::{Completion, CompletionStatus, ConnectionId, Operation, WorkCompletion};

/// One delivery that can happen next. Within a variant and a queue pair, always the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Delivery {
    /// The next message of a queue pair reaches its peer.
    Message {
        /// The end that posted it.
        from: QueuePairEnd,
    },
    /// The completion of the oldest placed request reaches its queue pair.
    Acknowledgement {
        /// The end that posted it.
        to: QueuePairEnd,
    },
    /// A queue pair gets the event that its link is dead.
    Disconnect {
        /// The end that gets it. Until then it goes on posting.
        to: QueuePairEnd,
    },
    /// A connection manager gets an attempt's request, success or failure.
    Connection {
        /// The device that gets it.
        to: DeviceId,
        /// The attempt, as `to` numbers it.
        id: ConnectionId,
    },
}

/// `IBV_WC_LOC_PROT_ERR`: the request's own region was given back before the device read it.
const LOCAL_PROTECTION_ERROR: u32 = 4;

impl State {
    /// All deliveries that can happen next: attempts to connect first, then links by age.
    pub(super) fn deliverable(&self) -> Vec<Delivery> {
        let notices = self.deliverable_notices();
        let mut all: Vec<_> = notices.map(|(to, id)| Delivery::Connection { to, id }).collect();
        for (id, link) in &self.links {
            for (side, end) in link.ends.iter().enumerate() {
                let at = Place { link: *id, side };
                let end = QueuePairEnd { device: end.device, qp: end.qp };
                if self.message_ready(at) {
                    all.push(Delivery::Message { from: end });
                }
                if self.acknowledgement_ready(at) {
                    all.push(Delivery::Acknowledgement { to: end });
                }
                if self.disconnect_ready(at) {
                    all.push(Delivery::Disconnect { to: end });
                }
            }
        }
        all
    }

    /// Makes one delivery. `false`, and nothing done, if it cannot happen now.
    pub(super) fn deliver(&mut self, delivery: Delivery) -> bool {
        // Not `place`: the messages of a destroyed end may still be in flight.
        let find = |s: &State, end: QueuePairEnd| {
            s.devices.get(end.device.0 as usize).and_then(|d| d.qps.get(&end.qp)).copied()
        };
        match delivery {
            Delivery::Connection { to, id } => self.deliver_notice(to, id),
            Delivery::Message { from } => {
                let at = find(self, from).filter(|at| self.message_ready(*at));
                at.map(|at| self.deliver_message(at)).is_some()
            }
            Delivery::Acknowledgement { to } => {
                let at = find(self, to).filter(|at| self.acknowledgement_ready(*at));
                at.map(|at| self.deliver_acknowledgement(at)).is_some()
            }
            Delivery::Disconnect { to } => {
                let at = find(self, to).filter(|at| self.disconnect_ready(*at));
                at.map(|at| self.deliver_disconnect(at)).is_some()
            }
        }
    }

    fn end_mut(&mut self, at: Place) -> Option<&mut End> {
        self.links.get_mut(&at.link).map(|l| &mut l.ends[at.side])
    }

    fn keeps_placed(&self, end: &End) -> bool {
        self.config(end.device).capabilities.placement_is_delivery
    }

    /// The next message of `from` can be delivered.
    pub(super) fn message_ready(&self, from: Place) -> bool {
        let Some(link) = self.links.get(&from.link) else { return false };
        let (end, peer) = (&link.ends[from.side], &link.ends[1 - from.side]);
        let Some(request) = end.outbound.front() else { return false };
        let waits = request.consumes_receive()
            && peer.receives == 0
            && (link.dead || self.config(end.device).no_receive == NoReceive::Wait);
        peer.listens() && !waits && !link.silent
    }

    /// The oldest placed request of `to` can be acknowledged.
    pub(super) fn acknowledgement_ready(&self, to: Place) -> bool {
        let Some(link) = self.links.get(&to.link) else { return false };
        let end = &link.ends[to.side];
        !end.unacked.is_empty() && end.listens() && !link.silent
    }

    /// `to` can get the event that the link is dead: no placed message is still on its way there.
    pub(super) fn disconnect_ready(&self, to: Place) -> bool {
        let Some(link) = self.links.get(&to.link) else { return false };
        link.ends[to.side].disconnect.is_some() && !link.silent && !self.message_ready(to.peer())
    }

    /// Places the next message of `from` and consumes the peer's receive. Precondition: `message_ready`.
    pub(super) fn deliver_message(&mut self, from: Place) {
        let Some(link) = self.links.get_mut(&from.link) else { return };
        let dead = link.dead;
        let [near, far] = sides(link, from.side);
        let Some(request) = near.outbound.pop_front() else { return };
        let (len, consumes) = (request.source.len(), request.consumes_receive());
        if consumes && far.receives == 0 {
            near.outbound.push_front(request);
            return self.kill(from.link, [false; 2]);
        }
        if let Err(status) = self.place_bytes(from, &request) {
            return self.refuse(from, request, status);
        }
        let carries_imm = self.links.get(&from.link).is_some_and(|l| {
            matches!(request.operation, Operation::Write { .. })
                || self.config(l.ends[from.side].device).send_carries_imm
        });
        let Some(link) = self.links.get_mut(&from.link) else { return };
        let [near, far] = sides(link, from.side);
        far.has_received = true;
        let receiver = far.qp;
        if consumes {
            far.receives -= 1;
            far.promised = far.promised.saturating_sub(1);
        }
        let operation = request.operation;
        let nobody_waits = dead && near.life == Life::Destroyed;
        if !request.resolved && !nobody_waits {
            near.unacked.push_back(request);
        }
        if consumes {
            let (Operation::Write { imm, .. } | Operation::Send { imm }) = operation;
            let imm = imm.filter(|_| carries_imm).unwrap_or(0);
            let completion = Completion::Receive { imm, len };
            let wc = WorkCompletion { qp: receiver, status: CompletionStatus::Success, completion };
            self.complete(from.peer(), Entry { wc, releases: 0 });
        }
    }

    /// Copies a request's bytes to the address that it names, checking both ends as a device would.
    fn place_bytes(&self, from: Place, request: &Request) -> Result<(), CompletionStatus> {
        let device = self.links[&from.link].ends[from.side].device;
        let into = self.links[&from.link].ends[1 - from.side].into;
        let (rkey, offset) = match (request.operation, into) {
            (Operation::Write { rkey, offset, .. }, _) => (rkey, offset),
            (Operation::Send { .. }, _) if request.source.len() == 0 => return Ok(()),
            (Operation::Send { .. }, Some(into)) => (into.rkey, into.base),
            (Operation::Send { .. }, None) => return Err(CompletionStatus::RemoteError),
        };
        if let Source::Placed { .. } = request.source {
            return Ok(());
        }
        let target = self.remote_target(from.peer(), rkey, offset, request.source.len());
        let Some((target, position)) = target else { return Err(CompletionStatus::RemoteError) };
        let placed = match &request.source {
            Source::Inline(bytes) => target.write(position, bytes),
            Source::Region { rkey, memory, offset, len } => {
                self.devices[device.0 as usize].regions.get(*rkey).is_some()
                    && memory.copy_to(*offset, &target, position, *len as usize)
            }
            Source::InPlace { .. } | Source::Placed { .. } => true,
        };
        if placed {
            Ok(())
        } else {
            Err(CompletionStatus::Other(LOCAL_PROTECTION_ERROR))
        }
    }

    /// The request cannot be executed: earlier ones succeeded, it fails, and the link dies.
    fn refuse(&mut self, from: Place, request: Request, status: CompletionStatus) {
        while self.acknowledgement_ready(from) {
            self.deliver_acknowledgement(from);
        }
        self.complete_send(from, request.id, status, request.releases);
        self.kill(from.link, [false; 2]);
    }

    /// Completes the oldest placed request of `to`. Precondition: `acknowledgement_ready`.
    pub(super) fn deliver_acknowledgement(&mut self, to: Place) {
        let Some(end) = self.end_mut(to) else { return };
        let device = end.device;
        let Some(request) = end.unacked.pop_front() else { return };
        if request.signaled {
            self.complete_send(to, request.id, CompletionStatus::Success, request.releases);
        } else if self.config(device).slot_release == SlotRelease::OnDelivery {
            if let Some(end) = self.end_mut(to) {
                end.send_slots = end.send_slots.saturating_sub(request.releases);
            }
        }
    }

    /// Reports to `to` that its link is dead, and completes its open requests. Precondition: `disconnect_ready`.
    pub(super) fn deliver_disconnect(&mut self, to: Place) {
        let Some(end) = self.end_mut(to) else { return };
        end.disconnect = None;
        let (device, qp) = (end.device, end.qp);
        let mut done: Vec<Request> = end.unacked.drain(..).collect();
        for request in end.outbound.iter_mut().filter(|r| !r.resolved) {
            request.resolved = true;
            done.push(Request { source: Source::Placed { len: 0 }, ..*request });
        }
        let flushed: Vec<Request> = end.flushed.drain(..).collect();
        for request in done.into_iter().filter(|r| r.signaled) {
            self.complete_send(to, request.id, CompletionStatus::Success, request.releases);
        }
        let report = self.config(device).report_flushes;
        for request in flushed.into_iter().filter(|_| report) {
            self.complete_send(to, request.id, CompletionStatus::Flushed, request.releases);
        }
        let wc = WorkCompletion { qp, status: CompletionStatus::Flushed, completion: Completion::Disconnected };
        self.complete(to, Entry { wc, releases: 0 });
        if let Some(end) = self.end_mut(to) {
            end.life = Life::Dead;
        }
    }

    /// Ends a link. Each end gets the event by a delivery; `withhold` keeps it from one end even in immediate mode.
    pub(super) fn kill(&mut self, id: LinkId, withhold: [bool; 2]) {
        let Some(link) = self.links.get(&id) else { return };
        if link.dead {
            return;
        }
        let keeps = [self.keeps_placed(&link.ends[0]), self.keeps_placed(&link.ends[1])];
        let Some(link) = self.links.get_mut(&id) else { return };
        link.dead = true;
        for (side, end) in link.ends.iter_mut().enumerate() {
            if !keeps[side] {
                end.flushed.extend(end.unacked.drain(..));
                end.flushed.extend(end.outbound.drain(..));
            }
            if end.life != Life::Destroyed {
                end.disconnect = Some(withhold[side]);
            }
        }
    }

    /// The end's own process gives up: posts fail from now on, and it gets the event at once.
    pub(super) fn fail_end(&mut self, at: Place) {
        let Some(end) = self.end_mut(at) else { return };
        if end.life != Life::Alive {
            return;
        }
        end.life = Life::Failed;
        self.kill(at.link, [false; 2]);
        if self.disconnect_ready(at) {
            self.deliver_disconnect(at);
        }
    }

    /// Takes an end away, with its regions. The link is forgotten when both ends are gone.
    pub(super) fn destroy_end(&mut self, at: Place) {
        let Some(end) = self.end_mut(at) else { return };
        let (device, qp) = (end.device, end.qp);
        end.life = Life::Destroyed;
        end.disconnect = None;
        end.completions.clear();
        self.kill(at.link, [false; 2]);
        if let Some(end) = self.end_mut(at) {
            end.unacked.clear();
            end.flushed.clear();
        }
        let state = self.device_mut(device);
        state.cqs.remove(qp);
        for rkey in state.regions.keys_of(qp) {
            state.regions.remove(qp, rkey);
        }
        if self.links.get(&at.link).is_some_and(|l| l.ends.iter().all(|e| e.life == Life::Destroyed)) {
            if let Some(link) = self.links.remove(&at.link) {
                for end in &link.ends {
                    self.device_mut(end.device).qps.remove(&end.qp);
                }
            }
        }
    }

    /// Makes all deliveries of a link, if the fabric delivers immediately.
    pub(super) fn deliver_if_immediate(&mut self, at: Place) {
        if self.mode == DeliveryMode::Immediate {
            self.deliver_link(at.link);
        }
    }

    /// Makes all deliveries of one link that are not withheld.
    pub(super) fn deliver_link(&mut self, id: LinkId) {
        let places = [Place { link: id, side: 0 }, Place { link: id, side: 1 }];
        // Ends because every round delivers something, and deliveries add none that are not already posted.
        while places.iter().any(|p| self.message_ready(*p) || self.acknowledgement_ready(*p)) {
            for place in places {
                while self.message_ready(place) {
                    self.deliver_message(place);
                }
                while self.acknowledgement_ready(place) {
                    self.deliver_acknowledgement(place);
                }
            }
        }
        for place in places {
            let withheld = self.links.get(&id).and_then(|l| l.ends[place.side].disconnect).unwrap_or(true);
            if !withheld && self.disconnect_ready(place) {
                self.deliver_disconnect(place);
            }
        }
    }
}
