//! The checks of `netacc doctor`: of the machine, and of what each backend needs of it.
//!
//! It opens each RDMA device for a moment, and changes nothing.

pub(crate) mod machine;
pub(crate) mod shm;
pub(crate) mod verbs;

use std::path::Path;

use serde::Serialize;

/// What came of looking at one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Warn,
    /// It is not there. That matters only to users of what needs it.
    Absent,
    /// Something that is wanted does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// What came of it.
    pub status: Status,
    /// What was found.
    pub finding: String,
    /// What to do; nothing where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// All is well.
    pub fn ok(name: impl Into<String>, finding: impl Into<String>) -> Check {
        Check { name: name.into(), status: Status::Ok, finding: finding.into(), fix: None }
    }

    /// All is not well: `fix` says what to do.
    pub fn not(status: Status, name: impl Into<String>, finding: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { name: name.into(), status, finding: finding.into(), fix: Some(fix.into()) }
    }
}

/// The checks of one backend.
pub(crate) struct Findings {
    pub(crate) checks: Vec<Check>,
    /// Why it cannot be used; empty when it can.
    pub(crate) problems: Vec<String>,
}

/// A file of the machine, without the spaces around it.
fn read(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The names in a folder, in order; none where there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A machine's files, some of them, below a folder.
#[cfg(test)]
fn machine_of(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    root
}
