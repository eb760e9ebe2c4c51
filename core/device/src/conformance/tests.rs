//! The suite on the in-memory devices, through each middleware, and on devices broken on purpose.

mod broken;
mod fixture;

use std::sync::Arc;

use broken::{Broken, Flaw};
use fixture::LoopbackFixture;

use super::{run, Outcome, Report, Side};
use crate::loopback::{DeliveryMode, LoopbackConfig, SlotRelease};
use crate::middleware::{read_records, Event, Fault, FaultConfig, Record, Trace};
use crate::Device;

fn devices() -> [LoopbackConfig; 4] {
    [LoopbackConfig::shm(), LoopbackConfig::erdma(), LoopbackConfig::soft_roce(), LoopbackConfig::send_only()]
}

fn assert_passes(report: &Report) {
    assert!(report.is_success(), "{report}");
}

// Breaks if the in-memory device, in any of its configurations, breaks a guarantee of the traits.
#[test]
fn every_device_passes_with_immediate_delivery() {
    for config in devices() {
        assert_passes(&run(&mut LoopbackFixture::new(DeliveryMode::Immediate, config)));
    }
}

// Breaks if explicit delivery breaks a guarantee, or some order of deliveries does.
#[test]
fn every_device_passes_with_any_order_of_deliveries() {
    for config in devices() {
        assert_passes(&run(&mut LoopbackFixture::new(DeliveryMode::Explicit, config.clone())));
        for seed in 0..20 {
            let mut fixture = LoopbackFixture::new(DeliveryMode::Explicit, config.clone());
            fixture.step_by_seed(seed);
            let report = run(&mut fixture);
            assert!(report.is_success(), "seed {seed}: {report}");
        }
    }
}

// Breaks if the two ways of freeing send slots are mixed up.
#[test]
fn slots_on_delivery_pass_on_every_device() {
    for mut config in devices() {
        config.slot_release = SlotRelease::OnDelivery;
        assert_passes(&run(&mut LoopbackFixture::new(DeliveryMode::Immediate, config)));
    }
}

// Breaks if a check is skipped silently, or a capability switches off unrelated checks.
#[test]
fn skips_are_the_listed_ones() {
    let skipped = |config| {
        let report = run(&mut LoopbackFixture::new(DeliveryMode::Immediate, config));
        report.skipped().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let always = ["channel_fd_readiness", "qp_wait", "knock_calls_the_first_queue"];
    let of = |names: &[&'static str]| [names, &always].concat().into_iter().collect::<std::collections::BTreeSet<_>>();
    let set = |names: Vec<&'static str>| names.into_iter().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(
        set(skipped(LoopbackConfig::shm())),
        of(&["write_with_imm_needs_capability", "send_in_order", "in_place_needs_capability", "sends_bring_bytes"])
    );
    let no_peer_memory = [
        "in_place_through_window",
        "window_descriptor_is_checked",
        "discarded_memory_is_a_tail",
        "window_after_the_peer_has_ended",
        "rebind_moves_completions",
    ];
    assert_eq!(
        set(skipped(LoopbackConfig::erdma())),
        of(&[&no_peer_memory[..], &["write_with_imm_needs_capability", "send_in_order"]].concat())
    );
    assert_eq!(
        set(skipped(LoopbackConfig::send_only())),
        of(&[&no_peer_memory[..], &["write_with_imm_in_order", "queues_do_not_mix", "freed_region_is_gone"]].concat())
    );
}

/// Runs the suite with each device wrapped.
fn run_wrapped(config: LoopbackConfig, wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device>) -> Report {
    let mut fixture = LoopbackFixture::new(DeliveryMode::Immediate, config);
    Side::BOTH.into_iter().for_each(|side| fixture.wrap(side, &wrap));
    run(&mut fixture)
}

// Breaks if a middleware with nothing switched on changes anything.
#[test]
fn every_device_passes_through_every_middleware() {
    for config in devices() {
        assert_passes(&run_wrapped(config.clone(), |d| Arc::new(Trace::new(d, |_: &_| ()))));
        assert_passes(&run_wrapped(config.clone(), |d| Arc::new(Fault::new(d, FaultConfig::default()))));
        assert_passes(&run_wrapped(config.clone(), |d| {
            Arc::new(Record::start(d, std::io::sink(), false).expect("a sink takes everything"))
        }));
        let stacked = |d| {
            let fault: Arc<dyn Device> = Arc::new(Fault::new(d, FaultConfig::default()));
            Arc::new(Trace::new(fault, |_: &_| ())) as Arc<dyn Device>
        };
        assert_passes(&run_wrapped(config, stacked));
    }
}

// Breaks if late or reordered reports lose, double or reorder completions, or make `pending` or `arm` wrong.
#[test]
fn delays_and_reordering_keep_every_promise() {
    for config in devices() {
        for seed in 0..10 {
            for (delay_polls, reorder_per_mille) in [(1, 0), (5, 0), (0, 300), (3, 300)] {
                let faults = FaultConfig { seed, delay_polls, reorder_per_mille, ..FaultConfig::default() };
                let report = run_wrapped(config.clone(), |d| Arc::new(Fault::new(d, faults.clone())));
                assert!(report.is_success(), "seed {seed}, delay {delay_polls}, {reorder_per_mille}: {report}");
            }
        }
    }
}

// Breaks if a recording of a whole run cannot be read back.
#[test]
fn a_recorded_run_reads_back() {
    let mut fixture = LoopbackFixture::new(DeliveryMode::Immediate, LoopbackConfig::erdma());
    let log = fixture::SharedLog::default();
    fixture.wrap(Side::A, &|d| Arc::new(Record::start(d, log.clone(), false).expect("memory takes everything")));
    assert_passes(&run(&mut fixture));
    let bytes = log.bytes();
    let (header, records) = read_records(&bytes[..]).expect("has a header");
    assert_eq!(header.device, "loopback-erdma");
    let events: Vec<Event> = records.map(|r| r.expect("every line parses").event).collect();
    let posts = events.iter().filter(|e| matches!(e, Event::PostSend { .. })).count();
    let refused = events.iter().filter(|e| matches!(e, Event::AllocRegion { result: Err(_), .. })).count();
    assert!(posts > 100 && refused > 0, "{posts} posts, {refused} refused regions");
}

// Breaks if the suite passed a device that behaves wrongly.
#[test]
fn broken_devices_are_found_out() {
    for config in devices() {
        assert_passes(&run_wrapped(config, |d| Arc::new(Broken::new(d, Flaw::Nothing))));
    }
    for (flaw, config, expected) in Flaw::all() {
        let report = run_wrapped(config.clone(), |d| Arc::new(Broken::new(d, flaw)));
        let outcome = report.outcome(expected);
        assert!(matches!(outcome, Some(Outcome::Failed(_))), "{flaw:?} on {}: {outcome:?}\n{report}", config.name);
    }
}
