//! Links that have died, or are found dead.
//!
//! Any thread may find one; it only queues it. The control path ends each once, after it has polled for the last time.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Instant, QueuePairId};
use netacc_proto::Reason;

use super::{Again, Endpoint, Timed, RETRY_INTERVAL};
use crate::link::LinkLife;
use crate::stream::LockedStream;
use crate::{Counters, LinkCell};

/// How long the anchors of a dead link may take to report that their peer has ended. Arbitrary: the kernel closes the
/// sockets of a process within microseconds, once it has a processor for that.
const END_PATIENCE: Duration = Duration::from_millis(50);

impl Endpoint {
    pub(crate) fn enqueue_dead(&self, link: &Arc<LinkCell>) {
        if link.is_dying() {
            return;
        }
        link.advance(LinkLife::Failing);
        self.todo.lock().queued.dead.push(link.qp);
        (self.helper_needed)();
    }

    /// Ends links that were found dead, now or after another check.
    pub(super) fn end_links(&self, now: Instant, dead: Vec<QueuePairId>) {
        for qp in dead {
            let link = self.links.read().get(&qp).cloned();
            let Some(link) = link.filter(|link| link.advance(LinkLife::Dying)) else { continue };
            if let Some(again) = self.end_link(now, &link, now) {
                self.todo.lock().timers.schedule(Timed::Dying(link), again);
            }
        }
    }

    /// A link was found dead at `since`. Ends it, unless its peer may be a process that is exiting and whose sockets
    /// are closed one after the other: the anchors report that soon, and a record written to one meanwhile would be
    /// answered with a reset.
    pub(super) fn end_link(&self, now: Instant, link: &Arc<LinkCell>, since: Instant) -> Option<Again> {
        // Messages that arrived before the peer or the link died must not be lost.
        self.poll_link(link);
        let undecided = || self.streams_on(link).iter().any(|cell| cell.lock(self).change(LockedStream::may_end_yet));
        if now.saturating_since(since) < END_PATIENCE && !link.is_dead() && undecided() {
            return Some(Again { since, at: now + RETRY_INTERVAL });
        }
        self.link_died(link);
        None
    }

    /// A link is dead: all its streams leave it.
    pub(crate) fn link_died(&self, link: &Arc<LinkCell>) {
        if !link.advance(LinkLife::Dead) {
            return;
        }
        self.cache.lock().remove(link.qp);
        self.todo.lock().timers.end_setup(link.qp);
        let cells: Vec<_> = std::mem::take(&mut link.rx.lock().slots).into_iter().flatten().collect();
        self.end_flows_on(link.qp);
        // A link without streams may have been closed by the peer in good order.
        let (ready, refused, violated) = {
            let tx = link.tx.lock();
            (tx.proto.is_ready(), tx.proto.is_refused(), tx.proto.is_violated())
        };
        if !refused && (!cells.is_empty() || !ready) {
            Counters::bump(&self.counters.links_failed);
        }
        if violated {
            Counters::bump(&self.counters.violations);
        }
        if link.connector && !ready && !refused {
            self.directory.mark_unreachable(link.peer);
        }
        // The streams of a refused link have already received the reason.
        let reason = if violated { Reason::Violation } else { Reason::LinkFailed };
        if link.connector {
            self.promotions.lock().ended(link.peer, link.qp, reason);
        }
        for cell in &cells {
            let mut guard = cell.lock(self);
            // One whose slot here was still to be freed may be on another link by now.
            if !guard.link().is_some_and(|now| Arc::ptr_eq(now, link)) {
                continue;
            }
            let closed = guard.change(|stream| {
                stream.link_died();
                stream.inner.closing.is_closed()
            });
            drop(guard);
            if closed {
                self.enqueue_release(cell);
            }
        }
        self.links.write().remove(&link.qp);
        // Rings live on in the streams' regions until their bytes are read or replayed.
        self.destroy_qp(link);
        self.place(link.peer);
    }

    /// Ends an empty link. A stream that has been opened on it meanwhile leaves it again.
    pub(crate) fn destroy_link(&self, qp: QueuePairId) {
        // Not in the condition: the lock would be held while the device is waited for.
        let link = self.links.read().get(&qp).cloned();
        let Some(link) = link else { return };
        self.link_died(&link);
    }

    /// A link in this host's memory ends at once; a device may have to answer first.
    fn destroy_qp(&self, link: &LinkCell) {
        if link.caps.peer_memory {
            self.device.destroy_qp(link.qp);
        } else {
            self.sink.wait_for_device(&mut || self.device.destroy_qp(link.qp));
        }
    }
}

#[cfg(test)]
mod tests {
    use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
    use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
    use netacc_device::{FourTuple, UNKNOWN_STREAM};
    use netacc_proto::Role;

    use super::super::promotions::Waiting;
    use super::*;
    use crate::loopback::{self, Deaf};
    use crate::{EndpointConfig, StreamCell};

    fn endpoint(fabric: &Fabric) -> Endpoint {
        let config = EndpointConfig { stall_patience: None, ..loopback::config(4) };
        loopback::open(fabric.open(LoopbackConfig::soft_roce()), config, Deaf)
    }

    fn connect(opener: &Endpoint, acceptor: &Endpoint, port: u16) -> [Arc<StreamCell>; 2] {
        let end = |port| ([127, 0, 0, 1], port).into();
        let tuple = FourTuple { local: end(port), remote: end(6379) };
        let (a, b, _) = anchor_pair(AnchorConfig::default());
        let far = acceptor.adopt(Role::Acceptor, tuple.reversed(), Box::new(b));
        acceptor.publish(&far);
        [opener.adopt(Role::Opener, tuple, Box::new(a)), far]
    }

    fn run(endpoints: [&Endpoint; 2]) {
        for round in 0..20 {
            for endpoint in endpoints {
                endpoint.progress(Instant::from_nanos(round));
                endpoint.poll(endpoint.default_cq());
            }
        }
    }

    /// Breaks if a stream is opened on a link that has died since it was chosen, or if one that was opened on a link at the moment
    /// at which that was closed as empty stays on it.
    #[test]
    fn no_stream_is_left_on_a_link_that_has_ended() {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, server) = (endpoint(&fabric), endpoint(&fabric));
        let [near, far] = connect(&client, &server, 40_001);
        client.promote(&near).expect("the acceptor is published");
        run([&client, &server]);
        let link_of = |endpoint: &Endpoint, cell: &Arc<StreamCell>| cell.lock(endpoint).link().cloned();
        let theirs = link_of(&server, &far).expect("it is linked");
        let ours = link_of(&client, &near).expect("it is linked");

        server.destroy_link(theirs.qp);
        assert!(!far.lock(&server).proto().is_linked());

        // As while another thread ends it: its streams have left it, and its queue pair is still there.
        ours.advance(LinkLife::Dead);
        let [stream, _] = connect(&client, &server, 40_002);
        let waiting = Waiting { stream: stream.clone(), hint: UNKNOWN_STREAM };
        assert_eq!(client.open_on(&ours, waiting, None), Err(Reason::LinkFailed));
        assert!(stream.lock(&client).link().is_none());
    }
}
