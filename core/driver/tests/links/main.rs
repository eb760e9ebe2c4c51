//! Two endpoints on loopback devices: bringing links up, opening streams, leaving links, refusing strangers.

mod accepting;
#[path = "../common/mod.rs"]
mod common;
mod datagrams;
mod direct;
mod endpoints;
mod finding;
mod flows;
mod growth;
mod holders;
mod in_place;
mod leaving;
mod opening;
mod put_off;
mod records;
mod silence;
mod waiting;
