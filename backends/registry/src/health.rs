//! The checks of `netacc doctor`: of the machine, and of each backend's requirements.
//!
//! It opens each RDMA device for a moment, and changes nothing.

pub(crate) mod machine;
pub(crate) mod shm;
pub(crate) mod verbs;

use std::path::Path;

use serde::Serialize;

/// The outcome of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Warn,
    /// It is not there. It matters only to users of features that need it.
    Absent,
    /// A requested feature does not work.
    Fail,
}

/// One check.
#[derive(Debug, Serialize)]
pub struct Check {
    /// The object that was checked.
    pub name: String,
    /// The outcome.
    pub status: Status,
    /// The finding.
    pub finding: String,
    /// The advice; none if the outcome is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// A check with a good outcome.
    pub fn ok(name: impl Into<String>, finding: impl Into<String>) -> Check {
        Check { name: name.into(), status: Status::Ok, finding: finding.into(), fix: None }
    }

    /// A check with another outcome: `fix` is the advice.
    pub fn not(status: Status, name: impl Into<String>, finding: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { name: name.into(), status, finding: finding.into(), fix: Some(fix.into()) }
    }
}

/// The checks of one backend.
pub(crate) struct Findings {
    pub(crate) checks: Vec<Check>,
    /// The reasons why it cannot be used; empty when it can.
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
