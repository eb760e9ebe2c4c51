//! What can run a guest's instructions.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What runs the guests' instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Accel {
    Kvm,
    /// QEMU's translator: everywhere, and many times slower.
    Tcg,
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// KVM if a kernel truly boots on it
    Auto,
    /// KVM
    Kvm,
    /// Software emulation
    Tcg,
}
