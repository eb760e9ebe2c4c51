//! Long random schedules on the same world: many bytes, many attempts, many deaths.

use proptest::prelude::*;

use crate::check::{is_complete, quiescent};
use crate::world::{Bounds, Step, Trust, World};

/// Takes steps chosen by `choices`, then lets everything that happens by itself happen.
fn run(bounds: &Bounds, choices: &[u16]) -> Result<(), TestCaseError> {
    let mut world = World::new(bounds);
    for &choice in choices {
        let mut steps = Vec::new();
        world.internal_steps(bounds, &mut steps);
        world.reading_steps(&mut steps);
        world.free_steps(bounds, &mut steps);
        if steps.is_empty() {
            break;
        }
        // Ends are rare, or no schedule would be long.
        let step = steps[usize::from(choice) % steps.len()];
        let ends = matches!(step, Step::Shutdown(_) | Step::Close(_) | Step::Abort(_) | Step::Crash(_));
        if ends && choice % 16 != 0 {
            continue;
        }
        take(bounds, &mut world, step)?;
    }
    drain(bounds, &mut world)?;
    prop_assert!(is_complete(&world), "not settled: {world:?}");
    Ok(())
}

fn take(bounds: &Bounds, world: &mut World, step: Step) -> Result<(), TestCaseError> {
    if let Some(next) = world.after(bounds, step) {
        *world = next;
    }
    prop_assert_eq!(world.error, None, "after {:?}: {:?}", step, world);
    for s in 0..2 {
        let (us, peer) = (&world.side[s], &world.side[1 - s]);
        let complete = us.read == peer.wrote && (peer.shut || peer.crashed);
        prop_assert!(!us.eof || us.closed || complete, "end of stream too early: {world:?}");
        if bounds.gentle {
            prop_assert!(us.closed || us.stream.failure().is_none() && !us.reset, "{s} failed: {world:?}");
        }
    }
    Ok(())
}

fn drain(bounds: &Bounds, world: &mut World) -> Result<(), TestCaseError> {
    while !quiescent(bounds, world) {
        let mut steps = Vec::new();
        world.internal_steps(bounds, &mut steps);
        world.reading_steps(&mut steps);
        for step in steps {
            take(bounds, world, step)?;
        }
    }
    Ok(())
}

fn choices() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(any::<u16>(), 0..600)
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (0..3usize, any::<[bool; 3]>(), 0u8..6, 0u8..6, 0u8..4).prop_map(
        |(trust, [lazy, split, fails], opens, deaths, demotes)| Bounds {
            trust: Trust::ALL[trust],
            lazy_control: lazy,
            lazy_anchor: lazy,
            split,
            fails,
            opens,
            deaths,
            demotes: [demotes; 2],
            writes: [100; 2],
            ..Bounds::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives(bounds in bounds(), choices in choices()) {
        run(&bounds, &choices)?;
    }

    #[test]
    fn closing_loses_nothing(bounds in bounds(), choices in choices(), s in 0usize..2) {
        let mut bounds = bounds;
        (bounds.closes[s], bounds.writes[1 - s]) = (true, 0);
        run(&bounds, &choices)?;
    }

    #[test]
    fn closing_and_aborting_never_corrupt(bounds in bounds(), choices in choices(), closes in any::<[bool; 2]>(), abort in 0usize..3) {
        run(&Bounds { closes, abort: (abort < 2).then_some(abort), gentle: false, ..bounds }, &choices)?;
    }

    #[test]
    fn a_killed_peer_is_never_a_clean_end_too_early(bounds in bounds(), choices in choices(), s in 0usize..2) {
        run(&Bounds { crash: Some(s), gentle: false, ..bounds }, &choices)?;
    }
}
