//! A folder that containers share: whether it can be used, and the directory of this user, or of a group, in it.
//!
//! The directory has an owner and a mode that keep others out, as under `/dev/shm`. The folder around it must be one in
//! which no other user can replace the directory: others would not get at any connection so, but could keep processes
//! from finding each other.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
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
    Ok(not_of_others(&folder.join(name(group)), group))
}

/// Names tried where others have put something under the first ones. Arbitrary.
const MOST_NAMES: u32 = 1024;
/// Names tried beyond the first free one: what was put under that name may have gone again. Arbitrary.
const BEYOND_FREE: u32 = 8;

/// The directory at `path`, or, if another user has put something there, at the first of `path.1`, `path.2`, ... at which
/// nobody has. One that exists and is this user's, or the group's, comes before a free name.
///
/// Any user can put anything at these names, and would keep this one's processes from finding each other otherwise. A name
/// that becomes free while processes use a later one is left to those, unless it is far before it.
pub(crate) fn not_of_others(path: &Path, group: Option<u32>) -> PathBuf {
    let mut free: Option<(u32, PathBuf)> = None;
    for number in 0..MOST_NAMES {
        if free.as_ref().is_some_and(|(first, _)| number > first + BEYOND_FREE) {
            break;
        }
        let candidate = match number {
            0 => path.to_owned(),
            _ => PathBuf::from(format!("{}.{number}", path.display())),
        };
        match std::fs::symlink_metadata(&candidate) {
            Ok(found) if is_usable(&found, group) => return candidate,
            Err(error) if error.kind() == io::ErrorKind::NotFound && free.is_none() => free = Some((number, candidate)),
            _ => {}
        }
    }
    free.map_or_else(|| path.to_owned(), |(_, candidate)| candidate)
}

/// Whether it is a directory of this user, or of the group.
fn is_usable(found: &Metadata, group: Option<u32>) -> bool {
    found.is_dir() && (found.uid() == sys::euid() || group == Some(found.gid()))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if what others put at the names of a user would keep its processes apart, or off their links.
    #[test]
    fn names_that_others_took_are_passed_over() {
        let parent = std::env::temp_dir().join(format!("netacc-names-{}", sys::pid()));
        std::fs::create_dir(&parent).expect("a new name");
        let path = parent.join("netacc-0");
        let numbered = |n: u32| PathBuf::from(format!("{}.{n}", path.display()));
        assert_eq!(not_of_others(&path, None), path);
        // Neither a file nor a link is a directory, whoever has put it there.
        std::fs::write(&path, "").expect("permitted");
        std::os::unix::fs::symlink(&parent, numbered(1)).expect("permitted");
        assert_eq!(not_of_others(&path, None), numbered(2));
        std::fs::create_dir(numbered(2)).expect("permitted");
        assert_eq!(not_of_others(&path, None), numbered(2));
        // The first name becomes free: processes are at the other one.
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(not_of_others(&path, None), numbered(2));
        // Directories of others are no different from files; a group's may be any member's.
        let found = std::fs::symlink_metadata(numbered(2)).expect("it is there");
        assert!(is_usable(&found, None) && is_usable(&found, Some(found.gid())));
        if sys::euid() == 0 {
            std::os::unix::fs::chown(numbered(2), Some(5), Some(6)).expect("root may");
            assert_eq!(not_of_others(&path, None), path);
            assert_eq!(not_of_others(&path, Some(6)), numbered(2));
        }
        std::fs::remove_dir_all(&parent).expect("it is ours");
    }
}
