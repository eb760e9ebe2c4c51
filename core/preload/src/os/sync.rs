//! The atomics that the processes of a family share: the machine's, or loom's (`--cfg loom`), so that models run the
//! same code. Costs nothing: in a normal build these are other names.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{fence, AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64};
