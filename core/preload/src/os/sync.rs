//! The atomics that the processes of a family share, and those of [`place`](super::place): the machine's, or loom's (`--cfg
//! loom`), so that models run the same code. Costs nothing: in a normal build these are other names.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

/// Stands between a SeqCst store and a later SeqCst load, which need no fence. For loom, they are a release and an acquire.
#[inline]
pub(crate) fn order_seq_cst() {
    if cfg!(loom) {
        fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// Runs a model: loom in every interleaving with few preemptions, Miri in some.
#[cfg(all(test, loom))]
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Runs a model: loom in every interleaving with few preemptions, Miri in some.
#[cfg(all(test, miri, not(loom)))]
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    (0..8).for_each(|_| model());
}
