//! Wake-ups that a thread keeps back in the middle of a batch.
//!
//! Invariant: only wake-ups of peers that sleep with moderation are kept back. They look by themselves before long, so
//! nothing depends on the thread's ever letting go.

use std::cell::RefCell;

/// The device, by its address: it tells the devices of this process apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceId(pub(crate) usize);

#[derive(Default)]
struct Held {
    /// The device whose wake-ups are kept back.
    device: Option<DeviceId>,
    /// Pairs and the peer's completion queues, each once.
    wakes: Vec<(u32, usize)>,
}

thread_local! {
    static HELD: RefCell<Held> = const { RefCell::new(Held { device: None, wakes: Vec::new() }) };
}

/// From now on this thread keeps wake-ups back.
pub(crate) fn begin(device: DeviceId) {
    with(|held| {
        if held.device != Some(device) {
            *held = Held { device: Some(device), wakes: Vec::new() };
        }
    });
}

/// Whether the wake-up is kept back.
pub(crate) fn keep(device: DeviceId, pair: u32, cq: usize) -> bool {
    with(|held| {
        let ours = held.device == Some(device);
        if ours && !held.wakes.contains(&(pair, cq)) {
            held.wakes.push((pair, cq));
        }
        ours
    })
    .unwrap_or(false)
}

/// Keeps nothing back any more, and has `ring` called for what was.
pub(crate) fn end(device: DeviceId, mut ring: impl FnMut(u32, usize)) {
    let held = with(|held| if held.device == Some(device) { std::mem::take(held) } else { Held::default() });
    held.unwrap_or_default().wakes.into_iter().for_each(|(pair, cq)| ring(pair, cq));
}

/// `None` in a thread that is ending.
fn with<R>(f: impl FnOnce(&mut Held) -> R) -> Option<R> {
    HELD.try_with(|held| f(&mut held.borrow_mut())).ok()
}
