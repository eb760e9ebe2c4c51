//! Programs: socket operations of several processes, as data, and the traces that executors make of them.
//!
//! * [`Program`] is the JSON that `schema.json` beside this crate describes. It has the operations and their order,
//!   never their results.
//! * An executor runs it and returns a [`Trace`]: one [`Outcome`] for each step.
//! * [`compare()`] compares a trace with the oracle's, kernel TCP. Results that TCP itself leaves open are listed in
//!   `freedoms.md` and allowed there, in that one function.
//! * [`generate()`] makes programs from numbers, so that the owner of the numbers (Hypothesis, a seeded generator)
//!   controls generation, replay and shrinking. Every list of numbers is a program that ends. [`Drawn`] makes them from
//!   bytes, for coverage-guided fuzzers.
//!
//! No code of the project is linked here, so that the executable under test stays an ordinary program.

mod compare;
mod drawn;
mod generate;
pub mod pattern;
mod program;
mod trace;

pub use compare::{compare, Difference, LOST, UNSUPPORTED};
pub use drawn::Drawn;
pub use generate::{generate, Mix, Shape};
pub use program::{
    BadAddress, Config, EpollAction, How, Interest, LimitedCall, Misuse, Op, Option_, Program, ProgramError, RecvCall,
    RecvFlags, Resource, SendCall, SendFlags, Step, FORMAT, MAX_BYTES, MAX_CONNECTIONS, MAX_PROCESSES, MAX_STEPS,
};
pub use trace::{Outcome, Trace, Wrong};
