//! Whether a trace agrees with the oracle's. The only place where a difference is forgiven; each freedom has a name,
//! which `freedoms.md` explains.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Op, Outcome, Program, Step, Trace};

/// What an outcome's `skipped` says of an operation that the executor has no model of.
pub const UNSUPPORTED: &str = "unsupported";

/// One step on which the two executors disagree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Its index.
    pub step: usize,
    /// What the oracle says.
    pub expected: Outcome,
    /// What the other one says.
    pub found: Outcome,
}

/// The differences between the oracle's trace and another, the first first.
///
/// What follows the first may be its consequence.
pub fn compare(program: &Program, oracle: &Trace, other: &Trace) -> Vec<Difference> {
    let absent = Outcome::skipped("no outcome");
    let mut out = Vec::new();
    for (index, step) in program.steps.iter().enumerate() {
        let expected = oracle.outcomes.get(index).unwrap_or(&absent);
        let found = other.outcomes.get(index).unwrap_or(&absent);
        // What an executor cannot do it says; whoever runs it counts that.
        let unsupported = found.skipped.as_deref() == Some(UNSUPPORTED);
        if !unsupported && !agree(step, expected, found) {
            out.push(Difference { step: index, expected: expected.clone(), found: found.clone() });
        }
    }
    out
}

fn agree(step: &Step, expected: &Outcome, found: &Outcome) -> bool {
    let mut expected = expected.clone();
    let mut found = found.clone();
    for outcome in [&mut expected, &mut found] {
        // Freedom "splits": into how many pieces a stream is cut is TCP's affair; executors add pieces up.
        outcome.calls = 0;
    }
    match &step.op {
        // Freedom "room": how much fits into a connection that nobody reads.
        Op::Fill { .. } if expected.errno == found.errno && found.ret > 0 && expected.ret > 0 => {
            found.ret = expected.ret;
        }
        // Freedom "room": a drain after a fill has as much to read as went in, which the executor has checked.
        Op::Drain { .. } if expected.wrong.is_none() && found.wrong.is_none() => found.ret = expected.ret,
        Op::Poll { .. } => {
            expected.ret = found.ret;
        }
        Op::EpollWait { .. } => {
            if spurious(&expected, &found) {
                found.events = expected.events.clone();
            }
            expected.ret = found.ret;
        }
        _ => {}
    }
    expected == found
}

fn bits(text: &str) -> impl Iterator<Item = &str> {
    text.split('|').filter(|b| !b.is_empty())
}

/// Freedom "spurious-edges": an edge may be reported again as long as what it says is true. What the oracle reports must
/// be there.
fn spurious(expected: &Outcome, found: &Outcome) -> bool {
    let has = |map: &BTreeMap<u32, String>, slot: &u32, bit: &str| {
        map.get(slot).is_some_and(|text| bits(text).any(|b| b == bit))
    };
    let all_there = expected.events.iter().all(|(slot, text)| bits(text).all(|b| has(&found.events, slot, b)));
    let all_true = found.events.iter().all(|(slot, text)| bits(text).all(|b| has(&expected.level, slot, b)));
    all_there && all_true
}
