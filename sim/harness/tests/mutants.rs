//! Shows that the harness can fail: each deliberate fault is noticed within a few hundred seeds.

use netacc_harness::{run, Mutant, Options, Preset, What};

/// Seeds tried before a mutant counts as missed.
const SEEDS: u64 = 400;

/// The first failing seed, its failure, and that the same seed is fine without the mutant.
fn caught(mutant: Mutant, preset: Option<Preset>, expected: &[What]) {
    let options = Options { mutant: Some(mutant), preset, ..Options::default() };
    let honest = Options { mutant: None, ..options.clone() };
    let mut seen = Vec::new();
    for seed in 0..SEEDS {
        let Err(failure) = run(seed, &options) else { continue };
        // Something that is broken anyway proves nothing about the mutant.
        if run(seed, &honest).is_err() {
            continue;
        }
        eprintln!("{mutant:?}: seed {seed}: {:?}: {}", failure.broken.what, failure.broken.detail);
        if expected.contains(&failure.broken.what) {
            return;
        }
        seen.push(failure.broken.what);
    }
    panic!("{mutant:?} was not noticed in {SEEDS} seeds as any of {expected:?}; seen {seen:?}");
}

#[test]
fn a_lost_data_message() {
    caught(Mutant::DropData, None, &[What::Stuck, What::WrongByte, What::Violation, What::FalseEnd]);
}

#[test]
fn a_doubled_data_message() {
    caught(Mutant::DuplicateData, None, &[What::WrongByte, What::Violation]);
}

#[test]
fn two_data_messages_reordered() {
    caught(Mutant::ReorderData, Some(Preset::Rxe), &[What::WrongByte, What::Violation]);
}

#[test]
fn a_corrupt_byte() {
    caught(Mutant::CorruptData, Some(Preset::Erdma), &[What::WrongByte]);
}

#[test]
fn a_corrupt_credit_word() {
    caught(Mutant::CorruptCredit, Some(Preset::Erdma), &[What::Violation, What::Stuck, What::FalseError]);
}

#[test]
fn a_lost_give() {
    // Where the idle time of a seed is short, a stream that waits for ever is checked too often for the drain to end.
    caught(Mutant::DropGive, None, &[What::Stuck, What::LostEdge, What::Restless]);
}

#[test]
fn an_unreported_death() {
    caught(Mutant::DropDisconnect, None, &[What::Stuck, What::Leak, What::LostEdge]);
}

#[test]
fn a_lost_resume() {
    caught(Mutant::DropResume, None, &[What::Stuck, What::Violation, What::FalseError, What::WrongByte]);
}

#[test]
fn anchor_bytes_doubled() {
    caught(Mutant::DuplicateAnchor, None, &[What::WrongByte]);
}

#[test]
fn a_swallowed_edge() {
    caught(Mutant::DropEdge, None, &[What::LostEdge, What::Stuck]);
}

#[test]
fn a_region_not_given_back() {
    // Elsewhere links keep the regions of streams that have left.
    caught(Mutant::LeakRegion, Some(Preset::Shm), &[What::Leak]);
}

#[test]
fn a_corrupt_byte_and_a_lost_message_on_modelled_nics() {
    caught(Mutant::CorruptData, Some(Preset::Nic), &[What::WrongByte]);
    caught(Mutant::DropData, Some(Preset::Nic), &[What::Stuck, What::WrongByte, What::Violation, What::FalseEnd]);
}
