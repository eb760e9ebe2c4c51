//! The ways to run a guest's instructions.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The way in which the guests' instructions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Accel {
    Kvm,
    /// QEMU's translator: everywhere, and many times slower.
    Tcg,
}

/// The user's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// KVM, if a kernel boots on it
    Auto,
    /// KVM
    Kvm,
    /// Software emulation
    Tcg,
}
