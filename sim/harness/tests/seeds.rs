//! A few hundred fixed seeds, and the same run twice.

use netacc_harness::{run, Crowd, Options, Preset};

fn seeds(from: u64, to: u64, options: &Options) {
    for seed in from..to {
        if let Err(failure) = run(seed, options) {
            let preset = options.preset.map_or(String::new(), |p| format!(" --preset {}", p.as_str()));
            panic!("{failure}\nreplay: cargo run -p netacc-harness -- --seed {seed} --trace{preset}");
        }
    }
}

// Breaks if shared memory with mapped rings loses, doubles or reorders anything, or leaves anything behind.
#[test]
fn shm() {
    seeds(10_000, 10_200, &Options { preset: Some(Preset::Shm), ..Options::default() });
}

// Breaks if the protocol needs anything that eRDMA does not give: receives, signals, inline room.
#[test]
fn erdma() {
    seeds(20_000, 20_200, &Options { preset: Some(Preset::Erdma), ..Options::default() });
}

// Breaks if messages that wait for receives, or reported flushes, confuse the driver.
#[test]
fn rxe() {
    seeds(30_000, 30_200, &Options { preset: Some(Preset::Rxe), ..Options::default() });
}

// Breaks if streams stand still, or lose anything, where their links fall silent without an event.
#[test]
fn silent() {
    let options = Options { preset: Some(Preset::Silent), ..Options::default() };
    seeds(50_000, 50_200, &options);
    let mut total = netacc_harness::Summary::default();
    for seed in 50_000..50_200 {
        total += run(seed, &options).unwrap_or_else(|f| panic!("{f}"));
    }
    assert!(total.links_failed > 20, "{total:?}");
}

// Breaks if the protocol does not stand a modelled NIC on a network with times, losses and reordering: completions
// that are late, pauses, retries, connecting that takes round trips.
#[test]
fn nic() {
    seeds(40_000, 40_200, &Options { preset: Some(Preset::Nic), ..Options::default() });
}

// Breaks if streams that share a link get each other's bytes, also when a process leaves all its links for good.
#[test]
fn crowded_links() {
    for crowd in [Crowd::Configured, Crowd::Automatic] {
        let mut total = netacc_harness::Summary::default();
        for preset in [Preset::Shm, Preset::Erdma, Preset::Rxe] {
            let options = Options { preset: Some(preset), crowded: Some(crowd), ..Options::default() };
            for seed in 60_000..60_050 {
                total += run(seed, &options).unwrap_or_else(|failure| {
                    let (preset, crowd) = (preset.as_str(), crowd.as_str());
                    let replay = format!("netacc-harness --seed {seed} --trace --preset {preset} --crowded={crowd}");
                    panic!("{failure}\nreplay: {replay}")
                });
            }
        }
        assert!(total.shortages > 50 && total.reasons.get("descriptor-limit").is_some_and(|n| *n > 500), "{total:?}");
        assert!(total.promotions > 500 && total.link_bytes * 20 > total.bytes, "{total:?}");
        assert_eq!(total.sharing_stopped, 0, "{total:?}");
    }
}

// Breaks if anything in core, driver or harness depends on hash order, on addresses or on time.
#[test]
fn a_seed_replays_exactly() {
    for preset in [None, Some(Preset::Nic)] {
        let options = Options { preset, ..Options::default() };
        for seed in 0..40 {
            let [first, second] = [0, 1].map(|_| format!("{:?}", run(seed, &options)));
            assert_eq!(first, second, "seed {seed} {preset:?}");
        }
    }
}

// Breaks if the hash of a network's deliveries does not depend on them: every seed has its own.
#[test]
fn networks_run_independently() {
    let options = Options { preset: Some(Preset::Nic), ..Options::default() };
    let traces: std::collections::BTreeSet<_> =
        (0..20).map(|seed| run(seed, &options).unwrap_or_else(|f| panic!("{f}")).network_trace).collect();
    assert!(traces.len() == 20 && !traces.contains(&None), "{traces:?}");
}

// Breaks if a preset's streams all stay on TCP, which is otherwise no failure: a control message that cannot go inline, a
// HELLO that meets a peer without receives.
#[test]
fn every_preset_promotes() {
    for preset in Preset::ALL {
        let mut total = netacc_harness::Summary::default();
        for seed in 0..60 {
            total +=
                run(seed, &Options { preset: Some(preset), ..Options::default() }).unwrap_or_else(|f| panic!("{f}"));
        }
        assert!(total.promotions > 60 && total.link_bytes * 20 > total.bytes, "{preset:?}: {total:?}");
    }
}

// Breaks if the runs no longer reach the cases that they are for.
#[test]
fn runs_cover_the_paths_of_a_stream() {
    let mut total = netacc_harness::Summary::default();
    for seed in 0..150 {
        total += run(seed, &Options::default()).unwrap_or_else(|f| panic!("{f}"));
    }
    assert!(total.promotions > 200 && total.demotions > 80, "{total:?}");
    assert!(total.links_failed > 30 && total.crashes > 20, "{total:?}");
    assert!(total.link_bytes * 20 > total.bytes, "{total:?}");
    for reason in ["link-failed", "peer-request", "requested", "pledge-voided", "links_reused", "opens_refused"] {
        assert!(total.reasons.get(reason).is_some_and(|n| *n > 0), "no {reason}: {total:?}");
    }
}
