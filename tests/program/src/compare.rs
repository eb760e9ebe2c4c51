//! Whether a trace agrees with the oracle's. The only place where a difference is accepted; each freedom has a name,
//! which `freedoms.md` explains.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::program::MAX_STEPS;
use crate::{EpollAction, How, Interest, Op, Outcome, Program, Step, Trace};

/// An outcome's `skipped` for an operation that the executor has no model of.
pub const UNSUPPORTED: &str = "unsupported";

/// An outcome's `skipped` for a step of a worker that was stuck before it could report it.
pub const LOST: &str = "lost";

/// One step on which the two executors disagree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Its index.
    pub step: usize,
    /// The oracle's outcome.
    pub expected: Outcome,
    /// The other one's outcome.
    pub found: Outcome,
}

/// The differences between the oracle's trace and another, in order.
///
/// Later differences may be consequences of the first.
pub fn compare(program: &Program, oracle: &Trace, other: &Trace) -> Vec<Difference> {
    let absent = Outcome::skipped("no outcome");
    let stuck = other.outcomes.iter().any(|o| o.stuck);
    let mut out = Vec::new();
    for (index, step) in program.steps.iter().enumerate() {
        let expected = oracle.outcomes.get(index).unwrap_or(&absent);
        let found = other.outcomes.get(index).unwrap_or(&absent);
        // An executor reports operations that it cannot do; its caller counts them.
        let unsupported = found.skipped.as_deref() == Some(UNSUPPORTED);
        // The stuck step is the difference, not the earlier steps that its worker could not report.
        let lost = stuck && found.skipped.as_deref() == Some(LOST);
        if !unsupported && !lost && !agree(step, &Before::of(program, (oracle, other), index), expected, found) {
            out.push(Difference { step: index, expected: expected.clone(), found: found.clone() });
        }
    }
    out
}

/// The consequences of earlier steps for the freedoms of one.
#[derive(Default)]
struct Before {
    /// Some connection was filled.
    filled: bool,
    /// For an `epoll_wait`: the slots that the instance has edge-triggered, and not for one shot.
    edges: BTreeSet<u32>,
    /// Of those, the slots whose direction the process has ended, and the bits that were reported before.
    late: BTreeMap<u32, BTreeSet<String>>,
    /// Of those, the slots that the process has closed although others hold them, and the bits that were reported for
    /// them.
    outlived: BTreeMap<u32, BTreeSet<String>>,
    /// Epoll instances that the step polls, as far as they have freedoms of the sockets that they watch.
    nested: BTreeMap<u32, Nested>,
}

/// The freedom of an instance because of its members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nested {
    /// It may be readable where the oracle's is not: an edge in it may be spurious.
    Extra,
    /// As `Extra`, and the wait that polls it has it for one shot, which an earlier spurious edge has used up.
    Spent,
    /// It may be readable or not: an edge in it may be late.
    Any,
}

impl Before {
    /// `traces` are the oracle's and the other one.
    fn of(program: &Program, traces: (&Trace, &Trace), index: usize) -> Before {
        let (oracle, _) = traces;
        let edges = edges(program, oracle, index);
        let steps = &program.steps[..index];
        let ended = |slot: &&u32| has_ended(program, index, program.steps[index].p, **slot);
        let late = edges.iter().filter(ended).map(|slot| (*slot, already_reported(program, oracle, index, *slot)));
        let outlived = edges.iter().filter(|slot| outlives(program, index, **slot));
        let outlived = outlived.map(|slot| (*slot, reported(program, oracle, index, *slot)));
        Before {
            filled: steps.iter().any(|step| matches!(step.op, Op::Fill { .. })),
            late: late.collect(),
            outlived: outlived.collect(),
            nested: nested(program, traces, index, &edges),
            edges,
        }
    }
}

/// Whether a slot was closed, or its number taken by `dup3`, by the process of a wait after it had forked: its child
/// holds the instance's member.
fn outlives(program: &Program, index: usize, slot: u32) -> bool {
    let p = program.steps[index].p;
    let steps = || program.steps[..index].iter().enumerate().filter(|(_, step)| step.p == p);
    let closes = |op: &Op| matches!(op, Op::Close { s: gone } | Op::Dup { to: gone, .. } if *gone == slot);
    let closed = steps().rfind(|(_, step)| closes(&step.op));
    closed.is_some_and(|(at, _)| steps().any(|(fork, step)| fork < at && matches!(step.op, Op::Fork { .. })))
}

/// The slot in which the instance was created that process `p` names `name`.
fn instance(program: &Program, index: usize, p: u8, mut name: u32) -> u32 {
    for step in program.steps[..index].iter().rev().filter(|step| step.p == p) {
        match &step.op {
            Op::Dup { s, to } if *to == name => name = *s,
            _ => {}
        }
    }
    name
}

/// The members, by slot, of the instance that process `p` names `name`.
fn members(program: &Program, oracle: &Trace, index: usize, p: u8, name: u32) -> BTreeMap<u32, Interest> {
    let mut members = BTreeMap::new();
    let watching = instance(program, index, p, name);
    // A call that the kernel refused (a second ADD, for example) has changed nothing.
    let done = |at: usize| oracle.outcomes.get(at).is_some_and(|outcome| outcome.errno.is_none());
    for (at, step) in program.steps[..index].iter().enumerate().filter(|(at, step)| step.p == p && done(*at)) {
        let Op::EpollCtl { e, s, action, interest } = &step.op else { continue };
        if instance(program, at, p, *e) != watching {
            continue;
        }
        match action {
            EpollAction::Del => drop(members.remove(s)),
            EpollAction::Add | EpollAction::Mod => drop(members.insert(*s, *interest)),
        }
    }
    members
}

/// The freedoms of the instances that a step polls; `edges` are the slots that it has edge-triggered.
fn nested(
    program: &Program,
    (oracle, other): (&Trace, &Trace),
    index: usize,
    edges: &BTreeSet<u32>,
) -> BTreeMap<u32, Nested> {
    let Some(Step { p, op, .. }) = program.steps.get(index) else { return BTreeMap::new() };
    let slots: Vec<u32> = match op {
        Op::EpollWait { e, .. } => members(program, oracle, index, *p, *e).into_keys().collect(),
        Op::Poll { s, .. } => s.clone(),
        _ => Vec::new(),
    };
    let free = |slot: u32| {
        let mut below = vec![slot];
        let (mut triggered, mut ended, mut watches) = (edges.contains(&slot), false, false);
        // Instances are nested five deep at most.
        for _ in 0..MAX_STEPS {
            let Some(name) = below.pop() else { break };
            for (member, interest) in members(program, oracle, index, *p, name) {
                watches = true;
                triggered |= interest.edge && !interest.oneshot;
                ended |= has_ended(program, index, *p, member);
                below.push(member);
            }
        }
        match (watches && triggered, ended) {
            (true, true) => Some((slot, Nested::Any)),
            (true, false) if is_spent(program, (oracle, other), index, slot) => Some((slot, Nested::Spent)),
            (true, false) => Some((slot, Nested::Extra)),
            _ => None,
        }
    };
    slots.into_iter().filter_map(free).collect()
}

/// Whether a wait has a slot for one shot, and an earlier one has reported that since it was armed: in the other trace,
/// where the oracle has not.
fn is_spent(program: &Program, (oracle, other): (&Trace, &Trace), index: usize, slot: u32) -> bool {
    let Some(Step { p, op: Op::EpollWait { e, .. }, .. }) = program.steps.get(index) else { return false };
    if !members(program, oracle, index, *p, *e).get(&slot).is_some_and(|interest| interest.oneshot) {
        return false;
    }
    let is_same = |at, name| instance(program, at, *p, name) == instance(program, index, *p, *e);
    let done = |at: usize| oracle.outcomes.get(at).is_some_and(|outcome| outcome.errno.is_none());
    for (at, step) in program.steps[..index].iter().enumerate().rev().filter(|(_, step)| step.p == *p) {
        let reports = |trace: &Trace| trace.outcomes.get(at).is_some_and(|o| o.events.contains_key(&slot));
        match &step.op {
            Op::EpollCtl { e, s, .. } if *s == slot && is_same(at, *e) && done(at) => return false,
            Op::EpollWait { e, .. } if is_same(at, *e) && reports(other) => return !reports(oracle),
            _ => {}
        }
    }
    false
}

/// Whether a process has ended the direction of a slot that it sends in.
fn has_ended(program: &Program, index: usize, p: u8, slot: u32) -> bool {
    program.steps[..index]
        .iter()
        .any(|step| step.p == p && matches!(&step.op, Op::Shutdown { s, how } if *s == slot && *how != How::Read))
}

/// The bits that earlier waits on the same instance have reported for a slot.
fn reported(program: &Program, oracle: &Trace, index: usize, slot: u32) -> BTreeSet<String> {
    let Some(Step { p, op: Op::EpollWait { e, .. }, .. }) = program.steps.get(index) else { return BTreeSet::new() };
    let same = |step: &Step| {
        let of = |name| instance(program, index, *p, name);
        step.p == *p && matches!(&step.op, Op::EpollWait { e: other, .. } if of(*other) == of(*e))
    };
    let waits = program.steps[..index].iter().zip(&oracle.outcomes).filter(|(step, _)| same(step));
    waits.filter_map(|(_, outcome)| outcome.events.get(&slot)).flat_map(|text| bits(text)).map(str::to_owned).collect()
}

/// The bits that an edge for the peer's acknowledgement of an end may report for a slot: room, and the bits that the
/// instance has reported before, if nothing has happened since that could bring more of it.
fn already_reported(program: &Program, oracle: &Trace, index: usize, slot: u32) -> BTreeSet<String> {
    let mut already_reported = BTreeSet::from(["out".to_owned()]);
    let Some(Step { p, op: Op::EpollWait { e, .. }, .. }) = program.steps.get(index) else { return already_reported };
    for at in (0..index).rev() {
        let failed = oracle.outcomes.get(at).is_some_and(|outcome| outcome.errno.is_some());
        match &program.steps[at] {
            _ if failed => {}
            Step { p: by, op: Op::EpollWait { e: of, .. }, .. }
                if by == p && instance(program, index, *p, *of) == instance(program, index, *p, *e) =>
            {
                let events = oracle.outcomes.get(at).and_then(|outcome| outcome.events.get(&slot));
                already_reported.extend(events.into_iter().flat_map(|text| bits(text)).map(str::to_owned));
            }
            Step { op: Op::Recv { .. } | Op::Drain { .. } | Op::Poll { .. } | Op::EpollWait { .. }, .. } => {}
            _ => break,
        }
    }
    already_reported
}

fn agree(step: &Step, before: &Before, expected: &Outcome, found: &Outcome) -> bool {
    let Before { filled, edges, late, outlived, nested } = before;
    let mut expected = expected.clone();
    let mut found = found.clone();
    for (slot, free) in nested {
        // Freedom "nested-edges".
        let events = (&mut expected.events, &mut found.events, matches!(free, Nested::Spent | Nested::Any));
        let level = (&mut expected.level, &mut found.level, *free == Nested::Any);
        for (expected, found, may_miss) in [events, level] {
            if !expected.contains_key(slot) {
                found.remove(slot);
            } else if may_miss && !found.contains_key(slot) {
                expected.remove(slot);
            }
        }
    }
    for outcome in [&mut expected, &mut found] {
        // Freedom "splits": TCP decides into how many pieces a stream is cut; executors add pieces up.
        outcome.calls = 0;
    }
    match &step.op {
        // Freedom "room": the number of bytes that fit into a connection without a reader.
        Op::Fill { .. } if expected.errno == found.errno && found.ret > 0 && expected.ret > 0 => {
            found.ret = expected.ret;
        }
        // Freedom "room": a drain after a fill reads as many bytes as went in, which the executor has checked.
        Op::Drain { .. } if *filled && expected.wrong.is_none() && found.wrong.is_none() => found.ret = expected.ret,
        Op::Poll { .. } => {
            expected.ret = found.ret;
        }
        Op::EpollWait { .. } => {
            // Freedom "late-edges": the peer's kernel acknowledges an end at any time.
            expected.events.retain(|slot, text| {
                let no_news =
                    late.get(slot).is_some_and(|already_reported| bits(text).all(|bit| already_reported.contains(bit)));
                !no_news || found.events.contains_key(slot)
            });
            if spurious(edges, outlived, &expected, &found) {
                found.events = expected.events.clone();
            }
            expected.ret = found.ret;
        }
        _ => {}
    }
    expected == found
}

/// The slots that the instance of an `epoll_wait` has edge-triggered, and not for one shot.
fn edges(program: &Program, oracle: &Trace, index: usize) -> BTreeSet<u32> {
    let Some(Step { p, op: Op::EpollWait { e, .. }, .. }) = program.steps.get(index) else { return BTreeSet::new() };
    let members = members(program, oracle, index, *p, *e);
    members.into_iter().filter(|(_, interest)| interest.edge && !interest.oneshot).map(|(slot, _)| slot).collect()
}

fn bits(text: &str) -> impl Iterator<Item = &str> {
    text.split('|').filter(|b| !b.is_empty())
}

/// Freedom "spurious-edges": an edge may be reported again as long as it is true. The oracle's edges must be there. For
/// a slot that has no descriptor any more, only bits that were true once may be reported.
fn spurious(
    edges: &BTreeSet<u32>,
    outlived: &BTreeMap<u32, BTreeSet<String>>,
    expected: &Outcome,
    found: &Outcome,
) -> bool {
    let has = |map: &BTreeMap<u32, String>, slot: &u32, bit: &str| {
        map.get(slot).is_some_and(|text| bits(text).any(|b| b == bit))
    };
    let all_there = expected.events.iter().all(|(slot, text)| bits(text).all(|b| has(&found.events, slot, b)));
    let was = |slot: &u32, bit: &str| outlived.get(slot).is_some_and(|already_reported| already_reported.contains(bit));
    let is_true = |slot: &u32, bit: &str| has(&expected.level, slot, bit) || was(slot, bit);
    let all_true = found.events.iter().all(|(slot, text)| bits(text).all(|bit| is_true(slot, bit)));
    let exact = |slot: &u32| expected.events.get(slot) == found.events.get(slot);
    all_there && all_true && found.events.keys().all(|slot| edges.contains(slot) || exact(slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{generate, Shape};

    fn traces(change: impl FnOnce(&mut Outcome)) -> (Program, Trace, Trace) {
        let program = generate(&Shape::default(), &[0, 0, 1, 2]);
        let outcomes = vec![Outcome::value(1); program.steps.len()];
        let oracle = Trace { outcomes, ..Trace::default() };
        let mut other = oracle.clone();
        if let Some(last) = other.outcomes.last_mut() {
            change(last);
        }
        (program, oracle, other)
    }

    // Breaks if a difference of any kind passes.
    #[test]
    fn differences_are_seen() {
        let changes: [fn(&mut Outcome); 4] = [
            |o| o.end = true,
            |o| o.errno = Some("EPIPE".into()),
            |o| o.sigpipe = true,
            |o| o.skipped = Some(LOST.into()),
        ];
        for change in changes {
            let (program, oracle, other) = traces(change);
            assert_eq!(compare(&program, &oracle, &other).len(), 1);
        }
    }

    // Breaks if TCP's own freedoms count as differences.
    #[test]
    fn freedoms_are_free() {
        let (program, oracle, other) = traces(|o| o.calls = 7);
        assert_eq!(compare(&program, &oracle, &other), []);
        let (program, oracle, other) = traces(|o| o.skipped = Some(UNSUPPORTED.into()));
        assert_eq!(compare(&program, &oracle, &other), []);
    }

    // Breaks if an interest that the kernel refused counts as the present one.
    #[test]
    fn a_refused_interest_changes_nothing() {
        let add = |edge| {
            let interest = Interest { input: true, edge, oneshot: !edge, ..Interest::default() };
            Step { p: 0, background: None, op: Op::EpollCtl { e: 1, s: 2, action: EpollAction::Add, interest } }
        };
        let wait = Step { p: 0, background: None, op: Op::EpollWait { e: 1, max: 1, wait: false } };
        let program = Program { steps: vec![add(true), add(false), wait], ..generate(&Shape::default(), &[]) };
        let oracle =
            |second| Trace { outcomes: vec![Outcome::value(0), second, Outcome::value(0)], ..Trace::default() };
        assert_eq!(edges(&program, &oracle(Outcome::error("EEXIST")), 2), BTreeSet::from([2]));
        assert_eq!(edges(&program, &oracle(Outcome::value(0)), 2), BTreeSet::new());
    }

    // Breaks if an instance has freedoms that none of its members has, or lacks those that a member has, also by
    // another name.
    #[test]
    fn an_instance_has_the_freedoms_of_its_watched_descriptors() {
        let step = |op| Step { p: 0, background: None, op };
        let add = |e, s, edge| {
            let interest = Interest { input: true, edge, ..Interest::default() };
            step(Op::EpollCtl { e, s, action: EpollAction::Add, interest })
        };
        let wait = step(Op::EpollWait { e: 6, max: 1, wait: false });
        let nested_in = |edge, extra: Option<Op>| {
            let mut steps = vec![step(Op::Dup { s: 4, to: 5 }), add(5, 2, edge), add(6, 4, false)];
            steps.extend(extra.map(step));
            steps.push(wait.clone());
            let outcomes = vec![Outcome::value(0); steps.len()];
            let program = Program { steps, ..generate(&Shape::default(), &[]) };
            let last = program.steps.len() - 1;
            let trace = Trace { outcomes, ..Trace::default() };
            Before::of(&program, (&trace, &trace), last).nested
        };
        assert!(nested_in(false, None).is_empty());
        assert!(nested_in(true, None) == BTreeMap::from([(4, Nested::Extra)]));
        assert!(nested_in(true, Some(Op::Shutdown { s: 2, how: How::Write })) == BTreeMap::from([(4, Nested::Any)]));
        let seen = |events: &[u32]| Outcome {
            events: events.iter().map(|slot| (*slot, "in".to_owned())).collect(),
            ..Outcome::default()
        };
        let before = |free| Before { nested: BTreeMap::from([(4, free)]), ..Before::default() };
        assert!(agree(&wait, &before(Nested::Extra), &seen(&[]), &seen(&[4])));
        assert!(!agree(&wait, &before(Nested::Extra), &seen(&[4]), &seen(&[])));
        assert!(agree(&wait, &before(Nested::Any), &seen(&[4]), &seen(&[])));
        assert!(!agree(&wait, &before(Nested::Any), &seen(&[]), &seen(&[3])));
        assert!(!agree(&wait, &Before::default(), &seen(&[]), &seen(&[4])));
    }

    // Breaks if a spurious edge that has used up a shot counts as a lost report, or a lost report as such an edge:
    // where the shot was armed again, or nothing was reported.
    #[test]
    fn a_spurious_edge_uses_up_a_shot() {
        let step = |op| Step { p: 0, background: None, op };
        let add = |e, s, oneshot, action| {
            let interest = Interest { input: true, oneshot, edge: !oneshot, ..Interest::default() };
            step(Op::EpollCtl { e, s, action, interest })
        };
        let wait = || step(Op::EpollWait { e: 6, max: 1, wait: false });
        let seen = |slots: &[u32]| Outcome {
            events: slots.iter().map(|slot| (*slot, "in".to_owned())).collect(),
            level: [(4, "in".to_owned())].into(),
            ..Outcome::default()
        };
        let differs = |oneshot, reported: &[u32], rearmed: bool| {
            let mut steps = vec![add(4, 2, false, EpollAction::Add), add(6, 4, oneshot, EpollAction::Add), wait()];
            steps.extend(rearmed.then(|| add(6, 4, oneshot, EpollAction::Mod)));
            steps.push(wait());
            let nothing = || Outcome { level: seen(&[]).level, ..Outcome::default() };
            let mut oracle: Vec<_> = steps.iter().map(|_| nothing()).collect();
            let mut other = oracle.clone();
            other[2] = seen(reported);
            oracle[steps.len() - 1] = seen(&[4]);
            let program = Program { steps, ..generate(&Shape::default(), &[]) };
            let trace = |outcomes| Trace { outcomes, ..Trace::default() };
            !compare(&program, &trace(oracle), &trace(other)).is_empty()
        };
        assert!(!differs(true, &[4], false));
        assert!(differs(true, &[4], true));
        assert!(differs(true, &[], false));
        assert!(differs(false, &[4], false));
    }

    // Breaks if bytes that came after the last report of a slot count as reported, or reported ones do not.
    #[test]
    fn only_reported_events_are_no_news() {
        let step = |op| Step { p: 0, background: None, op };
        let wait = || step(Op::EpollWait { e: 1, max: 1, wait: false });
        let between = |op| Program { steps: vec![wait(), step(op), wait()], ..generate(&Shape::default(), &[]) };
        let seen = Outcome { events: [(2, "in".to_owned())].into(), ..Outcome::value(1) };
        let oracle = Trace { outcomes: vec![seen, Outcome::value(1), Outcome::value(1)], ..Trace::default() };
        let recv = Op::Recv { s: 3, n: 1, call: Default::default(), flags: Default::default() };
        let send = Op::Send { s: 3, n: 1, call: Default::default(), flags: Default::default() };
        assert!(already_reported(&between(recv), &oracle, 2, 2).contains("in"));
        assert!(!already_reported(&between(send), &oracle, 2, 2).contains("in"));
    }

    // Breaks if only `close` counts as the end of a descriptor, or an object that no child can hold as held.
    #[test]
    fn a_childs_copy_outlives_the_descriptor() {
        let program = |ops: Vec<Op>| {
            let steps = ops.into_iter().map(|op| Step { p: 0, background: None, op }).collect();
            Program { steps, ..generate(&Shape::default(), &[]) }
        };
        let fork = || Op::Fork { child: 1 };
        let wait = || Op::EpollWait { e: 1, max: 1, wait: false };
        for gone in [Op::Close { s: 2 }, Op::Dup { s: 3, to: 2 }] {
            assert!(outlives(&program(vec![fork(), gone.clone(), wait()]), 2, 2));
            assert!(!outlives(&program(vec![gone, fork(), wait()]), 2, 2));
        }
        assert!(!outlives(&program(vec![fork(), Op::Dup { s: 2, to: 3 }, wait()]), 2, 2));
    }

    // Breaks if a report of an edge that is not true, or a missing one, passes as spurious.
    #[test]
    fn only_true_edges_are_spurious() {
        let step = Step { p: 0, background: None, op: Op::EpollWait { e: 1, max: 1, wait: false } };
        let seen = |events: &str, level: &str| Outcome {
            events: [(1, events.to_owned())].into_iter().filter(|(_, e)| !e.is_empty()).collect(),
            level: [(1, level.to_owned())].into(),
            ..Outcome::default()
        };
        let edge = Before { edges: BTreeSet::from([1]), ..Before::default() };
        assert!(agree(&step, &edge, &seen("in", "in|out"), &seen("in|out", "in|out")));
        assert!(!agree(&step, &edge, &seen("in", "in"), &seen("in|out", "in")));
        assert!(!agree(&step, &edge, &seen("in", "in"), &seen("", "in")));
        // The acknowledgement of an end is an edge, too.
        let late = |already_reported: &[&str]| Before {
            edges: BTreeSet::from([1]),
            late: [(1, already_reported.iter().map(|&bit| bit.to_owned()).collect())].into(),
            ..Before::default()
        };
        assert!(agree(&step, &late(&["out"]), &seen("out", "out"), &seen("", "out")));
        assert!(!agree(&step, &late(&["out"]), &seen("in|out", "in|out"), &seen("", "in|out")));
        assert!(agree(&step, &late(&["in", "out"]), &seen("in|out", "in|out"), &seen("", "in|out")));
        assert!(!agree(&step, &edge, &seen("out", "out"), &seen("", "out")));
        // A socket without a descriptor here cannot be polled.
        let gone = |outlived: &[&str]| Before {
            edges: BTreeSet::from([1]),
            outlived: [(1, outlived.iter().map(|&bit| bit.to_owned()).collect())].into(),
            ..Before::default()
        };
        let silent = Outcome::default();
        let again = Outcome { events: [(1, "out".to_owned())].into(), ..Outcome::default() };
        assert!(agree(&step, &gone(&["out"]), &silent, &again));
        assert!(!agree(&step, &gone(&["in"]), &silent, &again));
        // A level-triggered or one-shot slot is never spurious.
        assert!(!agree(&step, &Before::default(), &seen("", "in"), &seen("in", "in")));
    }
}
