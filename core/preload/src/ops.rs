//! The work of each call on a descriptor of ours.

pub mod announcing;
pub mod aside;
pub mod clone;
pub mod connection;
pub mod control;
pub mod datagram;
pub mod descriptors;
pub mod ending;
pub mod environment;
pub mod files;
pub mod io;
pub mod liburing;
pub mod message;
pub mod options;
pub mod process;
pub mod raw;
pub mod readiness;
pub mod rights;
pub mod select;
pub mod signals;
pub mod spawn_actions;
pub mod state;
pub mod static_programs;
pub mod stdio;
pub mod waiting;
