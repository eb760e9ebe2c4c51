//! The same exchange through rings, doorbells and the modelled wire, and between two NICs of `netacc-rnic` in a simulated
//! network: each is held against the other, to the nanosecond.

use std::time::Duration;

use netacc_device::{Completion, CompletionStatus, Instant, QueuePairId, WorkRequestId};
use netacc_erdma::wire::modelled::{WireSettings, MILLION};
use netacc_rnic::network::{LinkConfig, Network, Topology};
use netacc_rnic::{Nic, NicConfig, NodeId, SendRequest, Verb};

use crate::driver::{sqe, Lab, ALL, DOMAIN};

/// Messages of less than a packet, of one, and of several.
const SIZES: [u32; 5] = [64, 0, 1024, 10_000, 1];
const RATE_BPS: u64 = 1_000_000_000;

fn wire() -> WireSettings {
    WireSettings {
        delay: Duration::from_micros(10),
        rate_bps: RATE_BPS,
        mtu_bytes: 1024,
        retry_timeout: Duration::from_micros(500),
        retry_count: 3,
        ..WireSettings::default()
    }
}

/// The times of an exchange, from its beginning, in the order in which they came.
#[derive(Debug, Default, PartialEq, Eq)]
struct Times {
    /// Of the sender's completions: success, and when.
    sent: Vec<(bool, Duration)>,
    /// At which each message is there.
    received: Vec<Duration>,
}

/// All messages at once, from the first function to the second one.
fn on_the_device(settings: WireSettings) -> Times {
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    lab.fabric.set_wire(settings);
    let [near, far] = [0, 1].map(|function| lab.register(function, 16 << 10, ALL, DOMAIN));
    for _ in SIZES {
        lab.post_receive(&mut qps[1], far.va, 16 << 10, far.key);
    }
    for len in SIZES {
        let pieces = [sqe::of(&near, len)];
        let list = if len == 0 { &[][..] } else { &pieces[..] };
        lab.write_request(&mut qps[0], &sqe::send(2, 0, [0; 4], list));
    }
    let began = lab.now;
    lab.ring_send(&qps[0]);
    let mut times = Times::default();
    loop {
        let now = lab.now - began;
        times.sent.extend(lab.drain(0, &mut cqs[0]).iter().map(|cqe| (cqe.status == 0, now)));
        times.received.extend(lab.drain(1, &mut cqs[1]).iter().filter(|cqe| cqe.status == 0).map(|_| now));
        let Some(at) = lab.fabric.next_deadline() else { return times };
        lab.advance(at.saturating_since(lab.now));
    }
}

/// The same between two NICs.
fn simulated(settings: &WireSettings, cut: bool) -> Times {
    let config = NicConfig {
        mtu_bytes: settings.mtu_bytes,
        retry_timeout: settings.retry_timeout,
        retry_count: settings.retry_count,
        no_receive_is_fatal: true,
        ..NicConfig::ideal(settings.rate_bps)
    };
    let nics = (0..2).map(|node| Nic::new(NodeId(node), config.clone())).collect();
    let link = LinkConfig::clean(settings.rate_bps, settings.delay);
    let mut network = Network::new(&Topology::Direct(link), nics, 0);
    let [near, far] = [0, 1].map(|at| network.station_mut(at).create_qp().expect("there is room"));
    assert!(network.station_mut(0).connect_qp(near, NodeId(1), far));
    assert!(network.station_mut(1).connect_qp(far, NodeId(0), near));
    network.station_mut(1).post_recv(far, SIZES.len() as u32, 16 << 10).expect("there is room");
    network.set_cut(0, cut);
    for (number, len) in SIZES.into_iter().enumerate() {
        let id = WorkRequestId(number as u64);
        let request = SendRequest { id, verb: Verb::Send { imm: None }, len, inline: false, signaled: true };
        network.station_mut(0).post_send(Instant::ZERO, near, request).expect("there is room");
        network.kick(0);
    }
    let mut times = Times::default();
    while network.step() {
        take(&mut network, 0, near, &mut times);
        take(&mut network, 1, far, &mut times);
    }
    times
}

fn take(network: &mut Network<Nic>, at: usize, qp: QueuePairId, times: &mut Times) {
    let now = network.now();
    while let Some(wc) = network.station_mut(at).poll_completion(now, qp) {
        let since = now - Instant::ZERO;
        match wc.completion {
            Completion::Send { .. } => times.sent.push((wc.status == CompletionStatus::Success, since)),
            Completion::Receive { .. } if wc.status == CompletionStatus::Success => times.received.push(since),
            _ => {}
        }
    }
}

// Breaks if the rings, the doorbells or the wire of an emulated function add, lose or reorder anything that the simulated
// network does not, or if the two read a rate, a delay or a packet's length differently.
#[test]
fn an_exchange_takes_as_long_as_in_simulation() {
    let times = on_the_device(wire());
    assert_eq!(times, simulated(&wire(), false));
    assert_eq!((times.sent.len(), times.received.len()), (SIZES.len(), SIZES.len()));
    // 11,089 bytes take 88.7 us; every packet has headers besides.
    let last = times.received[SIZES.len() - 1];
    assert!(last > Duration::from_micros(98) && last < Duration::from_micros(120), "{last:?}");
}

// Breaks if a function gives up earlier or later than a simulated NIC, or reports other requests.
#[test]
fn a_dead_wire_is_given_up_when_a_simulated_nic_gives_up() {
    let lost = on_the_device(WireSettings { loss_ppm: MILLION, ..wire() });
    let cut = simulated(&wire(), true);
    assert_eq!(lost.sent[0], cut.sent[0]);
    assert_eq!((lost.received.len(), cut.received.len()), (0, 0));
    assert_eq!(lost.sent.len(), SIZES.len(), "the others are flushed");
    assert!(lost.sent.iter().chain(&cut.sent).all(|(success, at)| !success && *at == cut.sent[0].1));
}
