//! What the processes of a family meet on: the machine's atomics, or loom's (`--cfg loom`), so that models run the very
//! code. Costs nothing: in a normal build these are other names.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{fence, AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64};
