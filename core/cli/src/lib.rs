//! netacc, netacc_ss.

pub mod bench;
pub mod doctor;
pub mod explain;
pub mod lat;
pub mod record;
pub mod sim;
pub mod ss;
pub mod switch;
pub mod trace;
