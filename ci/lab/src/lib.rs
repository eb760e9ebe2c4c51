//! `netacc lab`: small virtual machines with real RDMA devices in software, on any machine.
//!
//! A host of the lab is the distribution's own kernel under QEMU, with this machine's file system inside: this
//! machine's programs, libraries and builds run there. SoftRoCE (`rdma_rxe`), soft-iWARP (`siw`) or the driver of an
//! emulated eRDMA function (`erdma`) is loaded in it, so no module is ever loaded into this machine, except with
//! `--where host`.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`cli`] | the commands |
//! | `provision`, `drivers`, `emulator` | kernel, modules and QEMU: found or downloaded |
//! | `erdma` | the process with the emulated eRDMA functions |
//! | `machine`, `qemu`, `initramfs` | one QEMU |
//! | `accel`, `probe` | KVM or software emulation |
//! | `state`, `lab` | the machines of a lab, and the record of them |
//! | `wire`, `client`, [`guest`] | running commands inside, over virtio serial ports |
//! | `setup`, `local` | links and RDMA devices, in a guest or on this machine |
//!
//! Invariants: the file systems of this machine are read-only inside, except for the folders given with `--rw`; all
//! files of a lab (sockets, consoles) are in a folder that only its user can enter; no process listens on a network.

mod accel;
pub mod cli;
mod client;
mod drivers;
mod emulator;
mod erdma;
mod error;
pub mod guest;
mod initramfs;
mod lab;
mod local;
mod machine;
mod probe;
mod provision;
mod qemu;
mod setup;
mod state;
mod terminal;
mod wire;

pub use error::LabError;
