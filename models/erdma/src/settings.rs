//! Settings of a function, which may change while it runs.

use std::collections::BTreeSet;
use std::time::Duration;

use netacc_rnic::CommandTimes;

/// The driver that will run on the function: each reads the firmware's version in a format of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Driver {
    /// Linux's own: the number goes to user space as it is, major and minor of 16 bits each.
    Upstream,
    /// Alibaba's: bytes, and nothing but 0.2.x (erdma_main.c: `erdma_check_fw_version`).
    Alibaba,
}

impl Driver {
    /// Version 0.2.`patch`.
    pub(crate) fn firmware_version(self, patch: u8) -> u64 {
        match self {
            Driver::Upstream => 2 << 16 | u64::from(patch),
            Driver::Alibaba => 2 << 8 | u64::from(patch),
        }
    }
}

/// The time at which a SEND or WRITE completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Completes {
    /// When the peer has acknowledged it.
    Acknowledged,
    /// When it has been sent.
    Sent,
}

/// The effect of a message that finds no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EmptyReceiveQueue {
    /// The connection dies.
    Fatal,
    /// It waits for one, and so do all later messages.
    Stall,
}

/// The requests and receives of a stopped queue pair that complete as flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flushes {
    /// None.
    None,
    /// Those posted before it stopped.
    Before,
    /// Those posted later, too.
    All,
}

/// The limits that the device reports (erdma_hw.h: `ERDMA_CMD_DEV_CAP_*`), and beyond which it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Blocks of 1024 queue pairs. Completion queues and regions are twice as many.
    pub qp_blocks: u16,
    /// Entries of a completion queue, as a power of two.
    pub log_max_cqe: u8,
    /// Entries of a receive queue, as a power of two: at most 15.
    pub log_max_recv_wr: u8,
    /// Bytes of a region, as a power of two.
    pub log_max_mr_size: u8,
    /// Whether there are atomic operations.
    pub atomics: bool,
    /// The last number of the firmware's version, 0.2.x.
    pub firmware_patch: u8,
}

/// The settings of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Read by the driver when it takes the device: later changes need a new probe to be seen.
    pub limits: Limits,
    /// The time at which a SEND or WRITE completes.
    pub completes: Completes,
    /// The effect of a message that finds no receive.
    pub empty_receive_queue: EmptyReceiveQueue,
    /// The work of a stopped queue pair that completes.
    pub flushes: Flushes,
    /// Nothing is sent.
    pub stall_transmit: bool,
    /// No message that arrives is handled.
    pub stall_receive: bool,
    /// A queue pair fails after this time without progress.
    pub retry_limit: Option<Duration>,
    /// The command queue answers nothing.
    pub command_mute: bool,
    /// The minimum duration of each command.
    pub command_delay: Duration,
    /// The additional duration of some commands.
    pub command_times: CommandTimes,
    /// Commands that fail, by submodule and number.
    pub failing_commands: BTreeSet<(u8, u8)>,
    /// This number of interrupts of completion queues from now on are lost.
    pub lose_interrupts: u64,
    /// Each interrupt comes twice.
    pub duplicate_interrupts: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            // Arbitrary, but enough for the project's own suites many times over.
            limits: Limits {
                qp_blocks: 128,
                log_max_cqe: 20,
                log_max_recv_wr: 15,
                log_max_mr_size: 36,
                atomics: false,
                // Also the version of the driver that this device follows.
                firmware_patch: 37,
            },
            completes: Completes::Acknowledged,
            empty_receive_queue: EmptyReceiveQueue::Fatal,
            flushes: Flushes::Before,
            stall_transmit: false,
            stall_receive: false,
            retry_limit: None,
            command_mute: false,
            command_delay: Duration::ZERO,
            command_times: CommandTimes::default(),
            failing_commands: BTreeSet::new(),
            lose_interrupts: 0,
            duplicate_interrupts: false,
        }
    }
}

impl Limits {
    /// Queue pairs; their numbers are below.
    pub(crate) fn max_qp(&self) -> u32 {
        u32::from(self.qp_blocks) * 1024
    }

    /// Completion queues, and regions; their numbers are below.
    pub(crate) fn max_cq_and_mr(&self) -> u32 {
        self.max_qp() * 2
    }
}
