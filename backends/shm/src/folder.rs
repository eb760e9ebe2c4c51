//! A folder that containers share: whether it can be used, and the directory of this user, or of a group, in it.
//!
//! The directory has an owner and a mode that keep others out, as under `/dev/shm`. The folder around it must be one in
//! which no other user can replace the directory: others would not get at any connection so, but could keep processes
//! from finding each other.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use netacc_device::DeviceError;

use crate::sys;

/// The directory in a folder; fails if the folder cannot be used.
pub(crate) fn directory_in(folder: &Path, group: Option<u32>) -> Result<PathBuf, DeviceError> {
    let unavailable = |what| move |source| DeviceError::Unavailable { what, source: Some(source) };
    let opened = sys::open_directory(&sys::c_string(folder)).map_err(unavailable("the folder NACC_SHM_DIR"))?;
    let st = sys::fstat(opened.as_raw_fd()).map_err(unavailable("the folder NACC_SHM_DIR"))?;
    let of_runtime = sys::Unmapped::read().user == Some(st.st_uid);
    let owned = st.st_uid == 0 || st.st_uid == sys::euid() || of_runtime;
    let by_group = st.st_mode & 0o020 != 0 && group != Some(st.st_gid);
    let replaceable = st.st_mode & libc::S_ISVTX == 0 && (by_group || st.st_mode & 0o002 != 0);
    if !owned || replaceable {
        let what = "a folder NACC_SHM_DIR in which other users can replace nothing (chmod 700 or 1777)";
        return Err(DeviceError::Unavailable { what, source: None });
    }
    Ok(folder.join(name(group)))
}

/// The directory of this user, or of the group.
pub(crate) fn name(group: Option<u32>) -> String {
    match group {
        Some(gid) => format!("netacc-g{gid}"),
        None => format!("netacc-{}", sys::euid()),
    }
}

/// Fails if this process's user, or the group, has the number by which the kernel shows all users that do not exist in
/// this user namespace: then another user could pass for this one.
pub(crate) fn check_identity(group: Option<u32>) -> Result<(), DeviceError> {
    let unmapped = sys::Unmapped::read();
    let ambiguous = unmapped.user == Some(sys::euid()) || group.is_some() && unmapped.group == group;
    if ambiguous {
        let source = Some(io::ErrorKind::PermissionDenied.into());
        let what = "a user and group that differ from those outside of the user namespace";
        return Err(DeviceError::Unavailable { what, source });
    }
    Ok(())
}
