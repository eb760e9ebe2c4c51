//! A driver that writes anything anywhere.

use std::time::Duration;

use netacc_erdma::wire::modelled::WireSettings;
use netacc_erdma::{EmptyReceiveQueue, GuestMemory};
use proptest::prelude::*;

use crate::driver::{Lab, Request};

/// An action of such a driver.
#[derive(Clone, Debug)]
enum Act {
    /// Writes to BAR 0.
    Register(u64, Vec<u8>),
    /// Rings a doorbell with a number that may exist.
    Doorbell(u64, u64),
    /// A command whose number exists.
    Command((u8, u8), bool, Vec<(usize, u64)>),
    /// Overwrites memory: queues, tables, any address.
    Scribble(u64, Vec<u8>),
    /// A request on a queue pair that exists, of any content.
    Send(usize, Vec<u8>),
    /// A receive of any content.
    Receive(usize, u64, u32, u32),
    Reset,
    Time(u64),
}

/// Numbers that are at an edge, or small, or addresses of the guest's memory, or none of these.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..16u64,
        prop::sample::select(vec![u64::MAX, 1 << 31, 1 << 63, 0xffff, 0xf_ffff, 1 << 20]),
        0x10_0000..0x14_0000u64,
        any::<u64>(),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let offset = prop_oneof![0..0x400u64, 0x1000..0x1010u64, 0x61000..0x61010u64, 0x79000..0x79010u64, any::<u64>()];
    let bytes = |len| prop::collection::vec(any::<u8>(), len);
    let doorbell = prop::sample::select(vec![0x50, 0x100, 0x108, 0x200, 0x300, 0x1000, 0x61000, 0x79000u64]);
    let kind = prop_oneof![(0..1u8, 0..13u8), (1..2u8, 0..13u8), any::<(u8, u8)>()];
    let fields = prop::collection::vec((0..14usize, prop_oneof![number(), any::<u32>().prop_map(u64::from)]), 0..14);
    prop_oneof![
        2 => (offset, bytes(0..12)).prop_map(|(at, bytes)| Act::Register(at, bytes)),
        4 => (doorbell, 0..8u64, number()).prop_map(|(at, high, low)| Act::Doorbell(at, high << 32 | low & 0xffff_ffff)),
        6 => (kind, any::<bool>(), fields).prop_map(|(kind, long, fields)| Act::Command(kind, long, fields)),
        3 => (0x10_0000..0x14_0000u64, bytes(0..64)).prop_map(|(at, bytes)| Act::Scribble(at, bytes)),
        4 => (0..2usize, bytes(32..129), 0..32u8).prop_map(|(qp, mut bytes, code)| {
            bytes.truncate(bytes.len() / 32 * 32);
            // A number that exists, and few pieces.
            bytes[3] = code << 3 | bytes[3] & 7;
            bytes[4..7].fill(0);
            bytes[7] &= 7;
            Act::Send(qp, bytes)
        }),
        2 => (0..2usize, number(), any::<u32>(), any::<u32>()).prop_map(|(qp, at, len, key)| Act::Receive(qp, at, len, key)),
        1 => Just(Act::Reset),
        1 => (0..1_000_000u64).prop_map(Act::Time),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    // Breaks if any input of a guest panics, takes memory without a bound, or never ends.
    #[test]
    fn nothing_panics(acts in prop::collection::vec(act(), 1..120), modelled in any::<bool>(), stall in any::<bool>()) {
        let (mut lab, mut qps, _) = Lab::connected();
        if modelled {
            let delay = Duration::from_micros(5);
            lab.fabric.set_wire(WireSettings { delay, loss_ppm: 100_000, ..WireSettings::default() });
        }
        for function in [0, 1] {
            lab.set(function, |settings| {
                settings.limits.atomics = true;
                if stall {
                    settings.empty_receive_queue = EmptyReceiveQueue::Stall;
                }
            });
        }
        for act in acts {
            match act {
                Act::Register(at, bytes) => {
                    lab.fabric.write(0, at, &bytes);
                    lab.run();
                }
                Act::Doorbell(at, value) => lab.doorbell(0, at, value),
                Act::Command((module, number), long, fields) => {
                    let mut request = Request::new(module, number);
                    if long {
                        request = request.long();
                    }
                    for (field, value) in fields {
                        request = request.u32(8 + 4 * (field % 14), value as u32);
                    }
                    lab.post_command(0, &request);
                }
                // Outside of its memory there is nothing to write to.
                Act::Scribble(at, bytes) => drop(lab.fabric.host_mut(0).write(at, &bytes)),
                Act::Send(qp, bytes) => {
                    lab.post_send(&mut qps[qp], &bytes);
                }
                Act::Receive(qp, at, len, key) => lab.post_receive(&mut qps[qp], at, len, key),
                Act::Reset => {
                    lab.write32(0, 0x10, 3);
                }
                Act::Time(ns) => lab.advance(Duration::from_nanos(ns)),
            }
        }
    }
}
