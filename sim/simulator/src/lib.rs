//! The part of the simulator program that is not ns-3's: what a run is, and what is kept of it.
//!
//! A [`Scenario`] is *resolved*: hosts and links by number, every quantity an integer in its base unit (nanoseconds, bytes,
//! bits per second, parts per million), every choice made. People write TOML (`sim/scenarios`); `netacc sim` checks and
//! resolves it. [`Recording`] watches a run, says how far it is, ends it when it makes no progress, and writes its folder.
//!
//! Nothing here knows of ns-3; the executable, under ns-3's licence, is in `models/ns3/simulator`.

mod meta;
mod plan;
mod recording;
mod scenario;

pub use meta::{NetworkCounts, Verdict};
pub use recording::{FinishError, Recording};
pub use scenario::{
    Arrival, Client, Commands, Costs, Dcqcn, Fault, Group, Link, Measure, Network, Nic, Pause, Processors, Rate,
    Scenario, ScenarioError, SizeBin, Stack, Switch,
};
