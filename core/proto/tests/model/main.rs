//! Exhaustive check of the switching protocol on small bounds: two streams, links that may die at any step, a reliable
//! anchor, and applications that do everything they may. The job `model` runs it, optimised; `cargo test --release -p
//! netacc-proto --test model -- --ignored --nocapture large` takes larger bounds.

mod check;
mod moves;
mod mutants;
mod regressions;
mod schedules;
mod world;

use check::{check, finds_fault};
use mutants::Mutant;
use world::{Bounds, Trust};

/// Promotion, voided pledges, half-close, loss of the link at every step.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn promotion() {
    for trust in Trust::ALL {
        check("promotion", Bounds { trust, ..Bounds::default() });
    }
}

/// A second attempt: on the same link, or on another after the first has died.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn second_attempt() {
    for trust in Trust::ALL {
        let bounds = Bounds { trust, opens: 2, ..Bounds::default() };
        check("second attempt", Bounds { writes: [2, 1], shutdowns: [false; 2], deaths: 1, ..bounds.clone() });
        check("second attempt", Bounds { writes: [1, 1], shutdowns: [true; 2], deaths: 2, ..bounds.clone() });
        check(
            "second attempt",
            Bounds { writes: [1, 1], shutdowns: [false; 2], deaths: 1, demotes: [1, 1], ..bounds.clone() },
        );
        check(
            "second attempt",
            Bounds {
                writes: [1, 1],
                shutdowns: [false; 2],
                deaths: 1,
                lazy_control: true,
                lazy_anchor: true,
                split: true,
                ..bounds
            },
        );
    }
}

/// Writes for which a pledge was to be void fail: neither side waits for the bytes that they would have written.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn failed_writes() {
    for trust in Trust::ALL {
        let bounds = Bounds { trust, fails: true, writes: [1, 1], ..Bounds::default() };
        check("failed writes", Bounds { opens: 2, shutdowns: [false; 2], ..bounds.clone() });
        check("failed writes", Bounds { demotes: [1, 1], ..bounds });
    }
}

/// Demotion on request, by either side or both at once.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn demotion() {
    for trust in Trust::ALL {
        check("demotion", Bounds { trust, demotes: [1, 1], deaths: 0, writes: [2, 1], ..Bounds::default() });
        check(
            "demotion",
            Bounds { trust, demotes: [1, 1], writes: [1, 1], shutdowns: [true, false], ..Bounds::default() },
        );
    }
}

/// One application closes: the bytes that it has written arrive, even if the link dies.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn close_after_writing() {
    for trust in Trust::ALL {
        for s in 0..2 {
            let (mut closes, mut writes, mut shutdowns) = ([false; 2], [0; 2], [true; 2]);
            (closes[s], writes[s], shutdowns[s]) = (true, 3, false);
            check("close after writing", Bounds { trust, closes, writes, shutdowns, ..Bounds::default() });
            let mut demotes = [0; 2];
            demotes[1 - s] = 1;
            check("close after writing", Bounds { trust, closes, writes, shutdowns, demotes, ..Bounds::default() });
            writes[s] = 1;
            let slow = Bounds { lazy_control: true, lazy_anchor: true, ..Bounds::default() };
            check("close after writing", Bounds { trust, closes, writes, shutdowns, ..slow });
        }
    }
}

/// Applications close, or abort, with bytes unread or in flight.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn close() {
    for trust in Trust::ALL {
        let bounds = Bounds { trust, gentle: false, ..Bounds::default() };
        let check = |bounds| check("close", bounds);
        check(Bounds { closes: [true, false], writes: [2, 1], shutdowns: [false, true], ..bounds.clone() });
        check(Bounds { closes: [false, true], writes: [1, 2], shutdowns: [true, false], ..bounds.clone() });
        check(Bounds { closes: [true, true], writes: [1, 1], shutdowns: [false, false], ..bounds.clone() });
        for s in 0..2 {
            check(Bounds { abort: Some(s), writes: [1, 1], ..bounds.clone() });
        }
    }
}

/// One process is killed.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn crash() {
    for trust in Trust::ALL {
        for s in 0..2 {
            check(
                "crash",
                Bounds {
                    trust,
                    crash: Some(s),
                    writes: [2, 1],
                    shutdowns: [s == 0, s == 1],
                    gentle: false,
                    ..Bounds::default()
                },
            );
        }
    }
}

/// Messages wait for credit and records for room; records arrive in halves.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn slow_writers() {
    for trust in Trust::ALL {
        let slow =
            Bounds { trust, lazy_control: true, lazy_anchor: true, split: true, writes: [1, 1], ..Bounds::default() };
        check("slow", Bounds { shutdowns: [true, false], ..slow.clone() });
        let rough = Bounds { gentle: false, shutdowns: [false; 2], ..slow };
        for s in 0..2 {
            let (mut closes, mut writes) = ([false; 2], [0; 2]);
            (closes[s], writes[1 - s]) = (true, 1);
            check("slow close", Bounds { closes, writes, ..rough.clone() });
            check("slow crash", Bounds { crash: Some(s), ..rough.clone() });
        }
    }
}

/// Credit: more bytes than the ring holds.
#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn credit() {
    for trust in Trust::ALL {
        check("credit", Bounds { trust, writes: [6, 0], shutdowns: [true, false], ..Bounds::default() });
    }
}

/// Everything at once, on bounds that take many minutes and gigabytes.
#[test]
#[ignore = "takes many minutes"]
fn large() {
    for trust in Trust::ALL {
        let bounds = Bounds { trust, opens: 2, deaths: 2, ..Bounds::default() };
        check(
            "large: attempts",
            Bounds { writes: [2, 1], demotes: [1, 1], shutdowns: [true, false], ..bounds.clone() },
        );
        for s in 0..2 {
            let bounds = Bounds { crash: Some(s), gentle: false, ..bounds.clone() };
            check("large: crash", Bounds { writes: [2, 1], demotes: [1, 0], ..bounds });
        }
        let slow = Bounds { lazy_control: true, lazy_anchor: true, split: true, ..bounds };
        check(
            "large: slow close",
            Bounds { closes: [true; 2], writes: [1, 1], shutdowns: [false; 2], gentle: false, ..slow.clone() },
        );
        check("large: slow", Bounds { writes: [1, 1], demotes: [1, 0], shutdowns: [true, false], ..slow });
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "ci/run.sh model runs it, optimised")]
fn mutants_are_found() {
    for mutant in Mutant::ALL {
        let found = mutant.trusts().iter().any(|&trust| finds_fault(Bounds { trust, ..mutant.bounds() }));
        println!("{mutant:?}: {found}");
        assert!(found, "{mutant:?} was not found");
    }
}
