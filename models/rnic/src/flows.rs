//! Stations that send messages at given times: the simplest workload, the same on every network.

use netacc_device::{Completion, CompletionStatus, Instant, QueuePairId, RemoteKey, WorkRequestId};

use crate::network::Station;
use crate::{Nic, NicConfig, NodeId, Packet, SendRequest, Verb};

/// One message from one station to another, on queue pairs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The sender.
    pub src: u32,
    /// The receiver.
    pub dst: u32,
    /// Bytes.
    pub bytes: u32,
    /// When it is posted.
    pub start: Instant,
}

/// The outcome of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver saw it complete.
    Delivered(Instant),
    /// The sender's queue pair failed.
    Failed(Instant),
}

/// A NIC, its messages to send, and their outcomes.
pub struct FlowStation {
    nic: Nic,
    /// By time; those before `next` were posted.
    posts: Vec<(Instant, QueuePairId, SendRequest)>,
    next: usize,
    outcomes: Vec<(u32, Outcome)>,
}

impl FlowStation {
    /// `count` stations with the same NIC, and flows between them. `None` if a flow names a station that does not exist, or
    /// there are more than the NICs have room for.
    pub fn build(count: u32, config: &NicConfig, flows: &[Flow]) -> Option<Vec<FlowStation>> {
        let station = |n| FlowStation {
            nic: Nic::new(NodeId(n), config.clone()),
            posts: Vec::new(),
            next: 0,
            outcomes: Vec::new(),
        };
        let mut stations: Vec<FlowStation> = (0..count).map(station).collect();
        for (number, flow) in flows.iter().enumerate() {
            let number = u32::try_from(number).ok()?;
            let near = stations.get_mut(flow.src as usize)?.nic.create_qp()?;
            let far = stations.get_mut(flow.dst as usize)?.nic.create_qp()?;
            let rkey = RemoteKey(number);
            let joined = stations[flow.src as usize].nic.connect_qp(near, NodeId(flow.dst), far);
            let receiver = &mut stations[flow.dst as usize].nic;
            let joined = joined && receiver.connect_qp(far, NodeId(flow.src), near);
            let ready = receiver.register(far, rkey, 0, u64::from(flow.bytes)) && receiver.post_recv(far, 1, 0).is_ok();
            if !joined || !ready {
                return None;
            }
            let verb = Verb::Write { rkey, remote: 0, imm: Some(number) };
            let id = WorkRequestId(u64::from(number));
            let request = SendRequest { id, verb, len: flow.bytes, inline: false, signaled: true };
            stations[flow.src as usize].posts.push((flow.start, near, request));
        }
        for station in &mut stations {
            station.posts.sort_by_key(|(start, qp, _)| (*start, *qp));
        }
        Some(stations)
    }

    /// Its NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// The outcomes of flows so far: deliveries to this station, and failures of its own, by number of the flow.
    pub fn outcomes(&self) -> &[(u32, Outcome)] {
        &self.outcomes
    }

    /// Posts what is due, and takes out what has come.
    fn progress(&mut self, now: Instant) {
        while let Some((_, qp, request)) = self.posts.get(self.next).filter(|(start, ..)| *start <= now) {
            if self.nic.post_send(now, *qp, *request).is_err() {
                self.outcomes.push((request.id.0 as u32, Outcome::Failed(now)));
            }
            self.next += 1;
        }
        while self.nic.poll_placement().is_some() {}
        while let Some(qp) = self.nic.poll_ready(now) {
            let Some(wc) = self.nic.poll_completion(now, qp) else { continue };
            match wc.completion {
                Completion::Receive { imm, .. } => self.outcomes.push((imm, Outcome::Delivered(now))),
                Completion::Send { id } if wc.status != CompletionStatus::Success => {
                    self.outcomes.push((id.0 as u32, Outcome::Failed(now)));
                }
                _ => {}
            }
        }
    }
}

impl Station for FlowStation {
    fn handle_packet(&mut self, now: Instant, packet: Packet) {
        self.nic.handle_packet(now, packet);
        self.progress(now);
    }

    fn handle_timer(&mut self, now: Instant) {
        self.nic.handle_timer(now);
        self.progress(now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        self.nic.poll_transmit(now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let post = self.posts.get(self.next).map(|(start, ..)| *start);
        post.into_iter().chain(self.nic.next_deadline()).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::network::{LinkConfig, Network, SwitchConfig, Topology};

    // Breaks if a flow starts at another time than its own, or its end is not reported: two flows of one packet each, one after
    // the other.
    #[test]
    fn flows_start_and_end() {
        let config = NicConfig { mtu_bytes: 1000, ..NicConfig::ideal(8_000_000_000) };
        let at = Instant::from_nanos;
        let flow = |start| Flow { src: 0, dst: 1, bytes: 1000, start: at(start) };
        let stations = FlowStation::build(2, &config, &[flow(50_000), flow(10)]).expect("both exist");
        let link = LinkConfig::clean(8_000_000_000, Duration::from_nanos(100));
        let switch = SwitchConfig { buffer_bytes: 1 << 20, marking: None };
        let mut net = Network::new(&Topology::Star(link, switch), stations, 0);
        net.kick(0);
        while net.step() {}
        let took = 2 * (1000 + 82 + 16 + 4 + 100);
        let expected = [(1, Outcome::Delivered(at(10 + took))), (0, Outcome::Delivered(at(50_000 + took)))];
        assert_eq!(net.station(1).outcomes(), expected);
        assert!(FlowStation::build(1, &config, &[flow(0)]).is_none());
    }
}
