//! How a call of an application ends.

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// So many bytes.
    Done(usize),
    /// EAGAIN.
    Blocked,
    /// An errno.
    Error(i32),
}
