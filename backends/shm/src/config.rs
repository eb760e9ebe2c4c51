//! The settings of a [`ShmDevice`](crate::ShmDevice). Plain values; this module reads no file and no environment.

use std::path::PathBuf;

/// Largest segment ever requested, in bytes. Sparse: only touched pages exist.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// Smallest segment that still holds the control structures of both halves and some memory for regions.
pub const MIN_SEGMENT_BYTES: u64 = 64 << 20;

/// The longest path of a shared folder: the address of a socket in it has 107 bytes.
pub const MAX_FOLDER_BYTES: usize = 64;

/// Settings of a device.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Admit every member of this group, not only processes of the same effective user.
    pub group: Option<u32>,
    /// The rendezvous directory, if the default under `/dev/shm` does not suit (tests).
    pub directory: Option<PathBuf>,
    /// A folder of this host that processes of several containers share. Their network, PID and user namespaces may
    /// differ, so nothing is trusted there that only processes of one PID namespace can do. At most
    /// [`MAX_FOLDER_BYTES`] long.
    pub folder: Option<PathBuf>,
    /// Virtual bytes of a pair's segment: a power of two within [`MIN_SEGMENT_BYTES`] and [`MAX_SEGMENT_BYTES`]; any
    /// other value is rounded into that range. Halved until it can be mapped.
    pub segment_bytes: u64,
    /// First growth step of the memory that regions come from (`NACC_RDMA_MR_MIN_INC_SIZE`).
    pub mr_min_inc_bytes: u64,
    /// Largest growth step; each step doubles the one before (`NACC_RDMA_MR_MAX_INC_SIZE`).
    pub mr_max_inc_bytes: u64,
    /// Freed region memory kept for reuse, per pair, before it goes back to the system.
    pub idle_bytes: u64,
}

impl Default for ShmConfig {
    fn default() -> Self {
        ShmConfig {
            group: None,
            directory: None,
            folder: None,
            segment_bytes: MAX_SEGMENT_BYTES,
            mr_min_inc_bytes: 16 << 10,
            mr_max_inc_bytes: 8 << 20,
            // Arbitrary: two of the largest default rings' worth; the driver may lower it.
            idle_bytes: 8 << 20,
        }
    }
}

impl ShmConfig {
    pub(crate) fn segment(&self) -> u64 {
        let wanted = self.segment_bytes.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
        1 << wanted.ilog2()
    }
}
