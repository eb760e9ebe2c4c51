//! Why a stream stays on TCP: maps the errors of devices and connection managers to reasons.

use netacc_device::{CmError, DeviceError};
use netacc_proto::Reason;

/// Why a stream stays on TCP whose link could not be made.
pub(super) fn reason_of(error: &CmError) -> Reason {
    match error {
        CmError::MemoryLimit => Reason::MemoryLimit,
        CmError::NotAdmitted => Reason::NotAdmitted,
        CmError::Exhausted(_) => Reason::Exhausted,
        CmError::Os { source, .. } if is_exhaustion(source) => Reason::Exhausted,
        _ => Reason::PeerNotFound,
    }
}

/// Whether the peer is the reason that a link could not be made.
pub(super) fn is_about_peer(reason: Reason) -> bool {
    matches!(reason, Reason::PeerNotFound | Reason::NotAdmitted)
}

/// Why a stream stays on TCP that the device has no region for.
pub(super) fn reason_without_region(error: &DeviceError) -> Reason {
    match error {
        DeviceError::Exhausted { .. } => Reason::Exhausted,
        // The link's queue pair has ended meanwhile.
        DeviceError::Unknown { .. } => Reason::LinkFailed,
        _ => Reason::MemoryLimit,
    }
}

/// Whether a system call failed because a resource that it creates is exhausted. The kernel returns EAGAIN where a
/// control group has used its share of a device.
fn is_exhaustion(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    let kinds = [ErrorKind::OutOfMemory, ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::WouldBlock];
    kinds.contains(&error.kind()) || matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}
