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
    /// The same, while the guest's clock counts its instructions.
    Counted,
}

impl Accel {
    /// For people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Accel::Kvm => "KVM",
            Accel::Tcg => "software emulation",
            Accel::Counted => "software emulation, counting instructions",
        }
    }
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
    /// Software emulation in which a host's clock advances by 8 ns an instruction while it computes: processor times
    /// inside do not depend on the load of this machine
    Counted,
}
