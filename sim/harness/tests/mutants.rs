//! Shows that the harness can fail: each deliberate fault is noticed within a few hundred seeds.

use netacc_harness::{run, Crowd, Mutant, Options, Preset, Summary, What};

/// Seeds tried before a mutant counts as missed.
const SEEDS: u64 = 400;
/// Seeds of each kind with a device that repeats requests.
const REPEATING_SEEDS: u64 = 100;

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
    let shm = [What::Stuck, What::WrongByte, What::Violation, What::FalseEnd];
    caught(Mutant::DropData, Some(Preset::Shm), &shm);
    caught(Mutant::DropData, Some(Preset::Rxe), &[What::OutOfTurn]);
}

#[test]
fn a_doubled_data_message() {
    caught(Mutant::DuplicateData, Some(Preset::Shm), &[What::WrongByte, What::Violation]);
    caught(Mutant::DuplicateData, Some(Preset::Erdma), &[What::OutOfTurn]);
}

#[test]
fn two_data_messages_reordered() {
    caught(Mutant::ReorderData, Some(Preset::Rxe), &[What::OutOfTurn]);
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
    // Between hosts, where messages are numbered, the next one shows the loss.
    caught(Mutant::DropGive, None, &[What::Stuck, What::LostEdge, What::Restless, What::OutOfTurn]);
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
    caught(Mutant::DropData, Some(Preset::Nic), &[What::OutOfTurn]);
}

/// Breaks if a message that a device executes again counts twice, or if an old credit word that it writes again is a violation or
/// leaves a stream waiting.
#[test]
fn repeated_requests_end_links_and_harm_nothing_else() {
    for preset in [Preset::Rxe, Preset::Erdma] {
        for crowded in [None, Some(Crowd::Configured), Some(Crowd::Automatic)] {
            let options = Options { mutant: Some(Mutant::Repeat), preset: Some(preset), crowded, ..Options::default() };
            let mut total = Summary::default();
            for seed in 0..REPEATING_SEEDS {
                total += run(seed, &options).unwrap_or_else(|failure| panic!("{preset:?}: {failure}"));
            }
            assert!(total.links_out_of_turn > REPEATING_SEEDS / 4, "{total:?}");
            assert!(total.link_bytes > 0, "{total:?}");
            assert_eq!(total.sharing_stopped > REPEATING_SEEDS / 4, crowded == Some(Crowd::Automatic), "{total:?}");
        }
    }
}
