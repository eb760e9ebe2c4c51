//! Fixed seeds of conversations by datagrams.

use netacc_harness::{run_datagrams, DatagramSummary, Options, Preset};

fn seeds(from: u64, to: u64, preset: Preset) -> DatagramSummary {
    let mut total = DatagramSummary::default();
    for seed in from..to {
        let options = Options { preset: Some(preset), ..Options::default() };
        total += run_datagrams(seed, &options).unwrap_or_else(|failure| {
            panic!(
                "{failure}\nreplay: cargo run -p netacc-harness -- --datagrams --seed {seed} --preset {}",
                preset.as_str()
            )
        });
    }
    total
}

// Breaks if messages of a flow that find a queue full are noted twice each time: the run would not end.
#[test]
fn a_link_without_room_is_tried_once_at_a_time() {
    seeds(266, 267, Preset::Nic);
}

//= spec §10.6.7
//= type=test
//# A connector that has sent CLOSE for a flow closes the link only once its peer has consumed that message, or has not
//# said so for a second.
// Breaks if a link with flows of the peer's expires (seed 8), or one closes before the sender has the last status (seed 530).
#[test]
fn links_stay_while_flows_need_them() {
    seeds(8, 9, Preset::Erdma);
    seeds(530, 531, Preset::Erdma);
}

// Breaks if a datagram on a link is lost, doubled, changed or held back from a sleeper.
#[test]
fn every_preset_carries_datagrams() {
    for (from, preset) in [(0, Preset::Erdma), (1000, Preset::Rxe), (2000, Preset::Silent), (3000, Preset::Nic)] {
        let total = seeds(from, from + 60, preset);
        assert!(total.by_link * 10 > total.sent && total.returned > 100 && total.lost > 10, "{preset:?}: {total:?}");
    }
}
