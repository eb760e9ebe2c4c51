//! Finding the peers of openers' streams, which then wait for a link: see [`open`](super::open).

use std::sync::Arc;

use netacc_device::{Instant, Obstacle, PeerAddress};
use netacc_proto::{Reason, Role};

use super::unaccepted::MISSES;
use super::Endpoint;
use crate::stream::{LockedStream, Referral};
use crate::StreamCell;

impl Endpoint {
    /// Begins promoting an opener's stream, if its peer is accelerated. Control path: may allocate and make system
    /// calls. An error is the reason why the stream is not promoted now. If its connection has not been accepted yet,
    /// [`progress`](Endpoint::progress) promotes it once that has happened.
    pub fn promote(&self, cell: &Arc<StreamCell>) -> Result<(), Reason> {
        let peer = self.find_peer(cell)?;
        self.place(peer);
        Ok(())
    }

    /// As [`promote`](Endpoint::promote), for one of many streams: finds the peer, and leaves the rest to the next
    /// [`progress`](Endpoint::progress), which visits the links that are being made once for all of them.
    pub fn enqueue_promotion(&self, cell: &Arc<StreamCell>) -> Result<(), Reason> {
        self.find_peer(cell).map(|_| ())
    }

    /// As [`enqueue_promotion`](Endpoint::enqueue_promotion), in a thread beside the one that calls
    /// [`progress`](Endpoint::progress), which is requested. The control path alone connects links and opens streams on them.
    pub fn prepare_promotion(&self, cell: &Arc<StreamCell>) -> Result<(), Reason> {
        let found = self.enqueue_promotion(cell);
        if matches!(found, Ok(()) | Err(Reason::PeerNotAccepted)) {
            self.need_helper();
        }
        found
    }

    /// As [`enqueue_promotion`](Endpoint::enqueue_promotion), for a stream whose connection was just made, to a service
    /// with an accelerated peer: if none is found, its program has not accepted the connection yet.
    pub fn enqueue_new(&self, cell: &Arc<StreamCell>) {
        if self.may_open(cell).is_err() {
            return;
        }
        let others_wait = self.promotions.lock().unaccepted.has(&cell.tuple().remote);
        if others_wait || self.look_up(cell).is_none() {
            self.promotions.lock().unaccepted.add(cell);
        }
    }

    /// Finds the peer of an opener's stream, which then waits for a link to it.
    fn find_peer(&self, cell: &Arc<StreamCell>) -> Result<PeerAddress, Reason> {
        self.may_open(cell)?;
        if let Some(peer) = self.look_up(cell) {
            return Ok(peer);
        }
        let obstacle = self.obstacle(cell, Role::Opener);
        if obstacle == Reason::PeerNotAccepted {
            self.promotions.lock().unaccepted.add(cell);
        }
        Err(obstacle)
    }

    /// Whether the stream is an opener's that may go onto a link now.
    fn may_open(&self, cell: &Arc<StreamCell>) -> Result<(), Reason> {
        {
            let mut guard = cell.lock(self);
            if guard.proto().role() != Role::Opener || !guard.proto().may_promote() || guard.link().is_some() {
                return Err(Reason::PeerBusy);
            }
            guard.change_aside(LockedStream::confirm_addresses)?;
        }
        if let Some(reason) = self.suspension_reason() {
            return Err(reason);
        }
        self.sink().may_promote()
    }

    /// The peer that the directory has, if there is one. The stream waits for a link to it.
    fn look_up(&self, cell: &Arc<StreamCell>) -> Option<PeerAddress> {
        let (peer, hint) = self.directory().lookup(&cell.tuple())?;
        cell.lock(self).change(|stream| stream.inner.attempt.referral = Referral::None);
        self.promotions.lock().add(peer, cell, hint);
        self.sink().peer_found(cell);
        Some(peer)
    }

    /// Looks up streams whose connections had not been accepted. Returns when to call it again.
    pub(super) fn find_accepted(&self, now: Instant) -> Option<Instant> {
        let services = self.promotions.lock().unaccepted.begin_turn(now);
        let mut all_found = 0;
        for service in services.iter().flatten() {
            let (mut found, mut missed) = (0, Vec::new());
            while missed.len() < MISSES {
                let taken = self.promotions.lock().unaccepted.take(*service);
                let Some(sought) = taken else { break };
                if self.may_open(&sought.stream).is_ok() {
                    if self.look_up(&sought.stream).is_none() {
                        missed.push(sought);
                        continue;
                    }
                    found += 1;
                }
                self.promotions.lock().unaccepted.end(&sought);
            }
            let unaccepted = &mut self.promotions.lock().unaccepted;
            missed.iter().for_each(|sought| unaccepted.put_back(sought));
            unaccepted.end_service(*service, found, now);
            all_found += found;
        }
        let unaccepted = &mut self.promotions.lock().unaccepted;
        if services.is_some() {
            unaccepted.end_turn(all_found, now);
        }
        unaccepted.next()
    }

    /// The reason why no peer was found at the other end of a stream, or why the peer did not find this one. Control
    /// path: may make system calls.
    pub fn obstacle(&self, cell: &StreamCell, role: Role) -> Reason {
        match self.directory().obstacle(&cell.tuple(), role == Role::Acceptor) {
            Some(Obstacle::NoDevice) => Reason::DeviceAbsent,
            Some(Obstacle::NoPort) => Reason::NoLinkPort,
            Some(Obstacle::PortTaken) => Reason::LinkPortTaken,
            Some(Obstacle::OtherUser) => Reason::PeerOtherUser,
            Some(Obstacle::NotAccepted) => Reason::PeerNotAccepted,
            Some(Obstacle::NotOffered) => Reason::PeerKeepsTcp,
            Some(Obstacle::Apart) => Reason::PeerApart,
            Some(Obstacle::Elsewhere) => Reason::PeerElsewhere,
            _ => Reason::PeerNotFound,
        }
    }
}
