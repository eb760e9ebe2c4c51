//! The properties, and the checker.

use netacc_proto::Phase;
use stateright::{Checker, DiscoveryClassification, HasDiscoveries, Model, Property};

use crate::world::{Bounds, Step, Symbol, World, ACCEPTOR, OPENER};

pub(crate) struct Switching(pub Bounds);

impl Model for Switching {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, state: &World, steps: &mut Vec<Step>) {
        state.internal_steps(&self.0, steps);
        state.reading_steps(steps);
        state.free_steps(&self.0, steps);
    }

    fn next_state(&self, state: &World, step: Step) -> Option<World> {
        if state.error.is_some() {
            return None;
        }
        state.after(&self.0, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::<Self>::always("no error", |_, w| w.error.is_none()),
            Property::<Self>::always("end of stream only after every byte", |_, w| {
                (0..2).all(|s| {
                    let (us, peer) = (&w.side[s], &w.side[1 - s]);
                    // The kernel ends a killed process's plain connection cleanly.
                    !us.eof || us.closed || (peer.shut || peer.crashed) && us.read == peer.wrote
                })
            }),
            Property::<Self>::always("no deadlock", |m, w| !quiescent(&m.0, w) || is_complete(w)),
        ];
        if self.0.gentle {
            all.push(Property::<Self>::always("no side fails", |_, w| {
                w.side.iter().all(|s| s.closed || s.stream.failure().is_none() && !s.reset)
            }));
        }
        all.push(Property::<Self>::always("a writer waits for no reader", |m, w| {
            !still(&m.0, w) || (0..2).all(|s| w.side[s].closed || w.side[s].crashed || !waits(w, s))
        }));
        all.push(Property::<Self>::always("no record behind application bytes", |_, w| {
            w.anchor.iter().all(|symbols| {
                let unread = symbols.iter().position(|s| matches!(s, Symbol::App(_)));
                let record = symbols.iter().rposition(|s| matches!(s, Symbol::Record(_) | Symbol::Half(_)));
                unread.zip(record).is_none_or(|(unread, record)| record < unread)
            })
        }));
        if self.0.opens > 1 {
            all.push(Property::<Self>::sometimes("a later attempt succeeds", |_, w| {
                w.attempts > 1 && w.side.iter().all(|s| s.stream.is_linked())
            }));
        }
        if self.0.opens > 0 && self.0.crash.is_none() {
            all.push(Property::<Self>::sometimes("both on the link", |_, w| {
                w.side.iter().all(|s| s.stream.is_linked())
            }));
            if self.0.deaths > 0 || self.0.demotes != [0, 0] {
                all.push(Property::<Self>::sometimes("back after promotion", |_, w| {
                    w.side.iter().all(|s| s.stream.promotions() > 0 && s.stream.is_plain())
                }));
            }
        }
        all
    }
}

fn waits(w: &World, s: usize) -> bool {
    w.side[s].stream.tx_sink() == netacc_proto::TxSink::Wait
}

/// Nothing happens by itself.
fn still(bounds: &Bounds, w: &World) -> bool {
    let mut steps = Vec::new();
    w.internal_steps(bounds, &mut steps);
    w.error.is_none() && steps.into_iter().all(|step| w.after(bounds, step).is_none())
}

/// Nothing happens by itself, and reading brings nothing more.
pub(crate) fn quiescent(bounds: &Bounds, w: &World) -> bool {
    let mut steps = Vec::new();
    w.reading_steps(&mut steps);
    still(bounds, w) && steps.into_iter().all(|step| w.after(bounds, step).is_none())
}

/// Everything delivered, and nothing half done.
pub(crate) fn is_complete(w: &World) -> bool {
    (0..2).all(|s| delivered(w, s) && at_rest(w, s) && (w.side[s].crashed || !w.side[s].asleep))
}

fn delivered(w: &World, s: usize) -> bool {
    let (us, peer) = (&w.side[s], &w.side[1 - s]);
    us.closed || us.crashed || us.reset || us.read == peer.wrote && us.eof == (peer.shut || peer.crashed)
}

fn at_rest(w: &World, s: usize) -> bool {
    let (us, peer) = (&w.side[s], &w.side[1 - s]);
    if us.crashed || us.stream.failure().is_some() {
        return true;
    }
    if us.stream.resets() && peer.reset && !peer.closed {
        // It keeps bytes that its peer's application has not read; that application got the reset and does not read on.
        return true;
    }
    if us.closed {
        return (us.anchor_closed || silent(w, s)) && !us.stream.uses_slot();
    }
    if peer.closed || peer.crashed {
        return matches!(us.stream.phase(), Phase::Plain | Phase::Linked | Phase::Promoting);
    }
    match us.stream.phase() {
        Phase::Plain => us.stream.is_plain() && !us.stream.uses_slot(),
        Phase::Linked => us.stream.is_linked() && peer.stream.is_linked(),
        Phase::Promoting => silent(w, s),
        Phase::Resuming => false,
    }
}

/// The answer was lost with the link: the opener has given up but not written since, and cannot learn of it (SPEC
/// §6.2).
fn silent(w: &World, s: usize) -> bool {
    let (us, opener) = (&w.side[s], &w.side[OPENER]);
    s == ACCEPTOR
        && us.stream.phase() == Phase::Promoting
        && !us.stream.uses_slot()
        && opener.stream.is_plain()
        && !opener.shut
}

/// Checks all states within `bounds`; returns how many there are.
pub(crate) fn check(name: &str, bounds: Bounds) -> usize {
    let began = std::time::Instant::now();
    let checker = Switching(bounds).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "{name}: {} states, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f32()
    );
    for (property, path) in checker.discoveries() {
        if is_counterexample(&checker, property) {
            let (last, steps) = (path.last_state().clone(), path.into_actions());
            panic!("{name}: \"{property}\" fails after {steps:?}\n{last:?}");
        }
    }
    checker.assert_properties();
    checker.unique_state_count()
}

/// Whether the checker finds anything wrong within `bounds`.
pub(crate) fn finds_fault(bounds: Bounds) -> bool {
    let checker = Switching(bounds).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.discoveries().into_keys().any(|property| is_counterexample(&checker, property))
}

fn is_counterexample(checker: &impl Checker<Switching>, property: &'static str) -> bool {
    matches!(checker.discovery_classification(property), DiscoveryClassification::Counterexample)
}
