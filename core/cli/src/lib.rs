//! netacc, netacc_ss.

pub mod bench;
pub mod doctor;
pub mod explain;
pub mod exporter;
pub mod lat;
pub mod pages;
mod processes;
pub mod record;
pub mod service;
pub mod sim;
pub mod ss;
pub mod switch;
pub mod top;
pub mod trace;
