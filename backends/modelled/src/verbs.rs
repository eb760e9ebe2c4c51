//! Queue pairs of programs that use verbs themselves, beside those of the core: without a connection manager, completion queues
//! and bytes. They exist before the run, so no command makes them.

use netacc_device::{PostError, QueuePairId};
use netacc_rnic::{NodeId, SendRequest};

use crate::cluster::Cluster;
use crate::id::HostId;
use crate::verbs_events::{VerbsEnd, VerbsEvent};

impl Cluster {
    /// Connects two new queue pairs, whose peers may each write and send messages of so many bytes. `None` if a host has no
    /// room for one, or is the other one.
    pub fn join(&self, hosts: [HostId; 2], message_bytes: [u32; 2]) -> Option<[VerbsEnd; 2]> {
        self.with(|s| {
            let known = hosts.iter().all(|host| s.live(*host).is_some());
            if !known || hosts[0] == hosts[1] {
                return None;
            }
            let mut ends = [None; 2];
            for (side, host) in hosts.into_iter().enumerate() {
                let qp = s.nic(host).create_qp()?;
                let state = s.host(host);
                let region = state.regions.name(message_bytes[side]);
                state.verbs.queue_pairs.insert(qp);
                if !s.nic(host).register(qp, region.rkey, 0, u64::from(message_bytes[side])) {
                    return None;
                }
                ends[side] = Some(VerbsEnd { qp, rkey: region.rkey });
            }
            let ends = [ends[0]?, ends[1]?];
            for side in 0..2 {
                s.nic(hosts[side]).connect_qp(ends[side].qp, NodeId(hosts[1 - side].0), ends[1 - side].qp);
            }
            Some(ends)
        })
    }

    /// Posts a request on a queue pair of [`join`](Cluster::join).
    ///
    /// # Errors
    /// As [`Nic::post_send`](netacc_rnic::Nic::post_send).
    pub fn post_verbs(&self, host: HostId, qp: QueuePairId, request: SendRequest) -> Result<(), PostError> {
        self.with(|s| {
            let now = s.net.now();
            s.nic(host).post_send(now, qp, request)?;
            s.collect_results(host);
            Ok(())
        })
    }

    /// Posts receives of so many bytes each on a queue pair of [`join`](Cluster::join).
    ///
    /// # Errors
    /// As [`Nic::post_recv`](netacc_rnic::Nic::post_recv).
    pub fn post_verbs_receives(&self, host: HostId, qp: QueuePairId, count: u32, bytes: u32) -> Result<(), PostError> {
        self.with(|s| s.nic(host).post_recv(qp, count, bytes))
    }

    /// The next event of the queue pairs of [`join`](Cluster::join) on a host.
    pub fn poll_verbs(&self, host: HostId) -> Option<VerbsEvent> {
        self.with(|s| s.host(host).verbs.events.pop_front())
    }
}
