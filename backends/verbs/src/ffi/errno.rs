//! Error numbers as the libraries return them.

/// The error number that a call returned: some providers return it negated.
pub(super) fn errno(status: i32) -> i32 {
    status.saturating_abs()
}
