//! The clauses of SPEC.md, one by one, on two streams that are fed by hand.

mod admission;
mod closing;
mod data;
mod ending;
mod leaving;
mod pair;
mod promotion;
mod put_off;
