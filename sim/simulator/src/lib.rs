//! The part of the simulator program that is independent of ns-3: scenarios, and the recordings of their runs.
//!
//! A [`Scenario`] is *resolved*: hosts and links by number, every quantity an integer in its base unit (nanoseconds, bytes,
//! bits per second, parts per million), every choice made. People write TOML (`sim/scenarios`); `netacc sim` checks and
//! resolves it. [`Recording`] watches a run, reports its progress, ends it when it makes none, and writes its folder.
//!
//! This crate does not use ns-3; the executable, under ns-3's licence, is in `models/ns3/simulator`.

mod meta;
mod parameters;
mod plan;
mod recording;
mod scenario;

pub use meta::{NetworkCounts, Verdict};
pub use parameters::{sections, Device, Driver, Pacing, RateControl, Section, Switch};
pub use recording::{FinishError, Recording};
pub use scenario::{
    Arrival, Client, Datagrams, Fault, Group, Link, Loop, Measure, Network, Pause, Processors, Scenario, ScenarioError,
    SizeBin, Stack,
};
