//! The NIC on the simple network: closed forms, delivery under loss, failures, congestion.

mod closed_forms;
mod congestion;
mod delivery;
mod failures;
mod pair;
mod steady;
