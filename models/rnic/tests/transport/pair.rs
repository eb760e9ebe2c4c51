//! NICs on a network, and everything that came out of them.

use std::collections::BTreeMap;
use std::time::Duration;

use netacc_device::{Completion, CompletionStatus, Instant, QueuePairId, RemoteKey, WorkCompletion, WorkRequestId};
use netacc_rnic::network::{LinkConfig, Network, SwitchConfig, Topology};
use netacc_rnic::{Nic, NicConfig, NodeId, Placement, SendRequest, Verb};

/// Bits per second of most tests: 1 byte is 1 ns.
pub(crate) const BYTE_PER_NS: u64 = 8_000_000_000;
/// Bytes that every region has.
pub(crate) const REGION_BYTES: u64 = 1 << 30;

pub(crate) fn direct(delay_ns: u64) -> Topology {
    Topology::Direct(LinkConfig::clean(BYTE_PER_NS, Duration::from_nanos(delay_ns)))
}

pub(crate) fn star(delay_ns: u64, switch: SwitchConfig) -> Topology {
    Topology::Star(LinkConfig::clean(BYTE_PER_NS, Duration::from_nanos(delay_ns)), switch)
}

/// The events of one queue pair.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) completions: Vec<(Instant, WorkCompletion)>,
    /// Bytes placed of each message; panics on a gap, a repetition or a step back.
    pub(crate) placed: BTreeMap<u64, u32>,
}

impl Seen {
    /// When each receive completed, and its immediate.
    pub(crate) fn receives(&self) -> Vec<(u64, u32)> {
        let all = self.completions.iter();
        all.filter_map(|(at, wc)| match wc.completion {
            Completion::Receive { imm, .. } => Some((at.as_nanos(), imm)),
            _ => None,
        })
        .collect()
    }

    /// When each send completed, its id and how it ended.
    pub(crate) fn sends(&self) -> Vec<(u64, u64, CompletionStatus)> {
        let all = self.completions.iter();
        all.filter_map(|(at, wc)| match wc.completion {
            Completion::Send { id } => Some((at.as_nanos(), id.0, wc.status)),
            _ => None,
        })
        .collect()
    }

    /// When the queue pair died.
    pub(crate) fn disconnected(&self) -> Option<u64> {
        let dead = |wc: &WorkCompletion| wc.completion == Completion::Disconnected;
        self.completions.iter().find(|(_, wc)| dead(wc)).map(|(at, _)| at.as_nanos())
    }
}

pub(crate) struct Bench {
    pub(crate) net: Network<Nic>,
    pub(crate) seen: BTreeMap<(usize, QueuePairId), Seen>,
}

impl Bench {
    pub(crate) fn new(topology: &Topology, configs: Vec<NicConfig>, seed: u64) -> Bench {
        let nics = configs.into_iter().enumerate().map(|(i, config)| Nic::new(NodeId(i as u32), config)).collect();
        Bench { net: Network::new(topology, nics, seed), seen: BTreeMap::new() }
    }

    /// A connected pair of queue pairs, each with a region that its peer may write, under the key `rkey`.
    pub(crate) fn connect(&mut self, a: usize, b: usize, rkey: u32) -> [QueuePairId; 2] {
        let ids = [a, b].map(|n| self.net.station_mut(n).create_qp().expect("the table has room"));
        for (near, far, own, other) in [(a, b, ids[0], ids[1]), (b, a, ids[1], ids[0])] {
            let nic = self.net.station_mut(near);
            assert!(nic.connect_qp(own, NodeId(far as u32), other));
            assert!(nic.register(own, RemoteKey(rkey + near as u32), 0, REGION_BYTES));
        }
        ids
    }

    pub(crate) fn post_recv(&mut self, n: usize, qp: QueuePairId, count: u32) {
        self.net.station_mut(n).post_recv(qp, count, 0).expect("there is room");
    }

    /// Posts a WRITE WITH IMMEDIATE whose id is its immediate.
    pub(crate) fn write(&mut self, n: usize, qp: QueuePairId, rkey: u32, len: u32, imm: u32) {
        let verb = Verb::Write { rkey: RemoteKey(rkey), remote: 0, imm: Some(imm) };
        let request = SendRequest { id: WorkRequestId(u64::from(imm)), verb, len, inline: false, signaled: true };
        let now = self.net.now();
        self.net.station_mut(n).post_send(now, qp, request).expect("there is room");
        self.net.kick(n);
        self.drain(n);
    }

    /// Takes everything out of a NIC.
    fn drain(&mut self, n: usize) {
        let now = self.net.now();
        drain(self.net.station_mut(n), n, now, &mut self.seen);
    }

    /// Runs until nothing happens any more, but at most to `end`.
    pub(crate) fn run_until(&mut self, end: Duration) {
        let seen = &mut self.seen;
        self.net.run_until(Instant::ZERO + end, |net, n| {
            let now = net.now();
            drain(net.station_mut(n), n, now, seen);
        });
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(&mut self) {
        self.run_until(Duration::from_secs(3600));
        assert_eq!(self.net.next_event(), None, "it goes on for ever");
    }

    pub(crate) fn seen(&self, n: usize, qp: QueuePairId) -> &Seen {
        &self.seen[&(n, qp)]
    }
}

fn drain(nic: &mut Nic, n: usize, now: Instant, seen: &mut BTreeMap<(usize, QueuePairId), Seen>) {
    while let Some(Placement { qp, message, offset, len, .. }) = nic.poll_placement() {
        let seen = seen.entry((n, qp)).or_default();
        assert!(seen.placed.keys().all(|m| *m <= message), "message {message} after a later one");
        let placed = seen.placed.entry(message).or_default();
        assert_eq!(*placed, offset, "message {message}: bytes missing or doubled");
        *placed += len;
    }
    while let Some(qp) = nic.poll_ready(now) {
        let wc = nic.poll_completion(now, qp).expect("one report for each completion");
        seen.entry((n, qp)).or_default().completions.push((now, wc));
    }
}
