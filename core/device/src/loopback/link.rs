//! A link: two connected queue pairs, and the work under way between them.
//!
//! Work goes `outbound` (posted) -> `unacked` (placed at the peer) -> completion (acknowledged). Each arrow is one
//! delivery. A dead link has its unfinished work in `flushed`, except that a sender whose placement is delivery
//! keeps it: what it posted is the peer's already.

use std::collections::VecDeque;

use super::state::{DeviceId, LinkId, Place, State};
use super::{NoReceive, SlotRelease};
use crate::{
    Completion, CompletionQueueId, CompletionStatus, Memory, Operation, QueuePairId, RemoteKey, RemoteRegion,
    WorkCompletion, WorkRequestId,
};

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Connected, as far as it knows.
    Alive,
    /// Failed by its own process; `Disconnected` may still be under way.
    Failed,
    /// `Disconnected` was reported.
    Dead,
    /// Given back, or its process is gone.
    Destroyed,
}

/// Where the bytes of a request are while it is under way.
pub(super) enum Source {
    Inline(Vec<u8>),
    Region {
        rkey: RemoteKey,
        memory: Memory,
        offset: usize,
        len: u32,
    },
    InPlace {
        len: u32,
    },
    /// Copied when posted, because placement is delivery.
    Placed {
        len: u32,
    },
}

impl Source {
    fn len(&self) -> u32 {
        match self {
            Source::Inline(bytes) => bytes.len() as u32,
            Source::Region { len, .. } | Source::InPlace { len } | Source::Placed { len } => *len,
        }
    }
}

pub(super) struct Request {
    pub(super) id: WorkRequestId,
    pub(super) operation: Operation,
    pub(super) source: Source,
    pub(super) signaled: bool,
    /// Slots that its completion frees.
    pub(super) releases: u32,
    /// Its completion was already reported (the sender is dead, but the message lives on).
    pub(super) resolved: bool,
}

impl Request {
    pub(super) fn consumes_receive(&self) -> bool {
        consumes_receive(&self.operation)
    }
}

pub(super) fn consumes_receive(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { imm: Some(_), .. } | Operation::Send { .. })
}

/// A completion, and the send slots that polling it frees.
pub(super) struct Entry {
    pub(super) wc: WorkCompletion,
    pub(super) releases: u32,
}

/// One queue pair. Invariants: `promised <= receives`; `receives + receive completions <= receive depth`;
/// `completions.len() <= send depth + receive depth + 1`.
pub(super) struct End {
    pub(super) device: DeviceId,
    pub(super) qp: QueuePairId,
    pub(super) cq: CompletionQueueId,
    /// What its receives have to put bytes into.
    pub(super) into: Option<RemoteRegion>,
    pub(super) life: Life,
    /// Something of the peer's arrived.
    pub(super) heard: bool,
    /// Posted, not consumed.
    pub(super) receives: u32,
    /// Of those, set aside for messages under way ([`NoReceive::QueueFull`]).
    pub(super) promised: u32,
    /// Receive slots in use: posted, or consumed with the completion not yet polled.
    pub(super) receive_slots: u32,
    pub(super) send_slots: u32,
    /// Unsignaled requests since the last signaled one.
    pub(super) unsignaled: u32,
    pub(super) outbound: VecDeque<Request>,
    pub(super) unacked: VecDeque<Request>,
    pub(super) flushed: VecDeque<Request>,
    pub(super) completions: VecDeque<Entry>,
    pub(super) queued: bool,
    /// A `Disconnected` is under way; `true` if even immediate delivery holds it back.
    pub(super) disconnect: Option<bool>,
}

impl End {
    pub(super) fn new(device: DeviceId, qp: QueuePairId, cq: CompletionQueueId) -> End {
        End {
            device,
            qp,
            cq,
            into: None,
            life: Life::Alive,
            heard: false,
            receives: 0,
            promised: 0,
            receive_slots: 0,
            send_slots: 0,
            unsignaled: 0,
            outbound: VecDeque::new(),
            unacked: VecDeque::new(),
            flushed: VecDeque::new(),
            completions: VecDeque::new(),
            queued: false,
            disconnect: None,
        }
    }

    fn listens(&self) -> bool {
        matches!(self.life, Life::Alive | Life::Failed)
    }
}

pub(super) struct Link {
    pub(super) ends: [End; 2],
    pub(super) dead: bool,
    /// Nothing reaches an end any more, not even word of that.
    pub(super) silent: bool,
}

impl State {
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

    /// `to` can be told that the link is dead: nothing that was placed is still on its way there.
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
        far.heard = true;
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

    /// Copies a request's bytes to where it points, checking both ends as a device would.
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
                self.devices[device.0 as usize].regions.contains_key(&rkey.0)
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

    /// The request cannot be done: what came before it succeeded, it fails, and the link dies.
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

    /// Tells `to` that its link is dead, completing whatever of its own was open. Precondition: `disconnect_ready`.
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

    /// Ends a link. Each end learns of it by a delivery; `withhold` keeps one from learning even in immediate mode.
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

    /// The end's own process gives up: posts fail from now on, and it learns at once.
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
        let (device, qp, cq) = (end.device, end.qp, end.cq);
        end.life = Life::Destroyed;
        end.disconnect = None;
        end.queued = false;
        end.completions.clear();
        self.kill(at.link, [false; 2]);
        if let Some(end) = self.end_mut(at) {
            end.unacked.clear();
            end.flushed.clear();
        }
        let state = self.device_mut(device);
        if let Some(cq) = state.cqs.get_mut(cq.0 as usize) {
            cq.ready.retain(|q| *q != qp);
        }
        let keys: Vec<u32> = state.regions.iter().filter(|(_, r)| r.qp == qp).map(|(k, _)| *k).collect();
        keys.into_iter().for_each(|key| state.unregister(qp, key));
        if self.links.get(&at.link).is_some_and(|l| l.ends.iter().all(|e| e.life == Life::Destroyed)) {
            if let Some(link) = self.links.remove(&at.link) {
                for end in &link.ends {
                    self.device_mut(end.device).qps.remove(&end.qp);
                }
            }
        }
    }

    /// Delivers everything of one link that nobody holds back.
    pub(super) fn settle_link(&mut self, id: LinkId) {
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
            let held = self.links.get(&id).and_then(|l| l.ends[place.side].disconnect).unwrap_or(true);
            if !held && self.disconnect_ready(place) {
                self.deliver_disconnect(place);
            }
        }
    }
}

/// The end on `side`, and the other one.
pub(super) fn sides(link: &mut Link, side: usize) -> [&mut End; 2] {
    let [first, second] = &mut link.ends;
    if side == 0 {
        [first, second]
    } else {
        [second, first]
    }
}

/// `IBV_WC_LOC_PROT_ERR`: the request's own region was given back before the device read it.
const LOCAL_PROTECTION_ERROR: u32 = 4;
