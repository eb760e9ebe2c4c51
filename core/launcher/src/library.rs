//! Finding the library, and putting its name into `LD_PRELOAD`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{shown, LIBRARY_VARIABLE};

const LIBRARY: &str = "libnetacc-preload.so";

/// The install directories below any prefix; the last one is Debian's. netacc_run is in `bin` beside them.
const BELOW_PREFIX: [&str; 3] = ["lib", "lib64", MULTIARCH];

const MULTIARCH: &str = if cfg!(target_arch = "aarch64") { "lib/aarch64-linux-gnu" } else { "lib/x86_64-linux-gnu" };

/// The directories of the system's own packages.
const SYSTEM: [&str; 2] = ["/usr/lib", "/lib64"];

#[derive(Debug, thiserror::Error)]
pub(super) enum LibraryError {
    #[error("{LIBRARY} is neither beside netacc_run nor in ../lib, ../lib64, ../{MULTIARCH}, /usr/lib, /lib64, and {LIBRARY_VARIABLE} does not name it: the program stays on TCP")]
    NotFound,
    #[error("{LIBRARY_VARIABLE}={}: no such file: the program stays on TCP", shown(.0))]
    NamedNotFound(PathBuf),
    #[error("{}: LD_PRELOAD takes no path with a space or a colon: the program stays on TCP", shown(.0))]
    Unspeakable(PathBuf),
}

/// Finds the library: `named` if the user named it, or in the usual places, of which the build directory is the first.
/// `own_path` is netacc_run's in its canonical form. The result is one, too.
///
/// # Errors
/// It is nowhere, or at a path that `LD_PRELOAD` cannot hold.
pub(super) fn find(named: Option<&Path>, own_path: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let path = match named {
        Some(path) => path.canonicalize().map_err(|_| LibraryError::NamedNotFound(path.to_owned()))?,
        None => {
            let own_directory = own_path.and_then(Path::parent);
            let beside = own_directory.map(|own| own.join(LIBRARY));
            match beside.filter(|path| path.symlink_metadata().is_ok_and(|found| found.is_file())) {
                Some(canonical) => canonical,
                None => find_installed(own_directory).ok_or(LibraryError::NotFound)?,
            }
        }
    };
    if path.as_os_str().as_bytes().iter().any(|byte| separates(*byte)) {
        return Err(LibraryError::Unspeakable(path));
    }
    Ok(path)
}

/// The library, as a symbolic link beside netacc_run, or in one of the directories of installed libraries.
fn find_installed(own_directory: Option<&Path>) -> Option<PathBuf> {
    let prefix = own_directory.and_then(Path::parent);
    let below = prefix.into_iter().flat_map(|prefix| BELOW_PREFIX.map(|place| prefix.join(place)));
    let places = own_directory.map(Path::to_owned).into_iter().chain(below).chain(SYSTEM.map(PathBuf::from));
    let files = places.map(|place| place.join(LIBRARY));
    // `canonicalize` checks each directory of a path, also of one that does not exist.
    files.filter(|path| path.symlink_metadata().is_ok()).find_map(|path| path.canonicalize().ok())
}

/// The program that runs static programs; it lies beside the library.
const STATIC_LOADER: &str = "netacc-loader";

/// Finds it, if this build has it: it is for x86-64 alone.
pub(super) fn static_loader(library: &Path) -> Option<PathBuf> {
    library.parent().map(|place| place.join(STATIC_LOADER)).filter(|path| path.is_file())
}

/// `LD_PRELOAD` with the library first and the rest unchanged. The library is not added twice.
pub(super) fn prepend(library: &Path, list: Option<&OsStr>) -> OsString {
    let mut result = library.as_os_str().to_owned();
    let Some(list) = list.filter(|list| !list.is_empty()) else {
        return result;
    };
    let mut entries = list.as_bytes().split(|byte| separates(*byte));
    if entries.any(|entry| entry == library.as_os_str().as_bytes()) {
        return list.to_owned();
    }
    result.push(":");
    result.push(list);
    result
}

/// The separators of `LD_PRELOAD` in the dynamic linker.
fn separates(byte: u8) -> bool {
    byte == b':' || byte == b' '
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_goes_first_and_only_once() {
        let list = |old: Option<&str>| prepend(Path::new("/l/n.so"), old.map(OsStr::new));
        assert_eq!(list(None), "/l/n.so");
        assert_eq!(list(Some("")), "/l/n.so");
        assert_eq!(list(Some("/a.so b.so")), "/l/n.so:/a.so b.so");
        assert_eq!(list(Some("/a.so /l/n.so")), "/a.so /l/n.so");
    }

    #[test]
    fn the_library_is_found_beside_in_lib_and_by_the_variable() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let root = dir.path().canonicalize().expect("it exists");
        let own = root.join("bin/netacc_run");
        std::fs::create_dir_all(root.join("bin")).expect("writable");
        std::fs::create_dir_all(root.join("lib64")).expect("writable");
        std::fs::create_dir_all(root.join("a b")).expect("writable");
        let in_lib64 = root.join("lib64").join(LIBRARY);
        std::fs::write(&in_lib64, "").expect("writable");
        assert_eq!(find(None, Some(&own)).ok(), Some(in_lib64.clone()));
        let beside = root.join("bin").join(LIBRARY);
        std::fs::write(&beside, "").expect("writable");
        assert_eq!(find(None, Some(&own)).ok(), Some(beside.clone()));
        assert_eq!(static_loader(&beside), None);
        std::fs::write(root.join("bin/netacc-loader"), "").expect("writable");
        assert_eq!(static_loader(&beside), Some(root.join("bin/netacc-loader")));
        assert_eq!(find(Some(&in_lib64), Some(&own)).ok(), Some(in_lib64));
        let missing = find(Some(&root.join("none.so")), Some(&own));
        assert!(matches!(missing, Err(LibraryError::NamedNotFound(_))));
        let spaced = root.join("a b/n.so");
        std::fs::write(&spaced, "").expect("writable");
        assert!(matches!(find(Some(&spaced), None), Err(LibraryError::Unspeakable(_))));
    }
}
