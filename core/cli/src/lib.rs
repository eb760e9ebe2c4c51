//! netacc, netacc_run, netacc_ss.

pub mod bench;
pub mod doctor;
pub mod lat;
pub mod run;
pub mod sim;
pub mod ss;
pub mod switch;
