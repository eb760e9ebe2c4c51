//! Inside a guest: the first process, and the agent that runs commands.
//!
//! `netacc lab-guest init` is the first process of the initial file system. It loads the modules that lead to the real
//! root, lays a writable layer over it, starts `netacc lab-guest agent` there and from then on only collects orphans.
//! The agent sets links and devices up and serves the virtio serial ports, one command at a time on each.

mod agent;
mod init;
mod running;
mod session;
mod writer;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::setup::{Impairment, Rdma};

/// Arguments of the hidden subcommand.
#[derive(Debug, Args)]
pub struct GuestArgs {
    role: Role,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// The first process
    Init,
    /// Sets up devices and runs commands
    Agent,
    /// Reports that the kernel came up, and switches off
    Probe,
}

/// The configuration of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GuestConfig {
    pub(crate) host: u8,
    pub(crate) hosts: u8,
    pub(crate) rdma: Rdma,
    /// The device's module, where the kernel has none of its own.
    pub(crate) module: Option<PathBuf>,
    /// `netacc`, on the real root.
    pub(crate) program: PathBuf,
    /// How many modules the initial file system has.
    pub(crate) modules: usize,
    /// The folder with all modules of this kernel, on the real root.
    pub(crate) module_tree: PathBuf,
    /// Folders in which writes are kept.
    pub(crate) writable: Vec<PathBuf>,
    pub(crate) impairment: Impairment,
    pub(crate) ports: u8,
}

/// The probe's line on the console.
pub(crate) const PROBE_ANSWER: &str = "netacc-lab: the kernel is up";

/// The tag of the root's export, and of those of writable folders.
pub(crate) const ROOT_TAG: &str = "root";

/// The name of a writable folder's export.
pub(crate) fn writable_tag(position: usize) -> String {
    format!("rw{position}")
}

/// The name of a virtio serial port.
pub(crate) fn port_name(port: u8) -> String {
    format!("netacc.{port}")
}

/// `netacc lab-guest`. Does not return in the first process.
pub fn run(args: &GuestArgs) -> std::process::ExitCode {
    match args.role {
        Role::Init => init::run(),
        Role::Probe => init::probe(),
        Role::Agent => agent::run(),
    }
}
