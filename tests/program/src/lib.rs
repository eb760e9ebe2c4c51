//! Programs: socket operations of several processes, as data, and the traces that executors make of them.
//!
//! * [`Program`] is the JSON that `schema.json` beside this crate describes. It says what is done and in which order,
//!   never what comes out.
//! * An executor runs it and returns a [`Trace`]: one [`Outcome`] for each step.
//! * [`compare()`] holds a trace against the oracle's, kernel TCP. What TCP itself leaves open is listed in
//!   `freedoms.md` and allowed there, in that one function.
//! * [`generate()`] makes programs from numbers, so that whoever owns the numbers (Hypothesis, a seeded generator) owns
//!   generation, replay and shrinking. Every list of numbers is a program that ends. [`Drawn`] makes them from bytes, for
//!   coverage-guided fuzzers.
//!
//! No code of the project is linked here, so that the executable under test stays what it is: an ordinary program.

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
