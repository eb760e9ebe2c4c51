//! The file of the pre-shared key (`NACC_PSK_FILE`).
//!
//! A file that other users can read is no secret, and one that they can write is not a key of this user: such a file is
//! refused, and the program stays on TCP. The file is checked and read through one descriptor, so it cannot be
//! exchanged in between. It is opened without blocking: a name that has become a FIFO must not stop the program.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The fewest bytes of a key, 128 bits: any process that requests a link receives a proof, from which a shorter key
/// could be guessed.
pub const MIN_SECRET_BYTES: usize = 16;

/// The most bytes of a key. Arbitrary: far more than a key needs.
const MAX_SECRET_BYTES: usize = 4096;

/// The reason why a file is not used as a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// It is something else.
    #[error("not a regular file")]
    NotAFile,
    /// Another user could replace it.
    #[error("belongs to user {0}, neither to this one nor to root")]
    Owner(u32),
    /// Other users have access to it.
    #[error("mode {0:04o} gives others access; chmod 600")]
    Mode(u32),
    /// See [`MIN_SECRET_BYTES`].
    #[error("{0} bytes; a key has 16 to 4096, such as: head -c 32 /dev/urandom | base64")]
    Length(usize),
}

/// The key in a file: its bytes, without one line end at the end. `uid`: this process's user.
///
/// # Errors
/// It cannot be read, or is no secret of this user's.
pub fn read_secret(path: &Path, uid: u32) -> Result<Vec<u8>, SecretError> {
    const O_NONBLOCK: i32 = 0o4000;
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(SecretError::NotAFile);
    }
    if metadata.uid() != uid && metadata.uid() != 0 {
        return Err(SecretError::Owner(metadata.uid()));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(SecretError::Mode(metadata.mode() & 0o7777));
    }
    let mut secret = Vec::new();
    file.take(MAX_SECRET_BYTES as u64 + 3).read_to_end(&mut secret)?;
    if secret.last() == Some(&b'\n') {
        secret.pop();
        if secret.last() == Some(&b'\r') {
            secret.pop();
        }
    }
    if !(MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&secret.len()) {
        return Err(SecretError::Length(secret.len()));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn file(name: &str, bytes: &[u8], mode: u32) -> (tempfile::TempDir, std::path::PathBuf, u32) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        let uid = fs::metadata(&path).expect("there").uid();
        (folder, path, uid)
    }

    const KEY: &[u8] = b"0123456789abcdef";

    #[test]
    fn a_line_end_is_not_part_of_the_key() {
        for end in [&b""[..], b"\n", b"\r\n"] {
            let (_folder, path, uid) = file("key", &[KEY, end].concat(), 0o600);
            assert_eq!(read_secret(&path, uid).expect("a key"), KEY, "{end:?}");
        }
        let (_folder, path, uid) = file("key", &[KEY, b"\n\n"].concat(), 0o400);
        assert_eq!(read_secret(&path, uid).expect("a key"), [KEY, b"\n"].concat(), "only one");
    }

    /// Breaks if a key is used that other users may have read, or written.
    #[test]
    fn a_key_file_that_others_can_access_is_refused() {
        for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601] {
            let (_folder, path, uid) = file("key", KEY, mode);
            assert!(
                matches!(read_secret(&path, uid), Err(SecretError::Mode(reported)) if reported == mode),
                "{mode:o}"
            );
        }
        let (_folder, path, uid) = file("key", KEY, 0o600);
        if uid != 0 {
            assert!(matches!(read_secret(&path, uid + 1), Err(SecretError::Owner(owner)) if owner == uid));
        }
        assert_eq!(read_secret(&path, uid).expect("its owner's"), KEY);
    }

    #[test]
    fn an_invalid_key_is_refused() {
        let (folder, path, uid) = file("key", b"0123456789abcde\n", 0o600);
        assert!(matches!(read_secret(&path, uid), Err(SecretError::Length(15))));
        fs::write(&path, vec![b'x'; MAX_SECRET_BYTES + 1]).expect("written");
        assert!(matches!(read_secret(&path, uid), Err(SecretError::Length(_))));
        assert!(matches!(read_secret(folder.path(), uid), Err(SecretError::NotAFile)));
        assert!(matches!(read_secret(&folder.path().join("none"), uid), Err(SecretError::Unreadable(_))));
    }
}
