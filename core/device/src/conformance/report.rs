//! The result of a run of the suite.

use std::fmt;

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device keeps the guarantees of its traits and capabilities.
    Passed,
    /// It does not; the text describes the observation.
    Failed(String),
    /// Does not apply to this device, or the fixture cannot show it; the text is the reason.
    Skipped(String),
}

/// One check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The check's name, stable: exclusion lists refer to it.
    pub name: &'static str,
    /// The outcome.
    pub outcome: Outcome,
}

/// All checks of one run, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The device's own name.
    pub device: String,
    /// Every check of the suite.
    pub checks: Vec<CheckReport>,
}

impl Report {
    /// Whether no check failed.
    pub fn is_success(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The checks that failed, with the observations.
    pub fn failed(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|check| match &check.outcome {
            Outcome::Failed(reason) => Some((check.name, reason.as_str())),
            _ => None,
        })
    }

    /// The checks that were skipped, with the reasons.
    pub fn skipped(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|check| match &check.outcome {
            Outcome::Skipped(reason) => Some((check.name, reason.as_str())),
            _ => None,
        })
    }

    /// The outcome of the named check, if there is such a check.
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.checks.iter().find(|check| check.name == name).map(|check| &check.outcome)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {}", self.device)?;
        for CheckReport { name, outcome } in &self.checks {
            match outcome {
                Outcome::Passed => writeln!(f, "  passed   {name}")?,
                Outcome::Failed(reason) => writeln!(f, "  FAILED   {name}: {reason}")?,
                Outcome::Skipped(reason) => writeln!(f, "  skipped  {name}: {reason}")?,
            }
        }
        Ok(())
    }
}
