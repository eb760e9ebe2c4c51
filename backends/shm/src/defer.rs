//! Wake-ups that a thread delays in the middle of a batch.
//!
//! Invariant: only wake-ups of peers that sleep with moderation are delayed. They poll by themselves before long, so
//! nothing depends on the thread's ending its batch.

use std::cell::RefCell;

/// The device, identified by its address among the devices of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceId(pub(crate) usize);

#[derive(Default)]
struct Deferred {
    /// The device whose wake-ups are delayed.
    device: Option<DeviceId>,
    /// Pairs and the peer's completion queues, each once.
    wakes: Vec<(u32, usize)>,
}

thread_local! {
    static DEFERRED: RefCell<Deferred> = const { RefCell::new(Deferred { device: None, wakes: Vec::new() }) };
}

/// From now on this thread delays wake-ups.
pub(crate) fn begin(device: DeviceId) {
    with(|deferred| {
        if deferred.device != Some(device) {
            *deferred = Deferred { device: Some(device), wakes: Vec::new() };
        }
    });
}

/// Whether the wake-up is delayed.
pub(crate) fn keep(device: DeviceId, pair: u32, cq: usize) -> bool {
    with(|deferred| {
        let ours = deferred.device == Some(device);
        if ours && !deferred.wakes.contains(&(pair, cq)) {
            deferred.wakes.push((pair, cq));
        }
        ours
    })
    .unwrap_or(false)
}

/// Ends the delay, and calls `ring` for each delayed wake-up.
pub(crate) fn end(device: DeviceId, mut ring: impl FnMut(u32, usize)) {
    let deferred =
        with(|deferred| if deferred.device == Some(device) { std::mem::take(deferred) } else { Deferred::default() });
    deferred.unwrap_or_default().wakes.into_iter().for_each(|(pair, cq)| ring(pair, cq));
}

/// `None` in a thread that is ending.
fn with<R>(f: impl FnOnce(&mut Deferred) -> R) -> Option<R> {
    DEFERRED.try_with(|deferred| f(&mut deferred.borrow_mut())).ok()
}
