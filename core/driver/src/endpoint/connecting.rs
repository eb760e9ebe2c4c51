//! Links that are being made: events of the connection manager, and time limits.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::{CmEvent, ConnectionId, Instant, PeerAddress, QueuePairId};
use netacc_proto::{Admission, LinkConfig, PreSharedKey, Reason, LINK_REGION_LEN, SETUP_LIMIT, UNUSED_LIMIT};

use super::reasons::{is_about_peer, reason_of};
use super::timers::Kind;
use super::{Again, Attempt, Endpoint, Timed};
use crate::link::FirstRegions;
use crate::{Counters, LinkCell};

/// The number of links that are being set up, or had no stream yet, beyond which peers' requests are refused.
/// Arbitrary: as many attempts as a connection manager admits.
const MAX_SETUPS: usize = 1024;

impl Endpoint {
    pub(super) fn handle_cm_event(&self, event: CmEvent) {
        match event {
            CmEvent::Request { id, peer, private_data } => match Endpoint::flow_request(&private_data) {
                Some(request) => self.handle_flow_request(id, peer, request),
                None => self.handle_request(id, peer),
            },
            CmEvent::Established { id, qp, local, remote, .. }
                if self.handle_flow_established(id, qp, &local, remote) => {}
            CmEvent::Failed { id, .. } if self.handle_flow_failed(id) => {}
            CmEvent::Established { id, qp, peer, local, remote } => {
                self.handle_established(id, qp, peer, FirstRegions { local, remote });
            }
            CmEvent::Failed { id, error } => {
                let reason = reason_of(&error);
                let attempt = self.attempts.lock().remove(&id).filter(|attempt| attempt.connector);
                // A lack of room on this side must not be recorded against the peer.
                if let Some(Attempt { peer, .. }) = attempt {
                    if is_about_peer(reason) {
                        self.directory.mark_unreachable(peer);
                    }
                    self.promotions.lock().failed(peer, id, reason);
                    self.place(peer);
                }
            }
            CmEvent::Refused(requests) => {
                self.counters.requests_refused.fetch_add(requests, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// A peer wants a link.
    fn handle_request(&self, id: ConnectionId, peer: PeerAddress) {
        if self.is_promotion_suspended() || self.todo.lock().timers.count(Kind::Setup) >= MAX_SETUPS {
            Counters::bump(&self.counters.requests_refused);
            return self.cm.reject(id);
        }
        self.attempts.lock().insert(id, Attempt { peer, connector: false });
        if let Err(error) = self.cm.accept(id, self.control_cq, LINK_REGION_LEN) {
            // A peer that disappeared meanwhile is not a fallback reason.
            if let Some(reason) = Some(reason_of(&error)).filter(|reason| !is_about_peer(*reason)) {
                self.counters.reason(reason);
            }
            self.attempts.lock().remove(&id);
            self.cm.reject(id);
        }
    }

    /// A queue pair is connected: makes it a link, which begins with HELLO.
    fn handle_established(&self, id: ConnectionId, qp: QueuePairId, peer: PeerAddress, regions: FirstRegions) {
        let attempt = self.attempts.lock().remove(&id);
        let connector = attempt.as_ref().is_some_and(|a| a.connector && a.peer == peer);
        let link = self.add_link(qp, peer, connector, regions);
        if connector {
            self.promotions.lock().established(peer, id, &link);
        } else if let Some(attempt) = attempt.filter(|a| a.connector) {
            // Another process has answered.
            self.promotions.lock().failed(attempt.peer, id, Reason::PeerNotFound);
        }
        //= spec §2.3.1
        //# The connecting side sends HELLO first; the accepting side answers with its own.
        if connector {
            let mut tx = link.tx.lock();
            let hello = tx.proto.hello();
            // The peer may not have posted receives yet: the message then waits.
            let sent = tx.send(self.device(), hello);
            drop(tx);
            if !self.keep_sending(&link, sent) {
                self.enqueue_dead(&link);
            }
        }
        let mut tx = link.tx.lock();
        if tx.watch.resting {
            self.resume_watch(&mut tx);
        }
        let owes = tx.owes();
        drop(tx);
        if owes {
            self.enqueue_owing(&link);
        }
        self.poll_link(&link);
    }

    fn add_link(&self, qp: QueuePairId, peer: PeerAddress, connector: bool, regions: FirstRegions) -> Arc<LinkCell> {
        let caps = self.device.capabilities_of(qp);
        let depth = self.config.receive_depth.min(caps.max_recv_wr);
        let credit_interval = if caps.cheap_writes { 1 } else { depth / 4 };
        let config = LinkConfig {
            max_streams: self.config.sharing.distribution(Some(&caps), self.order.get()).most(),
            receive_depth: depth,
            credit_interval: credit_interval.max(1),
            connector,
            datagrams: self.sink.takes_flows(),
        };
        let admission =
            |key: &PreSharedKey| Admission { key: key.clone(), nonce: self.nonce(), ends: self.cm.ends(peer) };
        let proto = netacc_proto::Link::new(config, self.config.key.as_ref().map(admission));
        let link = Arc::new(LinkCell::new(self.device(), proto, qp, peer, connector, self.control_cq, regions));
        link.tx.lock().post_receives(self.device(), depth);
        self.links.write().insert(qp, link.clone());
        self.todo.lock().timers.add(Timed::Setup(qp));
        Counters::bump(&self.counters.links_established);
        link
    }

    /// Ends a link that has not become ready in time, or that has never been used.
    pub(super) fn check_setup(&self, now: Instant, qp: QueuePairId, since: Instant) -> Option<Again> {
        let link = self.links.read().get(&qp).cloned()?;
        let (ready, used) = {
            let tx = link.tx.lock();
            (tx.proto.is_ready(), tx.proto.was_used() || link.connector)
        };
        if link.is_dead() || (ready && used) {
            return None;
        }
        //= spec §2.5.5
        //# A link that is not ready for streams after SETUP_LIMIT (10 s) is ended.
        //= spec §2.5.6
        //# The accepting side ends a link on which no stream was opened within UNUSED_LIMIT (60 s).
        let at = since + if ready { UNUSED_LIMIT } else { SETUP_LIMIT };
        if now < at {
            return Some(Again { since, at });
        }
        if self.config.key.is_some() && !ready {
            self.refuse_link(&link, Reason::KeyMissing);
        }
        self.link_died(&link);
        None
    }
}
