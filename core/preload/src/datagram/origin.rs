//! Where datagrams come from.

use super::{Address, Messages};

/// Where a flow comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The sender, as the kernel names it.
    pub source: Address,
    /// What the kernel says of its datagrams, for a program that wants control messages.
    pub messages: Option<Messages>,
}
